"""Minibatches: rows named by a key, and the anchor that takes most of their noise off."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from yoasovi.errors import check, positive_integer
from yoasovi.kernels.programs import as_arrays, precision

_BATCHES, _PER_PARAMETER = 16, 200  # rows that tell the curvature of all of them to a few percent

_STREAMED = 1000  # rows in a minibatch of data that are not in memory


class Anchor(NamedTuple):
    """A place where the likelihood is known on all the data, with its gradient."""

    flat: Any  # (d,), unconstrained
    value: Any
    gradient: Any  # (d,)
    hessian: Any = None  # (d, d); where it is None, the tangent has to do


class Batch(NamedTuple):
    """A minibatch: the key that names its rows, and the anchor its noise is taken off at, if there is one."""

    key: jax.Array
    anchor: Anchor | None = None


def estimated(rows: Callable[..., Any], flat: jax.Array, anchor: Anchor | None) -> jax.Array:
    """Estimate the likelihood from a minibatch: terms whose sum is right on average.

    The tangent at the anchor, or the parabola, is known on all the data. What the minibatch says of it is pure noise, and
    taken off.
    """
    if anchor is None:
        return rows(flat)
    away = flat - anchor.flat
    tangent = lambda x: jax.jvp(rows, (x,), (away,))
    # Apart from each other: their sum would carry the rounding of a large value.
    known = jnp.stack([anchor.value, anchor.gradient @ away])
    if anchor.hessian is None:
        there, slope = tangent(anchor.flat)
        return jnp.concatenate([rows(flat) - there - slope, known])
    (there, slope), (_, bend) = jax.jvp(tangent, (anchor.flat,), (away,))
    bent = 0.5 * away @ anchor.hessian @ away
    return jnp.concatenate([rows(flat) - there - slope - 0.5 * bend, known, bent[None]])


class RowStream(ABC):
    """Data of which a sample of rows is in memory; `scale.stream` reads all of them."""

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def sample(self) -> Any:
        """Random rows."""


def random_rows(key: jax.Array, size: int, count: int, salt: int = 0) -> jax.Array:
    """Give `count` of `size` rows: one from each of as many equal stretches of them, cut at a random place.

    Every row is as likely as any other, sums are as noisy as with rows drawn without replacement (less where neighbours are
    alike), and nothing is as long as the data. Keys are random already, so that a plain hash of them will do: JAX's own
    random numbers take seconds to compile in programs that look at many batches.
    """
    first, second = jax.random.key_data(key).astype(jnp.uint32)
    cut = _hashed(second ^ _hashed(first + jnp.uint32(salt)))
    edges = jnp.asarray(np.arange(count + 1) * size // count)
    inside = _hashed(cut + jnp.arange(1, count + 1, dtype=jnp.uint32)) % jnp.diff(edges).astype(jnp.uint32)
    return (edges[:-1] + inside.astype(int) + (cut % jnp.uint32(size)).astype(int)) % size


def _hashed(x: jax.Array) -> jax.Array:
    """Mix the bits of 32-bit words (the constants of Wellons' lowbias32)."""
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        x = (x ^ (x >> shift)) * jnp.uint32(factor)
    return x ^ (x >> 16)


@dataclass(frozen=True)
class RowBatches:
    """Terms of random rows of the data, scaled to all of them."""

    log_likelihood: Callable[..., Any]
    count: int  # rows in a batch
    size: int  # rows to choose from
    total: int  # rows that terms are scaled to

    def __call__(self, key: jax.Array, params: Any, data: Any) -> jax.Array:
        """Give the scaled terms of the rows that a key names."""
        some = self.rows(data, random_rows(key, self.size, self.count))
        return self.total / self.count * self.log_likelihood(params, some)

    def rows(self, data: Any, index: Any) -> Any:
        """Give rows of all arrays that have one per observation."""
        return jax.tree.map(lambda x: x[index] if jnp.ndim(x) and len(x) == self.size else x, data)


@dataclass(frozen=True)
class Scaled:
    """A likelihood of some rows, scaled to all of them."""

    log_likelihood: Callable[..., Any]
    factor: float

    def __call__(self, params: Any, data: Any) -> jax.Array:
        """Give the scaled terms."""
        return self.factor * self.log_likelihood(params, data)


def small_part(model: Any) -> Any:
    """Give a model of a few batches of rows, in whose place all of them can be climbed; None where they are not so few."""
    batches = model.subsampled
    if not isinstance(batches, RowBatches):
        return None
    count = max(_BATCHES * batches.count, _PER_PARAMETER * model.density.dim)
    if model.stream is not None:
        count = batches.size
    elif count * _BATCHES > batches.size:
        return None
    index = np.sort(np.random.default_rng(0).choice(batches.size, count, replace=False))
    some = batches.rows(model.data, index)
    scaled = Scaled(batches.log_likelihood, batches.total / count)
    return replace(model, subsampled=None, stream=None, data=some, log_likelihood=scaled)


def in_batches(model: Any, count: Any) -> Any:
    """Give the model with `count` rows of its data in a minibatch; itself where those are all of them, or None.

    Data that are not in memory are always looked at in minibatches.
    """
    if count is None:
        if model.stream is None:
            return model
        count = min(_STREAMED, model.density.num_observations)
    positive_integer("batch_size", "fit", count)
    size, total = model.density.num_observations, model.num_observations
    refuse = lambda why: ValueError(f"`batch_size` of `fit` must be None for this model: {why}.")
    if model.subsampled is not None:
        raise refuse("it takes minibatches of its own")
    if model.laws:
        raise refuse("it has a latent variable per observation")
    if model.stream is not None:
        rule = f"at most `rows_per_read` of `stream`, {size:,}"
        check(count <= size, "batch_size", "fit", rule, count)
    if count > size > 1:
        raise ValueError(f"`batch_size` of `fit` must be at most the number of observations, {size:,}; got {count:,}.")
    batches = RowBatches(model.log_likelihood, int(count), size, total)
    if model.on_host or not _by_rows(model, batches):
        raise refuse("its likelihood is not one value per row of `data`, from that row alone; a NumPyro model can say what "
                     "may be left out, by numpyro.plate(..., subsample_size=)")  # fmt: skip
    return model if count == total else replace(model, subsampled=batches)


def _by_rows(model: Any, batches: RowBatches) -> bool:
    """Say whether rows of the data give as many terms of the likelihood, and the same among fewer other rows."""
    count = min(200, batches.size)
    index = np.sort(np.random.default_rng(0).choice(batches.size, count, replace=False))
    # Every other row: a likelihood of neighbours would pass if they were there.
    some, fewer = (batches.rows(model.data, rows) for rows in (index, index[1::2]))
    if all(np.shape(a) == np.shape(b) for a, b in zip(*map(jax.tree.leaves, (fewer, model.data)), strict=True)):
        return False

    def terms(*both: Any) -> Any:
        params = model.density.constrain(inputs, jnp.linspace(-0.4, 0.6, model.density.dim))[0]
        return [model.log_likelihood(params, x) for x in both]

    with precision():
        inputs = as_arrays(model.inputs if model.centred else model.inputs._replace(data=None))
        try:
            found = jax.jit(terms)(*as_arrays((some, fewer)))
        except Exception:  # whatever a function that needs all rows raises
            return False
    more, less = map(np.asarray, found)
    near = 1e-6 if more.dtype == np.float64 else 1e-3
    whole = more.shape == (count,) and less.shape == (count // 2,)
    return whole and np.allclose(more[1::2], less, near, near, equal_nan=True)
