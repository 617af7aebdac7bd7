"""A second set of models that were run once, after the rules of the verdict had been changed by what `fresh.py` showed.

`MODELS` as in `ordinary.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from fresh import SAMPLE, normal


def bioassay():
    """Four doses of five animals: two parameters, skewed."""
    dose, deaths = np.array([-0.86, -0.30, -0.05, 0.73]), np.array([0, 1, 3, 5])

    def model(dose, deaths=None):
        SAMPLE("deaths", dist.Binomial(5, logits=normal("a", 5.0) + normal("b", 10.0) * dose), obs=deaths)

    return model, (dose, deaths)


def log_normal_costs():
    rng = np.random.default_rng(201)
    X = np.column_stack([rng.integers(0, 2, 80), rng.uniform(20, 70, 80)])
    y = np.exp(5 + 0.4 * X[:, 0] + 0.02 * X[:, 1] + 0.8 * rng.normal(size=80))

    def model(X, y=None):
        mean = normal("a", 10.0) + X[:, 0] * normal("treated", 2.0) + X[:, 1] * normal("age", 0.5)
        SAMPLE("y", dist.LogNormal(mean, SAMPLE("sigma", dist.Exponential(1.0))), obs=y)

    return model, (X, y)


def asymmetric_laplace():
    """A regression of the upper quartile."""
    rng = np.random.default_rng(202)
    x = rng.uniform(0, 4, 80)
    y = 1 + 0.5 * x + (0.5 + 0.2 * x) * rng.normal(size=80)

    def model(x, y=None):
        law = dist.AsymmetricLaplaceQuantile(
            normal("a", 5.0) + normal("b", 5.0) * x, SAMPLE("s", dist.HalfNormal(1.0)), 0.75
        )
        SAMPLE("y", law, obs=y)

    return model, (x, y)


def negative_binomial_groups():
    """Overdispersed counts of 18 sites over six visits, effects of sites not centred."""
    rng = np.random.default_rng(203)
    site = np.repeat(np.arange(18), 6)
    y = rng.poisson(np.exp(rng.normal(1.5, 0.5, 18))[site] * rng.gamma(3, 1 / 3, site.size))

    def model(site, y=None):
        level = normal("mu", 2.0) + SAMPLE("tau", dist.HalfNormal(1.0)) * normal("z", 1.0, 18)
        SAMPLE("y", dist.NegativeBinomial2(jnp.exp(level)[site], SAMPLE("shape", dist.Exponential(0.3))), obs=y)

    return model, (site, y)


def three_levels():
    """Pupils in classes in schools, centred at both levels."""
    rng = np.random.default_rng(204)
    school_of = np.repeat(np.arange(8), 3)
    class_of = np.repeat(np.arange(24), 5)
    y = 50 + rng.normal(0, 4, 8)[school_of][class_of] + rng.normal(0, 3, 24)[class_of] + rng.normal(0, 6, 120)

    def model(school_of, class_of, y=None):
        mu, between = SAMPLE("mu", dist.Normal(40, 30)), SAMPLE("between", dist.HalfNormal(10.0))
        within, sigma = SAMPLE("within", dist.HalfNormal(10.0)), SAMPLE("sigma", dist.HalfNormal(10.0))
        with numpyro.plate("schools", 8):
            school = SAMPLE("school", dist.Normal(mu, between))
        with numpyro.plate("classes", 24):
            room = SAMPLE("room", dist.Normal(school[school_of], within))
        SAMPLE("y", dist.Normal(room[class_of], sigma), obs=y)

    return model, (school_of, class_of, y)


def meta_analysis():
    """Log odds of events in 9 trials, treated against controls, centred."""
    rng = np.random.default_rng(205)
    size = rng.integers(30, 120, 9)
    control = rng.binomial(size, 0.2)
    treated = rng.binomial(size, 1 / (1 + np.exp(1.8 + 0.3 * rng.normal(size=9))))

    def model(size, control, treated):
        mu, tau = normal("mu", 1.0), SAMPLE("tau", dist.HalfNormal(0.5))
        with numpyro.plate("trials", 9):
            base = SAMPLE("base", dist.Normal(-1.0, 1.5))
            effect = SAMPLE("effect", dist.Normal(mu, tau))
            SAMPLE("control", dist.Binomial(size, logits=base), obs=control)
            SAMPLE("treated", dist.Binomial(size, logits=base + effect), obs=treated)

    return model, (size, control, treated)


def moving_average():
    """First-order moving average, its first shock unknown."""
    rng = np.random.default_rng(206)
    e = rng.normal(size=81)
    y = 0.5 + e[1:] + 0.6 * e[:-1]

    def model(y):
        mu, theta = normal("mu", 2.0), SAMPLE("theta", dist.Uniform(-1, 1))
        sigma, first = SAMPLE("sigma", dist.HalfNormal(2.0)), normal("first")

        def step(e, value):
            new = value - mu - theta * e
            return new, new

        errors = jax.lax.scan(step, first * sigma, y)[1]
        numpyro.factor("y", dist.Normal(0, sigma).log_prob(errors).sum())

    return model, (y,)


def seasonal():
    """Trend and two harmonics in raw units of counts per month."""
    rng = np.random.default_rng(207)
    t = np.arange(72)
    y = 300 + 1.5 * t + 40 * np.sin(2 * np.pi * t / 12) + 20 * rng.normal(size=72)
    X = np.column_stack([f(2 * np.pi * k * t / 12) for k in (1, 2) for f in (np.sin, np.cos)])

    def model(t, X, y=None):
        mean = SAMPLE("a", dist.Normal(200, 200)) + normal("trend", 5.0) * t + X @ normal("wave", 50.0, 4)
        SAMPLE("y", dist.Normal(mean, SAMPLE("sigma", dist.HalfNormal(50.0))), obs=y)

    return model, (t, X, y)


def inhomogeneous_walk():
    """A latent autoregression of log rates behind 45 counts, by its innovations."""
    rng = np.random.default_rng(208)
    h = np.zeros(45)
    for i in range(1, 45):
        h[i] = 0.8 * h[i - 1] + 0.3 * rng.normal()
    y = rng.poisson(np.exp(1.2 + h))

    def model(y):
        phi, sigma, mu = SAMPLE("phi", dist.Beta(5, 2)), SAMPLE("sigma", dist.HalfNormal(0.5)), normal("mu", 2.0)
        z = normal("z", 1.0, len(y))
        step = lambda h, e: ((h := phi * h + sigma * e), h)
        SAMPLE("y", dist.Poisson(jnp.exp(mu + jax.lax.scan(step, 0.0, z)[1])), obs=y)

    return model, (y,)


def two_inputs_process():
    """Hyperparameters of a process with a length for each of two inputs."""
    rng = np.random.default_rng(209)
    X = rng.uniform(-2, 2, (35, 2))
    y = np.sin(2 * X[:, 0]) + 0.2 * X[:, 1] + 0.2 * rng.normal(size=35)

    def model(X, y=None):
        length, size = SAMPLE("length", dist.LogNormal(0.0, 1.0).expand([2])), SAMPLE("size", dist.HalfNormal(2.0))
        noise = SAMPLE("noise", dist.HalfNormal(0.5))
        square = (((X[:, None] - X) / length) ** 2).sum(-1)
        near = size**2 * jnp.exp(-0.5 * square) + (noise**2 + 1e-6) * jnp.eye(len(X))
        SAMPLE("y", dist.MultivariateNormal(jnp.zeros(len(X)), near), obs=y)

    return model, (X, y)


def regressions_mixed():
    """Two lines, each row from one of them, labels summed out, slopes in order."""
    rng = np.random.default_rng(210)
    x = rng.normal(size=90)
    y = np.where(rng.uniform(size=90) < 0.4, 1 - 1.0 * x, -0.5 + 1.5 * x) + 0.4 * rng.normal(size=90)

    def model(x, y=None):
        share, a, sigma = SAMPLE("share", dist.Beta(2, 2)), normal("a", 2.0, 2), SAMPLE("sigma", dist.HalfNormal(1.0))
        low, more = normal("low", 2.0), SAMPLE("more", dist.HalfNormal(3.0))
        lines = a + jnp.stack([low, low + more]) * x[:, None]
        weights = dist.Categorical(probs=jnp.stack([share, 1 - share]))
        SAMPLE("y", dist.MixtureSameFamily(weights, dist.Normal(lines, sigma)), obs=y)

    return model, (x, y)


def occupancy():
    """Sites that are occupied or not, seen or not on four visits; presence summed out."""
    rng = np.random.default_rng(211)
    x = rng.normal(size=60)
    there = rng.uniform(size=60) < 1 / (1 + np.exp(-(0.2 + x)))
    y = rng.binomial(4, 0.4 * there)

    def model(x, y):
        logit = normal("a", 2.0) + normal("b", 2.0) * x
        seen = SAMPLE("seen", dist.Beta(1, 1))
        present = jax.nn.log_sigmoid(logit) + dist.Binomial(4, seen).log_prob(y)
        numpyro.factor("y", jnp.where(y > 0, present, jnp.logaddexp(present, jax.nn.log_sigmoid(-logit))))

    return model, (x, y)


def topics():
    """Shares of five categories in two populations that resemble each other."""
    rng = np.random.default_rng(212)
    y = np.stack([rng.multinomial(60, p) for p in rng.dirichlet([3, 2, 2, 1, 1], 6)])

    def model(y):
        middle = SAMPLE("middle", dist.Dirichlet(jnp.ones(5)))
        size = SAMPLE("size", dist.LogNormal(2.0, 1.0))
        with numpyro.plate("populations", len(y)):
            share = SAMPLE("share", dist.Dirichlet(middle * size + 0.5))
            SAMPLE("y", dist.Multinomial(60, share), obs=y)

    return model, (y,)


def correlated_outcomes():
    """Two outcomes on three predictors, with correlated errors."""
    rng = np.random.default_rng(213)
    X = rng.normal(size=(60, 3))
    y = X @ rng.normal(size=(3, 2)) + rng.multivariate_normal([0, 0], [[1.0, 0.5], [0.5, 0.8]], 60)

    def model(X, y=None):
        B, sd = SAMPLE("B", dist.Normal(0, 2).expand([3, 2])), SAMPLE("sd", dist.HalfNormal(2.0).expand([2]))
        root = sd[:, None] * SAMPLE("corr", dist.LKJCholesky(2, 1.0))
        SAMPLE("y", dist.MultivariateNormal(X @ B, scale_tril=root), obs=y)

    return model, (X, y)


def graded_items():
    """Four ordered answers to five questions by 30 persons."""
    rng = np.random.default_rng(214)
    latent = rng.normal(size=(30, 1)) + rng.normal(0, 0.5, 5) + rng.logistic(size=(30, 5))
    y = np.digitize(latent, [-1.5, 0.0, 1.5])

    def model(y):
        ability, shift = SAMPLE("spread", dist.HalfNormal(1.5)) * normal("z", 1.0, 30), normal("shift", 1.0, 5)
        free = dist.Normal(0, 2).expand([3]).to_event(1)
        cuts = SAMPLE("cuts", dist.TransformedDistribution(free, dist.transforms.OrderedTransform()))
        SAMPLE("y", dist.OrderedLogistic(ability[:, None] + shift, cuts), obs=y)

    return model, (y,)


def missing_values():
    """A regression with a predictor missing in 12 of 50 rows."""
    rng = np.random.default_rng(215)
    x = rng.normal(2, 1, 50)
    y = 1 + 0.8 * x + 0.5 * rng.normal(size=50)
    gone = np.arange(0, 48, 4)

    def model(x, y=None):
        m, s = normal("m", 5.0), SAMPLE("s", dist.HalfNormal(2.0))
        filled = x.at[gone].set(SAMPLE("x_missing", dist.Normal(m, s).expand([12])))
        numpyro.factor("seen", dist.Normal(m, s).log_prob(jnp.delete(x, gone)).sum())
        SAMPLE("y", dist.Normal(normal("a", 3.0) + normal("b", 3.0) * filled, SAMPLE("sigma", dist.HalfNormal(1.0))), obs=y)

    return model, (jnp.asarray(np.where(np.isin(np.arange(50), gone), 0.0, x)), y)


def decay_by_subject():
    """Drug concentrations of 8 subjects: rates of their own around a common one, not centred, log-normal errors."""
    rng = np.random.default_rng(216)
    t = np.array([0.5, 1, 2, 4, 8])
    rate = 0.3 * np.exp(0.3 * rng.normal(size=8))
    y = 10 * np.exp(-rate[:, None] * t) * np.exp(0.15 * rng.normal(size=(8, 5)))

    def model(t, y=None):
        start, mu, tau = SAMPLE("start", dist.LogNormal(2.0, 1.0)), normal("mu", 2.0), SAMPLE("tau", dist.HalfNormal(0.7))
        rate = jnp.exp(mu + tau * normal("z", 1.0, 8))
        mean = jnp.log(start) - rate[:, None] * t
        SAMPLE("y", dist.LogNormal(mean, SAMPLE("sigma", dist.HalfNormal(0.5))), obs=y)

    return model, (t, y)


def ridge():
    """Twenty-five correlated predictors on 40 rows, their scale unknown."""
    rng = np.random.default_rng(217)
    X = rng.normal(size=(40, 25)) + 0.8 * rng.normal(size=(40, 1))
    y = X @ (0.3 * rng.normal(size=25)) + rng.normal(size=40)

    def model(X, y=None):
        b = SAMPLE("tau", dist.HalfNormal(1.0)) * normal("z", 1.0, 25)
        SAMPLE("y", dist.Normal(X @ b, SAMPLE("sigma", dist.HalfNormal(2.0))), obs=y)

    return model, (X, y)


def truncated():
    """Times of which only those beyond one are known."""
    rng = np.random.default_rng(218)
    y = rng.gamma(2.0, 1.5, 200)
    y = y[y > 1][:60]

    def model(y):
        shape, rate = SAMPLE("shape", dist.LogNormal(0.5, 0.7)), SAMPLE("rate", dist.LogNormal(-0.5, 0.7))
        above = jnp.log(jax.scipy.special.gammaincc(shape, rate))
        numpyro.factor("y", dist.Gamma(shape, rate).log_prob(y).sum() - len(y) * above)

    return model, (y,)


MODELS = {
    "bioassay": (bioassay, {}, ()),
    "log-normal costs": (log_normal_costs, {}, ()),
    "upper quartile": (asymmetric_laplace, {}, ()),
    "negative binomial by site": (negative_binomial_groups, {}, ()),
    "three levels": (three_levels, {}, ()),
    "meta-analysis": (meta_analysis, {}, ("effect",)),
    "moving average": (moving_average, {}, ()),
    "seasonal counts, raw units": (seasonal, {}, ()),
    "latent autoregression": (inhomogeneous_walk, {}, ()),
    "process, two inputs": (two_inputs_process, {}, ()),
    "two lines, mixed": (regressions_mixed, {}, ()),
    "occupancy": (occupancy, {}, ()),
    "shares by population": (topics, {}, ()),
    "correlated outcomes": (correlated_outcomes, {}, ()),
    "graded items": (graded_items, {}, ()),
    "missing values": (missing_values, {}, ()),
    "decay by subject": (decay_by_subject, {}, ()),
    "ridge, unknown scale": (ridge, {}, ()),
    "truncated gamma": (truncated, {}, ()),
    "log-normal costs, mean-field": (log_normal_costs, {"family": "mean_field"}, ()),
    "ridge, mean-field": (ridge, {"family": "mean_field"}, ()),
    "graded items, mean-field": (graded_items, {"family": "mean_field"}, ()),
    "seasonal counts, ADVI": (seasonal, {"method": "advi", "max_steps": 2000}, ()),
    "three levels, ADVI": (three_levels, {"method": "advi", "max_steps": 2000}, ()),
    "two lines, the paper's method": (regressions_mixed, {"method": "yoasovi-naive"}, ()),
}
