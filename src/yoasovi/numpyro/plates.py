"""Plates that take a subsample: in full, or the rows of a minibatch."""

from __future__ import annotations

import zlib

import jax.numpy as jnp
from numpyro.primitives import Messenger

from yoasovi.model.minibatch import random_rows


class WholePlates(Messenger):
    """Makes plates that would take a subsample take all their members."""

    def process_message(self, msg):
        """Give a plate all its indices."""
        if msg["type"] == "plate":
            size, _ = msg["args"]
            msg["args"], msg["value"] = (size, size), jnp.arange(size)


class Batches(Messenger):
    """Gives plates that take a subsample the rows that a key names; a plate that occurs again has the same rows again."""

    def __init__(self, fn, key):
        super().__init__(fn)
        self.key = key

    def process_message(self, msg):
        """Give a plate its rows."""
        if msg["type"] == "plate" and takes_part(*msg["args"]):
            size, part = msg["args"]
            msg["value"] = random_rows(self.key, size, part, zlib.crc32(msg["name"].encode()))


class FewerMembers(Messenger):
    """Gives plates of one size fewer members, each of which counts for itself."""

    def __init__(self, fn, size: int, members: int):
        super().__init__(fn)
        self.size, self.members = size, members
        self.names: set[str] = set()

    def process_message(self, msg):
        """Give a plate its members, and take off the factor by which NumPyro has them stand for all."""
        if msg["type"] == "plate" and msg["args"][0] == self.size != self.members:
            msg["args"], msg["value"] = (self.size, self.members), jnp.arange(self.members)
            self.names.add(msg["name"])
        elif inside := sum(frame.name in self.names for frame in msg.get("cond_indep_stack", ())):
            scale = 1.0 if msg["scale"] is None else msg["scale"]
            msg["scale"] = scale * (self.members / self.size) ** inside


def takes_part(size: int, part: int | None) -> bool:
    """Say whether a plate takes a subsample, by its arguments."""
    return part not in (None, size)
