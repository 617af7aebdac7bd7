"""What a fit is a fit of, in a form that can be written down and compared later: model, data, method, seed, versions."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from numpyro.distributions import Distribution

from yoasovi.kernels.programs import as_arrays
from yoasovi.model import HostDensity, Model

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def of_model(model: Model) -> dict[str, str]:
    """Describe a model: its sites, the program of its likelihood, its priors and its data, each by a digest.

    The program is what JAX makes of the functions (their jaxpr and its constants), so that neither a comment nor another
    name changes it. A function called on the host is known by its byte code.
    """
    density, inputs = model.density, as_arrays(model.inputs)
    out = {"sites": "; ".join(f"{s.name} {s.shape}" for s in (*density.sites, *density.local_sites))}
    out["likelihood"] = _digest(*_program(model, inputs))
    for name, law in {**inputs.prior, **inputs.local}.items():
        if isinstance(law, Distribution):
            out[f"prior of {name}"] = f"{type(law).__name__} {_digest(*_fields(law))}"
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
        "precision": "float64" if wide else "float32", "method": _plain(method), "family": _plain(family),
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


def _plain(thing: Any) -> str:
    return _ADDRESS.sub("", repr(thing))


def _program(model: Model, inputs: Any) -> Iterator[Any]:
    density = model.density
    point = {s.name: np.zeros(s.shape, int if s.discrete else float) for s in (*density.sites, *density.local_sites)}
    rules = {k: law for k, law in inputs.local.items() if not isinstance(law, Distribution)}

    def terms(params, data):
        return density.log_likelihood(params, data), {k: law(params).log_prob(params[k]) for k, law in rules.items()}

    closed = jax.make_jaxpr(terms)(as_arrays(point), inputs.data)
    yield _ADDRESS.sub("", str(closed))
    yield from _constants(closed)
    if model.subsampled is not None:
        closed = jax.make_jaxpr(model.subsampled)(jax.random.key(0), as_arrays(point), inputs.data)
        yield _ADDRESS.sub("", str(closed))
        yield from _constants(closed)
    if isinstance(model.log_likelihood, HostDensity):
        code = getattr(model.log_likelihood.fn, "__code__", None)
        yield code.co_code if code else _plain(model.log_likelihood.fn)


def _fields(law: Any) -> Iterator[Any]:
    """Give the arrays of a distribution, sorted by their names: NumPyro's own order differs from process to process."""
    if not isinstance(law, Distribution):
        yield from jax.tree.leaves(law)
        return
    yield f"{type(law).__module__}.{type(law).__qualname__}"
    for name in sorted(type(law).gather_pytree_data_fields()):
        yield name
        yield from _fields(getattr(law, name, None))


def _constants(closed: Any) -> Iterator[Any]:
    """Give the arrays that a program has inside, in its inner programs too."""
    closes = lambda x: hasattr(x, "consts") and hasattr(x, "jaxpr")
    yield from closed.consts
    for equation in closed.jaxpr.eqns:
        for value in jax.tree.leaves(list(equation.params.values()), is_leaf=closes):
            if closes(value):
                yield from _constants(value)


def _digest(*parts: Any) -> str:
    out = hashlib.sha256()
    for part in parts:
        if not isinstance(part, str | bytes):
            array = np.ascontiguousarray(part)
            out.update(f"{array.dtype}{array.shape}".encode())
            part = array.tobytes()
        out.update(part.encode() if isinstance(part, str) else part)
    return out.hexdigest()[:16]
