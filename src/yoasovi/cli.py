"""The command line: fit a model, compare methods on it, list the methods.

JAX is imported inside the commands only, so that help and mistakes in the options are answered at once.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import math
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer.core import TyperGroup

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from yoasovi.model import Model
    from yoasovi.result import Fit

PIPED_WIDTH = 120  # columns of a table that is not shown in a terminal
LUCKY = ("yoasovi-naive", "yoasovi-metropolis", "yoasovi-step")  # methods whose yardstick is one accepted draw


class OneLineErrors(TyperGroup):
    """A command group that answers bad input with one line on stderr and exit code 2."""

    def main(self, *args, standalone_mode: bool = True, **extra):
        """Run a command; YOASOVI_TRACEBACK=1 lets errors through with their traceback."""
        try:
            code = super().main(*args, **{**extra, "standalone_mode": False})
        except typer.Abort:
            code = 130
        except Exception as error:
            if not standalone_mode or os.environ.get("YOASOVI_TRACEBACK"):
                raise
            print(f"yoasovi: {one_line(error)}", file=sys.stderr)
            code = 2
        if not standalone_mode:
            return code
        sys.exit(code if isinstance(code, int) else 0)


app = typer.Typer(cls=OneLineErrors, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


def main() -> None:
    """Run the command line."""
    app()


# ---- commands --------------------------------------------------------------------------------------------

BUILT_INS = (
    "mixture-2-2", "mixture-2-3", "mixture-3-4", "eight-schools", "eight-schools-centered", "linear", "logistic", "poisson",
    "hierarchical", "network",
)  # fmt: skip
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
    _console().print(table)


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
    settings = _settings(set_, [method])[method]
    found = find_model(model, method)
    options = dict(family=family, max_steps=max_steps, restarts=restarts, **settings)
    with redirect_stdout(sys.stderr):  # what a model prints must not get between the lines of the answer
        answer = _run(found, method, seed, quiet, options)
        row = Row(method, [answer], [_dic(answer)])
    optimum = _optimum(found)
    if json_:
        print(json.dumps({"model": model, **as_json(answer, row.dics[0], optimum)}))
        return
    console = _console()
    console.print(f"{model}: {answer.family.name} ({answer.family_reason})", highlight=False, soft_wrap=True)
    _print_rows(console, [row], optimum)
    _print_notes(console, [str(answer.stop_reason), *_notes(model, [row], optimum, restarts)])
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
    settings = _settings(set_, names)
    models = {name: find_model(model, name) for name in names}
    rows = []
    for i, name in enumerate(names):
        options = dict(family=family, max_steps=max_steps, restarts=restarts, **settings[name])
        with redirect_stdout(sys.stderr):
            rows.append(_compare_one(models[name], name, range(seed, seed + seeds), quiet, options))
        if sys.stderr.isatty() and not quiet:
            print(f"[{i + 1}/{len(names)}] {rows[-1].in_a_line()}", file=sys.stderr)
        if rows[-1].interrupted:
            break
    optimum = _optimum(models[names[0]])
    if json_:
        print(json.dumps({"model": model, "optimum": optimum, "methods": [x for row in rows for x in row.as_json(optimum)]}))
        return
    console = _console()
    _print_rows(console, rows, optimum, seeds)
    _print_notes(console, _notes(model, rows, optimum, restarts, seeds))


# ---- models ----------------------------------------------------------------------------------------------


def find_model(text: str, method: str = "yoasovi") -> Model:
    """Give the built-in of this name, or what `path.py:name` refers to."""
    if text in BUILT_INS:
        # The paper's methods move raw parameters; unconstrained ones are part of the default method.
        return _built_in(text, "free" if method == "yoasovi" else "paper")
    path, colon, name = text.rpartition(":")
    if not colon or not path.endswith(".py"):
        raise ValueError(f"no model {text!r}: it must be one of {', '.join(BUILT_INS)}, or path.py:name.")
    return _from_file(path, name)


@cache
def _built_in(name: str, parameters: str) -> Model:
    import numpy as np

    from yoasovi import models
    from yoasovi.experiments import simulate

    if name.startswith("mixture"):
        p, k = map(int, name.split("-")[1:])
        return models.GaussianMixture(simulate.mixture(p, k), k, parameters=parameters)
    if name.startswith("eight-schools"):
        effects, errors = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
        return models.HierarchicalNormal(effects, sd=errors, centered=name.endswith("centered"))
    if name == "network":
        return models.NeuralNetwork(*simulate.network(), hidden=(5,))
    make: dict[str, Callable[..., Model]] = {
        "linear": models.LinearRegression, "logistic": models.LogisticRegression, "poisson": models.PoissonRegression,
        "hierarchical": models.HierarchicalNormal,
    }  # fmt: skip
    return make[name](*simulated(name))


def simulated(name: str, n: int = 200, seed: int = 1) -> tuple[Any, Any]:
    """Draw the data of a built-in: X and y of a regression, or y and groups of `hierarchical`."""
    import numpy as np

    rng = np.random.default_rng(seed)
    if name == "hierarchical":
        group = np.arange(n) % 20
        return 3.0 + 2.0 * rng.normal(size=20)[group] + rng.normal(size=n), group
    X = rng.normal(size=(n, 4))
    line = 0.5 + X @ np.array([1.0, -0.7, 0.3, 0.0])
    if name == "linear":
        return X, line + 0.5 * rng.normal(size=n)
    return X, rng.poisson(np.exp(line)) if name == "poisson" else (rng.logistic(size=n) < line).astype(int)


@cache
def _from_file(path: str, name: str) -> Model:
    from yoasovi.fitting import as_model

    file = Path(path)
    if not file.is_file():
        raise ValueError(f"no file {path}.")
    with redirect_stdout(sys.stderr):
        sys.path.insert(0, str(file.resolve().parent))  # so that it can import its neighbours
        try:
            spec = importlib.util.spec_from_file_location(f"_yoasovi_model_{file.stem}", file)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            raise ValueError(f"{path} failed to import: {type(error).__name__}: {error}{_line_in(file, error)}") from error
        if not hasattr(module, name):
            public = [k for k, v in vars(module).items() if not k.startswith("_") and not inspect.ismodule(v)]
            raise ValueError(f"{path} has no {name!r}; it has {', '.join(public) or 'nothing'}.")
        try:
            return as_model(_called(getattr(module, name)))
        except Exception as error:
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            raise ValueError(f"{path}:{name} is no model: {kind}{error}{_line_in(file, error)}") from error


def _called(thing: Any) -> Any:
    """Call a function that returns a model; leave a NumPyro model function, which asks for a random draw, as it is."""
    from numpyro.primitives import Messenger

    from yoasovi.model import Model

    class Asked(Exception):
        pass

    class Watch(Messenger):
        def process_message(self, msg):
            # A function that runs some NumPyro model itself has seeded it, so no such message gets here without a key.
            if msg["kwargs"].get("rng_key", 0) is None and msg["value"] is None:
                raise Asked

    if isinstance(thing, Model | Messenger) or not callable(thing):
        return thing
    if required := [p.name for p in inspect.signature(thing).parameters.values() if p.default is p.empty and p.kind < 2]:
        raise ValueError(f"it needs arguments ({', '.join(required)}); write a function without any that returns the model.")
    try:
        with Watch():
            made = thing()
    except Asked:
        return thing
    if isinstance(made, Model) or callable(made) or type(made).__module__.startswith("pymc"):
        return made
    raise ValueError(f"it must be a Model, a NumPyro model function or a function returning one; it returned {made!r}.")


def _line_in(file: Path, error: BaseException) -> str:
    """Say in which line of the file an error arose, where that can be known."""
    trace, line = error.__traceback__, None
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename).resolve() == file.resolve():
            line = trace.tb_lineno
        trace = trace.tb_next
    return "" if line is None else f" (line {line})"


# ---- settings --------------------------------------------------------------------------------------------


def _settings(pairs: list[str] | None, names: list[str]) -> dict[str, dict[str, Any]]:
    """Give each method those of the settings that it has."""
    given = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"--set must be NAME=VALUE; got {pair!r}.")
        name = name.strip().replace("-", "_")
        given[name] = parse_setting(name, value.strip())
    from yoasovi.methods import METHODS, method

    for name in names:
        method(name)
    allowed = {name: inspect.signature(METHODS[name]).parameters for name in names}
    for setting in given:
        if not any(setting in a for a in allowed.values()):
            takes = sorted({x for a in allowed.values() for x in a})
            raise ValueError(f"{' and '.join(names)} has no setting {setting!r}; it takes {', '.join(takes)}.")
    return {name: {k: v for k, v in given.items() if k in a} for name, a in allowed.items()}


def parse_setting(name: str, text: str) -> Any:
    """Read a setting: a Python literal, a word, a tempering such as log:3, or a sequence of points."""
    if name == "tempering":
        return _tempering(text)
    if name == "sequence":
        from yoasovi.draws import Halton, Sobol

        sequences = {"sobol": Sobol, "halton": Halton}
        if text.lower() not in sequences:
            raise ValueError(f"--set sequence must be sobol or halton; got {text!r}.")
        return sequences[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _tempering(text: str) -> Any:
    from yoasovi.tempering import Constant, Linear, Logarithmic, Warmup

    kinds: dict[str, Any] = {"constant": Constant, "log": Logarithmic, "linear": Linear, "warmup": Warmup}
    kind, *numbers = text.split(":")
    try:
        return kinds[kind.lower()](*(ast.literal_eval(x) for x in numbers))
    except (KeyError, TypeError, SyntaxError, ValueError) as error:
        rule = "constant:1.5, log:3, linear:0.1:15:2500 or warmup"
        why = f" ({error})" if isinstance(error, ValueError) and "must be" in str(error) else ""
        raise ValueError(f"--set tempering must look like {rule}; got {text!r}{why}.") from error


# ---- runs ------------------------------------------------------------------------------------------------


@dataclass
class Row:
    """One method's line of the table: its fits, one per seed, or the reason why there are none."""

    method: str
    fits: list[Fit] = field(default_factory=list)
    dics: list[float | None] = field(default_factory=list)
    reason: str = ""

    @property
    def interrupted(self) -> bool:
        """Tell whether the user ended the last fit."""
        return bool(self.fits) and self.fits[-1].stop_reason.name == "INTERRUPTED"

    @property
    def limited(self) -> bool:
        """Tell whether a fit ran to its limit of steps."""
        return any(f.stop_reason.name == "MAX_STEPS" for f in self.fits)

    def in_a_line(self) -> str:
        """Say what came out, for the live progress."""
        if self.reason:
            return f"{self.method}: {self.reason}"
        last = self.fits[-1]
        return f"{self.method}: {last.num_steps:,} steps, {sum(last.seconds):.1f} s, ELBO {number(last.elbo.value)}"

    def as_json(self, optimum: float | None) -> list[dict[str, Any]]:
        """Give one object per fit, or one with the reason."""
        if self.reason:
            return [{"method": self.method, "error": self.reason}]
        return [as_json(f, dic, optimum) for f, dic in zip(self.fits, self.dics, strict=True)]


def _compare_one(model: Model, name: str, seeds: range, quiet: bool, options: dict[str, Any]) -> Row:
    row = Row(name)
    try:
        for seed in seeds:
            answer = _run(model, name, seed, quiet, options)
            row.fits.append(answer)
            row.dics.append(_dic(answer))
            if row.interrupted:
                break
    except Exception as error:
        if os.environ.get("YOASOVI_TRACEBACK"):
            raise
        return Row(name, reason=one_line(error).removeprefix(f"`method` {name} ").split(";")[0])
    return row


def _run(model: Model, method: str, seed: int, quiet: bool, options: dict[str, Any]) -> Fit:
    from yoasovi.fitting import fit

    return fit(model, method, seed=seed, progress=False if quiet else None, **options)


def _dic(fit: Fit) -> float | None:
    from yoasovi.model import HostDensity, WholeDensity

    if isinstance(fit.model.log_likelihood, WholeDensity | HostDensity):
        return None  # prior and likelihood cannot be told apart
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a run that diverged overflows, and the table shows it
            return fit.dic()
    except (ValueError, NotImplementedError):
        return None


def _optimum(model: Model) -> float | None:
    return None if model.optimum is None else float(model.optimum())


def as_json(fit: Fit, dic: float | None, optimum: float | None) -> dict[str, Any]:
    """Give what is known of a fit as plain numbers; those that are not finite become null."""
    finite = lambda x: None if x is None or not math.isfinite(x) else float(x)
    return {
        "method": fit.method.name,
        "family": fit.family.name,
        "seed": fit.seed,
        "elbo": {"value": finite(fit.elbo.value), "se": finite(fit.elbo.se)},
        "reported_elbo": finite(fit.reported_elbo),
        "distance_to_optimum": None if optimum is None else finite(optimum - fit.elbo.value),
        "dic": finite(dic),
        "converged": bool(fit.converged),
        "stop_reason": fit.stop_reason.name.lower(),
        "counts": {
            "steps": fit.num_steps, "values": fit.num_values, "gradients": fit.num_gradients, "nonfinite": fit.num_nonfinite,
        },
        "seconds": {"compile": fit.seconds.compile, "run": fit.seconds.run},
    }  # fmt: skip


# ---- the table -------------------------------------------------------------------------------------------


class Column(NamedTuple):
    """A column of figures: two lines of heading, and what stands in a row."""

    head: tuple[str, str]
    cell: Callable[[Row], str]


def _columns(optimum: float | None, seeds: int) -> tuple[list[Column], list[Column]]:
    """Give what a fit cost, and what came of it."""

    def mean(get: Callable[[Fit], float]) -> Callable[[Row], float]:
        return lambda row: fmean(get(f) for f in row.fits)

    def count(get: Callable[[Fit], int]) -> Callable[[Row], str]:
        return lambda row: f"{round(mean(get)(row)):,}"

    def steps(row: Row) -> str:
        return count(lambda f: f.num_steps)(row) + ("*" if row.limited else " ")

    def distance(row: Row) -> str:
        return "–" if optimum is None else number(optimum - mean(lambda f: f.elbo.value)(row))

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
    """Give the mean over fresh draws with its standard error; over several seeds the mean of those, with their SD."""
    from yoasovi.diagnostics import estimate

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


def _print_rows(console: Console, rows: list[Row], optimum: float | None, seeds: int = 1) -> None:
    """Print one table, or where it is too wide one of the cost and one of the answer."""
    cost, answer = _columns(optimum, seeds)
    whole, width = _table(rows, cost + answer)
    if width <= console.width or all(row.reason for row in rows):
        console.print(whole)
        return
    console.print(_table(rows, cost)[0])
    console.print(_table([row for row in rows if not row.reason], answer)[0])


def _table(rows: list[Row], columns: list[Column]) -> tuple[Table, int]:
    """Set the figures by hand in one wide column, so that a reason may take the place of all of them; also its width."""
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


def _notes(model: str, rows: list[Row], optimum: float | None, restarts: int, seeds: int = 1) -> list[str]:
    """Give the footnotes that this table needs."""
    ran = [row for row in rows if not row.reason]
    if not ran:
        return []
    names = [row.method for row in ran]
    fits = [f for row in ran for f in row.fits]
    notes = ["ELBO (higher is better) and DIC (lower is better) are on fresh draws from the final approximation."]
    if lucky := [name for name in names if name in LUCKY]:
        notes.append(f"Reported: what the run last accepted as its own ELBO; for {', '.join(lucky)} a single draw, kept "
                     "because it was a lucky one. Do not compare by it.")  # fmt: skip
    else:
        notes.append("Reported: what the run last accepted as its own ELBO, on the draws it used itself.")
    if optimum is not None:
        exact = " from the closed-form ELBO" if all(f.elbo.se == 0 for f in fits) else ""
        notes.append(f"Distance{exact} to {optimum:,.2f}, the best of 20 starts of coordinate ascent.")
    if model.startswith("mixture") and model in BUILT_INS:
        raw = ", ".join(name for name in names if name != "yoasovi")
        kinds = {"unconstrained for yoasovi": "yoasovi" in names, f"the paper's, raw and clipped, for {raw}": bool(raw)}
        notes.append(f"Parameters of q: {'; '.join(kind for kind, used in kinds.items() if used)}.")
    if any(row.limited for row in ran):
        notes.append("* Ran to its limit of steps.")
    if seeds > 1:
        notes.append(f"Means over {seeds} seeds; SD is that of the ELBO between seeds.")
    if restarts > 1:
        notes.append(f"Each fit is the best of {restarts} starts; steps and counts are those of the best alone.")
    return notes


def _print_notes(console: Console, notes: list[str]) -> None:
    for note in notes:
        console.print(note, style="dim", highlight=False, markup=False)


def _console() -> Console:
    from rich.console import Console

    piped = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=PIPED_WIDTH if piped else None)


def one_line(error: BaseException) -> str:
    """Give an error's message as one line of moderate length, with its kind where that is not clear from it."""
    say = getattr(error, "format_message", None)  # of a mistake in the command line itself
    text = " ".join(str(say() if say else error).split())
    if not say and not isinstance(error, ValueError | NotImplementedError | ImportError | FloatingPointError):
        text = f"{type(error).__name__}: {text} (YOASOVI_TRACEBACK=1 shows where)"
    return text if len(text) <= 600 else text[:597] + "..."


if __name__ == "__main__":
    main()
