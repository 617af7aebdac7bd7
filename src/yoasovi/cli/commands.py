"""The commands and their options."""

from __future__ import annotations

import inspect
import json
import sys
from contextlib import redirect_stdout
from typing import Annotated

import typer

from yoasovi.cli.errors import OneLineErrors
from yoasovi.cli.models import BUILT_INS, find_model
from yoasovi.cli.reproduce import reproduce
from yoasovi.cli.runs import Row, as_json, dic, optimum, run, run_seeds
from yoasovi.cli.settings import read_settings
from yoasovi.cli.tables import console, footnotes, print_notes, print_rows

app = typer.Typer(cls=OneLineErrors, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def main() -> None:
    """Run the command line."""
    app()


# ---- options ---------------------------------------------------------------------------------------------

ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help=f"One of {', '.join(BUILT_INS)}; or path.py:name, a Model, a NumPyro model function, or a function returning "
        "one. path.py:name runs the code in that file.",
    ),
]
Family = Annotated[str, typer.Option(help="auto, mean_field, full_rank or low_rank.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same answer.")]
MaxSteps = Annotated[int | None, typer.Option(help="Most iterations; the method's own limit if not given.")]
Restarts = Annotated[int, typer.Option(help="Fits from different starts; the best is kept.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A setting of the method (`yoasovi methods NAME` lists them), as a Python literal; tempering is log:3, "
        "constant:1.5, linear:0.1:15:2500 or warmup. May be repeated.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No live progress (there is none where stderr is no terminal).")]


# ---- commands --------------------------------------------------------------------------------------------


@app.callback(invoke_without_command=True)
def _root(context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False):
    """Variational inference that needs no tuning, stops by itself and says how sure it is."""
    if version:
        from yoasovi import __version__

        print(f"yoasovi {__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def methods(name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show this method's settings.")] = None):
    """List the methods, one line each; or the settings of one."""
    from rich import box
    from rich.table import Table

    from yoasovi.methods import METHODS, method, summaries

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    if name is None:
        table.add_column("method", no_wrap=True)
        table.add_column("what it does")
        for row in summaries().items():
            table.add_row(*row)
    else:
        method(name)  # complains of an unknown name
        table.add_column("setting of " + name, no_wrap=True)
        table.add_column("default")
        for setting in inspect.signature(METHODS[name]).parameters.values():
            default = setting.default
            table.add_row(setting.name, default.__name__ if inspect.isclass(default) else repr(default))
    console().print(table)


@app.command()
def fit(
    model: ModelName,
    method: Annotated[str, typer.Option(help="One of those that `yoasovi methods` lists.")] = "yoasovi",
    family: Family = "auto",
    seed: Seed = 0,
    max_steps: MaxSteps = None,
    restarts: Restarts = 1,
    set_: Set = None,
    json_: Json = False,
    quiet: Quiet = False,
    summary: Annotated[bool, typer.Option("--summary", help="Also print posterior means, sds and quantiles.")] = False,
):
    """Fit a model and say how good the answer is."""
    settings = read_settings(set_, [method])[method]
    found = find_model(model, method)
    options = dict(family=family, max_steps=max_steps, restarts=restarts, **settings)
    with redirect_stdout(sys.stderr):  # what a model prints must not get between the lines of the answer
        answer = run(found, method, seed, quiet, options)
        row = Row(method, [answer], [dic(answer)])
    best = optimum(found)
    if json_:
        print(json.dumps({"model": model, **as_json(answer, row.dics[0], best)}))
        return
    terminal = console()
    terminal.print(f"{model}: {answer.family.name} ({answer.family_reason})", highlight=False, soft_wrap=True)
    print_rows(terminal, [row], best)
    print_notes(terminal, [str(answer.stop_reason), *footnotes(model, [row], best, restarts)])
    if summary:
        print("\n".join(["", *answer.summary().splitlines()[3:]]))


@app.command()
def compare(
    model: ModelName,
    methods: Annotated[str, typer.Option(metavar="A,B,...", help="Names of methods, or all.")] = "all",
    seeds: Annotated[int, typer.Option(help="How many seeds, counted from --seed; the table then has means and SDs.")] = 1,
    family: Family = "auto",
    seed: Seed = 0,
    max_steps: MaxSteps = None,
    restarts: Restarts = 1,
    set_: Set = None,
    json_: Json = False,
    quiet: Quiet = False,
):
    """Run several methods on one model and put them in a table."""
    from yoasovi.errors import positive_integer
    from yoasovi.methods import METHODS

    positive_integer("seeds", "compare", seeds)
    names = list(METHODS) if methods == "all" else list(dict.fromkeys(x.strip() for x in methods.split(",") if x.strip()))
    if not names:
        raise ValueError(f"`methods` of `compare` must be names from {', '.join(METHODS)}; got {methods!r}.")
    settings = read_settings(set_, names)
    models = {name: find_model(model, name) for name in names}
    rows = []
    for i, name in enumerate(names):
        options = dict(family=family, max_steps=max_steps, restarts=restarts, **settings[name])
        with redirect_stdout(sys.stderr):
            rows.append(run_seeds(models[name], name, range(seed, seed + seeds), quiet, options))
        if sys.stderr.isatty() and not quiet:
            print(f"[{i + 1}/{len(names)}] {rows[-1].in_a_line()}", file=sys.stderr)
        if rows[-1].interrupted:
            break
    best = optimum(models[names[0]])
    if json_:
        print(json.dumps({"model": model, "optimum": best, "methods": [x for row in rows for x in row.as_json(best)]}))
        return
    terminal = console()
    print_rows(terminal, rows, best, seeds)
    print_notes(terminal, footnotes(model, rows, best, restarts, seeds))


app.command()(reproduce)
