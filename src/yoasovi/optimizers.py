"""How a direction becomes a move: any optax transformation, natural steps and lines in q's own units, or lines of values."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp

from yoasovi.errors import check, positive_number

if TYPE_CHECKING:
    import optax

# The names of the paper, and what optax calls them; "constant" is its fixed rate.
NAMED = {"constant": "sgd", "adagrad": "adagrad", "adadelta": "adadelta", "adam": "adam", "rmsprop": "rmsprop"}


class Optimizer(Protocol):
    """Moves parameters along a direction of ascent, one iteration at a time."""

    def init(self, params: Any) -> Any:
        """Give the memory to begin with."""
        ...

    def step(self, family: Any, params: Any, memory: Any, direction: Any, length: Any) -> tuple[Any, Any]:
        """Give (params, memory) after one iteration; `length` multiplies the optimiser's own step."""
        ...


class _Euclidean:
    """Steps by an optax transformation in the parameters as they are."""

    def transformation(self) -> optax.GradientTransformation:
        """Give the optax transformation."""
        raise NotImplementedError

    def init(self, params: Any) -> Any:
        return self.transformation().init(params)

    def step(self, family: Any, params: Any, memory: Any, direction: Any, length: Any) -> Any:
        loss = jax.tree.map(jnp.negative, direction)  # optax minimises: the one place where the sign turns
        updates, memory = self.transformation().update(loss, memory, params)
        moved = jax.tree.map(lambda p, u: p + length * u, params, updates)
        return family.project(moved), memory


@dataclass(frozen=True)
class Optax(_Euclidean):
    """An optax optimiser by name with its learning rate; rebuilt ones hit the same compiled program."""

    name: str = "adam"
    learning_rate: float = 0.01

    def __post_init__(self) -> None:
        check(self.name in NAMED, "optimizer", "fit", f"one of {', '.join(NAMED)} or an optax transformation", self.name)
        positive_number("learning_rate", "fit", self.learning_rate)

    def transformation(self) -> Any:
        return _named(self.name, self.learning_rate)


@dataclass(frozen=True)
class Custom(_Euclidean):
    """Any optax gradient transformation, as it was given."""

    given: optax.GradientTransformation

    def transformation(self) -> Any:
        return self.given


@lru_cache
def _named(name: str, learning_rate: float) -> Any:
    import optax  # slow to import, and natural steps do without

    return getattr(optax, NAMED[name])(learning_rate)


@dataclass(frozen=True)
class Natural:
    """Natural steps with momentum, and lines through scores; for windows.

    The length has no unit, so 0.1 serves scales from 0.001 to 1,000. A score is cut at `clip` times its running root mean
    square, which tames tails without a scale of its own.
    """

    momentum: float = 0.9
    clip: float = 4.0

    def __post_init__(self) -> None:
        check(0 <= self.momentum < 1, "momentum", "Natural", "in [0, 1)", self.momentum)
        positive_number("clip", "Natural", self.clip)


@dataclass(frozen=True)
class ValueLine:
    """Regress a window's values and go where the coefficients say; see `windows.value_regression`.

    `recall` is how many earlier sightings of a label the table remembers when a window adds to it.
    """

    recall: float = 2.0
    reach: float = 2.0  # most that a logit moves in a step of full length

    def __post_init__(self) -> None:
        positive_number("recall", "ValueLine", self.recall)
        positive_number("reach", "ValueLine", self.reach)
