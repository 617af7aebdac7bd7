"""Regressions: linear, logistic and Poisson, with independent normal priors on intercept and coefficients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from scipy.special import gammaln

from yoasovi.errors import check, positive_number
from yoasovi.model import Model, Params
from yoasovi.models.arrays import by_name, design, numbers, one_of, positive

NOISE_PRIORS = {"half_normal": dist.HalfNormal, "half_cauchy": dist.HalfCauchy}


def LinearRegression(
    X: Any,
    y: Any,
    prior_scale: float = 10.0,
    *,
    intercept: bool = True,
    noise_prior: str = "half_cauchy",
    noise_scale: float = 10.0,
) -> Model:
    """Linear regression: y_i ~ N(a + x_i b, noise^2), a and b_j ~ N(0, prior_scale^2), in the units of the data.

    Parameters
    ----------
    X, y
        Shapes (N, p) and (N,).
    noise_prior, noise_scale
        "half_normal" or "half_cauchy", and its scale: the prior of the noise's standard deviation.

    Sites: `intercept` (unless it is False), `coefficients` (p,), `noise`.
    """
    owner = "LinearRegression"
    X, y = design(owner, X, y)
    one_of("noise_prior", owner, noise_prior, *NOISE_PRIORS)
    positive_number("noise_scale", owner, noise_scale)
    prior = _priors(owner, X, prior_scale, intercept) | {"noise": NOISE_PRIORS[noise_prior](float(noise_scale))}
    begin = {"intercept": float(y.mean()), "noise": float(y.std()) or float(noise_scale)}
    return _regression("linear regression", prior, normal_likelihood, normal_law, {"X": X, "y": y}, begin)


def LogisticRegression(X: Any, y: Any, prior_scale: float = 2.5, *, intercept: bool = True) -> Model:
    """Logistic regression: P(y_i = 1) = 1/(1 + exp(-(a + x_i b))), a and b_j ~ N(0, prior_scale^2).

    `X` is (N, p), in units that suit the prior (standardised columns do); `y` is (N,), 0 or 1.
    Sites: `intercept` (unless it is False), `coefficients` (p,).
    """
    owner = "LogisticRegression"
    X, y = design(owner, X, y)
    check(np.isin(y, (0.0, 1.0)).all(), "y", owner, "0 or 1", f"values {np.unique(y)[:6]}")
    prior = _priors(owner, X, prior_scale, intercept)
    return _regression("logistic regression", prior, bernoulli_likelihood, bernoulli_law, {"X": X, "y": y})


def PoissonRegression(X: Any, y: Any, prior_scale: float = 2.5, *, exposure: Any = 1.0, intercept: bool = True) -> Model:
    """Poisson regression: y_i ~ Poisson(exposure_i exp(a + x_i b)), a and b_j ~ N(0, prior_scale^2).

    `X` is (N, p), `y` (N,) counts, `exposure` one positive number or (N,).
    Sites: `intercept` (unless it is False), `coefficients` (p,).
    """
    owner = "PoissonRegression"
    X, y = design(owner, X, y)
    whole = (y >= 0) & (y == np.round(y))
    check(whole.all(), "y", owner, "non-negative integers", f"values such as {y[~whole][:3]}")
    exposure = positive("exposure", owner, exposure, y.shape)
    data = {"X": X, "y": y, "log_exposure": np.log(exposure), "log_factorial": gammaln(y + 1.0)}
    begin = {"intercept": float(np.log((y.sum() + 0.5) / exposure.sum()))}
    prior = _priors(owner, X, prior_scale, intercept)
    return _regression("poisson regression", prior, poisson_likelihood, poisson_law, data, begin)


def predictor(params: Params, X: jax.Array) -> jax.Array:
    """Give a + X b, shape (N,)."""
    return X @ params["coefficients"] + params.get("intercept", 0.0)


def normal_likelihood(params: Params, data: Any) -> jax.Array:
    """Give log N(y_i | a + x_i b, noise^2)."""
    return dist.Normal(predictor(params, data["X"]), params["noise"]).log_prob(data["y"])


def normal_law(params: Params, data: Any) -> dist.Distribution:
    """Give N(a + x_i b, noise^2)."""
    return dist.Normal(predictor(params, data["X"]), params["noise"])


def bernoulli_likelihood(params: Params, data: Any) -> jax.Array:
    """Give y_i log p_i + (1 - y_i) log(1 - p_i), stable for large predictors."""
    eta = predictor(params, data["X"])
    return data["y"] * eta - jax.nn.softplus(eta)


def bernoulli_law(params: Params, data: Any) -> dist.Distribution:
    """Give the law of y_i, 0 or 1."""
    return dist.Bernoulli(logits=predictor(params, data["X"]))


def poisson_law(params: Params, data: Any) -> dist.Distribution:
    """Give the law of counts."""
    return dist.Poisson(jnp.exp(predictor(params, data["X"]) + data["log_exposure"]))


def poisson_likelihood(params: Params, data: Any) -> jax.Array:
    """Give y_i log rate_i - rate_i - log y_i!."""
    eta = predictor(params, data["X"]) + data["log_exposure"]
    return data["y"] * eta - jnp.exp(eta) - data["log_factorial"]


@dataclass(frozen=True)
class RowDraw:
    """Draws y_i from its law at x_i."""

    law: Callable[[Params, Any], dist.Distribution]
    columns: int
    exposed: bool = False  # whether rows have an exposure, 1 where none is given

    def __call__(self, key: jax.Array, params: Params, data: Any) -> jax.Array:
        """Give new observations, shape (N,)."""
        return self.law(params, data).sample(key)

    def read(self, given: Any, fitted: Any) -> dict[str, np.ndarray]:
        """Take X, or a dict with it, in place of the data of the fit."""
        given = by_name(given, "X", *(("exposure",) if self.exposed else ()))
        X = numbers("data['X']", "predict", given["X"], 2)
        check(X.shape[1] == self.columns, "data['X']", "predict", f"of shape (N, {self.columns})", f"shape {X.shape}")
        exposure = positive("data['exposure']", "predict", given.get("exposure", 1.0), X.shape[:1])
        return {"X": X, **({"log_exposure": np.log(exposure)} if self.exposed else {})}


@dataclass(frozen=True)
class RegressionStart:
    """A start that does not depend on chance; sites not named begin at the prior's centre."""

    point: tuple[tuple[str, float], ...]

    def __call__(self, key: jax.Array) -> Params:
        """Give the point, whatever the key."""
        return {k: jnp.asarray(v) for k, v in self.point}


def _priors(owner: str, X: np.ndarray, prior_scale: float, intercept: bool) -> dict[str, dist.Distribution]:
    positive_number("prior_scale", owner, prior_scale)
    check(isinstance(intercept, bool), "intercept", owner, "True or False", intercept)
    p, scale = X.shape[1], float(prior_scale)
    coefficients = {"coefficients": dist.Normal(np.zeros(p), np.full(p, scale)).to_event(1)}
    return ({"intercept": dist.Normal(0.0, scale)} if intercept else {}) | coefficients


def _regression(
    name: str, prior: dict, likelihood: Callable, law: Callable, data: dict, begin: dict[str, float] | None = None
) -> Model:
    given = {k: v for k, v in (begin or {}).items() if k in prior}
    start = RegressionStart(tuple(given.items())) if given else None
    predictive = RowDraw(law, data["X"].shape[1], "log_exposure" in data)
    return Model(prior=prior, log_likelihood=likelihood, predictive=predictive, data=data, name=name, start=start)
