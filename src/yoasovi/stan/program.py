"""A compiled program with its data, behind one face for both ways of compiling."""

from __future__ import annotations

import hashlib
import os
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from yoasovi.stan.inputs import StanSource, plainly
from yoasovi.stan.layout import blocks


class Library(Protocol):
    """What a compiled program does with rows of unconstrained points (n, d)."""

    def names(self) -> tuple[list[str], list[str], list[str]]:
        """Give the names of unconstrained parameters, of parameters, and of everything that a draw has."""
        ...

    def look(self, points: np.ndarray, gradient: bool) -> tuple[np.ndarray, np.ndarray, str]:
        """Give log p (n,), its gradient (n, d) if asked for, and why the first was refused; NaN where they are."""
        ...

    def outward(self, points: np.ndarray, width: int) -> np.ndarray:
        """Give everything that draws have, (n, width)."""
        ...


class StanProgram:
    """A Stan program that looks at points: all that a model asks of it."""

    def __init__(self, maker: Any, source: StanSource, data: str):
        self.maker, self.source, self.data = maker, source, data
        # By this a saved fit or a checkpoint knows the program and the data.
        self.digest = np.frombuffer(hashlib.sha256(f"{source.text}\0{data}".encode()).digest(), np.uint8)
        self.free, self.own, self.all = self.library.names()

    @cached_property
    def library(self) -> Library:
        """The program with its data, opened anew in every process."""
        return self.maker.opened(self.source, self.data)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k != "library"}

    def look(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Give log p and its gradient at points (n, d)."""
        return self.library.look(points, True)[:2]

    def heights(self, points: np.ndarray) -> np.ndarray:
        """Give log p alone, which costs a fraction."""
        return self.library.look(points, False)[0]

    def outward(self, points: np.ndarray) -> dict[str, np.ndarray]:
        """Give draws on their own scale, with transformed parameters and generated quantities."""
        rows = self.library.outward(points, len(self.all))
        return {name: block.of(rows) for name, block in blocks(self.all).items()}

    def why(self, point: np.ndarray) -> str:
        """Say what Stan says of a point that it refuses."""
        said = plainly(self.library.look(point[None], True)[2], self.source)
        return f"Stan says: {said}" if said else ""


def threads() -> int:
    """Give how many threads to use: Stan's own variable, or as many as there are processors for this process."""
    asked = os.environ.get("STAN_NUM_THREADS", "")
    here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(asked) if asked.isdigit() and int(asked) > 0 else here
