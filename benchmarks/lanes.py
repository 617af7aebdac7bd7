"""Restarts as lanes: how long 1,024 fits from different starts take beside one, compiled.

    python benchmarks/lanes.py [--restarts 1024] [--repeats 7]

The model is the paper's mixture of three in two dimensions, N = 500, labels summed out. On an accelerator looks at all lanes
are one call; on a CPU every look costs what it costs, so the ratio says little there. The table goes to results/lanes.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from datetime import date
from pathlib import Path
from typing import Any

import jax

import yoasovi as yo
from yoasovi.experiments import simulate

OUT = Path(__file__).parent / "results" / "lanes.md"


def measure(lanes: int, mend: bool, repeats: int) -> dict[str, Any]:
    """Fit once to compile, then a few seeds."""
    model = yo.models.GaussianMixture(simulate.mixture(2, 3), 3, assignments="marginal")
    seconds, stages, elbos = [], [], []
    for seed in range(repeats + 1):
        begin = time.perf_counter()
        fit = yo.fit(model, restarts=lanes, seed=seed, progress=False, mend=mend)
        seconds.append(time.perf_counter() - begin)
        stages.append(fit.seconds.stages)
        elbos.append(fit.elbo.value)
        if seed == 0:
            compiling = fit.seconds.compile
    found = {k: statistics.median(x.get(k, 0.0) for x in stages[1:]) for k in stages[1]}
    return {
        "seconds": statistics.median(seconds[1:]), "all": seconds[1:], "first": seconds[0], "compiling": compiling,
        "stages": found, "elbos": (min(elbos), max(elbos)),
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--restarts", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    found = {}
    for lanes in (1, args.restarts):
        for mend in (False, True):
            found[lanes, mend] = x = measure(lanes, mend, args.repeats)
            print(f"{lanes:>6} lanes, mend={mend}: {x}", flush=True)
    row = lambda n: (
        f"| {n:,} | {found[n, False]['seconds']:.3f} | {found[n, True]['seconds']:.3f} | "
        + (
            f"{found[n, False]['first']:.1f}, {found[n, False]['compiling']:.1f} | {found[n, False]['elbos'][0]:.2f} .. "
            f"{found[n, False]['elbos'][1]:.2f} |"
        )
    )
    ratio = [found[args.restarts, m]["seconds"] / found[1, m]["seconds"] for m in (False, True)]
    stages = ", ".join(f"{k} {1e3 * v:.0f}" for k, v in found[args.restarts, False]["stages"].items())
    OUT.write_text("\n".join([
        "# Restarts as lanes",
        "",
        f"`python benchmarks/lanes.py --restarts {args.restarts} --repeats {args.repeats}`, {jax.devices()[0].device_kind}, "
        f"jax {jax.__version__}, {date.today():%-d %B %Y}. The paper's mixture of",
        f"three in two dimensions, N = 500, labels summed out; medians of {args.repeats} seeds, compiled.",
        "",
        "| restarts | seconds, `mend=False` | by default | first run, of which compiling | ELBOs of all seeds |",
        "|---|---|---|---|---|",
        row(1), row(args.restarts), f"| ratio | {ratio[0]:.1f} | {ratio[1]:.1f} | | |",
        "",
        f"Milliseconds of the {args.restarts:,} restarts by stage, without mending: {stages}.",
    ]) + "\n")  # fmt: skip


if __name__ == "__main__":
    main()
