"""A PyMC model, unchanged: radon in houses of several counties, with partial pooling. NUTS is the reference.

The data are simulated in the shape of the well-known radon survey: a few houses in each county, basement or not.
"""

import warnings

import jax
import numpy as np
from numpyro.infer import MCMC, NUTS

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import pymc as pm

import yoasovi as yo

COUNTIES = 8


def simulate(seed=0, n=100):
    rng = np.random.default_rng(seed)
    county, floor = rng.integers(COUNTIES, size=n), rng.integers(2, size=n)
    return county, floor, (1.5 + 0.4 * rng.normal(size=COUNTIES))[county] - 0.7 * floor + 0.6 * rng.normal(size=n)


def radon(county, floor, log_radon):
    with pm.Model(coords={"county": [f"county {i}" for i in range(COUNTIES)]}) as model:
        mu, spread = pm.Normal("mu", 0, 3), pm.HalfNormal("spread", 1)
        offset = pm.Normal("offset", 0, 1, dims="county")
        level = pm.Deterministic("level", mu + spread * offset, dims="county")
        effect, noise = pm.Normal("effect", 0, 1), pm.Exponential("noise", 1)
        pm.Normal("log_radon", level[county] + effect * floor, noise, observed=log_radon)
    return model


def nuts(model):
    """Draw with NumPyro's NUTS from PyMC's own log density, as `pm.sample(nuts_sampler="numpyro")` does."""
    from pymc.sampling.jax import get_jaxified_logp

    with jax.enable_x64(True):
        log_p, begin = get_jaxified_logp(model), model.initial_point()
        mcmc = MCMC(NUTS(potential_fn=lambda x: -log_p(x)), num_warmup=500, num_samples=3000, progress_bar=False)
        mcmc.run(jax.random.key(0), init_params=[jax.numpy.asarray(begin[x.name]) for x in model.value_vars])
        mu, log_spread, offset, effect, log_noise = map(np.asarray, mcmc.get_samples())
    spread = np.exp(log_spread)
    level = mu[:, None] + spread[:, None] * offset
    return {"mu": mu, "spread": spread, "level": level, "effect": effect, "noise": np.exp(log_noise)}


def main():
    model = radon(*simulate())
    fit = yo.fit(model, seed=0)
    tree = fit.to_datatree(4000)
    print(fit.summary())
    for name, draws in nuts(model).items():
        off = np.abs(tree.posterior[name].mean(("chain", "draw")).values - draws.mean(0)) / draws.std(0)
        print(f"{name:<8} is off by at most {off.max():.3f} posterior sd")
        assert off.max() < 0.1
    assert list(tree.posterior["level"].dims) == ["chain", "draw", "county"]


if __name__ == "__main__":
    main()
