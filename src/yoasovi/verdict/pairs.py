"""Which pair of parameters has the surest finding."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.special import ndtri

from yoasovi.verdict import diagnostics, looks
from yoasovi.verdict.findings import Thresholds
from yoasovi.verdict.landscape import FULL_UP_TO


def funnel_of(model: Any, seen: looks.ScoreLook, limits: Thresholds) -> tuple[str, str] | None:
    """Name the parameter whose value changes the scale of another beyond doubt, and that other one."""
    if not 1 < model.density.dim <= FULL_UP_TO or len(seen.eps) < 32:
        return None
    return surest(model, diagnostics.changing_scales(seen.eps, seen.white), 0.5 * limits.funnel)[2]


def surest(model: Any, pairs: diagnostics.Pairwise, limit: float) -> tuple[float, float, tuple[str, str] | None]:
    """Give the value that is surely largest, its error, and the names of its pair if it is beyond doubt and a limit."""
    i, j = _largest(pairs)
    value, sure = float(pairs.value[i, j]), abs(pairs.z[i, j]) > -ndtri(0.001 / model.density.dim**2)
    names = model.free_names
    return value, float(pairs.error[i, j]), (names[i], names[j]) if sure and abs(value) > limit else None


def _largest(pairs: diagnostics.Pairwise) -> tuple[int, int]:
    """Give the pair whose value is surely largest; the diagonal does not count."""
    sure = np.where(np.eye(len(pairs.value), dtype=bool), -np.inf, np.abs(pairs.value) - 2.0 * pairs.error)
    i, j = np.unravel_index(int(np.argmax(sure)), sure.shape)
    return int(i), int(j)
