"""Regressions of numbers, counts and classes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from scipy.sparse import issparse
from scipy.special import expit, logit, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import d2_tweedie_score
from sklearn.utils import column_or_1d
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from yoasovi.errors import check
from yoasovi.model import Params
from yoasovi.models import LinearRegression, LogisticRegression
from yoasovi.models.regression import predictor, quasi_poisson, softmax_regression
from yoasovi.sklearn.common import DRAWS, GivenStart, Unit, fit_estimator, positive, prepared, report, weighted, weights_of

_BLOCK = 1000  # rows predicted at a time
_UNITS = "Parameters are those of standardised {}; `coef_` and `intercept_` of the estimator are in the data's own units."
_NOTHING = 1e-9  # the unit of a y that does not vary, as a share of it


class BayesianLinearRegression(RegressorMixin, BaseEstimator):
    """Linear regression with a posterior over coefficients and noise.

    Parameters
    ----------
    prior_scale, noise_scale
        Of the normal priors of coefficients and the half-Cauchy prior of the noise, after standardising X and y.
    fit_intercept
        Whether there is an intercept.
    noise_floor
        The noise's standard deviation never falls below this share of y's: an exact fit has no posterior otherwise.
    tol, max_iter
        Nats that a step must promise, and most steps; None is the method's own limit.
    random_state
        The same number gives the same answer.

    Attributes: `coef_` (p,), `intercept_`, `noise_` (posterior means), `covariance_` of (intercept, coefficients), `draws_`,
    `result_` (the `Fit`), `lower_bound_`, `lower_bounds_`, `n_iter_`, `converged_`.
    """

    def __init__(
        self, *, prior_scale=2.5, noise_scale=1.0, fit_intercept=True, noise_floor=1e-3, tol=0.02, max_iter=None,
        random_state=None, verbose=False,
    ):  # fmt: skip
        self.prior_scale = prior_scale
        self.noise_scale = noise_scale
        self.fit_intercept = fit_intercept
        self.noise_floor = noise_floor
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X, y, sample_weight=None):
        """Find the posterior; X is (N, p), y (N,). A row of weight w counts as w rows."""
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2)
        scales = positive(self, "prior_scale"), positive(self, "noise_scale"), positive(self, "noise_floor")
        weight = weights_of(self, sample_weight, X)
        rows = prepared(weight, X, y)
        x_unit, y_unit = (Unit.of(x.reshape(len(x), -1), self.fit_intercept, rows.weight) for x in rows.arrays)
        if np.ptp(y) == 0.0 and self.fit_intercept:  # the intercept is all there is: nothing is left to spread
            y_unit = replace(y_unit, scale=np.full(1, _NOTHING * max(abs(y[0]), 1.0)))
        table = x_unit.standardised(rows.arrays[0]), (rows.arrays[1] - y_unit.centre) / y_unit.scale
        model = LinearRegression(
            *table, scales[0], intercept=bool(self.fit_intercept), noise_prior="half_cauchy", noise_scale=scales[1],
            autoscale=False,
        )  # fmt: skip
        model = weighted(model, FlooredNormal(scales[2]), rows, _UNITS.format("columns and y"))
        model = replace(model, start=GivenStart(_best_line(*table, rows.weight, bool(self.fit_intercept), *scales)))
        fit = fit_estimator(self, model)
        draws, scale = fit.sample(DRAWS), y_unit.scale[0]
        noise = scale * np.hypot(draws["noise"], scales[2])
        _keep_line(self, draws, x_unit, y_unit.centre[0], scale)
        self.draws_["noise"] = noise
        self.noise_ = float(np.sqrt(np.mean(noise**2)))
        report(self, fit, -weight.sum() * np.log(scale))
        return self

    def predict(self, X, return_std=False):
        """Give the posterior mean of y at X; with `return_std` also the predictive standard deviation, noise included."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        mean = X @ self.coef_ + self.intercept_
        if not return_std:
            return mean
        whole = np.column_stack([np.ones(len(X)), X])
        return mean, np.sqrt(np.einsum("ni,ij,nj->n", whole, self.covariance_, whole) + self.noise_**2)


class BayesianPoissonRegression(RegressorMixin, BaseEstimator):
    """Poisson regression with a posterior over coefficients: the rate of y is exp(intercept + x coefficients).

    Parameters
    ----------
    prior_scale
        Of the normal priors of coefficients, after standardising X, and of the log rate about that of the mean of y.
    fit_intercept, tol, max_iter, random_state
        As in `BayesianLinearRegression`.

    Sparse matrices are written out. For rates y = count / exposure give `sample_weight=exposure`, as in scikit-learn.

    Attributes: `coef_` (p,), `intercept_`, `covariance_`, `draws_`, `result_`, `lower_bound_`, `lower_bounds_`, `n_iter_`,
    `converged_`.
    """

    def __init__(self, *, prior_scale=2.5, fit_intercept=True, tol=0.02, max_iter=None, random_state=None, verbose=False):
        self.prior_scale = prior_scale
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = tags.input_tags.sparse = True
        return tags

    def fit(self, X, y, sample_weight=None):
        """Find the posterior; X is (N, p), y (N,) and not negative. A row of weight w counts as w rows."""
        X, y = validate_data(self, X, y, accept_sparse=True, dtype=np.float64, y_numeric=True, ensure_min_samples=2)
        X = _dense(X)
        owner, weight, scale = type(self).__name__, weights_of(self, sample_weight, X), positive(self, "prior_scale")
        check(y.min() >= 0, "y", owner, "non-negative", float(y.min()))
        check(weight @ y > 0, "y", owner, "above 0 in some row of positive weight", "none")
        rows = prepared(weight, X, y)
        x, y = rows.arrays
        unit, rate = Unit.of(x, self.fit_intercept, rows.weight), rows.weight @ y / rows.weight.sum()
        base = float(rate) if self.fit_intercept else 1.0  # the intercept's prior is about the mean's log rate
        model = quasi_poisson(unit.standardised(x), y, scale, base, bool(self.fit_intercept), False)
        # The filling counts in the model's own start, so that it would depend on the number of rows.
        model = replace(model, start=None)
        fit = fit_estimator(self, weighted(model, model.log_likelihood, rows, _UNITS.format("columns")))
        _keep_line(self, fit.sample(DRAWS), unit, float(np.log(base)), 1.0)
        report(self, fit, 0.0)
        return self

    def predict(self, X):
        """Give the posterior mean of the rate at X."""
        check_is_fitted(self)
        X = _dense(validate_data(self, X, accept_sparse=True, dtype=np.float64, reset=False))
        return np.concatenate([np.exp(x).mean(1) for x in _lines(self, X)])

    def score(self, X, y, sample_weight=None):
        """Give the share of deviance that is explained, D^2."""
        return float(d2_tweedie_score(y, self.predict(X), sample_weight=sample_weight, power=1))


class BayesianLogisticRegression(ClassifierMixin, BaseEstimator):
    """Logistic regression of two or more classes with a posterior over coefficients; probabilities are averaged over it.

    Parameters
    ----------
    prior_scale
        Of the normal priors of intercepts and coefficients, after standardising X.
    class_weight
        None, "balanced", or a dict from class to weight; multiplies `sample_weight`.
    fit_intercept, tol, max_iter, random_state
        As in `BayesianLinearRegression`.

    Sparse matrices are written out.

    Attributes: `classes_`; `coef_` (1, p) and `intercept_` (1,), or (K, p) and (K,) for K > 2 classes, which then sum to 0
    over classes; `covariance_` of (intercept, coefficients), one per row of `coef_`; `draws_`, `result_`, `lower_bound_`,
    `lower_bounds_`, `n_iter_`, `converged_`.
    """

    def __init__(
        self, *, prior_scale=2.5, class_weight=None, fit_intercept=True, tol=0.02, max_iter=None, random_state=None,
        verbose=False,
    ):  # fmt: skip
        self.prior_scale = prior_scale
        self.class_weight = class_weight
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def fit(self, X, y, sample_weight=None):
        """Find the posterior; X is (N, p), y (N,) labels. A row of weight w counts as w rows."""
        X, y = validate_data(self, X, y, accept_sparse=True, dtype=np.float64, ensure_min_samples=2)
        X = _dense(X)
        check_classification_targets(y)
        y = column_or_1d(y, warn=True)
        weight, scale = weights_of(self, sample_weight, X), positive(self, "prior_scale")
        self.classes_, labels = np.unique(y, return_inverse=True)
        weight = weight * compute_sample_weight(self.class_weight, y)
        seen = np.unique(labels[weight > 0])
        if len(seen) < 2:
            only = self.classes_[seen[0]] if len(seen) else None
            raise ValueError(f"y must have samples of two classes or more; got only one class, {only!r}.")
        rows = prepared(weight, X, labels)
        unit, intercept = Unit.of(rows.arrays[0], self.fit_intercept, rows.weight), bool(self.fit_intercept)
        table = unit.standardised(rows.arrays[0]), rows.arrays[1]
        if len(self.classes_) == 2:
            model = LogisticRegression(*table, scale, intercept=intercept, autoscale=False)
        else:
            model = softmax_regression(*table, scale, intercept)
        fit = fit_estimator(self, weighted(model, model.log_likelihood, rows, _UNITS.format("columns")))
        draws = fit.sample(DRAWS)
        if len(self.classes_) > 2:  # what all classes share says nothing
            draws = {k: np.moveaxis(v - v.mean(-1, keepdims=True), -1, 1) for k, v in draws.items()}
        _keep_line(self, draws, unit, 0.0, 1.0)
        self.coef_, self.intercept_ = np.atleast_2d(self.coef_), np.atleast_1d(self.intercept_)
        report(self, fit, 0.0)
        return self

    def predict_proba(self, X, return_std=False):
        """Give P(class | X), (N, K), averaged over the posterior; with `return_std` also the sd that the posterior gives.

        The sd is that of the second class, (N,), where there are two; else (N, K).
        """
        check_is_fitted(self)
        X = _dense(validate_data(self, X, accept_sparse=True, dtype=np.float64, reset=False))
        two = len(self.classes_) == 2
        each = [expit(eta) if two else softmax(eta, axis=-1) for eta in _lines(self, X)]
        mean = np.concatenate([p.mean(1) for p in each])
        proba = np.column_stack([1.0 - mean, mean]) if two else mean
        return (proba, np.concatenate([p.std(1) for p in each])) if return_std else proba

    def predict_log_proba(self, X):
        """Give log P(class | X), shape (N, K)."""
        return np.log(self.predict_proba(X))

    def decision_function(self, X):
        """Give the log odds of the second class, (N,), or log P(class | X), (N, K): of averaged probabilities."""
        proba = self.predict_proba(X)
        return logit(proba[:, 1]) if proba.shape[1] == 2 else np.log(proba)

    def predict(self, X):
        """Give the likeliest class."""
        best = self.predict_proba(X).argmax(1)
        return self.classes_[best]


def _dense(X: Any) -> np.ndarray:
    """Write sparse matrices out: columns that are centred have no zeros left."""
    return X.toarray() if issparse(X) else X


@dataclass(frozen=True)
class FlooredNormal:
    """log N(y_i | a + x_i b, noise^2 + floor^2)."""

    floor: float

    def __call__(self, params: Params, data: Any):
        """Give one value per row, shape (N,)."""
        return dist.Normal(predictor(params, data), jnp.hypot(params["noise"], self.floor)).log_prob(data["y"])


def _best_line(X, y, weight, intercept: bool, scale: float, noise_scale: float, floor: float) -> dict[str, np.ndarray]:
    """Give the noise that is likeliest with the coefficients integrated out, and their mean given it.

    Where there are as many columns as rows, or columns that others add up to, an approach by steps is long.
    """
    whole = np.column_stack([np.ones(len(X)), X]) if intercept else X
    left, size, right = np.linalg.svd(np.sqrt(weight)[:, None] * whole, full_matrices=False)
    target = np.sqrt(weight) * y
    inside = left.T @ target
    noise = np.geomspace(1e-6, 10.0, 400)
    variance = (noise**2 + floor**2)[:, None]
    total = variance + (scale * size) ** 2
    misfit = max(target @ target - inside @ inside, 0.0) / variance[:, 0] + np.sum(inside**2 / total, 1)
    volume = weight.sum() * np.log(variance[:, 0]) + np.sum(np.log(total / variance), 1)
    prior = np.log(noise) - np.log1p((noise / noise_scale) ** 2)  # half-Cauchy, on the log scale
    best = np.argmax(prior - 0.5 * (misfit + volume))
    found = right.T @ (scale**2 * size * inside / total[best])
    line = {"intercept": found[0], "coefficients": found[1:]} if intercept else {"coefficients": found}
    return {**line, "noise": noise[best]}


def _keep_line(estimator, draws: dict[str, np.ndarray], unit: Unit, centre: float, scale: float) -> None:
    """Keep what is known of intercept and coefficients, in the data's own units; columns are the last axis."""
    coef = scale * draws["coefficients"] / unit.scale
    intercept = np.zeros(coef.shape[:-1])
    if "intercept" in draws:
        intercept = centre + scale * draws["intercept"] - coef @ unit.centre
    estimator.draws_ = {"intercept": intercept, "coef": coef}
    estimator.coef_ = coef.mean(0)
    estimator.intercept_ = intercept.mean(0) if intercept.ndim > 1 else float(intercept.mean())
    whole = np.concatenate([intercept[..., None], coef], -1)
    off = whole - whole.mean(0)
    estimator.covariance_ = np.einsum("s...i,s...j->...ij", off, off) / (len(off) - 1)


def _lines(estimator, X: np.ndarray):
    """Give intercept + x coefficients for each draw, (rows, draws) or (rows, draws, K), some rows at a time."""
    coef, intercept = estimator.draws_["coef"], estimator.draws_["intercept"]
    for i in range(0, len(X), _BLOCK):
        yield np.einsum("np,s...p->ns...", X[i : i + _BLOCK], coef, optimize=True) + intercept
