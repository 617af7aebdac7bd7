"""The paper's Figure 2 on FCPS sets: the ELBO along the way, on fresh draws; coordinate ascent's optimum; the clusters."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from yoasovi.answer.result import Fit
from yoasovi.experiments import drawing, fcps
from yoasovi.experiments.files import Row, write_csv, write_json
from yoasovi.experiments.rows import Table, Task, finite, groups, number, numbers, plus_minus, timed
from yoasovi.extras import need
from yoasovi.fitting import fit
from yoasovi.model import Model
from yoasovi.models import GaussianMixture
from yoasovi.models.mixture import cavi

SETS = ("EngyTime", "Hepta", "Lsun", "Tetra", "TwoDiamonds", "WingNut", "Chainlink")
MOST = 500  # points, as the author has them of EngyTime; sets with more are thinned evenly
SKLEARN = "scikit-learn"
# Iterations at which a run is stopped to look at its q; each method then goes on to its own end or limit.
LOOKS = {
    "bbvi-js+": (1, 10, 100), "qmcvi": (1, 10, 100), "yoasovi-naive": (1, 10, 30, 100),
    "yoasovi": (100, 300, 1000, 3000),
}  # fmt: skip
METHODS = (*LOOKS, SKLEARN, "cavi")
# The priors of the author's own runs, where they are known: mean, sd and noise variance. They merge all clusters into one.
AUTHORS = {"EngyTime": (2.0, 2.0, 4.0), "Tetra": (0.0, 2.0, 1.0)}


def tasks(quick: bool, seeds: int, sets: tuple[str, ...] = ()) -> list[Task]:
    """Give what there is to run; coordinate ascent has many starts and needs no seeds."""
    sets = sets or (("EngyTime", "Tetra") if quick else SETS)
    return [
        Task("figure2", name, method, (0,) if method == "cavi" else tuple(range(seeds)), (("most", MOST),))
        for name in sets
        for method in METHODS
    ]


@cache
def points(name: str) -> fcps.Points:
    """Give a set at the size used here."""
    return fcps.load(name, most=MOST)


def priors(name: str) -> dict[str, Any]:
    """Give means at the data's centre with twice its spread, and a noise variance of 1/K of the data's: no labels used."""
    found = points(name)
    noise = float(np.mean(np.var(found.y, 0))) / found.num_classes
    return {"prior_mean": found.y.mean(0), "prior_scale": 2.0 * found.y.std(0), "noise_covariance": noise}


@cache
def mixture(name: str, kind: str) -> Model:
    """Give the paper's mixture of a set, with "paper" or "free" parameters of q."""
    found = points(name)
    return GaussianMixture(found.y, found.num_classes, parameters=kind, **priors(name))


def measure(task: Task, seed: int) -> Row:
    """Make one row: what one method makes of one set."""
    found = points(task.problem)
    if task.method == SKLEARN:
        law = need("sklearn.mixture", "bench").BayesianGaussianMixture(n_components=found.num_classes, random_state=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of not having converged: the defaults are what is compared
            return {"rand": _rand(found.labels, law.fit_predict(found.y))}
    if task.method == "cavi":
        return _optimum(found)
    model = mixture(task.problem, "free" if task.method == "yoasovi" else "paper")
    # The same seed gives the same bits: a run stopped early is the beginning of the whole run.
    whole, known = timed(model, task.method, seed=seed)
    early = [n for n in LOOKS[task.method] if n < whole.num_steps]
    path = [_look(fit(model, task.method, seed=seed, max_steps=n, progress=False)) for n in early]
    return {**known, "rand": _rand(found.labels, _labels(whole)), "path": [*path, _look(whole)]}


def _look(answer: Fit) -> Row:
    known = numbers(answer)
    counts = known["values"] + known["gradients"]
    return {"iterations": known["iterations"], "evaluations": counts, "reported_elbo": known["reported_elbo"],
            "elbo": known["elbo"]}  # fmt: skip


def _optimum(found: fcps.Points) -> Row:
    best = cavi(found.y, found.num_classes, **priors(found.name))
    row = {"elbo": finite(best.elbo), "rand": _rand(found.labels, best.probs.argmax(1)), "sweeps": best.sweeps}
    if found.name in AUTHORS:
        mean, scale, noise = AUTHORS[found.name]
        theirs = cavi(found.y, found.num_classes, prior_mean=mean, prior_scale=scale, noise_covariance=noise)
        apart = np.linalg.norm(theirs.means[:, None] - theirs.means, axis=-1).max()
        row |= {"authors_elbo": finite(theirs.elbo), "authors_apart": finite(apart)}
    return row


def _rand(labels: np.ndarray, found: np.ndarray) -> float:
    """Give the adjusted Rand index: 1 for the classes themselves, 0 on average for chance."""
    return round(float(need("sklearn.metrics", "bench").adjusted_rand_score(labels, found)), 4)


def _labels(answer: Fit) -> np.ndarray:
    """Give each point's most probable label, from its probabilities or their logits."""
    (weights,) = answer.params["z"].values()
    return np.argmax(np.asarray(weights), -1)


# ---- what comes of it ------------------------------------------------------------------------------------


def report(rows: list[Row], out: Path, command: str) -> list[Table]:
    """Write the trajectories as CSV, every row as JSON, the three figures, and give the table for people."""
    write_csv(out / "figure2.csv", _points(rows))
    write_json(out / "figure2.json", command, rows)
    _draw_paths(rows, "evaluations", "evaluations of log p", out / "figure2-evaluations")
    _draw_paths(rows, "seconds", "processor time (s), without compiling", out / "figure2-seconds")
    _draw_rand(rows, out / "figure2-clusters")
    return [table(rows)]


def _points(rows: list[Row]) -> list[Row]:
    """Give every look at every run, with the processor's time up to it.

    A fit's time is spread evenly over its iterations; where no seed of a line found its program compiled, it is wall time.
    """
    out = []
    for (problem, method), some in groups(rows).items():
        if method in LOOKS:
            known = [row["cpu_s"] / row["iterations"] for row in some if row["cpu_s"] is not None]
            rate = fmean(known or [row["run_s"] / row["iterations"] for row in some])
            head = {"problem": problem, "method": method}
            out += [
                {**head, "seed": row["seed"], **at, "seconds": round(rate * at["iterations"], 6)}
                for row in some
                for at in row["path"]
            ]
    return out


def table(rows: list[Row]) -> Table:
    """Give the ends of the runs, and the clusters, for people."""
    by = groups(rows)
    cells = []
    for name in dict.fromkeys(row["problem"] for row in rows):
        best = by[name, "cavi"][0]
        cells.append((name, "coordinate ascent", "–", "–", "–", "–", number(best["elbo"]), "0", number(best["rand"], 2)))
        for method in METHODS[:-1]:
            some = by.get((name, method), [])
            if not some:
                continue
            off = [{"off": best["elbo"] - row["elbo"]} for row in some if method != SKLEARN and row["elbo"] is not None]
            cost = [{"n": row["values"] + row["gradients"]} for row in some if "values" in row]
            elbo = "–" if method == SKLEARN else plus_minus(some, "elbo")
            cells.append((
                "", method, plus_minus(cost, "n", 0), plus_minus(some, "run_s", 2), plus_minus(some, "cpu_s", 2),
                plus_minus(some, "reported_elbo"), elbo, plus_minus(off, "off"),
                plus_minus(some, "rand", 2),
            ))  # fmt: skip
    head = ("set", "method", "evaluations", "run s", "CPU s", "reported ELBO", "ELBO on fresh draws", "nats below CAVI",
            "Rand index")  # fmt: skip
    title = "FCPS sets: mean ± SD over seeds; the Rand index is adjusted for chance, 1 is the classes themselves"
    return Table(title, head, cells, wide=("run s", "CPU s"))


def _draw_paths(rows: list[Row], x: str, label: str, path: Path) -> None:
    sets = list(dict.fromkeys(row["problem"] for row in rows))
    columns = min(4, len(sets))
    lines = -(-len(sets) // columns)
    figure, axes = drawing.panels(lines, columns, height=0.6 + 1.75 * lines, squeeze=False)
    by, paths = groups(rows), groups(_points(rows))
    for axis in axes.ravel()[len(sets) :]:
        axis.set_visible(False)
    for name, axis in zip(sets, axes.ravel(), strict=False):
        best = by[name, "cavi"][0]["elbo"]
        axis.axhline(best, color="black", lw=0.9, ls=(0, (1, 1)), label="coordinate ascent")
        floor = _draw_lines(axis, {m: paths[name, m] for m in LOOKS}, x)
        axis.set_ylim(best + 1.25 * (floor - best), best - 0.08 * (floor - best))
        axis.set(xscale="log", title=name)
        axis.yaxis.set_major_locator(need("matplotlib.ticker", "report").MaxNLocator(4))
    figure.supxlabel(label, fontsize=8)
    figure.supylabel("ELBO (nats)", fontsize=8)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3)
    drawing.save(figure, path)


def _draw_lines(axis: Any, by_method: dict[str, list[Row]], x: str) -> float:
    """Draw every seed's line; give the lowest ELBO that the panel should show, where the runs began."""
    starts = []
    for method, colour, marker in zip(by_method, drawing.COLOURS, drawing.MARKERS, strict=False):
        found = [at for at in by_method[method] if at["elbo"] is not None]
        for i, seed in enumerate(dict.fromkeys(at["seed"] for at in found)):
            along = [at for at in found if at["seed"] == seed]
            at = [point[x] for point in along]
            style = {"color": colour, "marker": marker, "ms": 2.5, "lw": 1.0}
            axis.plot(at, [p["elbo"] for p in along], label=method if i == 0 else None, **style)
            starts.append(along[0]["elbo"])
            if method == "yoasovi-naive":
                label = "yoasovi-naive, what it reports" if i == 0 else None
                axis.plot(at, [p["reported_elbo"] for p in along], label=label, **{**style, "ls": ":", "mfc": "white"})
    return min(starts)


def _draw_rand(rows: list[Row], path: Path) -> None:
    sets = list(dict.fromkeys(row["problem"] for row in rows))
    figure, axis = drawing.panels(1, 1, width=drawing.COLUMN, height=1.5 + 0.42 * len(sets))
    by = groups(rows)
    for i, (method, colour, marker) in enumerate(zip(METHODS, drawing.COLOURS, drawing.MARKERS, strict=False)):
        points_ = [(row["rand"], j + 0.12 * (i - 2.5)) for j, name in enumerate(sets) for row in by.get((name, method), ())]
        if points_:
            label = "coordinate ascent" if method == "cavi" else method
            axis.plot(*zip(*points_, strict=True), ls="", color=colour, marker=marker, ms=3.5, label=label)
    for j in range(1, len(sets)):
        axis.axhline(j - 0.5, color="0.85", lw=0.6, zorder=0)
    axis.set(yticks=range(len(sets)), yticklabels=sets, xlim=(-0.08, 1.05), ylim=(len(sets) - 0.5, -0.5))
    axis.set_xlabel("adjusted Rand index")
    figure.legend(*axis.get_legend_handles_labels(), loc="outside upper center", ncols=2, handletextpad=0.2)
    drawing.save(figure, path)
