"""The parameters and the optimiser's memory as a few long vectors.

A guide often has dozens of small arrays, and a program that steps each by itself takes several times as long to compile as
one that steps them all together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.example_libraries.optimizers import OptimizerState
from jax.flatten_util import ravel_pytree
from numpyro import optim as optimisers

from yoasovi.arrays import space

# They step each number by itself, so that it does not matter which array it is in.
_ELEMENTWISE = (
    optimisers.Adam, optimisers.Adagrad, optimisers.ClippedAdam, optimisers.Momentum, optimisers.RMSProp,
    optimisers.RMSPropMomentum, optimisers.SGD,
)  # fmt: skip


class Packing(NamedTuple):
    """How an optimiser's state is packed and unpacked."""

    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]
    params: Callable[[Any], Any]  # the packed state's parameters as the user's


def packing(optim: Any, state: Any) -> Packing:
    """Pack states like this one into one array per kind of memory, or not at all where arrays may be treated apart."""
    same = lambda x: x
    if type(optim) not in _ELEMENTWISE or len({x.dtype for x in jax.tree.leaves(state[1])}) != 1:
        return Packing(same, same, same)
    flat, params = ravel_pytree(optim.get_params(state))
    shapes = [x.shape for x in jax.tree.leaves(optim.get_params(state))]
    ends = np.cumsum([np.prod(shape, dtype=int) for shape in shapes])[:-1]
    structure, inner = jax.tree.structure(state), state[1].subtree_defs

    def pack(state: Any) -> Any:
        leaves = jax.tree.leaves(state[1])
        traced = any(isinstance(x, jax.core.Tracer) for x in leaves)
        xp: Any = jnp if traced else np  # outside programs, each operation of jax.numpy would be one to compile
        kinds = zip(*state[1].packed_state, strict=True)
        long = tuple(xp.concatenate([xp.ravel(x) for x in kind]) for kind in kinds)
        return state[0], OptimizerState((long,), jax.tree.structure(flat), inner[:1])

    def unpack(state: Any) -> Any:
        xp = space(state[1].packed_state[0][0])
        kinds = [xp.split(long, ends) for long in state[1].packed_state[0]]
        owns = zip(zip(*kinds, strict=True), shapes, strict=True)
        leaves = [jnp.asarray(x.reshape(shape)) for own, shape in owns for x in own]
        return jax.tree.unflatten(structure, [jnp.asarray(state[0]), *leaves])

    return Packing(pack, unpack, params)
