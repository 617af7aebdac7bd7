"""Data larger than memory: a logistic regression on Parquet files.

    python benchmarks/streams.py [--gigabytes 4] [--out benchmarks/results]

Files are written to a temporary folder, and read by a process of its own, whose peak memory is given: all of it, Python and
JAX included. Linux only.
"""

import argparse
import datetime
import json
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax
import numpy as np
import numpyro.distributions as dist

import yoasovi as yo

DIM, PER_FILE = 20, 500_000


def logistic(params, data):
    eta = data["X"] @ params["w"]
    return data["y"] * eta - jax.nn.softplus(eta)


def write(folder, gigabytes):
    """Write Parquet files of random rows, so many bytes in all."""
    import pyarrow as arrow
    from pyarrow import parquet

    w = np.random.default_rng(0).normal(size=DIM)
    for i in range(round(gigabytes * 2**30 / (8 * (DIM + 1) * PER_FILE))):
        rng = np.random.default_rng((1, i))
        X = rng.normal(size=(PER_FILE, DIM)) / np.sqrt(DIM)
        y = (rng.random(PER_FILE) < 1.0 / (1.0 + np.exp(-X @ w))).astype(float)
        columns = {**{f"x{j}": X[:, j] for j in range(DIM)}, "y": y}
        parquet.write_table(arrow.table(columns), Path(folder) / f"{i:04d}.parquet", compression="none")


def peak_megabytes():
    """Most memory that this process has had. (`ru_maxrss` would count the process that started it, too.)"""
    said = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(said.split()[1]) / 1024


def read(folder):
    """Fit what is in a folder, and print what it took; for a process of its own."""
    begin = time.perf_counter()
    data = yo.stream(folder, {"X": [f"x{j}" for j in range(DIM)], "y": "y"})
    prior = {"w": dist.Normal(np.zeros(DIM), 2.5).to_event(1)}
    fit = yo.fit(yo.Model(prior=prior, log_likelihood=logistic, data=data), progress=False)
    said = {
        "rows": len(data), "seconds": time.perf_counter() - begin, "converged": fit.converged, "elbo": str(fit.elbo),
        "ratio": float(np.std(fit.log_ratio)), "megabytes": peak_megabytes(),
    }  # fmt: skip
    print(json.dumps(said))


def streamed(gigabytes):
    yield "| rows | files | s, with sample and compiling | peak memory | sd of log p - log q, all rows | ELBO | converged |"
    yield "|---|---|---|---|---|---|---|"
    with tempfile.TemporaryDirectory() as folder:
        write(folder, gigabytes)
        size = sum(x.stat().st_size for x in Path(folder).iterdir()) / 1e9
        out = subprocess.run([sys.executable, __file__, "--read", folder], capture_output=True, text=True, check=True)
    said = json.loads(out.stdout.splitlines()[-1])
    yield (
        f"| {said['rows']:,} | {size:.2f} GB | {said['seconds']:.0f} | {said['megabytes']:,.0f} MB | {said['ratio']:.3f} "
        f"| {said['elbo']} | {said['converged']} |"
    )


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--gigabytes", type=float, default=4.0)
    args.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args.add_argument("--read", help=argparse.SUPPRESS)
    args = args.parse_args()
    if args.read:
        read(args.read)
        return
    said = f"`python benchmarks/streams.py --gigabytes {args.gigabytes:g}`"
    where = f"{datetime.date.today()}, yoasovi {yo.__version__}, JAX {jax.__version__}, {jax.default_backend()}, "
    lines = [f"{said}, {where}{platform.machine()}; {DIM} coefficients", ""]
    for line in streamed(args.gigabytes):
        print(line, flush=True)
        lines.append(line)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "streams.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
