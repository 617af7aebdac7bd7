"""A straight line through the scores of a window: the natural step at full length, its promise and its noise.

In q's own units a draw is eps ~ N(0, I) and its score w = C^T grad log p + eps, which is zero for every draw when q is
the posterior. A window of mirrored draws (eps, -eps) at a fixed q gives

    w(eps) ~ a + B eps,     a = E[w],   B = E[dw/deps]  (Stein's lemma),

and a = 0, B = 0 are exactly the conditions for the best Gaussian under the ELBO. The target's precision in q's units is
I - B, its mean (I - B)^-1 a: for a Gaussian posterior the line is exact, whatever q, after d + 1 pairs. For others a and
diag B are shrunk by the positive-part James-Stein factor of their own sampling noise, and the rest of B entry by entry (see
`sparse`), so that a window which learned nothing proposes nothing. Arrays are (..., n, d); rows that are not finite are left
out, and so is a last one whose mirror image was cut off. Pairs of another q may be among them, with weights (see
`old_scores`): their middle is not zero any more, and what the line has there is taken off before the intercept is fitted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from yoasovi.arrays import space

# Leverages are kept away from one: a draw that decides its own fitted value says nothing about the noise.
_LEAST_SLACK = 0.05


class ScoreLine(NamedTuple):
    """The shrunk line, and what it says: all in nats, in q's own units."""

    intercept: Any  # a, (..., d)
    slope: Any  # B: (..., d) when only scales are fitted, else symmetric (..., d, d)
    signal: Any  # what there is still to gain, as far as the window can tell
    noise: Any  # how much of that could be luck


def shrinkage(squared_norm: Any, noise: Any) -> Any:
    """Positive-part James-Stein factor of an estimate with the given squared norm and total noise variance."""
    xp = space(squared_norm)
    return xp.maximum(0.0, 1.0 - noise / xp.maximum(squared_norm, xp.finfo(squared_norm.dtype).tiny))


class MirroredParts(NamedTuple):
    """Mirrored pairs (rows 2k and 2k + 1) of a window; zero where a pair may not be used."""

    x: Any  # half their distance, (..., n / 2, d)
    middle: Any  # zero but for pairs of another q; None where there are none
    even: Any  # part of w
    odd: Any
    weight: Any  # (..., n / 2)


def mirrored_parts(eps: Any, white: Any, weight: Any = None) -> MirroredParts:
    """Take pairs apart; the weights of rows (..., n) are all one if None."""
    xp, whole = space(white), white.shape[-2] // 2 * 2
    eps, white = eps[..., :whole, :], white[..., :whole, :]
    first, second = white[..., 0::2, :], white[..., 1::2, :]
    usable = xp.isfinite(first).all(-1) & xp.isfinite(second).all(-1)
    clean = lambda x: xp.where(usable[..., None], x, 0.0)
    even, odd = 0.5 * (clean(first) + clean(second)), 0.5 * (clean(first) - clean(second))
    if weight is None:
        return MirroredParts(clean(eps[..., 0::2, :]), None, even, odd, 1.0 * usable)
    here, there = clean(eps[..., 0::2, :]), clean(eps[..., 1::2, :])
    weight = usable * 0.5 * (weight[..., 0:whole:2] + weight[..., 1:whole:2])
    return MirroredParts(0.5 * (here - there), 0.5 * (here + there), even, odd, weight)


def matched(x: Any) -> Any:
    """Give one half of mirrored pairs (..., n, k), n >= k, whose second moments are those of their law to the last digit.

    With their mirror images they have no odd moments either: what bends no more than a parabola has its exact mean, and the
    slope of a line through n pairs is as sure as n pairs can make it, even where n is hardly more than k.
    """
    xp = space(x)
    gram = xp.swapaxes(x, -1, -2) @ x / x.shape[-2]
    return x @ xp.linalg.inv(xp.swapaxes(xp.linalg.cholesky(gram), -1, -2))


def _intercept(even, weight):
    xp = space(even)
    total, squares = weight.sum(-1), (weight**2).sum(-1)
    total = xp.maximum(total, 2.0)
    share = xp.minimum(squares / total**2, 0.5)  # one over the number of pairs that the weights are worth
    mean = (weight[..., None] * even).sum(-2) / total[..., None]
    spread = weight[..., None] * (even - mean[..., None, :])
    return mean, (spread**2).sum((-1, -2)) / total**2 / (1.0 - share)


def line_of_scales(eps: Any, white: Any) -> ScoreLine:
    """Fit a and the diagonal of B, coordinate by coordinate; O(d) per draw."""
    x, _, even, odd, usable = mirrored_parts(eps, white)
    xp = space(x)
    a, noise_a = _intercept(even, usable)
    weight = xp.maximum((x**2).sum(-2), 1e-12)
    b = (x * odd).sum(-2) / weight
    slack = xp.maximum(1.0 - x**2 / weight[..., None, :], _LEAST_SLACK)
    residual = (odd - x * b[..., None, :]) / slack
    noise_b = (((residual * x) ** 2).sum(-2) / weight**2).sum(-1)
    keep_a, keep_b = shrinkage((a**2).sum(-1), noise_a), shrinkage((b**2).sum(-1), noise_b)
    signal = 0.5 * keep_a * (a**2).sum(-1) + 0.25 * keep_b * (b**2).sum(-1)
    return ScoreLine(keep_a[..., None] * a, keep_b[..., None] * b, signal, 0.5 * noise_a + 0.25 * noise_b)


def _whole_slope(pairs: MirroredParts) -> tuple[Any, Any, Any]:
    """Fit all of B; give its shrunk form, and the signal and the noise of (diagonal, rest)."""
    xp, x, odd = space(pairs.x), pairs.x, pairs.odd
    if pairs.middle is not None:
        root = xp.sqrt(pairs.weight)[..., None]
        x, odd = root * x, root * odd
    eye, turned = xp.eye(x.shape[-1], dtype=x.dtype), lambda m: xp.swapaxes(m, -1, -2)
    gram = xp.linalg.inv(turned(x) @ x + 1e-9 * eye)
    reach = x @ gram
    b = turned(odd) @ reach
    slack = xp.maximum(1.0 - (reach * x).sum(-1), _LEAST_SLACK)
    # Variances that do not assume equal noise for all draws: posteriors with tails are noisiest far out.
    variance = turned(((odd - x @ turned(b)) / slack[..., None]) ** 2) @ reach**2
    b, variance = 0.5 * (b + turned(b)), 0.25 * (variance + turned(variance))
    on, squares = b * eye, lambda m: (m**2).sum((-1, -2))
    noise_on = 2.0 * xp.diagonal(variance, axis1=-2, axis2=-1).sum(-1)
    keep_on = shrinkage(squares(on), noise_on)
    if x.shape[-1] == 1:
        return keep_on[..., None, None] * on, (keep_on * squares(on), 0.0 * noise_on), (noise_on, 0.0 * noise_on)
    rows, columns = np.tril_indices(x.shape[-1], -1)  # what is above the diagonal is the same
    below, noise_below = sparse(b[..., rows, columns], variance[..., rows, columns])
    place = np.zeros(eye.shape, int)
    place[rows, columns] = place[columns, rows] = np.arange(len(rows))
    off = below[..., place] * (1.0 - eye)
    return keep_on[..., None, None] * on + off, (keep_on * squares(on), squares(off)), (noise_on, 2.0 * noise_below)


def _about_zero(pairs: MirroredParts, slope: Any) -> Any:
    """Give the even parts as they would be if the pairs' middle were zero."""
    if pairs.middle is None:
        return pairs.even
    return pairs.even - pairs.middle @ space(slope).swapaxes(slope, -1, -2)


def line(eps: Any, white: Any, weight: Any = None) -> ScoreLine:
    """Fit a and all of B; needs more than d pairs; O(d^2) per draw and O(d^3) once."""
    pairs = mirrored_parts(eps, white, weight)
    slope, signals, noises = _whole_slope(pairs)
    a, noise_a = _intercept(_about_zero(pairs, slope), pairs.weight)
    keep_a = shrinkage((a**2).sum(-1), noise_a)
    signal = 0.5 * keep_a * (a**2).sum(-1) + 0.25 * sum(signals)
    return ScoreLine(keep_a[..., None] * a, slope, signal, 0.5 * noise_a + 0.25 * sum(noises))


def sparse(x: Any, variance: Any) -> tuple[Any, Any]:
    """Give posterior means of vectors whose entries are seen with these variances, and their total posterior variance.

    A share of the entries is Gaussian about zero, the others are zero: share and size are those that make what was seen most
    likely. A hierarchy's groups hang together through few parameters; where all entries count, this is James and Stein's.
    """
    xp = space(x)
    tiny = xp.finfo(x.dtype).tiny ** 0.5
    there = variance > tiny
    z2 = xp.where(there, x**2 / xp.where(there, variance, 1.0), 0.0)
    count = xp.maximum(there.sum(-1), 1)[..., None]
    mean = z2.sum(-1)[..., None] / count
    share, wide = 0.0 * mean + 0.5, xp.maximum(2.0 * mean - 1.0, 1.0 + 1e-3)
    for _ in range(20):
        odds = xp.log(share) - xp.log1p(-share) - 0.5 * xp.log(wide) + 0.5 * z2 * (1.0 - 1.0 / wide)
        likely = there / (1.0 + xp.exp(-xp.clip(odds, -50.0, 50.0)))
        total = likely.sum(-1)[..., None]
        share = xp.clip(total / count, 1e-3, 1.0 - 1e-3)
        wide = xp.maximum((likely * z2).sum(-1)[..., None] / xp.maximum(total, 1e-3), 1.0 + 1e-6)
    keep = 1.0 - 1.0 / wide
    left = likely * keep + likely * (1.0 - likely) * keep**2 * z2
    return xp.where(there, likely * keep, 1.0) * x, (variance * left).sum(-1)


class Newton(NamedTuple):
    """A step to (a fraction of the way to) the Gaussian that the line describes, in q's own units."""

    shift: Any  # of the mean
    log_scales: Any  # along `axes`
    axes: Any  # columns; None for the coordinate axes
    expected: Any  # gain in nats if the line were exact


def newton(fitted: ScoreLine, length: Any, trust: Any) -> Newton:
    """Turn a line into a step of the given length; `trust` bounds how far one window may change scales and mean."""
    intercept = fitted.intercept
    xp, length, trust = space(intercept), length[..., None], trust[..., None]
    if fitted.slope.ndim == intercept.ndim:
        precision, axes, along = 1.0 - fitted.slope, None, intercept
    else:
        slope = xp.where(xp.isfinite(fitted.slope), fitted.slope, 0.0)  # eigenvalues of scores that overflow do not exist
        precision, axes = xp.linalg.eigh(xp.eye(intercept.shape[-1], dtype=intercept.dtype) - slope)
        along = (xp.swapaxes(axes, -1, -2) @ intercept[..., None])[..., 0]
    # A variance may shrink by `trust` at most, but the mean must not be thrown as far as a flatter target would allow.
    precision = xp.maximum(precision, 1.0 / trust)
    shift = length * along / precision
    longest = xp.maximum(xp.abs(shift).max(-1)[..., None], 1e-30)
    shift = shift * xp.minimum(1.0, 1.5 * xp.sqrt(trust) / longest)
    damped = xp.minimum(precision, trust) ** length
    expected = (along * shift - 0.5 * precision * shift**2).sum(-1)
    expected = expected + 0.5 * (precision * (1.0 - 1.0 / damped) - xp.log(damped)).sum(-1)
    return Newton(shift if axes is None else (axes @ shift[..., None])[..., 0], -0.5 * xp.log(damped), axes, expected)


def newton_of_product(eps: Any, white: Any, length: Any, trust: Any, weight: Any = None) -> tuple[Newton, Any, Any]:
    """Fit a whole line and step to the best product of Gaussians under it; also its signal and its noise.

    The means of a product hang together by the whole precision, which a line of scales does not see and can only crawl
    along; each scale is the inverse root of its own entry on the precision's diagonal. What is off the diagonal is noise
    to a line of scales, and explained by a whole one.
    """
    pairs = mirrored_parts(eps, white, weight)
    xp, dim, length, trust = space(pairs.x), pairs.x.shape[-1], length[..., None], trust[..., None]
    slope, signals, noises = _whole_slope(pairs)
    slope = xp.where(xp.isfinite(slope), slope, 0.0)
    precision, axes = xp.linalg.eigh(xp.eye(dim, dtype=slope.dtype) - slope)
    # A direction that looks flatter than the noise of the fit allows to tell is taken to be no flatter than that.
    blur = 2.0 * xp.sqrt(sum(noises) / dim)[..., None]
    precision = xp.maximum(precision, 1.0 / trust)
    root = xp.sqrt(precision + blur)
    # In these units a nat is a nat in every direction.
    a, noise_a = _intercept(_about_zero(pairs, slope) @ (axes / root[..., None, :]), pairs.weight)
    square = (a**2).sum(-1)
    keep_a = shrinkage(square, noise_a)
    a = keep_a[..., None] * a
    along = length * a / root
    shift = (axes @ along[..., None])[..., 0]
    shorter = xp.minimum(1.0, 1.5 * xp.sqrt(trust) / xp.maximum(xp.abs(shift).max(-1)[..., None], 1e-30))
    along, shift = shorter * along, shorter * shift
    own = xp.clip(1.0 - xp.diagonal(slope, axis1=-2, axis2=-1), 1.0 / trust, trust)
    damped = own**length
    expected = (a * root * along - 0.5 * (root * along) ** 2).sum(-1)
    expected = expected + 0.5 * (own * (1.0 - 1.0 / damped) - xp.log(damped)).sum(-1)
    signal = 0.5 * keep_a * square + 0.25 * signals[0]
    hidden = 0.5 * (a**2 * (root**2 / precision - 1.0)).sum(-1)  # what may be left there if it is as flat as it looks
    return Newton(shift, -0.5 * xp.log(damped), None, expected), signal, 0.5 * noise_a + 0.25 * noises[0] + hidden
