"""Regressions of numbers and of two classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from yoasovi.errors import positive_number
from yoasovi.model import Params
from yoasovi.models import LinearRegression, LogisticRegression
from yoasovi.models.regression import predictor
from yoasovi.sklearn.common import DRAWS, Unit, filled, fit_estimator, report, weighted

_BLOCK = 1000  # rows predicted at a time


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

    Attributes: `coef_`, `intercept_`, `noise_` (posterior means), `covariance_` of (intercept, coefficients), `draws_`,
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

    def fit(self, X, y):
        """Find the posterior; X is (N, p), y (N,)."""
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True, ensure_min_samples=2)
        positive_number("noise_floor", type(self).__name__, float(self.noise_floor))
        x_unit, y_unit = Unit.of(X, self.fit_intercept), Unit.of(y[:, None], self.fit_intercept)
        rows, weight = filled(x_unit.standardised(X), y_unit.standardised(y[:, None])[:, 0])
        model = LinearRegression(
            *rows, float(self.prior_scale), intercept=bool(self.fit_intercept), noise_prior="half_cauchy",
            noise_scale=float(self.noise_scale), autoscale=False,
        )  # fmt: skip
        fit = fit_estimator(self, weighted(model, FlooredNormal(float(self.noise_floor)), weight))
        draws, scale = fit.sample(DRAWS), y_unit.scale[0]
        noise = scale * np.hypot(draws["noise"], self.noise_floor)
        _keep_line(self, draws, x_unit, y_unit.centre[0], scale)
        self.draws_["noise"] = noise
        self.noise_ = float(np.sqrt(np.mean(noise**2)))
        report(self, fit, -len(y) * np.log(scale))
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


class BayesianLogisticRegression(ClassifierMixin, BaseEstimator):
    """Logistic regression of two classes with a posterior over coefficients; probabilities are averaged over it.

    Parameters
    ----------
    prior_scale
        Of the normal priors of intercept and coefficients, after standardising X.
    fit_intercept, tol, max_iter, random_state
        As in `BayesianLinearRegression`.

    Attributes: `classes_`, `coef_`, `intercept_`, `covariance_`, `draws_`, `result_`, `lower_bound_`, `lower_bounds_`,
    `n_iter_`, `converged_`. For more than two classes use `sklearn.multiclass.OneVsRestClassifier` around it.
    """

    def __init__(
        self, *, prior_scale=2.5, fit_intercept=True, tol=0.02, max_iter=None, random_state=None, verbose=False
    ):
        self.prior_scale = prior_scale
        self.fit_intercept = fit_intercept
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state
        self.verbose = verbose

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def fit(self, X, y):
        """Find the posterior; X is (N, p), y (N,) with two labels."""
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(y)
        kind = type_of_target(y, input_name="y", raise_unknown=True)
        if kind != "binary":
            raise ValueError(f"Only binary classification is supported. The type of the target is {kind}.")
        self.classes_, labels = np.unique(column_or_1d(y, warn=True), return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y must have samples of two classes; got only one class, {self.classes_[0]!r}.")
        unit = Unit.of(X, self.fit_intercept)
        rows, weight = filled(unit.standardised(X), labels)
        model = LogisticRegression(*rows, float(self.prior_scale), intercept=bool(self.fit_intercept), autoscale=False)
        fit = fit_estimator(self, weighted(model, model.log_likelihood, weight))
        _keep_line(self, fit.sample(DRAWS), unit, 0.0, 1.0)
        report(self, fit, 0.0)
        return self

    def predict_proba(self, X, return_std=False):
        """Give P(class | X), (N, 2), averaged over the posterior; with `return_std` also the sd that the posterior gives."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        mean, sd = np.empty(len(X)), np.empty(len(X))
        for i in range(0, len(X), _BLOCK):
            each = expit(X[i : i + _BLOCK] @ self.draws_["coef"].T + self.draws_["intercept"])
            mean[i : i + _BLOCK], sd[i : i + _BLOCK] = each.mean(1), each.std(1)
        proba = np.column_stack([1.0 - mean, mean])
        return (proba, sd) if return_std else proba

    def predict_log_proba(self, X):
        """Give log P(class | X), shape (N, 2)."""
        return np.log(self.predict_proba(X))

    def predict(self, X):
        """Give the likelier class."""
        check_is_fitted(self)
        return self.classes_[(self.predict_proba(X)[:, 1] > 0.5).astype(int)]


@dataclass(frozen=True)
class FlooredNormal:
    """log N(y_i | a + x_i b, noise^2 + floor^2)."""

    floor: float

    def __call__(self, params: Params, data: Any):
        """Give one value per row, shape (N,)."""
        return dist.Normal(predictor(params, data), jnp.hypot(params["noise"], self.floor)).log_prob(data["y"])


def _keep_line(estimator, draws: dict[str, np.ndarray], unit: Unit, centre: float, scale: float) -> None:
    """Keep what is known of intercept and coefficients, in the data's own units."""
    coef = scale * draws["coefficients"] / unit.scale
    intercept = np.zeros(len(coef))
    if "intercept" in draws:
        intercept = centre + scale * draws["intercept"] - coef @ unit.centre
    estimator.draws_ = {"intercept": intercept, "coef": coef}
    estimator.coef_, estimator.intercept_ = coef.mean(0), float(intercept.mean())
    estimator.covariance_ = np.cov(np.column_stack([intercept, coef]), rowvar=False)
