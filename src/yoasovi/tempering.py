"""How strict acceptance is at step t: the inverse temperature M(t)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from yoasovi.arrays import space
from yoasovi.errors import check, positive_integer, positive_number


class Tempering(Protocol):
    """M(t) for t = 1, 2, ...; the memory is for rules that look at what happened."""

    def init(self) -> Any:
        """Give the memory to begin with."""
        ...

    def strictness(self, memory: Any, t: Any) -> Any:
        """Give M(t)."""
        ...

    def update(self, memory: Any, turned: Any) -> Any:
        """Take note of whether the last iteration accepted a lower ELBO (a U-turn)."""
        ...


class _Memoryless:
    def init(self) -> Any:
        return ()

    def update(self, memory: Any, turned: Any) -> Any:
        return memory


@dataclass(frozen=True)
class Constant(_Memoryless):
    """M(t) = value."""

    value: float = 1.5

    def __post_init__(self) -> None:
        positive_number("value", "Constant", self.value)

    def strictness(self, memory: Any, t: Any) -> Any:
        return self.value + 0.0 * t


@dataclass(frozen=True)
class Logarithmic(_Memoryless):
    """M(t) = k log t."""

    k: float = 3.0

    def __post_init__(self) -> None:
        positive_number("k", "Logarithmic", self.k)

    def strictness(self, memory: Any, t: Any) -> Any:
        return self.k * space(t).log(1.0 * t)


@dataclass(frozen=True)
class Linear(_Memoryless):
    """M(t) from `start` to `end` over `steps` steps, then constant; Linear(1, n, n) is the paper's M(t) = t."""

    start: float = 0.1
    end: float = 15.0
    steps: int = 2500

    def __post_init__(self) -> None:
        positive_number("start", "Linear", self.start)
        positive_number("end", "Linear", self.end)
        positive_integer("steps", "Linear", self.steps)

    def strictness(self, memory: Any, t: Any) -> Any:
        share = space(t).clip((t - 1) / max(self.steps - 1, 1), 0.0, 1.0)
        return self.start + share * (self.end - self.start)


class WarmupMemory(NamedTuple):
    """Where a warm-up stands."""

    strictness: Any
    seen: Any
    turns: Any
    done: Any


@dataclass(frozen=True)
class Warmup:
    """Raise M block by block until at most a `share` of a block's iterations are U-turns, then keep it."""

    start: float = 0.5
    factor: float = 1.5
    block: int = 25
    share: float = 0.1

    def __post_init__(self) -> None:
        positive_number("start", "Warmup", self.start)
        check(self.factor > 1, "factor", "Warmup", "above 1", self.factor)
        positive_integer("block", "Warmup", self.block)
        check(0 <= self.share < 1, "share", "Warmup", "in [0, 1)", self.share)

    def init(self) -> WarmupMemory:
        return WarmupMemory(np.asarray(float(self.start)), np.asarray(0), np.asarray(0), np.asarray(False))

    def strictness(self, memory: Any, t: Any) -> Any:
        return memory.strictness

    def update(self, memory: Any, turned: Any) -> Any:
        xp, seen, turns = space(turned), memory.seen + 1, memory.turns + turned
        full = (seen == self.block) & ~memory.done
        calm = turns <= self.share * self.block
        strictness = xp.where(full & ~calm, self.factor * memory.strictness, memory.strictness)
        fresh = lambda x: xp.where(full, 0, x)
        return WarmupMemory(strictness, fresh(seen), fresh(turns), memory.done | (full & calm))
