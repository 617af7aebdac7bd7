"""Posteriors with several modes, over many seeds: what a fit gives by `mend=False`, and by default.

    python benchmarks/modes.py [--seeds 10] [--more FILE.py] [--out benchmarks/results]

A fit is right where it has every mode of 1% or more, with weights within 0.05: where weights are known, they are compared;
elsewhere one mode has nearly everything, and a fit is right within 1 nat of the best ELBO of 16 restarts, mended too.
FILE.py may have a list CASES of further (name, model, weights or None); its data need not be here.
"""

import argparse
import runpy
import time
import warnings
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax import lax
from numpyro.distributions import constraints

import yoasovi as yo


def gaussians(dim, share=0.8, gap=8.0):
    """Two unit Gaussians."""
    centre = np.zeros(dim)
    centre[0] = gap

    def log_p(p):
        near, far = -0.5 * jnp.sum(p["x"] ** 2), -0.5 * jnp.sum((p["x"] - centre) ** 2)
        return jnp.logaddexp(np.log(share) + near, np.log(1 - share) + far)

    return yo.Model.from_log_density(log_p, {"x": constraints.real}, {"x": (dim,)})


def clusters():
    """Two components for three clusters, labels summed out: which two clusters share a component?"""
    rng = np.random.default_rng(3)
    y = np.concatenate([rng.normal(m, 0.5, n) for m, n in ((-6, 30), (0, 25), (5, 45))])

    def log_likelihood(p, y):
        each = dist.Normal(p["mu"], p["sd"]).log_prob(y[:, None]) + jnp.log(p["w"])
        return jnp.logaddexp(each[:, 0], each[:, 1])

    prior = {
        "mu": dist.Normal(np.zeros(2), 6.0).to_event(1), "sd": dist.LogNormal(np.zeros(2), 1.0).to_event(1),
        "w": dist.Dirichlet(np.full(2, 2.0)),
    }  # fmt: skip
    return yo.Model(prior=prior, log_likelihood=log_likelihood, data=y)


def populations(rates, start, times, substeps=10):
    """Logarithms of prey and predators at times 1, 2, ... (Lotka and Volterra; Runge-Kutta of fourth order)."""
    a, b, c, d = rates
    h = 1.0 / substeps
    slope = lambda s: jnp.stack([a - b * jnp.exp(s[1]), -c + d * jnp.exp(s[0])])

    def small(s, _):
        one = slope(s)
        two = slope(s + h / 2 * one)
        three = slope(s + h / 2 * two)
        four = slope(s + h * three)
        return jnp.clip(s + h / 6 * (one + 2 * two + 2 * three + four), -12.0, 12.0), None

    def unit(s, _):
        s = lax.scan(small, s, None, length=substeps)[0]
        return s, s

    return lax.scan(unit, jnp.log(start), None, length=times)[1]


def predators():
    """Predator and prey, simulated: wrong periods explain the data as noise."""
    rng = np.random.default_rng(5)
    truth = populations(np.array([0.4, 0.02, 0.6, 0.02]), np.array([40.0, 8.0]), 24)
    y = np.exp(np.asarray(truth) + 0.25 * rng.normal(size=truth.shape))

    def log_likelihood(p, y):
        return dist.LogNormal(populations(p["rates"], p["start"], len(y)), p["noise"]).log_prob(y).sum(1)

    middle = np.log([1.0, 0.05, 1.0, 0.05])
    prior = {
        "rates": dist.LogNormal(middle, 0.5).to_event(1),
        "start": dist.LogNormal(np.log(10.0) * np.ones(2), 1.0).to_event(1),
        "noise": dist.LogNormal(-np.ones(2), 1.0).to_event(1),
    }  # fmt: skip
    return yo.Model(prior=prior, log_likelihood=log_likelihood, data=y)


CASES = [
    ("two Gaussians, 8 sds apart, 2-D", gaussians(2), (0.8, 0.2)),
    ("two Gaussians, 8 sds apart, 10-D", gaussians(10), (0.8, 0.2)),
    ("two components for three clusters", clusters(), None),
    ("predator and prey, simulated", predators(), None),
]
HEAD = (
    "| posterior | right by itself | right when mended | graded good | worst weight off | wrong yet good | "
    "gradients of the fit | mended | s of the fit | mended |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
)


def off(fit, weights):
    """How far weights are off; of a fit that has one mode, by that mode's."""
    have = [part.weight for part in fit.parts] or [1.0]
    have += [0.0] * (len(weights) - len(have))
    return max(abs(a - b) for a, b in zip(have, weights, strict=True)) if len(have) == len(weights) else 1.0


def row(name, model, weights, seeds):
    """Fit and mend with each seed."""
    best = None
    if weights is None:
        best = yo.fit(model, seed=1000, restarts=16, progress=False)
        best = best.elbo.value
    right = lambda fit: off(fit, weights) < 0.05 if weights else not fit.parts and abs(fit.elbo.value - best) < 1.0
    rows = []
    for seed in seeds:
        begin = time.perf_counter()
        fit = yo.fit(model, seed=seed, progress=False, mend=False)
        grade, between = fit.diagnose().grade, time.perf_counter()
        cost = fit.num_gradients
        again = time.perf_counter()
        mended = yo.fit(model, seed=seed, progress=False)
        after = mended.diagnose().grade
        end = time.perf_counter()
        rows.append((right(fit), right(mended), after == "good", off(mended, weights) if weights else np.nan,
                     (grade == "good" and not right(fit)) or (after == "good" and not right(mended)),
                     cost, mended.num_gradients, between - begin, end - again))  # fmt: skip
        print(name, seed, [round(p.weight, 3) for p in mended.parts], f"{fit.elbo} {mended.elbo}", grade, after, flush=True)
    before, now, good, weight, fooled, cost, costs, wait, waits = zip(*rows, strict=True)
    worst = "·" if weights is None else f"{max(weight):.3f}"
    count = lambda x: f"{sum(x)}/{len(rows)}"
    return (
        f"| {name} | {count(before)} | {count(now)} | {count(good)} | {worst} | {sum(fooled)} | {np.median(cost):,.0f} | "
        f"{np.median(costs):,.0f} | {np.median(wait):.1f} | {np.median(waits):.1f} |"
    )


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--seeds", type=int, default=10)
    args.add_argument("--more", type=Path)
    args.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = args.parse_args()
    warnings.simplefilter("ignore")
    cases = CASES + (runpy.run_path(str(args.more))["CASES"] if args.more else [])
    lines = [HEAD, *(row(*case, range(args.seeds)) for case in cases)]
    notes = (
        "Medians over seeds; mended figures hold all that was tried, verdicts included; seconds are wall clock, with the "
        "verdicts. Wrong yet good: seeds for which a fit, mended or not, was wrong and graded good."
    )
    more = " --more FILE.py" if args.more else ""
    if args.more:
        notes += " Rows after the fourth are of FILE.py, whose data are not in this repository."
    head = f"`python benchmarks/modes.py --seeds {args.seeds}{more}`, yoasovi {yo.__version__}"
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "modes.md").write_text(f"{head}\n\n" + "\n".join(lines) + f"\n\n{notes}\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
