"""A script for `numpyro.infer.SVI`, with the import changed: weight by height of 15 women, at a learning rate far too small.

The noise is taken as known, so the posterior of intercept and slope is a Gaussian in closed form.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoMultivariateNormal

from yoasovi.numpyro import YOASOVI

# Average heights (inches) and weights (pounds) of American women aged 30-39: The World Almanac and Book of Facts, 1975.
HEIGHT = np.arange(58.0, 73.0)
WEIGHT = np.array([115, 117, 120, 123, 126, 129, 132, 135, 139, 142, 146, 150, 154, 159, 164.0])
NOISE = 1.5


def model(height, weight=None):
    level = numpyro.sample("level", dist.Normal(140, 50))
    slope = numpyro.sample("slope", dist.Normal(0, 10))
    with numpyro.plate("women", len(height)):
        numpyro.sample("weight", dist.Normal(level + slope * (height - 60), NOISE), obs=weight)


def exact():
    """Mean and standard deviations of the posterior."""
    design = np.stack([np.ones(15), HEIGHT - 60], 1)
    prior = np.diag([50.0**-2, 10.0**-2])
    cov = np.linalg.inv(design.T @ design / NOISE**2 + prior)
    return cov @ (design.T @ WEIGHT / NOISE**2 + prior @ [140, 0]), np.sqrt(np.diag(cov))


def main():
    mean, sd = exact()
    data = jnp.asarray(HEIGHT), jnp.asarray(WEIGHT)
    for kind in (SVI, YOASOVI):
        guide = AutoMultivariateNormal(model)
        svi = kind(model, guide, numpyro.optim.Adam(0.001), Trace_ELBO())
        result = svi.run(jax.random.key(0), 5000, *data, progress_bar=False)
        draws = guide.sample_posterior(jax.random.key(1), result.params, sample_shape=(20_000,))
        draws = np.stack([draws["level"], draws["slope"]], 1)
        off = np.abs(draws.mean(0) - mean) / sd
        ratio = draws.std(0) / sd
        print(f"{kind.__name__}, {len(result.losses)} steps: means off by {off.round(2)} sd, sds {ratio.round(2)} times")
    assert (off < 0.1).all() and (np.abs(ratio - 1) < 0.2).all()


if __name__ == "__main__":
    main()
