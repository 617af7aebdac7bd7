"""Scores of earlier windows, kept for as long as q is nearly where it was.

Near the end q hardly moves from one window to the next, and a score belongs to a place, not to the q that drew it: in the
units of today's q it is as good a point of the line as a fresh one, if it counts by how much more often today's q would
draw it. So a line rests on all draws since q last made a large step, and its noise falls with their number.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

_WORTH, _AWAY = 0.6, 0.3  # of its draws: what a window must be worth to be used, and how far its mean weight may be from 1
_NUMBERS = 2**21  # that may be kept


class OldScores(NamedTuple):
    """Draws in the order they were made, mirrored pairs side by side; (lanes, n, ...) each."""

    theta: np.ndarray  # (lanes, n, d)
    gradient: np.ndarray  # of log p, (lanes, n, d)
    log_q: np.ndarray  # of the q that drew it; NaN where nothing is kept
    turn: np.ndarray  # in which it was drawn


def empty(lanes: int, draws: int, dim: int) -> OldScores | None:
    """Give room for so many draws; None where that would be too much of it."""
    if lanes * draws * dim > _NUMBERS:
        return None
    return OldScores(np.zeros((lanes, draws, dim)), np.zeros((lanes, draws, dim)), np.full((lanes, draws), np.nan),
                np.zeros((lanes, draws), int))  # fmt: skip


def with_draws(past: OldScores, theta: Any, gradient: Any, log_q: Any, turn: np.ndarray) -> OldScores:
    """Add a window's draws; the oldest make room for them."""
    whole = min(theta.shape[1] // 2 * 2, past.theta.shape[1])
    new = OldScores(theta, gradient, log_q, np.broadcast_to(turn[:, None], log_q.shape))
    return OldScores(*(np.concatenate([old[:, whole:], more[:, :whole]], 1) for old, more in zip(past, new, strict=True)))


def filled(past: OldScores) -> OldScores:
    """Leave out the room that no lane has used so far."""
    used = np.isfinite(past.log_q).any(0)
    return OldScores(*(x[:, np.argmax(used) if used.any() else len(used) :] for x in past))


def weights(past: OldScores, log_q: np.ndarray) -> np.ndarray:
    """Give how much more often a q draws each of them than the one that did; 0 for windows that are worth too little."""
    kept = np.isfinite(past.log_q) & np.isfinite(log_q)
    ratio = np.exp(np.clip(np.where(kept, log_q - past.log_q, -np.inf), None, 50.0))
    out = np.zeros_like(ratio)
    for which in np.unique(past.turn[kept]):
        some = kept & (past.turn == which)
        count = np.maximum(some.sum(1), 1)
        mean, square = (ratio * some).sum(1) / count, (ratio**2 * some).sum(1) / count
        # Draws of a much narrower q are worth as much as each other, and miss what is around them: the mean tells.
        worth = (mean**2 > _WORTH * square) & (abs(mean - 1.0) < _AWAY)
        out = np.where(some & worth[:, None], ratio, out)
    return out
