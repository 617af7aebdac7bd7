"""A Gaussian with a few common factors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from yoasovi.arrays import space
from yoasovi.errors import positive_integer
from yoasovi.families.base import LOG_2PI, SCALE_CAP, Gaussian, Proposal, Root, clip, turned
from yoasovi.windows.score_line import line_of_scales, newton


class LowRankParams(NamedTuple):
    """Means, logarithms of scales, and the loadings of the common factors."""

    mean: Any  # (d,)
    log_scale: Any  # (d,)
    loading: Any  # (d, r)


@dataclass(frozen=True)
class LowRank(Gaussian):
    """A Gaussian with covariance S (I + U U^T) S, S diagonal, U of `rank` columns. O(d r) per step."""

    rank: int = 10
    name: ClassVar[str] = "low_rank"

    def __post_init__(self) -> None:
        positive_integer("rank", "LowRank", self.rank)

    def init(self, mean: Any, scale: Any, rng: Any) -> Any:
        xp, d = space(mean), mean.shape[-1]
        loading = 0.1 * rng.standard_normal((*mean.shape, self.rank)) / d**0.5
        return LowRankParams(mean, xp.log(scale), xp.asarray(loading, dtype=mean.dtype))

    def _inner(self, params: Any) -> Any:
        xp = space(params.loading)
        return xp.eye(self.rank, dtype=params.loading.dtype) + turned(params.loading) @ params.loading

    def _solve(self, params: Any, x: Any) -> Any:
        """Give (I + U U^T)^-1 x for columns x, by Woodbury's identity."""
        solve = space(x).linalg.solve
        return x - params.loading @ solve(self._inner(params), turned(params.loading) @ x)

    def noise_size(self, density: Any) -> Any:
        return density.dim + self.rank

    def _mix(self, params: Any, eps: Any) -> Any:
        d = params.mean.shape[-1]
        return eps[..., :d] + eps[..., d:] @ turned(params.loading)

    def place(self, params: Any, eps: Any) -> Any:
        return params.mean[..., None, :] + space(eps).exp(params.log_scale)[..., None, :] * self._mix(params, eps)

    def _minus_log_q_at(self, params: Any, mixed: Any) -> Any:
        xp = space(mixed)
        quadratic = 0.5 * (mixed * turned(self._solve(params, turned(mixed)))).sum(-1)
        logdet = 0.5 * xp.linalg.slogdet(self._inner(params))[1] + params.log_scale.sum(-1)
        return quadratic + logdet[..., None] + 0.5 * mixed.shape[-1] * LOG_2PI

    def minus_log_q(self, params: Any, eps: Any) -> Any:
        return self._minus_log_q_at(params, self._mix(params, eps))

    def log_q(self, params: Any, theta: Any) -> Any:
        white = (theta - params.mean[..., None, :]) * space(theta).exp(-params.log_scale)[..., None, :]
        return -self._minus_log_q_at(params, white)

    def slope(self, params: Any, theta: Any) -> Any:
        inverse = space(theta).exp(-params.log_scale)[..., None, :]
        return -inverse * turned(self._solve(params, turned((theta - params.mean[..., None, :]) * inverse)))

    def white(self, params: Any, eps: Any, grad: Any) -> Any:
        behind = turned(self._solve(params, turned(self._mix(params, eps))))
        return space(grad).exp(params.log_scale)[..., None, :] * grad + behind

    def natural(self, params: Any, eps: Any, white: Any) -> Any:
        xp, loading, inner = space(params.mean), params.loading, self._inner(params)
        eye = xp.eye(self.rank, dtype=loading.dtype)
        mixed = self._mix(params, eps[None])[0]
        # Given theta, the expected noise behind the loadings and behind the rest: less noisy than the noise itself.
        behind = xp.linalg.solve(inner, (loading.T @ mixed)[:, None])[:, 0]
        rest = mixed - loading @ behind
        spread = white + loading @ (loading.T @ white)
        left = 1.0 - (xp.linalg.solve(inner, loading.T).T * loading).sum(1)  # diagonal of (I + U U^T)^-1
        weight = eye - xp.linalg.inv(inner)
        # The 0.1 bounds the step near U = 0, a saddle; inside the span of U half a step is the natural one.
        grow = spread[:, None] * xp.linalg.solve(weight + 0.1 * eye, behind[:, None])[:, 0]
        inside = xp.linalg.solve(weight + 1e-6 * eye, loading.T @ self._solve(params, grow))
        return LowRankParams(spread, 0.5 * white * rest / left, grow - 0.5 * loading @ inside)

    def move(self, params: Any, step: Any, cap: Any) -> Any:
        xp = space(params.mean)
        spread = xp.sqrt(1.0 + (params.loading**2).sum(-1))
        shift = clip(step.mean, cap * spread)
        log_scales = clip(step.log_scale, xp.minimum(cap, SCALE_CAP))
        size = xp.sqrt(xp.maximum((step.loading * self._solve(params, step.loading)).sum(), 1e-30))
        loading = params.loading + step.loading * xp.minimum(1.0, 0.5 / size)
        # The loadings in the parameters' own units stay where they are while the scales move.
        loading = loading * xp.exp(-log_scales)[:, None]
        return LowRankParams(params.mean + xp.exp(params.log_scale) * shift, params.log_scale + log_scales, loading)

    def propose(self, params: Any, eps: Any, white: Any, full: Any, length: Any, trust: Any, weight: Any = None) -> Any:
        d = params.mean.shape[-1]
        fitted = line_of_scales(eps[..., :d], white)
        step = newton(fitted, length, trust)
        scale = space(params.mean).exp(params.log_scale)
        there = LowRankParams(params.mean + scale * step.shift, params.log_scale + step.log_scales, params.loading)
        return Proposal(there, step.expected, fitted.signal, fitted.noise)

    def bend(self, dim: Any) -> Any:
        return 0.0  # lines here know scales alone: only steps can tell that no loading is left to learn

    def frame(self, params: Any) -> Any:
        return params.mean, np.exp(params.log_scale) * np.sqrt(1.0 + (params.loading**2).sum(-1))

    def root(self, params: Any) -> Any:
        # The symmetric root of I + U U^T: its noise has as many numbers as theta, that of `place` has more.
        axes, sizes, _ = np.linalg.svd(params.loading, full_matrices=False)
        return Root(params.mean, np.exp(params.log_scale), axes, np.sqrt(1.0 + sizes**2) - 1.0)

    def widen(self, params: Any, factor: Any) -> Any:
        return params._replace(log_scale=params.log_scale + 0.5 * np.log(factor))
