"""Verdicts on fits whose quality is known, over many seeds: tables of grades, and every false "good" and false "poor".

    python benchmarks/verdicts.py [--seeds 10] [--out benchmarks/results]

First the ordinary models of `ordinary.py`, whose posteriors a long run of NUTS gives (made once, kept in out/truth). A fit
is right where every mean is within 0.1 posterior sd, every sd within 25% and the median sd within 10%: by `fit.sample()`, as
users get it. The limits of the verdict were set by looking at those models and at the ones of `fresh.py`. The models of
`held_out.py` were first run once rules had been changed by what those of `fresh.py` showed. That run showed a slip, on
models of both kinds (draws that had come to a far mode were taken to miss it), and two hierarchies with answers off by 0.12
to 0.15 sd. The slip was mended, other forms of a model are tried more often since, two rules were changed for known cases
below (how far chains would go, tails that chains cannot clear), and all were run again. No limit was moved by them.
Then cases whose right grade is known beforehand.
"""

import argparse
import json
import time
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path

import fresh
import held_out
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import ordinary
from numpyro.distributions import constraints

import yoasovi as yo

REAL = constraints.real
MODELS = ordinary.MODELS | fresh.MODELS | held_out.MODELS
MARKS = {"seen": "", "apart": " *"}
EFFECTS, ERRORS = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


def conjugate():
    """Linear regression with known noise: the posterior is Gaussian."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 3))
    y = X @ np.array([1.0, -1.0, 0.5]) + rng.normal(size=30)
    return yo.Model(
        prior={"w": dist.Normal(np.zeros(3), 1.0).to_event(1)}, data={"X": X, "y": y}, name="conjugate Gaussian",
        log_likelihood=lambda p, d: dist.Normal(d["X"] @ p["w"], 1.0).log_prob(d["y"]),
    )  # fmt: skip


def correlated():
    """Two parameters with correlation 0.95."""
    precision = np.linalg.inv(np.array([[1.0, 0.95], [0.95, 1.0]]))
    return density("correlated Gaussian", lambda x: -0.5 * x @ precision @ x, 2)


def eight_schools():
    """Centred: the scale of the effects depends on tau."""
    return replace(yo.models.HierarchicalNormal(EFFECTS, sd=ERRORS, centered=True), name="eight schools, centred")


def eight_schools_non_centred():
    """The same posterior, reparameterised."""
    return replace(yo.models.HierarchicalNormal(EFFECTS, sd=ERRORS), name="eight schools, non-centred")


def funnel(d=9):
    """Neal's funnel."""

    def log_p(p):
        return dist.Normal(0.0, 3.0).log_prob(p["v"]) + dist.Normal(0.0, jnp.exp(p["v"] / 2)).log_prob(p["x"]).sum()

    return yo.Model.from_log_density(log_p, {"v": REAL, "x": REAL}, {"x": (d,)}, name=f"Neal's funnel, {d + 1} parameters")


def bimodal(half_gap, d=1, share=0.5):
    """Two unit Gaussians."""
    centre = np.zeros(d)
    centre[0] = half_gap

    def log_p(x):
        up, down = -0.5 * jnp.sum((x - centre) ** 2), -0.5 * jnp.sum((x + centre) ** 2)
        return jnp.logaddexp(np.log(share) + up, np.log(1 - share) + down)

    return density(f"bimodal, ±{half_gap:g} in {d}-D, {share:.0%}", log_p, d)


def heavy(d):
    """Independent t with 2 degrees of freedom."""
    return density(f"t with 2 d.o.f. in {d}-D", lambda x: dist.StudentT(2.0).log_prob(x).sum(), d)


def density(name, fn, d):
    return yo.Model.from_log_density(lambda p: fn(p["x"]), {"x": REAL}, {"x": (d,)}, name=name)


# (model, options of fit, grades that are right, a word the advice must have)
CASES = [
    (conjugate, {}, ("good",), ""),
    (correlated, {"family": "mean_field"}, ("good", "usable"), ""),  # the draws are corrected
    (correlated, {"family": "full_rank"}, ("good",), ""),
    (eight_schools, {}, ("good", "usable"), ""),  # the draws are corrected group by group
    (eight_schools_non_centred, {}, ("usable", "good"), ""),
    (funnel, {}, ("poor",), "reparameterise"),
    (lambda: funnel(1), {}, ("poor",), "reparameterise"),
    (lambda: bimodal(4.0), {}, ("poor",), "modes"),
    (lambda: bimodal(2.0), {}, ("good",), ""),  # the corrected draws have both modes
    (lambda: bimodal(10.0, 2), {}, ("poor",), "modes"),
    (lambda: bimodal(4.0, 5, 0.8), {}, ("poor",), "modes"),
    (lambda: heavy(1), {}, ("usable", "poor"), "tails"),
    (lambda: heavy(5), {}, ("usable", "poor"), "tails"),
    (eight_schools_non_centred, {"max_steps": 20}, ("failed",), "steps"),
    (funnel, {"max_steps": 20}, ("failed",), "steps"),
]


def judge(case, seeds):
    """Fit and grade once per seed; one line of the table, and how many false goods and wrong grades there were."""
    build, options, right, word = case
    model, grades, said, seconds, spent = build(), Counter(), 0, [], []
    for seed in seeds:
        fit = yo.fit(model, seed=seed, progress=False, mend=False, **options)  # as the verdict sees it
        begin = time.perf_counter()
        verdict = fit.diagnose()
        seconds.append(time.perf_counter() - begin)
        spent.append((verdict.num_gradients, verdict.num_values))
        grades[verdict.grade] += 1
        said += verdict.grade in right and word in verdict.advice.lower()
    wrong = sum(n for g, n in grades.items() if g not in right)
    what = ", ".join(f"{k}={v}" for k, v in options.items())
    gradients, values = np.median(spent, 0)
    line = (
        f"| {model.name}{f' ({what})' if what else ''} | {' or '.join(right)} | "
        + " | ".join(str(grades[g] or "·") for g in ("good", "usable", "poor", "failed"))
        + f" | {said}/{len(seeds)} | {gradients:,.0f} | {values:,.0f} | {np.median(seconds):.1f} |"
    )
    return line, grades["good"] if "good" not in right else 0, wrong


def ordinary_rows(seeds, names):
    """Fit and grade the ordinary models; one row per fit."""
    for name, (build, options, _) in MODELS.items():
        if names and name not in names:
            continue
        known = ordinary.truth(name, Path("out/truth"))
        half = "apart" if name in held_out.MODELS else "seen"
        model, args = build()
        door = yo.from_numpyro(model, *args)
        for seed in seeds:
            fit = yo.fit(door, seed=seed, progress=False, **options)
            error, low, middle, high = ordinary.compared(fit.sample(4000), known)
            begin, spent = time.perf_counter(), fit.num_values
            verdict = fit.diagnose()
            seen = {k: (f.value, f.error, f.state) for k, f in verdict.evidence.items()}
            yield {
                "model": name, "half": half, "dim": door.density.dim, "seed": seed, "grade": verdict.grade,
                "error": error, "sd": (low, middle, high), "corrected": bool(fit.worth_correcting),
                "right": error <= 0.1 and low >= 0.8 and high <= 1.25 and 0.9 <= middle <= 1.1,
                "gradients": verdict.num_gradients, "values": verdict.num_values + fit.num_values - spent,
                "seconds": time.perf_counter() - begin, "evidence": seen, "fit_gradients": fit.num_gradients,
            }  # fmt: skip


def ordinary_table(rows):
    """Lines of the table by model, and of the figures for either half."""
    lines = [
        "| model | d | right | good | usable | poor | failed | largest error of a mean, sd | sds | gradients | s |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name in dict.fromkeys(r["model"] for r in rows):
        some = [r for r in rows if r["model"] == name]
        grades, mid = Counter(r["grade"] for r in some), lambda key, some=some: np.median([r[key] for r in some])
        lines.append(
            f"| {name}{MARKS[some[0]['half']]} | {some[0]['dim']} | {sum(r['right'] for r in some)} of {len(some)} | "
            + " | ".join(str(grades[g] or "·") for g in ("good", "usable", "poor", "failed"))
            + f" | {mid('error'):.2f} | {min(r['sd'][0] for r in some):.2f}-{max(r['sd'][2] for r in some):.2f} | "
            f"{mid('gradients'):,.0f} | {mid('seconds'):.1f} |"
        )
    lines += ["", "| | models that limits were set on | models kept apart (*) |", "|---|---:|---:|"]
    halves = [[r for r in rows if r["half"] == half] for half in MARKS]
    bad = lambda r: r["grade"] in ("poor", "failed")
    far = lambda r: r["error"] > 0.15 or r["sd"][0] < 0.8 or r["sd"][2] > 1.25
    for text, of, which in (
        ("right fits graded good", lambda r: r["right"], lambda r: r["grade"] == "good"),
        ("right fits graded poor or failed", lambda r: r["right"], bad),
        (
            "graded good, with a mean over 0.15 sd off or an sd outside 0.8 to 1.25 of NUTS's",
            lambda r: r["grade"] == "good",
            far,
        ),
        ("a mean over 0.5 sd off, graded poor or failed", lambda r: r["error"] > 0.5, bad),
    ):
        cells = [f"{sum(map(which, some))} of {len(some)}" for some in ([r for r in half if of(r)] for half in halves)]
        lines.append(f"| {text} | {' | '.join(cells)} |")
    return lines


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--seeds", type=int, default=10)
    args.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args.add_argument("--models", nargs="*", help="only these ordinary models, and no known cases")
    args.add_argument("--raw", type=Path, help="also write every ordinary fit as a line of JSON")
    args.add_argument("--rows", type=Path, nargs="*", help="take ordinary fits from such files instead")
    args = args.parse_args()
    warnings.simplefilter("ignore")
    numpyro.enable_x64()
    rows = [json.loads(line) for path in args.rows or () for line in path.read_text().splitlines()]
    place = list(MODELS)
    rows.sort(key=lambda row: (place.index(row["model"]), row["seed"]))
    for row in ordinary_rows(range(args.seeds), args.models) if not rows else ():
        rows.append(row)
        print(f"{row['model']:<42}{row['seed']:>3} {row['grade']:<7} {'right' if row['right'] else '':<6}"
              f"{row['error']:.2f} {row['sd'][0]:.2f}-{row['sd'][2]:.2f}", flush=True)  # fmt: skip
        if args.raw:
            with args.raw.open("a") as file:
                file.write(json.dumps(row) + "\n")
    print("\n".join(ordinary_table(rows)))
    if args.models:
        return
    lines = [
        "| fit | right | good | usable | poor | failed | right grade and advice | gradients | values | s |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    false_good = wrong = runs = 0
    for case in CASES:
        line, goods, missed = judge(case, range(args.seeds))
        lines.append(line)
        false_good, wrong, runs = false_good + goods, wrong + missed, runs + args.seeds
        print(line, flush=True)
    said = f'{runs} runs: {false_good} false "good", {wrong} grades that are not among the right ones.'
    print(said)
    how = "; ordinary models one by one (`--models NAME --raw FILE`), put together by `--rows`" if args.rows else ""
    head = f"`python benchmarks/verdicts.py --seeds {args.seeds}`{how}, yoasovi {yo.__version__}\n\n"
    what = "Ordinary models, against NUTS: errors of `fit.sample(4000)`, medians over seeds; sds relative to NUTS's.\n"
    what += (
        "Right: means within 0.1 sd, sds within 0.8 to 1.25 of NUTS's, their median within 10%. The models marked * were\n"
    )
    what += "kept apart: see the script.\n\n"
    notes = "Gradients, values and seconds (compiled, wall clock) are those of the verdict alone, medians over seeds.\n"
    args.out.mkdir(parents=True, exist_ok=True)
    tables = "\n".join(ordinary_table(rows)) + "\n\nCases whose right grade is known beforehand.\n\n" + "\n".join(lines)
    (args.out / "verdicts.md").write_text(f"{head}{what}{tables}\n\n{said} {notes}")


if __name__ == "__main__":
    main()
