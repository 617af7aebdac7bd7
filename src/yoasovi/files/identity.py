"""What a fit is a fit of, in a form that can be written down and compared later: model, data, method, seed, versions."""

from __future__ import annotations

import dis
import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

import jax
import numpy as np
from numpyro.distributions import Distribution

from yoasovi.kernels.programs import as_arrays
from yoasovi.model import HostDensity, Model

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def of_model(model: Model) -> dict[str, str]:
    """Describe a model: its sites, the program of its likelihood, its priors and its data, each by a digest.

    The program is what JAX makes of the functions (the equations of their jaxpr and its constants), so that neither a
    comment nor another name changes it. A function called on the host is known by its byte code and what it has at hand.
    """
    density, inputs = model.density, as_arrays(model.inputs)
    out = {"sites": "; ".join(f"{s.name} {s.shape}" for s in (*density.sites, *density.local_sites))}
    if model.centred:
        out["non-centred sites"] = ", ".join(f"{k} {x}" for k, x in model.centred.items())
    out["likelihood"] = _digest(*_program(model, inputs))
    for name, law in {**inputs.prior, **inputs.local}.items():
        if isinstance(law, Distribution):
            out[f"prior of {name}"] = f"{type(law).__name__} {_digest(*_fields(law))}"
    if model.stream is not None:
        out["streamed rows"] = f"{len(model.stream):,}"
    for path, leaf in jax.tree_util.tree_leaves_with_path(inputs.data):
        array = np.asarray(leaf)
        out[f"data{jax.tree_util.keystr(path)}"] = f"{array.dtype} {array.shape} {_digest(array)}"
    return out


def of_fit(model: Model, method: Any, family: Any, seed: int, restarts: int, max_nonfinite: int) -> dict[str, str]:
    """Describe all that decides the bits of a fit."""
    from yoasovi import __version__

    wide = bool(jax.config.read("jax_enable_x64"))
    return {
        "yoasovi version": __version__, "JAX version": jax.__version__, "backend": jax.default_backend(),
        "precision": "float64" if wide else "float32", "method": plain(method), "family": plain(family),
        "seed": str(seed), "restarts": str(restarts), "max_nonfinite": str(max_nonfinite), **of_model(model),
    }  # fmt: skip


def differences(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Name what differs between two descriptions, with both values where they can be read."""
    out = []
    for key in dict.fromkeys([*then, *now]):
        old, new = then.get(key), now.get(key)
        if old == new:
            continue
        if old is None or new is None:
            out.append(f"{key} is {'not there any more' if new is None else 'new'}")
        elif key == "likelihood" or key.startswith(("prior", "data")):
            shapes = [" ".join(x.split(" ")[:-1]) for x in (old, new)]
            out.append(f"{key} differs" + (f" ({shapes[0]} then, {shapes[1]} now)" if shapes[0] != shapes[1] else ""))
        else:
            out.append(f"{key} was {_short(old, new)} and is {_short(new, old)}")
    return out


def _short(text: str, other: str) -> str:
    """Cut a long text to the neighbourhood of its first difference from another."""
    if len(text) <= 80:
        return text
    same = next((i for i, (a, b) in enumerate(zip(text, other, strict=False)) if a != b), min(len(text), len(other)))
    begin = max(0, same - 30)
    return ("..." if begin else "") + text[begin : begin + 70] + "..."


def plain(thing: Any) -> str:
    """Write what a thing looks like, without its address."""
    return _ADDRESS.sub("", repr(thing))


def _program(model: Model, inputs: Any) -> Iterator[Any]:
    if isinstance(model.log_likelihood, HostDensity):
        yield from _host_function(model.log_likelihood.fn, set())
        return
    density = model.density
    point = {s.name: np.zeros(s.shape, int if s.discrete else float) for s in (*density.sites, *density.local_sites)}
    rules = {k: law for k, law in inputs.local.items() if not isinstance(law, Distribution)}

    def terms(params, data):
        return density.log_likelihood(params, data), {k: law(params).log_prob(params[k]) for k, law in rules.items()}

    program = jax.make_jaxpr(terms)(as_arrays(point), inputs.data)
    loops = any(x.primitive.name == "scan" for x in program.jaxpr.eqns)
    yield from _of_outputs(program, [str(i) for i in range(len(program.in_avals))]) if loops else _value(program)
    if model.subsampled is not None:
        yield from _value(jax.make_jaxpr(model.subsampled)(jax.random.key(0), as_arrays(point), inputs.data))


def _steps(jaxpr: Any) -> Iterator[Any]:
    """Give what a program does, equation by equation: nothing of names, nor of how it would be printed."""
    numbers: dict[Any, int] = {}

    def atom(x):
        if hasattr(x, "val"):
            yield from _value(x.val)
        aval = x.aval
        kind = f"{getattr(aval, 'dtype', aval)}{getattr(aval, 'shape', '')}{getattr(aval, 'weak_type', '')}"
        yield kind if hasattr(x, "val") else f"{numbers.setdefault(x, len(numbers))}:{kind}"

    for x in (*jaxpr.constvars, *jaxpr.invars):
        yield from atom(x)
    for equation in jaxpr.eqns:
        yield f"\n{equation.primitive.name}"
        for x in (*equation.invars, "->", *equation.outvars):
            yield from [x] if isinstance(x, str) else atom(x)
        yield from _value({k: v for k, v in equation.params.items() if k != "name"})
    yield "\n->"
    for x in jaxpr.outvars:
        yield from atom(x)


def _of_outputs(program: Any, inputs: list[str]) -> list[str]:
    """Give a digest of each output of a program, by what it is computed from and not by the order of equations.

    What NumPyro's `scan` collects of distributions comes in the order of a set, which differs from process to process.
    """
    known = dict(zip(program.jaxpr.invars, inputs, strict=True))
    known |= {x: _digest(*_value(c)) for x, c in zip(program.jaxpr.constvars, program.consts, strict=True)}
    read = lambda x: _digest(*_value(x.val), str(x.aval)) if hasattr(x, "val") else known[x]
    for equation in program.jaxpr.eqns:
        given, params = [read(x) for x in equation.invars], dict(equation.params)
        shapes = [str(x.aval) for x in equation.outvars]
        if equation.primitive.name == "scan":
            consts, carry = params.pop("num_consts"), params.pop("num_carry")
            begin = [_digest("carry", str(i), x) for i, x in enumerate(given[consts : consts + carry])]
            stacked = [_digest("part", x) for x in given[consts + carry :]]
            made = _of_outputs(params.pop("jaxpr"), [*given[:consts], *begin, *stacked])
            head = _digest("scan", str(params["length"]), str(params["reverse"]), *made[:carry])
            found = [_digest(head, str(i) if i < carry else "stacked", x) for i, x in enumerate(made)]
        else:
            head = _digest(equation.primitive.name, *_value({k: v for k, v in params.items() if k != "name"}), *given)
            found = [_digest(head, str(i)) for i in range(len(shapes))]
        known |= {x: _digest(a, b) for x, a, b in zip(equation.outvars, found, shapes, strict=True)}
    return [read(x) for x in program.jaxpr.outvars]


def _value(x: Any) -> Iterator[Any]:
    """Give a parameter of an equation, or a value that a function has at hand, as strings and arrays."""
    if hasattr(x, "jaxpr") and hasattr(x, "consts"):
        yield from _steps(x.jaxpr)
        for constant in x.consts:
            yield from _value(constant)
    elif hasattr(x, "eqns"):
        yield from _steps(x)
    elif isinstance(x, dict):
        for key in sorted(x, key=str):
            yield f"{key}="
            yield from _value(x[key])
    elif isinstance(x, set | frozenset):
        yield from sorted(map(plain, x))
    elif isinstance(x, list | tuple):
        yield f"{type(x).__name__}("
        for part in x:
            yield from _value(part)
        yield ")"
    elif isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        yield jax.random.key_data(x)
    elif hasattr(x, "dtype") and hasattr(x, "shape") and hasattr(x, "__array__") and not np.asarray(x).dtype.hasobject:
        yield x
    else:
        yield plain(x)


def _host_function(fn: Any, seen: set[int]) -> Iterator[Any]:
    """Give a Python function's byte code and what it has at hand: constants, defaults, closure, globals it names.

    Of what it has at hand, only arrays, functions, and numbers and words that it does not itself change: a list that it
    keeps its calls in, or a count of them, is no part of what it computes.
    """
    if id(fn) in seen:
        return
    seen.add(id(fn))
    if isinstance(fn, partial):
        yield from _at_hand((fn.func, *fn.args, *(fn.keywords[k] for k in sorted(fn.keywords))), seen)
        return
    owner = getattr(fn, "__self__", fn)
    fn = getattr(fn, "__func__", fn) if isinstance(fn, FunctionType | MethodType) else type(fn).__call__
    if not isinstance(fn, FunctionType):
        yield plain(owner)
        return
    for name, value in sorted(getattr(owner, "__dict__", {}).items()):
        if isinstance(value, np.ndarray | jax.Array):
            yield name
            yield value
    yield from _code(fn.__code__)
    yield from _at_hand((*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()), seen)
    at_hand = {k: v for k, v in fn.__globals__.items() if k in _names(fn.__code__)}
    for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
        with suppress(ValueError):  # still empty
            at_hand[name] = cell.cell_contents
    changed = {x.argval for x in dis.get_instructions(fn) if x.opname in ("STORE_GLOBAL", "STORE_DEREF")}
    for name in sorted(set(at_hand) - changed):
        yield name
        yield from _at_hand(at_hand[name], seen)


def _at_hand(x: Any, seen: set[int]) -> Iterator[Any]:
    if isinstance(x, tuple):
        for part in x:
            yield from _at_hand(part, seen)
    elif isinstance(x, FunctionType | MethodType | partial):
        yield from _host_function(x, seen)
    elif isinstance(x, np.ndarray | np.generic | jax.Array | int | float | complex | str | bytes | None):
        yield from _value(x)
    else:
        yield getattr(x, "__name__", type(x).__name__)


def _code(code: CodeType) -> Iterator[Any]:
    yield code.co_code
    yield repr(code.co_names)
    for constant in code.co_consts:
        yield from _code(constant) if isinstance(constant, CodeType) else _value(constant)


def _names(code: CodeType) -> set[str]:
    return set(code.co_names).union(*(_names(c) for c in code.co_consts if isinstance(c, CodeType)))


def _fields(law: Any) -> Iterator[Any]:
    """Give the arrays of a distribution, sorted by their names: NumPyro's own order differs from process to process."""
    if not isinstance(law, Distribution):
        yield from jax.tree.leaves(law)
        return
    yield f"{type(law).__module__}.{type(law).__qualname__}"
    for name in sorted(type(law).gather_pytree_data_fields()):
        yield name
        yield from _fields(getattr(law, name, None))


def _digest(*parts: Any) -> str:
    out = hashlib.sha256()
    for part in parts:
        if not isinstance(part, str | bytes):
            array = np.ascontiguousarray(part)
            out.update(f"{array.dtype}{array.shape}".encode())
            part = array.tobytes()
        out.update((part if isinstance(part, bytes) else part.encode()) + b"\0")
    return out.hexdigest()[:16]
