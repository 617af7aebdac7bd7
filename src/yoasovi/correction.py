"""From q towards the posterior: adaptive importance resampling with values of log p only.

A first pool comes from an even mixture of q and a wider q, so that the weights stay bounded in the tails. Then the
proposal learns the posterior's shape: kernels around resampled points, shrunk towards the mean so that mean and covariance
are kept (West 1993), drawn from and added to the pool, all weighted by the mixture of everything drawn so far
(Cornuet et al. 2012). Kernels do not reach far in many dimensions: above `KERNELS_UP_TO` the pool comes from q alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

from yoasovi.diagnostics import effective_size, importance_weights

KERNELS_UP_TO = 30
_CENTRES, _ROUNDS = 1000, 6
# Weights this even say that q has found all of the posterior; others may look even before a corner of it was seen.
_EASY = 0.3
WIDER = 2.25  # variance of the wide half of the first pool, relative to q


class Pool(NamedTuple):
    """Weighted draws that stand for the posterior."""

    theta: np.ndarray  # (n, d), unconstrained
    weights: np.ndarray  # (n,), they sum to one

    @property
    def effective_size(self) -> float:
        return effective_size(self.weights)

    def resample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw n points by systematic resampling: as even as the weights allow."""
        positions = (np.arange(n) + rng.uniform()) / n
        chosen = np.searchsorted(np.cumsum(self.weights), positions).clip(0, len(self.weights) - 1)
        return self.theta[rng.permutation(chosen)]


def pool(
    log_p: Callable[[np.ndarray], np.ndarray],
    draw: Callable[[int, float], np.ndarray],
    log_q: Callable[[np.ndarray, float], np.ndarray],
    size: int,
    rng: np.random.Generator,
) -> Pool:
    """Gather weighted draws round by round, until they are worth `size` independent ones or enough was spent.

    `draw(n, widening)` and `log_q(theta, widening)` describe q, or q with its variance multiplied by `widening`.
    """
    each = max(3 * size, 2000)
    theta, values = np.empty((0, 0)), np.empty(0)
    laws: list[Callable[[np.ndarray], np.ndarray]] = []
    gathered, easy = Pool(theta, values), False
    densities: list[np.ndarray] = []  # of every law so far, at every draw so far
    for _ in range(_ROUNDS):
        if not laws:
            law, more = _around_q(draw, log_q, each)
        elif theta.shape[1] > KERNELS_UP_TO:
            law, more = laws[0], draw(each * (len(laws) + 1), 1.0)[-each:]
        else:
            law, more = _kernels(gathered, each, rng)
        densities = [np.concatenate([old, past(more)]) for old, past in zip(densities, laws, strict=True)]
        theta = np.concatenate([theta.reshape(-1, more.shape[1]), more])
        values = np.concatenate([values, log_p(more)])
        laws.append(law)
        densities.append(law(theta))
        # All rounds have the same size, so the mixture of all that was drawn is the plain mean of the laws.
        gathered = Pool(theta, importance_weights(values - logsumexp(densities, axis=0)))
        if len(laws) == 1:
            easy = gathered.effective_size > _EASY * each
        if gathered.effective_size >= size and (easy or len(laws) >= 5):
            break
    return gathered


def _around_q(draw, log_q, n: int):
    """q, or where there are few dimensions an even mixture of q and a wider q; and n draws from it."""
    some = draw(n, 1.0)
    if some.shape[1] > KERNELS_UP_TO:
        return (lambda x: log_q(x, 1.0)), some
    both = np.concatenate([some[: n - n // 2], draw(n // 2, WIDER)])
    return (lambda x: np.logaddexp(log_q(x, 1.0), log_q(x, WIDER)) - np.log(2.0)), both


def _kernels(so_far: Pool, n: int, rng: np.random.Generator):
    """A mixture of Gaussian kernels with the pool's mean and covariance, and n draws from it."""
    theta, weights = so_far
    d = theta.shape[1]
    width = min(0.9, (4.0 / ((d + 2.0) * 300.0)) ** (1.0 / (d + 4.0)))  # Silverman's, for about 300 effective draws
    mean = weights @ theta
    covariance = (theta - mean).T @ ((theta - mean) * weights[:, None])
    factor = np.linalg.cholesky(covariance + 1e-9 * np.diag(np.diag(covariance) + 1e-300))
    keep = np.sqrt(1.0 - width**2)
    centres = keep * so_far.resample(_CENTRES, rng) + (1.0 - keep) * mean
    root = width * factor
    inverse, log_det = np.linalg.inv(root), np.log(np.diag(root)).sum()
    white_centres = centres @ inverse.T

    def log_density(x):
        white = x @ inverse.T
        squares = (white**2).sum(1)[:, None] + (white_centres**2).sum(1) - 2.0 * white @ white_centres.T
        return logsumexp(-0.5 * squares, axis=1) - np.log(len(centres)) - log_det - 0.5 * d * np.log(2.0 * np.pi)

    return log_density, centres[rng.integers(len(centres), size=n)] + rng.normal(size=(n, d)) @ root.T
