"""Centred hierarchies whose posterior is far from where a fit begins: how many seeds arrive, and what it costs.

    python benchmarks/far_starts.py [--seeds 10] [--only NAME;...] [--out benchmarks/results]

Four hierarchies with simulated data in raw units and flat priors on their scales. log p has no maximum: it rises for ever as
a scale goes to zero. The reference is the best, on common draws, of all seeds and of two long runs (tolerance 0.005,
patience 12). "Without" is the same method without its climbs of the ELBO.
"""

import argparse
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints
from stopping import gaps

import yoasovi as yo
from yoasovi.windows.rule import Window

NEAR, DRAWS = 0.3, 4096


def flat(name):
    return numpyro.sample(name, dist.ImproperUniform(constraints.positive, (), ()))


def two_levels(group, n, y):
    mean, between, within = numpyro.sample("mean", dist.Normal(0.0, 1000.0)), flat("between"), flat("within")
    level = numpyro.sample("level", dist.Normal(mean, between).expand([n]))
    numpyro.sample("y", dist.Normal(level[group], within), obs=y)


def three_levels(school, district, n, m, y):
    mean, top, middle, within = numpyro.sample("mean", dist.Normal(0.0, 1000.0)), flat("top"), flat("middle"), flat("within")
    above = numpyro.sample("above", dist.Normal(mean, top).expand([m]))
    level = numpyro.sample("level", dist.Normal(above[district], middle).expand([n]))
    numpyro.sample("y", dist.Normal(level[school], within), obs=y)


def offsets(group, n, year, income, y):
    mean, between, within = numpyro.sample("mean", dist.Normal(0.0, 1e4)), flat("between"), flat("within")
    trend, effect = numpyro.sample("trend", dist.Normal(0.0, 10.0)), numpyro.sample("effect", dist.Normal(0.0, 1.0))
    level = numpyro.sample("level", dist.Normal(mean, between).expand([n]))
    numpyro.sample("y", dist.Normal(level[group] + trend * year + effect * income, within), obs=y)


def growth(subject, n, age, y):
    mean = numpyro.sample("mean", dist.Normal(jnp.zeros(2), 100.0).to_event(1))
    spread = [flat("of_levels"), flat("of_slopes")]
    within = flat("within")
    level = numpyro.sample("level", dist.Normal(mean[0], spread[0]).expand([n]))
    slope = numpyro.sample("slope", dist.Normal(mean[1], spread[1]).expand([n]))
    numpyro.sample("y", dist.Normal(level[subject] + slope[subject] * age, within), obs=y)


def posteriors() -> dict[str, Any]:
    """Give the models, each with its data."""
    rng = np.random.default_rng(2024)
    group = np.repeat(np.arange(40), 6)
    y = 500 + 40 * rng.normal(size=40)[group] + 25 * rng.normal(size=group.size)
    out = {"two levels, centred": yo.from_numpyro(two_levels, group, 40, y)}
    school, district = np.repeat(np.arange(48), 6), np.repeat(np.arange(12), 4)
    level = 300 + (30 * rng.normal(size=12))[district] + 15 * rng.normal(size=48)
    y = level[school] + 20 * rng.normal(size=school.size)
    out["three levels, centred"] = yo.from_numpyro(three_levels, school, district, 48, 12, y)
    group = np.repeat(np.arange(30), 8)
    year, income = rng.uniform(1990, 2020, size=group.size), rng.uniform(20_000, 90_000, size=group.size)
    y = 150 + (12 * rng.normal(size=30))[group] + 0.8 * (year - 2005) - 2e-4 * income + 8 * rng.normal(size=group.size)
    out["big offsets, raw units"] = yo.from_numpyro(offsets, group, 30, year, income, y)
    subject, age = np.repeat(np.arange(25), 6), np.tile([8.0, 15.0, 22.0, 29.0, 36.0, 43.0], 25)
    level, slope = 110 + 12 * rng.normal(size=25), 6.2 + 0.5 * rng.normal(size=25)
    y = level[subject] + slope[subject] * age + 6 * rng.normal(size=age.size)
    out["intercepts and slopes, raw units"] = yo.from_numpyro(growth, subject, 25, age, y)
    return out


class Row(NamedTuple):
    """How the seeds of one posterior ended."""

    short: np.ndarray  # nats below the reference
    gradients: np.ndarray
    claims: np.ndarray

    def cells(self) -> str:
        near = self.short < NEAR
        return (
            f"{near.sum()} of {len(near)} | {np.median(self.short):.2f}, {self.short.max():.2f} | {self.claims.sum()} | "
            f"{np.median(self.gradients):,.0f}, {self.gradients.max():,}"
        )


def judged(model, seeds) -> tuple[Row, Row]:
    """Fit all seeds with and without the climb of the ELBO."""
    fits, whole = [], Window.with_climb
    for rule in (whole, lambda self, control, now: control):
        Window.with_climb = rule
        fits.append([yo.fit(model, seed=seed, progress=False, mend=False) for seed in range(seeds)])
    Window.with_climb = whole
    slow = dict(tolerance=0.005, patience=12, mend=False, progress=False)
    long = [yo.fit(model, seed=seed, **slow) for seed in (1001, 1002)]
    family, ends = long[0].family, [f.params for f in (*long, *fits[0], *fits[1])]
    short, _ = gaps(model, family, ends, ends[0], DRAWS)
    short = np.where(np.isfinite(short), short, np.inf)
    short = (short - short.min())[2:].reshape(2, seeds)
    return tuple(
        Row(s, np.array([f.num_gradients for f in some]), np.array([f.converged for f in some]))
        for s, some in zip(short, fits, strict=True)
    )


HEAD = f"""| posterior (parameters) | within {NEAR} nat | nats short: median, worst | claim convergence \
| gradients: median, most | without: within | nats short | claim | gradients |
|---|---|---|---|---|---|---|---|---|"""


def report(command: str, lines: list[str], rows: list[Row], without: list[Row], seconds: float) -> str:
    share = lambda some: 100 * np.mean(np.concatenate([r.short for r in some]) < NEAR)
    return f"""# Far starts in centred hierarchies

`{command}`, yoasovi {yo.__version__}, in {seconds / 60:.0f} minutes

{share(rows):.0f}% of the fits end within {NEAR} nat of the best known ELBO; {share(without):.0f}% where only log p is
climbed.

{HEAD}
{chr(10).join(lines)}
"""


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--seeds", type=int, default=10)
    args.add_argument("--only", default=None, help="names of posteriors, separated by semicolons")
    args.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = args.parse_args()
    jax.config.update("jax_enable_x64", True)
    warnings.simplefilter("ignore")
    models = posteriors()
    lines, rows, without, begin = [], [], [], time.perf_counter()
    for name in args.only.split(";") if args.only else models:
        row, bare = judged(models[name], args.seeds)
        rows, without = [*rows, row], [*without, bare]
        lines.append(f"| {name} ({models[name].density.dim}) | {row.cells()} | {bare.cells()} |")
        print(lines[-1], flush=True)
    text = report(f"python benchmarks/far_starts.py --seeds {args.seeds}", lines, rows, without, time.perf_counter() - begin)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "far_starts.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
