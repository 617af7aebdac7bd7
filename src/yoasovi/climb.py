"""Many climbs side by side, of log p or of an ELBO: L-BFGS in which every look is one call for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

_MEMORY = 20  # pairs of steps and changes of the gradient that describe the curvature
_ROUNDS = 5  # of a climb by a part of the data
_LONG = 40  # gradients after which a climb that gained little is given up
_MANY, LAST_FEW = 32, 1 / 8  # climbs, and the share of them that is not worth a look each when all others have ended


class Past(NamedTuple):
    """The latest pairs of steps and changes of the gradient of n climbs; the oldest makes room for the next."""

    steps: np.ndarray  # (memory, n, d)
    changes: np.ndarray  # (memory, n, d)
    curvature: np.ndarray  # (memory, n): step . change; 0 where there is none
    pairs: np.ndarray  # (n,), how many there have been


class Climbs(NamedTuple):
    """The highest point of each climb, its height, what it cost, and whether it was given up."""

    top: np.ndarray  # (n, d)
    height: np.ndarray  # (n,)
    gradients: np.ndarray  # (n,)
    given_up: np.ndarray  # (n,)
    refused: np.ndarray  # (2, n) looks at which log p, or only its gradient, was not finite


def climb(
    look: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], x: np.ndarray, budget: int, enough: float = 0.1,
    near: float = 0.0, patience: int = 2, metric: Callable[[np.ndarray], np.ndarray] = np.ones_like, leave: float = 0.0,
) -> Climbs:  # fmt: skip
    """Climb from every row of x, until `patience` steps in a row gain less than `enough` nats, or `budget` looks are taken.

    `look` gives heights and slopes at rows of points; `metric` the squared unit of every coordinate there. A climb that goes
    on and on but has gained less than `near` nats is given up: log p can rise for ever where the posterior has no mass (a
    hierarchy whose scale goes to zero), and x was not far away. Of many, the last end where they are, a share of `leave`.
    """
    n, d = x.shape
    x = np.array(x, float)
    refused, spent = np.zeros((2, n), int), np.zeros(n, int)

    def seen(rows, points):
        f, g = look(points)
        spent[rows] += 1
        lost = ~np.isfinite(f)
        steep = ~lost & ~np.isfinite(g).all(1)
        refused[:, rows] += lost, steep
        return np.where(lost | steep, -np.inf, f), np.where((lost | steep)[:, None], 0.0, g)

    value, slope = seen(np.arange(n), x)
    first, last = value.copy(), value.copy()
    past = Past(np.zeros((_MEMORY, n, d)), np.zeros((_MEMORY, n, d)), np.zeros((_MEMORY, n)), np.zeros(n, int))
    way, length, reach = np.zeros((n, d)), np.zeros(n), np.ones(n)
    calm, given_up = np.zeros(n, int), np.zeros(n, bool)
    alive = np.isfinite(value) & (np.abs(slope).max(1) > 0)
    fresh = alive.copy()  # those that need a new direction
    few = int(leave * n) if n >= _MANY else 0
    while alive.sum() > few:
        turn = np.flatnonzero(fresh & alive)
        if turn.size:
            unit = metric(x[turn])
            way[turn] = _directions(slope[turn], past, turn, reach[turn], unit)
            lost = turn[_dot(way[turn], slope[turn]) <= 0]  # no ascent: forget the curvature
            past.curvature[:, lost] = 0.0
            way[lost] = _uphill(slope[lost], reach[lost])
            length[turn] = 1.0
        rows = np.flatnonzero(alive)
        there = x[rows] + length[rows, None] * way[rows]
        f, g = seen(rows, there)
        rise = length[rows] * _dot(way[rows], slope[rows])
        higher = np.isfinite(f) & (f >= value[rows] + 1e-4 * rise)
        fresh[:] = False
        won, at = rows[higher], there[higher]
        step, change = at - x[won], slope[won] - g[higher]
        bend = _dot(step, change)
        bent = bend > 1e-10 * np.sqrt(_dot(step, step) * _dot(change, change))
        kept = won[bent]
        place = past.pairs[kept] % _MEMORY
        past.steps[place, kept], past.changes[place, kept] = step[bent], change[bent]
        past.curvature[place, kept] = bend[bent]
        past.pairs[kept] += 1
        reach[won] = np.sqrt(_dot(step, step)) * np.where(bent, 1.0, 4.0)
        x[won], value[won], slope[won], fresh[won] = at, f[higher], g[higher], True
        calm[won] = np.where(value[won] - last[won] < enough, calm[won] + 1, 0)
        last[won] = value[won]
        given_up[won] = (spent[won] >= _LONG) & (value[won] - first[won] < near)
        alive[won] = (calm[won] < patience) & ~given_up[won] & (np.abs(slope[won]).max(1) > 0)
        stay, short = rows[~higher], (f - value[rows] - rise)[~higher]
        with np.errstate(all="ignore"):  # where a parabola through what is known has its top
            best = np.where(np.isfinite(short) & (short < 0), -0.5 * rise[~higher] / short, 0.1)
        length[stay] *= np.clip(best, 0.1, 0.5)
        alive[stay] = length[stay] > 1e-12
        alive &= spent < budget
    return Climbs(x, value, spent, given_up, refused)


def climb_by_part(part: Callable, whole: Callable, x: np.ndarray, budget: int, near: float) -> Climbs:
    """Climb log p of a part of the data from x, (1, d); then the part put right by the slope of all of it at its top.

    A round takes one look at all the data, and leaves of the way to the top the share by which the part's curvature is
    wrong. Looks at all the data are counted. Where rounds lead nowhere all of it is climbed.
    """
    found = climb(part, x, budget, near=near)
    if found.given_up[0] or not np.isfinite(found.height[0]):
        return found._replace(gradients=found.gradients * 0)
    top, (height, slope), looks = found.top, whole(found.top), 1
    for _ in range(_ROUNDS):
        here, bias = part(top)
        bias = slope - bias

        def corrected(points, top=top, bias=bias):
            f, g = part(points)
            return f + (points - top) @ bias[0], g + bias

        found = climb(corrected, top, budget)
        if found.height[0] - here[0] < 0.1:
            return Climbs(top, height, np.array([looks]), np.zeros(1, bool), np.zeros((2, 1), int))
        there = whole(found.top)
        looks += 1
        if not there[0][0] > height[0]:
            break
        top, (height, slope) = found.top, there
    found = climb(whole, top, budget)
    return found._replace(gradients=found.gradients + looks)


def climb_elbo(look: Callable, mean: np.ndarray, scale: np.ndarray, noise: np.ndarray, budget: int) -> Climbs:
    """Climb the ELBO of independent Gaussians, averaged over fixed draws, from the given means and scales, (n, d) each.

    Unlike log p it has a top wherever the posterior has mass. `look` is that of log p; a point is (means, logarithms of
    scales), in units of the natural gradient: where a scale is wide, its mean may go far.
    """
    draws, d = noise.shape

    def height(x):
        mean, log_scale = x[:, :d], x[:, d:]
        with np.errstate(all="ignore"):  # what is not finite is told by the answer
            wide = np.exp(log_scale)
            value, slope = look((mean[:, None] + wide[:, None] * noise).reshape(-1, d))
            value, slope = value.reshape(-1, draws), slope.reshape(-1, draws, d)
            along = (slope * noise).mean(1) * wide + 1.0
            return value.mean(1) + log_scale.sum(1), np.concatenate([slope.mean(1), along], 1)

    units = lambda x: np.concatenate([np.exp(2.0 * x[:, d:]), np.full((len(x), d), 0.5)], 1)
    begin = np.concatenate([mean, np.log(scale)], 1)
    enough = max(0.05, d / 9000)  # where there are many parameters, as with the nats that a window may leave
    found = climb(height, begin, budget, enough=enough, patience=10, metric=units, leave=LAST_FEW)
    return found._replace(gradients=draws * found.gradients)


def _dot(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.einsum("ni,ni->n", a, b)


def _uphill(slope: np.ndarray, reach: np.ndarray) -> np.ndarray:
    """Give steps of length `reach` along the slope, however steep."""
    slope = slope / np.maximum(np.abs(slope).max(1, keepdims=True), 1e-300)  # squares of the steepest would overflow
    return (reach / np.maximum(np.linalg.norm(slope, axis=1), 1e-300))[:, None] * slope


def _directions(slope: np.ndarray, past: Past, rows: np.ndarray, reach: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Give quasi-Newton directions of ascent (Nocedal's two loops); where nothing is known, `reach` along the slope."""
    count = past.pairs[rows]
    back = np.arange(1, min(_MEMORY, int(count.max(initial=0))) + 1)[:, None]  # from the latest pair on
    if not len(back):
        return _uphill(unit * slope, np.minimum(reach, 1.0))
    steps, changes, curvature = (x[(count - back) % _MEMORY, rows] for x in past[:3])
    known = curvature > 0
    inverse = np.where(known, 1.0 / np.where(known, curvature, 1.0), 0.0)
    q, alphas = slope.copy(), np.empty_like(curvature)
    for i in range(len(back)):
        alphas[i] = _dot(steps[i], q) * inverse[i]
        q -= alphas[i][:, None] * changes[i]
    size = _dot(changes[0], unit * changes[0])
    q *= unit * np.where(known[0], curvature[0] / np.where(size > 0, size, 1.0), 1.0)[:, None]
    for i in reversed(range(len(back))):
        q += (alphas[i] - _dot(changes[i], q) * inverse[i])[:, None] * steps[i]
    if (bare := ~known.any(0)).any():
        q[bare] = _uphill(unit[bare] * slope[bare], np.minimum(reach[bare], 1.0))
    return q
