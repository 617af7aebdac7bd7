"""What the estimators share: units, rows filled up, and what is kept of a fit."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight

from yoasovi.answer.result import Fit
from yoasovi.errors import check, positive_integer, positive_number
from yoasovi.fitting import fit as fit_model
from yoasovi.model import Labels, Model, Params
from yoasovi.stopping import StopReason

DRAWS = 1000  # of the posterior, that an estimator keeps
_FEWEST_ROWS = 64


@dataclass(frozen=True)
class Unit:
    """Centre and scale of columns; a constant column keeps its scale."""

    centre: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, X: np.ndarray, centred: bool, weight: np.ndarray) -> Unit:
        """Take the mean (0 unless `centred`) and standard deviation of each column, rows counting by weight."""
        share = weight / weight.sum()
        centre = share @ X if centred else np.zeros(X.shape[1])
        scale = np.sqrt(share @ (X - centre) ** 2)
        return cls(centre, np.where(scale > 1e-12 * np.abs(X).max(0, initial=0.0), scale, 1.0))

    def standardised(self, X: np.ndarray) -> np.ndarray:
        """Give X in these units."""
        return (X - self.centre) / self.scale


def weights_of(estimator, sample_weight: Any, X: np.ndarray) -> np.ndarray:
    """Check how often each row counts; None is once."""
    weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    check(weight.sum() > 0, "sample_weight", type(estimator).__name__, "above 0 for some row", "0 for every row")
    return weight


def filled(*arrays: np.ndarray) -> list[np.ndarray]:
    """Add rows of zeros up to a power of two: to rows, and to their weights."""
    n = len(arrays[0])
    more = max(_FEWEST_ROWS, 1 << (n - 1).bit_length()) - n
    return [np.concatenate([x, np.zeros((more, *x.shape[1:]), x.dtype)]) for x in map(np.asarray, arrays)]


@dataclass(frozen=True)
class Weighted:
    """A likelihood whose rows count as often as `weight` says."""

    log_likelihood: Callable

    def __call__(self, params: Params, data: Any):
        """Give one value per row, shape (N,)."""
        return data["weight"] * self.log_likelihood(params, data["rows"])


@dataclass(frozen=True)
class RealRows:
    """The likelihood of the rows that are not filling."""

    log_likelihood: Callable
    count: int

    def __call__(self, params: Params, data: Any):
        """Give one value per row, shape (count,)."""
        return self.log_likelihood(params, data["rows"])[: self.count]


@dataclass(frozen=True, eq=False)
class GivenStart:
    """Start at one point."""

    point: dict[str, np.ndarray]

    def __call__(self, key) -> Params:
        """Give the point, whatever the key."""
        return {k: jnp.asarray(v) for k, v in self.point.items()}


def weighted(model: Model, log_likelihood: Callable, weight: np.ndarray, count: int) -> Model:
    """Give the model with this likelihood, its rows weighted; all but the first `count` are filling."""
    data = {"rows": model.data, "weight": weight}
    return replace(
        model, log_likelihood=Weighted(log_likelihood), log_marginal=RealRows(log_likelihood, count), data=data,
        labels=Labels(blocks={"y": (count,)}), predictive=None,
    )  # fmt: skip


def whole(name: str, owner: str, value: Any) -> int:
    """Take a positive integer, NumPy's too."""
    value = int(value) if isinstance(value, np.integer) else value
    positive_integer(name, owner, value)
    return value


def fit_estimator(estimator, model: Model, restarts: int = 1) -> Fit:
    """Fit as the estimator's settings say."""
    owner, limit = type(estimator).__name__, estimator.max_iter
    positive_number("tol", owner, float(estimator.tol))
    limit = None if limit is None else whole("max_iter", owner, limit)
    seed = int(check_random_state(estimator.random_state).randint(2**31 - 1))
    fit = fit_model(
        model, seed=seed, max_steps=limit, restarts=restarts, tolerance=float(estimator.tol),
        progress=None if estimator.verbose else False,
    )  # fmt: skip
    if fit.stop_reason == StopReason.INTERRUPTED:  # a search or a script is to end here, not to go on with half an answer
        raise KeyboardInterrupt
    return fit


def report(estimator, fit: Fit, log_jacobian: float) -> None:
    """Keep what is known of the fit; bounds are those of the data in its own units."""
    estimator.result_ = fit
    estimator.converged_, estimator.n_iter_ = fit.converged, fit.num_steps
    estimator.lower_bound_ = fit.elbo.value + float(log_jacobian)
    estimator.lower_bounds_ = [float(x) + float(log_jacobian) for x in fit.trace["elbo"][fit.trace["accepted"] > 0]]
    if not fit.converged:
        short = fit.stop_reason == StopReason.MAX_STEPS
        why = f"out of steps after {fit.num_steps}; raise `max_iter` or `tol`" if short else str(fit.stop_reason)
        warnings.warn(f"{type(estimator).__name__} did not converge: {why}", ConvergenceWarning, stacklevel=3)
