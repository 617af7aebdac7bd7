"""Models as their authors wrote them, for NumPyro, PyMC and Stan: fits by default and refined, beside NUTS.

    python benchmarks/authored.py [--seeds 3] [--only NAME ...] [--out benchmarks/results]

Each run is a process of its own. The reference is the library's own NUTS, four chains of 1,000 + 1,000 at its defaults,
whose CPU seconds are shown; where its R-hat is above 1.01 or its effective size below 1,000, a longer run replaces its
figures (kept in out/authored). Ours is `fit`, `sample` and the verdict, compiling included; where the verdict is not good,
`refine()` follows. A fit is right where every mean is within 0.1 posterior sd, every sd within 25% and the median sd within
10%.
"""

import argparse
import json
import resource
import subprocess
import sys
import warnings
from importlib import import_module
from pathlib import Path

import numpy as np

KEPT = Path("out/authored")
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
    """CPU seconds of this process and of those that it began."""
    return sum(x.ru_utime + x.ru_stime for x in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


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
    return {k: by_chain(found[k]) for k in found.param_names}


NUTS_OF = {"numpyro": numpyro_nuts, "pymc": pymc_nuts, "stan": stan_nuts}


def reference(name):
    """Means and sds by NUTS, with the CPU seconds that it takes at its defaults."""
    import numpyro.diagnostics

    door, build = models()[name]
    built = build()
    begin = cpu()
    found = {k: np.asarray(v) for k, v in NUTS_OF[door](built, 1000, 1000, 0.8).items()}
    seconds = cpu() - begin
    checks = lambda: numpyro.diagnostics.summary({k: v for k, v in found.items() if v.dtype.kind == "f"})
    worst = lambda: max(float(np.nanmax(c["r_hat"])) for c in checks().values())
    least = lambda: min(float(np.nanmin(c["n_eff"])) for c in checks().values())
    first = worst(), least()
    if first[0] > 1.01 or first[1] < 1000:
        found = {k: np.asarray(v) for k, v in NUTS_OF[door](build(), 2000, 6000, 0.95).items()}
    return {
        "mean": {k: v.mean((0, 1)).tolist() for k, v in found.items()},
        "sd": {k: v.std((0, 1)).tolist() for k, v in found.items()},
        "first": first, "rhat": worst(), "ess": least(), "seconds": seconds,
    }  # fmt: skip


# ---- ours ---------------------------------------------------------------------------------------------------


def ours(name, seed):
    """Fit and grade; refine where the verdict is not good."""
    import yoasovi as yo

    known = json.loads((KEPT / f"{name}.json").read_text())
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
    if verdict.grade != "good":
        begin = cpu()
        try:
            better = fit.refine()
            row["refined"] = compared(better.sample(4000), known, only) | {"grade": str(better.diagnose().grade)}
        except (ValueError, NotImplementedError) as refused:
            row["refused"] = str(refused)
        row["more"] = cpu() - begin
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


def table(rows):
    lines = [
        "| model | for | d | right | refined | worst mean, sd | refined | sds | good/usable/poor/failed | gradients | "
        "CPU s | NUTS |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    final = lambda r: r["refined"] or r
    for name in dict.fromkeys(r["name"] for r in rows):
        some = [r for r in rows if r["name"] == name]
        known = json.loads((KEPT / f"{name}.json").read_text())
        middle = lambda key, some=some: float(np.median([r[key] for r in some]))
        counts = "/".join(str(sum(r["grade"] == g for r in some) or "·") for g in ("good", "usable", "poor", "failed"))
        lines.append(
            f"| {name} | {some[0]['door']} | {some[0]['dim']} | {sum(r['right'] for r in some)}/{len(some)} | "
            f"{sum(final(r)['right'] for r in some)}/{len(some)} | {max(r['error'] for r in some):.2f} | "
            f"{max(final(r)['error'] for r in some):.2f} | {min(r['sds'][0] for r in some):.2f}-"
            f"{max(r['sds'][2] for r in some):.2f} | {counts} | {middle('gradients'):,.0f} | {middle('seconds'):.1f} | "
            f"{known['seconds']:.1f} |"
        )
    right, after = np.mean([r["right"] for r in rows]), np.mean([final(r)["right"] for r in rows])
    false = [r for r in rows if r["grade"] in ("good", "usable") and r["error"] > 0.5]
    names = list(dict.fromkeys(r["name"] for r in rows))
    mid = lambda n: np.median([r["seconds"] for r in rows if r["name"] == n])
    cheaper = sum(mid(n) < json.loads((KEPT / f"{n}.json").read_text())["seconds"] for n in names)
    text = f"{len(rows)} fits of {len(names)} models: {right:.0%} right by default, {after:.0%} after `refine()` where the "
    text += f"verdict was not good; {len(false)} graded good or usable with a mean over 0.5 sd off; fewer CPU seconds than "
    return [*lines, "", f"{text}NUTS in {cheaper} of {len(names)} models."]


def call(*args):
    """Run a part of this in a process of its own; the last line that it prints is the answer."""
    done = subprocess.run([sys.executable, __file__, *map(str, args)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "no message")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--seeds", type=int, default=3)
    args.add_argument("--only", nargs="*")
    args.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args.add_argument("--one", nargs=2, metavar=("NAME", "SEED"), help=argparse.SUPPRESS)
    args.add_argument("--nuts", metavar="NAME", help=argparse.SUPPRESS)
    args = args.parse_args()
    if args.nuts or args.one:
        warnings.simplefilter("ignore")
        import numpyro

        numpyro.enable_x64(bool(args.nuts))  # ours chooses by itself
        print(json.dumps(reference(args.nuts) if args.nuts else ours(args.one[0], int(args.one[1]))))
        return
    rows, failed = [], []
    KEPT.mkdir(parents=True, exist_ok=True)
    for name in args.only or models():
        try:
            if not (KEPT / f"{name}.json").exists():
                (KEPT / f"{name}.json").write_text(json.dumps(call("--nuts", name)))
            for seed in range(args.seeds):
                rows.append(row := call("--one", name, seed))
                after = row["refined"] and f"refined {row['refined']['error']:.2f} {row['refined']['right']}"
                print(f"{name:<24}{seed} {row['grade']:<7}{row['error']:6.2f} ({row['where']}) {row['right']!s:<6}"
                      f"{row['sds'][0]:.2f}-{row['sds'][2]:.2f} {row['seconds']:6.1f} s  {after or row.get('refused', '')}",
                      flush=True)  # fmt: skip
        except RuntimeError as problem:
            failed.append(f"{name}: {problem}")
            print(failed[-1], flush=True)
    if not args.only:
        head = f"`python benchmarks/authored.py --seeds {args.seeds}`. CPU seconds are from the model to the answer."
        lines = [head, "", *table(rows), "", *(f"Crashed: {x}" for x in failed)]
        (args.out / "authored.md").write_text("\n".join(lines).rstrip() + "\n")
    print("\n".join(table(rows)))


if __name__ == "__main__":
    main()
