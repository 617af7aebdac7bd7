"""Run the experiments of the paper and write what came out."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from yoasovi.errors import check, positive_integer
from yoasovi.experiments import errata, fcps, figure1, figure2, files, networks, page, rows, table1
from yoasovi.experiments.files import Row
from yoasovi.experiments.rows import Table, Task
from yoasovi.extras import need

STUDIES = ("table1", "figure1", "figure2", "networks", "errata")
# Seeds of a full run and of a quick one.
_SEEDS = {"table1": (10, 2), "figure2": (3, 1), "networks": (3, 1), "errata": (8, 3)}


def reproduce(
    what: str,
    out: str | Path,
    *,
    quick: bool = False,
    seeds: int | None = None,
    sets: tuple[str, ...] = (),
    workers: int | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[Table]:
    """Run one study, or all of them, and give the tables; files go to the folder `out`.

    Everything that can be wrong with the arguments is found before anything is written. Rows that are finished are kept in
    `out`/.rows and not run again. After "all" there is a page beside the folder, named as it, ending in .md.
    """
    out = Path(out)
    check(what in (*STUDIES, "all"), "WHAT", "reproduce", f"one of {', '.join(STUDIES)}, all", what)
    if seeds is not None:
        positive_integer("seeds", "reproduce", seeds)
    workers = workers if workers is not None else os.cpu_count() or 1
    positive_integer("workers", "reproduce", workers)
    chosen = STUDIES if what == "all" else (what,)
    _check_packages(chosen)
    for name in sets:
        fcps.check_name(name)
    files.writable(out)
    found = []
    for study in chosen:
        command = _command(study, out, quick, seeds, sets)
        if study == "figure1":
            figure1.report(out, command)
            continue
        count = seeds or _SEEDS[study][quick]
        todo, measure, report = _parts(study, quick, count, sets)
        found += report(rows.run(measure, todo, out, workers, say), out, command)
    if what == "all":
        files.write(out.with_name(out.name + ".md"), page.page(out, _command("all", out, quick, seeds, sets)))
    return found


def _parts(study, quick, count, sets) -> tuple[list[Task], rows.Measure, Callable[[list[Row], Path, str], list[Table]]]:
    if study == "figure2":
        return figure2.tasks(quick, count, sets), figure2.measure, figure2.report
    module = {"table1": table1, "networks": networks, "errata": errata}[study]
    return module.tasks(quick, count), module.measure, module.report


def _check_packages(studies: tuple[str, ...]) -> None:
    if "figure2" in studies:
        fcps.folder()
        need("sklearn.mixture", "bench")
    if set(studies) & {"figure1", "figure2", "networks"}:
        need("matplotlib.figure", "report")


def _command(what, out, quick, seeds, sets) -> str:
    """Give the command that does the same again."""
    words = ["yoasovi", "reproduce", what, *(["--quick"] if quick else []), *(["--seeds", str(seeds)] if seeds else [])]
    words += ["--sets", ",".join(sets)] if sets else []
    return " ".join([*words, "--out", str(out)])
