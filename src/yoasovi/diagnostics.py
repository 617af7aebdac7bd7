"""How good an approximation is: arrays in, numbers out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Estimate(NamedTuple):
    """A Monte Carlo estimate with its standard error."""

    value: float
    se: float

    def __str__(self):
        return f"{self.value:,.3f} ± {self.se:.3f}"


def estimate(draws: np.ndarray) -> Estimate:
    """Mean of independent draws, those that are not finite left out, with its standard error."""
    draws = np.asarray(draws, float)
    draws = draws[np.isfinite(draws)]
    if draws.size < 2:
        return Estimate(-np.inf, np.inf)
    return Estimate(float(draws.mean()), float(draws.std(ddof=1) / np.sqrt(draws.size)))


def importance_weights(log_ratio: np.ndarray) -> np.ndarray:
    """Normalised weights, the largest truncated at sqrt(S) times the mean (Ionides 2008)."""
    log_ratio = np.where(np.isfinite(log_ratio), log_ratio, -np.inf)
    weights = np.exp(log_ratio - log_ratio.max())
    weights = np.minimum(weights, weights.mean() * np.sqrt(weights.size))
    return weights / weights.sum()


def effective_size(weights: np.ndarray) -> float:
    """Kish's effective number of draws behind normalised weights."""
    return float(1.0 / np.sum(np.asarray(weights) ** 2))


def pareto_khat(log_ratio: np.ndarray) -> float:
    """Tail index of the importance ratios p/q (Vehtari et al. 2024), by arviz-stats; below 0.7 they can be trusted."""
    from yoasovi.extras import need

    stats = need("arviz_stats.base", "arviz")
    log_ratio = np.asarray(log_ratio, float)
    log_ratio = log_ratio[np.isfinite(log_ratio)]
    # arviz-stats takes the negated ratios, as leave-one-out does.
    return float(stats.array_stats.psislw(-log_ratio)[1])


def dic(log_likelihood: np.ndarray, at_mean: float) -> float:
    """Deviance information criterion: D_bar + p_D, p_D = D_bar - D(posterior mean).

    `log_likelihood` holds the total log likelihood of each posterior draw, `at_mean` that of the posterior mean.
    """
    deviance = -2.0 * float(np.mean(log_likelihood))
    return deviance + (deviance + 2.0 * float(at_mean))
