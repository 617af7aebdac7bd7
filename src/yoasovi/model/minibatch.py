"""Minibatches: rows named by a key, and the anchor that takes most of their noise off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp


class Anchor(NamedTuple):
    """A place where the likelihood is known on all the data, with its gradient."""

    flat: Any  # (d,), unconstrained
    value: Any
    gradient: Any  # (d,)


class Batch(NamedTuple):
    """A minibatch: the key that names its rows, and the anchor its noise is taken off at, if there is one."""

    key: jax.Array
    anchor: Anchor | None = None


def estimated(rows: Callable, flat: jax.Array, anchor: Anchor | None) -> jax.Array:
    """Estimate the likelihood from a minibatch: terms whose sum is right on average.

    The tangent at the anchor is known on all the data. What the minibatch says of it is pure noise, and taken off.
    """
    if anchor is None:
        return rows(flat)
    away = flat - anchor.flat
    there, slope = jax.jvp(rows, (anchor.flat,), (away,))
    return jnp.append(rows(flat) - there - slope, anchor.value + anchor.gradient @ away)
