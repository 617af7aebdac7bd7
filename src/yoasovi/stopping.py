"""When to stop, and what to tell the user about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

import numpy as np

from yoasovi.arrays import space
from yoasovi.errors import positive_integer, positive_number


class StopReason(IntEnum):
    """Why a fit ended; `.sentence` says it in words, with what to do."""

    RUNNING = 0
    CONVERGED = 1
    MAX_STEPS = 2
    NO_STEP = 3
    NON_FINITE = 4
    INTERRUPTED = 5
    OVERTAKEN = 6

    @property
    def sentence(self) -> str:
        """One sentence: what was known at the end, and the next thing to try."""
        return _SENTENCES[self]

    def __str__(self) -> str:
        return f"{self.name.lower()}: {self.sentence}"


_SENTENCES = {
    StopReason.RUNNING: "The fit has not ended.",
    StopReason.CONVERGED: "Nothing worth having was left to gain by the method's own rule.",
    StopReason.MAX_STEPS: "Ran out of steps before the stopping rule was met; raise `max_steps`.",
    StopReason.NO_STEP: "No step of any length was acceptable; check the model, rescale it, or try another family.",
    StopReason.NON_FINITE: "The log density was not finite for too many draws in a row; check priors, supports and data.",
    StopReason.INTERRUPTED: "Interrupted by the user; the result is the best so far.",
    StopReason.OVERTAKEN: "Nearly all other restarts had converged, and one of them was better.",
}


class Stopping(Protocol):
    """A rule that watches what acceptance says."""

    def init(self) -> Any:
        """Give the memory to begin with."""
        ...

    def update(self, memory: Any, missed: Any, progressed: Any, change: Any) -> tuple[Any, Any]:
        """Take note of a turn: was it a miss, was it progress, how far parameters moved; give (memory, stop?)."""
        ...


@dataclass(frozen=True)
class Patience:
    """Stop after `patience` misses with no progress in between: the paper's nu."""

    patience: int = 3

    def __post_init__(self) -> None:
        positive_integer("patience", "Patience", self.patience)

    def init(self) -> Any:
        return np.asarray(0)

    def update(self, memory: Any, missed: Any, progressed: Any, change: Any) -> tuple[Any, Any]:
        misses = space(progressed).where(progressed, 0, memory + missed)
        return misses, misses >= self.patience


@dataclass(frozen=True)
class ParameterChange:
    """Stop when |change of parameters| / |parameters| falls below `tolerance`."""

    tolerance: float = 1e-5

    def __post_init__(self) -> None:
        positive_number("tolerance", "ParameterChange", self.tolerance)

    def init(self) -> Any:
        return ()

    def update(self, memory: Any, missed: Any, progressed: Any, change: Any) -> tuple[Any, Any]:
        return memory, progressed & (change < self.tolerance)


@dataclass(frozen=True)
class MaxSteps:
    """Never stop before `max_steps` of the fit."""

    def init(self) -> Any:
        return ()

    def update(self, memory: Any, missed: Any, progressed: Any, change: Any) -> tuple[Any, Any]:
        return memory, progressed & False
