"""What the estimators share: units, rows filled up, and what is kept of a fit."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

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


class EqualRows(NamedTuple):
    """Distinct rows in a fixed order, filled up with zeros; those of weight 0 last."""

    arrays: list[np.ndarray]
    weight: np.ndarray
    own: np.ndarray  # for each of the user's rows, its place here
    given: int  # how many rows the user gave


def prepared(weight: np.ndarray, *arrays: np.ndarray) -> EqualRows:
    """Merge equal rows, so that a weight and as many repeated rows give the same answer to the last digit, and fill up."""
    own = np.unique(np.column_stack(arrays), axis=0, return_inverse=True)[1].ravel()
    total = np.bincount(own, weight)
    place = np.argsort(np.argsort(total == 0, kind="stable"))
    own = place[own]
    first = np.unique(own, return_index=True)[1]
    *out, counts, places = filled(len(own), *(x[first] for x in arrays), np.bincount(own, weight), own)
    return EqualRows(out, counts, places, len(own))


def filled(rows: int, *arrays: np.ndarray) -> list[np.ndarray]:
    """Add rows of zeros up to a power of two that has room for so many rows."""
    length = max(_FEWEST_ROWS, 1 << (rows - 1).bit_length())
    return [np.concatenate([x, np.zeros((length - len(x), *x.shape[1:]), x.dtype)]) for x in arrays]


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
        return self.log_likelihood(params, data["rows"])[data["own"][: self.count]]


@dataclass(frozen=True, eq=False)
class GivenStart:
    """Start at one point."""

    point: dict[str, np.ndarray]

    def __call__(self, key) -> Params:
        """Give the point, whatever the key."""
        return {k: jnp.asarray(v) for k, v in self.point.items()}


def weighted(model: Model, log_likelihood: Callable, rows: EqualRows, units: str) -> Model:
    """Give the model with this likelihood, its rows weighted; `units` says in what units its parameters are."""
    data, count = {"rows": model.data, "weight": rows.weight, "own": rows.own}, rows.given
    return replace(
        model, log_likelihood=Weighted(log_likelihood), log_marginal=RealRows(log_likelihood, count), data=data,
        labels=Labels(blocks={"y": (count,)}, notes=(units,)), predictive=None,
    )  # fmt: skip


def positive(estimator, name: str) -> float:
    """Take a setting that is a positive number."""
    value = getattr(estimator, name)
    positive_number(name, type(estimator).__name__, value)
    return float(value)


def fit_estimator(estimator, model: Model, restarts: int = 1) -> Fit:
    """Fit as the estimator's settings say."""
    owner, limit = type(estimator).__name__, estimator.max_iter
    tolerance = positive(estimator, "tol")
    if limit is not None:
        positive_integer("max_iter", owner, limit)
    seed = int(check_random_state(estimator.random_state).randint(2**31 - 1))
    fit = fit_model(
        model, seed=seed, max_steps=limit, restarts=restarts, tolerance=tolerance,
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
