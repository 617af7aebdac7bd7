"""How good an approximation is: arrays in, numbers out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Estimate(NamedTuple):
    """A Monte Carlo estimate with its standard error."""

    value: float
    se: float

    def __str__(self):
        return f"{self.value:,.3f} ± {self.se:.3f}" if abs(self.value) < 1e15 else f"{self.value:.6g} ± {self.se:.2g}"


def estimate(draws: np.ndarray) -> Estimate:
    """Mean of independent draws, those that are not finite left out, with its standard error."""
    draws = np.asarray(draws, float)
    draws = draws[np.isfinite(draws)]
    if draws.size < 2:
        return Estimate(-np.inf, np.inf)
    largest = np.abs(draws).max()
    unit = 1.0 if largest < 1e150 else largest  # beyond it sums, and squares before them, would overflow
    draws = draws / unit
    return Estimate(float(draws.mean() * unit), float(draws.std(ddof=1) / np.sqrt(draws.size) * unit))


EVEN = 0.9  # share of their number that weights are worth, beyond which their tail moves nothing


class Loo(NamedTuple):
    """Leave-one-out cross-validation: expected log predictive density, its standard error, and what it rests on."""

    elpd: float
    se: float
    p_loo: float  # effective number of parameters
    elpd_i: np.ndarray  # (N,)
    khat_i: np.ndarray  # (N,); above 0.7 that observation's value is not to be trusted, unless its weights are even
    even_i: np.ndarray  # (N,); share of their number that the observation's weights are worth

    @property
    def doubtful(self) -> np.ndarray:
        """Which observations' values are not to be trusted. A tail index says nothing where weights are all but equal."""
        return (self.khat_i > 0.7) & (self.even_i < EVEN)

    def __str__(self):
        bad = int(self.doubtful.sum())
        doubt = f"; k-hat above 0.7 for {bad} of {self.khat_i.size} observations" if bad else ""
        return f"elpd {self.elpd:,.2f} ± {self.se:.2f}, p_loo {self.p_loo:.2f}{doubt}"


def importance_weights(log_ratio: np.ndarray) -> np.ndarray:
    """Normalised weights, the largest truncated at sqrt(S) times the mean (Ionides 2008)."""
    log_ratio = np.where(np.isfinite(log_ratio), log_ratio, -np.inf)
    with np.errstate(invalid="ignore"):  # where none is finite, no draw weighs anything
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
    # arviz-stats takes the negated ratios, as leave-one-out does. Equal ratios have no tail, and it divides by its size.
    with np.errstate(divide="ignore", invalid="ignore"):
        try:
            return float(stats.array_stats.psislw(-log_ratio)[1])
        except ValueError as error:
            if "All tail values are the same" not in str(error):
                raise
            return 0.0


def dic(log_likelihood: np.ndarray, at_mean: float) -> float:
    """Deviance information criterion: D_bar + p_D, p_D = D_bar - D(posterior mean).

    `log_likelihood` holds the total log likelihood of each posterior draw, `at_mean` that of the posterior mean.
    """
    deviance = -2.0 * float(np.mean(log_likelihood))
    return deviance + (deviance + 2.0 * float(at_mean))


def loo(log_likelihood: np.ndarray, log_ratio: np.ndarray) -> Loo:
    """PSIS-LOO by arviz-stats, with draws from q instead of the posterior where they are (Magnusson et al. 2019).

    `log_likelihood` is (S, N) at S draws, `log_ratio` is log p - log q there, (S,): zero for draws of the posterior.
    """
    from yoasovi.extras import need

    stats = need("arviz_stats.base", "arviz").array_stats
    terms, log_ratio = np.asarray(log_likelihood, float).T, np.asarray(log_ratio, float)
    if len(terms) < 2:
        raise ValueError("`loo` needs two observations or more: one term for all of them leaves nothing to foretell it by.")
    still = np.ptp(terms, 1) == 0.0  # masked out, or of no parameter: known whatever is left out, and no tail to smooth
    elpd_i, khat_i, p_i = terms[:, 0].copy(), np.zeros(len(terms)), np.zeros(len(terms))
    if not still.all():
        each = terms[~still, None, :]
        ratio = np.broadcast_to(log_ratio, each.shape)
        elpd_i[~still], khat_i[~still], p_i[~still] = stats.loo_approximate_posterior(each, ratio, np.zeros_like(ratio))
    elpd, se, p_loo, _ = stats.loo_summary(elpd_i, p_i)
    weights = log_ratio - terms
    weights = np.exp(weights - weights.max(1, keepdims=True))
    even = weights.sum(1) ** 2 / (weights**2).sum(1) / weights.shape[1]
    return Loo(float(elpd), float(se), float(p_loo), elpd_i, khat_i, even)


def gap(log_ratio: np.ndarray) -> Estimate:
    """How far the ELBO is below the evidence, as far as draws from q can tell: log mean p/q - mean log p/q.

    In expectation it is below the true distance, KL(q || p). The error is the delta method's.
    """
    log_ratio = np.asarray(log_ratio, float)
    log_ratio = log_ratio[np.isfinite(log_ratio)]
    top = log_ratio.max()
    raw = np.exp(log_ratio - top)
    influence = raw / raw.mean() - log_ratio
    value = np.log(raw.mean()) + top - log_ratio.mean()
    return Estimate(float(value), float(influence.std(ddof=1) / np.sqrt(log_ratio.size)))


class Pairwise(NamedTuple):
    """An estimate for each pair of parameters, with its standard error."""

    value: np.ndarray  # (d, d)
    error: np.ndarray  # (d, d)

    @property
    def z(self) -> np.ndarray:
        return self.value / np.maximum(self.error, 1e-12)


def missed_correlations(eps: np.ndarray, white: np.ndarray) -> Pairwise:
    """Partial correlations that q misses: E[dw_i/deps_j] by Stein's lemma, symmetric, zero diagonal.

    In q's own units the target's precision is I - B, so for a mean-field q the off-diagonal of B is the target's partial
    correlation itself.
    """
    both = _stein(white, eps)
    value = 0.5 * (both.value + both.value.T)
    error = 0.5 * (both.error + both.error.T)  # the two halves are far from independent
    np.fill_diagonal(value, 0.0)
    return Pairwise(value, error)


def changing_scales(eps: np.ndarray, white: np.ndarray) -> Pairwise:
    """By how much one sd of parameter i changes the precision of parameter j: entry (i, j) = -E[d h_jj/d eps_i].

    By Stein's lemma it is the mean of w_j eps_j eps_i. A funnel has it large off the diagonal; the diagonal is skewness.
    Scores are cut at several times their median size: in a funnel's neck they have no variance.
    """
    size = np.median(np.abs(white), 0)
    cut = np.clip(white, -8.0 * size, 8.0 * size)
    even = _stein(cut * eps, eps)
    return Pairwise(even.value.T, even.error.T)


def _stein(x: np.ndarray, eps: np.ndarray) -> Pairwise:
    """Means of x_i eps_j over mirrored pairs of draws, and their standard errors."""
    n = len(x)
    first, second = x[0::2], x[1::2]
    half = 0.5 * (first - second)  # mirrored: eps changes sign
    value = half.T @ eps[0::2] / (n // 2)
    square = (half**2).T @ eps[0::2] ** 2 / (n // 2)
    error = np.sqrt(np.maximum(square - value**2, 0.0) / max(n // 2 - 1, 1))
    return Pairwise(value, error)


class Agreement(NamedTuple):
    """How many of several restarts found the best ELBO, and how far below it the median one ended."""

    best: int
    total: int
    behind: float


def agreement(elbos: list[Estimate], within: float = 0.1) -> Agreement:
    """Compare restarts by the ELBOs they reached; `within` is in nats, on top of two standard errors."""
    values = np.array([e.value for e in elbos])
    top = elbos[int(np.argmax(values))]
    slack = within + 2.0 * np.hypot([e.se for e in elbos], top.se)
    return Agreement(int((values >= top.value - slack).sum()), len(elbos), float(top.value - np.median(values)))
