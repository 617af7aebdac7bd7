"""How a direction becomes a move: any optax transformation, or natural steps in q's own units."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax

from yoasovi.acceptance import LINE, STEPS, Plan
from yoasovi.errors import check, positive_number
from yoasovi.gradients import Problem

# The names of the paper; "constant" is its fixed rate.
NAMED = {
    "constant": optax.sgd,
    "adagrad": optax.adagrad,
    "adadelta": optax.adadelta,
    "adam": optax.adam,
    "rmsprop": optax.rmsprop,
}


class Optimizer(Protocol):
    """Moves parameters along a direction of ascent, and says what a window proposes."""

    def init(self, problem: Problem, params: Any) -> Any:
        """Give the memory to begin with."""
        ...

    def step(self, problem: Problem, params: Any, memory: Any, direction: Any, plan: Plan) -> tuple[Any, Any]:
        """Give (params, memory) after one iteration."""
        ...

    def blank(self, problem: Problem, acceptance: Any) -> Any:
        """Give an empty record of a window's draws."""
        ...

    def record(self, record: Any, memory: Any, direction: Any, i: jax.Array) -> Any:
        """Remember the draw of iteration `i`."""
        ...

    def propose(self, problem: Problem, start: Any, trip: Any, plan: Plan) -> tuple[Any, Any, Any]:
        """Give the turn's candidate, the memory that goes with it and, if known, its forecast."""
        ...

    def restart(self, memory: Any) -> Any:
        """Forget what led astray, after a rollback."""
        ...

    def depart(self, problem: Problem, params: Any, memory: Any, control: Any) -> Any:
        """Give where the next turn starts, from where the verdict left the parameters."""
        ...


class _Euclidean(ABC):
    """Steps by an optax transformation in the parameters as they are."""

    @abstractmethod
    def transformation(self) -> optax.GradientTransformation:
        """Give the optax transformation."""

    def init(self, problem, params):
        return self.transformation().init(params)

    def step(self, problem, params, memory, direction, plan):
        loss = jax.tree.map(jnp.negative, direction)  # optax minimises: the one place where the sign turns
        updates, memory = self.transformation().update(loss, memory, params)
        moved = jax.tree.map(lambda p, u: p + plan.length * u, params, updates)
        return problem.family.project(moved), memory

    def blank(self, problem, acceptance):
        return ()

    def record(self, record, memory, direction, i):
        return record

    def propose(self, problem, start, trip, plan):
        return trip.average, trip.memory, None

    def restart(self, memory):
        return memory

    def depart(self, problem, params, memory, control):
        return params


@dataclass(frozen=True)
class Optax(_Euclidean):
    """An optax optimiser by name with its learning rate; rebuilt ones hit the same compiled program."""

    name: str = "adam"
    learning_rate: float = 0.01

    def __post_init__(self):
        check(self.name in NAMED, "optimizer", "fit", f"one of {', '.join(NAMED)} or an optax transformation", self.name)
        positive_number("learning_rate", "fit", self.learning_rate)

    def transformation(self):
        return _named(self.name, self.learning_rate)


@dataclass(frozen=True)
class Custom(_Euclidean):
    """Any optax gradient transformation, as it was given."""

    given: optax.GradientTransformation

    def transformation(self):
        return self.given


@lru_cache
def _named(name, learning_rate):
    return NAMED[name](learning_rate)


class Scores(NamedTuple):
    """The draws of a window, in q's own units."""

    eps: jax.Array  # (capacity, noise)
    white: jax.Array  # (capacity, d)


class Pace(NamedTuple):
    """What natural steps remember."""

    velocity: Any
    square: jax.Array  # (d,) running mean square of the scores
    weight: jax.Array  # behind that mean


@dataclass(frozen=True)
class Natural:
    """Natural steps with momentum; the length has no unit, so 0.1 serves scales from 0.001 to 1,000.

    A score is cut at `clip` times its running root mean square, which tames tails without a scale of its own.
    """

    momentum: float = 0.9
    clip: float = 4.0

    def __post_init__(self):
        check(0 <= self.momentum < 1, "momentum", "Natural", "in [0, 1)", self.momentum)
        positive_number("clip", "Natural", self.clip)

    def init(self, problem, params):
        size, dim = problem.family.noise_size(problem.density), problem.density.dim
        still = problem.family.natural(params, jnp.zeros(size), jnp.zeros(dim))
        return Pace(jax.tree.map(jnp.zeros_like, still), jnp.zeros(dim), jnp.asarray(0.0))

    def step(self, problem, params, memory, direction, plan):
        family, sound = problem.family, jnp.isfinite(direction.white).all()
        white = jnp.where(sound, direction.white, 0.0)
        seen = memory.square / jnp.maximum(memory.weight, 1e-12)
        limit = jnp.where(memory.weight > 0.05, self.clip * jnp.sqrt(seen), jnp.inf)
        # The square is of the cut score: one wild draw must not open the door for the next.
        white = jnp.clip(white, -limit, limit)
        square, weight = 0.99 * memory.square + 0.01 * white**2, 0.99 * memory.weight + 0.01
        step = family.natural(params, direction.eps, white)
        velocity = jax.tree.map(lambda v, s: self.momentum * v + (1.0 - self.momentum) * s, memory.velocity, step)
        moved = family.move(params, jax.tree.map(lambda v: plan.length * v, velocity), plan.cap)
        choose = lambda new, old: jax.tree.map(lambda a, b: jnp.where(plan.kind == STEPS, a, b), new, old)
        return choose(moved, params), choose(Pace(velocity, square, weight), memory)

    def blank(self, problem, acceptance):
        capacity = acceptance.capacity(problem)
        size = problem.family.noise_size(problem.density)
        return Scores(jnp.zeros((capacity, size)), jnp.zeros((capacity, problem.density.dim)))

    def record(self, record, memory, direction, i):
        put = lambda store, row: store.at[i].set(row, mode="drop")
        return Scores(put(record.eps, direction.eps), put(record.white, direction.white))

    def propose(self, problem, start, trip, plan):
        family, record = problem.family, trip.record

        def by_line(_):
            there = family.propose(start, record.eps, record.white, plan.size, plan.kind == LINE, plan.length, plan.trust)
            # Nothing to fit a line to: the draws fell where log p is not finite, so draw closer to the mean.
            lost = trip.nonfinite > plan.size // 2
            narrower = family.widen(start, 0.25)
            params = jax.tree.map(lambda a, b: jnp.where(lost, a, b), narrower, there.params)
            return params, (there.expected, there.signal, there.noise)

        def by_steps(_):
            zero = jnp.asarray(0.0)
            return trip.average, (zero, zero, zero)

        candidate, forecast = jax.lax.cond(plan.kind == STEPS, by_steps, by_line, None)
        return candidate, trip.memory, forecast

    def restart(self, memory):
        return memory._replace(velocity=jax.tree.map(jnp.zeros_like, memory.velocity))

    def depart(self, problem, params, memory, control):
        return params
