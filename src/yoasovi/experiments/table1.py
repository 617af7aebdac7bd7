"""The paper's Table 1: three simulated mixtures, every method, what a run says of itself beside what it is worth."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

from yoasovi.experiments import simulate
from yoasovi.experiments.files import Row, write_csv, write_json
from yoasovi.experiments.rows import Table, Task, finite, groups, number, plus_minus, spread, timed
from yoasovi.model import Model
from yoasovi.models import GaussianMixture

PROBLEMS = {"mixture-2-2": (2, 2), "mixture-2-3": (2, 3), "mixture-3-4": (3, 4)}
RATE_AS_PRINTED = "yoasovi-naive, rate 0.001"
METHODS = (
    "bbvi-js+", "qmcvi", "yoasovi-naive", RATE_AS_PRINTED, "yoasovi-metropolis", "yoasovi-step", "yoasovi", "mcvi",
    "bbvi-rb", "advi",
)  # fmt: skip
SUMMED_OUT = ("advi", "yoasovi-step")  # they differentiate through the draw, which a label does not allow
LUCKY = ("yoasovi-naive", RATE_AS_PRINTED, "yoasovi-metropolis", "yoasovi-step")  # what they report is one accepted draw
WIDE = ("run s", "compile s", "values", "gradients", "nats below CAVI", "DIC")
FIGURES = ("iterations", "run_s", "cpu_s", "values", "gradients", "reported_elbo", "elbo", "distance", "dic")


NOTES = (
    "ELBO and DIC are on 1,000 fresh draws from the final q. Reported: what the run last accepted as its own ELBO; for "
    f"{', '.join(LUCKY)} that is a single draw, kept because it was a lucky one.",
    "† With the labels summed out of the model: nothing about a label can be differentiated. The ELBO then bounds the same "
    "evidence more tightly, so it has no distance to coordinate ascent's.",
    "Printed: the paper's iterations, seconds, ELBO and DIC for BBVI-JS+(100), QMCVI(10) and YOASOVI(1).",
    "* Ran to its limit of steps, with at least one seed.",
    "Run: wall time without compiling, on a machine that may have had other work; CPU: the processor's time, of the fits "
    "that found their program compiled. Compile: seconds to compile it, once for all seeds of a line.",
)


class Published(NamedTuple):
    """A row of the printed table: means, with SDs where there are two."""

    name: str
    iterations: tuple[float, float]
    seconds: tuple[float, float]
    elbo: tuple[float, float]
    dic: tuple[float, float]


_JS, _QMC, _YO = "BBVI-JS+(100)", "QMCVI(10)", "YOASOVI(1)"
PUBLISHED = {
    ("mixture-2-2", "bbvi-js+"): Published(_JS, (500, 0), (137.0, 60.3), (-4190.0, 553.8), (8058.2, 1098.9)),
    ("mixture-2-2", "qmcvi"): Published(_QMC, (500, 0), (31.7, 15.6), (-5104.1, 0), (9615.5, 0)),
    ("mixture-2-2", "yoasovi-naive"): Published(_YO, (175.5, 40.8), (0.6, 0.3), (-4005.4, 224.8), (8015.6, 446.6)),
    ("mixture-2-3", "bbvi-js+"): Published(_JS, (251.2, 262.3), (51.2, 55.3), (-4621.7, 767.3), (9146.6, 1606.6)),
    ("mixture-2-3", "qmcvi"): Published(_QMC, (500, 0), (45.2, 0.8), (-6501.5, 0), (12160.3, 0)),
    ("mixture-2-3", "yoasovi-naive"): Published(_YO, (350.1, 160.3), (1.5, 0.7), (-3713.4, 135.5), (7427.0, 269.0)),
    ("mixture-3-4", "bbvi-js+"): Published(_JS, (53.0, 157.1), (3.1, 7.8), (-5348.8, 570.1), (10636.1, 1206.3)),
    ("mixture-3-4", "qmcvi"): Published(_QMC, (500, 0), (39.0, 14.0), (-6563.3, 0), (12160.3, 0)),
    ("mixture-3-4", "yoasovi-naive"): Published(_YO, (291.4, 198.2), (1.1, 0.7), (-3950.1, 206.0), (7900.8, 407.9)),
}


def tasks(quick: bool, seeds: int) -> list[Task]:
    """Give what there is to run; a quick run looks at the first mixture only."""
    problems = list(PROBLEMS)[:1] if quick else PROBLEMS
    return [Task("table1", problem, method, tuple(range(seeds))) for problem in problems for method in METHODS]


@cache
def mixture(problem: str, kind: str) -> Model:
    """Give a mixture of the paper: labels summed out ("marginal"), or latent with "paper" or "free" parameters of q."""
    p, k = PROBLEMS[problem]
    y = simulate.mixture(p, k)
    if kind == "marginal":
        return GaussianMixture(y, k, assignments="marginal")
    return GaussianMixture(y, k, parameters=kind)


def measure(task: Task, seed: int) -> Row:
    """Fit once."""
    summed = task.method in SUMMED_OUT
    model = mixture(task.problem, "marginal" if summed else "free" if task.method == "yoasovi" else "paper")
    name, _, rate = task.method.partition(", rate ")
    found, known = timed(model, name, seed=seed, **({"learning_rate": float(rate)} if rate else {}))
    optimum = float(mixture(task.problem, "paper").optimum())  # type: ignore[misc]
    off = None if summed or known["elbo"] is None else finite(optimum - known["elbo"])
    return {**known, "labels": "summed out" if summed else "latent", "optimum": finite(optimum), "distance": off,
            "dic": finite(found.dic())}  # fmt: skip


def summary(rows: list[Row]) -> list[Row]:
    """Give one line per mixture and method: means and SDs over seeds, the printed figures beside them."""
    out = []
    for (problem, method), some in groups(rows).items():
        line: Row = {"problem": problem, "method": method, "seeds": len(some), "labels": some[0]["labels"]}
        for name in FIGURES:
            line[name], line[f"{name}_sd"] = spread(some, name)
        line["compile_s"] = max(row["compile_s"] for row in some)
        line["converged"] = sum(row["stop"] == "converged" for row in some)
        line["optimum"] = some[0]["optimum"]
        printed = PUBLISHED.get((problem, method))
        for name in ("iterations", "seconds", "elbo", "dic"):
            line[f"printed_{name}"], line[f"printed_{name}_sd"] = getattr(printed, name) if printed else (None, None)
        out.append(line)
    return out


def tables(rows: list[Row]) -> list[Table]:
    """Give a table per mixture for people."""
    head = ("method", "iterations", "run s", "CPU s", "compile s", "values", "gradients", "reported ELBO",
            "ELBO on fresh draws", "nats below CAVI", "DIC", "printed")  # fmt: skip
    out = []
    for problem in dict.fromkeys(row["problem"] for row in rows):
        here = [row for row in rows if row["problem"] == problem]
        cells = [_line(method, some) for (_, method), some in groups(here).items()]
        p, k = PROBLEMS[problem]
        best = number(here[0]["optimum"])
        title = f"p = {p}, K = {k}: the best ELBO known is {best} (coordinate ascent, best of 20 starts)"
        out.append(Table(title, head, cells, NOTES, WIDE))
    return out


def _line(method: str, some: list[Row]) -> tuple[str, ...]:
    printed = PUBLISHED.get((some[0]["problem"], method))
    beside = "–"
    if printed:
        steps, seconds, elbo, dic = (number(x[0]) for x in printed[1:])
        beside = f"{steps}, {seconds}, {elbo}, {dic}"
    note = "†" if method in SUMMED_OUT else ""
    star = "*" if any(row["stop"] == "max_steps" for row in some) else ""
    return (
        method + note, plus_minus(some, "iterations", 0) + star, plus_minus(some, "run_s", 2), plus_minus(some, "cpu_s", 2),
        number(max(row["compile_s"] for row in some)), plus_minus(some, "values", 0), plus_minus(some, "gradients", 0),
        plus_minus(some, "reported_elbo"), plus_minus(some, "elbo"), plus_minus(some, "distance"), plus_minus(some, "dic"),
        beside,
    )  # fmt: skip


def report(rows: list[Row], out: Path, command: str) -> list[Table]:
    """Write the table as CSV, every row as JSON, and give it for people."""
    write_csv(out / "table1.csv", summary(rows))
    write_json(out / "table1.json", command, rows)
    return tables(rows)
