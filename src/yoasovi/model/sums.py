"""Sums over many rows that stay right in single precision.

A sum of 10^8 terms in float32 is off in its sixth digit, and log p of so many rows is a number whose neighbours in float32
are 32 nats away. So terms are added up in float64 even where all else is float32 (it is one addition for each row), and
the sum travels as two numbers: itself, rounded, and what rounding left. The difference of two such sums is as right as the
sum of the differences, term by term.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

_ROWS = {"cpu": 4096}  # of a block at most: as many as stay in a core's cache; elsewhere all of them


class SummedRows(ABC):
    """A likelihood that knows how to be summed over all rows, without an array as long as the data for every point."""

    @abstractmethod
    def totals(self, params: dict[str, Any], data: Any) -> jax.Array | None:
        """Give the sum at S points, (S, 2), the second what rounding left of the first; None where it does not know how."""


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def wide_sum(x: jax.Array, axis: int | tuple[int, ...] | None = None) -> jax.Array:
    """Sum in float64, whatever the precision of `x` and of the user; give (..., 2) numbers of `x`'s own precision."""
    if x.dtype == jnp.float64:
        return _with_rest(jnp.sum(x, axis))
    with jax.enable_x64(True):
        whole = jnp.sum(lax.convert_element_type(x, jnp.float64), axis)
        # Said so that XLA does it: to float32 and back is nothing, by its rules, and the rest would be zero.
        rounded = lax.reduce_precision(whole, exponent_bits=8, mantissa_bits=23)
        pair = [lax.convert_element_type(part, x.dtype) for part in (rounded, whole - rounded)]
    return jnp.stack([pair[0], jnp.where(jnp.isfinite(pair[1]), pair[1], 0.0)], -1)


@wide_sum.defjvp
def _wide_sum_jvp(axis: Any, primals: Any, tangents: Any) -> Any:
    return wide_sum(*primals, axis), _with_rest(jnp.sum(tangents[0], axis))


def _with_rest(whole: jax.Array) -> jax.Array:
    return jnp.stack([whole, jnp.zeros_like(whole)], -1)


def wide_total(tree: Any) -> jax.Array:
    """Sum all entries of all arrays: two numbers, the second what rounding left of the first."""
    return wide_sum(jnp.concatenate([wide_sum(x).astype(float) for x in jax.tree.leaves(tree)]))


def by_blocks(fn: Callable[[Any, Any], Any], rows: Any, count: int) -> Any:
    """Give `fn(block of rows, which of them count)` for all blocks of `count` rows, one after the other, stacked.

    Which count is None where all do; see `counting`.
    """
    blocks = -(-count // _ROWS.get(jax.default_backend(), count))
    size = -(-count // blocks)
    if blocks == 1:
        return jax.tree.map(lambda x: x[None], fn(rows, None))

    def one(first: Any) -> Any:
        start = jnp.minimum(first, count - size)  # the last block goes back to be full: no row counts twice
        block = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, size), rows)
        return fn(block, start + jnp.arange(size) >= first)

    return lax.map(one, jnp.arange(0, count, size))


def counting(counted: Any, x: jax.Array) -> jax.Array:
    """Give `x` with zeros for the rows that do not count; rows are last."""
    return x if counted is None else jnp.where(counted, x, 0.0)
