"""A PyMC model, unchanged: radon in houses of several counties, with partial pooling.

The data are simulated in the shape of the well-known radon survey: a few houses in each county, basement or not. Given the
spread between counties and the noise all else is Gaussian, so one sum over a grid of them gives the posterior means.
"""

import warnings

import numpy as np

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


def exact(county, floor, log_radon):
    """Posterior means and standard deviations: a Gaussian given spread and noise, which are summed over a grid."""
    spread, noise = (x.ravel() for x in np.meshgrid(np.geomspace(0.005, 3, 150), np.geomspace(0.3, 1.2, 60)))
    one = np.eye(COUNTIES)[county]
    design = np.column_stack([np.ones(len(county)), floor, one])  # mu, effect, offsets
    scale = np.column_stack([np.full_like(spread, 3.0), np.ones_like(spread), np.repeat(spread[:, None], COUNTIES, 1)])
    inner, outer = design.T @ design, design.T @ log_radon  # of mu, effect and spread * offset
    covariance = np.linalg.inv(inner / noise[:, None, None] ** 2 + np.eye(10) / scale[:, None, :] ** 2)
    mean = covariance @ outer / noise[:, None] ** 2
    log_p = 0.5 * np.linalg.slogdet(covariance)[1] - np.log(scale).sum(1) + 0.5 * mean @ outer / noise**2
    log_p -= 0.5 * log_radon @ log_radon / noise**2 + (len(county) - 1) * np.log(noise)  # the grid is even in logarithms
    log_p += np.log(spread) - 0.5 * spread**2 - noise
    p = np.exp(log_p - log_p.max()) / np.exp(log_p - log_p.max()).sum()
    rows = np.vstack([np.eye(10)[:2], np.column_stack([np.ones(COUNTIES), np.zeros(COUNTIES), np.eye(COUNTIES)])])
    first = np.column_stack([mean @ rows.T, spread, noise])
    second = first**2
    second[:, :10] += np.einsum("ij,gjk,ik->gi", rows, covariance, rows)
    mean, sd = p @ first, np.sqrt(p @ second - (p @ first) ** 2)
    places = {"mu": 0, "effect": 1, "level": slice(2, 10), "spread": 10, "noise": 11}
    return {k: (mean[i], sd[i]) for k, i in places.items()}


def main():
    data = simulate()
    fit = yo.fit(radon(*data), seed=0)
    tree = fit.to_datatree(4000)
    print(fit.summary())
    for name, (mean, sd) in exact(*data).items():
        off = np.abs(tree.posterior[name].mean(("chain", "draw")).values - mean) / sd
        print(f"{name:<8} is off by at most {off.max():.3f} posterior sd")
        assert off.max() < 0.1
    assert list(tree.posterior["level"].dims) == ["chain", "draw", "county"]


if __name__ == "__main__":
    main()
