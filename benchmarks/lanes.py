"""Restarts as lanes: how long 1,024 fits from different starts take beside one, compiled.

    python benchmarks/lanes.py [--restarts 1024] [--repeats 5]

The model is the paper's mixture of three in two dimensions, N = 500, labels summed out. On an accelerator looks at all lanes
are one call; on a CPU every look costs what it costs, so the ratio says little there.
"""

from __future__ import annotations

import argparse
import statistics
import time

import jax

import yoasovi as yo
from yoasovi.experiments import simulate


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--restarts", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    model = yo.models.GaussianMixture(simulate.mixture(2, 3), 3, assignments="marginal")
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}")
    middle = {}
    for lanes, mend in ((1, False), (args.restarts, False), (1, True), (args.restarts, True)):
        seconds = []
        for seed in range(args.repeats + 1):
            begin = time.perf_counter()
            fit = yo.fit(model, restarts=lanes, seed=seed, progress=False, mend=mend)
            seconds.append(time.perf_counter() - begin)
            if seed == 0:
                print(f"{lanes:>6} lanes, first: {seconds[0]:.2f} s, of which {fit.seconds.compile:.2f} s compiling")
        middle[lanes, mend] = statistics.median(seconds[1:])
        stages = {k: round(v, 3) for k, v in fit.seconds.stages.items()}
        said = f"{middle[lanes, mend]:.3f} s, ELBO {fit.elbo}, {fit.num_gradients:,} gradients"
        print(f"{lanes:>6} lanes{', mended' * mend}: {said}, {stages}")
    for mend, words in ((False, "mend=False"), (True, "as fits are by default")):
        print(f"{args.restarts:,} over one, {words}: {middle[args.restarts, mend] / middle[1, mend]:.1f}")


if __name__ == "__main__":
    main()
