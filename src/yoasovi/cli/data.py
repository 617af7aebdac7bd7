"""Built-in models on a user's own data: `--data FILE`, with the columns by name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from yoasovi.model import Model

REGRESSIONS = {"linear": "LinearRegression", "logistic": "LogisticRegression", "poisson": "PoissonRegression"}
GROUPED = ("hierarchical", "eight-schools", "eight-schools-centered")


class Given(NamedTuple):
    """What the command line says about a data file."""

    file: str | None
    target: str | None
    columns: str | None
    group: str | None
    sd: str | None
    drop: tuple[str, ...] = ()


def given_data(
    file: str | None, target: str | None, columns: str | None, group: str | None, sd: str | None, drop: list[str] | None
) -> Given | None:
    """Gather the options about data; None where there are none."""
    given = Given(file, target, columns, group, sd, tuple(drop or ()))
    if file is None and any(given):
        option = next(k for k, v in given._asdict().items() if v)
        raise ValueError(f"--{option} names a column of a data file; say which file with --data FILE.")
    return None if file is None else given


def mixture(y, k: int, form: str) -> Model:
    """Build the paper's mixture: labels "summed" out, or latent ones with "paper" or "free" parameters of q."""
    from yoasovi import models

    if form == "summed":
        return models.GaussianMixture(y, k, assignments="marginal")
    return models.GaussianMixture(y, k, parameters=form)


def model_on(name: str, given: Given, form: str, prior_scale: float | None = None) -> Model:
    """Build the built-in `name` on the columns of a file."""
    from yoasovi import models
    from yoasovi.cli.reading import Wanted, read_columns
    from yoasovi.models.columns import Ways, Words, as_numbers, two_classes

    if name not in (*REGRESSIONS, *GROUPED, "network") and not name.startswith("mixture"):
        raise ValueError(f"--data does not go with {name}, which is a model of its own data; linear goes with any.")
    for option, value, fits in (("--group", given.group, GROUPED), ("--sd", given.sd, GROUPED)):
        if value is not None and name not in fits:
            raise ValueError(f"{option} goes with {', '.join(fits)}, not with {name}.")
    if given.target is not None and name.startswith("mixture"):
        raise ValueError(f"--target does not go with {name}: a mixture has columns only; choose them with --columns.")
    target = None if name.startswith("mixture") else given.target or "y"
    if target is not None and target in given.drop:
        raise ValueError(f"--drop {target} is the column to explain; choose another by --target NAME.")
    if name in GROUPED:
        return _grouped(name, given)
    chosen = None if given.columns is None else [x.strip() for x in given.columns.split(",") if x.strip()]
    if chosen is not None and target in chosen:
        raise ValueError(f"--columns has {target!r}, which is the target.")
    needed = {x: f"--columns: no column {x!r}" for x in chosen or ()} | _told_target(given, target)
    table = read_columns(str(given.file), Wanted(given.drop, needed, only=chosen is not None))
    y: Any = None if target is None else table.pop(target)
    if not table:
        raise ValueError("no columns are left to explain the target by.")
    ways = Ways("leave it out with --drop {}", "name it in --columns to keep it")
    found = as_numbers({k: table[k] for k in chosen or table}, ways, chosen=chosen is not None)
    if name.startswith("mixture"):
        p, k = map(int, name.split("-")[1:])
        if found.X.shape[1] != p:
            has = ", ".join(found.names or ())
            raise ValueError(f"{name} needs {p} columns; got {found.X.shape[1]} ({has}). Choose by --columns A,B.")
        with by_option(num_components=f"the number of components of {name}"):
            return mixture(found.X, k, form)
    if name == "logistic" and (isinstance(y, Words) or y.dtype.kind == "b"):
        y, note = two_classes(str(target), y, ways)
        found = found._replace(notes=(note, *found.notes))
    if isinstance(y, Words):
        raise ValueError(f"--target {target} is text ({', '.join(map(repr, y.levels[:3]))}); {name} explains numbers.")
    with by_option(y=f"--target {target}"):
        if name == "network":
            return models.NeuralNetwork(found, y, hidden=(5,))
        scale = {} if prior_scale is None else {"prior_scale": prior_scale}
        return getattr(models, REGRESSIONS[name])(found, y, **scale)


@contextmanager
def by_option(**options: str) -> Iterator[None]:
    """Name the options of the command line where a model names the arguments that they became."""
    try:
        yield
    except ValueError as error:
        known = {"prior_scale": "--prior-scale", **options}
        raise ValueError(re.sub(r"`(\w+)` of `\w+`", lambda found: known.get(found[1], found[0]), str(error))) from error


def _told_target(given: Given, target: str | None) -> dict[str, str]:
    """What to say if the column to explain is not there."""
    if target is None:
        return {}
    return {target: f"--target: no column {target!r}" if given.target else "say which column to explain: --target NAME"}


def _grouped(name: str, given: Given) -> Model:
    """Build a model of groups; those of `hierarchical` have priors of the data's own scale, not of the eight schools'."""
    from yoasovi import models
    from yoasovi.cli.reading import Wanted, read_columns
    from yoasovi.models.columns import Words

    if given.columns is not None:
        raise ValueError(f"--columns does not go with {name}: it has one column, --target.")
    if given.group is None and given.sd is None:
        raise ValueError(f"{name} needs the column with the groups, --group NAME, or that with known noise, --sd NAME.")
    target = given.target or "y"
    options = {given.group: "--group", given.sd: "--sd"}
    others = {name: f"{option}: no column {name!r}" for name, option in options.items() if name is not None}
    needed = _told_target(given, target) | others
    table: dict[str, Any] = read_columns(str(given.file), Wanted(given.drop, needed, only=True, group=given.group))
    for option, column in (("--target", target), ("--sd", given.sd)):
        if column is not None and isinstance(table[column], Words):
            raise ValueError(f"{option} {column} is text; {name} needs numbers there.")
    y, group = table[target], None if given.group is None else table[given.group]
    spread = float(y.std()) or 1.0
    scales = dict(prior_mean=float(y.mean()), prior_scale=2.5 * spread, tau_scale=spread, noise_scale=spread)
    with by_option(y=f"--target {target}", sd=f"--sd {given.sd}", group=f"--group {given.group}"):
        return models.HierarchicalNormal(
            y, group, sd=None if given.sd is None else table[given.sd], centered=name.endswith("centered"),
            **(scales if name == "hierarchical" else {}),
        )  # fmt: skip
