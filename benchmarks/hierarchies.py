"""Varying intercepts and slopes of 100 to 100,000 groups: the globals' posterior against the exact one, time and memory.

    python benchmarks/hierarchies.py [--groups 100 1000 10000 100000] [--seeds 3] [--only intercepts]

Every group has 5 observations, y = a_g + b_g x + noise with x = -2, ..., 2 (intercepts alone: b_g = 0). The groups' effects
can be integrated out, and the rest by quadrature. Each fit runs in a process of its own, so that its memory is its own.
From 10,000 groups on there is a fit by minibatches of 1% of the groups beside that of all. "Looks at a row" are evaluations
of log p or its gradient at draws, those of the search for groups, the start and the ELBO included, divided by the rows;
inside a look at a minibatch its groups' own parameters are set by Newton steps. Means and standard deviations are those that
`fit.mean()` and `fit.sd()` give: by all the data they are corrected by importance weights, by minibatches they are q's.

The second table has what a gradient of log p costs: the time of a call with a block of draws, less that of one with ten
groups, which is the price of calling.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.special import logsumexp

import yoasovi as yo
from yoasovi.answer.averages import moments
from yoasovi.kernels import kernels_of
from yoasovi.kernels.looks import JaxKernels
from yoasovi.kernels.programs import Clock

X = np.arange(-2.0, 3.0)
TRUTH = {"mean": 1.0, "spread": 0.7, "slope": -0.5, "slope_spread": 0.4, "noise": 1.0}


def intercepts(y):
    mean, spread = numpyro.sample("mean", dist.Normal(0.0, 10.0)), numpyro.sample("spread", dist.HalfNormal(5.0))
    noise = numpyro.sample("noise", dist.HalfNormal(5.0))
    with numpyro.plate("group", len(y)):
        level = numpyro.sample("level", dist.Normal(mean, spread))
        numpyro.sample("y", dist.Normal(level[:, None], noise).to_event(1), obs=y)


def slopes(y):
    mean, slope = numpyro.sample("mean", dist.Normal(0.0, 10.0)), numpyro.sample("slope", dist.Normal(0.0, 10.0))
    spread = numpyro.sample("spread", dist.HalfNormal(5.0))
    slope_spread = numpyro.sample("slope_spread", dist.HalfNormal(5.0))
    noise = numpyro.sample("noise", dist.HalfNormal(5.0))
    with numpyro.plate("group", len(y)):
        level = numpyro.sample("level", dist.Normal(mean, spread))
        tilt = numpyro.sample("tilt", dist.Normal(slope, slope_spread))
        numpyro.sample("y", dist.Normal(level[:, None] + tilt[:, None] * X, noise).to_event(1), obs=y)


MODELS = {"intercepts": intercepts, "slopes": slopes}


def simulate(kind, groups):
    rng = np.random.default_rng(groups)
    level = TRUTH["mean"] + TRUTH["spread"] * rng.normal(size=groups)
    tilt = TRUTH["slope"] + TRUTH["slope_spread"] * rng.normal(size=groups) if kind == "slopes" else np.zeros(groups)
    return level[:, None] + tilt[:, None] * X + TRUTH["noise"] * rng.normal(size=(groups, len(X)))


def effect(seen, weight, variance):
    """Integrate one kind of effect out, given the noise's variance (S,): seen_g ~ N(m, spread^2 + variance / weight).

    m ~ N(0, 100) in closed form, spread ~ HalfNormal(5) on a grid of its logarithm. Gives log p by noise, and the first
    two moments of m and of spread by noise.
    """
    count, middle = len(seen), seen.mean()
    about = ((seen - middle) ** 2).sum()
    usual = max(about / count - variance.mean() / weight, 1e-3)
    width = (usual + variance.mean() / weight) / usual / np.sqrt(2 * count)
    log_spread = 0.5 * np.log(usual) + np.linspace(-10.0, 10.0, 801) * width
    square = np.exp(2 * log_spread)
    total = square[:, None] + variance / weight  # (R, S)
    precision = count / total + 0.01
    mean = count * middle / total / precision
    log_p = -0.5 * (count * np.log(total) + about / total + np.log(precision) + count * middle**2 / total)
    log_p += 0.5 * mean**2 * precision + (log_spread - square / 50.0)[:, None]
    share = np.exp(log_p - logsumexp(log_p, axis=0))
    spread = np.exp(log_spread)[:, None]
    return logsumexp(log_p, axis=0), [(share * f).sum(0) for f in (mean, mean**2 + 1.0 / precision, spread, spread**2)]


def exact(kind, y):
    """Give means and standard deviations of the globals: levels and tilts are apart since X sums to zero."""
    count, size = y.shape
    level, tilt = y.mean(1), y @ X / (X @ X)
    fitted = level[:, None] + (tilt[:, None] * X if kind == "slopes" else 0.0)
    rest, freedom = ((y - fitted) ** 2).sum(), count * (size - (2 if kind == "slopes" else 1))
    log_noise = 0.5 * np.log(rest / freedom) + np.linspace(-9.0, 9.0, 401) / np.sqrt(2 * freedom)
    variance = np.exp(2 * log_noise)
    log_p = -freedom * log_noise - 0.5 * rest / variance + log_noise - variance / 50.0
    found = {("mean", "spread"): effect(level, size, variance)}
    if kind == "slopes":
        found["slope", "slope_spread"] = effect(tilt, X @ X, variance)
    log_p = log_p + sum(x for x, _ in found.values())
    share = np.exp(log_p - logsumexp(log_p))
    out = {"noise": [share @ np.sqrt(variance), share @ variance]}
    for names, (_, each) in found.items():
        for name, pair in zip(names, (each[:2], each[2:]), strict=True):
            out[name] = [share @ x for x in pair]
    return {k: (first, np.sqrt(second - first**2)) for k, (first, second) in out.items()}


class Looks:
    """Counts looks at groups, of whichever model."""

    def __init__(self, kind):
        self.groups, (hub, own) = 0.0, (5, 2) if kind == "slopes" else (3, 1)
        for name, sides in (("look", 1), ("compare", 2)):
            plain = getattr(JaxKernels, name)

            def counted(kernels, points, *rest, plain=plain, sides=sides):
                self.groups += sides * len(points) * (kernels.dim - hub) / own
                return plain(kernels, points, *rest)

            setattr(JaxKernels, name, counted)


def one(kind, groups, seed, batch):
    """Fit once and print what came out as JSON."""
    y = simulate(kind, groups)
    truth, looks = exact(kind, y), Looks(kind)
    begin, busy = time.perf_counter(), time.process_time()
    fit = yo.fit(MODELS[kind], y, seed=seed, batch_size=batch or None)
    wall, busy = time.perf_counter() - begin, time.process_time() - busy
    rows = looks.groups / groups
    if batch:  # looks at one of the minibatches each, and two at all rows to see that they can be cut
        rows += fit.num_steps / round(groups / batch) + 2
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    mean, sd = moments(fit, 4000, 0)
    print(json.dumps({
        "family": fit.family.name, "converged": fit.converged, "rows": rows, "wall": wall, "busy": busy,
        "compile": fit.seconds.compile, "memory": memory,
        "errors": {k: [float((mean[k] - m) / s), float(sd[k] / s)] for k, (m, s) in truth.items()},
    }))  # fmt: skip


def look(kind, groups):
    """Give the processor seconds of a gradient at a block of draws, and how many draws that is."""
    model = yo.from_numpyro(MODELS[kind], simulate(kind, groups))
    kernels = kernels_of(model, yo.MeanField(), Clock())
    points = np.random.default_rng(0).normal(size=(kernels.block, model.density.dim))
    kernels.look(points, None)
    times = []
    for _ in range(300 if groups <= 1000 else 20):
        begin = time.process_time()
        kernels.look(points, None)
        times.append(time.process_time() - begin)
    return min(times), len(points)


def run(kind, groups, seed, batch):
    command = [sys.executable, __file__, "--one", kind, str(groups), str(seed), str(batch)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(said.splitlines()[-1])


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--groups", type=int, nargs="+", default=[100, 1000, 10_000, 100_000])
    args.add_argument("--seeds", type=int, default=3)
    args.add_argument("--only", choices=MODELS, default=None)
    args.add_argument("--one", nargs=4, default=None, help=argparse.SUPPRESS)
    args = args.parse_args()
    if args.one:
        kind, groups, seed, batch = args.one
        return one(kind, int(groups), int(seed), int(batch))
    kinds = [args.only] if args.only else list(MODELS)
    print("# Hierarchies\n")
    versions = f"yoasovi {yo.__version__}, JAX {jax.__version__}, {os.cpu_count()} cores of {jax.devices()[0].device_kind}"
    busy = f"{os.getloadavg()[0]:.0f} processes at work when it began, so that processor seconds count"
    print(f"`python {' '.join(sys.argv)}`, {versions}, {busy}, {time.strftime('%Y-%m-%d')}\n")
    print(__doc__.split("\n\n", 2)[2].rsplit("\n\n", 1)[0].strip() + "\n")
    print("| model | groups | in a minibatch | converged | largest error of a mean (sd) | sds, least and most (true sds) "
          "| looks at a row | s in all | processor s | s compiling | GB |")  # fmt: skip
    print("|---" * 11 + "|")
    for kind in kinds:
        for groups in args.groups:
            for batch in (0, groups // 100) if groups >= 10_000 else (0,):
                runs = [run(kind, groups, seed, batch) for seed in range(args.seeds)]
                errors = np.array([list(r["errors"].values()) for r in runs])
                middle = lambda key, runs=runs: float(np.median([r[key] for r in runs]))
                print(f"| {kind} | {groups:,} | {f'{batch:,}' if batch else 'all'} | {sum(r['converged'] for r in runs)} of "
                      f"{len(runs)} | {np.abs(errors[..., 0]).max():.3f} | {errors[..., 1].min():.3f}, "
                      f"{errors[..., 1].max():.3f} | {middle('rows'):,.0f} | {middle('wall'):.1f} | {middle('busy'):.1f} "
                      f"| {middle('compile'):.1f} | {max(r['memory'] for r in runs):.2f} |", flush=True)  # fmt: skip
    print("\n" + __doc__.rsplit("\n\n", 1)[1].strip() + "\n")
    print("| model | groups | draws in a block | us a call | of which calling | ns a group and draw |")
    print("|---" * 6 + "|")
    for kind in kinds:
        fixed, _ = look(kind, 10)
        for groups in args.groups:
            seconds, draws = look(kind, groups)
            each = 1e9 * (seconds - fixed) / draws / groups
            print(f"| {kind} | {groups:,} | {draws} | {1e6 * seconds:,.0f} | {1e6 * fixed:,.0f} | {each:.1f} |", flush=True)


if __name__ == "__main__":
    main()
