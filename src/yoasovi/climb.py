"""Many climbs of log p side by side: L-BFGS in which every look is one call for all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

_MEMORY = 20  # pairs of steps and changes of the gradient that describe the curvature
_LONG = 40  # gradients after which a climb that gained little is given up


class Climbs(NamedTuple):
    """The highest point of each climb, its height, what it cost, and whether it was given up."""

    top: np.ndarray  # (n, d)
    height: np.ndarray  # (n,)
    gradients: np.ndarray  # (n,)
    given_up: np.ndarray  # (n,)
    refused: np.ndarray  # (2,) looks at which log p, or only its gradient, was not finite


def climb(
    look: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], x: np.ndarray, budget: int, enough: float = 0.1,
    near: float = 0.0,
) -> Climbs:  # fmt: skip
    """Climb from every row of x, until two steps in a row gain less than `enough` nats or `budget` gradients are spent.

    `look` gives log p and its gradient at rows of points. A climb that goes on and on but has gained less than `near` nats
    is given up: log p can rise for ever where the posterior has no mass (a hierarchy whose scale goes to zero), and x was
    not far away.
    """
    n, d = x.shape
    x = np.array(x, float)
    value, slope = np.full(n, -np.inf), np.zeros((n, d))
    refused, spent = np.zeros(2, int), np.zeros(n, int)

    def seen(rows, points):
        f, g = look(points)
        spent[rows] += 1
        lost = ~np.isfinite(f)
        steep = ~lost & ~np.isfinite(g).all(1)
        refused[:] += lost.sum(), steep.sum()
        return np.where(lost | steep, -np.inf, f), np.where((lost | steep)[:, None], 0.0, g)

    value, slope = seen(np.arange(n), x)
    first = value.copy()
    steps, changes = np.zeros((n, _MEMORY, d)), np.zeros((n, _MEMORY, d))
    curvature = np.zeros((n, _MEMORY))  # step . change; 0 where there is none
    way, given_up = np.zeros((n, d)), np.zeros(n, bool)
    length, reach = np.zeros(n), np.ones(n)
    calm, last = np.zeros(n, int), value.copy()
    alive = np.isfinite(value) & (np.abs(slope).max(1) > 0)
    fresh = alive.copy()  # those that need a new direction
    while alive.any():
        for r in np.flatnonzero(fresh & alive):
            way[r] = _direction(slope[r], steps[r], changes[r], curvature[r], reach[r])
            if way[r] @ slope[r] <= 0:  # no ascent: forget the curvature
                curvature[r] = 0.0
                way[r] = reach[r] * slope[r] / max(np.linalg.norm(slope[r]), 1e-300)
            length[r] = 1.0
        fresh[:] = False
        rows = np.flatnonzero(alive)
        there = x[rows] + length[rows, None] * way[rows]
        f, g = seen(rows, there)
        rise = np.sum(way[rows] * slope[rows], 1)
        for k, r in enumerate(rows):
            if f[k] >= value[r] + 1e-4 * length[r] * rise[k] and np.isfinite(f[k]):
                s, y = there[k] - x[r], slope[r] - g[k]
                bent = s @ y > 1e-10 * np.sqrt((s @ s) * (y @ y))
                if bent:
                    for store, new in ((steps, s), (changes, y), (curvature, s @ y)):
                        store[r] = np.roll(store[r], -1, 0)
                        store[r, -1] = new
                reach[r] = np.linalg.norm(s) * (1.0 if bent else 4.0)
                x[r], value[r], slope[r] = there[k], f[k], g[k]
                fresh[r] = True
                calm[r] = calm[r] + 1 if value[r] - last[r] < enough else 0
                last[r] = value[r]
                given_up[r] = spent[r] >= _LONG and value[r] - first[r] < near
                flat = np.abs(slope[r]).max() == 0
                alive[r] = not (calm[r] >= 2 or given_up[r] or flat)
            else:
                short = f[k] - value[r] - length[r] * rise[k]
                best = -0.5 * length[r] * rise[k] / short if np.isfinite(f[k]) and short < 0 else 0.1
                length[r] *= float(np.clip(best, 0.1, 0.5))
                alive[r] = length[r] > 1e-12
            alive[r] &= spent[r] < budget
    return Climbs(x, value, spent, given_up, refused)


def _direction(slope, steps, changes, curvature, reach) -> np.ndarray:
    """Give the quasi-Newton direction of ascent (Nocedal's two loops); along the slope, of length `reach`, at first."""
    known = np.flatnonzero(curvature > 0)
    if not known.size:
        return min(reach, 1.0) * slope / max(np.linalg.norm(slope), 1e-300)
    q, alpha = slope.copy(), {}
    for i in known[::-1]:
        alpha[i] = steps[i] @ q / curvature[i]
        q -= alpha[i] * changes[i]
    latest = known[-1]
    q *= curvature[latest] / (changes[latest] @ changes[latest])
    for i in known:
        q += (alpha[i] - changes[i] @ q / curvature[i]) * steps[i]
    return q
