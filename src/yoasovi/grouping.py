"""Groups of a hierarchy: an axis of sites along which log p falls into pieces, once all other sites are known.

Nothing has to be declared. Sites that share a plate, a dim or the length of an axis are a guess, and log p says whether it
holds: the gradient by the locals of one group must not change when those of others are moved.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from yoasovi.families import Arrow
from yoasovi.model import Model
from yoasovi.randomness import Purpose, stream
from yoasovi.start import places

_FEWEST = 10  # groups
_MOST_UNKNOWNS = 100  # globals and locals of one group: a line takes a few times as many draws
_SHARE = 4  # that many times fewer than all parameters
_GUESSES = 8  # that are tried
_MOVES = 5  # random halves of the groups; a single pair that hangs together escapes all of them once in thirty
_FAR = 0.3  # how far locals are moved
_SAME = {"d": 1e-6, "f": 1e-3}  # relative change of a gradient that is rounding


class FoundGroups(NamedTuple):
    """The axis of groups by site, empty if there are none, and the gradients that the search took."""

    local: dict[str, int]
    gradients: int


def find_groups(model: Model, kernels: Any, seed: int = 0) -> FoundGroups:
    """Look for groups that are independent given all other sites; those that leave fewest globals are taken."""
    guesses = _guesses(model)
    if not guesses:
        return FoundGroups({}, 0)
    at, scale = (x[0] for x in places(model, seed, 1))
    rng, spent = stream(seed, Purpose.GROUPS), 0
    for family in guesses[:_GUESSES]:
        on = rng.random((_MOVES, family.groups)) < 0.5
        noise = family.split(_FAR * scale * rng.standard_normal((_MOVES, at.size)))
        moves = family.join(0.0 * noise.hub, noise.spokes * on[:, None])
        _, gradient = kernels.point(np.concatenate([at[None], at + moves]))
        spent += len(gradient)
        slopes = family.split(gradient).spokes
        same = np.abs(slopes[1:] - slopes[:1]) <= _rounding() * (1.0 + np.abs(slopes[:1]))
        if np.isfinite(slopes).all() and (same | on[:, None]).all():
            return FoundGroups(dict(family.local), spent)
    return FoundGroups({}, spent)


def _rounding() -> float:
    from yoasovi.kernels.programs import as_arrays, wide

    with wide():
        return _SAME[as_arrays(0.0).dtype.char]


def _guesses(model: Model) -> list[Arrow]:
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
        if len(sizes) == 1 and sizes.pop() >= _FEWEST and set(shapes) - set(local):
            family = Arrow(local).complete(model.density)
            unknowns = family.num_globals + family.num_locals
            if unknowns <= _MOST_UNKNOWNS and _SHARE * unknowns <= model.density.dim and family not in found:
                found.append(family)
    return sorted(found, key=lambda x: x.num_globals)
