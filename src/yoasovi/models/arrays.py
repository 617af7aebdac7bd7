"""Checks of the arrays that ready-made models are given: wrong ones are refused by name, before anything is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from yoasovi.errors import check
from yoasovi.models.columns import Predictors, Ways, Words, as_numbers, column, columns_of, is_table, two_classes

_WAYS = Ways("leave {!r} out of the data", "give `X` and `y` apart to keep it")


def numbers(name: str, owner: str, value: Any, *ndims: int) -> np.ndarray:
    """Take `value` as a finite, non-empty array of floats with one of `ndims` dimensions."""
    if is_table(value):
        value = as_numbers(columns_of(owner, value), _WAYS, chosen=True).X
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"`{name}` of `{owner}` must be an array; {error}") from error
    check(array.dtype.kind in "biuf", name, owner, "an array of numbers", f"dtype {array.dtype}")
    array = array if array.dtype.kind == "f" else array.astype(float)
    rule = " or ".join(f"{n}-dimensional" for n in ndims)
    check(array.ndim in ndims, name, owner, rule, f"an array of shape {array.shape}")
    check(array.size > 0, name, owner, "non-empty", f"an array of shape {array.shape}")
    if bad := int((~np.isfinite(array)).sum()):
        raise ValueError(f"`{name}` of `{owner}` must be finite; got {bad} NaN or infinite value(s). Drop or impute them.")
    return array


def table(owner: str, X: Any, y: Any, classes: bool = False) -> tuple[Predictors, np.ndarray]:
    """Take X as (N, p) numbers, with names where it has them, and y as (N,): numbers, or the name of a column of X.

    With `classes`, text of two values and true and false will do as a column to explain.
    """
    notes: tuple[str, ...] = ()
    if is_table(X):
        columns = columns_of(owner, X)
        chosen = not isinstance(y, str)
        if isinstance(y, str):
            check(y in columns, "y", owner, f"one of the columns {', '.join(columns)}, or (N,) values", y)
            target = columns.pop(y)
            if classes and (isinstance(target, Words) or target.dtype.kind == "b"):
                target, said = two_classes(y, target, _WAYS)
                notes = (said,)
            check(not isinstance(target, Words), "y", owner, "a column of numbers", f"{y!r}, which is text")
            y = target
        check(len(columns) > 0, "X", owner, "a table with a column besides `y`", "no other")
        lengths = {len(v.codes) if isinstance(v, Words) else len(v) for v in columns.values()}
        check(len(lengths) == 1, "X", owner, "columns of one length", f"lengths {sorted(lengths)}")
        found = as_numbers(columns, _WAYS, chosen)
        X = found._replace(notes=notes + found.notes)
    elif not isinstance(X, Predictors):
        check(not isinstance(y, str), "y", owner, "(N,) values where `X` has no named columns", y)
        X = Predictors(numbers("X", owner, X, 2))
    y = numbers("y", owner, y, 1)
    numbers("X", owner, X.X, 2)
    check(len(X.X) == len(y), "y", owner, f"as long as `X` has rows ({len(X.X)})", f"{len(y)} values")
    return X, y


def positive(name: str, owner: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Take `value` as positive numbers, one for all or one for each, of the given shape."""
    array = numbers(name, owner, value, 0, len(shape))
    check((array > 0).all(), name, owner, "positive", value)
    return broadcast(name, owner, array, shape)


def broadcast(name: str, owner: str, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Repeat one number to `shape`, or check that the array has that shape."""
    check(array.ndim == 0 or array.shape == shape, name, owner, f"a number or of shape {shape}", f"shape {array.shape}")
    return np.array(np.broadcast_to(array, shape))


def one_of(name: str, owner: str, value: Any, *choices: str) -> None:
    """Check that `value` is one of the named choices."""
    check(value in choices, name, owner, f"one of {', '.join(map(repr, choices))}", value)


def by_name(given: Any, *names: str) -> dict[str, Any]:
    """Take the `data` of `predict`: a dict with these names, the first of which is needed, or what that one stands for."""
    if not isinstance(given, Mapping):
        return {names[0]: given}
    unknown = sorted(map(str, set(given) - {*names, "y"}))  # y is what is predicted: given or not, it is not looked at
    check(not unknown, "data", "predict", f"a dict with keys among {', '.join(map(repr, names))}", unknown)
    check(names[0] in given, "data", "predict", f"a dict with {names[0]!r}", [*given])
    return dict(given)


def by_column(names: tuple[str, ...], given: Any) -> np.ndarray:
    """Take the columns of these names from a frame or dict, in this order; what else it holds is not looked at."""
    keys = {str(k): k for k in (given if isinstance(given, Mapping) else given.columns)}
    found = []
    for name in names:
        values = column(name, "predict", given[keys[name]]) if name in keys else None
        ok = isinstance(values, np.ndarray)
        check(ok, "data", "predict", f"columns of numbers {', '.join(names)}", f"no such {name!r}")
        found.append(np.asarray(values, float))
    lengths = sorted({len(x) for x in found})
    check(len(lengths) == 1, "data", "predict", "columns of one length", f"lengths {lengths}")
    return np.column_stack(found)
