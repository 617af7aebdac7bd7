"""From `import` to an answer, in fresh processes: yoasovi beside NumPyro's SVI and NUTS and PyMC's ADVI.

    python benchmarks/cold.py [--repeats 5] [--only SUBSTRING]

Every measurement is a process of its own, on one core; the programs compared take turns, and medians are given. Seconds
are CPU seconds of the whole process (compiling uses more than one thread where there are more cores), wall-clock seconds
beside them. `cached` runs use JAX's persistent compilation cache, filled by the run before. PyMC is run both ways: with what
PyTensor keeps of earlier processes, and with nothing kept (`first`), as ours has nothing kept in all rows but `cached`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCHOOLS = """
import numpy as np, numpyro, numpyro.distributions as dist
Y, SE = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])

def model(y=None, se=None):
    mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", 8):
        z = numpyro.sample("z", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(mu + tau * z, se), obs=y)

ARGS = (Y, SE)
"""
LOGISTIC = """
import numpy as np, jax.numpy as jnp, numpyro, numpyro.distributions as dist
r = np.random.default_rng(0)
X = r.normal(size=(500, 10))
Y = (r.random(500) < 1 / (1 + np.exp(-X @ r.normal(size=10)))).astype(int)

def model(x, y=None):
    b, w = numpyro.sample("b", dist.Normal(0, 2)), numpyro.sample("w", dist.Normal(jnp.zeros(10), 2.0).to_event(1))
    with numpyro.plate("row", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=b + x @ w), obs=y)

ARGS = (X, Y)
"""
OURS = "import yoasovi as yo\nfit = yo.fit(yo.from_numpyro(model, *ARGS), progress=False)\nfit.mean()"
SVI = """
import jax
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
guide = AutoNormal(model)
svi = SVI(model, guide, numpyro.optim.Adam(0.01), Trace_ELBO())
result = svi.run(jax.random.key(0), 10_000, *ARGS, progress_bar=False)
means = {k: v.mean(0) for k, v in guide.sample_posterior(jax.random.key(1), result.params, sample_shape=(1000,)).items()}
jax.block_until_ready(means)
"""
NUTS = """
import jax
from numpyro.infer import MCMC, NUTS
mcmc = MCMC(NUTS(model), num_warmup=1000, num_samples=1000, progress_bar=False)
mcmc.run(jax.random.key(0), *ARGS)
mcmc.print_summary()
"""
PYMC = """
import numpy as np, pymc as pm
Y, SE = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
with pm.Model() as model:
    mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
    z = pm.Normal("z", 0, 1, shape=8)
    pm.Normal("y", mu + tau * z, SE, observed=Y)
"""
PYMC_OURS = "import yoasovi as yo\nfit = yo.fit(model, progress=False)\nfit.mean()"
PYMC_FIT = """
with model:
    approximation = pm.fit(progressbar=False)
    draws = approximation.sample(1000)
"""
COUNTS = """
import yoasovi as yo
from yoasovi.kernels.programs import num_programs
fit = yo.fit(yo.from_numpyro(model, *ARGS), progress=False)
after_fit = num_programs()
fit.sample(), fit.summary()
after_all = num_programs()
again = yo.fit(fit.model, seed=1, progress=False)
again.summary()
found = {"fit": after_fit, "with verdict, samples and summary": after_all, "second fit": num_programs() - after_all}
print("RESULT", json.dumps(found))
"""
AGAIN = """
import time, numpy as np, jax.numpy as jnp, yoasovi as yo, numpyro.distributions as dist
def cell(n):
    r = np.random.default_rng(n)
    X, y = r.normal(size=(n, 10)), r.normal(size=n)
    model = yo.Model(prior={"w": dist.Normal(np.zeros(10), 1.0).to_event(1)}, data={"X": X, "y": y},
                     log_likelihood=lambda p, d: dist.Normal(d["X"] @ p["w"], 1.0).log_prob(d["y"]))
    begin = time.process_time()
    yo.fit(model, progress=False).mean()
    return time.process_time() - begin
cell(500)
print("RESULT", json.dumps({"new lambda": cell(500), "other rows": cell(731)}))
"""


def programs(model: str) -> dict[str, str]:
    """Give what is compared on a NumPyro model."""
    summary = OURS + "\nprint(fit.summary())"
    return {"yoasovi": model + OURS, "SVI": model + SVI, "yoasovi, summary": model + summary, "NUTS": model + NUTS}


CASES = {
    "eight schools": programs(SCHOOLS),
    "logistic, N = 500, d = 10": programs(LOGISTIC),
    "eight schools in PyMC": {"yoasovi": PYMC + PYMC_OURS, "pm.fit": PYMC + PYMC_FIT},
}
RATIOS = (
    ("eight schools", "yoasovi", "SVI", 0.5), ("logistic, N = 500, d = 10", "yoasovi", "SVI", 0.5),
    ("eight schools", "yoasovi, summary", "NUTS", 1.0), ("logistic, N = 500, d = 10", "yoasovi, summary", "NUTS", 1.0),
    ("eight schools in PyMC", "yoasovi, first", "pm.fit, first", 0.5), ("eight schools in PyMC", "yoasovi", "pm.fit", 0.5),
    ("eight schools", "yoasovi, cached", "yoasovi", 0.5),
    ("logistic, N = 500, d = 10", "yoasovi, cached", "yoasovi", 0.5),
)  # fmt: skip


def timed(code: str, **environment: str) -> tuple[float, float]:
    """Run code in a process of its own on one core; give its CPU and wall-clock seconds."""
    env = {**os.environ, "JAX_PLATFORMS": "cpu", **environment}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # what is installed has its bytecode
    before, begin = os.times(), time.perf_counter()
    run = [sys.executable, "-W", "ignore", "-c", "import json\n" + code]
    if hasattr(os, "sched_setaffinity"):
        run = ["taskset", "-c", str(sorted(os.sched_getaffinity(0))[0]), *run]
    subprocess.run(run, check=True, env=env, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - begin, os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system, wall


def told(code: str) -> dict:
    run = [sys.executable, "-W", "ignore", "-c", "import json\n" + code]
    found = subprocess.run(run, check=True, capture_output=True, text=True)
    return json.loads(next(x for x in found.stdout.splitlines() if x.startswith("RESULT")).removeprefix("RESULT"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    seconds: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for case, compared in CASES.items():
        if args.only not in case:
            continue
        with tempfile.TemporaryDirectory() as cache:
            if "PyMC" not in case:
                timed(compared["yoasovi"], YOASOVI_CACHE=cache)
            for _ in range(args.repeats):
                for name, code in compared.items():
                    seconds.setdefault((case, name), []).append(timed(code, YOASOVI_CACHE="off"))
                    if "PyMC" in case:
                        with tempfile.TemporaryDirectory() as kept:
                            found = timed(code, YOASOVI_CACHE="off", PYTENSOR_FLAGS=f"base_compiledir={kept}")
                        seconds.setdefault((case, f"{name}, first"), []).append(found)
                if "PyMC" not in case:
                    seconds.setdefault((case, "yoasovi, cached"), []).append(timed(compared["yoasovi"], YOASOVI_CACHE=cache))
        for name in [name for where, name in seconds if where == case]:
            cpu, wall = (statistics.median(x[i] for x in seconds[case, name]) for i in (0, 1))
            print(f"{case:<28}{name:<20}{cpu:7.2f} s CPU {wall:7.2f} s", flush=True)
    middle = {k: statistics.median(x[0] for x in v) for k, v in seconds.items()}
    print("\n| model | what | over what | CPU s | CPU s | ratio | at most |\n|---|---|---|---|---|---|---|")
    for case, ours, theirs, most in RATIOS:
        if (case, ours) in middle and (case, theirs) in middle:
            a, b = middle[case, ours], middle[case, theirs]
            print(f"| {case} | {ours} | {theirs} | {a:.2f} | {b:.2f} | {a / b:.2f} | {most} |")
    print("\nPrograms compiled (logistic):", told(LOGISTIC + COUNTS), "\nCPU seconds of a cell run again:", told(AGAIN))
    print(f"\n{Path(__file__).name}, {args.repeats} repeats, one core")


if __name__ == "__main__":
    main()
