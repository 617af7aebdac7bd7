"""Hierarchies of 35 to 144 parameters: what the default method spends, and when it was there.

    python benchmarks/middle_ground.py [--seeds 5] [--only NAME;...] [--out benchmarks/results]

The four posteriors of far_starts.py, varying intercepts of 85 groups that are not centred, and a two-parameter item response
model. Nothing is mended. Evaluations are of log p with or without gradient; "there" is the first window whose incumbent is
within 0.1 nat of the best end of all seeds, on common draws. The table goes before what earlier ones taught, which stays on
the page.
"""

import argparse
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from far_starts import posteriors
from stopping import gaps, run

import yoasovi as yo
from yoasovi import fitting
from yoasovi.methods import method


def intercepts(group, x, y):
    mean, slope = numpyro.sample("mean", dist.Normal(0.0, 10.0)), numpyro.sample("slope", dist.Normal(0.0, 10.0))
    between, within = numpyro.sample("between", dist.HalfNormal(1.0)), numpyro.sample("within", dist.HalfNormal(1.0))
    level = numpyro.sample("level", dist.Normal(0.0, 1.0).expand([85]))
    numpyro.sample("y", dist.Normal(mean + between * level[group] + slope * x, within), obs=y)


def items(person, item, y):
    ability = numpyro.sample("ability", dist.Normal(0.0, 1.0).expand([100]))
    spread, middle = numpyro.sample("spread", dist.HalfCauchy(2.0)), numpyro.sample("middle", dist.Normal(0.0, 2.0))
    of_slopes = numpyro.sample("of_slopes", dist.HalfCauchy(2.0))
    hard = numpyro.sample("hard", dist.Normal(middle, spread).expand([20]))
    slope = numpyro.sample("slope", dist.LogNormal(jnp.zeros(20), of_slopes).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=slope[item] * (ability[person] - hard[item])), obs=y)


def models():
    rng = np.random.default_rng(7)
    group = np.sort(np.concatenate([np.arange(85), rng.integers(0, 85, size=834)]))
    x = rng.integers(0, 2, size=group.size).astype(float)
    y = 1.5 - 0.7 * x + (0.3 * rng.normal(size=85))[group] + 0.75 * rng.normal(size=group.size)
    person, item = (a.ravel() for a in np.meshgrid(np.arange(100), np.arange(20), indexing="ij"))
    logit = np.exp(0.5 * rng.normal(size=20))[item] * (rng.normal(size=100)[person] - rng.normal(size=20)[item])
    answers = (rng.uniform(size=logit.size) < 1.0 / (1.0 + np.exp(-logit))).astype(int)
    return {
        "85 intercepts, not centred": yo.from_numpyro(intercepts, group, x, y),
        "items and persons": yo.from_numpyro(items, person, item, answers),
        **posteriors(),
    }


EARLIER = "## Earlier"


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--seeds", type=int, default=5)
    args.add_argument("--only", default=None, help="names of posteriors, separated by semicolons")
    args.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = args.parse_args()
    jax.config.update("jax_enable_x64", True)
    warnings.simplefilter("ignore")
    everything = []
    lines = [
        "| posterior (parameters), q | within 0.3 nat | evaluations, median | gradients, median | when there, median |",
        "|---|---|---|---|---|",
    ]
    chosen = models()
    for name in args.only.split(";") if args.only else chosen:
        model = chosen[name]
        family, *_ = fitting.choose_family(model, method("yoasovi"), "auto")
        rule = method("yoasovi").for_family(model, family)
        runs = [run(model, rule, family, seed) for seed in range(args.seeds)]
        gradients = [yo.fit(model, seed=seed, mend=False, progress=False).num_gradients for seed in range(args.seeds)]
        ends = [r.path[-1] for r in runs]
        short, _ = gaps(model, family, ends, ends[0], 4096)
        best = ends[int(np.nanargmin(short))]
        there = []
        for r in runs:
            along, _ = gaps(model, family, r.path, best, 512)
            found = np.flatnonzero(along < 0.1)
            there.append(r.spent[found[0]] if found.size else np.inf)
        spent = [int(r.spent[-1]) for r in runs]
        everything += gradients
        good = int(np.sum(short - np.nanmin(short) < 0.3))
        cells = f"{np.median(spent):,.0f} | {np.median(gradients):,.0f} | {np.median(there):,.0f}"
        lines.append(f"| {name} ({model.density.dim}), {family.name} | {good} of {args.seeds} | {cells} |")
        print(lines[-1], flush=True)
    lines += ["", f"Median of all fits: {np.median(everything):,.0f} gradients.", ""]
    head = ["# The middle ground: hierarchies of 35 to 143 parameters", "",
            f"`python benchmarks/middle_ground.py --seeds {args.seeds}`, yoasovi {yo.__version__}", ""]  # fmt: skip
    page = args.out / "middle_ground.md"
    earlier = page.read_text().split(EARLIER)[-1] if page.exists() else "\n"
    page.write_text("\n".join([*head, *lines, EARLIER]) + earlier)


if __name__ == "__main__":
    main()
