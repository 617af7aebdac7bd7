"""From q towards the posterior of a hierarchy: the globals first, and given them each group's own parameters.

Where a scale of a hierarchy is not well known, no law with straight axes holds the posterior: as the scale moves, the widths
and places of all groups' parameters follow. Given the globals they are nearly Gaussian, and independent from group to
group. So a draw is made in two steps: globals from a law that learns the posterior's shape round by round, as in
`correction`; then for these globals Newton steps of all groups' parameters at once, and a draw from the Gaussian that
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
from yoasovi.kernels.programs import difference_step
from yoasovi.randomness import Purpose, stream

_MOST_GLOBALS, _MOST_LOCALS, _MOST = 30, 6, 2000  # globals, locals of a group, and parameters in all
_MOST_NUMBERS = 6000  # of all groups' curvature, for each draw
_FEW, _SMALL = Least(groups=4, share=2), 200  # groups behind a q that knows of none, and its parameters at most
_EACH, _ROUNDS, _LEAST = 2000, 6, 2  # draws of a round; rounds at most, and at least
# The first round, relative to q: scales of all globals together, and of one of them. In a funnel q may know a fifth of a
# scale's own width.
_WIDE, _FAR = (1.0, 2.0), (4.0, 8.0, 16.0)
_FARTHEST, _STEPS, _SETTLED = 3.0, 8, 0.1  # the longest Newton step, in q's units; most of them; what may be left to gain
_PAIRS = 4  # mirrored pairs of locals at each draw of the globals; one where groups are Gaussian:
_ALIKE, _NEARLY_ALL = 0.02, 0.99  # then both weigh the same, up to so many nats, at nearly all of them
_BACK = 0.7  # share of a step that went too far, which the next ones may go
_PRECISIONS = (1e-4, 1e8)  # least and most, relative to q's
_TAIL = 4.0  # scale of a wide number among the noise of the locals
_LOOKS, _STRAIGHT = 64, 0.5  # globals at which locals are looked at, and nats by which a Gaussian may miss their tails
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
    family, lane = fit._groups
    return None if family is None else InGroups(fit, family, lane, bill)


def groups_of(fit: Any) -> tuple[Arrow | None, Any]:
    """Give the arrow that a fit is seen through, and its parameters with an axis of one lane; Nones where there is none."""
    dim = fit.model.density.dim
    if dim > (_MOST if fit.kernels.cheap else KERNELS_UP_TO) or not fit.model.differentiable:
        return None, None
    family, lane = (fit.family, fit.lane) if isinstance(fit.family, Arrow) else _small_groups(fit)
    if family is None or family.num_globals > _MOST_GLOBALS or family.num_locals > min(_MOST_LOCALS, _MOST_NUMBERS / dim):
        return None, None
    return family, lane


def _small_groups(fit: Any) -> tuple[Arrow | None, Any]:
    """Look for groups where q has few parameters and is one Gaussian; give the arrow nearest to it."""
    dim, lane = fit.model.density.dim, fit.lane
    if dim > _SMALL or fit.share is not None or fit.family.behind(lane, lane.mean[:, None]) is None:
        return None, None
    mean, frame = fit.family.frame(lane)
    frame = frame if frame.ndim == 3 else frame[:, None] * np.eye(dim)
    scale = np.sqrt((frame[0] ** 2).sum(-1))
    found = find_groups(fit.model, fit.kernels, mean[0], scale, stream(fit.seed, Purpose.GROUPS, 1), _FEW)
    fit.num_gradients += found.gradients
    if not found.local:
        return None, None
    family = Arrow(found.local).complete(fit.model.density)
    return family, family.nearest(mean, frame @ np.swapaxes(frame, -1, -2))


def conditional_pool(seen: InGroups, size: int, rng: np.random.Generator, stretch: float = 1.0) -> Pool:
    """Gather weighted draws, in the units of the fit's q, until worth `size` independent ones or enough was spent.

    The first round is `stretch` times as wide as usual.
    """
    family = seen.family
    count, size_own = family.num_globals, family.num_locals * family.groups
    gathering, spokes = Gathering(count), np.empty((0, family.num_locals, family.groups))
    share = min(0.5 / size_own, 0.1) if _bent(seen, rng.normal(size=(_LOOKS, count)), rng) else 0.0
    for done in range(_ROUNDS):
        law, hub = learned(gathering.pool, _EACH, rng, np.eye(count)) if done else _around_q(count, _EACH, rng, stretch)
        ratio, own = _drawn(seen, hub, rng, share)
        spokes = np.concatenate([spokes, own])
        if gathering.add(law, hub, ratio).effective_size >= size and done + 1 >= _LEAST:
            break
    return Pool(seen.own_noise(family.join(gathering.pool.eps, spokes)), gathering.pool.weights, by_groups=True)


def _around_q(dim: int, n: int, rng: np.random.Generator, stretch: float) -> tuple[Law, np.ndarray]:
    """Give an even mixture of q, wider ones, and q with one direction that is far wider; and n draws from it."""
    wide, far = stretch * np.array(_WIDE), stretch * np.array(_FAR)
    eps = rng.normal(size=(n, dim))
    rows, which = np.arange(n), np.arange(n) % (len(wide) + len(far))
    together = which < len(wide)
    eps[together] *= wide[which[together], None]
    eps[rows[~together], rng.integers(dim, size=(~together).sum())] *= far[which[~together] - len(wide)]

    def law(x):
        square = 0.5 * x**2
        laws = [square.sum(1) * (1.0 - s**-2) - dim * np.log(s) for s in wide]
        laws += [logsumexp(square * (1.0 - s**-2), axis=1) - np.log(s * dim) for s in far]
        return logsumexp(laws, axis=0) - np.log(len(laws))

    return law, eps


def _drawn(seen: InGroups, hub: np.ndarray, rng: np.random.Generator, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Draw the groups' parameters at globals (n, K); give log p(globals)/q(globals), without bias, and one draw for each.

    Of some mirrored pairs one draw is kept, by its weight: the mean of all is less uneven than each, and where groups are no
    Gaussians given the globals, single weights seldom show how much lies there. A `share` of the numbers behind are wide.
    """
    found = _settled(seen, hub)
    own, total, drawn = found.at, np.full(len(hub), -np.inf), 0
    for _ in range(_PAIRS):
        noise, inside = _with_tails(found.precision.shape, share, rng)
        inside += 0.5 * np.log(found.precision).sum((1, 2))
        away = _away(found, noise)
        weights = []
        for more in (found.at + away, found.at - away):
            ratio = seen.ratios(seen.family.join(hub, more))
            weight = np.where(np.isfinite(ratio), ratio, -np.inf) - inside - 0.5 * (more**2).sum((1, 2))
            weights.append(weight)
            total = np.logaddexp(total, weight)
            with np.errstate(invalid="ignore"):  # where none counts so far, any will do
                taken = np.log(rng.uniform(size=len(hub))) < weight - total
            own, drawn = np.where(taken[:, None, None], more, own), drawn + 1
        with np.errstate(invalid="ignore"):
            if not share and (np.abs(weights[0] - weights[1]) < _ALIKE).mean() > _NEARLY_ALL:
                break
    return total - np.log(drawn), own


def _away(found: Settled, noise: np.ndarray) -> np.ndarray:
    """Give noise (n, G, l) in the groups' own parameters, with groups last."""
    return np.swapaxes((found.axes @ (noise / np.sqrt(found.precision))[..., None])[..., 0], 1, 2)


def _with_tails(shape: tuple[int, ...], share: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Give normal noise of so many draws, but for a share of wide numbers, and its log density.

    Given the globals, locals may have tails that a Gaussian has not, and weights would not show it for long. Half a wide
    number in each draw costs 40% of the draws at most, however many groups there are.
    """
    noise = rng.normal(size=shape) * np.where(rng.uniform(size=shape) < share, _TAIL, 1.0)
    half = -0.5 * noise**2
    with np.errstate(divide="ignore"):
        density = np.logaddexp(np.log1p(-share) + half, np.log(share / _TAIL) + half / _TAIL**2)
    return noise, density.sum(tuple(range(1, len(shape))))


def _bent(seen: InGroups, hub: np.ndarray, rng: np.random.Generator) -> bool:
    """Say whether, given some globals, groups are visibly no Gaussians: log p falls otherwise than a parabola far out."""
    found = _settled(seen, hub)
    away = _away(found, _TAIL * rng.choice([-1.0, 1.0], size=found.precision.shape))
    places = [seen.family.join(hub, found.at + side * away) for side in (-1.0, 0.0, 1.0)]
    low, top, high = (seen.ratios(x) - 0.5 * (x**2).sum(1) for x in places)
    fall = 0.5 * _TAIL**2 * found.precision[0].size
    with np.errstate(invalid="ignore"):
        return not (np.abs(np.stack([top - low, top - high]) - fall) < _STRAIGHT).all()


def _settled(seen: InGroups, hub: np.ndarray) -> Settled:
    """Climb to where all groups are best, from where q has them, by Newton's steps.

    Where log p bends upwards, as in the tails of a t, a step goes uphill as far as the same bend downwards would let it; a
    group whose slope has turned goes less far from there on.
    """
    groups, own = seen.family.groups, seen.family.num_locals
    at, reach = np.zeros((len(hub), groups, own)), np.full((len(hub), groups, 1), _FARTHEST)
    rows, slope = np.arange(len(hub)), _slopes(seen, hub, at)
    precision, turned = values, axes = _curved(seen, hub, at, slope)
    for _ in range(_STEPS):
        along = (np.swapaxes(axes, -1, -2) @ slope[..., None])[..., 0]
        step = (axes @ (along / _usable(abs(values)))[..., None])[..., 0]
        step /= np.maximum(1.0, _length(step) / reach[rows])
        at[rows] += step
        slope = _slopes(seen, hub[rows], at[rows])
        over = (slope * step).sum(-1, keepdims=True) < 0.0
        reach[rows] = np.where(over, np.minimum(reach[rows], _BACK * _length(step)), reach[rows])
        along = (np.swapaxes(axes, -1, -2) @ slope[..., None])[..., 0]
        far = (along**2 / _usable(abs(values))).max((1, 2)) > _SETTLED
        if not far.any():
            break
        rows, slope = rows[far], slope[far]
        precision[rows], turned[rows] = values, axes = _curved(seen, hub[rows], at[rows], slope)
    return Settled(np.swapaxes(at, 1, 2), np.where(precision > _PRECISIONS[0], _usable(precision), _FLAT), turned)


def _usable(precision: np.ndarray) -> np.ndarray:
    return np.clip(precision, *_PRECISIONS)


def _length(step: np.ndarray) -> np.ndarray:
    return np.maximum(np.sqrt((step**2).sum(-1, keepdims=True)), 1e-300)


def _curved(seen: InGroups, hub: np.ndarray, at: np.ndarray, slope: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Give curvatures (downwards), (n, G, l), and axes of log p by each group's parameters; `slope` is there.

    Groups are independent given the globals: moving the same parameter of all of them shows a column of every block.
    """
    step = difference_step()
    moves = step * np.eye(at.shape[-1])
    blocks = np.stack([(slope - _slopes(seen, hub, at + move)) / step for move in moves], -1)  # (n, G, l, l)
    return np.linalg.eigh(0.5 * (blocks + np.swapaxes(blocks, -1, -2)))


def _slopes(seen: InGroups, hub: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Give the gradient of log p by the noise of the groups' parameters, (n, G, l); 0 where it is not finite."""
    slope = seen.slopes(seen.family.join(hub, np.swapaxes(at, 1, 2)))
    return np.nan_to_num(np.swapaxes(seen.family.split(slope).spokes, 1, 2), nan=0.0, posinf=0.0, neginf=0.0)
