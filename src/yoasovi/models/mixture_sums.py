"""log sum_k exp(quadratic_k(y_i)), summed over all rows in one pass, with its derivatives.

Differentiated as it is written, a mixture of K in p dimensions makes and keeps arrays of N x K x p numbers. All that its
derivatives need are sums over the rows: with r_ik the probability of component k given y_i, those of r_ik, of r_ik (y_i -
mu_k) and, where covariances are learned, of r_ik (y_i - mu_k)(y_i - mu_k)'. They are taken together with the value, a
block of rows at a time: nothing as long as the data is made.
"""

from __future__ import annotations

from functools import partial, reduce
from itertools import combinations_with_replacement
from operator import add, mul
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from yoasovi.model.sums import by_blocks, counting, wide_sum

_WRITTEN_OUT = 64  # products in the quadratic of one component, up to which they are written one by one
_MANY_ROWS = 2**18  # from which sums are taken by tiles, on a GPU
_UNROLLED = 48  # products in a row of all components, up to which all are written out
_LOG2_E, _LOG_2 = 1.4426950408889634, 0.6931471805599453


class Quadratics(NamedTuple):
    """quadratic_k(y) = height_k - |factor_k (y - centre_k)|^2 / 2, at S points."""

    height: Any  # (S, K)
    centre: Any  # (S, K, p)
    factor: Any  # (S, K, p, p), lower triangular


class RowSums(NamedTuple):
    """Sums over rows, S leading; None where they were not asked for."""

    value: Any  # (S, 2), the second what rounding left of the first
    count: Any = None  # (S, K) of r
    first: Any = None  # (S, K, p) of r (y - centre)
    second: Any = None  # (S, K, p, p) of r (y - centre)(y - centre)'


class Tiling(NamedTuple):
    """How a GPU goes through the rows."""

    together: int  # rows whose logarithm is taken together: a sum of logarithms is that of a product
    rows: int  # of a tile
    programs: int  # that share the tiles
    warps: int


# Measured at 10^8 rows; the value alone leaves room for more rows at a time than its derivatives do.
_VALUE, _DERIVATIVES = Tiling(8, 512, 3168, 8), Tiling(4, 128, 2112, 4)


class Form(NamedTuple):
    """What is static: whether factors are diagonal, and whether anything depends on them."""

    diagonal: bool
    learned: bool

    def entries(self, p: int) -> list[tuple[int, int]]:
        """Give the places where factors are not zero."""
        return [(i, j) for i in range(p) for j in range(i + 1) if i == j or not self.diagonal]


def can_sum(form: Form, p: int) -> bool:
    """Say whether quadratics are small enough to be written out."""
    return len(form.entries(p)) <= _WRITTEN_OUT


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def log_sums(form: Form, q: Quadratics, y: jax.Array) -> jax.Array:
    """Give sum_i log sum_k exp(quadratic_k(y_i)) at every point: (S, 2), the second what rounding left of the first."""
    return _row_sums(form, 0, q, y).value


def _log_sums_fwd(form: Any, q: Any, y: Any) -> Any:
    sums = _row_sums(form, 1 + form.learned, q, y)
    return sums.value, (q, sums)


def _log_sums_bwd(form: Any, kept: Any, slope: Any) -> Any:
    q, sums = kept
    slope = slope[:, 0]
    turned = jnp.swapaxes(q.factor, -1, -2)
    centre = (turned @ (q.factor @ sums.first[..., None]))[..., 0]
    factor = jnp.zeros_like(q.factor) if sums.second is None else -q.factor @ sums.second
    rows = lambda x: slope.reshape(-1, *[1] * (x.ndim - 1)) * x
    return Quadratics(rows(sums.count), rows(centre), rows(factor)), None


log_sums.defvjp(_log_sums_fwd, _log_sums_bwd)


def _row_sums(form: Form, order: int, q: Quadratics, y: jax.Array) -> RowSums:
    """Take the sums: of the value (order 0), with the first (1) and the second (2) ones."""
    k, p = q.centre.shape[1:]
    small = k * (p + len(form.entries(p))) <= _UNROLLED and y.size < 2**31
    if jax.default_backend() == "gpu" and y.dtype == jnp.float32 and len(y) >= _MANY_ROWS and small:
        parts = _by_tiles(form, order, q, y)
    else:
        parts = jax.vmap(lambda q: by_blocks(partial(_block, form, order, q), y, len(y)))(q)
    value = wide_sum(parts[0], tuple(range(1, parts[0].ndim)))
    if order == 0:
        return RowSums(value)
    count, first, second = ([wide_sum(x, 1)[..., 0] for x in part] for part in parts[1:])
    whole = None
    if order == 2:
        at = {pair: i for i, pair in enumerate(_pairs(p))}
        whole = jnp.stack([jnp.stack([second[at[min(i, j), max(i, j)]] for j in range(p)], -1) for i in range(p)], -2)
    return RowSums(value, count[0], jnp.stack(first, -1), whole)


def _pairs(p: int) -> list[tuple[int, int]]:
    return list(combinations_with_replacement(range(p), 2))


def _quadratics(form: Form, height: Any, factor: Any, off: list[Any]) -> Any:
    """Give height - |factor off|^2 / 2, written out; `factor` is asked for its entries."""
    entries = form.entries(len(off))
    white = [reduce(add, [factor(i, j) * off[j] for a, j in entries if a == i]) for i in range(len(off))]
    return height - 0.5 * reduce(add, [x * x for x in white])


# ---- by XLA: blocks of rows, one after the other ---------------------------------------------------------------------


def _block(form: Form, order: int, q: Quadratics, rows: jax.Array, counted: Any) -> tuple[Any, ...]:
    """Give the sums of a block at one point: the value (2,), and lists of arrays (K,)."""
    planes, p = rows.T, rows.shape[1]
    off = [planes[j] - q.centre[:, j, None] for j in range(p)]  # (K, rows)
    each = _quadratics(form, q.height[:, None], lambda i, j: q.factor[:, i, j, None], off)
    most = jnp.max(each, 0)
    shares = jnp.exp(each - most)
    total = jnp.sum(shares, 0)
    value = wide_sum(counting(counted, most + jnp.log(total)))
    if order == 0:
        return (value,)
    shares = shares * counting(counted, 1.0 / total)
    near = [shares * x for x in off]
    second = [jnp.sum(near[i] * off[j], 1) for i, j in _pairs(p)] if order == 2 else []
    return value, [jnp.sum(shares, 1)], [jnp.sum(x, 1) for x in near], second


# ---- on a GPU: every number of a row in registers ---------------------------------------------------------------------


def _largest(quadratics: list[Any], power: Any) -> tuple[Any, list[Any], Any]:
    """Give the largest, the shares of all beside it, and their sum."""
    most = reduce(jnp.maximum, quadratics)
    shares = [power(x - most) for x in quadratics]
    return most, shares, reduce(add, shares)


def _by_tiles(form: Form, order: int, q: Quadratics, y: jax.Array) -> tuple[Any, ...]:
    """Give the sums of every program: values (S, programs, 2, tile), and lists of arrays (S, programs, K).

    XLA would keep arrays of N x K numbers between the value and its derivatives; Triton, by way of Pallas, need not, and
    takes powers of two, which are what the device has.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    (points, k, p), n, tiling = q.centre.shape, len(y), _DERIVATIVES if order else _VALUE
    at_once = tiling.rows * tiling.together
    programs = max(1, min(tiling.programs // points, -(-n // at_once)))
    factors = [_LOG2_E**0.5 * q.factor[:, :, i, j] for i, j in form.entries(p)]
    numbers = jnp.stack([_LOG2_E * q.height, *(q.centre[..., j] for j in range(p)), *factors], -1).reshape(points, -1)
    each = (0, 1 + p, 1 + p + len(_pairs(p)))[order]
    shapes = [(points, programs, 2, tiling.rows), *([(points, programs, k * each)] if order else [])]
    value, *rest = pl.pallas_call(
        partial(_tiles, form, order, tiling, n, k, p, -(-n // (programs * at_once))), grid=(points, programs),
        out_shape=[jax.ShapeDtypeStruct(shape, y.dtype) for shape in shapes],
        compiler_params=triton.CompilerParams(num_warps=tiling.warps, num_stages=2),
        interpret=jax.default_backend() == "cpu",
    )(y, numbers)  # fmt: skip
    if not order:
        return (value,)
    sums = rest[0].reshape(points, programs, k, each)
    cut = lambda begin, end: [sums[..., i] for i in range(begin, end)]
    return value, cut(0, 1), cut(1, 1 + p), cut(1 + p, each)


def _tiles(
    form: Any, order: Any, tiling: Any, n: Any, k: Any, p: Any, rounds: Any, y: Any, numbers: Any, value_out: Any,
    *sums_out: Any,
) -> Any:  # fmt: skip
    from jax.experimental import pallas as pl

    point, program, programs = pl.program_id(0), pl.program_id(1), pl.num_programs(1)
    entries = form.entries(p)
    each = 1 + p + len(entries)
    number = lambda a, i: numbers[point, a * each + i]
    height = [number(a, 0) for a in range(k)]
    centre = [[number(a, 1 + j) for j in range(p)] for a in range(k)]
    factor = [{entry: number(a, 1 + p + i) for i, entry in enumerate(entries)} for a in range(k)]
    place = lax.broadcasted_iota(jnp.int32, (tiling.rows,), 0)

    def seen(first: Any, last: bool) -> Any:
        start = jnp.minimum(first, n - tiling.rows) if last else first  # a tile goes back to be full: no row counts twice
        planes = [y[pl.ds(start, tiling.rows), j] for j in range(p)]
        off = [[planes[j] - centre[a][j] for j in range(p)] for a in range(k)]
        quadratics = [_quadratics(form, height[a], lambda i, j, a=a: factor[a][i, j], off[a]) for a in range(k)]
        return off, *_largest(quadratics, jnp.exp2), start + place >= first if last else None

    def body(last: bool, turn: Any, sums: Any) -> Any:
        value, lost, *new = sums
        mosts, totals = [], []
        for i in range(tiling.together):
            place_of_tile = (turn * tiling.together + i) * programs + program
            off, most, shares, total, counted = seen(place_of_tile * tiling.rows, last)
            mosts.append(counting(counted, most))
            totals.append(total if counted is None else jnp.where(counted, total, 1.0))
            if not order:
                continue
            inverse, here = counting(counted, 1.0 / total), []
            for a in range(k):
                share = shares[a] * inverse
                near = [share * x for x in off[a]]
                here += [share, *near, *([near[i] * off[a][j] for i, j in _pairs(p)] if order == 2 else [])]
            new = [x + z for x, z in zip(new, here, strict=True)]
        more = _LOG_2 * (reduce(add, mosts) + jnp.log2(reduce(mul, totals)))
        whole = value + more
        taken = whole - value
        return (whole, lost + ((value - (whole - taken)) + (more - taken)), *new)  # what rounding left, kept (Knuth)

    count = sums_out[0].shape[-1] if order else 0
    begin = tuple(jnp.zeros(tiling.rows, y.dtype) for _ in range(2 + count))
    full = n // (programs * tiling.together * tiling.rows)  # rounds in which all tiles are
    begin = lax.fori_loop(0, full, partial(body, False), begin)
    value, lost, *sums = lax.fori_loop(full, rounds, partial(body, True), begin)
    value_out[point, program, 0, :], value_out[point, program, 1, :] = value, lost
    for i, x in enumerate(sums):
        sums_out[0][point, program, i] = jnp.sum(x)
