"""Scales of hierarchies: q, its draws corrected as a whole, and corrected group by group, beside a long run of NUTS.

    python benchmarks/groups.py [--seeds 3] [--out benchmarks/results]

Simulated hierarchies whose scales are not well known: few groups tell of them, or each group little. Errors are the largest
over all parameters, in sds of NUTS's draws, and the smallest and largest ratio of an sd to NUTS's. Corrected as a whole:
by laws that bend; group by group: globals first, then each group's own parameters given them (docs/method.md).

Then small ones, centred and as plain densities of one vector: `fit.sample()` as users get it, and the verdict's grade,
against NUTS on the non-centred form.
"""

from __future__ import annotations

import argparse
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree
from numpyro.diagnostics import summary
from numpyro.distributions import constraints
from numpyro.infer import MCMC, NUTS
from numpyro.infer.reparam import LocScaleReparam
from numpyro.infer.util import initialize_model

import yoasovi as yo
from yoasovi.answer import pools

RNG = np.random.default_rng(7)


def slopes(x, y):
    """Varying intercepts and slopes, four rows a group."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("group", len(y)):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        effect = mu + tau * z
        numpyro.sample("y", dist.Normal(effect[:, :1] + effect[:, 1:] * x, sigma).to_event(1), obs=y)


def occupancy(visits, seen):
    """Species at sites: whether a site is taken, and whether a visit shows it, vary by species together."""
    middle = numpyro.sample("middle", dist.Normal(0.0, 1.5).expand([2]).to_event(1))
    tau = numpyro.sample("tau", dist.HalfNormal(1.5).expand([2]).to_event(1))
    with numpyro.plate("species", len(seen)):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        taken, found = (middle + tau * z).T
        here = jax.nn.log_sigmoid(taken)[:, None] + dist.Binomial(visits, logits=found[:, None]).log_prob(seen)
        nowhere = jnp.where(seen == 0, jax.nn.log_sigmoid(-taken)[:, None], -jnp.inf)
        numpyro.factor("terms", jnp.logaddexp(here, nowhere).sum(1))


def counts(y):
    """Overdispersed counts: a small scale, an observation a group."""
    level, tau = numpyro.sample("level", dist.Normal(0.0, 3.0)), numpyro.sample("tau", dist.HalfNormal(1.0))
    with numpyro.plate("group", len(y)):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Poisson(jnp.exp(level + tau * z)), obs=y)


def captures(nights, caught):
    """Capture and recapture, animals of all degrees of shyness; those never caught are among them."""
    there = numpyro.sample("there", dist.Beta(1.0, 1.0))
    shy, tau = numpyro.sample("shy", dist.Normal(0.0, 1.5)), numpyro.sample("tau", dist.HalfNormal(1.0))
    with numpyro.plate("animal", len(caught)):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        inside = jnp.log(there) + dist.Binomial(nights, logits=shy + tau * z).log_prob(caught)
        numpyro.factor("term", jnp.where(caught > 0, inside, jnp.logaddexp(inside, jnp.log1p(-there))))


def batches(y):
    """Yields of six batches, in raw units."""
    mu = numpyro.sample("mu", dist.Normal(1500.0, 500.0))
    inside, between = (numpyro.sample(name, dist.HalfNormal(100.0)) for name in ("inside", "between"))
    with numpyro.plate("batch", len(y)):
        effect = numpyro.sample("effect", dist.Normal(mu, between))
    numpyro.sample("y", dist.Normal(effect[:, None], inside), obs=y)


def hospitals(operations, deaths):
    """Deaths in a dozen hospitals."""
    mu, tau = numpyro.sample("mu", dist.Normal(0.0, 3.0)), numpyro.sample("tau", dist.HalfNormal(1.0))
    with numpyro.plate("hospital", len(deaths)):
        effect = numpyro.sample("effect", dist.Normal(mu, tau))
    numpyro.sample("deaths", dist.Binomial(operations, logits=effect), obs=deaths)


def failures(hours, count):
    """Failures of ten pumps: rates with a gamma law whose shape and rate are not known."""
    shape, rate = numpyro.sample("shape", dist.Exponential(1.0)), numpyro.sample("rate", dist.Gamma(0.1, 1.0))
    with numpyro.plate("pump", len(count)):
        each = numpyro.sample("each", dist.Gamma(shape, rate))
    numpyro.sample("count", dist.Poisson(each * hours), obs=count)


def lines(x, y):
    """Varying intercepts and slopes in seven groups."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0).expand([2]).to_event(1))
    tau = numpyro.sample("tau", dist.HalfCauchy(1.0).expand([2]).to_event(1))
    noise = numpyro.sample("noise", dist.HalfNormal(2.0))
    with numpyro.plate("group", len(y)):
        effect = numpyro.sample("effect", dist.Normal(mu, tau).to_event(1))
    numpyro.sample("y", dist.Normal(effect[:, :1] + effect[:, 1:] * x, noise).to_event(1), obs=y)


def few(error, y):
    """Four effects, each with a known error."""
    mu, tau = numpyro.sample("mu", dist.Normal(0.0, 5.0)), numpyro.sample("tau", dist.HalfCauchy(2.0))
    with numpyro.plate("group", len(y)):
        effect = numpyro.sample("effect", dist.Normal(mu, tau))
    numpyro.sample("y", dist.Normal(effect, error), obs=y)


def heavy(error, y, centred=True):
    """Effects with a t of four degrees of freedom."""
    mu, tau = numpyro.sample("mu", dist.Normal(0.0, 5.0)), numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("group", len(y)):
        if centred:
            effect = numpyro.sample("effect", dist.StudentT(4.0, mu, tau))
        else:
            z = numpyro.sample("z", dist.StudentT(4.0, 0.0, 1.0))
            effect = numpyro.deterministic("effect", mu + tau * z)
    numpyro.sample("y", dist.Normal(effect, error), obs=y)


def small() -> dict[str, tuple[Any, Any, tuple]]:
    """Give small centred hierarchies, the same not centred, and the data."""
    rng = np.random.default_rng(11)
    free = lambda model: numpyro.handlers.reparam(model, config={"effect": LocScaleReparam(0.0)})
    operations, hours = rng.integers(40, 400, 12), rng.uniform(1.0, 120.0, 10)
    x = rng.normal(size=(7, 12))
    own = [1.0, 0.5] + [0.5, 0.3] * rng.normal(size=(7, 2))
    error = rng.uniform(9.0, 18.0, 8)
    return {
        "six batches": (batches, free(batches), (1530 + rng.normal(0, 40, (6, 1)) + rng.normal(0, 50, (6, 5)),)),
        "twelve hospitals": (
            hospitals, free(hospitals),
            (operations, rng.binomial(operations, 1 / (1 + np.exp(2.6 - 0.4 * rng.normal(size=12))))),
        ),
        "ten pumps": (failures, failures, (hours, rng.poisson(hours * rng.gamma(0.8, 0.8, 10)))),
        "seven lines": (lines, free(lines), (x, own[:, :1] + own[:, 1:] * x + rng.normal(size=(7, 12)))),
        "four effects": (few, free(few), (np.array([1.0, 1.5, 0.8, 1.2]), np.array([2.1, 3.3, 0.4, 2.8]))),
        "eight t effects": (
            heavy, partial(heavy, centred=False), (error, 5.0 + 4.0 * rng.standard_t(4, 8) + error * rng.normal(size=8))
        ),
    }  # fmt: skip


def as_density(model: Any, args: tuple, name: str) -> tuple[yo.Model, Any]:
    """Give the posterior as a density of one vector, and what turns its draws into sites."""
    info = initialize_model(jax.random.key(0), model, model_args=args, validate_grad=False)
    flat, parts = ravel_pytree(info.param_info.z)
    log_p = lambda p: -info.potential_fn(parts(p["z"]))
    made = yo.Model.from_log_density(log_p, {"z": constraints.real}, {"z": flat.shape}, name=name)
    return made, jax.jit(jax.vmap(lambda z: info.postprocess_fn(parts(z))))


def small_table(seeds: int) -> list[str]:
    """Fit the small ones."""
    lines = ["| small, centred, plain (parameters) | worst mean, sds | right | good, usable, poor | gradients | values |",
             "|---|---:|---:|---:|---:|---:|"]  # fmt: skip
    right, total, false = 0, 0, 0
    for name, (model, free, data) in small().items():
        with jax.enable_x64(True):
            mean, sd, worst = reference(free, data)
            made, sites = as_density(model, data, name)
            known = [k for k in mean if not k.endswith("_decentered") and k != "z"]
            errors, lows, highs, fine, grades, spent = [], [], [], 0, [], []
            for seed in range(seeds):
                fit = yo.fit(made, seed=seed, progress=False)
                draws = {k: np.asarray(v) for k, v in sites(fit.sample(4000)["z"]).items()}
                error = max(float(np.max(np.abs(draws[k].mean(0) - mean[k]) / sd[k])) for k in known)
                ratio = np.concatenate([np.ravel(draws[k].std(0) / sd[k]) for k in known])
                sound = error <= 0.1 and ratio.min() >= 0.8 and ratio.max() <= 1.25 and abs(np.median(ratio) - 1.0) <= 0.1
                grades.append(fit.judged().grade)
                false += grades[-1] == "good" and (error > 0.15 or ratio.min() < 0.8 or ratio.max() > 1.25)
                errors.append(error)
                lows.append(ratio.min())
                highs.append(ratio.max())
                fine += sound
                spent.append((fit.num_gradients, fit.num_values))
        right, total = right + fine, total + seeds
        told = ", ".join(str(grades.count(g)) for g in ("good", "usable", "poor"))
        cost = " | ".join(f"{x:,.0f}" for x in np.median(spent, 0))
        worst_of = f"{max(errors):.2f}, {min(lows):.2f}-{max(highs):.2f}"
        lines.append(f"| {name} ({made.density.dim}) | {worst_of} | {fine} of {seeds} | {told} | {cost} |")
        print(lines[-1], f"R-hat {worst:.4f}", flush=True)
    lines += ["", f"Right {right} of {total}; graded good with a mean over 0.15 sd or an sd over 25% off: {false}. Means "
              f"and sds are the worst of {seeds} seeds, gradients and values medians, correction included."]  # fmt: skip
    print(lines[-1])
    return lines


def simulated() -> dict[str, tuple[Any, tuple]]:
    """Give the models with their data."""
    x = np.array([-1.5, -0.5, 0.5, 1.5])
    effect = [1.0, 0.5] + [0.4, 0.15] * RNG.normal(size=(60, 2))
    y = effect[:, :1] + effect[:, 1:] * x + RNG.normal(size=(60, 4))
    own = [-0.5, -1.0] + [1.2, 0.6] * RNG.normal(size=(40, 2))
    taken = RNG.random((40, 12)) < 1 / (1 + np.exp(-own[:, :1]))
    seen = RNG.binomial(5, 1 / (1 + np.exp(-own[:, 1:])), (40, 12)) * taken
    shyness = -1.5 + 0.7 * RNG.normal(size=90)
    caught = RNG.binomial(6, 1 / (1 + np.exp(-shyness)))
    known = np.concatenate([caught[caught > 0], np.zeros(150 - (caught > 0).sum(), int)])
    return {
        "60 intercepts and slopes": (slopes, (x, y)),
        "occupancy, 40 species": (occupancy, (5, seen)),
        "80 counts": (counts, (RNG.poisson(np.exp(1.0 + 0.3 * RNG.normal(size=80))),)),
        "capture and recapture, 150": (captures, (6, known)),
    }


def reference(model: Any, args: tuple) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], float]:
    mcmc = MCMC(
        NUTS(model, target_accept_prob=0.9), num_warmup=1500, num_samples=5000, num_chains=4, chain_method="vectorized",
        progress_bar=False,
    )  # fmt: skip
    mcmc.run(jax.random.key(1), *args)
    draws = {k: np.asarray(v, float) for k, v in mcmc.get_samples().items()}
    worst = max(float(np.max(x["r_hat"])) for x in summary(mcmc.get_samples(group_by_chain=True)).values())
    return {k: v.mean(0) for k, v in draws.items()}, {k: v.std(0) for k, v in draws.items()}, worst


def judged(fit: yo.Fit, corrected: bool, mean: dict, sd: dict) -> tuple[str, bool]:
    draws = fit.sample(4000, corrected=corrected)
    flat = lambda part: np.concatenate([np.ravel(part[k]) for k in mean])
    error = np.abs(flat({k: v.mean(0) for k, v in draws.items()}) - flat(mean)) / flat(sd)
    ratio = flat({k: v.std(0) for k, v in draws.items()}) / flat(sd)
    right = error.max() <= 0.1 and ratio.min() >= 0.8 and ratio.max() <= 1.25 and abs(np.median(ratio) - 1.0) <= 0.1
    return f"{error.max():.2f}, {ratio.min():.2f}-{ratio.max():.2f}", bool(right)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--seeds", type=int, default=3)
    args.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = args.parse_args()
    warnings.simplefilter("ignore")
    head = ["model (parameters)", "seed", "q", "as a whole", "values", "s", "group by group", "gradients", "values", "s"]
    lines = ["# Scales of hierarchies, corrected", "", f"`python benchmarks/groups.py --seeds {args.seeds}`, "
             f"yoasovi {yo.__version__}, jax {jax.__version__}.", "", *(__doc__ or "").strip().splitlines()[4:], "",
             "| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]  # fmt: skip
    right, total, references = np.zeros(3, int), 0, []
    for name, (model, data) in simulated().items():
        with jax.enable_x64(True):
            mean, sd, worst = reference(model, data)
        references.append(worst)
        made = yo.from_numpyro(model, *data)
        for seed in range(args.seeds):
            cells, total = [], total + 1
            for column, (corrected, even) in enumerate(((False, 0.0), (True, -1.0), (True, 2.0))):
                fit = yo.fit(made, seed=seed, progress=False)
                before, begin = (fit.num_gradients, fit.num_values), time.perf_counter()
                pools._EVEN = even  # which of the two, whatever weights say
                said, fine = judged(fit, corrected, mean, sd)
                taken = time.perf_counter() - begin
                right[column] += fine
                cells.append(f"{said}{' **right**' if fine else ''}")
                if corrected:
                    spent = [f"{fit.num_gradients - before[0]:,}"] if column == 2 else []
                    cells += [*spent, f"{fit.num_values - before[1]:,}", f"{taken:.1f}"]
            lines.append(f"| {name} ({made.density.dim}) | {seed} | " + " | ".join(cells) + " |")
            print(lines[-1], flush=True)
    counts = f"q {right[0]}, as a whole {right[1]}, group by group {right[2]} of {total}"
    text = f"Right (every mean within 0.1 sd, every sd within 25%, the median within 10%): {counts}."
    lines += ["", f"{text} R-hat of NUTS {max(references):.4f} at most."]
    print(lines[-1])
    lines += ["", *small_table(args.seeds)]
    (args.out / "groups.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
