"""The default method on the real posteriors of posteriordb, against its reference draws.

    git clone https://github.com/stan-dev/posteriordb
    python benchmarks/posteriordb.py posteriordb [--seeds 10] [--only NAME ...] [--out benchmarks/results]

`yoasovi.bench.real_models` has the NumPyro forms: every posterior of the database that has reference draws, and four that
have none, for which a long run of NumPyro's NUTS stands in (made once, kept in out/truth). Nothing is downloaded.
"""

import argparse
import time
import warnings
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import numpy as np
import numpyro
import ordinary

import yoasovi as yo
from yoasovi.bench import database
from yoasovi.bench.real_models import FORMS

GRADES = ("good", "usable", "poor", "failed")
EXPLAINED = """\
Posteriors of posteriordb (Magnusson, Bürkner, Vehtari 2023), read from the user's clone of github.com/stan-dev/posteriordb,
in raw units, as NumPyro models: `yoasovi.bench.real_models`, which has every one with reference draws and four without.
†: no draws in that clone, judged by 20,000 of NumPyro's NUTS{rhat}. Default method, `family="auto"`, seeds 0 to {last}.

*gap*: best ELBO over the seeds minus that of the worst seed, on fresh draws; *near*: seeds within 0.3 nat of the best. The
rest is judged on `fit.sample(4000)`, as users get it: with importance correction where q is visibly not the posterior.
*error*: largest error of a mean, in reference sds. *sds*: smallest, median and largest over the parameters, as multiples of
the reference's (over seeds: smallest, median, largest). **NUTS quality**: every mean within 0.1 sd, every sd within 25%
(0.8 to 1.25 times the reference's) and the median sd within 10%. *Loosely*: the same without the demand on every sd, which
is what earlier versions of this page counted. Gradients and values: evaluations of log p with and without its gradient, the
start included, medians over seeds. *correction*: the values that `fit.sample` took. *graded*: by `fit.diagnose()`,
good / usable / poor / failed; its own evaluations are not counted here.
"""


def reference(folder, name, model, args):
    """Means and sds by site; besides `rhat` where they do not come from the database."""
    draws = database.draws(folder, name)
    if draws is None:
        return ordinary.nuts(model, args, Path("out/truth/posteriordb") / f"{name}.json")
    return {"mean": {k: v.mean((0, 1)) for k, v in draws.items()}, "sd": {k: v.std((0, 1)) for k, v in draws.items()}}


def posterior(folder, name):
    """A posterior as a model, and its reference."""
    model, args = FORMS[name](database.data(folder, name))
    return yo.from_numpyro(model, *args), reference(folder, name, model, args)


def quality(draws, known):
    """Errors of draws, and whether they are at NUTS quality: loosely, and with every sd within 25%."""
    error, low, middle, high = ordinary.compared(draws, known)
    loose = bool(error <= 0.1 and 0.9 <= middle <= 1.1)
    right = bool(loose and low >= 0.8 and high <= 1.25)
    return {"error": error, "low": low, "middle": middle, "high": high, "loose": loose, "right": right}


def measure(folder, name, seeds):
    """Fit a posterior once per seed; one row per fit."""
    door, known = posterior(folder, name)
    rows = []
    for seed in range(seeds):
        begin = time.perf_counter()
        fit = yo.fit(door, seed=seed, progress=False)
        values = fit.num_values
        draws = fit.sample(4000)
        spent = {"gradients": fit.num_gradients, "values": values, "correction": fit.num_values - values}
        seconds = time.perf_counter() - begin
        rows.append({
            "posterior": name, "rhat": known.get("rhat"), "seed": seed, "dim": door.density.dim, "elbo": fit.elbo.value,
            "converged": bool(fit.converged), **(found := quality(draws, known)), "grade": fit.diagnose().grade,
            "seconds": seconds, **spent,
        })  # fmt: skip
        print(
            f"{name:<50}{seed:>3} ELBO {fit.elbo.value:,.2f}  error {found['error']:.2f}  "
            f"sds {found['low']:.2f} {found['middle']:.2f} {found['high']:.2f}  "
            f"{' / '.join(f'{v:,} {k}' for k, v in spent.items())}  {rows[-1]['grade']}  {seconds:.1f} s",
            flush=True,
        )
    best = max(row["elbo"] for row in rows)
    return [row | {"gap": best - row["elbo"]} for row in rows]


def line(rows):
    """The table's line for the rows of one posterior."""
    column = lambda key: np.array([row[key] for row in rows])
    count = lambda key: int(column(key).sum())
    median = lambda key: f"{np.median(column(key)):,.0f}"
    grades = Counter(column("grade"))
    return (
        f"| {rows[0]['posterior']}{' †' if rows[0]['rhat'] else ''} | {rows[0]['dim']} "
        f"| {(column('gap') <= 0.3).sum()} | {column('gap').max():.2f} "
        f"| {np.median(column('error')):.2f} ({column('error').max():.2f}) "
        f"| {column('low').min():.2f}, {np.median(column('middle')):.2f}, {column('high').max():.2f} "
        f"| {count('right')} | {count('loose')} | {median('gradients')} ({column('gradients').max():,}) "
        f"| {median('values')} | {median('correction')} | {' / '.join(str(grades[g]) for g in GRADES)} |"
    )


def totals(rows):
    """What all rows say together."""
    n, count = len(rows), lambda test: sum(map(test, rows))
    spent = lambda *keys: np.array([sum(row[k] for k in keys) for row in rows])
    gradients, values = spent("gradients"), spent("values", "correction")
    trusted = [row for row in rows if row["grade"] in ("good", "usable")]
    return (
        f"{n} fits: {count(lambda r: r['gap'] <= 0.3)} within 0.3 nat of the best seed, "
        f"**{count(lambda r: r['right'])} at NUTS quality**, {count(lambda r: r['loose'])} loosely. "
        f"Of those at NUTS quality {count(lambda r: r['right'] and r['grade'] == 'good')} are graded good and "
        f"{count(lambda r: r['right'] and r['grade'] in ('poor', 'failed'))} poor or failed; of {len(trusted)} graded good "
        f"or usable {sum(r['error'] > 0.5 for r in trusted)} have a mean more than 0.5 sd off. "
        f"{count(lambda r: r['converged'] and r['gap'] > 2)} claim convergence more than 2 nats below the best seed. "
        f"A fit takes {np.median(gradients):,.0f} gradients and {np.median(values):,.0f} values in the median, correction "
        f"included; {np.quantile(gradients, 0.95):,.0f} and {np.quantile(values, 0.95):,.0f} at the 95th percentile; "
        f"{gradients.max():,} and {values.max():,} at most."
    )


def page(rows, command, seeds, asked):
    """The Markdown page of as many as have been fitted of those asked for."""
    head = (
        "| posterior | parameters | near | gap | error, median (max) | sds | NUTS quality | loosely | gradients (max) "
        "| values | correction | graded |\n|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|"
    )
    names = list(dict.fromkeys(row["posterior"] for row in rows))
    lines = [line([row for row in rows if row["posterior"] == name]) for name in names]
    libraries = ", ".join(f"{k} {version(k)}" for k in ("jax", "numpyro"))
    rhats = [row["rhat"] for row in rows if row["rhat"]]
    explained = EXPLAINED.format(last=seeds - 1, rhat=f", R-hat at most {max(rhats):.3f}" if rhats else "")
    title = f"# Real posteriors, {seeds} seed{'s' if seeds > 1 else ''} each"
    return "\n".join([
        title, "", f"`{command}`, yoasovi {yo.__version__}, {libraries}", "", explained, head, *lines,
        "", f"{len(names)} of {asked} posteriors, {totals(rows)}", "",
    ])  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description="The default method on posteriors of posteriordb, against reference draws.")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a clone of github.com/stan-dev/posteriordb")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", nargs="+", choices=list(FORMS), default=list(FORMS), metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = parser.parse_args()
    try:
        folder = database.folder_of(args.folder)
    except ValueError as error:
        parser.error(str(error))
    only = "" if args.only == list(FORMS) else f" --only {' '.join(args.only)}"
    command = f"python benchmarks/posteriordb.py FOLDER --seeds {args.seeds}{only}"
    args.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in args.only:
        rows += measure(folder, name, args.seeds)
        text = page(rows, command, args.seeds, len(args.only))
        (args.out / "real_posteriors.md").write_text(text)  # after each, so that a long run leaves what it has
    print(totals(rows))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    numpyro.enable_x64()
    main()
