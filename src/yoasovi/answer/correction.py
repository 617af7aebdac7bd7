"""From q towards the posterior: adaptive importance resampling with values of log p only.

Everything happens in q's own units, where a draw is eps ~ N(0, I) and its weight is p/q. A first pool comes from an even
mixture of q and a wider q, so that weights stay bounded in the tails. Then the proposal learns the posterior's shape:
it is drawn from and added to the pool, all weighted by the mixture of everything drawn so far (Cornuet et al. 2012). In few
dimensions it is kernels around resampled points, shrunk towards the mean to keep mean and covariance (West 1993); in
more, a law in which some parameters lead the others (`Warped`). Where noise and parameters do not go together one by one, or
are too many, kernels live in the few directions in which the weighted pool differs most from q.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from yoasovi.answer.warped import Warped, log_kernels
from yoasovi.verdict.diagnostics import effective_size, importance_weights

KERNELS_UP_TO, _DIRECTIONS = 30, 3
_KERNELS_ALONE, WARPED_UP_TO = 3, 200  # dimensions between which one parameter may lead others
_SHAPE_UP_TO = 500  # dimensions; above, directions cost more than they tell, and only draws of q are weighted
_NUMBERS = 2**24  # of noise in a round
_CENTRES, _ROUNDS = 500, 6
_EACH = 5.0  # draws of a round, relative to what is wanted
_LEAST = 5  # rounds, unless weights are even at once
# Weights this even say that q has found all of the posterior; others may look even before a corner of it was seen.
_EASY = 0.5
_WIDE = 1.5  # scale of the wide half of the first pool, relative to q

Law = Callable[[np.ndarray], np.ndarray]  # eps (n, d) -> log density relative to N(0, I)


class Pool(NamedTuple):
    """Weighted draws that stand for the posterior."""

    eps: np.ndarray  # (n, d), in q's own units
    weights: np.ndarray  # (n,), they sum to one
    by_groups: bool = False  # whether they were drawn group by group: see `conditional`

    @property
    def effective_size(self) -> float:
        return effective_size(self.weights)

    def resample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw n points by systematic resampling: as even as the weights allow."""
        positions = (np.arange(n) + rng.uniform()) / n
        chosen = np.searchsorted(np.cumsum(self.weights), positions).clip(0, len(self.weights) - 1)
        return self.eps[rng.permutation(chosen)]


def pool(
    log_ratio: Callable[[np.ndarray], np.ndarray], dim: int, size: int, rng: np.random.Generator,
    axes: np.ndarray | None = None, growth: int = 1,
) -> Pool:  # fmt: skip
    """Gather weighted draws round by round, until they are worth `size` independent ones or enough was spent.

    `log_ratio` gives log p - log q at eps, shape (n, dim) to (n,). `axes` (dim, dim) turns eps into parameters in units of
    their sds, if that can be had. Rounds after the first are `growth` times as large where q's weights are not even.
    """
    each = min(max(int(_EACH * size), 2000), max(_NUMBERS // dim, size))
    shapes = dim <= _SHAPE_UP_TO
    gathering, easy = Gathering(dim), False
    for done in range(_ROUNDS):
        n = each if not done or easy else growth * each
        law, eps = learned(gathering.pool, n, rng, axes) if done and shapes else _around_q(dim, n, rng)
        worth = gathering.add(law, eps, log_ratio(eps)).effective_size
        easy = worth > _EASY * each if not done else easy
        if worth >= size and (easy or not shapes or done + 1 >= _LEAST):
            break
    return gathering.pool


class Gathering:
    """Draws of several laws, round by round, each weighted by the mixture of everything drawn so far."""

    def __init__(self, dim: int):
        self.pool = Pool(np.empty((0, dim)), np.empty(0))
        self._ratios = np.empty(0)
        self._laws: list[Law] = []
        self._sizes: list[int] = []
        self._densities: list[np.ndarray] = []  # of every law so far, at every draw so far

    def add(self, law: Law, eps: np.ndarray, log_ratio: np.ndarray) -> Pool:
        """Add a round's draws, with their log p - log q, and weigh all anew."""
        self._densities = [np.concatenate([old, past(eps)]) for old, past in zip(self._densities, self._laws, strict=True)]
        everything, self._ratios = np.concatenate([self.pool.eps, eps]), np.concatenate([self._ratios, log_ratio])
        self._laws.append(law)
        self._sizes.append(len(eps))
        self._densities.append(law(everything))
        drawn = logsumexp(np.stack(self._densities) + np.log(self._sizes)[:, None], axis=0)
        self.pool = Pool(everything, importance_weights(self._ratios - drawn))
        return self.pool


def learned(so_far: Pool, n: int, rng: np.random.Generator, axes: np.ndarray | None) -> tuple[Law, np.ndarray]:
    """Give a law of the pool's shape, and n draws from it."""
    dim = so_far.eps.shape[1]
    if dim <= _KERNELS_ALONE or axes is None or dim > WARPED_UP_TO:
        return _kernels(so_far, n, rng)
    try:
        law = Warped.of(so_far.eps, so_far.weights, axes, rng)
    except np.linalg.LinAlgError:  # in some direction the draws are all but the same, or without end
        return _around_q(dim, n, rng)
    return law.__call__, law.draw(n, rng)


def _around_q(dim: int, n: int, rng: np.random.Generator) -> tuple[Law, np.ndarray]:
    """q, or where there are few dimensions an even mixture of q and a wider q; and n draws from it."""
    eps = rng.normal(size=(n, dim))
    if dim > KERNELS_UP_TO:
        return (lambda x: np.zeros(len(x))), eps
    eps[n // 2 :] *= _WIDE

    def law(x):
        wider = 0.5 * (x**2).sum(1) * (1.0 - 1.0 / _WIDE**2) - dim * np.log(_WIDE)
        return np.logaddexp(0.0, wider) - np.log(2.0)

    return law, eps


def _kernels(so_far: Pool, n: int, rng: np.random.Generator) -> tuple[Law, np.ndarray]:
    """A mixture of Gaussian kernels with the pool's mean and covariance in some directions, q in the others."""
    eps, weights = so_far.eps, so_far.weights
    dim = eps.shape[1]
    mean = weights @ eps
    covariance = (eps - mean).T @ ((eps - mean) * weights[:, None])
    axes = np.eye(dim)
    if dim > KERNELS_UP_TO:
        values, vectors = np.linalg.eigh(covariance + np.outer(mean, mean))
        axes = vectors[:, np.argsort(-np.abs(np.log(np.maximum(values, 1e-12))))[:_DIRECTIONS]]
    d = axes.shape[1]
    width = min(0.9, (4.0 / ((d + 2.0) * 300.0)) ** (1.0 / (d + 4.0)))  # Silverman's, for about 300 effective draws
    middle, spread = mean @ axes, axes.T @ covariance @ axes
    root = width * np.linalg.cholesky(spread + 1e-9 * np.diag(np.diag(spread) + 1e-300))
    keep = np.sqrt(1.0 - width**2)
    centres = keep * (so_far.resample(_CENTRES, rng) @ axes) + (1.0 - keep) * middle
    inverse, log_det = np.linalg.inv(root), np.log(np.diag(root)).sum()
    white_centres = (centres - middle) @ inverse.T  # centred, so that single precision is enough

    def law(x):
        inside = x @ axes
        heights = log_kernels((inside - middle) @ inverse.T, white_centres)
        return heights - np.log(len(centres)) - log_det + 0.5 * (inside**2).sum(1)

    more = rng.normal(size=(n, dim))
    inside = centres[rng.integers(len(centres), size=n)] + rng.normal(size=(n, d)) @ root.T
    return law, more + (inside - more @ axes) @ axes.T
