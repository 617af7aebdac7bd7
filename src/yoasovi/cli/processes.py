"""One fit by several processes, as a launcher starts them: all compute, the first one speaks and writes."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

Coordinator = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Share one fit with other processes: where the first of them can be reached."),
]
NumProcesses = Annotated[int | None, typer.Option(metavar="N", help="How many processes share the fit.")]
ProcessId = Annotated[int | None, typer.Option(metavar="I", help="The number of this one; 0 prints and writes files.")]
AllDevices = Annotated[bool, typer.Option("--all-devices", help="Share the rows of the data among all devices.")]


def join(coordinator: str | None, count: int | None, number: int | None) -> bool:
    """Join the other processes, if there are any; say whether this one speaks."""
    given = [x is not None for x in (coordinator, count, number)]
    if not any(given):
        return True
    if coordinator is None or count is None or number is None:
        raise ValueError("--coordinator, --num-processes and --process-id go together; one of them is missing.")
    from yoasovi.scale.sharding import connect

    connect(coordinator, count, number)
    if number:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
    return number == 0


def elsewhere(save: str | None, report: str | None) -> tuple[str | None, str | None]:
    """Give places for the files of a process that does not write: it must do all the same looks as the one that does."""
    folder = Path(tempfile.mkdtemp(prefix="yoasovi-"))
    return save and str(folder / "fit"), report and str(folder / "report.html")
