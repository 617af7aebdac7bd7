"""Models as their authors wrote them, for NumPyro, PyMC and Stan: fits by default and refined, beside NUTS.

    python benchmarks/authored.py [--seeds 3] [--jobs 1] [--only NAME ...] [--kept out/authored] [--out benchmarks/results]
    python benchmarks/authored.py --nuts NAME, --one NAME SEED    a part of it, kept beside the others
    python benchmarks/authored.py --table FOLDER ...              the table, of what several runs have kept

Each run is a process of its own, and what it finds is kept: NUTS's as NAME.json, ours as NAME|SEED.json. The reference is
the library's own NUTS, four chains of 1,000 + 1,000 at its defaults, whose CPU seconds are shown; where its R-hat is above
1.01 or its effective size below 2,000, longer runs replace its figures, or a closed form where there is one. Ours is `fit`,
`sample` and the verdict, compiling included; for Stan's programs neither includes the C++ compiler. `refine()` follows. A
fit is right where every mean is within 0.1 posterior sd, every sd within 25% and the median sd within 10%.
"""

import argparse
import json
import resource
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import numpy as np

DOORS = ("numpyro", "pymc", "stan")


def models():
    """Names of all models, with the door of each; those of libraries that are not installed are left out, and told."""
    found = {}
    for door in DOORS:
        try:
            found |= {name: (door, build) for name, build in import_module(f"authored_{door}").MODELS.items()}
        except ImportError as problem:
            print(f"Models for {door} are left out: {problem}", file=sys.stderr)
    return found


def cpu():
    """CPU seconds of this process and of those that it began, running ones (PyStan's) as well."""
    import psutil

    spent = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    running = (child.cpu_times() for child in psutil.Process().children(recursive=True))
    return sum(x.ru_utime + x.ru_stime for x in spent) + sum(sum(x[:4]) for x in running)


# ---- NUTS ---------------------------------------------------------------------------------------------------


def numpyro_nuts(built, warm_up, draws, target):
    import jax
    from numpyro.infer import MCMC, NUTS

    model, args, _ = built
    mcmc = MCMC(
        NUTS(model, target_accept_prob=target), num_warmup=warm_up, num_samples=draws, num_chains=4,
        chain_method="vectorized", progress_bar=False,
    )  # fmt: skip
    try:
        mcmc.run(jax.random.key(0), *args)
    except TypeError:  # a model that is written for 32 bits
        with jax.enable_x64(False):
            mcmc.run(jax.random.key(0), *args)
    return mcmc.get_samples(group_by_chain=True)


def pymc_nuts(built, warm_up, draws, target):
    import pymc as pm

    with built:
        found = pm.sample(
            draws, tune=warm_up, chains=4, cores=1, target_accept=target, progressbar=False, random_seed=0, quiet=True
        )
    return {k: found.posterior[k].values for k in found.posterior.data_vars}


def stan_nuts(built, warm_up, draws, target):
    import stan

    program, data = built
    found = stan.build(program, data=data, random_seed=1).sample(
        num_chains=4, num_samples=draws, num_warmup=warm_up, delta=target
    )
    by_chain = lambda x: np.moveaxis(x.reshape(*x.shape[:-1], draws, 4), (-1, -2), (0, 1))
    alone = lambda k, x: x[..., 0] if found.dims[found.param_names.index(k)] == [] else x  # a number is a row of one there
    return {k: alone(k, by_chain(found[k])) for k in found.param_names}


def compiled(door, built):
    """Let the C++ of a Stan program be compiled, for both, so that it is found in caches."""
    if door == "stan":
        import stan

        import yoasovi as yo

        stan.build(built[0], data=built[1], random_seed=1)
        yo.from_stan(*built)


LONGER = (6_000, 24_000)  # draws of each chain where so many before were not enough
NUTS_OF = {"numpyro": numpyro_nuts, "pymc": pymc_nuts, "stan": stan_nuts}


def reference(name):
    """Means and sds by NUTS, with the CPU seconds that it takes at its defaults."""
    import numpyro.diagnostics

    door, build = models()[name]
    built = build()
    compiled(door, built)
    begin = cpu()
    found = {k: np.asarray(v) for k, v in NUTS_OF[door](built, 1000, 1000, 0.8).items()}
    seconds = cpu() - begin
    checks = lambda: numpyro.diagnostics.summary({k: v for k, v in found.items() if v.dtype.kind == "f"})
    worst = lambda: max(float(np.nanmax(c["r_hat"])) for c in checks().values())
    least = lambda: min(float(np.nanmin(c["n_eff"])) for c in checks().values())
    first = worst(), least()
    exact = getattr(import_module(f"authored_{door}"), "EXACT", {})
    if name in exact:
        mean, sd = exact[name]()
        return {"mean": mean, "sd": sd, "first": first, "rhat": 1.0, "ess": float("inf"), "seconds": seconds}
    for draws in LONGER:
        if worst() > 1.01 or least() < 2000:
            found = {k: np.asarray(v) for k, v in NUTS_OF[door](build(), 2000, draws, 0.95).items()}
    return {
        "mean": {k: v.mean((0, 1)).tolist() for k, v in found.items()},
        "sd": {k: v.std((0, 1)).tolist() for k, v in found.items()},
        "first": first, "rhat": worst(), "ess": least(), "seconds": seconds,
    }  # fmt: skip


# ---- ours ---------------------------------------------------------------------------------------------------


def ours(name, seed, known):
    """Fit and grade, then refine."""
    import yoasovi as yo
    from yoasovi.answer.mixture import chains_of

    door, build = models()[name]
    built = build()
    begin = cpu()
    if door == "numpyro":
        model = yo.from_numpyro(built[0], *built[1])
    else:
        model = yo.from_pymc(built) if door == "pymc" else yo.from_stan(*built)
    fit = yo.fit(model, seed=seed, progress=False)
    draws, verdict = fit.sample(4000), fit.diagnose()
    seconds = cpu() - begin
    only = built[2].get("compare") if door == "numpyro" else None
    row = {
        "name": name, "door": door, "seed": seed, "dim": fit.model.density.dim, "grade": str(verdict.grade),
        "advice": verdict.advice, "gradients": fit.num_gradients, "seconds": seconds, "mended": len(fit.mended),
        **compared(draws, known, only),
    }  # fmt: skip
    row["refined"] = None
    begin = cpu()
    try:
        better = fit.refine()
        chains = chains_of(better)  # of every mode that the answer has
        found, row["chains"] = better.sample(sum(c.size for c in chains)), "; ".join(map(str, chains))
        row["more"] = cpu() - begin
        row["refined"] = compared(found, known, only) | {"grade": str(better.diagnose().grade)}
    except (ValueError, NotImplementedError) as refused:
        row["refused"] = str(refused)
    return row


def compared(draws, known, only):
    """Largest error of a mean in posterior sds; smallest, median and largest ratio of sds; the site that is furthest off."""
    errors, ratios = {}, []
    for k, mean in known["mean"].items():
        sd = np.asarray(known["sd"][k])
        moves = sd > 1e-10  # zeros of triangular factors do not
        if k not in draws or (only and k not in only) or not moves.any() or np.asarray(draws[k]).dtype.kind != "f":
            continue
        errors[k] = float(np.max(np.abs(draws[k].mean(0) - mean)[moves] / sd[moves]))
        ratios.append(np.ravel((draws[k].std(0) / np.where(moves, sd, 1.0))[moves]))
    ratio = np.concatenate(ratios)
    low, middle, high = float(ratio.min()), float(np.median(ratio)), float(ratio.max())
    error = max(errors.values())
    right = error <= 0.1 and low >= 0.8 and high <= 1.25 and 0.9 <= middle <= 1.1
    return {"error": error, "where": max(errors, key=errors.get), "sds": (low, middle, high), "right": bool(right)}


# ---- the table ----------------------------------------------------------------------------------------------


def kept(folders):
    """References by model, and our rows, from what runs have kept; later folders come before earlier ones."""
    files = {f.stem: f for folder in folders for f in sorted(Path(folder).glob("*.json"))}
    read = {k: json.loads(f.read_text()) for k, f in files.items()}
    order = list(models())
    rows = sorted((v for k, v in read.items() if "|" in k), key=lambda r: (order.index(r["name"]), r["seed"]))
    return {k: v for k, v in read.items() if "|" not in k}, rows


def table(known, rows):
    lines = [
        "| model | for | d | right | refined | worst mean, sd | refined | sds | good/usable/poor/failed | gradients | "
        "CPU s | refine | NUTS |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    final = lambda r: r["refined"] or r
    names = list(dict.fromkeys(r["name"] for r in rows))
    middle = lambda name, key: float(np.median([r[key] for r in rows if r["name"] == name and key in r]))
    for name in names:
        some = [r for r in rows if r["name"] == name]
        counts = "/".join(str(sum(r["grade"] == g for r in some) or "·") for g in ("good", "usable", "poor", "failed"))
        more = (
            f"+{middle(name, 'more'):.1f}" if any("more" in r for r in some) else "refused" if "refused" in some[0] else "·"
        )
        lines.append(
            f"| {name} | {some[0]['door']} | {some[0]['dim']} | {sum(r['right'] for r in some)}/{len(some)} | "
            f"{sum(final(r)['right'] for r in some)}/{len(some)} | {max(r['error'] for r in some):.2f} | "
            f"{max(final(r)['error'] for r in some):.2f} | {min(r['sds'][0] for r in some):.2f}-"
            f"{max(r['sds'][2] for r in some):.2f} | {counts} | {middle(name, 'gradients'):,.0f} | "
            f"{middle(name, 'seconds'):.1f} | {more} | {known[name]['seconds']:.1f} |"
        )
    share = lambda key: f"{np.mean([key(r)['right'] for r in rows]):.0%}"
    asked = lambda r: r if r["grade"] == "good" else final(r)
    false = sum(r["grade"] in ("good", "usable") and r["error"] > 0.5 for r in rows)
    worse = sum(r["right"] and not final(r)["right"] for r in rows)
    cheaper = sum(middle(n, "seconds") < known[n]["seconds"] for n in names)
    return [
        *lines, "",
        f"{len(rows)} fits of {len(names)} models: {share(lambda r: r)} right by default, {share(final)} after `refine()` "
        f"({share(asked)} where only those whose verdict is not good are refined); {worse} right before `refine()` and not "
        f"after; {false} graded good or usable with a mean over 0.5 sd off; fewer CPU seconds than NUTS in {cheaper} of "
        f"{len(names)} models.",
    ]  # fmt: skip


def call(folder, *args):
    """Run a part of this in a process of its own."""
    command = [sys.executable, __file__, "--kept", str(folder), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no message")


def part(args):
    """One reference or one fit, kept as a file."""
    warnings.simplefilter("ignore")
    import numpyro

    numpyro.enable_x64(bool(args.nuts))  # ours chooses by itself
    if args.nuts:
        path, found = args.kept / f"{args.nuts}.json", reference(args.nuts)
    else:
        name, seed = args.one[0], int(args.one[1])
        path, found = (
            args.kept / f"{name}|{seed}.json",
            ours(name, seed, json.loads((args.kept / f"{name}.json").read_text())),
        )
    path.write_text(json.dumps(found))


def all_of(name, args):
    """Everything about one model; what went wrong, if anything did."""
    try:
        if not (args.kept / f"{name}.json").exists():
            call(args.kept, "--nuts", name)
        for seed in range(args.seeds):
            call(args.kept, "--one", name, seed)
            row = json.loads((args.kept / f"{name}|{seed}.json").read_text())
            after = row["refined"] and f"refined {row['refined']['error']:.2f} {row['refined']['right']}"
            print(f"{name:<24}{seed} {row['grade']:<7}{row['error']:6.2f} ({row['where']}) {row['right']!s:<6}"
                  f"{row['sds'][0]:.2f}-{row['sds'][2]:.2f} {row['seconds']:6.1f} s  {after or row['refused']}",
                  flush=True)  # fmt: skip
    except RuntimeError as problem:
        print(failed := f"Crashed: {name}: {problem}", flush=True)
        return failed
    return None


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--seeds", type=int, default=3)
    args.add_argument("--jobs", type=int, default=1, help="models side by side")
    args.add_argument("--only", nargs="*")
    args.add_argument("--kept", type=Path, default=Path("out/authored"))
    args.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args.add_argument("--one", nargs=2, metavar=("NAME", "SEED"))
    args.add_argument("--nuts", metavar="NAME")
    args.add_argument("--table", nargs="+", type=Path, metavar="FOLDER")
    args.add_argument("--note", default="", help="what is to be said of where the runs were made")
    args = args.parse_args()
    args.kept.mkdir(parents=True, exist_ok=True)
    if args.nuts or args.one:
        return part(args)
    failed = []
    if not args.table:
        with ThreadPoolExecutor(args.jobs) as pool:
            failed = [x for x in pool.map(lambda name: all_of(name, args), args.only or models()) if x]
    lines = [*table(*kept(args.table or [args.kept])), "", *failed]
    if not args.only:
        head = (
            "`python benchmarks/authored.py`; CPU seconds are from the model to the answer, and `refine()`'s come on top. "
        )
        (args.out / "authored.md").write_text("\n".join([(head + args.note).rstrip(), "", *lines]).rstrip() + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
