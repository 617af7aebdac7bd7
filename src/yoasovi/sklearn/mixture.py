"""Mixtures of Gaussians."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import transforms
from scipy.linalg import solve_triangular
from scipy.special import logsumexp
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.cluster import KMeans
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from yoasovi.errors import check, positive_integer
from yoasovi.model import Params
from yoasovi.models import GaussianMixture
from yoasovi.models.arrays import one_of
from yoasovi.sklearn.common import DRAWS, EqualRows, GivenStart, Unit, filled, fit_estimator, positive, report, weighted

_UNITS = (
    "Parameters are those of standardised columns; `means_` and `covariances_` of the estimator are in the data's own units."
)
_KINDS = {"full": "full", "tied": "tied", "diag": "diagonal", "spherical": "spherical"}


class BayesianGaussianMixture(DensityMixin, BaseEstimator):
    """Gaussian mixture with a posterior over weights, means and covariances; labels are summed out.

    Parameters
    ----------
    n_components, covariance_type
        How many components; "full", "tied" (one for all components), "diag" or "spherical" (one variance each).
    weight_concentration, mean_scale
        Of the Dirichlet prior of the weights, and of the normal priors of means after standardising X.
    weight_concentration_prior_type
        "dirichlet_distribution", or "dirichlet_process": sticks broken off one after another, largest first, each a
        Beta(1, `weight_concentration`) of what is left.
    reg_covar
        What is added to the variances of every component, in X's units; the prior keeps them off 0 without it.
    n_init
        Starts, run together; the best by the ELBO is kept. The first means are those of k-means.
    warm_start
        Begin where the last `fit` ended.
    tol, max_iter, random_state
        As in `BayesianLinearRegression`.

    Attributes: `weights_` (K,), `means_` (K, p), posterior means; `covariances_`, too, (K, p, p), (p, p) if tied, (K, p) if
    diag, (K,) if spherical; `precisions_`, `precisions_cholesky_` of those covariances; `draws_`; `result_`; `lower_bound_`,
    `lower_bounds_`, `n_iter_`, `converged_`. Densities and labels are those of the posterior means.
    """

    def __init__(
        self, *, n_components=1, covariance_type="full", weight_concentration=1.0,
        weight_concentration_prior_type="dirichlet_distribution", mean_scale=2.0, reg_covar=0.0, n_init=1, warm_start=False,
        tol=0.02, max_iter=None, random_state=None, verbose=False,
    ):  # fmt: skip
        self.n_components = n_components
        self.covariance_type = covariance_type
        self.weight_concentration = weight_concentration
        self.weight_concentration_prior_type = weight_concentration_prior_type
        self.mean_scale = mean_scale
        self.reg_covar = reg_covar
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
        k, starts = self.n_components, self.n_init
        positive_integer("n_components", owner, k)
        positive_integer("n_init", owner, starts)
        one_of("covariance_type", owner, self.covariance_type, *_KINDS)
        prior, added = self.weight_concentration_prior_type, self.reg_covar
        concentration = positive(self, "weight_concentration")
        one_of("weight_concentration_prior_type", owner, prior, "dirichlet_distribution", "dirichlet_process")
        ok = isinstance(added, Real) and np.isfinite(added) and added >= 0
        check(ok, "reg_covar", owner, "a non-negative finite number", added)
        if len(X) < k:
            raise ValueError(f"Expected n_samples >= n_components but got n_components = {k}, n_samples = {len(X)}.")
        unit = Unit.of(X, True, np.ones(len(X)))
        if self.covariance_type == "spherical":  # in X's own units: one scale for all columns
            unit = replace(unit, scale=np.full(X.shape[1], np.sqrt(np.mean(unit.scale**2))))
        Z = unit.standardised(X)
        rows, weight, own = filled(len(Z), Z, np.ones(len(Z)), np.arange(len(Z)))
        model = GaussianMixture(
            rows, k, _KINDS[self.covariance_type], "marginal", "learned" if k > 1 else "equal", noise_covariance=1.0 / k,
            prior_scale=positive(self, "mean_scale"), concentration=concentration,
        )  # fmt: skip
        if prior == "dirichlet_process" and k > 1:
            model = replace(model, prior={**model.prior, "weights": sticks(k, concentration)})
        floor = np.sqrt(added) / unit.scale[: 1 if self.covariance_type == "spherical" else None]
        likelihood = FlooredSds(model.log_likelihood, tuple(floor.tolist())) if added else model.log_likelihood
        again = self.warm_start and hasattr(self, "means_") and self.means_.shape == (k, X.shape[1])
        start = self._last(unit) if again else Clusters(Z, k, self.covariance_type)
        model = replace(weighted(model, likelihood, EqualRows([rows], weight, own, len(X)), _UNITS), start=start)
        fit = fit_estimator(self, model, 1 if again else starts)
        draws = fit.sample(DRAWS, corrected=False)  # uncorrected: draws of one labelling of the components
        self._keep({**draws, "sd": np.hypot(draws["sd"], floor)}, unit)
        report(self, fit, -len(X) * np.log(unit.scale).sum())
        return self

    def _keep(self, draws, unit: Unit) -> None:
        kind, scale, sd = self.covariance_type, unit.scale, draws["sd"]
        means = unit.centre + draws["mu"] * scale
        if kind in ("full", "tied"):
            factor = sd[..., None] * draws.get("corr_factor", np.ones((1, 1)))  # one column has no correlations
            covariances = np.einsum("skij,sklj->skil", factor, factor) * np.outer(scale, scale)
        else:
            covariances = (sd * scale[: sd.shape[-1]]) ** 2
        covariances = {"tied": covariances[:, 0], "spherical": covariances[..., 0]}.get(kind, covariances)
        weights = draws.get("weights", np.ones((len(means), 1)))  # one component has no site for its weight
        self.draws_ = {"weights": weights, "means": means, "covariances": covariances}
        self.weights_, self.means_, self.covariances_ = (x.mean(0) for x in self.draws_.values())
        if kind in ("full", "tied"):
            inverse = np.linalg.inv(np.linalg.cholesky(self.covariances_))
            self.precisions_cholesky_ = np.swapaxes(inverse, -1, -2)  # upper, as scikit-learn's
            self.precisions_ = self.precisions_cholesky_ @ inverse
        else:
            self.precisions_cholesky_ = 1.0 / np.sqrt(self.covariances_)
            self.precisions_ = 1.0 / self.covariances_

    def _matrices(self) -> np.ndarray:
        """Give the covariance of every component, (K, p, p)."""
        (k, p), given = self.means_.shape, self.covariances_
        if self.covariance_type in ("full", "tied"):
            return np.broadcast_to(given, (k, p, p))
        return given.reshape(k, -1, 1) * np.eye(p)

    def _last(self, unit: Unit) -> GivenStart:
        variances = np.diagonal(self._matrices(), axis1=1, axis2=2) / unit.scale**2
        weights = {"weights": self.weights_} if len(self.weights_) > 1 else {}
        sd = _sds(variances, self.weights_, self.covariance_type)
        return GivenStart({"mu": unit.standardised(self.means_), "sd": sd, **weights})

    def _joint(self, X) -> np.ndarray:
        """Give log weight_k + log N(x | component k), shape (N, K)."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        out = np.empty((len(X), len(self.weights_)))
        for k, (mean, covariance) in enumerate(zip(self.means_, self._matrices(), strict=True)):
            factor = np.linalg.cholesky(covariance)
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
        factors = np.linalg.cholesky(self._matrices())[labels]
        noise = rng.normal(size=(n_samples, self.means_.shape[1]))
        return self.means_[labels] + np.einsum("nij,nj->ni", factors, noise), labels


@dataclass(frozen=True, eq=False)
class Clusters:
    """Start where k-means ends, each time from other seeds."""

    X: np.ndarray
    num_components: int
    covariance_type: str

    def __call__(self, key) -> Params:
        """Give means, standard deviations and weights of the clusters."""
        seed = int(np.asarray(jax.random.key_data(key)).ravel()[-1] % 2**31)
        labels = KMeans(self.num_components, n_init=1, random_state=seed).fit(self.X).labels_
        groups = [self.X[labels == k] for k in range(self.num_components)]
        groups = [g if len(g) else self.X for g in groups]  # fewer distinct rows than components
        groups.sort(key=len, reverse=True)  # as sticks are broken
        sizes = np.array([len(g) for g in groups], float)
        weights = {"weights": jnp.asarray(sizes / sizes.sum())} if len(groups) > 1 else {}  # one component has no such site
        sds = _sds(np.stack([np.maximum(g.std(0), 0.05) ** 2 for g in groups]), sizes / sizes.sum(), self.covariance_type)
        return {"mu": jnp.asarray([g.mean(0) for g in groups]), "sd": jnp.asarray(sds), **weights}


def sticks(k: int, concentration: float) -> dist.Distribution:
    """Give the law of k weights, each but the last a Beta(1, concentration) share of what those before it left."""
    offset = np.log(np.arange(k - 1, 0, -1.0))  # NumPyro's transform takes it away, for equal weights at 0
    return dist.TransformedDistribution(
        dist.Beta(1.0, concentration).expand([k - 1]).to_event(1),
        [
            transforms.SigmoidTransform().inv,
            transforms.AffineTransform(offset, 1.0),
            transforms.StickBreakingTransform(),
        ],
    )


@dataclass(frozen=True)
class FlooredSds:
    """A likelihood whose standard deviations never fall below a floor for each column."""

    log_likelihood: Callable
    floor: tuple[float, ...]

    def __call__(self, params: Params, data: Any):
        """Give one value per row, shape (N,)."""
        return self.log_likelihood({**params, "sd": jnp.hypot(params["sd"], jnp.asarray(self.floor))}, data)


def _sds(variances: np.ndarray, weights: np.ndarray, kind: str) -> np.ndarray:
    """Give the standard deviations that a kind of covariance has, from variances (K, p) of each component."""
    shared = {"tied": weights[None] @ variances, "spherical": variances.mean(1, keepdims=True)}
    return np.sqrt(shared.get(kind, variances))
