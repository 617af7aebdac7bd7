"""Run the experiments of the paper and write what came out.

The studies, and JAX with them, are imported once the arguments are known to be right.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yoasovi.errors import check, positive_integer
from yoasovi.experiments import fcps, files
from yoasovi.extras import need

if TYPE_CHECKING:
    from yoasovi.experiments.rows import Table

STUDIES = ("table1", "figure1", "figure2", "networks", "errata")
# Seeds of a full run and of a quick one.
_SEEDS = {"table1": (10, 2), "figure1": (1, 1), "figure2": (3, 1), "networks": (3, 1), "errata": (8, 3)}


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
    for name in sets:
        fcps.check_name(name)
    chosen = STUDIES if what == "all" else (what,)
    _check_packages(chosen)
    files.writable(out)

    def command(study: str) -> str:
        """Give the command that does the same again."""
        words = ["yoasovi", "reproduce", study, *(["--quick"] if quick else []), *(["--seeds", str(seeds)] if seeds else [])]
        return " ".join([*words, *(["--sets", ",".join(sets)] if sets else []), "--out", str(out)])

    from yoasovi.experiments import page, rows

    tables = []
    for study in chosen:
        todo, measure, report = _parts(study, quick, seeds or _SEEDS[study][quick], sets)
        found = rows.run(measure, todo, out, workers, say)
        tables += report(found, out, command(study))
    if what == "all":
        files.write(out.with_name(out.name + ".md"), page.page(out, command("all")))
    return tables


def page_again(out: str | Path) -> None:
    """Make the page of a folder again from its files, and run nothing."""
    from yoasovi.experiments import page

    out = Path(out)
    try:
        command = json.loads((out / "table1.json").read_text())["command"]
        text = page.page(out, command.replace("reproduce table1", "reproduce all"))
    except FileNotFoundError as error:
        found = Path(error.filename).name
        raise ValueError(
            f"`out` of `reproduce` must be a folder with the files of all studies; {out} has no {found}."
        ) from None
    files.write(out.with_name(out.name + ".md"), text)


def _parts(study: str, quick: bool, seeds: int, sets: tuple[str, ...]) -> tuple[list, Any, Any]:
    """Give what a study has to run, how a row is made, and what is made of the rows."""
    from yoasovi.experiments import errata, figure1, figure2, networks, table1

    if study == "figure1":  # nothing random in it
        return [], None, figure1.report
    if study == "figure2":
        return figure2.tasks(quick, seeds, sets), figure2.measure, figure2.report
    module = {"table1": table1, "networks": networks, "errata": errata}[study]
    return module.tasks(quick, seeds), module.measure, module.report


def _check_packages(studies: tuple[str, ...]) -> None:
    if "figure2" in studies:
        fcps.folder()
        need("sklearn.mixture", "bench")
    if set(studies) & {"figure1", "figure2", "networks"}:
        need("matplotlib.figure", "report")
