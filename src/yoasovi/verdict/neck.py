"""The tails of one parameter, by Laplace's method over all others: where a funnel's neck is, draws and chains hardly go.

Given the parameter that the scales of others follow, those others are nearly Gaussian. The height of log p and its curvature
where they are best, at a row of places far out on either side, tell how much of the posterior lies there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.interpolate import CubicSpline

from yoasovi.climb import climb

_PLACES = np.array([-8.0, -6.0, -4.5, -3.5, -2.5, -1.5, -0.75, 0.0, 0.75, 1.5, 2.5, 3.5, 4.5, 6.0])  # sds from the middle
_TAIL = 1.5  # where a tail begins
_STEP = 1e-5


class Tails(NamedTuple):
    """Share of the posterior that the tails of a parameter hold beyond what the draws have of it."""

    missed: float
    num_gradients: int
    num_values: int = 0


def tails(fit: Any, leader: int, theta: np.ndarray) -> Tails | None:
    """Look at the tails of the unconstrained parameter number `leader`; `theta` are the draws that are given (n, d).

    None where Laplace's method says nothing: the others have no maximum, or not enough of the places could be reached.
    """
    scale, middle = theta.std(0), np.median(theta, 0)
    if not (scale > 0).all():
        return None
    z = (theta - middle) / scale
    begins = z[np.abs(z[:, leader][:, None] - _PLACES).argmin(0)]
    begins[:, leader] = _PLACES

    def look(x):
        with np.errstate(all="ignore"):  # what is not finite is told by the answer
            value, slope = fit.kernels.point(middle + scale * x)
            slope = slope * scale
        slope[:, leader] = 0.0
        return value, slope

    found = climb(look, begins, 100, enough=0.01)
    others = np.delete(np.arange(z.shape[1]), leader)
    moved = found.top[:, None] + _STEP * np.eye(z.shape[1])[others]
    here = look(found.top)[1]
    there = look(moved.reshape(-1, z.shape[1]))[1].reshape(moved.shape)
    curvature = -(there - here[:, None])[:, :, others] / _STEP
    spent = int(found.gradients.sum()) + len(here) * (1 + len(others))
    heights = np.array([_mass(*x) for x in zip(found.height, here[:, others], curvature, strict=True)])
    inside = np.abs(_PLACES) <= 1.0
    if not np.isfinite(heights[inside]).all() or np.isfinite(heights).sum() < len(heights) - 3:
        return None
    known = np.isfinite(heights)
    fine = np.linspace(_PLACES[known][0], _PLACES[known][-1], 500)
    density = np.exp(CubicSpline(_PLACES[known], heights[known] - heights[inside].max())(fine))
    missed = 0.0
    for side in (-1.0, 1.0):
        held = density[side * fine > _TAIL].sum() / density.sum()
        missed += max(float(held) - float(np.mean(side * z[:, leader] > _TAIL)), 0.0)
    return Tails(missed, spent)


def _mass(height: float, slope: np.ndarray, curvature: np.ndarray) -> float:
    """Give the logarithm of what lies around a maximum, up to a constant; minus infinity if it is none."""
    if not (np.isfinite(height) and np.isfinite(curvature).all()):
        return -np.inf
    values, vectors = np.linalg.eigh(0.5 * (curvature + curvature.T))
    if values[0] <= 1e-8 * values[-1]:
        return -np.inf
    more = 0.5 * float(np.sum((vectors.T @ slope) ** 2 / values))
    if more > 1.0 + 0.1 * len(slope):  # the climb was cut on its way
        return -np.inf
    return float(height + more - 0.5 * np.log(values).sum())
