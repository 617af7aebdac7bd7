"""From q towards the posterior of a hierarchy: the globals first, and given them each group's own parameters.

Where a scale of a hierarchy is not well known, no law with straight axes holds the posterior: as the scale moves, the widths
and places of all groups' parameters follow. Given the globals they are nearly Gaussian, and independent from group to
group. So a draw is made in two steps: globals from a law that learns the posterior's shape round by round, as in
`correction`; then for these globals two Newton steps of all groups' parameters at once, and a draw from the Gaussian that
they end in (Rue, Martino and Chopin 2009 integrate over the same Gaussians). The weights are exact whatever the steps found:
log p of the whole draw, over the density that it was drawn with. A q of few parameters that knows no groups is seen through
the arrow of its own covariance, where log p falls into groups.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from yoasovi.answer.correction import KERNELS_UP_TO, Gathering, Law, Pool, learned
from yoasovi.families import Arrow
from yoasovi.grouping import Least, find_groups

_MOST_GLOBALS, _MOST_LOCALS, _MOST = 30, 3, 2000  # globals, locals of a group, and parameters in all
_FEW = Least(groups=4, share=2)  # that a small hierarchy may have
_EACH, _ROUNDS, _LEAST = 2000, 6, 2  # draws of a round; rounds at most, and at least
_SCALES = (1.0, 2.0, 4.0)  # of the globals in the first round, relative to q
_WIDER, _WIDER_UP_TO = (8.0, 16.0), 2  # also, for so few: in a funnel q may know a fifth of a scale's own width
_FARTHEST, _STEP = 3.0, 1e-3  # the longest Newton step, and that of a difference of slopes, in q's units
_PRECISIONS = (1e-4, 1e8)  # least and most, relative to q's
_FLAT = 0.04  # precision where there is less, or log p bends upwards


class Settled(NamedTuple):
    """Where all groups' own parameters are, given globals at n places, and the axes of their Gaussians."""

    at: np.ndarray  # (n, l, G)
    precision: np.ndarray  # (n, G, l), along the axes
    axes: np.ndarray  # (n, G, l, l)


@dataclass(frozen=True)
class InGroups:
    """A fit seen through an arrow."""

    fit: Any
    family: Arrow
    lane: Any  # the arrow's parameters, with an axis of one lane
    bill: Any  # its `num_values` and `num_gradients` count what is looked at

    def ratios(self, eps: np.ndarray) -> np.ndarray:
        """Give log p - log q at the arrow's noise (n, d)."""
        self.bill.num_values += len(eps)
        theta = self.family.place(self.lane, eps[None])
        return self.fit.kernels.heights(theta[0]) + self.family.minus_log_q(self.lane, eps[None])[0]

    def slopes(self, eps: np.ndarray) -> np.ndarray:
        """Give the gradient of log p by the arrow's noise."""
        self.bill.num_gradients += len(eps)
        _, slope = self.fit.kernels.point(self.family.place(self.lane, eps[None])[0])
        return self.family.pull(self.lane, slope[None])[0]

    def own_noise(self, eps: np.ndarray) -> np.ndarray:
        """Give the noise of the fit's q for that of the arrow."""
        if self.family is self.fit.family:
            return eps
        return self.fit.family.behind(self.fit.lane, self.family.place(self.lane, eps[None]))[0]


def in_groups(fit: Any, bill: Any) -> InGroups | None:
    """See a fit through its groups; None where there are none, or too many numbers in each or beside them."""
    if fit.model.density.dim > (_MOST if fit.kernels.cheap else KERNELS_UP_TO):
        return None
    family, lane = (fit.family, fit.lane) if isinstance(fit.family, Arrow) else _small_groups(fit, bill)
    if family is None or family.num_globals > _MOST_GLOBALS or family.num_locals > _MOST_LOCALS:
        return None
    return InGroups(fit, family, lane, bill)


def _small_groups(fit: Any, bill: Any) -> tuple[Any, Any]:
    """Look for groups where q has few parameters and is one Gaussian; give the arrow nearest to it."""
    dim, lane = fit.model.density.dim, fit.lane
    if dim > KERNELS_UP_TO or fit.share is not None or fit.family.behind(lane, lane.mean[:, None]) is None:
        return None, None
    found = find_groups(fit.model, fit.kernels, fit.seed, _FEW)
    bill.num_gradients += found.gradients
    if not found.local:
        return None, None
    family, (mean, frame) = Arrow(found.local).complete(fit.model.density), fit.family.frame(lane)
    frame = frame if frame.ndim == 3 else frame[:, None] * np.eye(dim)
    return family, family.nearest(mean, frame @ np.swapaxes(frame, -1, -2))


def conditional_pool(seen: InGroups, size: int, rng: np.random.Generator, stretch: float = 1.0) -> Pool:
    """Gather weighted draws, in the units of the fit's q, until worth `size` independent ones or enough was spent.

    The first round is `stretch` times as wide as usual.
    """
    family = seen.family
    wide = family.num_globals
    gathering, spokes = Gathering(wide), np.empty((0, family.num_locals, family.groups))
    for done in range(_ROUNDS):
        law, hub = learned(gathering.pool, _EACH, rng, np.eye(wide)) if done else _around_q(wide, _EACH, rng, stretch)
        ratio, own = _drawn(seen, hub, rng)
        spokes = np.concatenate([spokes, own])
        if gathering.add(law, hub, ratio).effective_size >= size and done + 1 >= _LEAST:
            break
    return Pool(seen.own_noise(family.join(gathering.pool.eps, spokes)), gathering.pool.weights, by_groups=True)


def _around_q(dim: int, n: int, rng: np.random.Generator, stretch: float) -> tuple[Law, np.ndarray]:
    """Give an even mixture of q and of wider ones, and n draws from it."""
    scales = stretch * np.array(_SCALES + _WIDER * (dim <= _WIDER_UP_TO))
    eps = rng.normal(size=(n, dim)) * np.resize(scales, n)[:, None]

    def law(x):
        square = 0.5 * (x**2).sum(1)
        return logsumexp([square * (1.0 - s**-2) - dim * np.log(s) for s in scales], axis=0) - np.log(len(scales))

    return law, eps


def _drawn(seen: InGroups, hub: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw the groups' parameters at globals (n, K); give log p(globals)/q(globals), without bias, and one draw for each.

    Of a mirrored pair one is kept, by its weight.
    """
    family, (at, precision, axes) = seen.family, _settled(seen, hub)
    noise = rng.normal(size=(*precision.shape, 1))
    away = np.swapaxes((axes @ (noise / np.sqrt(precision)[..., None]))[..., 0], 1, 2)
    inside = 0.5 * np.log(precision).sum((1, 2)) - 0.5 * (noise**2).sum((1, 2, 3))
    weights = []
    for own in (at + away, at - away):
        ratio = seen.ratios(family.join(hub, own))
        weights.append(np.where(np.isfinite(ratio), ratio, -np.inf) - inside - 0.5 * (own**2).sum((1, 2)))
    both = np.logaddexp(*weights)
    with np.errstate(invalid="ignore"):  # where neither counts, either will do
        first = np.log(rng.uniform(size=len(hub))) < weights[0] - both
    return both - np.log(2.0), np.where(first[:, None, None], at + away, at - away)


def _settled(seen: InGroups, hub: np.ndarray) -> Settled:
    """Take two Newton steps of all groups at once from where q has them, the first with q's own curvature."""
    at = np.zeros((len(hub), seen.family.num_locals, seen.family.groups))
    at = at + _short_enough(_slopes(seen, hub, at))
    slope, precision, axes = _curved(seen, hub, at)
    step = (axes @ (np.swapaxes(axes, -1, -2) @ slope[..., None] / precision[..., None]))[..., 0]
    return Settled(at + _short_enough(step), precision, axes)


def _short_enough(step: np.ndarray) -> np.ndarray:
    """Give steps (n, G, l), shortened where they are long, with groups last."""
    length = np.sqrt((step**2).sum(-1, keepdims=True))
    return np.swapaxes(step / np.maximum(1.0, length / _FARTHEST), 1, 2)


def _curved(seen: InGroups, hub: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Give slopes of log p by the groups' parameters, (n, G, l), and precisions and axes of its curvature.

    Groups are independent given the globals: moving the same parameter of all of them shows a column of every block.
    """
    slope = _slopes(seen, hub, at)
    columns = []
    for j in range(at.shape[1]):
        moved = at.copy()
        moved[:, j] += _STEP
        columns.append((slope - _slopes(seen, hub, moved)) / _STEP)
    blocks = np.stack(columns, -1)  # (n, G, l, l)
    values, axes = np.linalg.eigh(0.5 * (blocks + np.swapaxes(blocks, -1, -2)))
    least, most = _PRECISIONS
    return slope, np.where(values > least, np.minimum(values, most), _FLAT), axes


def _slopes(seen: InGroups, hub: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Give the gradient of log p by the noise of the groups' parameters, (n, G, l); 0 where it is not finite."""
    slope = seen.slopes(seen.family.join(hub, at))
    return np.nan_to_num(np.swapaxes(seen.family.split(slope).spokes, 1, 2), nan=0.0, posinf=0.0, neginf=0.0)
