"""The command that runs the paper's experiments again."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from yoasovi.cli.tables import console

STUDIES = ("table1", "figure1", "figure2", "networks", "errata", "all")


def reproduce(
    what: Annotated[str, typer.Argument(metavar="WHAT", help=f"One of {', '.join(STUDIES)}.")],
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes and few seeds: all in a few minutes.")] = False,
    seeds: Annotated[int | None, typer.Option(help="Seeds per row, from 0; each study's own number if not given.")] = None,
    out: Annotated[str, typer.Option(metavar="DIR", help="Folder for results; `all` puts DIR.md beside it.")] = "paper",
    workers: Annotated[int | None, typer.Option(help="Processes; as many as there are cores if not given.")] = None,
    sets: Annotated[str, typer.Option(metavar="A,B,...", help="Data sets of figure2, by their names in FCPS.")] = "",
    page: Annotated[
        bool, typer.Option("--page", help="Make DIR.md again from the files of `all`, and run nothing.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing of the progress on stderr.")] = False,
):
    """Run the paper's experiments again: tables as CSV and JSON, figures as PNG and SVG. Finished rows are not run again."""
    from yoasovi.experiments.reproduce import page_again, reproduce as run

    if page:
        page_again(out)
        print(f"Written: {out}.md")
        return
    names = tuple(x.strip() for x in sets.split(",") if x.strip())
    say = (lambda _: None) if quiet else lambda line: print(line, file=sys.stderr, flush=True)
    tables = run(what, out, quick=quick, seeds=seeds, sets=names, workers=workers, say=say)
    terminal = console()
    for table in tables:
        terminal.print(shown(table.narrow()))
    for note in dict.fromkeys(note for table in tables for note in table.notes):
        terminal.print(note, style="dim", highlight=False, markup=False)
    whole = "all columns, the figures and every row"
    beside = f", the page in {out}.md" if what == "all" else ""
    terminal.print(f"Written: {whole} in {out}{beside}", highlight=False, markup=False, soft_wrap=True)


def shown(table):
    """Give a table for the terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(title=table.title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for i, head in enumerate(table.head):
        text = i == 0 or head in ("method", "the paper", "what holds", "evidence")
        made.add_column(head, justify="left" if text else "right", overflow="fold", no_wrap=head == "method")
    for line in table.cells:
        made.add_row(*map(Text, line))  # as it is: brackets are no markup
    return made
