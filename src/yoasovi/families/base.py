"""Gaussian families q on the unconstrained scale: draws, log densities, and steps in q's own (Fisher) units."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import ndtri

from yoasovi.errors import positive_integer
from yoasovi.model.model import Density, Inputs, Terms
from yoasovi.windows.score_line import line, line_of_scales, newton

LOG_2PI = float(np.log(2.0 * np.pi))


class Family(Protocol):
    """What the loop asks of every family; `theta` is a flat vector for Gaussians, a dict for `Factorised`."""

    name: ClassVar[str]

    def noise_size(self, density: Density) -> int:
        """How many uniform numbers make one draw."""
        ...

    def draw(self, density: Density, params: Any, uniform: jax.Array) -> Any:
        """Turn one row of uniform noise into a draw of theta."""
        ...

    def draw_with_log_q(self, density: Density, params: Any, uniform: jax.Array) -> tuple[Any, jax.Array]:
        """Draw, and give log q there."""
        ...

    def terms(self, density: Density, inputs: Inputs, theta: Any) -> Terms:
        """Give the terms of log p at a draw, on the scale the family lives on."""
        ...

    def pieces(self, density: Density, params: Any, theta: Any) -> dict[str, jax.Array]:
        """Give log q in its independent pieces, by site; they sum to log q."""
        ...

    def constrain(self, density: Density, inputs: Inputs, theta: Any) -> dict[str, jax.Array]:
        """Give a draw on the sites' own supports."""
        ...

    def project(self, params: Any) -> Any:
        """Bring parameters back to where they are valid after a step."""
        ...

    def widen(self, params: Any, factor: float) -> Any:
        """Give the parameters of q^(1/factor), normalised: the same family with heavier tails."""
        ...


_SCALE_CAP = 0.4  # most that one natural step may change the logarithm of a scale


def clip(x: jax.Array, cap: jax.Array) -> jax.Array:
    """Cut to [-cap, cap]."""
    return jnp.clip(x, -cap, cap)


class Proposal(NamedTuple):
    """Where a window leads, and what its line says of the gain (nats)."""

    params: Any
    expected: jax.Array  # of this step
    signal: jax.Array  # still to gain
    noise: jax.Array  # how much of that could be luck


class Gaussian(ABC):
    """A Gaussian on the flat unconstrained vector: theta = place(params, eps), eps standard normal."""

    name: ClassVar[str]

    @abstractmethod
    def init(self, mean: jax.Array, scale: jax.Array, key: jax.Array) -> Any:
        """Start at the given means and scales."""

    @abstractmethod
    def place(self, params: Any, eps: jax.Array) -> jax.Array:
        """Map standard normal noise to theta."""

    @abstractmethod
    def minus_log_q(self, params: Any, eps: jax.Array) -> jax.Array:
        """Give -log q at place(params, eps)."""

    @abstractmethod
    def log_q(self, params: Any, theta: jax.Array) -> jax.Array:
        """Give log q(theta): one number, or one per coordinate where q is a product."""

    @abstractmethod
    def white(self, params: Any, eps: jax.Array, grad: jax.Array) -> jax.Array:
        """Give d/dtheta [log p - log q] in q's units with q's parameters held fixed (sticking the landing)."""

    @abstractmethod
    def natural(self, params: Any, eps: jax.Array, white: jax.Array) -> Any:
        """Give one draw's natural-gradient step."""

    @abstractmethod
    def move(self, params: Any, step: Any, cap: jax.Array) -> Any:
        """Take a step, of at most `cap` standard deviations of each mean."""

    @abstractmethod
    def propose(self, params, eps, white, count, full, length, trust) -> Proposal:
        """Fit a line to a window's scores and go where it says; see `curvature`."""

    @abstractmethod
    def line_size(self, dim: int) -> int:
        """Give the draws a window needs for a full line; 0 if the family has no use for one."""

    def lines_pay(self, dim: int) -> bool:
        """Say whether to begin with lines at all; with many parameters scales would widen before means are learned."""
        return dim <= 300

    def longest_first_step(self, dim: int) -> float:
        """Give the longest natural step that is stable to begin with."""
        return 1.0

    def noise_size(self, density):
        return density.dim

    def draw(self, density, params, uniform):
        return self.place(params, ndtri(uniform))

    def draw_with_log_q(self, density, params, uniform):
        eps = ndtri(uniform)
        return self.place(params, eps), -self.minus_log_q(params, eps)

    def terms(self, density, inputs, theta):
        return density.free_terms(inputs, theta)

    def pieces(self, density, params, theta):
        log_q = self.log_q(params, theta)
        return {"q": log_q} if log_q.ndim == 0 else density.split(log_q)

    def constrain(self, density, inputs, theta):
        return density.constrain(inputs, theta)[0]

    def project(self, params):
        return params


class MeanFieldParams(NamedTuple):
    """Means and logarithms of scales."""

    mean: jax.Array  # (d,)
    log_scale: jax.Array  # (d,)


@dataclass(frozen=True)
class MeanField(Gaussian):
    """Independent Gaussians: theta = mean + exp(log_scale) * eps. O(d) per step."""

    name: ClassVar[str] = "mean_field"

    def init(self, mean, scale, key):
        return MeanFieldParams(mean, jnp.log(scale))

    def place(self, params, eps):
        return params.mean + jnp.exp(params.log_scale) * eps

    def minus_log_q(self, params, eps):
        return jnp.sum(0.5 * eps**2 + params.log_scale + 0.5 * LOG_2PI)

    def log_q(self, params, theta):
        eps = (theta - params.mean) * jnp.exp(-params.log_scale)
        return -0.5 * eps**2 - params.log_scale - 0.5 * LOG_2PI

    def white(self, params, eps, grad):
        return jnp.exp(params.log_scale) * grad + eps

    def natural(self, params, eps, white):
        return MeanFieldParams(white, 0.5 * white * eps)

    def move(self, params, step, cap):
        return self._shifted(params, clip(step.mean, cap), clip(step.log_scale, jnp.minimum(cap, _SCALE_CAP)))

    def _shifted(self, params, shift, log_scales):
        return MeanFieldParams(params.mean + jnp.exp(params.log_scale) * shift, params.log_scale + log_scales)

    def propose(self, params, eps, white, count, full, length, trust):
        fitted = line_of_scales(eps, white, count)
        step = newton(fitted, length, trust)
        there = self._shifted(params, step.shift, step.log_scales)
        return Proposal(there, step.expected, fitted.signal, fitted.noise)

    def line_size(self, dim):
        return 0

    def widen(self, params, factor):
        return params._replace(log_scale=params.log_scale + 0.5 * jnp.log(factor))


class FullRankParams(NamedTuple):
    """Means and a triangular factor, its diagonal as logarithms."""

    mean: jax.Array  # (d,)
    log_diagonal: jax.Array  # (d,)
    lower: jax.Array  # (d, d), zero on and above the diagonal


@dataclass(frozen=True)
class FullRank(Gaussian):
    """A Gaussian with any covariance: theta = mean + C eps, C lower triangular. O(d^2) to O(d^3) per step."""

    name: ClassVar[str] = "full_rank"

    def init(self, mean, scale, key):
        return FullRankParams(mean, jnp.log(scale), jnp.zeros((mean.size, mean.size), mean.dtype))

    def factor(self, params):
        """Give the lower-triangular C with q's covariance C C^T."""
        return jnp.tril(params.lower, -1) + jnp.diag(jnp.exp(params.log_diagonal))

    def _with_factor(self, mean, factor):
        return FullRankParams(mean, jnp.log(jnp.diag(factor)), jnp.tril(factor, -1))

    def place(self, params, eps):
        return params.mean + self.factor(params) @ eps

    def minus_log_q(self, params, eps):
        return jnp.sum(0.5 * eps**2 + params.log_diagonal + 0.5 * LOG_2PI)

    def log_q(self, params, theta):
        return -self.minus_log_q(params, solve_triangular(self.factor(params), theta - params.mean, lower=True))

    def white(self, params, eps, grad):
        return self.factor(params).T @ grad + eps

    def natural(self, params, eps, white):
        outer = jnp.outer(white, eps)
        return FullRankParams(white, 0.5 * jnp.diag(outer), jnp.tril(outer, -1))

    def move(self, params, step, cap):
        factor = self.factor(params)
        # A trust region on the factor: the product below is a change of scale only while the step is small.
        size = jnp.sqrt(jnp.sum(step.log_diagonal**2) + jnp.sum(step.lower**2))
        shrink = 1.0 / jnp.maximum(1.0, 2.0 * size)
        change = jnp.tril(shrink * step.lower, -1) + jnp.diag(jnp.exp(shrink * step.log_diagonal))
        return self._with_factor(params.mean + factor @ clip(step.mean, cap), factor @ change)

    def propose(self, params, eps, white, count, full, length, trust):
        factor = self.factor(params)

        def along_axes(_):
            fitted = line_of_scales(eps, white, count)
            step = newton(fitted, length, trust)
            there = self._with_factor(params.mean + factor @ step.shift, factor * jnp.exp(step.log_scales))
            return Proposal(there, step.expected, fitted.signal, fitted.noise)

        def everywhere(_):
            fitted = line(eps, white, count)
            step = newton(fitted, length, trust)
            root = jnp.linalg.qr((factor @ (step.axes * jnp.exp(step.log_scales))).T, mode="r").T
            root = root * jnp.where(jnp.diag(root) < 0, -1.0, 1.0)
            there = self._with_factor(params.mean + factor @ step.shift, root)
            return Proposal(there, step.expected, fitted.signal, fitted.noise)

        return jax.lax.cond(full, everywhere, along_axes, None)

    def line_size(self, dim):
        # A fifth more pairs than unknowns per row, and a few, so that the noise of the line can be told.
        return 2 * (dim + dim // 5 + 4)

    def longest_first_step(self, dim):
        return 1.0 / dim  # beyond it the factor's one-draw steps grow instead of averaging out

    def widen(self, params, factor):
        root = jnp.sqrt(factor)
        return FullRankParams(params.mean, params.log_diagonal + jnp.log(root), params.lower * root)


class LowRankParams(NamedTuple):
    """Means, logarithms of scales, and the loadings of the common factors."""

    mean: jax.Array  # (d,)
    log_scale: jax.Array  # (d,)
    loading: jax.Array  # (d, r)


@dataclass(frozen=True)
class LowRank(Gaussian):
    """A Gaussian with covariance S (I + U U^T) S, S diagonal, U of `rank` columns. O(d r) per step."""

    rank: int = 10
    name: ClassVar[str] = "low_rank"

    def __post_init__(self):
        positive_integer("rank", "LowRank", self.rank)

    def init(self, mean, scale, key):
        loading = 0.1 * jax.random.normal(key, (mean.size, self.rank), mean.dtype) / mean.size**0.5
        return LowRankParams(mean, jnp.log(scale), loading)

    def _inner(self, params):
        return jnp.eye(self.rank) + params.loading.T @ params.loading

    def _solve(self, params, x):
        """(I + U U^T)^-1 x, by Woodbury's identity."""
        return x - params.loading @ jnp.linalg.solve(self._inner(params), params.loading.T @ x)

    def noise_size(self, density):
        return density.dim + self.rank

    def _mix(self, params, eps):
        d = params.mean.size
        return eps[:d] + params.loading @ eps[d:]

    def place(self, params, eps):
        return params.mean + jnp.exp(params.log_scale) * self._mix(params, eps)

    def _minus_log_q_at(self, params, mixed):
        quadratic = 0.5 * mixed @ self._solve(params, mixed)
        logdet = 0.5 * jnp.linalg.slogdet(self._inner(params))[1]
        return quadratic + logdet + jnp.sum(params.log_scale) + 0.5 * mixed.size * LOG_2PI

    def minus_log_q(self, params, eps):
        return self._minus_log_q_at(params, self._mix(params, eps))

    def log_q(self, params, theta):
        return -self._minus_log_q_at(params, (theta - params.mean) * jnp.exp(-params.log_scale))

    def white(self, params, eps, grad):
        return jnp.exp(params.log_scale) * grad + self._solve(params, self._mix(params, eps))

    def natural(self, params, eps, white):
        loading, inner = params.loading, self._inner(params)
        mixed = self._mix(params, eps)
        # Given theta, the expected noise behind the loadings and behind the rest: less noisy than the noise itself.
        behind = jnp.linalg.solve(inner, loading.T @ mixed)
        rest = mixed - loading @ behind
        spread = white + loading @ (loading.T @ white)
        left = 1.0 - jnp.sum(jnp.linalg.solve(inner, loading.T).T * loading, 1)  # diagonal of (I + U U^T)^-1
        weight = jnp.eye(self.rank) - jnp.linalg.inv(inner)
        # The 0.1 bounds the step near U = 0, a saddle; inside the span of U half a step is the natural one.
        grow = jnp.outer(spread, jnp.linalg.solve(weight + 0.1 * jnp.eye(self.rank), behind))
        inside = jnp.linalg.solve(weight + 1e-6 * jnp.eye(self.rank), loading.T @ self._solve(params, grow))
        return LowRankParams(spread, 0.5 * white * rest / left, grow - 0.5 * loading @ inside)

    def move(self, params, step, cap):
        spread = jnp.sqrt(1.0 + jnp.sum(params.loading**2, 1))
        shift = clip(step.mean, cap * spread)
        log_scales = clip(step.log_scale, jnp.minimum(cap, _SCALE_CAP))
        size = jnp.sqrt(jnp.maximum(jnp.sum(step.loading * self._solve(params, step.loading)), 1e-30))
        loading = params.loading + step.loading * jnp.minimum(1.0, 0.5 / size)
        # The loadings in the parameters' own units stay where they are while the scales move.
        loading = loading * jnp.exp(-log_scales)[:, None]
        return LowRankParams(params.mean + jnp.exp(params.log_scale) * shift, params.log_scale + log_scales, loading)

    def propose(self, params, eps, white, count, full, length, trust):
        d = params.mean.size
        fitted = line_of_scales(eps[:, :d], white, count)
        step = newton(fitted, length, trust)
        scale = jnp.exp(params.log_scale)
        there = LowRankParams(params.mean + scale * step.shift, params.log_scale + step.log_scales, params.loading)
        return Proposal(there, step.expected, fitted.signal, fitted.noise)

    def line_size(self, dim):
        return 0

    def widen(self, params, factor):
        return params._replace(log_scale=params.log_scale + 0.5 * jnp.log(factor))
