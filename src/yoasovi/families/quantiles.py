"""Quantiles of NumPyro's distributions: uniform points in, draws out."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import Array, lax
from jax.scipy.special import betainc, erfinv, gammainc, gammaincc, gammaln, ndtr, ndtri
from jax.typing import ArrayLike

__all__ = ["inverse_cdf"]


def inverse_cdf(distribution: dist.Distribution, u: ArrayLike) -> Array:
    """Map uniform points to a draw from a NumPyro distribution.

    Elementwise x = min {x : F(x) >= u}. A Dirichlet draw is made of the gamma quantiles of u, normalised.

    Parameters
    ----------
    distribution : numpyro.distributions.Distribution
        Bernoulli, Beta, Categorical, Dirichlet, DiscreteUniform, Gamma, HalfCauchy, HalfNormal, Poisson,
        StudentT; every distribution whose own `icdf` works, such as Normal, Exponential and Uniform;
        monotone elementwise transforms of these; and any of them under `expand`, `to_event` or `mask`.
    u : array
        Points strictly inside (0, 1), of the distribution's shape, batch + event. Use `jax.vmap` for more.

    Returns
    -------
    Array
        A value inside the support, of the same shape; integers for a discrete distribution. Continuous
        ones are differentiable, Beta and StudentT in `u` only, since JAX lacks the rest.
    """
    u = jnp.asarray(u, jnp.result_type(float))
    if isinstance(distribution, dist.Distribution) and u.shape != distribution.shape():
        raise ValueError(
            f"`u` of `inverse_cdf` must have the shape of the {type(distribution).__name__}, "
            f"{distribution.shape()}; got {u.shape}. Use `jax.vmap` over further axes."
        )
    return _quantile(distribution, u)


# ---- by distribution -------------------------------------------------------------------------------------


@functools.singledispatch
def _quantile(distribution: object, u: Array) -> Array:
    raise _unsupported(distribution)


def _unsupported(distribution: object) -> TypeError:
    return TypeError(
        "`distribution` of `inverse_cdf` must be a NumPyro Bernoulli, Beta, Categorical, Dirichlet, "
        "DiscreteUniform, Gamma, HalfCauchy, HalfNormal, Poisson or StudentT, one with a working `icdf`, "
        "or an expanded, independent, masked or monotonely transformed one of these; "
        f"got {type(distribution).__name__}."
    )


@_quantile.register
def _(distribution: dist.Distribution, u: Array) -> Array:
    try:
        return jnp.asarray(distribution.icdf(u))
    except (NotImplementedError, ImportError) as error:  # ImportError: some need TensorFlow Probability.
        raise _unsupported(distribution) from error


@_quantile.register(dist.Independent)
@_quantile.register(dist.MaskedDistribution)
def _(distribution: Any, u: Array) -> Array:
    return _quantile(distribution.base_dist, u)


@_quantile.register
def _(distribution: dist.ExpandedDistribution, u: Array) -> Array:
    base = distribution.base_dist
    solve: Callable[[Array], Array] = functools.partial(_quantile, base)
    new = len(distribution.batch_shape) - len(base.batch_shape)
    for axis, (old, wide) in enumerate(zip(base.batch_shape, distribution.batch_shape[new:], strict=True)):
        if old != wide:
            solve = _over_unit_axis(solve, axis)
    for _ in range(new):
        solve = jax.vmap(solve)
    return solve(u)


def _over_unit_axis(solve: Callable[[Array], Array], axis: int) -> Callable[[Array], Array]:
    """Map a function that expects length one along `axis` over that axis."""

    def one(u: Array) -> Array:
        return jnp.squeeze(solve(jnp.expand_dims(u, axis)), axis)

    return jax.vmap(one, axis, axis)


@_quantile.register
def _(distribution: dist.TransformedDistribution, u: Array) -> Array:
    decreasing = jnp.zeros(u.shape, bool)
    for transform in distribution.transforms:
        if transform.domain.event_dim or transform.codomain.event_dim:
            raise _unsupported(distribution)
        try:
            decreasing ^= jnp.broadcast_to(jnp.asarray(transform.sign) < 0, u.shape)
        except NotImplementedError as error:  # Not monotone: no order of draws to keep.
            raise _unsupported(distribution) from error
    value = _quantile(distribution.base_dist, jnp.where(decreasing, 1 - u, u))
    for transform in distribution.transforms:
        value = transform(value)
    return value


# NumPyro forms (1 + u) / 2 for the half distributions, which is 1 in float32 for the largest u.
@_quantile.register
def _(distribution: dist.HalfNormal, u: Array) -> Array:
    return distribution.scale * (math.sqrt(2) * erfinv(u))


@_quantile.register
def _(distribution: dist.HalfCauchy, u: Array) -> Array:
    angle = 0.5 * jnp.pi * jnp.minimum(u, 1 - u)
    return distribution.scale * jnp.where(u < 0.5, jnp.tan(angle), 1 / jnp.tan(angle))


@_quantile.register(dist.BernoulliProbs)
@_quantile.register(dist.BernoulliLogits)
def _(distribution: Any, u: Array) -> Array:
    return (1 - u < distribution.probs).astype(jnp.result_type(int))


@_quantile.register(dist.CategoricalProbs)
@_quantile.register(dist.CategoricalLogits)
def _(distribution: Any, u: Array) -> Array:
    # A category of probability zero gets exactly its predecessor's sum, so that rounding cannot select it.
    probs = distribution.probs
    total = jnp.where(probs > 0, jnp.cumsum(probs, axis=-1), 0)
    total = lax.cummax(total, axis=total.ndim - 1)
    below = total / total[..., -1:] < u[..., None]
    return jnp.sum(below, axis=-1, dtype=jnp.result_type(int))


@_quantile.register
def _(distribution: dist.DiscreteUniform, u: Array) -> Array:
    # NumPyro's own `icdf` returns fractions.
    count = distribution.high - distribution.low + 1
    rank = jnp.ceil(u * count).astype(jnp.result_type(int)) - 1
    return distribution.low + jnp.clip(rank, 0, count - 1)


@_quantile.register
def _(distribution: dist.Poisson, u: Array) -> Array:
    """Bisect the integers between two tail bounds (Boucheron, Lugosi and Massart 2013, section 2.4)."""
    rate = lax.stop_gradient(jnp.broadcast_to(distribution.rate, u.shape).astype(u.dtype))
    u = lax.stop_gradient(u)
    tail = -jnp.log1p(-u)
    low = jnp.maximum(jnp.floor(rate - jnp.sqrt(-2 * rate * jnp.log(u))) - 1, -1)
    high = jnp.ceil(rate + jnp.sqrt(2 * rate * tail) + tail)

    def unfinished(state: tuple[Array, Array, Array]) -> Array:
        step, low, high = state
        return jnp.any(high - low > 1) & (step < 64)  # Floats above 2**24 or 2**53 have no integers between.

    def halve(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        step, low, high = state
        middle = jnp.floor(0.5 * (low + high))
        enough = _poisson_cdf(middle, rate) >= u
        # A finished element must stay: its middle is `low`, whose side is already known.
        enough &= middle > low
        return step + 1, jnp.where(enough, low, middle), jnp.where(enough, middle, high)

    _, _, high = lax.while_loop(unfinished, halve, (jnp.zeros((), int), low, high))
    return high.astype(jnp.result_type(int))


def _poisson_cdf(count: Array, rate: Array) -> Array:
    shape = count + 1
    large = shape > _wilson_hilferty_from(shape.dtype)
    root = 3 * jnp.sqrt(shape) * (1 - 1 / (9 * shape) - jnp.cbrt(rate / shape))
    exact = gammaincc(jnp.where(large, 1, shape), jnp.where(large, 1, rate))
    return jnp.where(large, ndtr(root), exact)


@_quantile.register
def _(distribution: dist.Gamma, u: Array) -> Array:
    concentration = jnp.broadcast_to(distribution.concentration, u.shape).astype(u.dtype)
    value = jnp.exp(_log_gamma_quantile(concentration, u) - jnp.log(distribution.rate))
    # The quantile of a small concentration can be below the smallest float, and 0 is outside the support.
    return jnp.maximum(value, jnp.finfo(u.dtype).tiny)


@_quantile.register
def _(distribution: dist.Dirichlet, u: Array) -> Array:
    concentration = jnp.broadcast_to(distribution.concentration, u.shape).astype(u.dtype)
    # In logarithms, so that a small concentration cannot give 0 / 0.
    return _inside_unit(jax.nn.softmax(_log_gamma_quantile(concentration, u), axis=-1))


@_quantile.register
def _(distribution: dist.Beta, u: Array) -> Array:
    a = jnp.broadcast_to(distribution.concentration1, u.shape).astype(u.dtype)
    b = jnp.broadcast_to(distribution.concentration0, u.shape).astype(u.dtype)
    return _inside_unit(jax.nn.sigmoid(_logit_beta_quantile(a, b, u, 1 - u)))


@_quantile.register
def _(distribution: dist.StudentT, u: Array) -> Array:
    # t^2 / (df + t^2) is Beta(1/2, df/2), whose odds are t^2 / df.
    df = jnp.broadcast_to(distribution.df, u.shape).astype(u.dtype)
    half = jnp.full_like(u, 0.5)
    logit = _logit_beta_quantile(half, half * df, jnp.abs(2 * u - 1), 2 * jnp.minimum(u, 1 - u))
    return distribution.loc + distribution.scale * jnp.sign(u - 0.5) * jnp.sqrt(df) * jnp.exp(0.5 * logit)


def _inside_unit(x: Array) -> Array:
    limits = jnp.finfo(x.dtype)
    return jnp.clip(x, limits.tiny, 1 - limits.epsneg)


# ---- gamma and beta --------------------------------------------------------------------------------------
# JAX has no inverse of `gammainc` and `betainc`, and NumPyro's is TensorFlow Probability's. The density of
# log X for a gamma X, and of logit X for a beta X, is log-concave; so log F and log(1 - F) are concave there,
# and Newton's method on them converges from one side, however small the concentration. Relative errors are
# below 1e-7 in float64. In float32 they are about 1e-4 or less from a concentration of 0.05 on, but in a beta
# they grow to 1e-3 at 1000 and 1e-2 at 10,000 (more if the other concentration is below 0.5), since `betainc`
# takes differences of large log gammas.

_MAX_STEPS = 30  # Six or seven are usual, fourteen the most seen.


def _wilson_hilferty_from(dtype: np.dtype) -> float:
    """Shape from which the cube-root normal approximation to a gamma beats summing the series in `dtype`."""
    return 2e3 if dtype == jnp.float32 else 1e6


def _log_gamma_quantile(a: Array, u: Array) -> Array:
    """Return log x with P(a, x) = u, for P the regularised lower incomplete gamma function."""
    large = a > _wilson_hilferty_from(a.dtype)
    normal = jnp.log(a) + 3 * jnp.log(jnp.maximum(1 - 1 / (9 * a) + ndtri(u) / (3 * jnp.sqrt(a)), 1e-3))
    a = jnp.where(large, 1, a)
    tail = -jnp.log1p(-u)
    low = (jnp.log(u) + gammaln(a + 1)) / a  # From P(a, x) <= x^a / Gamma(a + 1).
    high = jnp.log(a + jnp.sqrt(2 * a * tail) + tail)  # From the gamma tail bound exp(-tail).
    tiny = math.log(jnp.finfo(a.dtype).eps)  # Below this log x the bound on P is an equality.
    upper = (u > 0.5) & (low > tiny)
    sign = jnp.where(upper, -1, 1).astype(a.dtype)

    def log_cdf(a: Array, t: Array) -> tuple[Array, Array]:
        z = sign * t
        x = jnp.exp(jnp.maximum(z, tiny))
        # Each series runs as long as its slowest element, so the side not wanted gets an easy one.
        below = gammainc(jnp.where(upper, 1, a), jnp.where(upper, 1, x))
        above = gammaincc(jnp.where(upper, a, 1), jnp.where(upper, x, 1))
        value = jnp.log(jnp.where(upper, above, below))
        value = jnp.where(z < tiny, a * z - gammaln(a + 1), value)
        return value, jnp.exp(a * z - jnp.exp(z) - gammaln(a) - value)

    start = jnp.where(a >= 1, normal, low)
    bounds = jnp.where(upper, -high, low), jnp.where(upper, -low, high)
    t = _solve(log_cdf, a, jnp.where(upper, -tail, jnp.log(u)), *bounds, sign * start)
    return jnp.where(large, normal, sign * t)


def _logit_beta_quantile(a: Array, b: Array, p: Array, q: Array) -> Array:
    """Return logit x with I_x(a, b) = p = 1 - q, for I the regularised incomplete beta function."""
    limits = jnp.finfo(a.dtype)
    p, q = jnp.maximum(p, limits.tiny), jnp.maximum(q, limits.tiny)
    log_p, log_q = jnp.log(p), jnp.log(q)
    log_beta = _log_beta(a, b)
    # From I_x(a, b) <= (x / (1 - x))^a / (a B(a, b)), and the same with the two ends of (0, 1) exchanged.
    low = (log_p + jnp.log(a) + log_beta) / a
    high = -(log_q + jnp.log(b) + log_beta) / b
    # Solve from the end of (0, 1) that loses less to rounding: the sum of that of F, whose density in logit x
    # is at most min(a p, b q), and that of a float x next to its own far end.
    upper = jnp.maximum(1 / a, p / (b * q)) + jnp.exp(high) > jnp.maximum(1 / b, q / (a * p)) + jnp.exp(-low)
    sign = jnp.where(upper, -1, 1).astype(a.dtype)
    a, b = jnp.where(upper, b, a), jnp.where(upper, a, b)
    log_p, log_q = jnp.where(upper, log_q, log_p), jnp.where(upper, log_p, log_q)
    low, high = jnp.where(upper, -high, low), jnp.where(upper, -low, high)

    def log_cdf(ab: tuple[Array, Array], z: Array) -> tuple[Array, Array]:
        a, b = ab
        log_beta = _log_beta(a, b)
        tiny = math.log(limits.eps) - jnp.log1p(b)  # Below this logit the bound on I is an equality.
        value = jnp.log(betainc(a, b, jax.nn.sigmoid(jnp.maximum(z, tiny))))
        value = jnp.where(z < tiny, a * z - jnp.log(a) - log_beta, value)
        return value, jnp.exp(a * jax.nn.log_sigmoid(z) + b * jax.nn.log_sigmoid(-z) - log_beta - value)

    # Abramowitz and Stegun 26.5.22 where it holds.
    one, other = 1 / (2 * jnp.maximum(a, 1) - 1), 1 / (2 * jnp.maximum(b, 1) - 1)
    normal = ndtri(jnp.exp(log_p))
    h, shrink = 2 / (one + other), (normal**2 - 3) / 6
    w = normal * jnp.sqrt(h + shrink) / h + (other - one) * (shrink + 5 / 6 - 2 / (3 * h))
    start = jnp.where((a >= 1) & (b >= 1), jnp.log(a / b) + 2 * w, low)
    return sign * _solve(log_cdf, (a, b), log_p, low, high, start)


def _log_beta(a: Array, b: Array) -> Array:
    # As inside `betainc`, whose equal it must be in the far tail; from b = 8 on `betaln` is up to 6e-8 off.
    return gammaln(a) + gammaln(b) - gammaln(a + b)


class _Search(NamedTuple):
    step: Array
    low: Array
    high: Array
    z: Array
    done: Array


def _solve(
    log_cdf: Callable[[Any, Array], tuple[Array, Array]],
    params: Any,
    log_p: Array,
    low: Array,
    high: Array,
    start: Array,
) -> Array:
    """Solve log F(z) = log p for z in [low, high], by Newton's method safeguarded by bisection.

    `log_cdf(params, z)` returns log F and its derivative in z; log F must be increasing.
    """
    fixed, target = lax.stop_gradient((params, log_p))
    tolerance = math.sqrt(jnp.finfo(log_p.dtype).eps)  # Newton's method leaves about the square of its last step.

    def unfinished(state: _Search) -> Array:
        return (state.step < _MAX_STEPS) & ~jnp.all(state.done)

    def refine(state: _Search) -> _Search:
        step, low, high, z, done = state
        value, slope = log_cdf(fixed, z)
        below = value < target
        low, high = jnp.where(below, z, low), jnp.where(below, high, z)
        newton = z - (value - target) / slope
        close = jnp.abs(newton - z) < tolerance
        # Written so that a step that is not a number, as when F underflows, is replaced as well.
        following = jnp.where(close | (newton >= low) & (newton <= high), newton, 0.5 * (low + high))
        # A finished element stays, so that its bits do not depend on its neighbours.
        return _Search(step + 1, low, high, jnp.where(done, z, following), done | close)

    start = jnp.clip(start, low, high)
    state = _Search(jnp.zeros((), int), low, high, start, jnp.zeros(start.shape, bool))
    z = lax.while_loop(unfinished, refine, lax.stop_gradient(state)).z
    value, slope = log_cdf(params, z)
    return _implicit(z, value - log_p, slope)


@jax.custom_jvp
def _implicit(z: Array, residual: Array, slope: Array) -> Array:
    """Return z with the derivative that keeps the residual zero; unless asked for, its cost is dead code."""
    return z


@_implicit.defjvp
def _(primals: tuple[Array, Array, Array], tangents: tuple[Array, Array, Array]) -> tuple[Array, Array]:
    z, _, slope = primals
    return z, -tangents[1] / slope
