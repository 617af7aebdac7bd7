"""The models of the posteriors, as a NumPyro user would write them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro import sample


def proportions(trials, y):
    """Beta-binomial counts: a mean and a concentration."""
    mean, size = sample("mean", dist.Beta(1.0, 1.0)), sample("size", dist.HalfCauchy(20.0))
    sample("y", dist.BetaBinomial(mean * size, (1 - mean) * size, trials), obs=y)


def process(x, y):
    """A Gaussian process with its function summed out."""
    length, size = sample("length", dist.InverseGamma(5.0, 5.0)), sample("size", dist.HalfNormal(2.0))
    noise = sample("noise", dist.HalfNormal(1.0))
    near = _near(x, length, size) + (noise**2 + 1e-6) * jnp.eye(len(x))
    sample("y", dist.MultivariateNormal(jnp.zeros(len(x)), near), obs=y)


def latent_counts(x, y):
    """Counts around a latent Gaussian process."""
    length, size = sample("length", dist.InverseGamma(3.0, 1.0)), sample("size", dist.HalfNormal(1.0))
    z, level = sample("z", dist.Normal(0, 1).expand([len(x)])), sample("level", dist.Normal(0, 2))
    root = jnp.linalg.cholesky(_near(x, length, size) + 1e-5 * jnp.eye(len(x)))
    sample("y", dist.Poisson(jnp.exp(level + root @ z)), obs=y)


def _near(x, length, size):
    return size**2 * jnp.exp(-0.5 * (x[:, None] - x) ** 2 / length**2)


def growth(days, grams):
    """Logistic growth; the scales of the four parameters differ by a factor of a hundred."""
    top, width = sample("top", dist.HalfNormal(5000.0)), sample("width", dist.HalfNormal(50.0))
    middle, sigma = sample("middle", dist.Normal(60, 60)), sample("sigma", dist.HalfNormal(300.0))
    sample("y", dist.Normal(top / (1 + jnp.exp(-(days - middle) / width)), sigma), obs=grams)


def two_normals(y):
    """Two normal components in order."""
    share, sigma = sample("share", dist.Beta(2.0, 2.0)), sample("sigma", dist.HalfNormal(2.0))
    low, apart = sample("low", dist.Normal(0, 3)), sample("apart", dist.HalfNormal(4.0))
    weights = dist.Categorical(probs=jnp.stack([share, 1 - share]))
    sample("y", dist.MixtureSameFamily(weights, dist.Normal(jnp.stack([low, low + apart]), sigma)), obs=y)


def counts(X, y):
    """Poisson regression."""
    a, b = sample("a", dist.Normal(0, 5)), sample("b", dist.Normal(0, 1).expand([X.shape[1]]))
    sample("y", dist.Poisson(jnp.exp(a + X @ b)), obs=y)


def schools(errors, effects):
    """Eight schools, non-centred."""
    mu, tau = sample("mu", dist.Normal(0, 5)), sample("tau", dist.HalfCauchy(5.0))
    z = sample("z", dist.Normal(0, 1).expand([len(effects)]))
    sample("y", dist.Normal(mu + tau * z, errors), obs=effects)


def schools_centred(errors, effects):
    """Eight schools, centred."""
    mu, tau = sample("mu", dist.Normal(0, 5)), sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", len(effects)):
        theta = sample("theta", dist.Normal(mu, tau))
        sample("y", dist.Normal(theta, errors), obs=effects)


def diabetes(X, y):
    """Linear regression with weak priors in the units of the data."""
    a, b = sample("a", dist.Normal(0, 500)), sample("b", dist.Normal(0, 50).expand([X.shape[1]]))
    sigma = sample("sigma", dist.HalfNormal(200.0))
    sample("y", dist.Normal(a + X @ b, sigma), obs=y)


def logistic(X, y):
    """Logistic regression."""
    w = sample("w", dist.Normal(0, 1).expand([X.shape[1]]))
    sample("y", dist.Bernoulli(logits=X @ w), obs=y)


def softmax(kinds, X, y):
    """Multinomial regression with coefficients for every kind."""
    w = sample("w", dist.Normal(0, 1).expand([X.shape[1], len(kinds)]))
    sample("y", dist.Categorical(logits=X @ w), obs=y)


def groups(names, group, x, y):
    """Varying intercepts, centred."""
    mu, tau = sample("mu", dist.Normal(0, 5)), sample("tau", dist.HalfNormal(2.0))
    b, sigma = sample("b", dist.Normal(0, 2)), sample("sigma", dist.HalfNormal(2.0))
    with numpyro.plate("groups", len(names)):
        a = sample("a", dist.Normal(mu, tau))
    sample("y", dist.Normal(a[group] + b * x, sigma), obs=y)


def volatility(y):
    """Log volatility is an autoregression of innovations."""
    phi, sigma = sample("phi", dist.Uniform(-1.0, 1.0)), sample("sigma", dist.HalfNormal(0.5))
    mu, z = sample("mu", dist.Normal(0, 2)), sample("z", dist.Normal(0, 1).expand([len(y)]))

    def step(h, e):
        h = phi * h + sigma * e
        return h, h

    h = mu + jax.lax.scan(step, jnp.zeros_like(mu), z)[1]
    sample("y", dist.Normal(0, jnp.exp(h / 2)), obs=y)


def network(X, y):
    """Five hidden units, one output."""
    first = sample("first", dist.Normal(0, 1).expand([X.shape[1] + 1, 5]))
    last, sigma = sample("last", dist.Normal(0, 1).expand([5])), sample("sigma", dist.HalfNormal(1.0))
    hidden = jnp.tanh(X @ first[1:] + first[0])
    output = hidden @ last
    numpyro.deterministic("output", output[:20])
    sample("y", dist.Normal(output, sigma), obs=y)


def areas(y):
    """A rate for every area, non-centred."""
    mu, tau = sample("mu", dist.Normal(0, 2)), sample("tau", dist.HalfNormal(1.0))
    z = sample("z", dist.Normal(0, 1).expand([len(y)]))
    sample("y", dist.Poisson(jnp.exp(mu + tau * z)), obs=y)
