"""From q towards the posterior of a hierarchy: the globals first, and given them each group's own parameters.

Where a scale of a hierarchy is not well known, no law with straight axes holds the posterior: as the scale moves, the widths
and places of all groups' parameters follow. Given the globals they are nearly Gaussian, and independent from group to
group. So a draw is made in two steps: globals from a law that learns the posterior's shape round by round, as in
`correction`; then for these globals two Newton steps of all groups' parameters at once, and a draw from the Gaussian that
they end in (Rue, Martino and Chopin 2009 integrate over the same Gaussians). The weights are exact whatever the steps found:
log p of the whole draw, over the density that it was drawn with.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from yoasovi.answer.correction import Law, Pool, learned
from yoasovi.families import Arrow
from yoasovi.verdict.diagnostics import importance_weights

_MOST_GLOBALS, _MOST_LOCALS, _MOST = 30, 3, 2000  # globals, locals of a group, and parameters in all
_EACH, _ROUNDS, _LEAST = 2000, 6, 2  # draws of a round; rounds at most, and at least
_SCALES = (1.0, 2.0, 4.0)  # of the globals in the first round, relative to q
_FARTHEST, _STEP = 3.0, 1e-3  # the longest Newton step, and that of a difference of slopes, in q's units
_PRECISIONS = (0.04, 1e4)  # least and most, relative to q's


class Settled(NamedTuple):
    """Where all groups' own parameters are, given globals at n places, and the axes of their Gaussians."""

    at: np.ndarray  # (n, l, G)
    precision: np.ndarray  # (n, G, l), along the axes
    axes: np.ndarray  # (n, G, l, l)


def suits(fit: Any) -> bool:
    """Say whether q knows groups, and few enough numbers in each and beside them."""
    family = fit.family
    if not isinstance(family, Arrow) or not fit.kernels.cheap:
        return False
    few = family.num_globals <= _MOST_GLOBALS and family.num_locals <= _MOST_LOCALS
    return few and fit.model.density.dim <= _MOST


def conditional_pool(fit: Any, size: int, rng: np.random.Generator) -> Pool:
    """Gather weighted draws, in q's own units, until they are worth `size` independent ones or enough was spent."""
    family: Arrow = fit.family
    wide = family.num_globals
    hub, spokes, ratios = np.empty((0, wide)), np.empty((0, family.num_locals, family.groups)), np.empty(0)
    laws: list[Law] = []
    densities: list[np.ndarray] = []
    found = Pool(hub, ratios)
    for _ in range(_ROUNDS):
        law, more = learned(found, _EACH, rng, np.eye(wide)) if laws else _around_q(wide, _EACH, rng)
        densities = [np.concatenate([old, past(more)]) for old, past in zip(densities, laws, strict=True)]
        ratio, own = _drawn(fit, more, rng)
        hub, spokes, ratios = np.concatenate([hub, more]), np.concatenate([spokes, own]), np.concatenate([ratios, ratio])
        laws.append(law)
        densities.append(law(hub))
        found = Pool(hub, importance_weights(ratios - logsumexp(np.stack(densities), axis=0)))
        if len(laws) >= _LEAST and found.effective_size >= size:
            break
    return Pool(family.join(hub, spokes), found.weights)


def _around_q(dim: int, n: int, rng: np.random.Generator) -> tuple[Law, np.ndarray]:
    """Give an even mixture of q and of wider ones, and n draws from it."""
    scales = np.asarray(_SCALES)
    eps = rng.normal(size=(n, dim)) * scales[np.arange(n) % len(scales), None]

    def law(x):
        square = 0.5 * (x**2).sum(1)
        return logsumexp([square * (1.0 - s**-2) - dim * np.log(s) for s in _SCALES], axis=0) - np.log(len(_SCALES))

    return law, eps


def _drawn(fit: Any, hub: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw the groups' parameters at globals (n, K); give log p(globals)/q(globals), without bias, and one draw for each.

    Of a mirrored pair one is kept, by its weight.
    """
    family, (at, precision, axes) = fit.family, _settled(fit, hub)
    noise = rng.normal(size=(*precision.shape, 1))
    away = np.swapaxes((axes @ (noise / np.sqrt(precision)[..., None]))[..., 0], 1, 2)
    inside = 0.5 * np.log(precision).sum((1, 2)) - 0.5 * (noise**2).sum((1, 2, 3))
    weights = []
    for own in (at + away, at - away):
        ratio = fit.kernels.values(fit.lane, family.join(hub, own)[None])[0]
        weights.append(np.where(np.isfinite(ratio), ratio, -np.inf) - inside - 0.5 * (own**2).sum((1, 2)))
    fit.num_values += 2 * len(hub)
    both = np.logaddexp(*weights)
    with np.errstate(invalid="ignore"):  # where neither counts, either will do
        first = np.log(rng.uniform(size=len(hub))) < weights[0] - both
    return both - np.log(2.0), np.where(first[:, None, None], at + away, at - away)


def _settled(fit: Any, hub: np.ndarray) -> Settled:
    """Take two Newton steps of all groups at once from where q has them, the first with q's own curvature."""
    at = np.zeros((len(hub), fit.family.num_locals, fit.family.groups))
    at = at + _short_enough(_slopes(fit, hub, at))
    slope, precision, axes = _curved(fit, hub, at)
    step = (axes @ (np.swapaxes(axes, -1, -2) @ slope[..., None] / precision[..., None]))[..., 0]
    return Settled(at + _short_enough(step), precision, axes)


def _short_enough(step: np.ndarray) -> np.ndarray:
    """Give steps (n, G, l), shortened where they are long, with groups last."""
    length = np.sqrt((step**2).sum(-1, keepdims=True))
    return np.swapaxes(step / np.maximum(1.0, length / _FARTHEST), 1, 2)


def _curved(fit: Any, hub: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Give slopes of log p by the groups' parameters, (n, G, l), and precisions and axes of its curvature.

    Groups are independent given the globals: moving the same parameter of all of them shows a column of every block.
    """
    slope = _slopes(fit, hub, at)
    columns = []
    for j in range(at.shape[1]):
        moved = at.copy()
        moved[:, j] += _STEP
        columns.append((slope - _slopes(fit, hub, moved)) / _STEP)
    blocks = np.stack(columns, -1)  # (n, G, l, l)
    values, axes = np.linalg.eigh(0.5 * (blocks + np.swapaxes(blocks, -1, -2)))
    return slope, np.clip(values, *_PRECISIONS), axes


def _slopes(fit: Any, hub: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Give the gradient of log p by the noise of the groups' parameters, (n, G, l); 0 where it is not finite."""
    eps = fit.family.join(hub, at)
    white = fit.kernels.scores(fit.lane, eps[None]).white[0]
    fit.num_gradients += len(eps)
    return np.nan_to_num(np.swapaxes(fit.family.split(white - eps).spokes, 1, 2), nan=0.0, posinf=0.0, neginf=0.0)
