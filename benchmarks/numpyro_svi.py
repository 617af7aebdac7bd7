"""SVI against YOASOVI with the same model, guide, optimiser, steps and seeds: ELBO on fresh draws, at good and bad rates."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints
from numpyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO
from numpyro.infer.autoguide import AutoLowRankMultivariateNormal, AutoMultivariateNormal, AutoNormal

from yoasovi.numpyro import YOASOVI

STEPS, RATES, SEEDS, DRAWS = 2000, (0.1, 0.01, 0.001), 5, 20_000
rng = np.random.default_rng(0)


def logistic(x, y, batch=None):
    w = numpyro.sample("w", dist.Normal(0, 3).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("n", len(y), subsample_size=batch) as i:
        numpyro.sample("y", dist.Bernoulli(logits=x[i] @ w), obs=y[i])


def schools(y, se):
    mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("j", len(y)):
        z = numpyro.sample("z", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(mu + tau * z, se), obs=y)


def groups(g, y):
    mu, tau = numpyro.sample("mu", dist.Normal(0, 10)), numpyro.sample("tau", dist.HalfNormal(5))
    s = numpyro.sample("s", dist.HalfNormal(5))
    with numpyro.plate("j", 20):
        a = numpyro.sample("a", dist.Normal(mu, tau))
    with numpyro.plate("n", len(y)):
        numpyro.sample("y", dist.Normal(a[g], s), obs=y)


def rates(y):
    with numpyro.plate("k", 3):
        p = numpyro.sample("p", dist.Beta(1, 1))
    with numpyro.plate("n", len(y)):
        numpyro.sample("y", dist.Bernoulli(p).to_event(1), obs=y)


def rates_guide(y):
    a = numpyro.param("a", 2 * jnp.ones(3), constraint=constraints.positive)
    b = numpyro.param("b", 2 * jnp.ones(3), constraint=constraints.positive)
    with numpyro.plate("k", 3):
        numpyro.sample("p", dist.Beta(a, b))


def problems():
    x = rng.normal(size=(2000, 6)) @ (np.eye(6) + 0.4)
    y = (rng.random(2000) < 1 / (1 + np.exp(-x @ rng.normal(size=6)))).astype(np.float32)
    x, y = jnp.asarray(x, jnp.float32), jnp.asarray(y)
    few, g = (x[:200], y[:200]), np.repeat(np.arange(20), 10)
    level = (5 + 2 * rng.normal(size=20)[g] + rng.normal(size=200)).astype(np.float32)
    effects = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    hits = (rng.random((60, 3)) < [0.1, 0.5, 0.9]).astype(np.float32)
    return {
        "logistic, AutoNormal": (logistic, AutoNormal(logistic), Trace_ELBO(), few),
        "logistic, AutoMultivariateNormal": (logistic, AutoMultivariateNormal(logistic), Trace_ELBO(), few),
        "logistic, batches of 100 of 2000": (logistic, AutoNormal(logistic), Trace_ELBO(), (x, y, 100)),
        "eight schools, AutoNormal": (schools, AutoNormal(schools), TraceMeanField_ELBO(), effects),
        "20 groups, AutoLowRank": (groups, AutoLowRankMultivariateNormal(groups), Trace_ELBO(), (g, level)),
        "three rates, own Beta guide": (rates, rates_guide, Trace_ELBO(), (hits,)),
    }


def compared(model, guide, loss, args, whole, keys):
    """Give, for each rate, the losses of SVI and of YOASOVI on fresh draws, one per seed; each kind compiles once."""

    def fresh(params):
        one = lambda key: Trace_ELBO(DRAWS // 20).loss(key, params, model, guide, *whole)
        return jax.lax.map(one, jax.random.split(jax.random.key(99), 20)).mean()

    each, found = jax.jit(lambda params: jax.lax.map(fresh, params)), {}
    for kind in (SVI, YOASOVI):

        def one(key, rate, kind=kind):
            return kind(model, guide, numpyro.optim.Adam(rate), loss).run(key, STEPS, *args, progress_bar=False).params

        # An automatic guide remembers its first call, which must not be a traced one.
        kind(model, guide, numpyro.optim.Adam(0.1), loss).init(keys[0], *args)
        run = jax.jit(lambda rate, one=one: jax.lax.map(lambda key: one(key, rate), keys))
        for rate in RATES:
            found[kind, rate] = np.asarray(each(run(rate)))
    return {rate: (found[SVI, rate], found[YOASOVI, rate]) for rate in RATES}


def main():
    print(f"`python benchmarks/numpyro_svi.py`: loss after {STEPS:,} steps of Adam, mean (and worst) over {SEEDS} seeds, on")
    print(f"{DRAWS:,} fresh draws; lower is better. YOASOVI is made to take all steps here, as it does under `jit`.\n")
    print("| problem | rate | SVI | YOASOVI | YOASOVI better |\n|---|---:|---:|---:|---:|")
    keys = jax.vmap(jax.random.key)(jnp.arange(SEEDS))
    for name, (model, guide, loss, args) in problems().items():
        whole = args[:2] if model is logistic else args
        for rate, (svi, ours) in compared(model, guide, loss, args, whole, keys).items():
            show = lambda x: f"{x.mean():.3f} ({x.max():.3f})"
            print(f"| {name} | {rate} | {show(svi)} | {show(ours)} | {(ours < svi).sum()}/{SEEDS} |", flush=True)


if __name__ == "__main__":
    main()
