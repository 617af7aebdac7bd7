"""Built-in models on a user's own data: `--data FILE`, with the columns by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np

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


def given_data(file: str | None, target: str | None, columns: str | None, group: str | None, sd: str | None) -> Given | None:
    """Gather the options about data; None where there are none."""
    given = Given(file, target, columns, group, sd)
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


def model_on(name: str, given: Given, form: str) -> Model:
    """Build the built-in `name` on the columns of a file."""
    from yoasovi import models
    from yoasovi.cli.reading import read_columns

    for option, value, fits in (("--group", given.group, GROUPED), ("--sd", given.sd, GROUPED)):
        if value is not None and name not in fits:
            raise ValueError(f"{option} goes with {', '.join(fits)}, not with {name}.")
    if given.target is not None and name.startswith("mixture"):
        raise ValueError(f"--target does not go with {name}: a mixture has columns only; choose them with --columns.")
    labels = [] if given.group is None else [given.group]
    table = read_columns(str(given.file), labels)
    if name in GROUPED:
        of = lambda column: None if column is None else pick(table, column)
        y, sd = pick(table, _target(given, table)), of(given.sd)
        return models.HierarchicalNormal(y, of(given.group), sd=sd, centered=name.endswith("centered"))
    if name.startswith("mixture"):
        p, k = map(int, name.split("-")[1:])
        chosen = _chosen(given, table, without=())
        if len(chosen) != p:
            raise ValueError(f"{name} needs {p} columns; got {len(chosen)} ({', '.join(chosen)}). Choose by --columns A,B.")
        return mixture(_matrix(table, chosen), k, form)
    target = _target(given, table)
    X, y = _matrix(table, _chosen(given, table, without=(target,))), pick(table, target)
    if name in REGRESSIONS:
        return getattr(models, REGRESSIONS[name])(X, y)
    if name == "network":
        return models.NeuralNetwork(X, y, hidden=(5,))
    raise ValueError(f"--data does not go with {name}; a model in path.py:name reads its own data.")


def pick(table: dict[str, np.ndarray], column: str) -> Any:
    """Give a column by its name."""
    if column not in table:
        raise ValueError(f"no column {column!r} of numbers in the data file; it has {', '.join(table)}.")
    return table[column]


def _target(given: Given, table: dict[str, np.ndarray]) -> str:
    target = given.target or "y"
    if target not in table:
        what = "--target must name a column of numbers" if given.target else "say which column to explain: --target NAME"
        raise ValueError(f"{what}; the data file has {', '.join(table)}.")
    return target


def _chosen(given: Given, table: dict[str, np.ndarray], without: tuple[str, ...]) -> list[str]:
    """Give the columns asked for, or all that are left."""
    if given.columns is None:
        chosen = [k for k in table if k not in without]
    else:
        chosen = [x.strip() for x in given.columns.split(",") if x.strip()]
        if both := [x for x in chosen if x in without]:
            raise ValueError(f"--columns has {both[0]!r}, which is the target.")
    if not chosen:
        raise ValueError("no columns are left to explain the target by.")
    return chosen


def _matrix(table: dict[str, np.ndarray], names: list[str]) -> Any:
    import numpy as np

    return np.column_stack([pick(table, name) for name in names])
