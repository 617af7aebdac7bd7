"""A straight line through the scores of a window: the natural step at full length, its promise and its noise.

In q's own units a draw is eps ~ N(0, I) and its score w = C^T grad log p + eps, which is zero for every draw when q is
the posterior. A window of mirrored draws (eps, -eps) at a fixed q gives

    w(eps) ~ a + B eps,     a = E[w],   B = E[dw/deps]  (Stein's lemma),

and a = 0, B = 0 are exactly the conditions for the best Gaussian under the ELBO. The target's precision in q's units is
I - B, its mean (I - B)^-1 a: for a Gaussian posterior the line is exact, whatever q, after d + 1 pairs. For others each
block of (a, diag B, rest of B) is shrunk by the positive-part James-Stein factor of its own sampling noise, so that a
window which learned nothing proposes nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp


class Line(NamedTuple):
    """The shrunk line, and what it says: all in nats, in q's own units."""

    intercept: jax.Array  # a, (d,)
    slope: jax.Array  # B: (d,) when only scales are fitted, else symmetric (d, d)
    signal: jax.Array  # what there is still to gain, as far as the window can tell
    noise: jax.Array  # how much of that could be luck


def shrinkage(squared_norm: jax.Array, noise: jax.Array) -> jax.Array:
    """Positive-part James-Stein factor of an estimate with the given squared norm and total noise variance."""
    return jnp.maximum(0.0, 1.0 - noise / jnp.maximum(squared_norm, jnp.finfo(squared_norm.dtype).tiny))


def mirrored_parts(eps: jax.Array, white: jax.Array, count: jax.Array):
    """Even and odd parts of w over mirrored pairs (rows 2k and 2k + 1), and which pairs may be used."""
    first, second = white[0::2], white[1::2]
    usable = jnp.isfinite(first).all(1) & jnp.isfinite(second).all(1) & (2 * jnp.arange(len(first)) < count)
    clean = lambda x: jnp.where(usable[:, None], x, 0.0)
    return clean(eps[0::2]), clean(0.5 * (first + second)), clean(0.5 * (first - second)), usable


def _intercept(even, usable):
    n = jnp.maximum(usable.sum(), 2)
    mean = even.sum(0) / n
    spread = jnp.where(usable[:, None], even - mean, 0.0)
    return mean, jnp.sum(spread**2) / (n - 1) / n


# Leverages are kept away from one: a draw that decides its own fitted value says nothing about the noise.
_LEAST_SLACK = 0.05


def line_of_scales(eps: jax.Array, white: jax.Array, count: jax.Array) -> Line:
    """Fit a and the diagonal of B, coordinate by coordinate; O(d) per draw."""
    x, even, odd, usable = mirrored_parts(eps, white, count)
    a, noise_a = _intercept(even, usable)
    weight = jnp.maximum(jnp.sum(x**2, 0), 1e-12)
    b = jnp.sum(x * odd, 0) / weight
    residual = (odd - x * b) / jnp.maximum(1.0 - x**2 / weight, _LEAST_SLACK)
    noise_b = jnp.sum(jnp.sum((residual * x) ** 2, 0) / weight**2)
    keep_a, keep_b = shrinkage(jnp.sum(a**2), noise_a), shrinkage(jnp.sum(b**2), noise_b)
    signal = 0.5 * keep_a * jnp.sum(a**2) + 0.25 * keep_b * jnp.sum(b**2)
    return Line(keep_a * a, keep_b * b, signal, 0.5 * noise_a + 0.25 * noise_b)


def line(eps: jax.Array, white: jax.Array, count: jax.Array) -> Line:
    """Fit a and all of B; needs more than d pairs; O(d^2) per draw and O(d^3) once."""
    x, even, odd, usable = mirrored_parts(eps, white, count)
    d = x.shape[1]
    a, noise_a = _intercept(even, usable)
    gram = jnp.linalg.inv(x.T @ x + 1e-9 * jnp.eye(d))
    reach = x @ gram
    b = odd.T @ reach
    slack = jnp.maximum(1.0 - jnp.sum(reach * x, 1), _LEAST_SLACK)
    # Variances that do not assume equal noise for all draws: posteriors with tails are noisiest far out.
    variance = (((odd - x @ b.T) / slack[:, None]) ** 2).T @ reach**2
    b, variance = 0.5 * (b + b.T), 0.25 * (variance + variance.T)
    diagonal, noise_d = jnp.diag(b), 2.0 * jnp.trace(variance)
    rest, noise_r = b - jnp.diag(diagonal), jnp.sum(variance) - jnp.trace(variance)
    keep_a = shrinkage(jnp.sum(a**2), noise_a)
    keep_d, keep_r = shrinkage(jnp.sum(diagonal**2), noise_d), shrinkage(jnp.sum(rest**2), noise_r)
    b = keep_d * jnp.diag(diagonal) + keep_r * rest
    signal = 0.5 * keep_a * jnp.sum(a**2) + 0.25 * (keep_d * jnp.sum(diagonal**2) + keep_r * jnp.sum(rest**2))
    return Line(keep_a * a, b, signal, 0.5 * noise_a + 0.25 * (noise_d + noise_r))


class Newton(NamedTuple):
    """A step to (a fraction of the way to) the Gaussian that the line describes, in q's own units."""

    shift: jax.Array  # of the mean
    log_scales: jax.Array  # along `axes`
    axes: jax.Array | None  # columns; None for the coordinate axes
    expected: jax.Array  # gain in nats if the line were exact


def newton(fitted: Line, length: jax.Array, trust: jax.Array) -> Newton:
    """Turn a line into a step of the given length; `trust` bounds how far one window may change scales and mean."""
    if fitted.slope.ndim == 1:
        precision, axes, along = 1.0 - fitted.slope, None, fitted.intercept
    else:
        precision, axes = jnp.linalg.eigh(jnp.eye(len(fitted.slope)) - fitted.slope)
        along = axes.T @ fitted.intercept
    # A variance may shrink by `trust` at most, but the mean must not be thrown as far as a flatter target would allow.
    precision = jnp.maximum(precision, 1.0 / trust)
    shift = length * along / precision
    longest = jnp.maximum(jnp.max(jnp.abs(shift)), 1e-30)
    shift = shift * jnp.minimum(1.0, 1.5 * jnp.sqrt(trust) / longest)
    damped = jnp.minimum(precision, trust) ** length
    expected = jnp.sum(along * shift - 0.5 * precision * shift**2)
    expected += 0.5 * jnp.sum(precision * (1.0 - 1.0 / damped) - jnp.log(damped))
    return Newton(shift if axes is None else axes @ shift, -0.5 * jnp.log(damped), axes, expected)
