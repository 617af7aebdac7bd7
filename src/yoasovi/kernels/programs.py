"""Compiled programs, kept in a bounded store, with the seconds spent compiling told apart from those spent running."""

from __future__ import annotations

import gc
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
_WIDE_ON = ("cpu",)  # where fits run in float64; tests of float32 empty it


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

    def go_on(self, compile: float, run: float) -> None:
        """Add the seconds of an earlier process."""
        self.begin -= compile + run
        self.compile += compile


def call(clock: Clock, fn: Callable, static: tuple, *args):
    """Run `fn(*static, *args)` compiled for these static parts and the shapes of `args`."""
    program, args = prepare(clock, fn, static, *args)
    return program(*args)


def prepare(clock: Clock, fn: Callable, static: tuple, *args) -> tuple[Callable, tuple]:
    """Give the compiled program of `call`, and the arrays to call it with."""
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
    return _STORE[key], args


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
    if _MIXED.entered and not _MIXED.compiled:
        _forget()
        _MIXED.compiled = True
    return jax.jit(fn).lower(*args).compile()


class _Mixed:
    """Whether a fit runs in another precision than the user's own, and whether it has compiled anything yet."""

    entered = False
    compiled = False


_MIXED = _Mixed()


def _forget() -> None:
    """Drop what JAX remembers of functions traced so far.

    JAX keeps the converted NumPy constants of a traced function, and would meet the float32 ones in a float64 trace of the
    same function, or the other way round in the user's own code after the fit. Compiled programs in `_STORE` stay.
    """
    jax.clear_caches()
    gc.collect()


def _x64() -> bool:
    return bool(jax.config.read("jax_enable_x64"))


def num_programs() -> int:
    """How many compiled programs are held."""
    return len(_STORE)


FAULTS: dict[Any, Exception] = {}  # errors of functions called on the host, by function, until they can be raised


def raise_faults() -> None:
    """Raise what a function called on the host raised.

    An error that passed through a compiled program would come out as JAX's own. So the function keeps it here, is not called
    again, and the program goes on with NaN until the host looks.
    """
    if FAULTS:
        raise FAULTS.popitem()[1]


@contextmanager
def precision():
    """float64 inside a fit on CPUs, the user's own setting elsewhere; the global setting is never changed."""
    with _wide():
        yield
    raise_faults()


@contextmanager
def _wide():
    if jax.default_backend() not in _WIDE_ON or _x64():
        yield
        return
    _MIXED.entered, _MIXED.compiled = True, False
    try:
        with jax.enable_x64(True):
            yield
    finally:
        if _MIXED.compiled:
            _forget()
        _MIXED.entered = False
