"""Importance correction of draws too long to be kept: their weights are, and the draws are made again when asked for.

Groups that are Gaussian given the globals add less to the variance of the weights the more of them there are, so that
weights carry whatever their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from yoasovi.randomness import Purpose, stream
from yoasovi.verdict.diagnostics import effective_size, importance_weights

LONG = 5000  # numbers in a draw
_NUMBERS = 2**22  # of noise that are in memory at once
_WIDE, _MOST_HUB = 1.3, 30
_LIGHT = 1e-3  # times the usual weight: what is left out
_MOST = 5  # times as many draws as are wanted


class Remade(NamedTuple):
    """Noise that can be made again: every other draw is wider in the coordinates of the hub, where weights have tails."""

    seed: int
    rows: int
    dim: int
    hub: tuple[int, ...]

    def __call__(self, i: int) -> np.ndarray:
        eps = stream(self.seed, Purpose.CORRECTION, i).standard_normal((self.rows, self.dim))
        eps[::2, list(self.hub)] *= _WIDE
        return eps

    def law(self, eps: np.ndarray) -> np.ndarray:
        """Give the log density of such noise relative to that of q's."""
        wider = 0.5 * (eps[:, list(self.hub)] ** 2).sum(1) * (1.0 - _WIDE**-2) - len(self.hub) * np.log(_WIDE)
        return np.logaddexp(0.0, wider) - np.log(2.0)


class LongPool(NamedTuple):
    """Weighted draws that stand for the posterior; see `correction.Pool`."""

    weights: np.ndarray  # (n,), they sum to one
    batches: Remade

    @property
    def effective_size(self) -> float:
        return effective_size(self.weights)

    def picked(self, n: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
        """Draw n points by systematic resampling, some at a time, in the order in which they were made."""
        positions = (np.arange(n) + rng.uniform()) / n
        chosen = np.searchsorted(np.cumsum(self.weights), positions).clip(0, len(self.weights) - 1)
        rows = self.batches.rows
        for i in np.unique(chosen // rows):
            yield self.batches(int(i))[chosen[chosen // rows == i] % rows]

    def pieces(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Give the draws that have any weight to speak of, some at a time, and their weights."""
        rows = self.batches.rows
        for i in range(-(-len(self.weights) // rows)):
            weights = self.weights[i * rows : (i + 1) * rows]
            heavy = weights > _LIGHT / len(self.weights)
            if heavy.any():
                yield self.batches(i)[heavy], weights[heavy]

    def resample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw n points in random order."""
        found = np.concatenate(list(self.picked(n, rng)))
        return found[rng.permutation(n)]


def long_pool(log_ratio: Callable, dim: int, size: int, seed: int, hub: tuple[int, ...]) -> LongPool:
    """Weigh draws until they are worth `size` independent ones or enough was spent; see `correction.pool`.

    `hub` are the few coordinates that all others depend on, if there are such.
    """
    batches = Remade(seed, max(_NUMBERS // dim // 2, 4) * 2, dim, hub if len(hub) <= _MOST_HUB else ())
    ratios, weights = np.empty(0), np.empty(0)
    while len(ratios) < _MOST * size and (len(ratios) < size or effective_size(weights) < size):
        eps = batches(len(ratios) // batches.rows)
        ratios = np.concatenate([ratios, log_ratio(eps) - batches.law(eps)])
        weights = importance_weights(ratios)
    return LongPool(weights, batches)
