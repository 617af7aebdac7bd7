"""Tables of fits and their footnotes."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from statistics import fmean, stdev
from typing import TYPE_CHECKING, NamedTuple

from yoasovi.cli.models import BUILT_INS, MIXTURE_FORMS

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from yoasovi.answer.result import Fit
    from yoasovi.cli.runs import Row

PIPED_WIDTH = 120  # columns of a table that is not shown in a terminal
LUCKY = ("yoasovi-naive", "yoasovi-metropolis", "yoasovi-step")  # methods whose yardstick is one accepted draw


class Column(NamedTuple):
    """A column of figures: two lines of heading, and what stands in a row."""

    head: tuple[str, str]
    cell: Callable[[Row], str]


def _columns(optimum: float | None, seeds: int) -> tuple[list[Column], list[Column]]:
    """Give the columns that say what a fit cost, and those that say what came of it."""

    def mean(get: Callable[[Fit], float]) -> Callable[[Row], float]:
        return lambda row: fmean(get(f) for f in row.fits)

    def count(get: Callable[[Fit], int]) -> Callable[[Row], str]:
        return lambda row: f"{round(mean(get)(row)):,}"

    def steps(row: Row) -> str:
        return count(lambda f: f.num_steps)(row) + ("*" if row.limited else " ")

    def distance(row: Row) -> str:
        if optimum is None or row.fits[0].model.optimum is None:
            return "–"
        return number(optimum - mean(lambda f: f.elbo.value)(row))

    def dic(row: Row) -> str:
        known = [x for x in row.dics if x is not None]
        return number(fmean(known)) if known else "–"

    cost = [
        Column(("", "steps "), steps),
        Column(("", "values"), count(lambda f: f.num_values)),
        Column(("", "gradients"), count(lambda f: f.num_gradients)),
        Column(("compile", "s"), lambda row: f"{mean(lambda f: f.seconds.compile)(row):.1f}"),
        Column(("run", "s"), lambda row: f"{mean(lambda f: f.seconds.run)(row):.2f}"),
    ]
    answer = [
        Column(("reported", "ELBO"), lambda row: number(mean(lambda f: f.reported_elbo)(row))),
        Column(("ELBO on fresh", "draws ± se" if seeds == 1 else "draws ± SD"), _fresh),
        Column(("distance", "to optimum"), distance),
        Column(("", "DIC"), dic),
    ]
    return cost, answer


def _fresh(row: Row) -> str:
    """Give the ELBO over fresh draws with its standard error; of several seeds the mean ELBO and the SD between seeds."""
    from yoasovi.verdict.diagnostics import estimate

    each = [estimate(f.log_ratio) for f in row.fits]
    if len(each) == 1:
        return f"{number(each[0].value)} ± {number(each[0].se)}"
    return f"{number(fmean(e.value for e in each))} ± {number(stdev(e.value for e in each))}"


def number(x: float) -> str:
    """Write a number in at most nine characters or so."""
    if not math.isfinite(x):
        return str(x)
    if abs(x) >= 1e6:
        return f"{x:.1e}".replace("e+0", "e").replace("e+", "e")
    return f"{x:,.0f}" if abs(x) >= 1e5 else f"{x:,.1f}" if abs(x) >= 1000 else f"{x:.2f}"


def print_rows(console: Console, rows: list[Row], optimum: float | None, seeds: int = 1) -> None:
    """Print one table; where that is too wide, one of what the fits cost and one of what came of them."""
    cost, answer = _columns(optimum, seeds)
    whole, width = _table(rows, cost + answer)
    if width <= console.width or all(row.reason for row in rows):
        console.print(whole)
        return
    console.print(_table(rows, cost)[0])
    console.print(_table([row for row in rows if not row.reason], answer)[0])


def _table(rows: list[Row], columns: list[Column]) -> tuple[Table, int]:
    """Give a table and its width; all figures of a row are one cell, so that a reason may take the place of them all."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    cells = [[column.cell(row) for column in columns] for row in rows if not row.reason]
    widths = [max(len(x) for x in (*c.head, *(line[j] for line in cells))) for j, c in enumerate(columns)]
    set_line = lambda line: "  ".join(x.rjust(w) for x, w in zip(line, widths, strict=True))
    figures = iter(set_line(line) for line in cells)
    heads = "\n".join(set_line([c.head[i] for c in columns]) for i in (0, 1))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("\nmethod", no_wrap=True)
    table.add_column(Text(heads))
    for row in rows:
        table.add_row(row.method, Text(f"cannot run: {row.reason}", style="dim") if row.reason else Text(next(figures)))
    return table, max(len(row.method) for row in rows) + sum(widths) + 2 * len(widths) + 3


def footnotes(model: str, rows: list[Row], optimum: float | None, restarts: int, seeds: int = 1) -> list[str]:
    """Give the footnotes that this table needs."""
    ran = [row for row in rows if not row.reason]
    if not ran:
        return []
    names = [row.method for row in ran]
    notes = ["ELBO (higher is better) and DIC (lower is better) are on fresh draws from the final approximation."]
    if lucky := [name for name in names if name in LUCKY]:
        notes.append(f"Reported: what the run last accepted as its own ELBO; for {', '.join(lucky)} a single draw, kept "
                     "because it was a lucky one. Do not compare by it.")  # fmt: skip
    else:
        notes.append("Reported: what the run last accepted as its own ELBO, on the draws it used itself.")
    if optimum is not None:
        notes.append(f"Distance to {optimum:,.2f}, the best of 20 starts of coordinate ascent.")
    if model.startswith("mixture") and model in BUILT_INS:
        of = lambda form: ", ".join(name for name in names if MIXTURE_FORMS.get(name, "paper") == form)
        forms = {"free": "unconstrained", "paper": "the paper's, raw and clipped,"}
        said = [f"{words} for {of(form)}" for form, words in forms.items() if of(form)]
        if said:
            notes.append(f"Parameters of q: {'; '.join(said)}.")
        if summed := of("summed"):
            notes.append(f"For {summed} the labels are summed out, as gradients need: another, tighter bound on the same "
                         "evidence, so its ELBO is not to be compared with the others'.")  # fmt: skip
    if any(row.limited for row in ran):
        notes.append("* Ran to its limit of steps.")
    if seeds > 1:
        notes.append(f"Means over {seeds} seeds; SD is that of the ELBO between seeds.")
    if restarts > 1:
        notes.append(f"Each fit is the best of {restarts} starts; steps are those of the best, values and gradients of all.")
    return notes


def conclusions(rows: list[Row]) -> list[str]:
    """Say in a sentence on each method what to conclude; the difference of two ELBOs is that of two KL divergences."""
    told: dict[str, str] = {}
    forms: dict[bool, list[Row]] = {}
    for row in rows:
        if not row.reason:  # labels that are summed out make another bound, not to be compared
            forms.setdefault(bool(row.fits[0].model.density.local_sites), []).append(row)
    for same in forms.values():
        elbos = {row.method: _elbo(row) for row in same}
        best = max(elbos, key=lambda name: elbos[name][0])
        for row in same if len(same) > 1 else ():
            told[row.method] = _conclusion(row, best, elbos[best], elbos[row.method])
    return [f"{row.method}: {told[row.method]}" for row in rows if row.method in told]


def _conclusion(row: Row, best: str, top: tuple[float, float], own: tuple[float, float]) -> str:
    if row.method == best:
        return "nearest to the posterior of these."
    gap = top[0] - own[0]
    if not gap > max(0.1, 2.0 * math.hypot(top[1], own[1])):
        return f"as near to the posterior as {best}, as far as these draws can tell."
    reported = fmean(f.reported_elbo for f in row.fits)
    lucky = f", though it reports an ELBO of {number(reported)}" if reported - own[0] > 1.0 and row.method in LUCKY else ""
    limit = " when its steps ran out" if row.limited else ""
    use = "do not use it" if gap > 1.0 else f"prefer {best}"
    return f"{number(gap)} nats further from the posterior than {best}{limit}{lucky}: {use}."


def _elbo(row: Row) -> tuple[float, float]:
    """Give the ELBO on fresh draws and its standard error; over seeds, that of their mean."""
    values = [f.elbo.value for f in row.fits]
    if len(values) == 1:
        return values[0], row.fits[0].elbo.se
    return fmean(values), stdev(values) / math.sqrt(len(values))


def print_notes(console: Console, notes: list[str]) -> None:
    """Print footnotes, one after the other."""
    for note in notes:
        console.print(note, style="dim", highlight=False, markup=False)


def console() -> Console:
    """Give the terminal, or a width of its own to what is piped elsewhere."""
    from rich.console import Console

    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=PIPED_WIDTH if piped else None)
