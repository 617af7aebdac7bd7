"""Data larger than memory: rows are read in chunks, ahead of their use, and a random sample of them stays in memory.

Looks at all the data are sums over chunks, one reading of the rows per look at any number of points. Minibatches come from
the sample. What it cannot know of the other rows, value, slope and curvature of their likelihood at an anchor near the
posterior, is summed over all of them, so that the sample only tells how these change on the way to a draw.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from yoasovi.errors import check, did_you_mean, positive_integer
from yoasovi.extras import need
from yoasovi.kernels.looks import JaxKernels
from yoasovi.kernels.programs import as_arrays, wide
from yoasovi.model.minibatch import Anchor, RowStream

_BUFFER = 2**18  # bytes of a column that are read at once
_POINTS = [8]  # that look at a chunk together
_CURVED = 64  # parameters, up to which a second derivative of all the data is worth its price


def stream(source: Any, columns: Any = None, rows_per_read: int = 32_768, ahead: int = 2) -> Stream:
    """Read data in chunks, for `data` of `Model`: `log_likelihood` is given rows as arrays, never all of them.

    Parameters
    ----------
    source
        A Parquet file or a folder of them; an array such as a `numpy.memmap`, or a dict of arrays that share their first
        axis; or any object with `len` whose slices are such arrays.
    columns
        Of Parquet: names of columns, or a dict such as {"X": ["x1", "x2"], "y": "y"}, in which a list becomes a matrix.
        All columns, each by its name, if None.
    rows_per_read, ahead
        Rows in a chunk, and in the random sample that stays; how many chunks are read before they are needed.

    Examples
    --------
    >>> data = yo.stream("rows/", columns={"X": ["x1", "x2"], "y": "y"})                            # doctest: +SKIP
    >>> fit = yo.fit(yo.Model(prior=prior, log_likelihood=log_likelihood, data=data))               # doctest: +SKIP
    """
    for name, value in (("rows_per_read", rows_per_read), ("ahead", ahead)):
        positive_integer(name, "stream", value)
    if isinstance(source, str | Path):
        return Stream(ParquetRows(source, columns), rows_per_read, ahead)
    check(columns is None, "columns", "stream", "None unless `source` is a Parquet file or folder", columns)
    leaves = [source[k] for k in source] if isinstance(source, Mapping) else [source]
    usable = leaves and all(hasattr(x, "__len__") and hasattr(x, "__getitem__") for x in leaves)
    check(usable, "source", "stream", "a Parquet file or folder, arrays, or an object with `len` and slices", source)
    lengths = sorted({len(x) for x in leaves})
    check(len(lengths) == 1 and lengths[0] > 0, "source", "stream", "rows, as many in all arrays", f"lengths {lengths}")
    return Stream(SlicedRows(source, lengths[0]), rows_per_read, ahead)


class SlicedRows:
    """Rows of something that can be sliced."""

    def __init__(self, source: Any, size: int):
        self.source, self.size = source, size

    def __repr__(self) -> str:
        return type(self.source).__name__

    def chunks(self, rows: int) -> Iterator[Any]:
        """Give the rows in order, so many at a time."""
        for start in range(0, self.size, rows):
            part = slice(start, min(start + rows, self.size))
            cut = {k: v[part] for k, v in self.source.items()} if isinstance(self.source, Mapping) else self.source[part]
            yield jax.tree.map(np.array, cut)  # read here, in the background


class ParquetRows:
    """Rows of a Parquet file, or of all of a folder."""

    def __init__(self, path: str | Path, columns: Any):
        arrow, dataset = need("pyarrow", "parquet"), need("pyarrow.dataset", "parquet")

        self.path = Path(path)
        check(self.path.exists(), "source", "stream", "a Parquet file or folder that exists", str(path))
        try:
            found = dataset.dataset(self.path, format="parquet")
            self.size = found.count_rows()
            self.files = {x.path: x.physical_schema.names for x in found.get_fragments()}
        except (arrow.ArrowException, OSError) as error:
            text = " ".join(str(error).split())
            raise ValueError(f"`source` of `stream`: {path} holds no intact Parquet file ({text}).") from error
        check(self.size > 0, "source", "stream", "a Parquet file or folder with rows", str(path))
        there = found.schema.names
        columns = list(there) if columns is None else [columns] if isinstance(columns, str) else columns
        self.columns = dict(columns) if isinstance(columns, Mapping) else {k: k for k in columns}
        self.names = list(dict.fromkeys(k for x in self.columns.values() for k in ([x] if isinstance(x, str) else x)))
        for file, there in self.files.items():
            for name in self.names:
                if name not in there:
                    known = ", ".join(map(str, there[:20])) + (", ..." if len(there) > 20 else "")
                    hint = did_you_mean(str(name), there)
                    raise ValueError(f"`columns` of `stream` names {name!r}; {file} has the columns {known}.{hint}")

    def __repr__(self) -> str:
        return str(self.path)

    def chunks(self, rows: int) -> Iterator[dict[str, np.ndarray]]:
        """Give the rows in order, so many at a time."""
        from pyarrow import parquet

        waiting: deque[dict[str, np.ndarray]] = deque()
        held = 0
        for path in self.files:
            # Through a small buffer: a scan of the whole data set would hold several files at once.
            file = parquet.ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False)
            for batch in file.iter_batches(rows, columns=self.names, use_threads=False):
                waiting.append({k: self._numbers(k, batch.column(k)) for k in self.names})
                held += batch.num_rows
                while held >= rows:
                    yield self._joined(waiting, rows)
                    held -= rows
        if held:
            yield self._joined(waiting, held)

    def _numbers(self, name: str, values: Any) -> np.ndarray:
        if values.null_count:
            raise ValueError(f"`source` of `stream`: column {name!r} of {self.path} has {values.null_count} empty row(s).")
        array = values.to_numpy(zero_copy_only=False)
        check(array.dtype.kind in "biuf", f"columns[{name!r}]", "stream", "a column of numbers", str(values.type))
        return array

    def _joined(self, waiting: deque[dict[str, np.ndarray]], rows: int) -> dict[str, np.ndarray]:
        """Take as many rows off what waits."""
        parts, need = [], rows
        while need:
            first = waiting.popleft()
            count = len(first[self.names[0]])
            if count > need:
                waiting.appendleft({k: v[need:] for k, v in first.items()})
                first, count = {k: v[:need] for k, v in first.items()}, need
            parts.append(first)
            need -= count
        whole = {k: np.concatenate([p[k] for p in parts]) for k in self.names}
        matrix = lambda names: np.stack([whole[k] for k in names], -1)
        return {k: whole[x] if isinstance(x, str) else matrix(x) for k, x in self.columns.items()}


class Stream(RowStream):
    """Rows in chunks, read ahead in the background; `len` says how many rows there are."""

    def __init__(self, rows: SlicedRows | ParquetRows, rows_per_read: int, ahead: int):
        self.rows, self.ahead = rows, ahead
        self.rows_per_read = min(rows_per_read, rows.size)

    def __len__(self) -> int:
        return self.rows.size

    def __repr__(self) -> str:
        return f"stream({self.rows!r}, {len(self):,} rows)"

    def chunks(self) -> Iterator[Any]:
        """Give the rows in order; at most `ahead` chunks wait while one is used."""
        items = self.rows.chunks(self.rows_per_read)
        with ThreadPoolExecutor(1) as reader:
            waiting = deque(reader.submit(next, items, None) for _ in range(self.ahead))
            while (chunk := waiting.popleft().result()) is not None:
                waiting.append(reader.submit(next, items, None))
                yield chunk

    @cached_property
    def sample(self) -> Any:
        """Random rows, as many as are read at once, by one reading of all; rows that are not finite are refused."""
        index = np.sort(np.random.default_rng(0).choice(len(self), self.rows_per_read, replace=False))
        parts, start = [], 0
        for chunk in self.chunks():
            count = len(jax.tree.leaves(chunk)[0])
            for path, x in jax.tree_util.tree_leaves_with_path(chunk):
                where = f"`data{jax.tree_util.keystr(path)}` of `stream`"
                if x.dtype.kind not in "biuf" or len(x) != count:
                    raise ValueError(f"{where} must be numbers, one row for each; got {x.dtype} of shape {x.shape}.")
                if x.dtype.kind == "f" and not np.isfinite(x).all():
                    row = start + int(np.argmin(np.isfinite(x.reshape(count, -1)).all(1)))
                    raise ValueError(f"{where} must be finite; row {row:,} (from 0) is not. Leave such rows out.")
            mine = index[np.searchsorted(index, start) : np.searchsorted(index, start + count)] - start
            parts.append(jax.tree.map(lambda x, mine=mine: x[mine], chunk))
            start += count
        if start != len(self):
            raise ValueError(f"`source` of `stream` has {len(self):,} rows by its length, and gave {start:,}.")
        return jax.tree.map(lambda *x: np.concatenate(x), *parts)


class StreamedKernels(JaxKernels):
    """Looks at all rows of a stream chunk by chunk, and at minibatches of its sample."""

    cheap = False

    def __init__(self, rows: Stream, *args: Any):
        super().__init__(*args)
        self.rows = rows

    def look(self, points: Any, rows: Any) -> Any:
        if rows is not None:
            return super().look(points, rows)
        found = self._summed(_chunk_gradients, [1] if len(points) == 1 else _POINTS, points)
        return found[:, 0], found[:, 1:]

    def compare(self, new: Any, old: Any, rows: Any) -> Any:
        if rows is not None:
            return super().compare(new, old, rows)
        return tuple(self._summed(_chunk_differences, _POINTS, new, old).T)

    def anchor(self, flat: Any) -> Any:
        found = self._summed(_chunk_anchors, [1], flat, prior=False)
        d = self.dim
        hessian = found[:, d + 1 :].reshape(-1, d, d) if d <= _CURVED else None
        return Anchor(flat, found[:, 0], found[:, 1 : d + 1], hessian)

    def each_total(self, fn: Any, params: Any) -> Any:
        program = self.bind(_chunk_totals, fn)
        total: Any = 0.0
        for rows, _ in self._chunks():
            total = total + self._in_blocks(lambda p, rows=rows: program(p, *rows), _POINTS, params)
        return total

    def _summed(self, fn: Any, sizes: list[int], *points: np.ndarray, prior: bool = True) -> np.ndarray:
        """Sum what a program gives for points over all chunks; the prior comes with the first of them."""
        program = self.bind(fn, self.density)
        total: Any = 0.0
        for rows, first in self._chunks():
            chunk = (*rows, np.float64(prior and first))
            total = total + self._in_blocks(lambda *x, chunk=chunk: program(*x, *chunk), sizes, *points)
        return total

    def _chunks(self) -> Iterator[tuple[Any, bool]]:
        """Give chunks of one size: the last one is filled up with rows of no weight."""
        size = self.rows.rows_per_read
        for i, chunk in enumerate(self.rows.chunks()):
            count = len(jax.tree.leaves(chunk)[0])
            full = jax.tree.map(lambda x: x if len(x) == size else np.resize(x, (size, *x.shape[1:])), chunk)
            with wide():  # put on the device once, however many blocks of points look at it
                rows = jax.device_put(as_arrays((full, (np.arange(size) < count).astype(float))))
            yield rows, i == 0


# ---- programs ----------------------------------------------------------------------------------------------


def _terms(density: Any, inputs: Any, flat: Any, data: Any, weight: Any, share: Any) -> Any:
    """Give the terms of log p that a chunk has, and the prior's share."""
    params, jacobian = density.constrain(inputs, flat)
    likelihood = weight * density.log_likelihood(params, data)
    prior = density.terms(inputs, params, likelihood).prior
    return jnp.append(likelihood, share * sum(jnp.sum(v) + jacobian[k] for k, v in prior.items()))


def _chunk_gradients(density: Any, inputs: Any, points: Any, *chunk: Any) -> Any:
    def one(x: Any) -> Any:
        value, gradient = jax.value_and_grad(lambda y: jnp.sum(_terms(density, inputs, y, *chunk)))(x)
        return jnp.append(value, gradient)

    return jax.vmap(one)(points)


def _chunk_differences(density: Any, inputs: Any, new: Any, old: Any, *chunk: Any) -> Any:
    def one(a: Any, b: Any) -> Any:
        a, b = (_terms(density, inputs, x, *chunk) for x in (a, b))
        return jnp.stack([jnp.sum(a - b), jnp.sum(a), jnp.sum(b)])

    return jax.vmap(one)(new, old)


def _chunk_anchors(density: Any, inputs: Any, points: Any, *chunk: Any) -> Any:
    def one(x: Any) -> Any:
        likelihood = lambda y: jnp.sum(_terms(density, inputs, y, *chunk))
        value, gradient = jax.value_and_grad(likelihood)(x)
        curvature = jnp.ravel(jax.hessian(likelihood)(x)) if len(x) <= _CURVED else jnp.zeros(0)
        return jnp.concatenate([value[None], gradient, curvature])

    return jax.vmap(one)(points)


def _chunk_totals(fn: Any, inputs: Any, params: Any, data: Any, weight: Any) -> Any:
    return jax.vmap(lambda p: jnp.sum(weight * fn(p, data)))(params)
