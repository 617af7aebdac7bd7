"""A Gaussian with any covariance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from yoasovi.arrays import space
from yoasovi.families.base import LOG_2PI, Gaussian, Proposal, as_diagonal, clip, diagonal, squares, turned, whole_line_size
from yoasovi.windows.score_line import line, line_of_scales, newton


class FullRankParams(NamedTuple):
    """Means and a triangular factor, its diagonal as logarithms."""

    mean: Any  # (d,)
    log_diagonal: Any  # (d,)
    lower: Any  # (d, d), zero on and above the diagonal


@dataclass(frozen=True)
class FullRank(Gaussian):
    """A Gaussian with any covariance: theta = mean + C eps, C lower triangular. O(d^2) to O(d^3) per step."""

    name: ClassVar[str] = "full_rank"

    def init(self, mean: Any, scale: Any, rng: Any) -> Any:
        xp = space(mean)
        return FullRankParams(mean, xp.log(scale), xp.zeros((*mean.shape, mean.shape[-1]), mean.dtype))

    def factor(self, params: Any) -> Any:
        """Give the lower-triangular C with q's covariance C C^T."""
        xp = space(params.mean)
        return xp.tril(params.lower, -1) + as_diagonal(xp.exp(params.log_diagonal))

    def _with_factor(self, mean: Any, factor: Any) -> Any:
        xp = space(mean)
        return FullRankParams(mean, xp.log(diagonal(factor)), xp.tril(factor, -1))

    def _shift(self, factor: Any, by: Any) -> Any:
        return (factor @ by[..., None])[..., 0]

    def place(self, params: Any, eps: Any) -> Any:
        return params.mean[..., None, :] + eps @ turned(self.factor(params))

    def minus_log_q(self, params: Any, eps: Any) -> Any:
        return 0.5 * squares(eps) + (params.log_diagonal + 0.5 * LOG_2PI).sum(-1)[..., None]

    def behind(self, params: Any, theta: Any) -> Any:
        return turned(solve_lower(self.factor(params), turned(theta - params.mean[..., None, :])))

    def log_q(self, params: Any, theta: Any) -> Any:
        return -self.minus_log_q(params, self.behind(params, theta))

    def slope(self, params: Any, theta: Any) -> Any:
        factor = self.factor(params)
        centred = solve_lower(factor, turned(theta - params.mean[..., None, :]))
        return -turned(space(theta).linalg.solve(turned(factor), centred))

    def white(self, params: Any, eps: Any, grad: Any) -> Any:
        return grad @ self.factor(params) + eps

    def natural(self, params: Any, eps: Any, white: Any) -> Any:
        outer = white[..., :, None] * eps[..., None, :]
        return FullRankParams(white, 0.5 * diagonal(outer), space(outer).tril(outer, -1))

    def move(self, params: Any, step: Any, cap: Any) -> Any:
        xp, factor = space(params.mean), self.factor(params)
        # A trust region on the factor: the product below is a change of scale only while the step is small.
        size = xp.sqrt((step.log_diagonal**2).sum(-1) + (step.lower**2).sum((-1, -2)))
        shrink = 1.0 / xp.maximum(1.0, 2.0 * size)[..., None]
        change = xp.tril(shrink[..., None] * step.lower, -1) + as_diagonal(xp.exp(shrink * step.log_diagonal))
        return self._with_factor(params.mean + self._shift(factor, clip(step.mean, cap)), factor @ change)

    def propose(self, params: Any, eps: Any, white: Any, full: Any, length: Any, trust: Any, weight: Any = None) -> Any:
        xp, factor = space(params.mean), self.factor(params)
        fitted = line(eps, white, weight) if full else line_of_scales(eps, white)
        step = newton(fitted, length, trust)
        if full:
            root = xp.linalg.qr(turned(factor @ (step.axes * xp.exp(step.log_scales)[..., None, :])), mode="r")
            root = turned(root) * xp.where(diagonal(root) < 0, -1.0, 1.0)[..., None, :]
        else:
            root = factor * xp.exp(step.log_scales)[..., None, :]
        there = self._with_factor(params.mean + self._shift(factor, step.shift), root)
        return Proposal(there, step.expected, fitted.signal, fitted.noise)

    def frame(self, params: Any) -> Any:
        return params.mean, self.factor(params)

    def line_size(self, dim: Any) -> Any:
        return whole_line_size(dim)

    def longest_first_step(self, dim: Any) -> Any:
        return 1.0 / dim  # beyond it the factor's one-draw steps grow instead of averaging out

    def widen(self, params: Any, factor: Any) -> Any:
        root = np.sqrt(factor)
        return FullRankParams(params.mean, params.log_diagonal + np.log(root), params.lower * root)


def solve_lower(factor: Any, x: Any) -> Any:
    """Solve C y = x with C lower triangular."""
    if isinstance(x, np.ndarray):
        return np.linalg.solve(factor, x)
    from jax.scipy.linalg import solve_triangular

    return solve_triangular(factor, x, lower=True)
