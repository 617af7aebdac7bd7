"""Partial pooling: which schools teach well, when some have four pupils

Test scores of pupils in many schools, some of them tiny. Taken by itself a school of four pupils can look best or worst
by luck; taken all together the schools are all the same. A hierarchical model decides how far to believe each school,
and learns that from the data. The data are simulated, so that the truth is known: partial pooling must come closer to
it than each school's own average, and its 90% intervals must cover it about as often as they say.

The model is written in the centred form, which makes a funnel where schools differ little; the fit finds out by itself
whether that matters.
"""

import numpy as np
import numpyro
import numpyro.distributions as dist
from matplotlib.figure import Figure

import yoasovi as yo


def simulate(schools, seed=0):
    rng = np.random.default_rng(seed)
    size = rng.integers(4, 40, schools)
    truth = 500.0 + 20.0 * rng.normal(size=schools)
    school = np.repeat(np.arange(schools), size)
    return school, truth[school] + 60.0 * rng.normal(size=len(school)), truth


def pupils(school, count, score=None):
    mean, spread = numpyro.sample("mean", dist.Normal(500, 100)), numpyro.sample("spread", dist.HalfNormal(50))
    noise = numpyro.sample("noise", dist.HalfNormal(100))
    with numpyro.plate("schools", count):
        level = numpyro.sample("level", dist.Normal(mean, spread))
    with numpyro.plate("pupils", len(school)):
        numpyro.sample("score", dist.Normal(level[school], noise), obs=score)


def main(small=False):
    schools = 10 if small else 40
    school, score, truth = simulate(schools)
    fit = yo.fit(pupils, school, schools, score, seed=0)
    level = fit.sample(2000)["level"]
    alone = np.array([score[school == k].mean() for k in range(schools)])
    error = lambda x: float(np.sqrt(np.mean((x - truth) ** 2)))
    low, high = np.quantile(level, [0.05, 0.95], axis=0)
    covered = float(np.mean((low < truth) & (truth < high)))
    print(f"error of a school's own average {error(alone):.1f} points, of partial pooling {error(level.mean(0)):.1f}")
    print(f"{covered:.0%} of the true levels lie inside their 90% intervals")
    assert error(level.mean(0)) < error(alone)
    assert covered > 0.7

    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    order = np.argsort(np.bincount(school))
    axes.vlines(np.arange(schools), low[order], high[order], color="#0072B2", lw=2, label="90% interval, partial pooling")
    axes.plot(alone[order], "x", color="#D55E00", label="the school's own average")
    axes.plot(truth[order], ".", color="black", label="truth")
    axes.set(xlabel="schools, the smallest first", ylabel="points")
    axes.legend(fontsize=8)
    return figure


if __name__ == "__main__":
    main()
