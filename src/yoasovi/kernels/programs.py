"""Compiled programs in one bounded store, the precision they run in, and the seconds they take to compile.

A program is a function of arrays and of static parts. Programs of equal parts and shapes are reused from fit to fit; the
oldest go first, so that many fits leave no leak. Nothing of the user's is touched: not the global precision, not what JAX
has compiled for others.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from numpyro.distributions import Distribution

from yoasovi.caching import as_the_environment_says

try:
    from jax._src import dtypes as _dtypes  # for `_own_constants`; there is no public way
except ImportError:  # a version of JAX without it has no such cache either
    _dtypes = None  # type: ignore[assignment]

_STORE: OrderedDict[Any, Any] = OrderedDict()
_LOCK = threading.RLock()
_MOST = 256
_UNOPTIMISED = {"xla_backend_optimization_level": 0}
_SHORT = 0.1  # seconds that Ctrl-C may have to wait for a program
_WIDE_ON = ("cpu",)  # where fits run in float64; tests of float32 empty it


class Stages:
    """Seconds by stage, written into a dict; those of a stage inside another count for the inner one alone."""

    def __init__(self, seconds: dict[str, float]):
        self.seconds = seconds
        self._open: list[tuple[str, float]] = []  # names, and when each was last entered or come back to

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the seconds inside under a name."""
        self.settle()
        self._open.append((name, time.perf_counter()))
        try:
            yield
        finally:
            self.settle()
            self._open.pop()
            self._go_on()

    def settle(self) -> None:
        """Write down what has passed so far."""
        if self._open:
            name, begin = self._open[-1]
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - begin
            self._go_on()

    def _go_on(self) -> None:
        if self._open:
            self._open[-1] = self._open[-1][0], time.perf_counter()


class Clock:
    """Seconds of one fit by stage, those spent compiling apart; and who is told what is being compiled.

    `watch` is told the name of a program before it is compiled. `guard` runs what cannot be interrupted, so that Ctrl-C
    gets through: compiling (it is told True), and programs that take long (False).
    """

    def __init__(self, watch: Callable[[str], None] | None = None, guard: Callable[[Callable, bool], Any] | None = None):
        self.begin = time.perf_counter()
        self.compile = 0.0
        self.stages: dict[str, float] = {}
        self._stages = Stages(self.stages)
        self.watch, self.guard = watch, guard
        self.compiled: list[str] = []  # names of programs, in order

    @property
    def total(self) -> float:
        return time.perf_counter() - self.begin

    @property
    def run(self) -> float:
        return self.total - self.compile

    def stage(self, name: str) -> AbstractContextManager[None]:
        """Count the seconds inside under a name."""
        return self._stages.stage(name)

    def so_far(self) -> tuple[float, float, dict[str, float]]:
        """Give the seconds of compiling, of running, and by stage, for `go_on` of a later process."""
        self._stages.settle()
        return self.compile, self.run, dict(self.stages)

    def go_on(self, compile: float, run: float, stages: dict[str, float]) -> None:
        """Add the seconds of an earlier process."""
        self.begin -= compile + run
        self.compile += compile
        for name, seconds in stages.items():
            self.stages[name] = self.stages.get(name, 0.0) + seconds


class Held:
    """Arrays that stay: taken apart and put on the device once, since that can cost more than a look.

    They stand in the order of their names. NumPyro hands out a distribution's arrays in the order of a set, which differs
    from process to process: a program that took them so would be compiled anew where a cache has it already.

    With a `mesh`, rows of the arrays that `shared` names are shared out over its devices, and all else is on each of them.
    """

    def __init__(self, tree: Any, mesh: Mesh | None = None, shared: Callable[[str, Any], bool] = lambda name, x: False):
        self.mesh = mesh
        with wide():
            leaves, self.tree = jax.tree.flatten(as_arrays(tree))
            names = _names(tree)
            order = sorted(range(len(leaves)), key=names.__getitem__)
            self.places = tuple(sorted(range(len(leaves)), key=order.__getitem__))  # of each leaf, among the sorted ones
            # Through views, since JAX may remember the user's own arrays in another precision: see `_own_constants`.
            put = lambda x: x if isinstance(x, jax.Array) else jax.device_put(x.view())
            if mesh is None:
                self.leaves = [put(leaves[i]) for i in order]
            else:
                self.leaves = [_spread(leaves[i], mesh, shared(names[i], leaves[i])) for i in order]


def _spread(x: Any, mesh: Mesh, rows: bool) -> jax.Array:
    """Put an array on all devices of a mesh, or the rows of it on one each; a process reads its own rows only."""
    place = NamedSharding(mesh, PartitionSpec(*mesh.axis_names) if rows else PartitionSpec())
    if jax.numpy.issubdtype(x.dtype, jax.dtypes.prng_key):
        return jax.device_put(x, place)
    return jax.make_array_from_callback(x.shape, place, lambda index: np.asarray(x[index]))


def _names(tree: Any) -> list[str]:
    """Give each leaf a name that is the same in every process."""
    names: list[str] = []
    for path, part in jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda x: isinstance(x, Distribution)):
        inner = [""]
        if isinstance(part, Distribution):
            fields = type(part).gather_pytree_data_fields()
            inner = [f".{k}{x}" for k in fields for x in _names(part.__dict__.get(k))]
            if len(inner) != (count := len(jax.tree.leaves(part))):  # one that takes itself apart in its own way
                inner = [f".{i:04d}" for i in range(count)]
        names += [jax.tree_util.keystr(path) + x for x in inner]
    return names


class Bound:
    """A function bound to its static parts and to arrays that stay; call it with the arrays that change."""

    def __init__(self, fn: Callable, static: tuple, held: Held, clock: Clock, tiny: bool = False):
        self.fn, self.static, self.clock, self.tiny = fn, static, clock, tiny
        self.leaves, self.tree, self.places, self.mesh = held.leaves, held.tree, held.places, held.mesh
        self._known: dict[Any, Any] = {}
        self._short: set[Any] = set()  # shapes with which a call is too short to be interrupted

    def __call__(self, *args: Any) -> Any:
        """Run it, compiled for the shapes of `args`; gives arrays of the device, perhaps not there yet."""
        with wide():
            args = as_arrays(args)
            flat, tree = jax.tree.flatten(args)
            shapes = (tree, tuple((x.shape, x.dtype.char) for x in flat))
            program = self._known.get(shapes)
            if program is None:
                program = self._known[shapes] = self._program(args, shapes)
            if self.clock.guard is not None and shapes not in self._short:
                return self._guarded(self.clock.guard, program, args, shapes)
            answer = program(self.leaves, *args)
            # Two programs whose devices wait for each other must not run at once: on CPUs they can lock each other out.
            return answer if self.mesh is None else jax.block_until_ready(answer)

    def _guarded(self, guard: Callable, program: Any, args: tuple, shapes: tuple) -> Any:
        begin = time.perf_counter()
        answer = guard(lambda: jax.block_until_ready(program(self.leaves, *args)), False)
        if time.perf_counter() - begin < _SHORT:
            self._short.add(shapes)
        return answer

    def _program(self, args: tuple, shapes: tuple) -> Any:
        kept = tuple((x.shape, str(x.dtype)) for x in self.leaves)
        key: tuple = (self.fn, self.static, self.tree, kept, shapes, _x64(), jax.default_backend(), _WIDE_ON, self.tiny)
        key += (self.mesh, self.mesh and tuple(x.sharding for x in self.leaves))
        with _LOCK:  # of threads that ask for the same program one compiles it
            if key not in _STORE:
                fn, static, tree, places = self.fn, self.static, self.tree, self.places

                def compiled(leaves, *args):
                    return fn(*static, jax.tree.unflatten(tree, [leaves[i] for i in places]), *args)

                compiled.__name__ = fn.__name__.strip("_")
                _STORE[key] = self._compile(compiled, (self.leaves, *args))
                while len(_STORE) > _MOST:
                    _STORE.popitem(last=False)
            _STORE.move_to_end(key)
            return _STORE[key]

    def _compile(self, fn: Callable, args: tuple) -> Any:
        clock, begin = self.clock, time.perf_counter()
        as_the_environment_says()
        clock.compiled.append(fn.__name__)
        if clock.watch is not None:
            clock.watch(fn.__name__)

        def work():
            with precision():
                # On a mesh every device, and so every process, gets the whole answer.
                everywhere = {} if self.mesh is None else {"out_shardings": NamedSharding(self.mesh, PartitionSpec())}
                lowered = jax.jit(fn, **everywhere).lower(*args)
                # What handles a few numbers at a time gains nothing by being optimised, and compiles in half the time.
                return lowered.compile(_UNOPTIMISED if self.tiny and jax.default_backend() == "cpu" else None)

        try:
            return work() if clock.guard is None else clock.guard(work, True)
        finally:
            clock.compile += time.perf_counter() - begin


def call(clock: Clock, fn: Callable, static: tuple, staying: Any, *args: Any) -> Any:
    """Run `fn(*static, staying, *args)` once, compiled."""
    return Bound(fn, static, Held(staying), clock)(*args)


def as_arrays(tree: Any) -> Any:
    """Make every number of a tree a plain array of the precision in force, without running anything on a device."""
    kinds = {"f": np.float64, "i": np.int64} if _x64() else {"f": np.float32, "i": np.int32}

    def convert(x):
        if isinstance(x, jax.Array) and (not jax.numpy.issubdtype(x.dtype, np.number) or x.dtype == kinds.get(x.dtype.kind)):
            return x
        x = np.asarray(x)
        return x.astype(kinds[x.dtype.kind], copy=False) if x.dtype.kind in kinds else x

    return jax.tree.map(convert, tree)


def num_programs() -> int:
    """How many compiled programs are held."""
    return len(_STORE)


def _x64() -> bool:
    return bool(jax.config.read("jax_enable_x64"))


@contextmanager
def wide() -> Iterator[None]:
    """float64 inside on CPUs, the user's own setting elsewhere; the global setting is never changed."""
    if _x64() or jax.default_backend() not in _WIDE_ON:
        yield
        return
    with jax.enable_x64(True):
        yield


@contextmanager
def precision() -> Iterator[None]:
    """Trace in the precision of fits."""
    with wide(), _own_constants():
        yield


def difference_step() -> float:
    """Give the step of finite differences, relative to the size of what is moved, in the precision of fits."""
    with wide():
        return float(np.cbrt(np.finfo(as_arrays(0.0).dtype).eps))


_REPLACING = threading.Lock()  # of its own: programs are traced in other threads while theirs is held
_TRACING = threading.local()  # `views`: of each array that is traced by this thread, one that becomes one constant


@contextmanager
def _own_constants() -> Iterator[None]:
    """Keep NumPy constants that are traced here apart from the same ones traced elsewhere in another precision.

    JAX remembers what a NumPy array was converted to for as long as some program that closes over it lives, and does not
    ask in which precision: a density that was compiled in float32 would bring float32 constants into a float64 trace, and
    the fit's float64 ones would break the user's own code afterwards. Here every array is converted through a view of
    its own, so neither meets the other. (Without this JAX's caches would have to be cleared, the user's among them.)
    Other threads, and this one outside of here, do not notice.
    """
    if getattr(_TRACING, "views", None) is not None:
        yield
        return
    _convert_through_views()
    _TRACING.views = {}
    try:
        yield
    finally:
        _TRACING.views = None


def _convert_through_views() -> None:
    """Put a function in the place of JAX's own, once for the process, that converts views where a thread asks for them."""
    with _REPLACING:
        plain = getattr(_dtypes, "canonicalize_value", None)
        if plain is None or getattr(plain, "own_constants", False):
            return

        def through_a_view(x):
            views = getattr(_TRACING, "views", None)
            if views is None or type(x) is not np.ndarray:
                return plain(x)
            return plain(views.setdefault(id(x), (x, x.view()))[1])

        through_a_view.own_constants = True  # type: ignore[attr-defined]
        _dtypes.canonicalize_value = through_a_view
