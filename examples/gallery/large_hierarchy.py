"""A large hierarchy: hundreds of groups, a handful of observations each

Counts from many small places, most of them near zero: rates of a rare disease by district, say. There is a parameter
for every district, too many for a full covariance. Districts are independent given level and spread, which the fit finds
out by itself; the approximation has an arrow's covariance. The data are simulated; raw rates of small districts are mostly
luck, and the model's must be nearer to the truth.
"""

import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import numpy as jnp
from matplotlib.figure import Figure

import yoasovi as yo


def districts(people, cases=None):
    level, spread = numpyro.sample("level", dist.Normal(-6, 2)), numpyro.sample("spread", dist.HalfNormal(1))
    with numpyro.plate("districts", len(people)):
        z = numpyro.sample("z", dist.Normal(0, 1))
        rate = numpyro.deterministic("rate", jnp.exp(level + spread * z))
        numpyro.sample("cases", dist.Poisson(rate * people), obs=cases)


def main(small=False):
    count = 40 if small else 500
    rng = np.random.default_rng(0)
    people = rng.lognormal(6.5, 1.0, count)
    truth = np.exp(-6.0 + 0.6 * rng.normal(size=count))
    cases = rng.poisson(truth * people)
    fit = yo.fit(districts, people, cases, seed=0)
    draws = fit.sample(1000)
    error = lambda x: float(np.sqrt(np.mean((x - truth) ** 2)) * 1000)
    spread = draws["spread"]
    print(f"{fit.model.density.dim} parameters: {fit.family.name}; {fit.num_gradients:,} gradients")
    print(f"error of raw rates {error(cases / people):.2f} per thousand, of the model's {error(draws['rate'].mean(0)):.2f}")
    print(f"spread of log rates {spread.mean():.2f} ± {spread.std():.2f}, simulated with 0.60")
    assert error(draws["rate"].mean(0)) < 0.8 * error(cases / people)
    assert abs(spread.mean() - 0.6) < 0.25

    figure = Figure(figsize=(7, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, x, title in ((left, cases / people, "raw rates"), (right, draws["rate"].mean(0), "the model's")):
        axes.loglog(truth, np.maximum(x, 1e-4), ".", color="#0072B2", ms=3)
        axes.loglog([truth.min(), truth.max()], [truth.min(), truth.max()], color="#999999", lw=1)
        axes.set(title=title, xlabel="truth")
    return figure


if __name__ == "__main__":
    main()
