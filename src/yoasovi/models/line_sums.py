"""What rows of a regression say, summed up at many points in one pass over the data, on a GPU.

XLA writes the N x S predictors a + x_i b_s to memory, reads them back for the terms, and does the same with their slopes: at
32 points that is a hundred bytes for each one of data. Here a tile of rows is read once; its product with all points, the
terms, their slopes and the sums over rows stay on the chip. A column of ones in X goes with the intercepts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from yoasovi.model import Params
from yoasovi.model.sums import wide_sum

_MANY_ROWS, _COLUMNS, _POINTS = 2**18, 40, 64  # from which, and up to which, tiles were measured to be worth it
_LEAST = 16  # columns and points of a product of matrices
# Rows of a tile, programs that share them, and two of Triton's settings: measured at 10^7 rows of 20 columns, 32 points.
_TILE, _PROGRAMS, _WARPS, _STAGES = 64, 1056, 4, 3

Terms = Callable[[jax.Array, Params, Any], jax.Array]


def tiled(X: jax.Array, points: int) -> bool:
    """Say whether sums are better taken by tiles."""
    here = jax.default_backend() == "gpu" and X.dtype == jnp.float32
    return here and len(X) >= _MANY_ROWS and X.size < 2**31 and X.shape[1] <= _COLUMNS and 1 < points <= _POINTS


def by_tiles(
    terms: Terms, slopes: bool, X: jax.Array, b: jax.Array, a: jax.Array, rest: Params, rows: dict[str, jax.Array]
) -> tuple[jax.Array, Any]:
    """Sum terms(a + x_i b, rest, rows) up over all rows at S points: (S, 2), and slopes by b (S, p), a and `rest` (S,).

    `rows` are (N,) each. Without `slopes` they are None.
    """
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    (n, p), points = X.shape, len(b)
    columns, width = (max(_LEAST, pl.next_power_of_2(x)) for x in (p + 1, points))
    line = jnp.pad(jnp.concatenate([b, a[:, None]], 1).T, ((0, columns - p - 1), (0, width - points)))
    given = {k: jnp.pad(v, (0, width - points), mode="edge")[None] for k, v in rest.items()}
    programs = min(_PROGRAMS, -(-n // _TILE))
    shapes: dict[str, tuple[int, ...]] = {"value": (_TILE, width), "lost": (_TILE, width)}
    if slopes:
        shapes |= {"line": line.shape, **{f"by {k}": v.shape for k, v in given.items()}}
    found = pl.pallas_call(
        partial(_program, terms, slopes, n, p, programs), grid=(programs,),
        out_shape={k: jax.ShapeDtypeStruct((programs, *v), X.dtype) for k, v in shapes.items()},
        compiler_params=triton.CompilerParams(num_warps=_WARPS, num_stages=_STAGES),
        interpret=jax.default_backend() == "cpu",
    )(X, line, given, rows)  # fmt: skip
    value = wide_sum(jnp.concatenate([found["value"], found["lost"]], 1), (0, 1))[:points]
    if not slopes:
        return value, None
    by_line = jnp.sum(found["line"], 0).T[:points]
    return value, (by_line[:, :p], by_line[:, p], {k: jnp.sum(found[f"by {k}"], (0, 1))[:points] for k in rest})


def _program(
    terms: Terms, slopes: bool, n: int, p: int, programs: int, X: Any, line: Any, given: Any, rows: Any, out: Any
) -> None:
    """Go through every so-manyeth tile."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    size, program = _TILE, pl.program_id(0)
    # As right as one product in float32, and on units that are made for products; interpreted, there are none.
    full = "highest" if jax.default_backend() == "cpu" else lax.DotAlgorithmPreset.TF32_TF32_F32_X3
    line, given = line[...], {k: v[...] for k, v in given.items()}
    column = lax.broadcasted_iota(jnp.int32, (size, len(line)), 1)
    place = lax.broadcasted_iota(jnp.int32, (size, 1), 0)

    def body(last: bool, turn: Any, sums: Any) -> Any:
        first = (turn * programs + program) * size
        start = jnp.minimum(first, n - size) if last else first  # a tile goes back to be full: no row counts twice
        here = pl.ds(start, size)
        x = triton.load(X.at[here, pl.ds(0, len(line))], mask=column < p, other=0.0)
        x = jnp.where(column == p, 1.0, x)
        data = {k: v[here][:, None] for k, v in rows.items()}
        counted = (lambda x: jnp.where(start + place >= first, x, 0.0)) if last else lambda x: x
        each = lambda eta, given: counted(terms(eta, given, data))
        eta = lax.dot(x, line, precision=full)
        if slopes:
            more, back = jax.vjp(each, eta, given)
            by_eta, by_given = back(jnp.ones_like(more))
            by_line = lax.dot_general(x, by_eta, (((0,), (0,)), ((), ())), precision=full)
            new = {"line": by_line, **{f"by {k}": v for k, v in by_given.items()}}
        else:
            more, new = each(eta, given), {}
        value = sums["value"]
        whole = value + more
        taken = whole - value
        lost = sums["lost"] + ((value - (whole - taken)) + (more - taken))  # what rounding left, kept (Knuth)
        return {"value": whole, "lost": lost, **{k: sums[k] + v for k, v in new.items()}}

    each_round = size * programs
    sums = {k: jnp.zeros(v.shape[1:], v.dtype) for k, v in out.items()}
    sums = lax.fori_loop(0, n // each_round, partial(body, False), sums)
    sums = lax.fori_loop(n // each_round, -(-n // each_round), partial(body, True), sums)
    for k, v in sums.items():
        out[k][program] = v
