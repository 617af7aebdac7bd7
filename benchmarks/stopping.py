"""Is the stop rule calibrated? How often a fit claims convergence too soon, and what it spends after it was there.

    python benchmarks/stopping.py [--data 4] [--seeds 9] [--only NAME,...] [--out benchmarks/results]

Sixteen posteriors, each with several simulated data sets and several seeds of the default method on its default family: 576
runs. The family's best is not taken from the method: from the best of the runs a quasi-Newton optimiser climbs the ELBO
averaged over fixed draws, and the winner on fresh draws is the reference. All gaps to it are means over common draws.

- A claim is false if the fit says it converged while its ELBO is more than 1 nat short of the reference, and more than 1% of
  the distance from where it started.
- Evaluations (of log p, with or without gradient) past the point are those after the first turn whose incumbent was within
  0.1 nat of the reference.
"""

import argparse
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from scipy.optimize import minimize

import yoasovi as yo
from yoasovi import fitting
from yoasovi.drive import lane, running
from yoasovi.kernels import kernels_of
from yoasovi.kernels.programs import Bound, Clock, Held
from yoasovi.methods import method
from yoasovi.run.interrupts import Interrupts
from yoasovi.stopping import StopReason
from yoasovi.turns import Limits

SHORT, SHARE, NEAR = 1.0, 0.01, 0.1
PATH_DRAWS, FINAL_DRAWS, FIXED_DRAWS, BLOCK = 512, 4096, 1024, 32

# ---- posteriors: functions of data alone, so that another data set compiles nothing -------------------------


def gaussian_likelihood(p, d):
    return -0.5 * (d["rows"] @ (p["x"] - d["mean"])) ** 2


def gaussian(rng, dim, condition):
    turned = np.linalg.qr(rng.normal(size=(dim, dim)))[0]
    rows = turned * np.geomspace(1, condition, dim)[:, None] ** 0.5
    prior = {"x": dist.Normal(np.zeros(dim), np.full(dim, 10.0)).to_event(1)}
    return yo.Model(prior=prior, log_likelihood=gaussian_likelihood, data={"rows": rows, "mean": rng.normal(size=dim)})


def design(rng, n, p):
    return rng.normal(size=(n, p)), rng.normal(size=p) * 0.7


def linear(rng):
    X, b = design(rng, 100, 8)
    noise = dict(noise_prior="half_cauchy", noise_scale=10.0)
    return yo.models.LinearRegression(X, X @ b + rng.normal(size=100), 10.0, autoscale=False, **noise)


def logistic(rng, n=200, p=10):
    X, b = design(rng, n, p)
    return yo.models.LogisticRegression(X, (rng.logistic(size=n) < X @ b).astype(int), autoscale=False)


def poisson(rng):
    X, b = design(rng, 100, 5)
    return yo.models.PoissonRegression(X, rng.poisson(np.exp(0.5 * X @ b)), autoscale=False)


def hierarchical(rng):
    group = np.arange(100) % 10
    return yo.models.HierarchicalNormal(rng.normal(size=10)[group] + rng.normal(size=100), group)


def schools(rng, centered=False):
    sd = rng.uniform(8, 18, size=8)
    return yo.models.HierarchicalNormal(5 + 6 * rng.normal(size=8) + sd * rng.normal(size=8), sd=sd, centered=centered)


def student_likelihood(p, d):
    return dist.StudentT(3.0, d["X"] @ p["b"], p["s"]).log_prob(d["y"])


def student(rng):
    X, b = design(rng, 60, 5)
    prior = {"b": dist.Normal(np.zeros(5), np.ones(5)).to_event(1), "s": dist.HalfNormal(2.0)}
    return yo.Model(prior=prior, log_likelihood=student_likelihood, data={"X": X, "y": X @ b + rng.standard_t(3, size=60)})


def process_likelihood(p, d):
    return dist.Poisson(jnp.exp(d["root"] @ p["z"] * p["height"])).log_prob(d["y"])


def process(rng, n=20):
    x = np.linspace(0, 1, n)
    root = np.linalg.cholesky(np.exp(-0.5 * ((x[:, None] - x) / 0.15) ** 2) + 1e-6 * np.eye(n))
    prior = {"z": dist.Normal(np.zeros(n), np.ones(n)).to_event(1), "height": dist.HalfNormal(1.0)}
    y = rng.poisson(np.exp(root @ rng.normal(size=n)))
    return yo.Model(prior=prior, log_likelihood=process_likelihood, data={"root": root, "y": y})


def mixture(rng):
    centres = 4.0 * rng.normal(size=(3, 2))
    return yo.models.GaussianMixture(centres[np.arange(90) % 3] + rng.normal(size=(90, 2)), 3, assignments="marginal")


def funnel_likelihood(p, d):
    return dist.Normal(0.0, jnp.exp(0.5 * p["v"])).log_prob(p["x"]) + dist.Normal(p["x"], d["sd"]).log_prob(d["y"])


def funnel(rng):
    prior = {"v": dist.Normal(0.0, 1.5), "x": dist.Normal(np.zeros(5), np.full(5, 100.0)).to_event(1)}
    return yo.Model(prior=prior, log_likelihood=funnel_likelihood, data={"y": rng.normal(size=5), "sd": np.full(5, 1.5)})


def banana_likelihood(p, d):
    return dist.Normal(p["x"][0] + p["x"][1] ** 2, 1.0).log_prob(d["y"])


def banana(rng):
    prior = {"x": dist.Normal(np.zeros(2), np.ones(2)).to_event(1)}
    return yo.Model(prior=prior, log_likelihood=banana_likelihood, data={"y": 1.0 + rng.normal(size=10)})


def simplex_likelihood(p, d):
    return d["counts"] * jnp.log(p["share"])


def simplex(rng):
    counts = rng.multinomial(40, rng.dirichlet(np.ones(6))).astype(float)
    return yo.Model(prior={"share": dist.Dirichlet(np.ones(6))}, log_likelihood=simplex_likelihood, data={"counts": counts})


def rates_likelihood(p, d):
    return dist.Poisson(p["rate"] * d["time"]).log_prob(d["y"]) + dist.Gamma(p["a"], p["a"] / p["m"]).log_prob(p["rate"])


def rates(rng):
    span = rng.uniform(1, 20, size=10)
    y = rng.poisson(rng.gamma(2.0, 0.5, size=10) * span)
    prior = {
        "a": dist.LogNormal(0.0, 1.0), "m": dist.LogNormal(0.0, 1.0),
        "rate": dist.LogNormal(np.zeros(10), np.full(10, 10.0)).to_event(1),
    }  # fmt: skip
    return yo.Model(prior=prior, log_likelihood=rates_likelihood, data={"time": span, "y": y})


POSTERIORS = {
    "gaussian, 10 parameters": lambda rng: gaussian(rng, 10, 1e2),
    "gaussian, 25 parameters, condition 1e6": lambda rng: gaussian(rng, 25, 1e6),
    "linear regression": linear,
    "logistic regression": logistic,
    "logistic regression, 30 rows": lambda rng: logistic(rng, 30, 8),
    "poisson regression": poisson,
    "groups, not centred": hierarchical,
    "eight schools": schools,
    "eight schools, centred": lambda rng: schools(rng, True),
    "heavy-tailed regression": student,
    "gaussian process, counts": process,
    "mixture of three": mixture,
    "funnel": funnel,
    "banana": banana,
    "shares (simplex)": simplex,
    "rates (positive)": rates,
}


# ---- runs --------------------------------------------------------------------------------------------------


class Run(NamedTuple):
    """One fit: the incumbent after every turn, what had been spent by then, and what it claimed."""

    path: list
    spent: np.ndarray
    claims: bool


def run(model, chosen, family, seed) -> Run:
    """Fit as `yo.fit` does, and keep the way."""
    options = fitting.Options(seed, chosen.max_steps, 1, False, False, 200, None, False)
    turns = fitting.turns_of(model, chosen, family, Limits(seed, chosen.max_steps, 200), Clock(), 1)
    state, _, costs = fitting._fresh(model, turns, turns.kernels, options)
    begin = costs.values + costs.gradients
    path, spent = [lane(state.incumbent, 0)], [begin]
    while running(state):
        state, _ = turns.take(state)
        path.append(lane(state.incumbent, 0))
        spent.append(begin + int(state.values[0]) + int(state.gradients[0]))
    return Run(path, np.array(spent), int(state.reason[0]) == StopReason.CONVERGED)


def gaps(model, family, path, best, draws, seed=0):
    """Give how far each of a list of q is below the best, and the standard errors, on common draws.

    Where one is not finite it is left out.
    """
    out, errors = [], []
    kernels = kernels_of(model, family, Clock(), BLOCK)
    noise = np.random.default_rng([77, seed]).standard_normal((draws, family.noise_size(model.density)))
    for i in range(0, len(path), BLOCK):
        stack = jax.tree.map(lambda *x: np.stack(x), best, *path[i : i + BLOCK])
        each = kernels.values(stack, np.broadcast_to(noise, (len(stack.mean), *noise.shape)))
        short = each[:1] - each[1:]
        short = np.where(np.isfinite(short), short, np.nan)
        out.append(np.nanmean(short, 1))
        errors.append(np.nanstd(short, 1) / draws**0.5)
    return np.concatenate(out), np.concatenate(errors)


def _fixed(density, family, inputs, params, noise):
    def loss(p):
        theta = family.place(p, noise)
        each = jax.lax.map(lambda x: density.free_terms(inputs, x, None).total(), theta, batch_size=256)
        each = each + family.minus_log_q(p, noise)
        sound = jnp.isfinite(each)
        return -jnp.sum(jnp.where(sound, each, 0.0)) / jnp.maximum(sound.sum(), 1)

    return jax.value_and_grad(loss)(params)


def polished(model, family, params, draws=FIXED_DRAWS):
    """Climb the ELBO averaged over fixed mirrored draws, by L-BFGS."""
    leaves, tree = jax.tree.flatten(params)
    ends = np.cumsum([x.size for x in leaves])[:-1]
    back = lambda x: jax.tree.unflatten(tree, [p.reshape(a.shape) for p, a in zip(np.split(x, ends), leaves, strict=True)])
    flat = lambda t: np.concatenate([np.ravel(x) for x in jax.tree.leaves(t)])
    half = np.random.default_rng(5).standard_normal((draws // 2, family.noise_size(model.density)))
    noise, program = np.concatenate([half, -half]), Bound(_fixed, (model.density, family), Held(model.inputs), Clock())

    def loss(x):
        value, gradient = program(back(x), noise)
        value, gradient = float(value), flat(gradient)
        sound = np.isfinite(value) and np.isfinite(gradient).all()
        return (value, gradient) if sound else (1e300, np.zeros_like(gradient))

    found = minimize(loss, flat(params), jac=True, method="L-BFGS-B", options={"maxiter": 150, "maxcor": 20})
    return back(found.x)


class Row(NamedTuple):
    """What one run comes to."""

    claims: bool
    short: float  # of the reference at the end
    distance: float  # from the start to the reference
    spent: int
    past: float  # evaluations after it was near; NaN if it never was


def judge(model, chosen, family, seeds) -> list[Row]:
    """Run all seeds on one data set and hold them against the reference."""
    runs = [run(model, chosen, family, seed) for seed in range(seeds)]
    ends = [r.path[-1] for r in runs]
    short, _ = gaps(model, family, ends, ends[0], FINAL_DRAWS, 1)
    leader = ends[int(np.nanargmin(short))]
    better = polished(model, family, leader)
    gain, error = gaps(model, family, [better], leader, FINAL_DRAWS, 2)
    best = better if gain[0] < -2.0 * error[0] else leader
    short, _ = gaps(model, family, ends, best, FINAL_DRAWS, 3)
    rows = []
    for r, end in zip(runs, short, strict=True):
        along, _ = gaps(model, family, r.path, best, PATH_DRAWS, 4)
        near = np.flatnonzero(along < NEAR)
        past = r.spent[-1] - r.spent[near[0]] if near.size else np.nan
        rows.append(Row(r.claims, float(end), float(along[0]), int(r.spent[-1]), float(past)))
    return rows


def false_claim(row: Row) -> bool:
    return row.claims and (not row.short <= SHORT) and (not row.short <= SHARE * row.distance)


def line(name: str, dim: int, rows: list[Row]) -> str:
    short = np.array([r.short for r in rows])
    past, spent = np.array([r.past for r in rows]), np.array([r.spent for r in rows])
    return (
        f"| {name} ({dim}) | {len(rows)} | {sum(r.claims for r in rows)} | {sum(map(false_claim, rows))} "
        f"| {np.median(short):.2f}, {np.max(short):.2f} | {np.median(spent):,.0f} | {np.nanmedian(past):,.0f} "
        f"| {100 * np.nanmedian(past / spent):.0f}% | {int(np.isnan(past).sum())} |"
        if np.isfinite(past).any()
        else f"| {name} ({dim}) | {len(rows)} | {sum(r.claims for r in rows)} | {sum(map(false_claim, rows))} "
        f"| {np.median(short):.2f}, {np.max(short):.2f} | {np.median(spent):,.0f} | – | – | {len(rows)} |"
    )


HEAD = """| posterior (parameters) | runs | claim convergence | false claims | nats short: median, worst \
| evaluations, median | past the point, median | of all | never within 0.1 nat |
|---|---|---|---|---|---|---|---|---|"""


def report(command: str, lines: list[str], rows: list[Row], seconds: float) -> str:
    claims, false = sum(r.claims for r in rows), sum(map(false_claim, rows))
    near = [r for r in rows if np.isfinite(r.past)]
    share = 100 * np.median([r.past / r.spent for r in near])
    return f"""# When the default method stops

`{command}`, yoasovi {yo.__version__}, {len(rows)} runs in {seconds / 60:.0f} minutes

{false} of {claims} claims of convergence were false ({100 * false / max(claims, 1):.1f}%): more than {SHORT:g} nat and more
than {100 * SHARE:g}% of the way from the start short of the family's best. {len(near)} of {len(rows)} runs came within
{NEAR:g} nat of it, and then spent a median of {np.median([r.past for r in near]):,.0f} more evaluations, {share:.0f}% of all
they spent.

{HEAD}
{chr(10).join(lines)}

The reference is the better, on {FINAL_DRAWS:,} common draws, of the best run and of what L-BFGS makes of it on
{FIXED_DRAWS:,} fixed draws. A run in a lesser mode of the mixture counts as short.
"""


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--data", type=int, default=4, help="data sets per posterior")
    args.add_argument("--seeds", type=int, default=9, help="seeds per data set")
    args.add_argument("--only", default=None, help="names of posteriors, separated by semicolons")
    args.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = args.parse_args()
    names = args.only.split(";") if args.only else list(POSTERIORS)
    command = f"python benchmarks/stopping.py --data {args.data} --seeds {args.seeds}"
    lines, everything, begin = [], [], time.perf_counter()
    args.out.mkdir(parents=True, exist_ok=True)
    with Interrupts() as interrupts:
        for name in names:
            rows = []
            for k in range(args.data):
                model = POSTERIORS[name](np.random.default_rng([k, len(name)]))
                family, *_ = fitting.choose_family(model, method("yoasovi"), "auto")
                rows += judge(model, method("yoasovi").for_family(model, family), family, args.seeds)
            lines.append(line(name, model.density.dim, rows))
            everything += rows
            print(lines[-1], flush=True)
            text = report(command, lines, everything, time.perf_counter() - begin)
            (args.out / "stopping.md").write_text(text)
            if interrupts.asked:
                break
    print(text)


if __name__ == "__main__":
    main()
