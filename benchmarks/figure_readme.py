"""Draw docs/readme.svg: ELBO against time from a cold start, ours beside NumPyro's SVI, and when NUTS has its draws.

    python benchmarks/figure_readme.py

The posterior is real: disease progression of 442 patients on ten measurements (scikit-learn's diabetes data, not scaled), in
raw units, with wide priors. Every program is a process of its own on one core, and time is the processor's, from the start
of Python: what is imported and compiled counts, other users of the machine do not. SVI has Adam at 0.01 and 0.001, with a
full covariance and without; ELBOs are on 500 fresh draws, and estimating them is not counted. The lowest line is the floor:
what lies there is 0.05 nats below the best ELBO, or less. The numbers are kept in out/readme.json, and drawn from there with

    python benchmarks/figure_readme.py --again
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

MODEL = """
import json, time
import jax, jax.numpy as jnp, numpy as np, numpyro, numpyro.distributions as dist
from sklearn.datasets import load_diabetes
X, y = load_diabetes(return_X_y=True, scaled=False)

def model(X, y):
    level = numpyro.sample("level", dist.Normal(0, 1000))
    w = numpyro.sample("w", dist.Normal(0, 100).expand([10]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(200))
    with numpyro.plate("patients", len(y)):
        numpyro.sample("y", dist.Normal(level + X @ w, noise), obs=y)
"""
OURS = """
import yoasovi as yo
fit = yo.fit(model, X, y, seed=0, progress=False)
draws = fit.sample(1000)
end, kept = time.process_time(), fit.trace["accepted"]
before = fit.trace["elapsed"][-1] - fit.trace["elapsed"][kept]
last = end - fit.seconds.stages.get("mend", 0.0) - fit.seconds.stages.get("sample", 0.0) - fit.seconds.stages["elbo"]
points = [[last - b, e] for b, e in zip(before, fit.trace["elbo"][kept])]
print(json.dumps([*points, [end, fit.elbo.value]]))
"""
SVI = """
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal
guide = {guide}(model)
svi = SVI(model, guide, numpyro.optim.Adam({rate}), Trace_ELBO())
state = svi.init(jax.random.key(0), X, y)
some = jax.jit(lambda s: jax.lax.scan(lambda s, _: svi.update(s, X, y), s, None, length=1000)[0])
elbo = jax.jit(lambda s: -Trace_ELBO(500).loss(jax.random.key(1), svi.get_params(s), model, guide, X, y))
points, spent = [], 0.0
for _ in range({thousands}):
    state = jax.block_until_ready(some(state))
    now = time.process_time()
    points.append([now - spent, float(elbo(state))])
    spent += time.process_time() - now
print(json.dumps(points))
"""
NUTS = """
from numpyro.infer import MCMC, NUTS
from numpyro.diagnostics import effective_sample_size
mcmc = MCMC(NUTS(model), num_warmup=1000, num_samples=1000, progress_bar=False)
mcmc.run(jax.random.key(0), X, y)
draws = jax.block_until_ready(mcmc.get_samples(group_by_chain=True))
end = time.process_time()
print(json.dumps([end, float(min(np.min(effective_sample_size(np.asarray(x))) for x in draws.values()))]))
"""
STEPS = 200_000  # of SVI
COLOURS = ["#0072B2", "#009E73", "#CC79A7", "#E69F00"]
FLOOR = 0.05  # nats below the best ELBO: 500 draws can hardly tell less
ROOT = Path(__file__).parent.parent
KEPT = ROOT / "out" / "readme.json"


def measure(code: str) -> list:
    env = os.environ | {
        "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu", "YOASOVI_CACHE": "off",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    }  # fmt: skip
    one = ["taskset", "-c", "0"] if Path("/usr/bin/taskset").exists() else []
    out = subprocess.run([*one, sys.executable, "-c", MODEL + code], env=env, capture_output=True, text=True, check=True)
    return json.loads(out.stdout.splitlines()[-1])


def measured() -> dict:
    ours = [measure(OURS) for _ in range(3)]
    svi = {
        f"{guide}, Adam {rate}": measure(SVI.format(guide=guide, rate=rate, thousands=STEPS // 1000))
        for guide in ("AutoNormal", "AutoMultivariateNormal") for rate in (0.01, 0.001)
    }  # fmt: skip
    return {"ours": ours, "svi": svi, "nuts": [measure(NUTS) for _ in range(2)]}


def draw(ours: list, svi: dict, nuts: list) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    best = max(run[-1][1] for run in ours)
    print(f"best ELBO {best:.2f}; ours {[round(run[-1][0], 1) for run in ours]} s; NUTS (s, smallest ESS) {nuts}")
    for name, points in svi.items():
        print(f"{name}: {points[-1][1]:.2f} after {STEPS:,} steps, {points[-1][0]:.1f} s")
    plt.rcParams.update({"font.size": 12, "axes.spines.top": False, "axes.spines.right": False, "svg.fonttype": "path"})
    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    gap = lambda points: [max(best - e, FLOOR) for _, e in points]
    for (name, points), colour in zip(svi.items(), COLOURS, strict=True):
        axes.plot([t for t, _ in points], gap(points), color=colour, lw=1.5, label=f"NumPyro SVI, {name}")
    for i, points in enumerate(ours):
        axes.plot([t for t, _ in points], gap(points), color="#D55E00", lw=1.8, label=None if i else "yoasovi, three runs")
    for i, points in enumerate(ours):
        label = None if i else "its fit ended, with 1,000 draws"
        axes.plot(points[-1][0], gap(points)[-1], "s", color="#D55E00", ms=6, label=label)
    ends = [t for t, _ in nuts]
    axes.axvspan(min(ends), max(ends) + 0.1, color="#555555", alpha=0.35, lw=0, label="NUTS has its 1,000 draws, two runs")
    axes.set(yscale="log", xlabel="seconds from the start of Python, one core", ylabel="nats below the best ELBO")
    high = axes.get_ylim()[1]
    ticks = [FLOOR, *(10.0**e for e in range(-1, 12) if 10.0**e <= high)]
    axes.set_yticks(
        ticks, [f"≤ {FLOOR:g}", *(f"{t:g}" if t < 1e4 else f"$10^{{{round(math.log10(t))}}}$" for t in ticks[1:])]
    )
    axes.minorticks_off()
    axes.set_ylim(FLOOR / 1.4, high)
    figure.legend(loc="outside lower center", ncols=2, fontsize=10.5, frameon=False)
    figure.savefig(ROOT / "docs" / "readme.svg", metadata={"Date": None})


def main():
    if "--again" not in sys.argv:
        KEPT.parent.mkdir(exist_ok=True)
        KEPT.write_text(json.dumps(measured()))
    draw(**json.loads(KEPT.read_text()))


if __name__ == "__main__":
    main()
