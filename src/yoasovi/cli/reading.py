"""Columns from files that are not trusted: CSV, npy, npz and Parquet, without pickle and in bounded memory.

Everything is checked before it is believed: a file that would grow beyond `LIMIT`, a line that does not end, a row with a
field too many, a word among numbers or bytes that are no UTF-8 are refused, with the line where they are.
"""

from __future__ import annotations

import csv
import math
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from yoasovi.extras import need
from yoasovi.files.storage import read_npy, unpack
from yoasovi.models.columns import Column, Words, in_order

LIMIT = 2**29  # bytes of numbers that are read from one file
LONGEST_LINE, LONGEST_LABEL = 2**20, 200  # bytes, characters
MOST_WORDS = 1000  # different values of a column of text that are kept, unless it has the groups
_MISSING = ("", "na", "n/a", "nan", "null", "?", ".")

Columns = dict[str, Column]


class Wanted(NamedTuple):
    """Which columns are wanted: all but those of `drop`, or `only` those that are needed.

    `needed` has, by name, what to say if the file lacks the column. `group` is the one that may have any number of values.
    """

    drop: Collection[str] = ()
    needed: Mapping[str, str] = MappingProxyType({})
    only: bool = False
    group: str | None = None

    def has(self, name: str) -> bool:
        """Tell whether a column is wanted."""
        return name in self.needed or (name not in self.drop and not self.only)

    def mend(self, name: str) -> str:
        """Say what to do about a gap."""
        out = "" if name in self.needed else f", or leave the column out with --drop {name}"
        return f"drop or impute such rows{out}"

    def check(self, path: Path, names: Collection[str]) -> None:
        """Refuse a name that the file does not have."""
        for name, said in {**{x: f"--drop {x}: no such column" for x in self.drop}, **self.needed}.items():
            if name not in names:
                raise ValueError(f"{said}; {path} has {', '.join(names)}.")


def read_columns(path: str | Path, wanted: Wanted = Wanted()) -> Columns:  # noqa: B008 - it cannot be changed
    """Read a table, by the file's ending: .csv (.tsv, .txt), .npy, .npz or .parquet.

    Columns are numbers, true and false, or text, without gaps; those that are not wanted may hold anything. A matrix in an
    npy file gives columns c1, c2, ...; one called X in an npz file gives X1, X2, ... A CSV column without a name is c1, c2,
    ... by its place.
    """
    path = Path(path)
    readers: dict[str, Callable[[Path, Wanted], Columns]] = {
        ".csv": _csv, ".tsv": _csv, ".txt": _csv, ".npy": _npy, ".npz": _npz, ".parquet": _parquet
    }  # fmt: skip
    if path.suffix.lower() not in readers:
        raise ValueError(f"{path}: a data file must end in {', '.join(readers)}.")
    if not path.is_file():
        raise ValueError(f"no file {path}.")
    if not path.stat().st_size:
        raise ValueError(f"{path} is empty.")
    columns = readers[path.suffix.lower()](path, wanted)
    if not columns:
        raise ValueError(f"{path} has no column that is left.")
    sizes = {k: len(v.codes) if isinstance(v, Words) else len(v) for k, v in columns.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"{path}: columns must have one length; got {', '.join(f'{k}: {n}' for k, n in sizes.items())}.")
    if not next(iter(sizes.values())):
        raise ValueError(f"{path} has no rows.")
    for name, values in columns.items():
        if not isinstance(values, Words) and values.dtype.kind == "f" and not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values))[0]) + 1
            raise ValueError(f"{path}: column {name!r} has {values[row - 1]} in row {row}; {wanted.mend(name)}.")
    return columns


# ---- text --------------------------------------------------------------------------------------------------


def _lines(path: Path) -> Iterator[str]:
    """Give the lines of a text file, none longer than the limit, as UTF-8."""
    with open(path, "rb") as file:
        for number in range(1, 2**62):
            raw = file.readline(LONGEST_LINE + 1)
            if not raw:
                return
            if number == 1 and raw.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise ValueError(f"{path}: line 1 is UTF-16; save the file as UTF-8.")
            if len(raw) > LONGEST_LINE:
                raise ValueError(f"{path}: line {number} is longer than {LONGEST_LINE:,} bytes; is this a CSV file?")
            if b"\0" in raw:
                raise ValueError(f"{path}: line {number} has a zero byte; this is no text file.")
            try:
                yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                where = f"line {number} is not UTF-8 (byte {error.start + 1} of it)"
                raise ValueError(f"{path}: {where}; save the file as UTF-8.") from error


def _csv(path: Path, wanted: Wanted) -> Columns:
    lines = _lines(path)
    first = next(lines, "")
    if not first.strip():
        raise ValueError(f"{path}: line 1 is empty; it must have the names of the columns.")
    delimiter = max(",;\t", key=first.count)
    rows = csv.reader(_chained(first, lines), delimiter=delimiter, strict=True)
    try:
        head = [x.strip() for x in next(rows)]
        named = not all(_number(x) is not None for x in head)
        names = [x if named and x else f"c{i + 1}" for i, x in enumerate(head)]
        if twice := [x for x in names if names.count(x) > 1]:
            raise ValueError(f"{path}: line 1 has the column {twice[0]!r} twice; give each column a name of its own.")
        wanted.check(path, names)
        store = [_Column(path, name, wanted) for name in names]
        used = [(i, column) for i, column in enumerate(store) if wanted.has(column.name)]
        for row in rows if named else _with_first(head, rows):
            if not row:
                continue  # an empty line
            if len(row) != len(names):
                raise ValueError(f"{path}: line {rows.line_num} has {len(row)} fields; line 1 has {len(names)}.")
            for i, column in used:
                column.add(row[i], rows.line_num)
            if 8 * len(store) * rows.line_num > LIMIT:
                raise ValueError(f"{path}: line {rows.line_num}: more than {LIMIT:,} bytes of numbers.")
    except csv.Error as error:
        if "new-line character" in str(error):
            said = "has a carriage return in it, as if lines ended in one alone; save the file with line ends \\n or \\r\\n."
            raise ValueError(f"{path}: line {rows.line_num} {said}") from error
        raise ValueError(f"{path}: line {rows.line_num}: {error}.") from error
    return {c.name: c.values() for _, c in used}


def _chained(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest


def _with_first(first: list[str], rest: Iterator[list[str]]) -> Iterator[list[str]]:
    yield first
    yield from rest


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


class _Column:
    """A column that grows: numbers, or text from its first row on."""

    def __init__(self, path: Path, name: str, wanted: Wanted):
        self.path, self.name, self.wanted = path, name, wanted
        self.numbers = array("d")  # of text: which
        self.text = self.group = name == wanted.group
        self.words: dict[str, int] = {}

    def add(self, field: str, line: int) -> None:
        field = field.strip()
        where = f"{self.path}: line {line}: column {self.name!r}"
        value = _number(field)
        if field.lower() in _MISSING or (not self.text and value is not None and not math.isfinite(value)):
            said = "is empty" if not field else f"is {field!r}"
            raise ValueError(f"{where} {said}; {self.wanted.mend(self.name)}.")
        if value is None and not self.text:
            if self.numbers:
                raise ValueError(f"{where} is {field[:40]!r}, after numbers; mend it, or leave the column out with "
                                 f"--drop {self.name}.")  # fmt: skip
            self.text = True
        if not self.text:
            self.numbers.append(value)  # type: ignore[arg-type]
            return
        if len(field) > LONGEST_LABEL:
            raise ValueError(f"{where} has a text of {len(field)} characters; leave it out with --drop {self.name}.")
        if self.group or field in self.words or len(self.words) <= MOST_WORDS:
            self.numbers.append(self.words.setdefault(field, len(self.words)))
        else:
            self.numbers.append(MOST_WORDS)

    def values(self) -> Column:
        numbers = np.frombuffer(self.numbers, float).copy() if self.numbers else np.empty(0)
        return _words(list(self.words), numbers.astype(int), self.group) if self.text else numbers


def _words(found: list[str], codes: np.ndarray, group: bool = False) -> Words:
    """Put the values of a column of text in order; of too many, keep the first."""
    if not group and len(found) > MOST_WORDS:
        return Words(found[:MOST_WORDS], codes, True)
    levels = in_order(found)
    place = {x: i for i, x in enumerate(levels)}
    return Words(levels, np.array([place[x] for x in found], int)[codes])


# ---- arrays ------------------------------------------------------------------------------------------------


def _npy(path: Path, wanted: Wanted) -> Columns:
    size = path.stat().st_size
    if size > LIMIT:
        raise ValueError(f"{path} has {size:,} bytes; the limit is {LIMIT:,}.")
    with open(path, "rb") as file:
        return _chosen(path, _as_columns(path, {"": read_npy(file, size, str(path))}), wanted)


def _npz(path: Path, wanted: Wanted) -> Columns:
    return _chosen(path, _as_columns(path, unpack(path, LIMIT)), wanted)


def _chosen(path: Path, columns: Columns, wanted: Wanted) -> Columns:
    wanted.check(path, columns)
    return {k: v for k, v in columns.items() if wanted.has(k)}


def _as_columns(path: Path, arrays: dict[str, np.ndarray]) -> Columns:
    out: Columns = {}
    for name, values in arrays.items():
        where = f"{path}: array {name!r}" if name else str(path)
        if values.dtype.names:
            out.update(_as_columns(path, {k: values[k] for k in values.dtype.names}))
        elif values.dtype.kind in "US" and values.ndim == 1:
            levels, codes = np.unique(values.astype(str), return_inverse=True)
            out[name or "c1"] = _words(levels.tolist(), codes, True)
        elif values.dtype.kind not in "biuf":
            raise ValueError(f"{where} must be numbers; it is {values.dtype}.")
        elif values.ndim == 2:
            out.update({f"{name or 'c'}{j + 1}": values[:, j].astype(float) for j in range(values.shape[1])})
        elif values.ndim == 1:
            out[name or "c1"] = values if values.dtype.kind == "b" else values.astype(float)
        else:
            raise ValueError(f"{where} must have one or two dimensions; it has shape {values.shape}.")
    return out


def _parquet(path: Path, wanted: Wanted) -> Columns:
    parquet = need("pyarrow.parquet", "parquet")
    arrow = need("pyarrow", "parquet")
    kind = arrow.types
    try:
        known = parquet.ParquetFile(path)
        shape = (known.metadata.num_rows, known.metadata.num_columns)
        if 8 * shape[0] * shape[1] > LIMIT or known.metadata.serialized_size > LIMIT:
            raise ValueError(f"{path} says it has {shape[0]:,} rows of {shape[1]:,} columns; the limit is {LIMIT:,} bytes.")
        names = known.schema_arrow.names
        if twice := [x for x in names if names.count(x) > 1]:
            raise ValueError(f"{path} has the column {twice[0]!r} twice; give each column a name of its own.")
        wanted.check(path, names)
        fields = [field for field in known.schema_arrow if wanted.has(field.name)]
        text = [x.name for x in fields if kind.is_string(x.type) or kind.is_large_string(x.type)]
        file = parquet.ParquetFile(path, read_dictionary=text)  # as codes: a long text in every row takes its space once
        out: Columns = {}
        for field in fields:
            if kind.is_temporal(field.type):
                said = "write a number in their place, such as days since the first, or leave it out with"
                raise ValueError(f"{path}: column {field.name!r} holds dates or times; {said} --drop {field.name}.")
            plain = any(is_kind(field.type) for is_kind in (kind.is_integer, kind.is_floating, kind.is_boolean))
            if not plain and field.name not in text and not kind.is_dictionary(field.type):
                said = f"must be numbers or text; it is {field.type}. Leave it out with --drop {field.name}."
                raise ValueError(f"{path}: column {field.name!r} {said}")
            out[field.name] = _parquet_column(path, file, field.name, plain, wanted)
        return out
    except (arrow.ArrowException, OSError) as error:
        raise ValueError(f"{path} is no intact Parquet file: {' '.join(str(error).split())}") from error


def _parquet_column(path: Path, file: Any, name: str, plain: bool, wanted: Wanted) -> Column:
    parts: list[np.ndarray] = []
    row, words = 0, {}  # type: ignore[var-annotated]
    for batch in file.iter_batches(batch_size=2**16, columns=[name]):
        values = batch.column(0)
        if values.null_count:
            first = row + int(values.is_null().to_numpy(zero_copy_only=False).argmax()) + 1
            raise ValueError(f"{path}: column {name!r} is empty in row {first}; {wanted.mend(name)}.")
        row += len(values)
        if plain:
            found = values.to_numpy(zero_copy_only=False)
            parts.append(found if found.dtype.kind == "b" else found.astype(float))
            continue
        numbers = [words.setdefault(str(x)[:LONGEST_LABEL], len(words)) for x in values.dictionary.to_pylist()]
        parts.append(np.array(numbers, int)[values.indices.to_numpy(zero_copy_only=False)])
    joined = np.concatenate(parts) if parts else np.empty(0, float if plain else int)
    return joined if plain else _words(list(words), joined, name == wanted.group)
