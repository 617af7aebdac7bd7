"""Columns of numbers from files that are not trusted: CSV, npy, npz and Parquet, without pickle and in bounded memory.

Everything is checked before it is believed: a file that would grow beyond `LIMIT`, a line that does not end, a row with a
field too many, a word among numbers or bytes that are no UTF-8 are refused, with the line where they are.
"""

from __future__ import annotations

import csv
import math
from array import array
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from yoasovi.extras import need
from yoasovi.files.storage import read_npy, unpack

LIMIT = 2**29  # bytes of numbers that are read from one file
LONGEST_LINE, LONGEST_LABEL = 2**20, 200  # bytes, characters
_MISSING = ("", "na", "n/a", "null", "none", "?", ".")

Columns = dict[str, np.ndarray]


def read_columns(path: str | Path, labels: Collection[str] = ()) -> Columns:
    """Read a table, by the file's ending: .csv (.tsv, .txt), .npy, .npz or .parquet.

    Columns are numbers, without gaps; those named in `labels` may be text. Other columns of text are left out. A matrix in
    an npy file gives columns c1, c2, ...; one called X in an npz file gives X1, X2, ...
    """
    path = Path(path)
    readers: dict[str, Callable[[Path, Collection[str]], Columns]] = {
        ".csv": _csv, ".tsv": _csv, ".txt": _csv, ".npy": _npy, ".npz": _npz, ".parquet": _parquet
    }  # fmt: skip
    if path.suffix.lower() not in readers:
        raise ValueError(f"{path}: a data file must end in {', '.join(readers)}.")
    if not path.is_file():
        raise ValueError(f"no file {path}.")
    columns = readers[path.suffix.lower()](path, labels)
    if not columns:
        raise ValueError(f"{path} has no column of numbers.")
    sizes = {k: len(v) for k, v in columns.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"{path}: columns must have one length; got {', '.join(f'{k}: {n}' for k, n in sizes.items())}.")
    if not next(iter(sizes.values())):
        raise ValueError(f"{path} has no rows.")
    for name, values in columns.items():
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values))[0]) + 1
            raise ValueError(f"{path}: column {name!r} has {values[row - 1]} in row {row}; drop or impute it.")
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


def _csv(path: Path, labels: Collection[str]) -> Columns:
    lines = _lines(path)
    first = next(lines, "")
    if not first.strip():
        raise ValueError(f"{path}: line 1 is empty; it must have the names of the columns.")
    delimiter = max(",;\t", key=first.count)
    rows = csv.reader(_chained(first, lines), delimiter=delimiter, strict=True)
    try:
        head = [x.strip() for x in next(rows)]
        named = not all(_number(x) is not None for x in head)
        names = head if named else [f"c{i + 1}" for i in range(len(head))]
        if twice := [x for x in names if names.count(x) > 1]:
            raise ValueError(f"{path}: line 1 has the column {twice[0]!r} twice.")
        if absent := [x for x in labels if x not in names]:
            raise ValueError(f"{path} has no column {absent[0]!r}; it has {', '.join(names)}.")
        store = [_Column(path, name, name in labels) for name in names]
        for row in rows if named else _with_first(head, rows):
            if not row:
                continue  # an empty line
            if len(row) != len(names):
                raise ValueError(f"{path}: line {rows.line_num} has {len(row)} fields; line 1 has {len(names)}.")
            for column, field in zip(store, row, strict=True):
                column.add(field, rows.line_num)
            if 8 * len(store) * rows.line_num > LIMIT:
                raise ValueError(f"{path}: line {rows.line_num}: more than {LIMIT:,} bytes of numbers.")
    except csv.Error as error:
        raise ValueError(f"{path}: line {rows.line_num}: {error}.") from error
    return {c.name: c.values() for c in store if not c.dropped}


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
    """A column that grows: numbers, or text where labels are wanted."""

    def __init__(self, path: Path, name: str, label: bool):
        self.path, self.name, self.label = path, name, label
        self.numbers = array("d")  # of labels: which
        self.codes: dict[str, int] = {}
        self.dropped = False

    def add(self, field: str, line: int) -> None:
        field = field.strip()
        if self.dropped:
            return
        if self.label:
            if field.lower() in _MISSING:
                raise ValueError(f"{self.path}: line {line}: column {self.name!r} is empty.")
            if len(field) > LONGEST_LABEL:
                raise ValueError(f"{self.path}: line {line}: column {self.name!r} has a label of {len(field)} characters.")
            self.numbers.append(self.codes.setdefault(field, len(self.codes)))
            return
        value = _number(field)
        if value is None or not math.isfinite(value):
            if field.lower() in (*_MISSING, "nan") or value is not None:
                raise ValueError(f"{self.path}: line {line}: column {self.name!r} is {field!r}; drop or impute such rows.")
            if self.numbers:
                raise ValueError(f"{self.path}: line {line}: column {self.name!r} is {field[:40]!r}, after numbers.")
            self.dropped = True
            return
        self.numbers.append(value)

    def values(self) -> np.ndarray:
        if not self.label:
            return np.frombuffer(self.numbers, float).copy() if self.numbers else np.empty(0)
        names = np.array(list(self.codes))
        return names[np.frombuffer(self.numbers, float).astype(int)] if self.numbers else np.empty(0, str)


# ---- arrays ------------------------------------------------------------------------------------------------


def _npy(path: Path, labels: Collection[str]) -> Columns:
    size = path.stat().st_size
    if size > LIMIT:
        raise ValueError(f"{path} has {size:,} bytes; the limit is {LIMIT:,}.")
    with open(path, "rb") as file:
        return _as_columns(path, {"": read_npy(file, size, str(path))}, labels)


def _npz(path: Path, labels: Collection[str]) -> Columns:
    return _as_columns(path, unpack(path, LIMIT), labels)


def _as_columns(path: Path, arrays: dict[str, np.ndarray], labels: Collection[str]) -> Columns:
    out: Columns = {}
    for name, values in arrays.items():
        where = f"{path}: array {name!r}" if name else str(path)
        if values.dtype.names:
            out.update(_as_columns(path, {k: values[k] for k in values.dtype.names}, labels))
        elif values.dtype.kind in "US":
            if name in labels:
                out[name] = values
        elif values.dtype.kind not in "biuf":
            raise ValueError(f"{where} must be numbers; it is {values.dtype}.")
        elif values.ndim == 2:
            out.update({f"{name or 'c'}{j + 1}": values[:, j].astype(float) for j in range(values.shape[1])})
        elif values.ndim == 1:
            out[name or "c1"] = values.astype(float)
        else:
            raise ValueError(f"{where} must have one or two dimensions; it has shape {values.shape}.")
    return out


def _parquet(path: Path, labels: Collection[str]) -> Columns:
    parquet = need("pyarrow.parquet", "parquet")
    arrow = need("pyarrow", "parquet")
    try:
        file = parquet.ParquetFile(path)
        shape = (file.metadata.num_rows, file.metadata.num_columns)
        if 8 * shape[0] * shape[1] > LIMIT or file.metadata.serialized_size > LIMIT:
            raise ValueError(f"{path} says it has {shape[0]:,} rows of {shape[1]:,} columns; the limit is {LIMIT:,} bytes.")
        out: Columns = {}
        for field in file.schema_arrow:
            kinds = arrow.types.is_integer, arrow.types.is_floating, arrow.types.is_boolean
            numeric = any(is_kind(field.type) for is_kind in kinds)
            if numeric or field.name in labels:
                out[field.name] = _parquet_column(path, file, field.name, numeric)
        return out
    except (arrow.ArrowException, OSError) as error:
        raise ValueError(f"{path} is no intact Parquet file: {' '.join(str(error).split())}") from error


def _parquet_column(path: Path, file: Any, name: str, numeric: bool) -> np.ndarray:
    parts: list[np.ndarray] = []
    row = 0
    for batch in file.iter_batches(batch_size=2**16, columns=[name]):
        values = batch.column(0)
        if values.null_count:
            first = values.is_null().to_numpy(zero_copy_only=False).argmax()
            raise ValueError(f"{path}: column {name!r} is empty in row {row + int(first) + 1}; drop or impute such rows.")
        found = values.to_numpy(zero_copy_only=False)
        parts.append(found.astype(float) if numeric else found.astype(str))
        row += len(values)
    return np.concatenate(parts) if parts else np.empty(0)
