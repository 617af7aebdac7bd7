"""The mixture with labels summed out on a CPU: the cost of a look, row by row, and the memory that a fit takes.

    python benchmarks/large_mixture.py [--rows 10000 100000 1000000 10000000]

Every size runs in a process of its own, on one thread. A look is log p with its gradient at one of eight draws that are
looked at together, in seconds of the CPU; the memory is the most that the process held, less what it held before there were
data. The table goes to results/large_mixture.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

OUT = Path(__file__).parent / "results" / "large_mixture.md"
DRAWS = 8  # at a time, as where windows are judged
MEANS = [[-2.0, -2.0], [2.0, -2.0], [-2.0, 2.0], [2.0, 2.0]]


def held(kind: str) -> int:
    """Bytes that this process holds now (VmRSS) or held at most (VmHWM)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(x for x in lines if x.startswith(kind)).split()[1])


def one(rows: int, fit: bool) -> dict:
    """Measure one size."""
    import numpy as np

    import yoasovi as yo
    from yoasovi.families import FullRank
    from yoasovi.kernels import kernels_of
    from yoasovi.kernels.programs import Clock

    rng = np.random.default_rng(0)
    yo.fit(yo.models.GaussianMixture(rng.normal(size=(100, 2)), 4, assignments="marginal"), progress=False, mend=False)
    before = held("VmRSS")
    y = rng.normal(size=(rows, 2))
    for i in range(0, rows, 10**5):  # a block at a time, so that making the data is not what is measured
        y[i : i + 10**5] += np.take(MEANS, rng.integers(0, 4, len(y[i : i + 10**5])), axis=0)
    model = yo.models.GaussianMixture(y, 4, assignments="marginal")
    kernels = kernels_of(model, FullRank(), Clock())
    point = np.asarray(MEANS).reshape(1, -1) + 0.1 * rng.normal(size=(DRAWS, 8))
    kernels.point(point)
    seconds = []
    for _ in range(min(max(10**7 // rows, 5), 200)):  # of which the least counts: a busy machine adds to the others
        begin = time.process_time()  # other processes of the machine do not count
        kernels.point(point)
        seconds.append((time.process_time() - begin) / DRAWS)
    found = {"rows": rows, "look": min(seconds)}
    del kernels  # which hold the data as well
    if fit:
        answer = yo.fit(model, progress=False)
        found |= {"fit": answer.seconds.run, "gradients": answer.num_gradients, "values": answer.num_values}
        found |= {"elbo": str(answer.elbo), "converged": bool(answer.converged)}
    return found | {"memory": (held("VmHWM") - before) / y.nbytes}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="*", default=[10**4, 10**5, 10**6, 10**7])
    parser.add_argument("--one", type=int)
    parser.add_argument("--fit", action="store_true")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one(args.one, args.fit)))
        return
    import jax

    one_thread = {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"}
    found = []
    for rows in args.rows:
        command = [sys.executable, __file__, "--one", str(rows), "--fit"]
        said = subprocess.run(command, env=os.environ | one_thread, capture_output=True, text=True, check=True)
        found.append(json.loads(said.stdout.splitlines()[-1]))
        print(found[-1], flush=True)
    base = found[0]["look"] / found[0]["rows"]
    lines = [
        "# The mixture with labels summed out, on a CPU",
        "",
        f"`python benchmarks/large_mixture.py`, {date.today():%-d %B %Y}, {platform.machine()}, one thread, "
        f"jax {jax.__version__}, float64. Four",
        "components in two dimensions. A look is log p with its gradient at one draw, eight at a time (the least of many,",
        "time of the CPU: other processes were running); memory is the most that the process held during a whole fit,",
        "less what it held before there were data, over the bytes of the data.",
        "",
        "| rows | a look, ms | ns a row | over the first | memory over data | whole fit, s | gradients, values | ELBO |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for x in found:
        each = x["look"] / x["rows"]
        lines.append(
            f"| {x['rows']:,} | {1e3 * x['look']:.3g} | {1e9 * each:.1f} | {each / base:.2f} | {x['memory']:.2f} | "
            f"{x['fit']:.1f} | {x['gradients']:,}, {x['values']:,} | {x['elbo']} |"
        )
    OUT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
