"""scikit-learn estimators: the ready-made models with `fit`, `predict` and the rest, for pipelines and searches.

Columns are standardised, so that priors mean the same in any unit, and what is learned is given in the data's own units.
Rows are filled up to a power of two with weight 0: a search fits many data sets of nearly equal size, and compiles once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from scipy.linalg import solve_triangular
from scipy.special import expit, logsumexp

from yoasovi.errors import check, positive_integer, positive_number
from yoasovi.extras import need
from yoasovi.fitting import fit as fit_model
from yoasovi.model import Model, Params
from yoasovi.models import GaussianMixture, LinearRegression, LogisticRegression
from yoasovi.models.regression import predictor
from yoasovi.result import Fit
from yoasovi.stopping import StopReason

need("sklearn", "sklearn")

from sklearn.base import BaseEstimator, ClassifierMixin, DensityMixin, RegressorMixin  # noqa: E402
from sklearn.cluster import KMeans  # noqa: E402
from sklearn.exceptions import ConvergenceWarning  # noqa: E402
from sklearn.utils import check_random_state, column_or_1d  # noqa: E402
from sklearn.utils.multiclass import check_classification_targets, type_of_target  # noqa: E402
from sklearn.utils.validation import check_is_fitted, validate_data  # noqa: E402

__all__ = ["BayesianGaussianMixture", "BayesianLinearRegression", "BayesianLogisticRegression"]

_FEWEST_ROWS = 64
_DRAWS = 1000
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
        rows, weight = _filled(x_unit.standardised(X), y_unit.standardised(y[:, None])[:, 0])
        model = LinearRegression(
            *rows, float(self.prior_scale), intercept=bool(self.fit_intercept), noise_scale=float(self.noise_scale)
        )
        fit = _fit(self, _weighted(model, FlooredNormal(float(self.noise_floor)), weight))
        draws, scale = fit.sample(_DRAWS), y_unit.scale[0]
        noise = scale * np.hypot(draws["noise"], self.noise_floor)
        _keep_line(self, draws, x_unit, y_unit.centre[0], scale)
        self.draws_["noise"] = noise
        self.noise_ = float(np.sqrt(np.mean(noise**2)))
        _report(self, fit, -len(y) * np.log(scale))
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
        rows, weight = _filled(unit.standardised(X), labels)
        model = LogisticRegression(*rows, float(self.prior_scale), intercept=bool(self.fit_intercept))
        fit = _fit(self, _weighted(model, model.log_likelihood, weight))
        _keep_line(self, fit.sample(_DRAWS), unit, 0.0, 1.0)
        _report(self, fit, 0.0)
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


class BayesianGaussianMixture(DensityMixin, BaseEstimator):
    """Gaussian mixture with a posterior over weights, means and covariances; labels are summed out.

    Parameters
    ----------
    n_components, covariance_type
        How many components; "full" or "diag".
    weight_concentration, mean_scale
        Of the Dirichlet prior of the weights, and of the normal priors of means after standardising X.
    n_init
        Starts, run together; the best by the ELBO is kept. The first means are those of k-means.
    warm_start
        Begin where the last `fit` ended.
    tol, max_iter, random_state
        As in `BayesianLinearRegression`.

    Attributes: `weights_` (K,), `means_` (K, p), `covariances_` (K, p, p) or (K, p), posterior means; `draws_`; `result_`;
    `lower_bound_`, `lower_bounds_`, `n_iter_`, `converged_`. Densities and labels are those of the posterior means.
    """

    def __init__(
        self, *, n_components=1, covariance_type="full", weight_concentration=1.0, mean_scale=2.0, n_init=1,
        warm_start=False, tol=0.02, max_iter=None, random_state=None, verbose=False,
    ):  # fmt: skip
        self.n_components = n_components
        self.covariance_type = covariance_type
        self.weight_concentration = weight_concentration
        self.mean_scale = mean_scale
        self.n_init = n_init
        self.warm_start = warm_start
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X, y=None):
        """Find the posterior; X is (N, p)."""
        X = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        k, owner = int(self.n_components), type(self).__name__
        positive_integer("n_components", owner, k)
        positive_integer("n_init", owner, int(self.n_init))
        check(self.covariance_type in ("full", "diag"), "covariance_type", owner, "'full' or 'diag'", self.covariance_type)
        if len(X) < k:
            raise ValueError(f"Expected n_samples >= n_components but got n_components = {k}, n_samples = {len(X)}.")
        unit = Unit.of(X, True)
        Z = unit.standardised(X)
        (rows,), weight = _filled(Z)
        kind = "full" if self.covariance_type == "full" else "diagonal"
        model = GaussianMixture(
            rows, k, kind, "marginal", "learned", prior_scale=float(self.mean_scale), noise_covariance=1.0 / k,
            concentration=float(self.weight_concentration),
        )  # fmt: skip
        again = self.warm_start and hasattr(self, "means_") and self.means_.shape == (k, X.shape[1])
        start = self._last(unit) if again else Clusters(Z, k)
        model = replace(_weighted(model, model.log_likelihood, weight), start=start)
        fit = _fit(self, model, 1 if again else int(self.n_init))
        self._keep(fit.sample(_DRAWS, corrected=False), unit)  # uncorrected: draws of one labelling of the components
        _report(self, fit, -len(X) * np.log(unit.scale).sum())
        return self

    def _keep(self, draws, unit: Unit) -> None:
        factor = draws["sd"][..., None] * draws["corr_factor"] if "corr_factor" in draws else None
        scale = unit.scale
        means = unit.centre + draws["mu"] * scale
        if factor is None:
            covariances = (draws["sd"] * scale) ** 2
        else:
            covariances = np.einsum("skij,sklj->skil", factor, factor) * np.outer(scale, scale)
        if self.covariance_type == "full" and covariances.ndim == 3:
            covariances = covariances[..., None]  # one column: a variance is a matrix
        self.draws_ = {"weights": draws["weights"], "means": means, "covariances": covariances}
        self.weights_, self.means_, self.covariances_ = (x.mean(0) for x in self.draws_.values())

    def _last(self, unit: Unit) -> Given:
        spread = np.diagonal(self.covariances_, axis1=1, axis2=2) if self.covariance_type == "full" else self.covariances_
        return Given({
            "mu": unit.standardised(self.means_), "sd": np.sqrt(spread) / unit.scale, "weights": self.weights_,
        })  # fmt: skip

    def _joint(self, X) -> np.ndarray:
        """Give log weight_k + log N(x | component k), shape (N, K)."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        out = np.empty((len(X), len(self.weights_)))
        for k, (mean, covariance) in enumerate(zip(self.means_, self.covariances_, strict=True)):
            factor = np.linalg.cholesky(covariance if covariance.ndim == 2 else np.diag(covariance))
            white = solve_triangular(factor, (X - mean).T, lower=True)
            out[:, k] = -0.5 * np.sum(white**2, 0) - np.log(np.diag(factor)).sum() - 0.5 * len(mean) * np.log(2.0 * np.pi)
        return out + np.log(self.weights_)

    def score_samples(self, X):
        """Give the log density of each row."""
        return logsumexp(self._joint(X), axis=1)

    def score(self, X, y=None):
        """Give the mean log density of the rows."""
        return float(self.score_samples(X).mean())

    def predict_proba(self, X):
        """Give the probability of each component, shape (N, K)."""
        joint = self._joint(X)
        return np.exp(joint - logsumexp(joint, axis=1, keepdims=True))

    def predict(self, X):
        """Give the likeliest component of each row."""
        return self._joint(X).argmax(1)

    def fit_predict(self, X, y=None):
        """Fit, and give the likeliest component of each row."""
        return self.fit(X).predict(X)

    def sample(self, n_samples=1):
        """Draw rows from the mixture; also the component of each."""
        check_is_fitted(self)
        positive_integer("n_samples", type(self).__name__, n_samples)
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31 - 1))
        labels = np.repeat(np.arange(len(self.weights_)), rng.multinomial(n_samples, self.weights_ / self.weights_.sum()))
        full = [c if c.ndim == 2 else np.diag(c) for c in self.covariances_]
        factors = np.linalg.cholesky(np.stack(full))[labels]
        noise = rng.normal(size=(n_samples, self.means_.shape[1]))
        return self.means_[labels] + np.einsum("nij,nj->ni", factors, noise), labels


# ---- models ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Weighted:
    """A likelihood whose rows count as often as `weight` says."""

    log_likelihood: Callable

    def __call__(self, params: Params, data: Any):
        """Give one value per row, shape (N,)."""
        return data["weight"] * self.log_likelihood(params, data["rows"])


@dataclass(frozen=True)
class FlooredNormal:
    """log N(y_i | a + x_i b, noise^2 + floor^2)."""

    floor: float

    def __call__(self, params: Params, data: Any):
        """Give one value per row, shape (N,)."""
        return dist.Normal(predictor(params, data["X"]), jnp.hypot(params["noise"], self.floor)).log_prob(data["y"])


def _weighted(model: Model, log_likelihood: Callable, weight: np.ndarray) -> Model:
    return replace(model, log_likelihood=Weighted(log_likelihood), data={"rows": model.data, "weight": weight})


@dataclass(frozen=True, eq=False)
class Clusters:
    """Start where k-means ends, each time from other seeds."""

    X: np.ndarray
    num_components: int

    def __call__(self, key) -> Params:
        """Give means, standard deviations and weights of the clusters."""
        from jax.random import key_data

        seed = int(np.asarray(key_data(key)).ravel()[-1] % 2**31)
        labels = KMeans(self.num_components, n_init=1, random_state=seed).fit(self.X).labels_
        groups = [self.X[labels == k] for k in range(self.num_components)]
        groups = [g if len(g) else self.X for g in groups]  # fewer distinct rows than components
        sizes = np.array([len(g) for g in groups], float)
        return {
            "mu": jnp.asarray([g.mean(0) for g in groups]), "sd": jnp.asarray([np.maximum(g.std(0), 0.05) for g in groups]),
            "weights": jnp.asarray(sizes / sizes.sum()),
        }  # fmt: skip


@dataclass(frozen=True, eq=False)
class Given:
    """Start at one point."""

    point: dict[str, np.ndarray]

    def __call__(self, key) -> Params:
        """Give the point, whatever the key."""
        return {k: jnp.asarray(v) for k, v in self.point.items()}


# ---- around a fit ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unit:
    """Centre and scale of columns; a constant column keeps its scale."""

    centre: np.ndarray
    scale: np.ndarray

    @classmethod
    def of(cls, X: np.ndarray, centred: bool) -> Unit:
        """Take the mean (0 unless `centred`) and standard deviation of each column."""
        scale = X.std(0) if centred else np.sqrt(np.mean(X**2, 0))
        centre = X.mean(0) if centred else np.zeros(X.shape[1])
        return cls(centre, np.where(scale > 1e-12 * np.abs(X).max(0, initial=0.0), scale, 1.0))

    def standardised(self, X: np.ndarray) -> np.ndarray:
        """Give X in these units."""
        return (X - self.centre) / self.scale


def _filled(*arrays: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """Add rows of zeros up to a power of two; also each row's weight, 1 or 0."""
    n = len(arrays[0])
    more = max(_FEWEST_ROWS, 1 << (n - 1).bit_length()) - n
    fill = lambda x: np.concatenate([x, np.zeros((more, *x.shape[1:]), x.dtype)])
    return [fill(np.asarray(x)) for x in arrays], np.concatenate([np.ones(n), np.zeros(more)])


def _fit(estimator, model: Model, restarts: int = 1) -> Fit:
    owner, limit = type(estimator).__name__, estimator.max_iter
    positive_number("tol", owner, float(estimator.tol))
    if limit is not None:
        limit = int(limit)
        positive_integer("max_iter", owner, limit)
    seed = int(check_random_state(estimator.random_state).randint(2**31 - 1))
    return fit_model(
        model, seed=seed, max_steps=limit, restarts=restarts, tolerance=float(estimator.tol),
        progress=None if estimator.verbose else False,
    )  # fmt: skip


def _keep_line(estimator, draws: dict[str, np.ndarray], unit: Unit, centre: float, scale: float) -> None:
    """Keep what is known of intercept and coefficients, in the data's own units."""
    coef = scale * draws["coefficients"] / unit.scale
    intercept = np.zeros(len(coef))
    if "intercept" in draws:
        intercept = centre + scale * draws["intercept"] - coef @ unit.centre
    estimator.draws_ = {"intercept": intercept, "coef": coef}
    estimator.coef_, estimator.intercept_ = coef.mean(0), float(intercept.mean())
    estimator.covariance_ = np.cov(np.column_stack([intercept, coef]), rowvar=False)


def _report(estimator, fit: Fit, log_jacobian: float) -> None:
    """Keep what is known of the fit; bounds are those of the data in its own units."""
    estimator.result_ = fit
    estimator.converged_, estimator.n_iter_ = fit.converged, fit.num_steps
    estimator.lower_bound_ = fit.elbo.value + float(log_jacobian)
    estimator.lower_bounds_ = [float(x) + float(log_jacobian) for x in fit.trace["elbo"][fit.trace["accepted"] > 0]]
    if not fit.converged:
        short = fit.stop_reason == StopReason.MAX_STEPS
        why = f"out of steps after {fit.num_steps}; raise `max_iter` or `tol`" if short else str(fit.stop_reason)
        warnings.warn(f"{type(estimator).__name__} did not converge: {why}", ConvergenceWarning, stacklevel=3)
