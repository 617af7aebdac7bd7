"""A straight line through the scores of a window, where groups hang together through a few globals alone.

As in `score_line` w(eps) ~ a + B eps in q's own units, but most of B is known to be zero: the scores of a group's locals
depend on its own noise and on that of the globals. So each group has a small regression of its own, whatever their number,
and a line needs no more draws than one group asks for. What all groups have learned says how far to believe each of them
(empirical Bayes); globals, which all groups bear on, are believed by themselves. Shapes: globals (..., n, K), locals of
draws (..., n, l, G), with long rows since numbers of groups are many and all else is few.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from yoasovi.arrays import space
from yoasovi.windows import score_line
from yoasovi.windows.score_line import shrinkage

_PRIOR_WEIGHT = 4.0  # batches that the usual noise counts for, beside a number's own
_HUB = 8.0  # what a nat of the globals counts: an error of a tenth of a standard deviation is a 200th of a nat
_AS_MANY = 450.0  # parameters; where there are more, nats of locals count as if there were so many


class Split(NamedTuple):
    """Something of the globals, and something of the groups."""

    hub: Any
    spokes: Any


class ArrowStep(NamedTuple):
    """A step to (a fraction of the way to) the Gaussian that the line describes: q's factor is multiplied by `T`."""

    shift: Split
    corner: Any  # of T, lower triangular (..., K, K)
    coupling: Any  # (..., G, l, K)
    blocks: Any  # lower triangular (..., G, l, l)
    expected: Any  # gain in nats if the line were exact


class Slopes(NamedTuple):
    """What one batch of draws says: a, and the entries of the symmetric B that are not zero."""

    hub: Any  # a of the globals, (..., K)
    spokes: Any  # a of the locals, (..., G, l)
    corner: Any  # B of the globals, (..., K, K)
    coupling: Any  # of locals with globals, (..., G, l, K)
    blocks: Any  # of a group's locals, (..., G, l, l)


class ArrowLine(NamedTuple):
    """The shrunk line, and what it says."""

    slopes: Slopes
    signal: Any  # still to gain (nats; see `_weighed`)
    noise: Any  # how much of that could be luck


class Sums(NamedTuple):
    """What several batches say: how many they are, by lane, their mean, and their squares about it."""

    count: Any
    mean: Slopes
    squares: Slopes


def matched(x: Split) -> Split:
    """Give draws whose second moments, of globals and of each group with them, are those of their law: see `score_line`.

    Log p is a sum over groups, so this does for however many of them.
    """
    count, hub = x.hub.shape[-2], score_line.matched(x.hub)
    flat = _flat(x.spokes)
    spokes = (flat - hub @ (_turned(hub) @ flat / count)).reshape(x.spokes.shape)
    return Split(hub, _within(np.linalg.inv(np.linalg.cholesky(_products(spokes, spokes) / count)), spokes))


def batch_slopes(x: Split, even: Split, odd: Split, usable: Any) -> Slopes:
    """Fit a and B to the even and odd parts of the scores of mirrored pairs; NaN where too few of them are usable."""
    wide, own, pairs = x.hub.shape[-1], x.spokes.shape[-2], usable.sum(-1)
    enough = pairs >= wide + own
    gram = np.linalg.inv(_turned(x.hub) @ x.hub + 1e-9 * np.eye(wide))
    part = lambda y: gram @ (_turned(x.hub) @ _flat(y))  # (..., K, l G)
    noise = (_flat(x.spokes) - x.hub @ part(x.spokes)).reshape(x.spokes.shape)
    blocks = _products(odd.spokes, noise) @ np.linalg.inv(_products(noise, noise) + 1e-9 * np.eye(own))
    coupling = part(odd.spokes - _within(blocks, x.spokes))
    # What groups' noise does to the globals' scores is known by now: B is symmetric.
    corner = _turned(odd.hub - _flat(x.spokes) @ _turned(coupling)) @ x.hub @ gram
    n = np.where(enough, pairs, np.nan)
    hub, spokes = even.hub.sum(-2) / n[..., None], _turned(even.spokes.sum(-3)) / n[..., None, None]
    coupling = reversed_axes(coupling.reshape(*coupling.shape[:-1], own, -1))
    return Slopes(hub, spokes, 0.5 * (corner + _turned(corner)), coupling, 0.5 * (blocks + _turned(blocks)))


def added(sums: Sums | None, found: Slopes) -> Sums:
    """Take another batch into account, where it is sound."""
    zero = Slopes(*(np.zeros_like(x) for x in found))
    if sums is None:
        sums = Sums(np.zeros(found.hub.shape[:-1]), zero, zero)
    sound = np.all([np.isfinite(x).reshape(*sums.count.shape, -1).all(-1) for x in found], 0)
    count, mean, squares = sums.count + sound, [], []
    for new, old, square in zip(found, sums.mean, sums.squares, strict=True):
        wide = lambda x, new=new: x.reshape(x.shape + (1,) * (new.ndim - x.ndim))
        away = np.where(wide(sound), new - old, 0.0)
        mean.append(old + away / wide(np.maximum(count, 1.0)))
        squares.append(square + away * (np.where(wide(sound), new, 0.0) - mean[-1]) * wide(sound))
    return Sums(count, Slopes(*mean), Slopes(*squares))


def arrow_line(sums: Sums) -> ArrowLine:
    """Give the line that batches say, each number believed as far as they agree about it."""
    count, mean = sums.count, sums.mean
    freedom = np.maximum(count - 1.0, 1.0)
    per = lambda x, axes: x / np.maximum(count, 1.0).reshape(count.shape + (1,) * axes)
    kinds = zip(sums.squares, _AXES, _ALIKE, strict=True)
    noise = Slopes(*(per(_variance(x, freedom, axes, alike), axes) for x, axes, alike in kinds))
    hub, left_hub = _shrunk(mean.hub, noise.hub, 1)
    corner, left_corner = _shrunk(mean.corner, noise.corner, 2)
    spokes, left_spokes = _believed(mean.spokes, noise.spokes, 2)
    coupling, left_coupling = _believed(mean.coupling, noise.coupling, 3)
    blocks, left_blocks = _believed(mean.blocks, noise.blocks, 3)
    left = (left_hub, left_spokes, left_corner, left_coupling, left_blocks)
    return _weighed(Slopes(hub, spokes, corner, coupling, blocks), Slopes(*left))


def line_of_diagonals(x: Split, even: Split, odd: Split, usable: Any) -> ArrowLine:
    """Fit a and the diagonal of B alone, coordinate by coordinate, to few draws."""
    pairs = np.maximum(usable.sum(-1), 2).astype(float)
    wide, (own, groups) = x.hub.shape[-1], x.spokes.shape[-2:]

    def fitted(x, even, odd, axis):
        n = pairs.reshape(pairs.shape + (1,) * (-axis - 1))
        mean = even.sum(axis) / n
        spread = ((even - np.expand_dims(mean, axis)) ** 2).sum(axis) / (n - 1.0) / n
        weight = np.maximum((x**2).sum(axis), 1e-12)
        b = (x * odd).sum(axis) / weight
        return mean, spread, b, ((odd - x * np.expand_dims(b, axis)) ** 2).sum(axis) / (n - 1.0) / weight

    hub, noise_hub, corner, noise_corner = fitted(x.hub, even.hub, odd.hub, -2)
    spokes, noise_spokes, blocks, noise_blocks = map(_turned, fitted(x.spokes, even.spokes, odd.spokes, -3))
    hub, left_hub = _shrunk(hub, noise_hub, 1)
    corner, left_corner = _shrunk(corner, noise_corner, 1)
    spokes, left_spokes = _believed(spokes, noise_spokes, 2)
    blocks, left_blocks = _believed(blocks, noise_blocks, 2)
    none = np.zeros((*hub.shape[:-1], groups, own, wide))
    found = Slopes(hub, spokes, corner[..., None] * np.eye(wide), none, blocks[..., None] * np.eye(own))
    return _weighed(found, Slopes(left_hub, left_spokes, left_corner, 0.0, left_blocks))


def arrow_newton(line: Slopes, length: Any, trust: Any) -> ArrowStep:
    """Turn a line into a step of the given length; `trust` bounds how far it may change scales and means."""
    wide = lambda x, n: x.reshape(x.shape + (1,) * n)
    blocks, axes = np.linalg.eigh(np.eye(line.blocks.shape[-1]) - _finite(line.blocks))
    blocks = np.clip(blocks, wide(1.0 / trust, 2), wide(trust, 2))
    inverse = (axes / blocks[..., None, :]) @ _turned(axes)
    coupling = -_finite(line.coupling)
    reach = inverse @ coupling  # of the locals, when globals move
    carried = _summed(coupling, reach)
    own, turn = np.linalg.eigh(np.eye(line.corner.shape[-1]) - _finite(line.corner) - carried)
    own = np.clip(own, wide(1.0 / trust, 1), wide(trust, 1))

    through = line.hub - _summed(reach, line.spokes[..., None])[..., 0]
    hub = _apply(turn, _apply(_turned(turn), through) / own)
    most = 1.5 * np.sqrt(trust)
    hub = hub * np.minimum(length, _shortened(most, hub))[..., None]
    alone = _apply(inverse, line.spokes)
    alone = np.clip(wide(length, 2) * alone, -wide(most, 2), wide(most, 2))
    spokes = alone - _apply(reach, hub[..., None, :])

    slow, slow_own = blocks ** wide(length, 2), own ** wide(length, 1)
    block_root = np.linalg.cholesky((axes / slow[..., None, :]) @ _turned(axes))
    corner_root = np.linalg.cholesky((turn / slow_own[..., None, :]) @ _turned(turn))
    follow = -wide(length, 3) * (reach @ corner_root[..., None, :, :])

    # The gain under the line: a.delta - delta.M.delta/2 + (tr M - tr M T T' )/2 + log det T, with M = 1 - B.
    precision = (turn * own[..., None, :]) @ _turned(turn) + carried
    each = (axes * blocks[..., None, :]) @ _turned(axes)
    bent = _apply(each, spokes) + 2.0 * _apply(coupling, hub[..., None, :])
    expected = _dot(line.hub - 0.5 * _apply(precision, hub), hub, 1) + _dot(line.spokes - 0.5 * bent, spokes, 2)
    spread = precision @ corner_root
    traces = _dot(spread, corner_root, 2) + _dot(2.0 * (coupling @ corner_root[..., None, :, :]) + each @ follow, follow, 3)
    traces = traces + (blocks / slow).sum((-1, -2))
    whole = np.einsum("...ii->...", precision) + blocks.sum((-1, -2))
    expected = expected + 0.5 * (whole - traces) - 0.5 * (np.log(slow).sum((-1, -2)) + np.log(slow_own).sum(-1))
    return ArrowStep(Split(hub, spokes), corner_root, follow, block_root, expected)


def _shortened(most: Any, shift: Any) -> Any:
    """Give the factor by which shifts (..., K) are shortened so that none is longer than `most`."""
    return most / np.maximum(np.abs(shift).max(-1, initial=0.0), 1e-30)


_AXES = (1, 2, 2, 3, 3)  # of each part of `Slopes`, and those along which its numbers are of one kind
_ALIKE = ((-1,), (-2,), (-1, -2), (-3,), (-3,))


def groups_last(x: Any) -> Any:
    """Give (..., i, j, G) of (..., G, i, j), one row after the other in memory."""
    return space(x).moveaxis(x, -3, -1).copy()


def reversed_axes(x: Any) -> Any:
    """Give (..., c, b, a) of (..., a, b, c)."""
    return space(x).swapaxes(x, -3, -1)


def _flat(spokes: Any) -> Any:
    """Give locals of draws as rows, (..., n, l G)."""
    return spokes.reshape(*spokes.shape[:-2], -1)


def _within(matrices: Any, spokes: Any) -> Any:
    """Multiply the locals (..., n, l, G) of every group by its own matrix, (..., G, l, l)."""
    return np.einsum("...ijg,...njg->...nig", groups_last(matrices), spokes)


def _products(a: Any, b: Any) -> Any:
    """Give the sums over draws of the products of two locals of a group: (..., G, l, l)."""
    return np.moveaxis(np.einsum("...nig,...njg->...ijg", a, b), -1, -3)


def _variance(squares: Any, freedom: Any, axes: int, alike: tuple[int, ...]) -> Any:
    """Give variances from sums of squares; few batches tell one badly, so each is drawn towards the usual of its kind."""
    freedom = freedom.reshape(freedom.shape + (1,) * axes)
    usual = squares.mean(alike, keepdims=True) / freedom
    return (squares + _PRIOR_WEIGHT * usual) / (freedom + _PRIOR_WEIGHT)


def _shrunk(x: Any, variance: Any, axes: int) -> tuple[Any, Any]:
    """Positive-part James-Stein; also the sum of the variances."""
    noise = _sum(variance, axes)
    keep = shrinkage(_squares(x, axes), noise)
    return keep.reshape(keep.shape + (1,) * axes) * x, noise


def _believed(x: Any, variance: Any, axes: int) -> tuple[Any, Any]:
    """Give posterior means of numbers that are seen with these variances, and the sum of the variances.

    What the same number of all groups has in common is its size: its mean square is what was seen less its noise.
    """
    size = np.maximum((x**2 - variance).mean(-axes, keepdims=True), 0.0)
    return x * (size / np.maximum(size + variance, 1e-300)), _sum(variance, axes)


def _weighed(found: Slopes, left: Slopes) -> ArrowLine:
    """Put a line together with what is still to gain: globals count more than their nats, locals where many less."""
    dim = found.hub.shape[-1] + found.spokes.shape[-1] * found.spokes.shape[-2]
    weights = np.array([_HUB, many := min(1.0, _AS_MANY / dim), _HUB, many, many]) * (0.5, 0.5, 0.25, 0.5, 0.25)
    signal = sum(w * _squares(x, axes) for w, x, axes in zip(weights, found, _AXES, strict=True))
    return ArrowLine(found, signal, sum(w * x for w, x in zip(weights, left, strict=True)))


def _sum(x: Any, axes: int) -> Any:
    return x.sum(tuple(range(-axes, 0)))


def _squares(x: Any, axes: int) -> Any:
    return (x**2).sum(tuple(range(-axes, 0)))


def _dot(a: Any, b: Any, axes: int) -> Any:
    return (a * b).sum(tuple(range(-axes, 0)))


def _summed(a: Any, b: Any) -> Any:
    """Give the sum over groups of A_g^T B_g."""
    return _turned(a.reshape(*a.shape[:-3], -1, a.shape[-1])) @ b.reshape(*b.shape[:-3], -1, b.shape[-1])


def _apply(matrix: Any, x: Any) -> Any:
    return (matrix @ x[..., None])[..., 0]


def _turned(x: Any) -> Any:
    return np.swapaxes(x, -1, -2)


def _finite(x: Any) -> Any:
    return np.where(np.isfinite(x), x, 0.0)  # eigenvalues of scores that overflow do not exist
