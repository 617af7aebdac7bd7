"""`fit.refine()` against NUTS from scratch: errors before and after, and gradients to the same R-hat and ESS.

    python benchmarks/refine.py [--seeds 3] [--draws 4000] [--out benchmarks/results]
    python benchmarks/refine.py --posteriordb FOLDER --posterior NAME [--seeds 10] [--ess 1000] [--raw FILE]
    python benchmarks/refine.py --merge FILE ... [--out benchmarks/results]

The second form fits one posterior of posteriordb (a clone of github.com/stan-dev/posteriordb), and refines where the verdict
advises it; the third makes a page (refine_advised.md) of several such runs.

The reference is a long run of NumPyro's NUTS with its own defaults (diagonal metric, 4 chains, 1,000 warm-up transitions).
What it costs by itself is counted from its start until all parameters reach what `refine` asks for, by the same rule.
"""

import argparse
import json
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints
from numpyro.infer import MCMC, NUTS

import yoasovi as yo
from yoasovi.answer.mixture import chains_of
from yoasovi.answer.refine import expected_gradients, rank_ess, rank_rhat

jax.config.update("jax_enable_x64", True)
CHAINS, WARM_UP, EACH = 4, 1000, 50


def irt(items, people, spread):
    """Two-parameter item response, simulated; where discriminations hardly differ their spread is a funnel."""
    rng = np.random.default_rng(5)
    ability, hardness = rng.normal(size=people), rng.normal(0.3, 1.0, size=items)
    slope = rng.lognormal(0.0, spread, size=items)
    y = (rng.random((items, people)) < 1 / (1 + np.exp(-slope[:, None] * (ability - hardness[:, None])))).astype(float)

    def log_density(p):
        half_cauchy = dist.HalfCauchy(2.0).log_prob
        prior = half_cauchy(p["sigma_theta"]) + half_cauchy(p["sigma_a"]) + half_cauchy(p["sigma_b"])
        prior += dist.Normal(0.0, 5.0).log_prob(p["mu_b"]) + dist.Normal(0.0, p["sigma_theta"]).log_prob(p["theta"]).sum()
        prior += dist.LogNormal(0.0, p["sigma_a"]).log_prob(p["a"]).sum()
        prior += dist.Normal(p["mu_b"], p["sigma_b"]).log_prob(p["b"]).sum()
        return prior + dist.BernoulliLogits(p["a"][:, None] * (p["theta"] - p["b"][:, None])).log_prob(y).sum()

    supports = dict.fromkeys(("sigma_theta", "sigma_a", "sigma_b", "a"), constraints.positive)
    supports |= dict.fromkeys(("mu_b", "theta", "b"), constraints.real)
    shapes = {"theta": (people,), "a": (items,), "b": (items,)}
    return yo.Model.from_log_density(log_density, supports, shapes, name=f"2PL, {items} items")


def hierarchy(count=85):
    """Groups of very different sizes with varying intercepts, non-centred: 90 parameters."""
    rng = np.random.default_rng(7)
    group = np.repeat(np.arange(count), rng.geometric(0.12, size=count))
    x = rng.normal(size=(2, group.size))
    y = 1.3 + 0.25 * rng.normal(size=count)[group] + 0.7 * x[0] - 0.6 * x[1] + 0.75 * rng.normal(size=group.size)

    def log_density(p):
        prior = dist.Normal(0.0, 10.0).log_prob(p["mu"]) + dist.Normal(0.0, 10.0).log_prob(p["beta"]).sum()
        prior += dist.HalfNormal(1.0).log_prob(p["tau"]) + dist.HalfNormal(1.0).log_prob(p["sigma"])
        at = (p["mu"] + p["tau"] * p["z"])[group] + p["beta"] @ x
        return prior + dist.Normal(0.0, 1.0).log_prob(p["z"]).sum() + dist.Normal(at, p["sigma"]).log_prob(y).sum()

    supports = dict.fromkeys(("mu", "beta", "z"), constraints.real) | dict.fromkeys(("tau", "sigma"), constraints.positive)
    return yo.Model.from_log_density(log_density, supports, {"beta": (2,), "z": (count,)}, name="hierarchy")


def schools(centred):
    """Eight schools (Rubin 1981): 10 parameters; centred it is a funnel."""
    y, sd = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])

    def log_density(p):
        prior = dist.Normal(0.0, 5.0).log_prob(p["mu"]) + dist.HalfCauchy(5.0).log_prob(p["tau"])
        if centred:
            school, prior = p["x"], prior + dist.Normal(p["mu"], p["tau"]).log_prob(p["x"]).sum()
        else:
            school, prior = p["mu"] + p["tau"] * p["x"], prior + dist.Normal(0.0, 1.0).log_prob(p["x"]).sum()
        return prior + dist.Normal(school, sd).log_prob(y).sum()

    supports = {"mu": constraints.real, "tau": constraints.positive, "x": constraints.real}
    name = "eight schools, centred" if centred else "eight schools"
    return yo.Model.from_log_density(log_density, supports, {"x": (8,)}, name=name)


MODELS = [lambda: irt(20, 100, 0.7), lambda: irt(15, 80, 0.4), hierarchy, lambda: schools(False), lambda: schools(True)]


def nuts(model, draws, ess=400):
    """Run NUTS from scratch; give its draws, its gradients until the rule of `refine` is met (None: never), divergences."""
    potential = lambda z: -model.density.free_terms(model.inputs, z).total()
    run = MCMC(NUTS(potential_fn=potential), num_warmup=WARM_UP, num_samples=draws, num_chains=CHAINS,
               chain_method="vectorized", progress_bar=False)  # fmt: skip
    start = jnp.asarray(np.random.default_rng(0).uniform(-2, 2, size=(CHAINS, model.density.dim)))
    run.warmup(jax.random.key(0), init_params=start, extra_fields=("num_steps",), collect_warmup=True)
    spent = int(run.get_extra_fields()["num_steps"].sum())
    run.run(jax.random.key(1), extra_fields=("num_steps", "diverging"))
    theta, extra = np.asarray(run.get_samples(group_by_chain=True)), run.get_extra_fields(group_by_chain=True)
    steps = np.asarray(extra["num_steps"]).sum(0).cumsum()
    met = (n for n in range(EACH, draws + 1, EACH) if rank_ess(x := theta[:, :n]).min() >= ess and rank_rhat(x).max() < 1.03)
    enough = next(met, None)
    return theta, None if enough is None else spent + int(steps[enough - 1]), int(extra["diverging"].sum())


# ---- where the verdict advises it ----------------------------------------------------------------------------


def advised(posterior, name, seeds, ess, draws):
    """Fit a posterior once per seed, and refine where the verdict says so; one row per fit."""
    from posteriordb import quality

    model, known = posterior
    *_, own, lost = nuts(model, draws, ess)
    rows = []
    for seed in range(seeds):
        fit = yo.fit(model, seed=seed, progress=False)
        before, said = quality(fit.sample(4000), known), fit.diagnose()
        row = {
            "posterior": name, "dim": model.density.dim, "seed": seed, "ess": ess, "grade": said.grade, "before": before,
            "gradients": fit.num_gradients, "values": fit.num_values, "nuts": own, "nuts_divergent": lost,
            "after": before, "refined": None, "grade_after": said.grade, "met": None,
        }  # fmt: skip
        if "fit.refine()" in said.advice:
            better = fit.refine(ess=ess, max_gradients=400_000, progress=False)
            chains = chains_of(better)
            row["after"] = quality(better.sample(sum(x.size for x in chains)), known)
            row["refined"] = better.num_gradients - fit.num_gradients
            row["grade_after"], row["met"] = better.diagnose().grade, all(x.stopped == "met" for x in chains)
        rows.append(row)
        print(json.dumps(row), flush=True)
    return rows


def advised_page(rows):
    """The Markdown page of all rows."""
    names = list(dict.fromkeys(row["posterior"] for row in rows))
    lines = []
    for name in names:
        some = [row for row in rows if row["posterior"] == name]
        went, own = [row for row in some if row["refined"] is not None], some[0]["nuts"]
        count = lambda which, key, some=some: sum(row[which][key] for row in some)
        spent, worst = np.median([row["gradients"] for row in some]), max(row["after"]["error"] for row in some)
        cost = f"{np.median([row['refined'] for row in went]):,.0f}" if went else "·"
        lines.append(
            f"| {name} | {some[0]['dim']} | {len(some)} | {count('before', 'loose')} | {count('before', 'right')} "
            f"| {len(went)} | {count('after', 'loose')} | {count('after', 'right')} "
            f"| {worst:.2f} | {spent:,.0f} | {cost} "
            f"| {'never' if own is None else f'{own:,}'} ({some[0]['nuts_divergent']}) |"
        )
    total = lambda which, key: sum(row[which][key] for row in rows)
    went = [row for row in rows if row["refined"] is not None]
    return "\n".join([
        "# `refine()` where the verdict advises it", "",
        "`python benchmarks/refine.py --posteriordb FOLDER --posterior NAME --raw FILE` of each, then `--merge`, "
        f"yoasovi {yo.__version__}", "",
        f"{len(rows)} fits: {total('before', 'loose')} with every mean within 0.1 sd and the median sd within 10% "
        f"(*loosely*), {total('before', 'right')} with every sd within 25% as well (*every sd*). The verdict "
        f"advised `refine()` for {len(went)}; after it **{total('after', 'loose')} and {total('after', 'right')}** of "
        f"{len(rows)}.", "",
        f"`fit.refine(ess={rows[0]['ess']:g})`. Gradients are medians; NUTS's own: NumPyro's defaults, {CHAINS} chains, "
        "from its start until R-hat is below 1.03 and ESS as wanted, with its divergences.", "",
        "| posterior | parameters | fits | loosely | every sd | refined | then loosely | every sd | largest error "
        "| gradients | of refine | NUTS's own (divergences) |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|", *lines, "",
    ])  # fmt: skip


# ---- simulated posteriors ------------------------------------------------------------------------------------


def errors(theta, reference):
    """Largest error of a mean in reference sds, and the range of ratios of sds."""
    sd = reference.std(0)
    ratio = theta.std(0) / sd
    return f"{np.max(np.abs(theta.mean(0) - reference.mean(0)) / sd):.2f}", f"{ratio.min():.2f} .. {ratio.max():.2f}"


def main():
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("--seeds", type=int, default=3)
    ask.add_argument("--draws", type=int, default=4000)
    ask.add_argument("--posteriordb", type=Path, metavar="FOLDER", help="a clone of github.com/stan-dev/posteriordb")
    ask.add_argument("--posterior", metavar="NAME")
    ask.add_argument("--ess", type=float, default=1000.0, help="that refine is asked for, of a posterior")
    ask.add_argument("--raw", type=Path, help="where the rows of a posterior go, as JSON")
    ask.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="make a page of such rows")
    ask.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = ask.parse_args()
    warnings.simplefilter("ignore")
    given.out.mkdir(parents=True, exist_ok=True)
    if given.merge:
        text = advised_page([row for file in given.merge for row in json.loads(file.read_text())])
        (given.out / "refine_advised.md").write_text(text)
        return print(text)
    if given.posterior:
        from posteriordb import posterior

        from yoasovi.bench import database

        if given.posteriordb is None:
            ask.error("--posterior needs --posteriordb FOLDER.")
        model = posterior(database.folder_of(given.posteriordb), given.posterior)
        rows = advised(model, given.posterior, given.seeds, given.ess, given.draws)
        if given.raw:
            given.raw.write_text(json.dumps(rows))
        return None
    lines = [
        f"`python benchmarks/refine.py --seeds {given.seeds} --draws {given.draws}`, yoasovi {yo.__version__}", "",
        f"Errors are of unconstrained parameters, against {CHAINS} x {given.draws:,} draws of NUTS from scratch. NUTS's own "
        "gradients: from its start until R-hat is below 1.03 and ESS 400 for all parameters. Where that is never, the "
        "reference is not there either, and errors against it are rough.", "",
        "| posterior | seed | q: largest mean error, sds | refined: largest mean error, sds | R-hat, smallest ESS | "
        "divergences of draws | gradients of q + NUTS (guessed) | NUTS's own (divergences) |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    print("\n".join(lines))
    for make in MODELS:
        model = make()
        reference, own, lost = nuts(model, given.draws)
        reference = reference.reshape(-1, model.density.dim)
        for seed in range(given.seeds):
            fit = yo.fit(model, seed=seed, progress=False)
            chains = fit.refine(progress=False).refined
            before = errors(fit.draws(4000, 0, False)[1], reference)
            after = errors(chains.theta.reshape(chains.size, -1), reference)
            lines.append(
                f"| {model.name} ({model.density.dim}) | {seed} | {', '.join(before)} | {', '.join(after)} | "
                f"{chains.worst_rhat:.3f}, {chains.least_ess:,.0f}{'' if chains.stopped == 'met' else ' (budget)'} | "
                f"{chains.num_divergent} of {chains.size:,} | {fit.num_gradients:,} + {chains.num_gradients:,} "
                f"({expected_gradients(fit):,}) | {'never' if own is None else f'{own:,}'} ({lost}) |"
            )
            print(lines[-1], flush=True)
    (given.out / "refine.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
