"""Groups of a hierarchy: an axis of sites along which log p falls into pieces, once all other sites are known.

Nothing has to be declared. Sites that share a plate, a dim or the length of an axis are a guess, and log p says whether it
holds: the gradient by the locals of one group must not change when those of others are moved. Of a model that is one long
vector log p says more: which gradients change when one number is moved.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.sparse.csgraph import connected_components

from yoasovi.families import Arrow
from yoasovi.families.arrow import Piece
from yoasovi.model import Model

_MOST_UNKNOWNS = 100  # globals and locals of one group: a line takes a few times as many draws
_GUESSES = 8  # that are tried
_MOVES = 5  # random halves of the groups; a single pair that hangs together escapes all of them once in thirty
_PROBES = 6  # numbers of a vector that are moved before all of them are
_MOST_PROBED = 2000  # numbers of such a vector
_FAR = 0.3  # how far locals are moved
_SAME = {"d": 1e-6, "f": 1e-3}  # relative change of a gradient that is rounding


class Least(NamedTuple):
    """What groups must be for their own sake: so many, and globals and locals of one so many times fewer than parameters."""

    groups: int = 10
    share: int = 3


_USUAL = Least()


class FoundGroups(NamedTuple):
    """The axis of groups (or pieces) by site, empty if there are none, and the gradients that the search took."""

    local: dict[str, Any]
    gradients: int


def find_groups(
    model: Model, kernels: Any, at: np.ndarray, scale: np.ndarray, rng: np.random.Generator, least: Least = _USUAL
) -> FoundGroups:
    """Look for groups that are independent given all other sites; those that leave fewest globals are taken.

    Looks are taken around `at`, (d,), as far away as `scale` says.
    """
    spent = 0
    for family in _guesses(model, least)[:_GUESSES]:
        spent += 1 + _MOVES
        if _apart(family, kernels, at, scale, rng):
            return FoundGroups(dict(family.local), spent)
    (site, *others) = model.density.sites
    if others or len(site.free_shape) != 1 or not least.groups < at.size <= _MOST_PROBED:
        return FoundGroups({}, spent)
    pieces, probed = _pieces(kernels, at, scale, rng, least)
    if pieces:
        family = Arrow({site.name: pieces}).complete(model.density)
        probed += 1 + _MOVES
        if _apart(family, kernels, at, scale, rng):
            return FoundGroups(dict(family.local), spent + probed)
    return FoundGroups({}, spent + probed)


def _apart(family: Arrow, kernels: Any, at: np.ndarray, scale: np.ndarray, rng: np.random.Generator) -> bool:
    """Say whether the gradients by the locals of each group stay when those of others are moved."""
    on = rng.random((_MOVES, family.groups)) < 0.5
    noise = family.split(_FAR * scale * rng.standard_normal((_MOVES, at.size)))
    moves = family.join(0.0 * noise.hub, noise.spokes * on[:, None])
    slopes = family.split(kernels.point(np.concatenate([at[None], at + moves]))[1]).spokes
    return bool(np.isfinite(slopes).all() and (_same(slopes[1:], slopes[:1]) | on[:, None]).all())


def _same(new: np.ndarray, old: np.ndarray) -> np.ndarray:
    return np.abs(new - old) <= _rounding() * (1.0 + np.abs(old))


def _pieces(
    kernels: Any, at: np.ndarray, scale: np.ndarray, rng: np.random.Generator, least: Least
) -> tuple[tuple[Piece, ...], int]:
    """Find globals and locals in one vector, by moving its numbers one at a time; also how many gradients that took."""
    dim = at.size
    at = at + _FAR * scale * rng.standard_normal(dim)  # anywhere but at zero, where products hide what depends on what
    order, moved = rng.permutation(dim), np.diag(_FAR * scale)
    _, start = kernels.point(at[None])

    def touched(some):
        return ~_same(kernels.point(at + moved[some])[1], start)

    first, later = touched(order[:_PROBES]), order[_PROBES:]
    few = first[first.sum(1) <= dim // least.share]
    # Locals of different groups touch the same few others; where none do, the rest need not be tried.
    if not (few.sum(0) > 1).any() or not np.isfinite(start).all():
        return (), 1 + _PROBES
    links = np.zeros((dim, dim), bool)
    links[order] = np.concatenate([first, touched(later)]) if later.size else first
    return _cut(links | links.T, least), 1 + dim


def _cut(links: np.ndarray, least: Least) -> tuple[Piece, ...]:
    """Take out the numbers with most links until the others fall into groups that are alike; () if they never do."""
    dim, degree = len(links), links.sum(1)
    for most in np.unique(degree)[::-1][1:]:
        rest = _in_long_runs(degree <= most, least.groups)
        if rest.size < least.groups:
            continue
        count, label = connected_components(links[np.ix_(rest, rest)])
        own = len(rest) // count
        if count >= least.groups and own * count == len(rest) and least.share * (dim - len(rest) + own) <= dim:
            group = np.full(dim, -1)
            group[rest] = np.unique(label, return_inverse=True)[1]
            return _runs(group, count)
    return ()


def _in_long_runs(local: np.ndarray, fewest: int) -> np.ndarray:
    """Give the places in runs of at least as many as there are groups: what lies alone is global."""
    run = np.cumsum(np.diff(local, prepend=False))
    return np.flatnonzero(local & (np.bincount(run)[run] >= fewest))


def _runs(group: np.ndarray, count: int) -> tuple[Piece, ...]:
    """Write where the members of groups are as pieces of a vector; () where they lie in no order."""
    pieces, place = [], 0
    while place < len(group):
        stretch = group[place:] != group[place]
        long = int(np.argmax(stretch)) if stretch.any() else len(stretch)
        local = bool(group[place] >= 0)
        pieces.append(Piece(local, 1, long) if local else Piece(False, long, 1))
        if local and not np.array_equal(group[place : place + count * long], np.repeat(np.arange(count), long)):
            return ()
        place += count * long if local else long
    return tuple(pieces)


def _rounding() -> float:
    from yoasovi.kernels.programs import as_arrays, wide

    with wide():
        return _SAME[as_arrays(0.0).dtype.char]


def _guesses(model: Model, least: Least) -> list[Arrow]:
    """Give the families that an axis of sites suggests, those first that leave fewest globals."""
    shapes = {s.name: s.free_shape for s in model.density.sites if not s.discrete}
    dims = {} if model.labels is None else {k: v for k, v in model.labels.dims.items() if k in shapes}
    named = lambda name: {k: v.index(name) for k, v in dims.items() if name in v and len(v) == len(shapes[k])}
    long = lambda size: {k: v.index(size) for k, v in shapes.items() if size in v}
    tried = [named(x) for x in dict.fromkeys(x for v in dims.values() for x in v if x is not None)]
    tried += [long(x) for x in dict.fromkeys(x for v in shapes.values() for x in v)]
    tried += [{k: int(np.argmax(v))} for k, v in shapes.items() if v]
    found = []
    for local in tried:
        sizes = {shapes[k][axis] for k, axis in local.items()}
        if len(sizes) == 1 and sizes.pop() >= least.groups and set(shapes) - set(local):
            family = Arrow(local).complete(model.density)
            unknowns = family.num_globals + family.num_locals
            if unknowns <= _MOST_UNKNOWNS and least.share * unknowns <= model.density.dim and family not in found:
                found.append(family)
    return sorted(found, key=lambda x: x.num_globals)
