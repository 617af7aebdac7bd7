"""Tables: pandas and polars frames, dicts of columns and data files, as the numbers that a model takes.

Text becomes indicator columns, named column[level], one for each value but the first; true and false become 1 and 0. What
cannot be a number, and what only counts or names the rows, is refused by name. What was done is told in notes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

MOST_LEVELS = 20  # of a column of text that becomes indicators
_DISTINCT = 0.8  # share of rows with a text of their own, from which on text is a name and no group
_FEWEST_ROWS = 10  # in which 1, 2, 3, ... is taken for a count of the rows
_ID = re.compile(r"(^|[\W_]|(?<=[a-z]))(id|ID|Id|uuid|UUID|index|Index|rownames?|row_?(number|nr|no))$|^Unnamed: \d+$")
_DATE = re.compile(r"\d{4}[-/.]\d{1,2}([-/.]\d{1,2}([ T]\d{1,2}:\d{2}.*)?)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}([ T].*)?")
_NUMBER = re.compile(r"[-+(]?\s*[$€£¥]?\s*[-+]?\d[\d.,'\s]*\s*[%$€£¥)]?")  # with commas, signs of money or of per cent
_TRUE_FALSE = {"true", "false"}


class Words(NamedTuple):
    """A column of text: its different values, and which of them each row has."""

    levels: list[str]
    codes: np.ndarray
    more: bool = False  # there are further values, which were not kept


Column = np.ndarray | Words


class Ways(NamedTuple):
    """How a column is left out, and how one that was doubted is kept, in the words of whoever asks."""

    out: str
    keep: str


class Predictors(NamedTuple):
    """Predictors as numbers, with their names where they have any, and what was done to get them."""

    X: np.ndarray
    names: list[str] | None = None
    notes: tuple[str, ...] = ()


def is_table(value: Any) -> bool:
    """Tell whether a value has named columns: a dict, or a frame of pandas, polars or the like."""
    return isinstance(value, Mapping) or (hasattr(value, "columns") and hasattr(value, "__getitem__"))


def columns_of(owner: str, table: Any) -> dict[str, Column]:
    """Take the columns of a dict or frame, by name."""
    found = list(table) if isinstance(table, Mapping) else list(table.columns)
    names = [str(x) for x in found]
    if twice := [x for x in names if names.count(x) > 1]:
        raise ValueError(f"the data of `{owner}` have the column {twice[0]!r} twice; give each column a name of its own.")
    return {name: column(name, owner, table[key]) for name, key in zip(names, found, strict=True)}


def column(name: str, owner: str, values: Any) -> Column:
    """Take one column: numbers, true and false, or text; without gaps."""
    given = values.to_numpy() if hasattr(values, "to_numpy") else np.asarray(values)
    what = f"column {name!r} of the data of `{owner}`"
    if given.ndim != 1:
        raise ValueError(f"{what} must be one-dimensional; got an array of shape {given.shape}.")
    if given.dtype.kind in "mM":
        raise ValueError(f"{what} holds dates or times; give a number in their place, such as days since the first.")
    if given.dtype.kind in "OUS":
        gap = np.array([x is None or x != x or str(x) in ("<NA>", "NaT") for x in given.tolist()], bool)
    else:
        gap = ~np.isfinite(given) if given.dtype.kind == "f" else np.zeros(given.shape, bool)
    if gap.any():
        first = int(gap.argmax()) + 1
        raise ValueError(f"{what} has {int(gap.sum())} missing or infinite value(s), the first in row {first}; drop or "
                         "impute such rows, or leave the column out.")  # fmt: skip
    if given.dtype.kind in "OUS":
        return _objects(what, given, getattr(getattr(values, "dtype", None), "categories", None))
    if given.dtype.kind not in "biuf":
        raise ValueError(f"{what} must be numbers or text; it is {given.dtype}.")
    return given


def _objects(what: str, given: np.ndarray, categories: Any) -> Column:
    each = given.tolist()
    kinds = {type(x) for x in each}
    if kinds <= {bool, np.bool_}:
        return given.astype(bool)
    if not any(issubclass(kind, str | bytes) for kind in kinds):
        try:
            return given.astype(float)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{what} must be numbers or text; it holds {', '.join(k.__name__ for k in kinds)}.") from error
    if not all(issubclass(kind, str) for kind in kinds):
        others = sorted(kind.__name__ for kind in kinds - {str})
        raise ValueError(f"{what} mixes text with other values ({', '.join(others)}); make it all text or all numbers.")
    found = set(each)
    ordered = [str(x) for x in categories] if isinstance(categories, Iterable) else []
    levels = [x for x in ordered if x in found] if found <= set(ordered) else in_order(found)
    place = {x: i for i, x in enumerate(levels)}
    return Words(levels, np.array([place[x] for x in each]))


def as_numbers(columns: Mapping[str, Column], ways: Ways, chosen: bool) -> Predictors:
    """Make predictors of columns.

    Columns that were not `chosen` one by one are looked at with more suspicion: counts and names of rows are refused, and
    constants left out.
    """
    parts: list[np.ndarray] = []
    names: list[str] = []
    notes: list[str] = []
    for name, values in columns.items():
        if isinstance(values, Words):
            levels = _levels(name, values, ways)
            if len(levels) == 1:
                notes.append(f"Column {name!r} is {levels[0]!r} in every row and was left out.")
            elif {x.lower() for x in levels} == _TRUE_FALSE and len(levels) == 2:
                parts.append(np.array([x.lower() == "true" for x in levels], float)[values.codes])
                names.append(name)
                notes.append(f"Column {name!r} is true or false; true counts 1, false 0.")
            else:
                base, *others = levels
                parts += [(values.codes == levels.index(x)).astype(float) for x in others]
                names += [f"{name}[{x}]" for x in others]
                notes.append(f"Column {name!r} is text; its coefficients compare {_listed(others)} with {base!r}.")
            continue
        if not chosen and (why := _counts_rows(name, values)):
            raise ValueError(f"column {name!r} {why}; {ways.out.format(name)}, or {ways.keep}.")
        if not chosen and len(values) > 1 and (values == values[0]).all():
            notes.append(f"Column {name!r} is {values[0]:g} in every row and was left out.")
            continue
        if values.dtype.kind == "b":
            notes.append(f"Column {name!r} is true or false; true counts 1, false 0.")
        parts.append(values if values.dtype.kind == "f" else values.astype(float))
        names.append(name)
    if not parts:
        raise ValueError(" ".join(["no columns are left to explain the target by.", *notes]))
    return Predictors(np.column_stack(parts), names, tuple(notes))


def two_classes(name: str, values: Column, ways: Ways) -> tuple[np.ndarray, str]:
    """Take a column with two values, words or true and false, as 0 and 1; also a note on which is which."""
    if not isinstance(values, Words):
        return values.astype(float), f"Column {name!r} is true or false; true counts 1, false 0."
    levels = _levels(name, values, ways)
    if len(levels) != 2:
        raise ValueError(f"column {name!r} must have two values to tell apart; it has {len(levels)}: {_listed(levels)}.")
    zero, one = levels
    return (values.codes == levels.index(one)).astype(float), f"Column {name!r}: {one!r} counts 1, {zero!r} 0."


def in_order(levels: Iterable[str]) -> list[str]:
    """Put levels in order: by the number they begin with, the rest by the alphabet."""

    def key(text: str) -> tuple[float, str]:
        number = re.match(r"-?\d+(\.\d+)?", text)
        return (float(number[0]) if number else np.inf, text)

    return sorted(levels, key=key)


def _levels(name: str, values: Words, ways: Ways) -> list[str]:
    """Give the levels of a column of text that can be told apart by indicators."""
    levels, rows = values.levels, len(values.codes)
    if not values.more and all(_DATE.fullmatch(x) for x in levels):
        raise ValueError(f"column {name!r} holds dates (such as {levels[0]!r}); write a number in their place, such as "
                         f"days since the first, or {ways.out.format(name)}.")  # fmt: skip
    if all(_NUMBER.fullmatch(x) for x in levels):
        raise ValueError(f"column {name!r} holds numbers that cannot be read (such as {levels[0]!r}); write them with a "
                         f"point for decimals and nothing else, or {ways.out.format(name)}.")  # fmt: skip
    if len(levels) > MOST_LEVELS or values.more:
        many = f"more than {len(levels):,}" if values.more else f"{len(levels):,}"
        raise ValueError(f"column {name!r} is text with {many} different values, such as {_listed(levels[:2])}, and at most "
                         f"{MOST_LEVELS} become indicators; {ways.out.format(name)}.")  # fmt: skip
    if len(levels) > 2 and len(levels) > _DISTINCT * rows:
        raise ValueError(f"column {name!r} is text that names the rows: {len(levels)} different values in {rows} rows; "
                         f"{ways.out.format(name)}.")  # fmt: skip
    return levels


def _counts_rows(name: str, values: np.ndarray) -> str:
    """Say why a column of whole numbers looks like a count or a name of the rows; nothing if it does not."""
    if values.dtype.kind == "b" or not np.array_equal(values, np.round(values)):
        return ""
    if len(values) >= _FEWEST_ROWS and np.array_equal(values - values[0], np.arange(len(values))) and values[0] in (0, 1):
        return f"counts the rows, {values[0]:g} to {values[-1]:g}"
    if len(values) > 2 and _ID.search(name) and np.unique(values).size == len(values):
        return "looks like a name of the rows: a different whole number in each"
    return ""


def _listed(words: list[str]) -> str:
    return ", ".join(repr(x) for x in words)
