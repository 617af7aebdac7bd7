"""The command that runs this library beside others."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from yoasovi.cli.reproduce import shown
from yoasovi.cli.tables import console


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Three posteriors, seven methods, a shorter reference.")] = False,
    posterior: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this one; may be repeated.")] = None,
    peer: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this method; may be repeated.")] = None,
    seed: Annotated[int, typer.Option(help="Of every run.")] = 0,
    out: Annotated[str, typer.Option(metavar="DIR", help="Folder for results; DIR.md stands beside it.")] = "performance",
    posteriordb: Annotated[str | None, typer.Option(metavar="FOLDER", help="A clone of it: its posteriors too.")] = None,
    jobs: Annotated[int, typer.Option(help="Rows at a time, each with one core and one thread; 1: all cores.")] = 1,
    limit: Annotated[int, typer.Option(help="Seconds that a row may take.")] = 1800,
    page: Annotated[bool, typer.Option("--page", help="Make the page again from DIR/bench.json, and run nothing.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the posteriors and the methods, and run nothing.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing of the progress on stderr.")] = False,
):
    """Run this library beside others on the same posteriors. Finished rows are not run again."""
    from yoasovi.bench.peers import PEERS
    from yoasovi.bench.posteriors import POSTERIORS

    if list_:
        print("\n".join(["posteriors:", *(f"  {k} (d = {x.dim:,}): {x.about}" for k, x in POSTERIORS.items())]))
        print("\n".join(["methods:", *(f"  {k}: {x.about}" for k, x in PEERS.items())]))
        return
    from yoasovi.bench.page import write

    if page:
        tables = write(Path(out))
    else:
        from yoasovi.bench.run import bench as run

        say = (lambda _: None) if quiet else lambda line: print(line, file=sys.stderr, flush=True)
        only = tuple(posterior or ()), tuple(peer or ())
        tables = run(
            out, quick=quick, posteriors=only[0], peers=only[1], seed=seed, posteriordb=posteriordb, jobs=jobs, limit=limit,
            say=say,
        )  # fmt: skip
    terminal = console()
    for table in tables:
        terminal.print(shown(table.narrow()))
    for note in dict.fromkeys(note for table in tables for note in table.notes):
        terminal.print(note, style="dim", highlight=False, markup=False)
    terminal.print(f"Written: every row in {out}, the page in {out}.md", highlight=False, markup=False, soft_wrap=True)
