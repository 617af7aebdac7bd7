"""Compiled programs, kept in a bounded store, with the seconds spent compiling told apart from those spent running."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

# Programs of the same parts and shapes are reused from fit to fit; the oldest go first, so many fits leave no leak.
_STORE: OrderedDict[Any, Any] = OrderedDict()
_MOST = 256
_COMPILED = [0]  # programs ever compiled


class Clock:
    """Seconds of one fit, apart: compiling and everything else."""

    def __init__(self):
        self.begin = time.perf_counter()
        self.compile = 0.0

    @property
    def total(self) -> float:
        return time.perf_counter() - self.begin

    @property
    def run(self) -> float:
        return self.total - self.compile


def call(clock: Clock, fn: Callable, static: tuple, *args):
    """Run `fn(*static, *args)` compiled for these static parts and the shapes of `args`."""
    args = as_arrays(args)
    leaves, tree = jax.tree.flatten(args)
    shapes = tuple((x.shape, str(x.dtype)) for x in leaves)
    key = (fn, static, tree, shapes, _x64(), jax.default_backend())
    if key not in _STORE:
        begin = time.perf_counter()
        _STORE[key] = _compile(lambda *a: fn(*static, *a), args)
        clock.compile += time.perf_counter() - begin
        while len(_STORE) > _MOST:
            _STORE.popitem(last=False)
    _STORE.move_to_end(key)
    return _STORE[key](*args)


def as_arrays(tree):
    """Make every number of a tree a plain array of the precision in force, without running anything on a device."""
    wide = _x64()
    kinds = {"f": np.float64 if wide else np.float32, "i": np.int64 if wide else np.int32}

    def convert(x):
        if isinstance(x, jax.Array) and (not jax.numpy.issubdtype(x.dtype, np.number) or x.dtype == kinds.get(x.dtype.kind)):
            return x
        x = np.asarray(x)
        return x.astype(kinds[x.dtype.kind], copy=False) if x.dtype.kind in kinds else x

    return jax.tree.map(convert, tree)


def _compile(fn: Callable, args: tuple):
    _COMPILED[0] += 1
    try:
        return jax.jit(fn).lower(*args).compile()
    except (TypeError, ValueError):
        # JAX remembers what it traced in one precision when it traces the same function in the other, and then
        # trips over its own types. Forget, and try once more: a real error comes back.
        pass
    jax.clear_caches()  # outside the handler: the exception itself would keep those memories alive
    return jax.jit(fn).lower(*args).compile()


def _x64() -> bool:
    return bool(jax.config.read("jax_enable_x64"))


def num_programs() -> int:
    """How many compiled programs are held."""
    return len(_STORE)


@contextmanager
def precision():
    """float64 inside a fit on CPUs, the user's own setting elsewhere; the global setting is never changed."""
    if jax.default_backend() != "cpu" or _x64():
        yield
        return
    before = _COMPILED[0]
    try:
        with jax.enable_x64(True):
            yield
    finally:
        if _COMPILED[0] > before:
            # What JAX remembers of a function's NumPy constants would break the user's own float32 use of it.
            jax.clear_caches()
