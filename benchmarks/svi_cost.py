"""CPU seconds of YOASOVI in the place of NumPyro's SVI: the same model, guide, optimiser and number of steps.

    python benchmarks/svi_cost.py [--steps 2000] [--times 3] [--only PROBLEM ...] [--out benchmarks/results]

Each run is a process of its own, SVI's and ours by turns, from `run` to its parameters, compiling included; what is shown is
the median of `times`. A run of ours that stops by itself earlier than asked is told by its steps.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

PROBLEMS = ("logistic, AutoNormal", "20 groups, AutoLowRank", "three rates, own Beta guide")


def optimisers():
    import numpyro
    import optax

    clipped = optax.chain(optax.clip_by_global_norm(10.0), optax.adam(optax.cosine_decay_schedule(0.01, 5000)))
    return {
        "numpyro Adam": numpyro.optim.Adam(0.01), "optax adam": optax.adam(0.01), "optax clip, cosine": clipped,
        "optax adamw": optax.adamw(0.01),
    }  # fmt: skip


def one(kind, problem, optimiser, steps, bar):
    import jax
    from numpyro.infer import SVI
    from numpyro_svi import problems

    from yoasovi.numpyro import YOASOVI

    model, guide, loss, args = problems()[problem]
    svi = {"SVI": SVI, "YOASOVI": YOASOVI}[kind](model, guide, optimisers()[optimiser], loss)
    begin = time.process_time()
    found = svi.run(jax.random.key(0), steps, *args, progress_bar=bar)
    jax.block_until_ready(found.params)
    return {"seconds": time.process_time() - begin, "steps": len(found.losses)}


def call(*given):
    done = subprocess.run([sys.executable, __file__, "--one", *map(str, given)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--steps", type=int, default=2000)
    args.add_argument("--times", type=int, default=3)
    args.add_argument("--only", nargs="*", default=PROBLEMS)
    args.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    args = args.parse_args()
    if args.one:
        kind, problem, optimiser, steps, bar = args.one
        print(json.dumps(one(kind, problem, optimiser, int(steps), bar == "True")))
        return
    head = (
        f"`python benchmarks/svi_cost.py --steps {args.steps} --times {args.times}`: CPU seconds, compiling included, each "
    )
    lines = [
        f"{head}run a process of its own, SVI's and ours by turns; medians.", "",
        "| problem | optimiser | bar | SVI | YOASOVI | ratio | steps taken |", "|---|---|---|---:|---:|---:|---:|",
    ]  # fmt: skip
    for problem in args.only:
        for optimiser in optimisers():
            for bar in (True, False):
                lines.append(row(problem, optimiser, bar, args))
                print(lines[-1], flush=True)
                (args.out / "svi_cost.md").write_text("\n".join(lines) + "\n")


def row(problem, optimiser, bar, args):
    found = [
        [call(kind, problem, optimiser, args.steps, bar) for kind in ("SVI", "YOASOVI")] for _ in range(args.times)
    ]  # fmt: skip
    svi, ours = (float(np.median([r[i]["seconds"] for r in found])) for i in (0, 1))
    steps = int(np.median([r[1]["steps"] for r in found]))
    shown = "yes" if bar else "no"
    return f"| {problem} | {optimiser} | {shown} | {svi:.1f} | {ours:.1f} | {ours / svi:.2f} | {steps:,} |"


if __name__ == "__main__":
    main()
