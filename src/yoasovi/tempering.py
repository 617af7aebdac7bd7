"""How strict acceptance is at step t: the inverse temperature M(t)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from yoasovi.errors import check, positive_integer, positive_number


class Tempering(Protocol):
    """M(t) for t = 1, 2, ...; the memory is for rules that look at what happened."""

    def init(self) -> Any:
        """Give the memory to begin with."""
        ...

    def strictness(self, memory: Any, t: jax.Array) -> jax.Array:
        """Give M(t)."""
        ...

    def update(self, memory: Any, turned: jax.Array) -> Any:
        """Take note of whether the last iteration accepted a lower ELBO (a U-turn)."""
        ...


class _Memoryless:
    def init(self):
        return ()

    def update(self, memory, turned):
        return memory


@dataclass(frozen=True)
class Constant(_Memoryless):
    """M(t) = value."""

    value: float = 1.5

    def __post_init__(self):
        positive_number("value", "Constant", self.value)

    def strictness(self, memory, t):
        return jnp.asarray(self.value, float)


@dataclass(frozen=True)
class Logarithmic(_Memoryless):
    """M(t) = k log t."""

    k: float = 3.0

    def __post_init__(self):
        positive_number("k", "Logarithmic", self.k)

    def strictness(self, memory, t):
        return self.k * jnp.log(jnp.asarray(t, float))


@dataclass(frozen=True)
class Linear(_Memoryless):
    """M(t) from `start` to `end` over `steps` steps, then constant; Linear(1, n, n) is the paper's M(t) = t."""

    start: float = 0.1
    end: float = 15.0
    steps: int = 2500

    def __post_init__(self):
        positive_number("start", "Linear", self.start)
        positive_number("end", "Linear", self.end)
        positive_integer("steps", "Linear", self.steps)

    def strictness(self, memory, t):
        share = jnp.clip((t - 1) / max(self.steps - 1, 1), 0.0, 1.0)
        return self.start + share * (self.end - self.start)


class WarmupMemory(NamedTuple):
    """Where a warm-up stands."""

    strictness: jax.Array
    seen: jax.Array
    turns: jax.Array
    done: jax.Array


@dataclass(frozen=True)
class Warmup:
    """Raise M block by block until at most a `share` of a block's iterations are U-turns, then keep it."""

    start: float = 0.5
    factor: float = 1.5
    block: int = 25
    share: float = 0.1

    def __post_init__(self):
        positive_number("start", "Warmup", self.start)
        check(self.factor > 1, "factor", "Warmup", "above 1", self.factor)
        positive_integer("block", "Warmup", self.block)
        check(0 <= self.share < 1, "share", "Warmup", "in [0, 1)", self.share)

    def init(self):
        return WarmupMemory(jnp.asarray(self.start, float), jnp.asarray(0), jnp.asarray(0), jnp.asarray(False))

    def strictness(self, memory, t):
        return memory.strictness

    def update(self, memory, turned):
        seen, turns = memory.seen + 1, memory.turns + turned
        full = (seen == self.block) & ~memory.done
        calm = turns <= self.share * self.block
        strictness = jnp.where(full & ~calm, self.factor * memory.strictness, memory.strictness)
        fresh = lambda x: jnp.where(full, 0, x)
        return WarmupMemory(strictness, fresh(seen), fresh(turns), memory.done | (full & calm))
