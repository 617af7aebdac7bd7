"""The page on the paper, written from the files of a run: no figure in it is typed by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from yoasovi.experiments import errata, figure2, networks, table1
from yoasovi.experiments.files import Row
from yoasovi.experiments.rows import groups, number, plus_minus, spread

_THREE = {"YOASOVI": "yoasovi-naive", "BBVI-JS+": "bbvi-js+", "QMCVI": "qmcvi"}

_TABLE1 = """\
N = 500 points of K equally likely unit Gaussians in p dimensions: [Section 4 of the
paper](https://arxiv.org/abs/2406.02838), “Simulated Datasets”, with S = 10 Sobol points for QMCVI and S = 100 draws for
BBVI-JS+. It does not print its means; these are drawn from N(0, 2.5²) with seed 1, so ELBOs can be compared with the
printed ones in kind, not to the nat. Section 3.4, “Adaptive Optimizers”, prints a constant rate of 10⁻³, which has a
line of its own; the author's code has 10⁻⁶ for QMCVI and for the two algorithms that accept draws, M = 3 log t and
patience 100, and those settings are used for the other lines. BBVI-JS+ has 10⁻³. At most 500 iterations where nothing
stops a run."""

_FIGURE1 = """\
Right: the rules as the author's code and this project have them, dividing by abs(L_ref); and Algorithm 1 as printed,
which refuses improvements and welcomes everything else."""

_FIGURE2 = """\
The paper shows two of Ultsch's Fundamental Clustering Problems; these come from the data files of `pyclustering`. The
model is the paper's mixture with means N(centre of the data, (2 × its SD)²) and a noise variance of 1/K of the data's;
of sets with more than 500 points, 500 are used, evenly spaced through the file. To look at a run along the way it is
run again from the same seed, which gives the same bits, up to that iteration: every point is an ELBO on 1,000 fresh
draws. Dotted: what `yoasovi-naive` says of itself there. Panels show what lies between the worst start and the optimum;
a line may leave below. Time is the processor's for the whole fit, spread evenly over its iterations: the machine had
other work too."""

_CLUSTERS = """\
The clusters, beside scikit-learn's `BayesianGaussianMixture` by its defaults. That one learns full covariances and
weights from a k-means start; the paper's model has round clusters of a known size, and coordinate ascent, the best of
20 starts, shows what such a model can do. The fits have a single start each, at random points, and where there are
many clusters that often leads to a local optimum (`restarts` is there for that)."""

_NETWORKS = f"""\
y = sin x₁ + 2 x₂² − 1.5 x₃ + 0.5 e, with ten columns of x of which seven are idle. Adam 0.01 and {{steps:,}} iterations, for
`yoasovi-step` M from 0.1 to 15 and no early stop, a mean-field q whose scales begin at e⁻³: the author's settings as
far as they are known. `qmcvi` is a real one, with gradients through Sobol points; `{networks.TEN}` is what the author's
code does under that name, and `{networks.LONG}` has as many gradients as those two, one draw each. `yoasovi` has no
settings, and {{ours}}. *At the prior* is the share of weights whose mean and sd are those of their prior to a
tenth of its sd. The DIC is no guide between fits that are this far from the posterior. Printed: the author's names,
test RMSE and seconds."""

_INSTEAD = """\
`yoasovi` keeps the paper's idea, one draw per iteration and acceptance by the ELBO, and changes what is judged, and on
what: the proposal is a *window* of iterations; it is compared with the last accepted q on draws that nothing was fitted
to; what is clearly worse is undone; and what ends a fit is a gain that is small beyond doubt, not a run of refusals
({method}). With latent labels and values of log p alone it ends {near}. On the FCPS sets {fcps}. On the
networks its ELBO is {networks}. {rmse}"""


def page(out: Path, command: str) -> str:
    """Give the page as Markdown; it stands beside the folder `out`, whose figures it shows."""
    studies = {name: json.loads((out / f"{name}.json").read_text()) for name in ("table1", "figure2", "networks", "errata")}
    one, two, nets, wrong = (studies[name]["rows"] for name in studies)
    image = lambda name, words: f"![{words}]({out.name}/{name}.svg)"
    parts = [
        "# The paper, run again", _opening(command, studies), _note(out),
        "## What the paper claims, and what was measured", _claims(one),
        "## Where the figures disagree, and the likely reason", _reasons(one, nets),
        "## What the project does instead", _instead(one, two, nets, out), _why_not(nets),
        "## Table 1: three simulated mixtures", _TABLE1,
        *[f"**{table.title}**\n\n{replace(table, notes=()).markdown()}" for table in table1.tables(one)],
        "\n\n".join(table1.NOTES), _not_run(table1.PROBLEMS, one),
        "## Figure 1: the rules of acceptance",
        image("figure1", "Left, the density that the paper puts on ELBO values; right, probabilities of acceptance"),
        _FIGURE1,
        "## Figure 2: FCPS sets", _FIGURE2,
        image("figure2-evaluations", "ELBO against evaluations of log p"),
        image("figure2-seconds", "ELBO against processor time"),
        _CLUSTERS, image("figure2-clusters", "Adjusted Rand index of each method on each set"),
        figure2.table(two).markdown(), _authors_priors(two), _not_run(figure2.SETS, two),
        "## The author's later experiments: networks", _about_networks(nets),
        image("networks", "ELBO and test error of every fit"),
        networks.table(nets).markdown(), _not_run(networks.PROBLEMS, nets),
        "## Errata", errata.table(wrong).markdown(),
    ]  # fmt: skip
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _opening(command: str, studies: dict[str, Any]) -> str:
    seeds = {name: len({row["seed"] for row in studies[name]["rows"]}) for name in ("table1", "figure2", "networks")}
    machine, versions = studies["table1"]["machine"], studies["table1"]["versions"]
    libraries = ", ".join(f"{k} {v}" for k, v in versions.items())
    return (
        "Dayta, “You Only Accept Samples Once” (arXiv 2406.02838): its table and figures run again, the printed figures "
        f"beside the measured ones. This page and everything in it is made by\n\n```sh\n{command}\n```\n\n"
        f"with {seeds['table1']} seed(s) for Table 1, {seeds['figure2']} for Figure 2 and {seeds['networks']} for the "
        f"networks, on {machine['cores']} cores ({machine['processor']}, {machine['system']}), {libraries}. ± is one SD "
        "between seeds. Every fit is a row of the JSON files beside the figures."
    )


def _note(out: Path) -> str:
    """Give what somebody has to say of a run, if it stands in note.txt beside its files."""
    path = out / "note.txt"
    return path.read_text() if path.exists() else ""


def _claims(rows: list[Row]) -> str:
    by, problems = groups(rows), list(dict.fromkeys(row["problem"] for row in rows))

    def measured(name: str, figure: str, digits: int = 0) -> str:
        return " / ".join(number(spread(by[x, _THREE[name]], figure)[0], digits) for x in problems)

    def printed(name: str, figure: str, digits: int = 0) -> str:
        return " / ".join(number(getattr(table1.PUBLISHED[x, _THREE[name]], figure)[0], digits) for x in problems)

    def all_three(of: Any, figure: str, digits: int = 0, unit: str = "") -> str:
        return "; ".join(f"{name} {of(name, figure, digits)}{unit}" for name in _THREE)

    lucky = [{"gap": row["reported_elbo"] - row["elbo"]} | row for row in rows if row["method"] == "yoasovi-naive"]
    gaps = " / ".join(number(spread([row for row in lucky if row["problem"] == x], "gap")[0], 0) for x in problems)
    best = " / ".join(number(by[x, "yoasovi-naive"][0]["optimum"], 0) for x in problems)
    cells = [
        ("YOASOVI ends at a higher ELBO", all_three(printed, "elbo"),
         f"what it reports is {measured('YOASOVI', 'reported_elbo')}; on fresh draws: {all_three(measured, 'elbo')}. The "
         f"optimum is {best}"),
        ("and at a lower DIC", all_three(printed, "dic"), all_three(measured, "dic")),
        ("in a second or two, the others in a minute", all_three(printed, "seconds", 1, " s"),
         f"the processor's time, compiled: {all_three(measured, 'cpu_s', 2, ' s')}"),
        ("and stops by itself, converged", f"after {printed('YOASOVI', 'iterations')} iterations",
         f"after {measured('YOASOVI', 'iterations')}, when no luckier draw comes: reported minus fresh ELBO is {gaps} nats"),
    ]  # fmt: skip
    names = ", ".join(f"({p},{k})" for p, k in (table1.PROBLEMS[x] for x in problems))
    lines = [f"| {' | '.join(line)} |" for line in (("the paper", "printed", "measured"), (":--",) * 3, *cells)]
    return "\n".join([f"Means over seeds, for (p, K) = {names}:", "", *lines])


def _cut(nets: list[Row]) -> int | None:
    """Give the steps at which a quick run has cut the fits of networks; None if it has not."""
    steps = nets[0]["settings"].get("steps", networks.ITERATIONS)
    return steps if steps < networks.ITERATIONS else None


def _about_networks(nets: list[Row]) -> str:
    cut = _cut(nets)
    ours = "stops by itself" if cut is None else f"stops by itself where it may; here it is cut at {cut:,} steps too"
    return _NETWORKS.format(steps=cut or networks.ITERATIONS, ours=ours)


def _instead(one: list[Row], two: list[Row], nets: list[Row], out: Path) -> str:
    by, sets, later = groups(one), groups(two), groups(nets)
    near = [
        f"{plus_minus(rows, 'distance', 2)} nats below coordinate ascent on ({p},{k}) "
        f"with {plus_minus(rows, 'values', 0)} values of log p"
        for (problem, method), rows in by.items()
        if method == "yoasovi"
        for p, k in [table1.PROBLEMS[problem]]
    ]
    ours = [(name, row) for (name, method), rows in sets.items() if method == "yoasovi" for row in rows]
    gaps = sorted((sets[name, "cavi"][0]["elbo"] - row["elbo"], name) for name, row in ours)
    half, (worst, where) = max(median(gap for gap, _ in gaps), 0.0), (max(gaps[-1][0], 0.0), gaps[-1][1])
    other = lambda problem, name: f"{name.upper()} {plus_minus(later[problem, name], 'elbo', 0)}"
    beside = [
        f"{plus_minus(rows, 'elbo', 0)} ({problem}; {other(problem, 'advi')}, {other(problem, 'qmcvi')})"
        for (problem, method), rows in later.items()
        if method == "yoasovi"
    ]
    fcps = f"half of the fits end within {number(half, 2)} nats of it, and the worst, on {where}, {number(worst)} nats below"
    errors = [
        f"{plus_minus(later[problem, 'qmcvi'], 'rmse', 2)} against {plus_minus(rows, 'rmse', 2)} with {problem}"
        for (problem, method), rows in later.items()
        if method == "yoasovi"
    ]
    better = all(
        (spread(later[problem, "qmcvi"], "rmse")[0] or 0) < (spread(rows, "rmse")[0] or 0)
        for (problem, method), rows in later.items() if method == "yoasovi"
    )  # fmt: skip
    if cut := _cut(nets):
        rmse = f"All fits of networks are cut at {cut:,} steps here, which says nothing about how well they predict."
    else:
        lead = "As a prediction QMCVI is the better one there: its" if better else "QMCVI's"
        rmse = f"{lead} test RMSE is {' and '.join(errors)}."
    method = "[method.md](method.md)" if out.with_name("method.md").exists() else "docs/method.md of the project"
    beside_it = " and ".join(beside)
    return _INSTEAD.format(near=", ".join(near), fcps=fcps, networks=beside_it, rmse=rmse, method=method)


def _reasons(one: list[Row], nets: list[Row]) -> str:
    """Set every disagreement beside its likely reason; what is not known is said to be a guess."""
    by, later, problems = groups(one), groups(nets), list(dict.fromkeys(row["problem"] for row in one))
    mean = lambda rows, figure, digits=0: number(spread(rows, figure)[0], digits)
    here = lambda method, figure, digits=0: " / ".join(mean(by[x, method], figure, digits) for x in problems)
    there = lambda method, figure, digits=0: " / ".join(
        number(getattr(table1.PUBLISHED[x, method], figure)[0], digits) for x in problems
    )
    cells = [
        ("ELBO of YOASOVI", there("yoasovi-naive", "elbo"), here("yoasovi-naive", "elbo"),
         "what is printed is the last accepted draw (erratum 8): here that is "
         f"{here('yoasovi-naive', 'reported_elbo')}, near the print; fresh draws from the same q are lower"),
        ("DIC of YOASOVI", there("yoasovi-naive", "dic"), here("yoasovi-naive", "dic"),
         "what is printed is −2 times the ELBO to a few nats, without a penalty (erratum 9)"),
        ("iterations of BBVI-JS+", there("bbvi-js+", "iterations"), here("bbvi-js+", "iterations"),
         "the rule that ended the printed runs early is not given; the one here, a relative change below 10⁻⁵, is never "
         "met at this rate"),
        ("ELBO of QMCVI", there("qmcvi", "elbo"), here("qmcvi", "elbo"),
         "other data; the printed SD over runs is 0.0, so those runs most likely shared their points and their start, "
         "where every run here scrambles its points anew"),
        ("seconds of YOASOVI", there("yoasovi-naive", "seconds", 1), here("yoasovi-naive", "cpu_s", 2),
         "the author's R code is interpreted, these programs are compiled"),
    ]  # fmt: skip
    errors = {name: spread(some, "rmse")[0] for name in networks.PUBLISHED if (some := later.get(("3 layers", name)))}
    known = {name: x for name, x in errors.items() if x is not None}
    why = "the author's data set, split, priors and starts are not printed; this is another draw of the same recipe"
    if len(known) == 3 and known[networks.TEN] < min(x for name, x in known.items() if name != networks.TEN):
        why += ". In both, ten draws predict best"
    for name, (label, (rmse, _), _) in networks.PUBLISHED.items():
        if some := later.get(("3 layers", name)):
            cells.append((f"test RMSE of {label}, 3 layers", number(rmse, 3), plus_minus(some, "rmse", 2), why))
            why = "the same"
    lines = [("what", "printed", "measured", "likely reason"), (":--",) * 4, *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _why_not(nets: list[Row]) -> str:
    """Say why the default predicts worse where it does, and what its own budget gives."""
    if _cut(nets):
        return ""
    later, said = groups(nets), []
    for (problem, method), mine in later.items():
        if method != "yoasovi" or networks.LONG not in {name for place, name in later if place == problem}:
            continue
        theirs, long = later[problem, "qmcvi"], later[problem, networks.LONG]
        if (spread(mine, "rmse")[0] or 0) <= 1.1 * (spread(theirs, "rmse")[0] or 0):
            continue
        ended, share = sum(row["stop"] == "converged" for row in mine), lambda rows: plus_minus(rows, "idle", 2)
        if (spread(mine, "idle")[0] or 0) < 0.5 or ended < len(mine):
            said.append(f"Why it predicts worse with {problem} is not known.")
            continue
        said.append(
            f"With {problem} all {len(mine)} fits of the default end by themselves, converged, after "
            f"{plus_minus(mine, 'iterations', 0)} iterations: that is the budget it asks for, and more changes nothing. "
            f"It ends in another optimum: {share(mine)} of its weights are back at their priors, most units are switched "
            f"off, and no small step from there gains anything; at QMCVI's q it is {share(theirs)}. QMCVI's number of "
            f"gradients is not what does it: ADVI with as many, one draw each, ends at an ELBO of "
            f"{plus_minus(long, 'elbo', 0)} and a test RMSE of {plus_minus(long, 'rmse', 2)}, with {share(long)} of the "
            "weights at their priors."
        )
    return " ".join(said)


def _not_run(names: Iterable[str], rows: list[Row]) -> str:
    """Say what a quick or unfinished run has left out."""
    left = [name for name in names if name not in {row["problem"] for row in rows}]
    return f"*Not run here: {', '.join(left)}.*" if left else ""


def _authors_priors(rows: list[Row]) -> str:
    known = [row for row in rows if "authors_elbo" in row]
    said = [f"{x['problem']} {number(x['authors_elbo'], 2)} ({number(x['authors_apart'], 3)})" for x in known]
    lead = "With the author's own priors, where they are known, coordinate ascent's optimum (and the largest distance"
    return f"{lead} between two of its means) is {', '.join(said)}: clusters at distance 0 are one." if known else ""
