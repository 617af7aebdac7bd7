"""The tails of one parameter, by Laplace's method over all others: where a funnel's neck is, draws and chains hardly go.

Given the parameter that the scales of others follow, those others are nearly Gaussian: at a row of places far out on either
side, where they are best and how log p bends there give a law for them, and weighted draws from it how much lies there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from yoasovi.climb import climb
from yoasovi.kernels.programs import difference_step
from yoasovi.randomness import Purpose, mirrored, stream
from yoasovi.verdict.diagnostics import effective_size

_PLACES = np.array([-8.0, -6.0, -4.5, -3.5, -2.5, -1.5, -0.75, 0.0, 0.75, 1.5, 2.5, 3.5, 4.5, 6.0])  # sds from the middle
_TAIL = 1.5  # where a tail begins
_DRAWS, _EVEN, _WIDER = 200, 0.05, 1.1  # draws at a place, share of them that must count, and how much wider their law is


class Tails(NamedTuple):
    """Share of the posterior that the tails of a parameter hold beyond what the draws have of it, and its whole law."""

    missed: float
    theta: np.ndarray  # (n, d), the middle of the draws but for the parameter, which goes from one end to the other
    weights: np.ndarray  # of those, by Laplace's method; they sum to one
    num_gradients: int
    num_values: int


def tails(fit: Any, leader: int, theta: np.ndarray) -> Tails | None:
    """Look at the tails of the unconstrained parameter number `leader`; `theta` are the draws that are given (n, d).

    `missed` is NaN where Laplace's method says nothing: the others have no maximum, or not enough of the places could be
    reached. None where the draws do not vary.
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
    step = difference_step()
    moved = found.top[:, None] + step * np.eye(z.shape[1])[others]
    here = look(found.top)[1]
    there = look(moved.reshape(-1, z.shape[1]))[1].reshape(moved.shape)
    curvature = -(there - here[:, None])[:, :, others] / step
    spent = int(found.gradients.sum()) + len(here) * (1 + len(others))
    noise = mirrored(stream(fit.seed, Purpose.NECK), _DRAWS, len(others))
    heights, values = np.full(len(_PLACES), -np.inf), 0
    for i, (top, slope, bend) in enumerate(zip(found.top, here[:, others], curvature, strict=True)):
        law = _around(top[others], slope, bend)
        if law is None:
            continue
        points = np.tile(top, (_DRAWS, 1))
        points[:, others] = law[0] + noise @ law[1].T
        values += _DRAWS
        value = fit.kernels.heights(middle + scale * points) + 0.5 * (noise**2).sum(1)
        weights = np.exp(np.where(np.isfinite(value), value, -np.inf) - np.max(value[np.isfinite(value)], initial=-np.inf))
        if effective_size(weights / weights.sum()) > _EVEN * _DRAWS:
            heights[i] = np.log(weights.mean()) + np.max(value[np.isfinite(value)]) + law[2]
    inside = np.abs(_PLACES) <= _TAIL
    if not np.isfinite(heights[inside]).all() or np.isfinite(heights).sum() < len(heights) - 4:
        return Tails(np.nan, theta[:0], np.empty(0), spent, values)
    # Slow to import, and seldom needed; beside a cliff it does not overshoot.
    from scipy.interpolate import PchipInterpolator

    known = np.isfinite(heights)
    fine = np.linspace(_PLACES[known][0], _PLACES[known][-1], 500)
    density = np.exp(PchipInterpolator(_PLACES[known], heights[known] - heights[known].max())(fine))
    missed = 0.0
    for side in (-1.0, 1.0):
        held = density[side * fine > _TAIL].sum() / density.sum()
        missed += max(float(held) - float(np.mean(side * z[:, leader] > _TAIL)), 0.0)
    theta = np.tile(middle, (len(fine), 1))
    theta[:, leader] += scale[leader] * fine
    return Tails(missed, theta, density / density.sum(), spent, values)


def _around(top: np.ndarray, slope: np.ndarray, curvature: np.ndarray) -> tuple[np.ndarray, np.ndarray, float] | None:
    """Give the law that log p has around a maximum, if it is one: mean, root of its covariance, log determinant of that."""
    if not np.isfinite(curvature).all():
        return None
    values, vectors = np.linalg.eigh(0.5 * (curvature + curvature.T))
    if values[0] <= 1e-8 * values[-1]:
        return None
    root = _WIDER * vectors / np.sqrt(values)
    volume = len(top) * np.log(_WIDER) - 0.5 * np.log(values).sum()
    return top + vectors @ ((vectors.T @ slope) / values), root, float(volume)
