"""Mixtures of Gaussians."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_triangular
from scipy.special import logsumexp
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.cluster import KMeans
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from yoasovi.errors import check
from yoasovi.model import Params
from yoasovi.models import GaussianMixture
from yoasovi.sklearn.common import DRAWS, EqualRows, GivenStart, Unit, filled, fit_estimator, report, weighted, whole


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
    `precisions_`, `precisions_cholesky_` of those covariances;
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
        owner = type(self).__name__
        k, starts = whole("n_components", owner, self.n_components), whole("n_init", owner, self.n_init)
        check(self.covariance_type in ("full", "diag"), "covariance_type", owner, "'full' or 'diag'", self.covariance_type)
        if len(X) < k:
            raise ValueError(f"Expected n_samples >= n_components but got n_components = {k}, n_samples = {len(X)}.")
        unit = Unit.of(X, True, np.ones(len(X)))
        Z = unit.standardised(X)
        rows, weight, own = filled(len(Z), Z, np.ones(len(Z)), np.arange(len(Z)))
        kind = "full" if self.covariance_type == "full" else "diagonal"
        model = GaussianMixture(
            rows, k, kind, "marginal", "learned" if k > 1 else "equal", prior_scale=float(self.mean_scale),
            noise_covariance=1.0 / k, concentration=float(self.weight_concentration),
        )  # fmt: skip
        again = self.warm_start and hasattr(self, "means_") and self.means_.shape == (k, X.shape[1])
        start = self._last(unit) if again else Clusters(Z, k)
        model = replace(weighted(model, model.log_likelihood, EqualRows([rows], weight, own, len(X))), start=start)
        fit = fit_estimator(self, model, 1 if again else starts)
        self._keep(fit.sample(DRAWS, corrected=False), unit)  # uncorrected: draws of one labelling of the components
        report(self, fit, -len(X) * np.log(unit.scale).sum())
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
        weights = draws.get("weights", np.ones((len(means), 1)))  # one component has no site for its weight
        self.draws_ = {"weights": weights, "means": means, "covariances": covariances}
        self.weights_, self.means_, self.covariances_ = (x.mean(0) for x in self.draws_.values())
        if self.covariance_type == "full":
            inverse = np.linalg.inv(np.linalg.cholesky(self.covariances_))
            self.precisions_cholesky_ = np.swapaxes(inverse, -1, -2)  # upper, as scikit-learn's
            self.precisions_ = self.precisions_cholesky_ @ inverse
        else:
            self.precisions_cholesky_ = 1.0 / np.sqrt(self.covariances_)
            self.precisions_ = 1.0 / self.covariances_

    def _last(self, unit: Unit) -> GivenStart:
        spread = np.diagonal(self.covariances_, axis1=1, axis2=2) if self.covariance_type == "full" else self.covariances_
        weights = {"weights": self.weights_} if len(self.weights_) > 1 else {}
        return GivenStart({"mu": unit.standardised(self.means_), "sd": np.sqrt(spread) / unit.scale, **weights})

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
        n_samples = whole("n_samples", type(self).__name__, n_samples)
        rng = np.random.default_rng(check_random_state(self.random_state).randint(2**31 - 1))
        labels = np.repeat(np.arange(len(self.weights_)), rng.multinomial(n_samples, self.weights_ / self.weights_.sum()))
        full = [c if c.ndim == 2 else np.diag(c) for c in self.covariances_]
        factors = np.linalg.cholesky(np.stack(full))[labels]
        noise = rng.normal(size=(n_samples, self.means_.shape[1]))
        return self.means_[labels] + np.einsum("nij,nj->ni", factors, noise), labels


@dataclass(frozen=True, eq=False)
class Clusters:
    """Start where k-means ends, each time from other seeds."""

    X: np.ndarray
    num_components: int

    def __call__(self, key) -> Params:
        """Give means, standard deviations and weights of the clusters."""
        seed = int(np.asarray(jax.random.key_data(key)).ravel()[-1] % 2**31)
        labels = KMeans(self.num_components, n_init=1, random_state=seed).fit(self.X).labels_
        groups = [self.X[labels == k] for k in range(self.num_components)]
        groups = [g if len(g) else self.X for g in groups]  # fewer distinct rows than components
        sizes = np.array([len(g) for g in groups], float)
        weights = {"weights": jnp.asarray(sizes / sizes.sum())} if len(groups) > 1 else {}  # one component has no such site
        sds = jnp.asarray([np.maximum(g.std(0), 0.05) for g in groups])
        return {"mu": jnp.asarray([g.mean(0) for g in groups]), "sd": sds, **weights}
