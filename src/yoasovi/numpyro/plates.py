"""Plates that take a subsample: in full, or the rows of a minibatch."""

from __future__ import annotations

import zlib

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.primitives import Messenger


class WholePlates(Messenger):
    """Makes plates that would take a subsample take all their members."""

    def process_message(self, msg):
        """Give a plate all its indices."""
        if msg["type"] == "plate":
            size, _ = msg["args"]
            msg["args"], msg["value"] = (size, size), jnp.arange(size)


class Batches(Messenger):
    """Gives plates that take a subsample the rows that a key names.

    One row comes from each of as many equal stretches of the plate, cut at a random place. Every row is as likely as
    any other, sums are as noisy as with rows drawn without replacement (less where neighbours are alike), and nothing
    is as long as the plate. A plate that occurs again has the same rows again.
    """

    def __init__(self, fn, key):
        super().__init__(fn)
        self.key = key

    def process_message(self, msg):
        """Give a plate its rows."""
        if msg["type"] == "plate" and takes_part(*msg["args"]):
            size, part = msg["args"]
            cut, rows = jax.random.split(jax.random.fold_in(self.key, zlib.crc32(msg["name"].encode())))
            edges = np.arange(part + 1) * size // part
            rows = jax.random.randint(rows, (part,), edges[:-1], edges[1:])
            msg["value"] = (rows + jax.random.randint(cut, (), 0, size)) % size


def takes_part(size: int, part: int | None) -> bool:
    """Say whether a plate takes a subsample, by its arguments."""
    return part not in (None, size)
