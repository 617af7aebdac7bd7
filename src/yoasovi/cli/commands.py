"""The commands and their options."""

from __future__ import annotations

import inspect
import json
import sys
from contextlib import redirect_stdout
from typing import Annotated

import typer

from yoasovi.cli.bench import bench
from yoasovi.cli.data import given_data
from yoasovi.cli.errors import OneLineErrors
from yoasovi.cli.models import BUILT_INS, SIMULATED, find_model
from yoasovi.cli.processes import AllDevices, Coordinator, NumProcesses, ProcessId, elsewhere, join
from yoasovi.cli.reproduce import reproduce
from yoasovi.cli.runs import (
    Row,
    as_json,
    check_outputs,
    command,
    dic,
    keep_programs,
    optimum,
    plain_warnings,
    posterior_as_json,
    quiet_warnings,
    run,
    run_seeds,
    waiting,
    write_report,
)
from yoasovi.cli.settings import check_method, read_settings
from yoasovi.cli.tables import conclusions, console, footnotes, print_notes, print_rows

app = typer.Typer(cls=OneLineErrors, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def main() -> None:
    """Run the command line."""
    app()


# ---- options ---------------------------------------------------------------------------------------------

_MODELS = f"One of {', '.join(BUILT_INS)} ({SIMULATED} on simulated data"
_PATH = "or path.py:name, a Model, a NumPyro model function, or a function returning one"
ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help=f"{_MODELS}, unless there is --data); {_PATH}; or path.stan, a Stan program. path.py:name runs the code in "
        "that file, path.stan compiles it.",
    ),
]
ComparedName = Annotated[
    str, typer.Argument(metavar="MODEL", help=f"{_MODELS}); {_PATH}. path.py:name runs the code in that file.")
]
Family = Annotated[str, typer.Option(help="auto, mean_field, full_rank, low_rank or arrow.")]
Seed = Annotated[int, typer.Option(help="The same seed gives the same answer.")]
MaxSteps = Annotated[int | None, typer.Option(help="Most iterations; the method's own limit if not given.")]
Restarts = Annotated[int, typer.Option(help="Fits from different starts; the best is kept.")]
BatchSize = Annotated[
    int | None, typer.Option(metavar="N", help="Look at minibatches of N rows; all of the data at once if not given.")
]
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
DataFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="Fit a built-in to the columns of this CSV, npy, npz or Parquet file, or a Stan program to this JSON file; "
        "it is data, nothing in it is run.",
    ),
]
Target = Annotated[str | None, typer.Option(metavar="NAME", help="The column of --data to explain; y if not given.")]
ColumnNames = Annotated[
    str | None, typer.Option("--columns", metavar="A,B,...", help="Columns of --data to use; all if not given.")
]
Drop = Annotated[
    list[str] | None, typer.Option("--drop", metavar="NAME", help="Leave out this column of --data. May be repeated.")
]
PriorScale = Annotated[
    float | None,
    typer.Option(
        metavar="S",
        help="Of linear, logistic and poisson: coefficients ~ N(0, S sd(y)/sd(x)), sd(y) only if linear; 2.5 if not given.",
    ),
]
Group = Annotated[str | None, typer.Option(metavar="NAME", help="The column of --data with the groups (hierarchical).")]
Sd = Annotated[str | None, typer.Option(metavar="NAME", help="The column of --data with known noise (hierarchical).")]
CheckpointFolder = Annotated[
    str | None,
    typer.Option("--checkpoint", metavar="DIR", help="Write the run to this folder now and then, for --resume."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from --checkpoint; begin if nothing is there.")]
EverySeconds = Annotated[float, typer.Option(metavar="S", help="Seconds between two checkpoints.")]
EverySteps = Annotated[int | None, typer.Option(metavar="N", help="Also write a checkpoint after so many iterations.")]
Save = Annotated[str | None, typer.Option("--save", metavar="DIR", help="Write the fit here, for `yoasovi report DIR`.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No live progress (there is none where stderr is no terminal).")]
Report = Annotated[str | None, typer.Option("--report", metavar="FILE.html", help="Also write a report: one HTML file.")]


_NOT_COUNTED = "Values are those of the fit; --json and a report count those too that weigh its draws afterwards."


# ---- commands --------------------------------------------------------------------------------------------


@app.callback(invoke_without_command=True)
def _root(context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False):
    """Variational inference that needs no tuning, stops by itself and says how sure it is."""
    keep_programs()
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

    from yoasovi.methods import METHODS, summaries

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    if name is None:
        table.add_column("method", no_wrap=True)
        table.add_column("what it does")
        for row in summaries().items():
            table.add_row(*row)
    else:
        check_method(name)
        table.add_column("setting of " + name, no_wrap=True)
        table.add_column("default")
        for setting in inspect.signature(METHODS[name]).parameters.values():
            default = setting.default
            table.add_row(setting.name, default.__name__ if inspect.isclass(default) else repr(default))
    console().print(table)


@app.command()
def fit(
    context: typer.Context,
    model: ModelName,
    method: Annotated[str, typer.Option(help="One of those that `yoasovi methods` lists.")] = "yoasovi",
    family: Family = "auto",
    seed: Seed = 0,
    max_steps: MaxSteps = None,
    restarts: Restarts = 1,
    set_: Set = None,
    batch_size: BatchSize = None,
    json_: Json = False,
    quiet: Quiet = False,
    summary: Annotated[bool, typer.Option("--summary", help="Also print posterior means, sds and quantiles.")] = False,
    data: DataFile = None,
    target: Target = None,
    columns: ColumnNames = None,
    drop: Drop = None,
    prior_scale: PriorScale = None,
    group: Group = None,
    sd: Sd = None,
    checkpoint: CheckpointFolder = None,
    resume: Resume = False,
    checkpoint_seconds: EverySeconds = 10.0,
    checkpoint_steps: EverySteps = None,
    save: Save = None,
    verdict: Annotated[
        bool | None, typer.Option("--verdict/--no-verdict", help="Say how good the answer is; by default unless --json.")
    ] = None,
    report_: Report = None,
    mend: Annotated[
        bool, typer.Option("--mend/--no-mend", help="Try what may help where a cure is known for what is wrong.")
    ] = True,
    refine: Annotated[
        bool, typer.Option("--refine", help="Run NUTS in the fit's own coordinates; its draws are then the answer.")
    ] = False,
    all_devices: AllDevices = False,
    coordinator: Coordinator = None,
    num_processes: NumProcesses = None,
    process_id: ProcessId = None,
):
    """Fit a model and say how good the answer is."""
    from yoasovi.answer.mixture import chains_of
    from yoasovi.model.labels import told

    if not join(coordinator, num_processes, process_id):
        save, report_ = elsewhere(save, report_)
    given = given_data(data, target, columns, group, sd, drop)
    if resume and checkpoint is None:
        raise ValueError("--resume needs --checkpoint DIR, the folder to go on from.")
    check_outputs(save, report_)  # before an hour is spent
    with waiting("loading", quiet), plain_warnings():
        settings = read_settings(set_, [method])[method]
        found = find_model(model, method, given, prior_scale)
    options = dict(family=family, max_steps=max_steps, restarts=restarts, resume=resume, mend=mend, **settings)
    options["batch_size"] = batch_size
    if all_devices or coordinator is not None:
        options["mesh"] = "all"
    if checkpoint is not None:
        from yoasovi.files.checkpoint import Checkpoint

        options["checkpoint"] = Checkpoint(checkpoint, checkpoint_seconds, checkpoint_steps)
    if refine:
        from yoasovi.answer.refine import refusal

        if (why := refusal(found)) is not None:
            raise ValueError(why)
    with redirect_stdout(sys.stderr):  # what a model prints must not get between the lines of the answer
        answer = run(found, method, seed, quiet, options)
        row = Row(method, [answer], [dic(answer)])
        best = optimum(found)
    if not json_:  # the answer itself, before the judgement on it, which may take longer
        terminal = console()
        terminal.print(f"{model}: {answer.family.name} ({answer.family_reason})", highlight=False, soft_wrap=True)
        print_rows(terminal, [row], best)
        print_notes(terminal, [f"{answer.stop_reason} {answer.stop_detail}", *footnotes(model, [row], best, restarts)])
        print_notes(terminal, [_NOT_COUNTED])
        print_notes(terminal, told(answer.model))
        if answer.num_nonfinite:
            print_notes(terminal, [f"{answer.num_nonfinite:,} draws were not finite and were refused: {answer.nonfinite}."])
        print_notes(terminal, [str(note) for note in answer.mended])
        sys.stdout.flush()
    if refine and not row.interrupted:
        with redirect_stdout(sys.stderr):
            answer = answer.refine(progress=False if quiet else None)
        if not json_:
            told_of = map(str, chains_of(answer))
            print("\n" + "\n".join(f"{text[0].upper()}{text[1:]}." for text in told_of), flush=True)
    more: dict = {}
    if verdict or report_ or save or (verdict is None and not json_):
        with redirect_stdout(sys.stderr), quiet_warnings(), waiting("looking at how good the answer is", quiet):
            more["verdict"] = answer.diagnose()
        if not json_ and verdict is not False:
            print(f"\n{more['verdict']}", flush=True)
    if save is not None:
        with redirect_stdout(sys.stderr):
            answer.save(save)
    if summary and not json_:
        from yoasovi.answer.summary import table

        print("\n".join(["", *table(answer)]), flush=True)
    if report_:
        with redirect_stdout(sys.stderr), quiet_warnings(), waiting("drawing the report", quiet):
            from yoasovi.report.html import write

            with answer.waiting("report"):
                more["report"] = str(write([answer], report_, model, command(context)))
        if not json_:
            print(f"\nReport: {more['report']}")
    if json_:
        also = {k: v.as_json() if k == "verdict" else v for k, v in more.items()}
        with redirect_stdout(sys.stderr):
            known = posterior_as_json(answer)
        print(json.dumps({"model": model, **as_json(answer, row.dics[0], best), **known, **also}))
    raise typer.Exit(130 if row.interrupted else 0)


@app.command()
def compare(
    context: typer.Context,
    model: ComparedName,
    methods: Annotated[str, typer.Option(metavar="A,B,...", help="Names of methods, or all.")] = "all",
    seeds: Annotated[int, typer.Option(help="How many seeds, counted from --seed; the table then has means and SDs.")] = 1,
    family: Family = "auto",
    seed: Seed = 0,
    max_steps: MaxSteps = None,
    restarts: Restarts = 1,
    set_: Set = None,
    json_: Json = False,
    quiet: Quiet = False,
    report_: Report = None,
):
    """Run several methods on one model and put them in a table."""
    from yoasovi.errors import positive_integer

    positive_integer("seeds", "compare", seeds)
    check_outputs(None, report_)
    with waiting("loading", quiet):
        from yoasovi.methods import METHODS
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
    best = next((optimum(found) for found in models.values() if found.optimum), None)
    if not json_:
        terminal = console()
        print_rows(terminal, rows, best, seeds)
        print_notes(terminal, footnotes(model, rows, best, restarts, seeds))
        if said := conclusions(rows):
            terminal.print("", *said, sep="\n", highlight=False, markup=False)
        sys.stdout.flush()
    written = None
    if report_ is not None:
        with redirect_stdout(sys.stderr), waiting("looking at how good the answers are, and drawing the report", quiet):
            written = write_report(model, rows, report_, command(context))
    if json_:
        found = {"model": model, "optimum": best, "methods": [x for row in rows for x in row.as_json(best)]}
        print(json.dumps(found if written is None else {**found, "report": str(written[0])}))
    elif written is not None:
        print("\n".join(["", "Verdicts", *written[1], f"Report: {written[0]}"]))
    if rows[-1].interrupted:
        raise typer.Exit(130)


@app.command()
def report(
    run: Annotated[str, typer.Argument(metavar="RUN_DIR", help="A folder that `yoasovi fit --save` wrote.")],
    out: Annotated[str, typer.Option(metavar="FILE.html", help="Where to write the report.")] = "report.html",
):
    """Write the report of a saved fit: one HTML file that needs nothing else."""
    from pathlib import Path

    from yoasovi.files.saving import load

    check_outputs(None, out, "--out")
    if not Path(run).is_dir():
        raise ValueError(f"no folder {run}: give one that `fit.save` or `yoasovi fit --save` wrote.")
    answer = load(run)
    if answer.verdict is None:
        raise ValueError(
            f"{run} has no verdict, with which a report begins: save the fit by `yoasovi fit --save`, or in Python after "
            "`fit.diagnose()`."
        )
    with redirect_stdout(sys.stderr):
        path = answer.report(out)
        verdict = answer.diagnose()
    print(f"{verdict.grade}: {verdict.advice}\nReport: {path}")


app.command()(reproduce)
app.command()(bench)
