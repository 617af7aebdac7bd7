"""Ordinary models with simulated data, as a NumPyro user would write them, and what NUTS says of their posteriors.

`MODELS` maps names to functions that give `(model, args)`; `truth(name, folder)` gives means and sds by site from a long run
of NumPyro's NUTS, made once and kept in `folder`. Where a model is hard for NUTS as written (centred hierarchies), the
reference run uses NumPyro's own reparameterisation of the same posterior.
"""

import json
from pathlib import Path

import fresh
import held_out
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.handlers import reparam
from numpyro.infer import MCMC, NUTS
from numpyro.infer.reparam import LocScaleReparam


def linear(n=50, d=5):
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n, d))
    y = 1.0 + X @ rng.normal(size=d) + rng.normal(size=n)

    def model(X, y=None):
        a, b = numpyro.sample("a", dist.Normal(0, 5)), numpyro.sample("b", dist.Normal(0, 2).expand([X.shape[1]]))
        sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
        numpyro.sample("y", dist.Normal(a + X @ b, sigma), obs=y)

    return model, (X, y)


def linear_raw():
    """Predictors in raw units, one of them nearly the sum of two others."""
    rng = np.random.default_rng(2)
    age, bmi = rng.uniform(20, 80, 80), rng.normal(27, 4, 80)
    X = np.stack([age, bmi, 2 * bmi + 0.5 * age + rng.normal(0, 5, 80)], 1)
    y = 120 + 0.8 * age + 1.5 * bmi + rng.normal(0, 15, 80)

    def model(X, y=None):
        a, b = numpyro.sample("a", dist.Normal(0, 300)), numpyro.sample("b", dist.Normal(0, 20).expand([3]))
        sigma = numpyro.sample("sigma", dist.Exponential(0.05))
        numpyro.sample("y", dist.Normal(a + X @ b, sigma), obs=y)

    return model, (X, y)


def robust():
    """Student-t regression with outliers and unknown degrees of freedom."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=60)
    y = 1 + 2 * x + rng.standard_t(2.5, size=60)

    def model(x, y=None):
        a, b = numpyro.sample("a", dist.Normal(0, 5)), numpyro.sample("b", dist.Normal(0, 5))
        sigma, nu = numpyro.sample("sigma", dist.HalfNormal(2.0)), numpyro.sample("nu", dist.Gamma(2.0, 0.1))
        numpyro.sample("y", dist.StudentT(nu, a + b * x, sigma), obs=y)

    return model, (x, y)


def logistic(n=200, d=8, seed=4):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = (rng.uniform(size=n) < 1 / (1 + np.exp(-X @ rng.normal(size=d)))).astype(int)

    def model(X, y=None):
        a, b = numpyro.sample("a", dist.Normal(0, 2.5)), numpyro.sample("b", dist.Normal(0, 2.5).expand([X.shape[1]]))
        numpyro.sample("y", dist.Bernoulli(logits=a + X @ b), obs=y)

    return model, (X, y)


def logistic_small():
    """Thirty rows, nearly separated: a skewed posterior."""
    return logistic(30, 4, 5)


def logistic_wide():
    """Forty predictors."""
    return logistic(300, 40, 6)


def poisson(n=100, d=4, level=1.0, seed=7):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    y = rng.poisson(np.exp(level + 0.3 * X @ rng.normal(size=d)))

    def model(X, y=None):
        a, b = numpyro.sample("a", dist.Normal(0, 5)), numpyro.sample("b", dist.Normal(0, 1).expand([X.shape[1]]))
        numpyro.sample("y", dist.Poisson(jnp.exp(a + X @ b)), obs=y)

    return model, (X, y)


def poisson_rare():
    """Few events."""
    return poisson(30, 3, -1.5, 8)


def negative_binomial():
    rng = np.random.default_rng(9)
    x = rng.normal(size=120)
    mean = np.exp(1 + 0.5 * x)
    y = rng.poisson(mean * rng.gamma(1.5, 1 / 1.5, size=120))

    def model(x, y=None):
        a, b = numpyro.sample("a", dist.Normal(0, 5)), numpyro.sample("b", dist.Normal(0, 2))
        shape = numpyro.sample("shape", dist.Exponential(0.5))
        numpyro.sample("y", dist.NegativeBinomial2(jnp.exp(a + b * x), shape), obs=y)

    return model, (x, y)


def zero_inflated():
    rng = np.random.default_rng(10)
    x = rng.normal(size=100)
    y = rng.poisson(np.exp(0.7 + 0.4 * x)) * (rng.uniform(size=100) > 0.35)

    def model(x, y=None):
        a, b = numpyro.sample("a", dist.Normal(0, 3)), numpyro.sample("b", dist.Normal(0, 2))
        gate = numpyro.sample("gate", dist.Beta(1, 1))
        numpyro.sample("y", dist.ZeroInflatedPoisson(gate, jnp.exp(a + b * x)), obs=y)

    return model, (x, y)


def beta_binomial():
    """Overdispersed proportions: a mean and a concentration."""
    rng = np.random.default_rng(11)
    trials = rng.integers(5, 40, size=40)
    y = rng.binomial(trials, rng.beta(2, 6, size=40))

    def model(trials, y=None):
        mean = numpyro.sample("mean", dist.Beta(1, 1))
        size = numpyro.sample("size", dist.HalfCauchy(20.0))
        numpyro.sample("y", dist.BetaBinomial(mean * size, (1 - mean) * size, trials), obs=y)

    return model, (trials, y)


def ordinal():
    rng = np.random.default_rng(12)
    x = rng.normal(size=150)
    y = np.digitize(1.2 * x + rng.logistic(size=150), [-1.5, 0.0, 2.0])

    def model(x, y=None):
        b = numpyro.sample("b", dist.Normal(0, 2))
        free = dist.Normal(0, 3).expand([3]).to_event(1)
        cuts = numpyro.sample("cuts", dist.TransformedDistribution(free, dist.transforms.OrderedTransform()))
        numpyro.sample("y", dist.OrderedLogistic(b * x, cuts), obs=y)

    return model, (x, y)


def weibull():
    """Survival times, a third of them censored."""
    rng = np.random.default_rng(13)
    x = rng.normal(size=90)
    t = np.exp(1 - 0.5 * x) * rng.weibull(1.5, size=90)
    end = rng.uniform(1, 8, size=90)
    seen = t < end

    def model(x, t, seen):
        a, b = numpyro.sample("a", dist.Normal(0, 3)), numpyro.sample("b", dist.Normal(0, 2))
        shape = numpyro.sample("shape", dist.LogNormal(0, 1))
        scale = jnp.exp(a + b * x)
        numpyro.factor("event", jnp.where(seen, dist.Weibull(scale, shape).log_prob(t), -((t / scale) ** shape)))

    return model, (x, np.minimum(t, end), seen)


def growth_curve():
    """Logistic growth with three parameters, strongly correlated."""
    rng = np.random.default_rng(14)
    t = np.linspace(0, 6, 25)
    y = 10 / (1 + np.exp(-1.2 * (t - 4.0))) + rng.normal(0, 0.4, 25)

    def model(t, y=None):
        top, rate = numpyro.sample("top", dist.LogNormal(2, 1)), numpyro.sample("rate", dist.LogNormal(0, 1))
        middle, sigma = numpyro.sample("middle", dist.Normal(3, 3)), numpyro.sample("sigma", dist.HalfNormal(1.0))
        numpyro.sample("y", dist.Normal(top / (1 + jnp.exp(-rate * (t - middle))), sigma), obs=y)

    return model, (t, y)


def autoregression():
    rng = np.random.default_rng(15)
    y = np.zeros(120)
    for i in range(2, 120):
        y[i] = 0.3 + 0.6 * y[i - 1] + 0.2 * y[i - 2] + rng.normal(0, 0.5)

    def model(y):
        c = numpyro.sample("c", dist.Normal(0, 2))
        phi = numpyro.sample("phi", dist.Normal(0, 1).expand([2]))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
        numpyro.sample("y", dist.Normal(c + phi[0] * y[1:-1] + phi[1] * y[:-2], sigma), obs=y[2:])

    return model, (y,)


def gaussian_process():
    """Hyperparameters of a Gaussian process, the function summed out."""
    rng = np.random.default_rng(16)
    x = np.sort(rng.uniform(-3, 3, 30))
    y = np.sin(2 * x) + 0.3 * rng.normal(size=30)

    def model(x, y=None):
        length, size = numpyro.sample("length", dist.InverseGamma(5, 5)), numpyro.sample("size", dist.HalfNormal(2.0))
        noise = numpyro.sample("noise", dist.HalfNormal(1.0))
        near = size**2 * jnp.exp(-0.5 * (x[:, None] - x) ** 2 / length**2) + (noise**2 + 1e-6) * jnp.eye(len(x))
        numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(len(x)), near), obs=y)

    return model, (x, y)


def latent_process():
    """Counts around a latent Gaussian process at 20 places."""
    rng = np.random.default_rng(17)
    x = np.linspace(0, 1, 20)
    y = rng.poisson(np.exp(1 + np.sin(5 * x)))

    def model(x, y=None):
        length, size = numpyro.sample("length", dist.InverseGamma(3, 1)), numpyro.sample("size", dist.HalfNormal(1.0))
        near = size**2 * jnp.exp(-0.5 * (x[:, None] - x) ** 2 / length**2) + 1e-5 * jnp.eye(len(x))
        z = numpyro.sample("z", dist.Normal(0, 1).expand([len(x)]))
        level = numpyro.sample("level", dist.Normal(0, 2))
        numpyro.sample("y", dist.Poisson(jnp.exp(level + jnp.linalg.cholesky(near) @ z)), obs=y)

    return model, (x, y)


def mixture():
    """Two normal components in order, labels summed out."""
    rng = np.random.default_rng(18)
    y = np.concatenate([rng.normal(-1.5, 0.8, 60), rng.normal(1.8, 0.8, 90)])

    def model(y):
        share = numpyro.sample("share", dist.Beta(2, 2))
        low, apart = numpyro.sample("low", dist.Normal(0, 3)), numpyro.sample("apart", dist.HalfNormal(4.0))
        sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
        parts = dist.Normal(jnp.stack([low, low + apart]), sigma)
        weights = dist.Categorical(probs=jnp.stack([share, 1 - share]))
        numpyro.sample("y", dist.MixtureSameFamily(weights, parts), obs=y)

    return model, (y,)


def mixture_overlapping():
    """The same with components that overlap: skewed and bent."""
    model, _ = mixture()
    rng = np.random.default_rng(19)
    return model, (np.concatenate([rng.normal(-0.8, 1.0, 50), rng.normal(1.2, 1.0, 50)]),)


EFFECTS, ERRORS = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


def eight_schools():
    """Non-centred."""

    def model(errors, effects=None):
        mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5.0))
        z = numpyro.sample("z", dist.Normal(0, 1).expand([8]))
        numpyro.sample("y", dist.Normal(mu + tau * z, errors), obs=effects)

    return model, (ERRORS, EFFECTS)


def eight_schools_centred():
    def model(errors, effects=None):
        mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5.0))
        with numpyro.plate("schools", 8):
            theta = numpyro.sample("theta", dist.Normal(mu, tau))
            numpyro.sample("y", dist.Normal(theta, errors), obs=effects)

    return model, (ERRORS, EFFECTS)


def varying_intercepts(groups=20, each=10, seed=20):
    """Centred, with enough data per group."""
    rng = np.random.default_rng(seed)
    group = np.repeat(np.arange(groups), each)
    x = rng.normal(size=group.size)
    y = rng.normal(1, 0.8, groups)[group] + 0.5 * x + rng.normal(size=group.size)

    def model(group, x, y=None):
        mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfNormal(2.0))
        b, sigma = numpyro.sample("b", dist.Normal(0, 2)), numpyro.sample("sigma", dist.HalfNormal(2.0))
        with numpyro.plate("groups", groups):
            a = numpyro.sample("a", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(a[group] + b * x, sigma), obs=y)

    return model, (group, x, y)


def varying_intercepts_many():
    """Forty groups of three: 44 parameters."""
    return varying_intercepts(40, 3, 21)


def multilevel_logistic():
    """Non-centred intercepts of 30 groups of 8."""
    rng = np.random.default_rng(22)
    group = np.repeat(np.arange(30), 8)
    x = rng.normal(size=240)
    y = (rng.uniform(size=240) < 1 / (1 + np.exp(-(0.3 + rng.normal(0, 0.7, 30)[group] + x)))).astype(int)

    def model(group, x, y=None):
        mu, b = numpyro.sample("mu", dist.Normal(0, 2)), numpyro.sample("b", dist.Normal(0, 2))
        tau = numpyro.sample("tau", dist.HalfNormal(1.0))
        z = numpyro.sample("z", dist.Normal(0, 1).expand([30]))
        numpyro.sample("y", dist.Bernoulli(logits=mu + tau * z[group] + b * x), obs=y)

    return model, (group, x, y)


def rasch():
    """Item response with one difficulty per item: 25 persons, 12 items."""
    rng = np.random.default_rng(23)
    y = (rng.uniform(size=(25, 12)) < 1 / (1 + np.exp(-(rng.normal(size=(25, 1)) - rng.normal(size=12))))).astype(int)

    def model(y):
        spread = numpyro.sample("spread", dist.HalfNormal(1.5))
        ability = numpyro.sample("ability", dist.Normal(0, 1).expand([25]))
        hard = numpyro.sample("hard", dist.Normal(0, 2).expand([12]))
        numpyro.sample("y", dist.Bernoulli(logits=spread * ability[:, None] - hard), obs=y)

    return model, (y,)


def item_response():
    """Two parameters per item, 40 persons, 15 items: 71 parameters."""
    rng = np.random.default_rng(27)
    slope, hard = np.exp(0.5 * rng.normal(size=15)), rng.normal(size=15)
    y = (rng.uniform(size=(40, 15)) < 1 / (1 + np.exp(-slope * (rng.normal(size=(40, 1)) - hard)))).astype(int)

    def model(y):
        spread = numpyro.sample("spread", dist.HalfCauchy(2.0))
        ability = numpyro.sample("ability", dist.Normal(0, 1).expand([40]))
        slope = numpyro.sample("slope", dist.LogNormal(0.5, 1).expand([15]))
        hard = numpyro.sample("hard", dist.Normal(0, 5).expand([15]))
        numpyro.sample("y", dist.Bernoulli(logits=slope * (ability[:, None] - spread * hard)), obs=y)

    return model, (y,)


def volatility():
    """Stochastic volatility of 60 returns, an autoregression of innovations."""
    rng = np.random.default_rng(24)
    h = np.zeros(60)
    for i in range(1, 60):
        h[i] = 0.95 * h[i - 1] + 0.25 * rng.normal()
    y = np.exp(h / 2) * rng.normal(size=60)

    def model(y):
        phi, sigma = numpyro.sample("phi", dist.Uniform(-1, 1)), numpyro.sample("sigma", dist.HalfNormal(0.5))
        mu = numpyro.sample("mu", dist.Normal(0, 2))
        z = numpyro.sample("z", dist.Normal(0, 1).expand([len(y)]))
        step = lambda h, e: ((h := phi * h + sigma * e), h)
        h = mu + jax.lax.scan(step, 0.0, z)[1]
        numpyro.sample("y", dist.Normal(0, jnp.exp(h / 2)), obs=y)

    return model, (y,)


def horseshoe():
    """Sparse regression: 12 predictors, two of them real."""
    rng = np.random.default_rng(25)
    X = rng.normal(size=(60, 12))
    y = 2 * X[:, 0] - 1.5 * X[:, 1] + rng.normal(size=60)

    def model(X, y=None):
        tau = numpyro.sample("tau", dist.HalfCauchy(0.3))
        lam = numpyro.sample("lam", dist.HalfCauchy(1.0).expand([12]))
        z = numpyro.sample("z", dist.Normal(0, 1).expand([12]))
        sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
        numpyro.sample("y", dist.Normal(X @ (z * lam * tau), sigma), obs=y)

    return model, (X, y)


def banana():
    """Two parameters whose product the data know."""
    rng = np.random.default_rng(26)
    y = 2.0 + 0.5 * rng.normal(size=20)

    def model(y):
        a, b = numpyro.sample("a", dist.Normal(0, 2)), numpyro.sample("b", dist.LogNormal(0, 1))
        numpyro.sample("y", dist.Normal(a * b, 1.0), obs=y)

    return model, (y,)


def banana_exactly() -> dict:
    """Sum over a fine grid: NUTS does not get into the tail of b."""
    _, (y,) = banana()
    a, log_b = np.meshgrid(np.linspace(-12, 14, 2601), np.linspace(-9, 8, 3401), indexing="ij")
    log_p = -0.5 * (a / 2) ** 2 - 0.5 * log_b**2 - 0.5 * len(y) * (a * np.exp(log_b) - y.mean()) ** 2
    weights = np.exp(log_p - log_p.max()) / np.exp(log_p - log_p.max()).sum()
    at = {"a": a, "b": np.exp(log_b)}
    mean = {k: np.sum(weights * x) for k, x in at.items()}
    sd = {k: np.sqrt(np.sum(weights * (x - mean[k]) ** 2)) for k, x in at.items()}
    return {"mean": mean, "sd": sd, "rhat": 1.0, "ess": np.inf}


def cauchy_location():
    """Three observations with Cauchy errors and a Cauchy prior: heavy tails."""

    def model(y):
        m = numpyro.sample("m", dist.StudentT(3.0, 0.0, 10.0))
        s = numpyro.sample("s", dist.HalfNormal(2.0))
        numpyro.sample("y", dist.StudentT(3.0, m, s), obs=y)

    return model, (np.array([-1.0, 0.5, 3.0, 9.0]),)


# name: (build, options of fit, sites that are location-scale with a latent scale)
MODELS = {
    "linear": (linear, {}, ()),
    "linear, raw units": (linear_raw, {}, ()),
    "linear, raw units, mean-field": (linear_raw, {"family": "mean_field"}, ()),
    "robust regression": (robust, {}, ()),
    "logistic": (logistic, {}, ()),
    "logistic, 30 rows": (logistic_small, {}, ()),
    "logistic, 40 predictors": (logistic_wide, {}, ()),
    "logistic, 40 predictors, mean-field": (logistic_wide, {"family": "mean_field"}, ()),
    "Poisson": (poisson, {}, ()),
    "Poisson, rare events": (poisson_rare, {}, ()),
    "negative binomial": (negative_binomial, {}, ()),
    "zero-inflated Poisson": (zero_inflated, {}, ()),
    "beta-binomial": (beta_binomial, {}, ()),
    "ordinal": (ordinal, {}, ()),
    "Weibull, censored": (weibull, {}, ()),
    "growth curve": (growth_curve, {}, ()),
    "autoregression": (autoregression, {}, ()),
    "Gaussian process": (gaussian_process, {}, ()),
    "latent process, counts": (latent_process, {}, ()),
    "mixture": (mixture, {}, ()),
    "mixture, overlapping": (mixture_overlapping, {}, ()),
    "eight schools": (eight_schools, {}, ()),
    "eight schools, centred": (eight_schools_centred, {}, ("theta",)),
    "varying intercepts": (varying_intercepts, {}, ()),
    "varying intercepts, 40 groups": (varying_intercepts_many, {}, ("a",)),
    "varying intercepts, 40 groups, mean-field": (varying_intercepts_many, {"family": "mean_field"}, ("a",)),
    "multilevel logistic": (multilevel_logistic, {}, ()),
    "Rasch": (rasch, {}, ()),
    "stochastic volatility": (volatility, {}, ()),
    "horseshoe": (horseshoe, {}, ()),
    "banana": (banana, {}, ()),
    "heavy tails": (cauchy_location, {}, ()),
    "item response, two parameters": (item_response, {}, ()),
    "item response, mean-field": (item_response, {"family": "mean_field"}, ()),
    "logistic, ADVI cut short": (logistic_wide, {"method": "advi", "max_steps": 1200}, ()),
    "linear, raw units, ADVI": (linear_raw, {"method": "advi"}, ()),
    "Poisson, the paper's method": (poisson, {"method": "yoasovi-naive"}, ()),
    "varying intercepts, the paper's method": (varying_intercepts_many, {"method": "yoasovi-naive"}, ("a",)),
    "multilevel logistic, Metropolis": (multilevel_logistic, {"method": "yoasovi-metropolis"}, ()),
    "Rasch, ADVI cut short": (rasch, {"method": "advi", "max_steps": 1200}, ()),
}


def truth(name: str, folder: Path) -> dict:
    """Means and sds by site, from NUTS: `{"mean": {site: ...}, "sd": ..., "rhat": worst, "ess": smallest}`."""
    if name == "banana":
        return banana_exactly()
    build, _, scaled = (MODELS | fresh.MODELS | held_out.MODELS)[name]
    model, args = build()
    asked = reparam(model, config={s: LocScaleReparam(0.0) for s in scaled}) if scaled else model
    return nuts(asked, args, folder / f"{build.__name__}.json")


def nuts(model, args: tuple, path: Path, chains: int = 4, draws: int = 5000) -> dict:
    """Means and sds by site as `truth` gives them: read from `path`, or made and kept there."""
    if not path.exists():
        kernel = NUTS(model, target_accept_prob=0.95)
        size = {"num_warmup": 1500, "num_samples": draws, "num_chains": chains}
        mcmc = MCMC(kernel, **size, chain_method="vectorized", progress_bar=False)
        mcmc.run(jax.random.key(0), *args)
        found = {k: np.asarray(v) for k, v in mcmc.get_samples(group_by_chain=True).items() if not k.endswith("_decentered")}
        checks = numpyro.diagnostics.summary(found)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            json.dumps({
                "mean": {k: v.mean((0, 1)).tolist() for k, v in found.items()},
                "sd": {k: v.std((0, 1)).tolist() for k, v in found.items()},
                "rhat": max(float(np.max(c["r_hat"])) for c in checks.values()),
                "ess": min(float(np.min(c["n_eff"])) for c in checks.values()),
            })
        )  # fmt: skip
    found = json.loads(path.read_text())
    as_arrays = lambda part: {k: np.asarray(v) for k, v in part.items()}
    return found | {"mean": as_arrays(found["mean"]), "sd": as_arrays(found["sd"])}


def compared(draws: dict, known: dict) -> tuple[float, float, float, float]:
    """Largest error of a mean in posterior sds; smallest, median and largest ratio of sds."""
    pairs = [(draws[k], m, known["sd"][k]) for k, m in known["mean"].items() if k in draws]
    there = [
        (d[:, s > 1e-9], m[s > 1e-9], s[s > 1e-9]) for d, m, s in pairs
    ]  # the rest are constants, as of a Cholesky factor
    error = max(float(np.max(np.abs(d.mean(0) - m) / s)) for d, m, s in there if s.size)
    ratios = np.concatenate([np.ravel(d.std(0) / s) for d, _, s in there])
    return error, float(ratios.min()), float(np.median(ratios)), float(ratios.max())


if __name__ == "__main__":
    numpyro.enable_x64()
    for name in MODELS | fresh.MODELS | held_out.MODELS:
        found = truth(name, Path("out/truth"))
        print(f"{name:<45} R-hat {found['rhat']:.3f}  ESS {found['ess']:,.0f}", flush=True)
