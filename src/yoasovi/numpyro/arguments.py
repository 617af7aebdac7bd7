"""The arguments of a model function, some of them changed: what follows, what is left out, what stays."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr, tree_flatten_with_path, tree_map_with_path

from yoasovi.errors import check
from yoasovi.numpyro.replay import Source

Touched = Callable[[Source, Callable[[Any], bool]], tuple[bool, set[str]]]  # whether draws are, and what is observed


@dataclass(frozen=True, eq=False)
class Arguments:
    """The arguments of a fit by the names of the parameters, and the new ones in their places."""

    signature: inspect.Signature
    source: Source
    new: dict[str, Any] = field(default_factory=dict)

    @property
    def old(self) -> dict[str, Any]:
        """The arguments of the fit; those of `**kwargs` are a dict of their own."""
        return dict(self.signature.bind(*self.source.args, **self.source.kwargs).arguments)

    def changed_by(self, given: dict[str, Any]) -> Arguments:
        """Put new arguments in the places of old ones; a dict may have some of its entries changed."""
        rest = [k for k, p in self.signature.parameters.items() if p.kind == p.VAR_KEYWORD]
        known = {k: p for k, p in self.signature.parameters.items() if k not in rest}
        by_name = {k: v for k, v in given.items() if k in known}
        others = {k: v for k, v in given.items() if k not in known}
        extra = self.old.get(rest[0], {}) if rest else {}
        unknown = sorted(map(str, set(others) - set(extra)))
        names = ", ".join([*known, *extra]) or "none"
        check(not unknown, "data", "predict", f"named after arguments of the model ({names})", unknown)
        new = _merged(self.old, {**by_name, **({rest[0]: others} if others else {})}, known, "data")
        return replace(self, new=new)

    def idle(self, touched: Touched) -> tuple[frozenset[str], frozenset[str]]:
        """Find the arrays that were not given and that no draw depends on, and what is observed through them."""
        paths, tree = tree_flatten_with_path(self.old)
        given, names, fed = _leaves(self.new), set(), set()
        for i, (path, leaf) in enumerate(paths):
            if not _is_array(leaf) or given.get(keystr(path)) is not leaf:
                continue
            others = [x for _, x in paths]
            with_one = lambda one, i=i, x=others: self._bound(jax.tree.unflatten(tree, [*x[:i], one, *x[i + 1 :]]))
            drawn, observed = _probed(leaf, with_one, touched)
            if not drawn:
                names.add(keystr(path))
                fed |= observed
        return frozenset(names), frozenset(fed)

    def following(self, idle: frozenset[str]) -> Source:
        """Give idle arrays the length that the new arguments have where the old ones had theirs."""
        lengths: dict[int, set[int]] = {}
        old, new = _leaves(self.old), _leaves(self.new)
        for path in old.keys() & new.keys():
            if new[path] is not old[path] and (before := _length(old[path])) and (after := _length(new[path])):
                lengths.setdefault(before, set()).add(after)

        def follow(path, leaf):
            after = lengths.get(_length(leaf) or 0, set()) if keystr(path) in idle else set()
            return leaf[np.arange(min(after)) % len(leaf)] if len(after) == 1 else leaf

        return self._bound(tree_map_with_path(follow, self.new))

    def without(self, idle: frozenset[str]) -> Source:
        """Leave idle arguments out where the model function allows it: their default is None."""
        new = dict(self.new)
        for name, parameter in self.signature.parameters.items():
            paths = {keystr(p) for p, _ in tree_flatten_with_path({name: new.get(name)})[0]}
            if parameter.default is None and paths and paths <= idle:
                new[name] = None
        return self._bound(new)

    def kept(self, idle: frozenset[str]) -> list[str]:
        """Name the arrays that stay as in the fit though draws depend on them."""
        new = _leaves(self.new)
        stay = (k for k, v in _leaves(self.old).items() if _is_array(v) and new.get(k) is v and k not in idle)
        return [f"{_plain(k)} {np.shape(new[k])}" for k in stay]

    def _bound(self, arguments: dict[str, Any]) -> Source:
        bound = inspect.BoundArguments(self.signature, arguments)  # type: ignore[arg-type]
        return self.source._replace(args=bound.args, kwargs=bound.kwargs)


def _probed(leaf: Any, with_one: Callable[[Any], Source], touched: Touched) -> tuple[bool, set[str]]:
    """Ask what an array touches; everything, if its numbers are part of the program."""
    found: list[tuple[bool, set[str]]] = []

    def probe(one, form):
        # Under `vmap` over an argument, exactly what depends on it is a tracer of `vmap`.
        varies = lambda parts: any(isinstance(x, type(one)) for x in jax.tree.leaves(parts))
        found.append(touched(with_one(one).forms()[form], varies))

    for form in range(2):
        with suppress(Exception):
            some = jax.ShapeDtypeStruct((2, *leaf.shape), jnp.result_type(leaf.dtype))
            jax.eval_shape(jax.vmap(partial(probe, form=form)), some)
            return found[0]
    return True, set()


def _merged(old: Any, new: Any, known: Any, where: str) -> Any:
    """Put the entries of a new dict into an old one, and arrays for lists where there was an array."""
    if isinstance(old, dict) and isinstance(new, dict):
        unknown = sorted(map(str, set(new) - set(known)))
        check(not unknown, where, "predict", f"a dict with keys among {', '.join(map(str, old))}", unknown)
        return {**old, **{k: _merged(old.get(k), v, old.get(k), f"{where}[{k!r}]") for k, v in new.items()}}
    return np.asarray(new) if _is_array(old) and new is not None and not _is_array(new) else new


def _leaves(tree: Any) -> dict[str, Any]:
    return {keystr(path): x for path, x in tree_flatten_with_path(tree)[0]}


def _length(x: Any) -> int | None:
    """Give the length of an array, or a number that may be one."""
    if isinstance(x, int) and not isinstance(x, bool):
        return x
    return np.shape(x)[0] if np.ndim(x) else None


def _is_array(x: Any) -> bool:
    return isinstance(x, (np.ndarray, jax.Array))


def _plain(path: str) -> str:
    """Write ['data']['x'] as data['x']."""
    name, _, rest = path.removeprefix("['").partition("']")
    return name + rest
