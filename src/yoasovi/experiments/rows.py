"""Rows of an experiment: fits run by several processes, each kept in a file of its own, so that a run can be resumed."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from yoasovi.errors import positive_integer
from yoasovi.experiments.files import Row, version, write
from yoasovi.scale.pool import Failure, each

if TYPE_CHECKING:
    from yoasovi.answer.result import Fit


@dataclass(frozen=True)
class Task:
    """One problem and one method, for every seed: they share a compiled program, so one process runs them all.

    `settings` is whatever else the rows depend on; a row made with others is made again.
    """

    study: str
    problem: str
    method: str
    seeds: tuple[int, ...]
    settings: tuple[tuple[str, Any], ...] = ()

    def setting(self, name: str, default: Any = None) -> Any:
        """Give a setting by name."""
        return dict(self.settings).get(name, default)

    def head(self, seed: int) -> Row:
        """Give what tells a row from all others."""
        settings = json.loads(json.dumps(dict(self.settings)))
        name = {"study": self.study, "problem": self.problem, "method": self.method, "seed": seed}
        return {**name, "settings": settings, "yoasovi": version("yoasovi"), "jax": version("jax")}

    def path(self, out: Path, seed: int) -> Path:
        """Give the file of a row; rows of other settings, as those of a quick run, have files of their own."""
        words = [self.problem, self.method, *(f"{k} {v}" for k, v in self.settings), f"{seed}.json"]
        plain = lambda text: "".join(c if c.isalnum() or c in "-+." else "_" for c in text)
        return out / ".rows" / self.study / ".".join(map(plain, words))


Measure = Callable[[Task, int], Row]
Say = Callable[[str], None]
Each = Callable[[Callable[[Task], Task], list[Task], int], Iterable[tuple[int, Any]]]


def run(
    measure: Measure, tasks: list[Task], out: Path, workers: int, say: Say = lambda _: None, each: Each = each
) -> list[Row]:
    """Run what is not finished yet, `workers` at a time by `each`, and give all rows in the order of the tasks."""
    positive_integer("workers", "reproduce", workers)
    todo = [task for task in tasks if any(finished(task, out, seed) is None for seed in task.seeds)]
    if todo != tasks:
        say(f"{tasks[0].study}: {len(tasks) - len(todo)} of {len(tasks)} lines of the table were already there")
    for i, task in enumerate(_done(each(partial(work, measure, out), todo, workers), todo)):
        say(f"{task.study}: {task.problem}, {task.method} done ({i + 1} of {len(todo)})")
    rows = [finished(task, out, seed) for task in tasks for seed in task.seeds]
    return [row for row in rows if row is not None]


def _done(ends: Iterable[tuple[int, Any]], tasks: list[Task]) -> Iterable[Task]:
    for place, ended in ends:
        if isinstance(ended, Failure):
            raise RuntimeError(f"{tasks[place].problem}, {tasks[place].method}: {ended.error}\n{ended.traceback}")
        yield ended


def work(measure: Measure, out: Path, task: Task) -> Task:
    """Make the rows of one task that are missing; each is there whole or not at all."""
    for seed in task.seeds:
        if finished(task, out, seed) is None:
            row = {**task.head(seed), **measure(task, seed)}
            write(task.path(out, seed), json.dumps(row, allow_nan=False))
    return task


def finished(task: Task, out: Path, seed: int) -> Row | None:
    """Give a row made earlier with the same settings and versions, or None."""
    try:
        row = json.loads(task.path(out, seed).read_text())
    except (OSError, ValueError):
        return None
    head = task.head(seed)
    return row if isinstance(row, dict) and {k: row.get(k) for k in head} == head else None


# ---- what is known of a fit ------------------------------------------------------------------------------


def timed(model: Any, *arguments: Any, **settings: Any) -> tuple[Fit, Row]:
    """Fit without a progress bar; give the fit, and what is known of it as plain numbers.

    `cpu_s` is the processor's time, which other work on the machine does not lengthen as it does `run_s`, wall time. It
    is known only of fits that found their program compiled.
    """
    from yoasovi.fitting import fit

    begin = time.process_time()
    found = fit(model, *arguments, progress=False, **settings)
    cpu = time.process_time() - begin
    return found, {**numbers(found), "cpu_s": round(cpu, 4) if found.seconds.compile == 0 else None}


def numbers(fit: Fit) -> Row:
    """Give what is known of a fit as plain numbers; those that are not finite become None."""
    if fit.stop_reason.name == "INTERRUPTED":
        raise KeyboardInterrupt  # half a fit is no row
    return {
        "iterations": fit.num_steps, "values": fit.num_values, "gradients": fit.num_gradients,
        "compile_s": round(fit.seconds.compile, 3), "run_s": round(fit.seconds.run, 4),
        "reported_elbo": finite(fit.reported_elbo), "elbo": finite(fit.elbo.value), "elbo_se": finite(fit.elbo.se),
        "stop": fit.stop_reason.name.lower(),
    }  # fmt: skip


def finite(x: float) -> float | None:
    """Give a number, or None in place of infinity and NaN."""
    return round(float(x), 6) if math.isfinite(x) else None


def spread(rows: list[Row], name: str) -> tuple[float | None, float | None]:
    """Give mean and SD over the rows that have this figure; (None, None) if none has, no SD of a single one."""
    known = [row[name] for row in rows if row.get(name) is not None]
    return (fmean(known) if known else None), (stdev(known) if len(known) > 1 else None)


def groups(rows: list[Row]) -> dict[tuple[str, str], list[Row]]:
    """Give the rows by problem and method, in their order."""
    out: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        out.setdefault((row["problem"], row["method"]), []).append(row)
    return out


# ---- tables ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """A table for people: cells are text already. `wide` columns are left out where there is little room."""

    title: str
    head: tuple[str, ...]
    cells: Sequence[tuple[str, ...]]
    notes: tuple[str, ...] = ()
    wide: tuple[str, ...] = ()

    def narrow(self) -> Table:
        """Give the table without its wide columns."""
        kept = [i for i, name in enumerate(self.head) if name not in self.wide]
        pick = lambda line: tuple(line[i] for i in kept)
        return Table(self.title, pick(self.head), [pick(line) for line in self.cells], self.notes)

    def markdown(self) -> str:
        """Give the table and its notes as Markdown; figures are set to the right, words to the left."""
        long = lambda i: any(len(line[i]) > 40 for line in self.cells)
        rule = [":--" if i == 0 or name == "method" or long(i) else "--:" for i, name in enumerate(self.head)]
        lines = ["| " + " | ".join(x.replace("|", "\\|") for x in line) + " |" for line in (self.head, rule, *self.cells)]
        return "\n".join(lines + [""] + [f"{note}\n" for note in self.notes])


def number(x: float | None, digits: int = 1) -> str:
    """Write a number for people; a dash where there is none."""
    if x is None:
        return "–"
    text = f"{abs(x):.2e}" if abs(x) >= 1e6 else f"{abs(x):,.{digits}f}"
    return f"−{text}" if x < 0 and text.strip("0.") else text


def plus_minus(rows: list[Row], name: str, digits: int = 1) -> str:
    """Write mean ± SD; the mean alone where nothing varies."""
    mean, sd = spread(rows, name)
    return number(mean, digits) + (f" ± {number(sd, digits)}" if sd else "")
