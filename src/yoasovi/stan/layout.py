"""Names of Stan's: which numbers of a flat draw make up which array."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Block(NamedTuple):
    """One variable's numbers in a draw, column by column as Stan writes them."""

    start: int
    shape: tuple[int, ...]

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Cut the variable out of draws (n, k): (n, *shape)."""
        flat = rows[:, self.start : self.start + int(np.prod(self.shape))]
        return np.ascontiguousarray(np.moveaxis(flat.T.reshape(*self.shape, len(rows), order="F"), -1, 0))


def blocks(names: list[str]) -> dict[str, Block]:
    """Read the variables off names such as mu, theta.1, L.2.1 (x:1.2 in a tuple, z.1.real of a complex one)."""
    found: dict[str, Block] = {}
    for i, name in enumerate(names):
        parts = name.split(".")
        own = ".".join([parts[0], *(x for x in parts[1:] if not x.isdigit())])
        place = tuple(int(x) for x in parts[1:] if x.isdigit())
        found[own] = Block(found[own].start if own in found else i, place)  # the last place is the largest
    return found


def free_sizes(free: list[str], own: list[str]) -> dict[str, tuple[int, ...]]:
    """Give the shape of each parameter on the unconstrained scale: its own, or one row of numbers.

    A row where the transform has fewer or more numbers (a simplex, a covariance), and for matrices, which Stan writes by
    column. Those without any, of a variable that has only one value, are left out.
    """
    sizes: dict[str, int] = {}
    for name in free:
        head = name.split(".")[0]
        sizes[head] = sizes.get(head, 0) + 1
    shapes = {k: v.shape for k, v in blocks(own).items()}
    plain = lambda k, n: len(shapes.get(k, (0, 0))) < 2 and int(np.prod(shapes[k])) == n
    return {k: shapes[k] if plain(k, n) else (n,) for k, n in sizes.items()}
