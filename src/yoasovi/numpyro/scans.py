"""Discrete states along NumPyro's `scan`, which its own `infer_discrete` does not know: drawn given all else."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpyro.primitives import Messenger

from yoasovi.numpyro.replay import Source


def root(name: str) -> str:
    """Give a site's own name: in the first step of a scan it is called _PREV_..."""
    return re.sub("^(_PREV_)+", "", name)


def log_sum(model: Callable, source: Source) -> Any:
    """Sum out all that is enumerated: a funsor of what is left, nothing or plates."""
    import funsor
    import funsor.optimizer
    from numpyro.contrib.funsor.infer_util import _enum_log_density

    add = funsor.ops.logaddexp, funsor.ops.add
    total, *_ = _enum_log_density(model, source.args, source.kwargs, {}, *add, apply_optimizer=False)
    return funsor.optimizer.apply_optimizer(total)


def drawn_along(key: jax.Array, model: Callable, source: Source, nesting: int) -> dict[str, jax.Array]:
    """Draw discrete sites of which each depends on one other at most, as the states of a Markov chain do.

    The gradient of log p by the log probabilities of z given its parent is p(z, parent | data). The parent is drawn first,
    then z from p(z | parent, data). Values have the axes of time, if it is in the scan, and of `nesting` plates.
    """
    factors = _factors(model, source)
    own = [k for k, x in factors.items() if k in x.names.values()]
    known = frozenset(own)
    pairs = [known.intersection(factors[k].names.values()) for k in own]
    alone = all(any(known.intersection(x.names.values()) <= pair for pair in pairs) for x in factors.values())
    if not alone or any(len(pair) > 2 for pair in pairs):
        raise ValueError("inside `scan` states can be drawn only where each depends on one state before")
    blank = {k: jnp.zeros(factors[k].shape) for k in own}
    joint = jax.grad(lambda tilts: log_sum(Tilt(model, tilts), source).data)(blank)
    drawn: dict[str, jax.Array] = {}  # last states
    whole: dict[str, jax.Array] = {}
    for name, pair, one in zip(own, pairs, jax.random.split(key, len(own)), strict=True):
        parent = [k for k in pair if k != name]
        time = [x for x in factors[name].names.values() if x.startswith("_time")]
        table = _arranged(joint[name], factors[name].names, [*time, *parent, name], nesting)
        given = drawn[parent[0]] if parent else None
        value = _along(one, table if time else table[None], given, chained=[*map(root, parent)] == [name])
        drawn[name], own_name = value[-1], root(name)
        whole[own_name] = jnp.concatenate([whole[own_name], value]) if own_name in whole else value
    return whole


class SiteTable(NamedTuple):
    """The log probabilities of a site as an array: its shape, and what its axes are, counted from the right."""

    shape: tuple[int, ...]
    names: dict[int, str]


class Tilt(Messenger):
    """Adds to the log probabilities of some sites."""

    def __init__(self, fn: Callable, tilts: dict[str, jax.Array]):
        super().__init__(fn)
        self.tilts = tilts

    def process_message(self, msg):
        """Put a law in the place of a site's."""
        if msg["type"] == "sample" and msg["name"] in self.tilts:
            msg["fn"] = Tilted(msg["fn"], self.tilts[msg["name"]])


class Tilted:
    """As much of a law as NumPyro's enumeration asks for."""

    def __init__(self, law: Any, tilt: jax.Array):
        self.law, self.tilt = law, tilt
        self.batch_shape, self.event_dim = law.batch_shape, law.event_dim

    def log_prob(self, value):
        """Evaluate it."""
        return self.law.log_prob(value) + self.tilt


def _factors(model: Callable, source: Source) -> dict[str, SiteTable]:
    """Look at the log probabilities of all sites, with an axis for each discrete one that they depend on."""
    from numpyro.contrib.funsor import plate_to_enum_plate, trace

    with plate_to_enum_plate():
        sites = trace(model).get_trace(*source.args, **source.kwargs)
    sites = {k: s for k, s in sites.items() if s["type"] == "sample"}
    return {k: SiteTable(s["fn"].log_prob(s["value"]).shape, dict(s["infer"]["dim_to_name"])) for k, s in sites.items()}


def _arranged(array: jax.Array, names: dict[int, str], first: list[str], nesting: int) -> jax.Array:
    """Put the named axes first, then those of plates; all others have length one."""
    array = array.reshape((1,) * max(nesting - array.ndim, 0) + array.shape)
    places = {name: dim for dim, name in names.items()}
    front = [array.shape[places[k]] for k in first]
    array = jnp.moveaxis(array, [places[k] for k in first], range(len(first)))
    return array.reshape(*front, *array.shape[array.ndim - nesting :])


def _along(key: jax.Array, table: jax.Array, given: jax.Array | None, chained: bool) -> jax.Array:
    """Draw z from p(parent, z) at each time, the first axis of the table; the parent is `given`, or z at the time before."""

    def step(before, one):
        key, joint = one
        if given is not None:
            joint = jnp.take_along_axis(joint, before[None, None], 0)[0]
        new = jax.random.categorical(key, jnp.log(jnp.maximum(joint, 0.0)), axis=0)
        return (new if chained else before), new

    keys = jax.random.split(key, len(table))
    return jax.lax.scan(step, given, (keys, table))[1]
