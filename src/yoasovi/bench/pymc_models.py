"""The same posteriors in PyMC, as far as they are written: names, priors and unconstrained scales are those of `models`."""

from __future__ import annotations

import numpy as np
import pymc as pm


def proportions(trials, y):
    """Beta-binomial counts."""
    with pm.Model() as model:
        mean, size = pm.Beta("mean", 1, 1), pm.HalfCauchy("size", 20)
        pm.BetaBinomial("y", alpha=mean * size, beta=(1 - mean) * size, n=trials, observed=y)
    return model


def growth(days, grams):
    """Logistic growth."""
    with pm.Model() as model:
        top, width = pm.HalfNormal("top", 5000), pm.HalfNormal("width", 50)
        middle, sigma = pm.Normal("middle", 60, 60), pm.HalfNormal("sigma", 300)
        pm.Normal("y", top / (1 + np.exp(-(days - middle) / width)), sigma, observed=grams)
    return model


def counts(X, y):
    """Poisson regression."""
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 5), pm.Normal("b", 0, 1, shape=X.shape[1])
        pm.Poisson("y", np.exp(a + X @ b), observed=y)
    return model


def schools(errors, effects):
    """Eight schools, non-centred."""
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        z = pm.Normal("z", 0, 1, shape=len(effects))
        pm.Normal("y", mu + tau * z, errors, observed=effects)
    return model


def schools_centred(errors, effects):
    """Eight schools, centred."""
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        theta = pm.Normal("theta", mu, tau, shape=len(effects))
        pm.Normal("y", theta, errors, observed=effects)
    return model


def diabetes(X, y):
    """Linear regression in raw units."""
    with pm.Model() as model:
        a, b = pm.Normal("a", 0, 500), pm.Normal("b", 0, 50, shape=X.shape[1])
        sigma = pm.HalfNormal("sigma", 200)
        pm.Normal("y", a + X @ b, sigma, observed=y)
    return model


def logistic(X, y):
    """Logistic regression."""
    with pm.Model() as model:
        w = pm.Normal("w", 0, 1, shape=X.shape[1])
        pm.Bernoulli("y", logit_p=X @ w, observed=y)
    return model


def groups(names, group, x, y):
    """Varying intercepts, centred."""
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 2)
        b, sigma = pm.Normal("b", 0, 2), pm.HalfNormal("sigma", 2)
        a = pm.Normal("a", mu, tau, shape=len(names))
        pm.Normal("y", a[group] + b * x, sigma, observed=y)
    return model


def areas(y):
    """A rate for every area, non-centred."""
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 2), pm.HalfNormal("tau", 1)
        z = pm.Normal("z", 0, 1, shape=len(y))
        pm.Poisson("y", np.exp(mu + tau * z), observed=y)
    return model
