"""Rules for single steps: accept or refuse a draw before it is used, or a step after it is taken.

Their turns are one iteration each and run inside `kernels.chain`; luck and fresh noise are handed in. Rules on windows of
iterations are in `windows`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from yoasovi.arrays import space
from yoasovi.errors import check, positive_number
from yoasovi.gradients import Seen
from yoasovi.tempering import Logarithmic, Tempering


class StepSeen(NamedTuple):
    """What a step has to show: where it led, and what was seen on the way."""

    candidate: Any
    elbo: jax.Array  # of the iteration's draws
    admitted: jax.Array  # were the draws used?
    finite: jax.Array  # was all of it finite, so that there was a step at all?


class Answer(NamedTuple):
    """What a rule says of a step."""

    accept: jax.Array
    yardstick: jax.Array  # what the next candidate is compared with
    elbo: jax.Array  # candidate's, as seen here
    gain: jax.Array
    strictness: jax.Array
    control: Any


class Acceptance(Protocol):
    """`screen` sees a draw before it moves anything, `judge` sees where the step led."""

    looks_again: ClassVar[bool]  # does `judge` evaluate log p at a fresh draw?

    @property
    def restores_optimizer(self) -> bool:
        """Say whether an undone step leaves no trace in the optimiser."""
        ...

    def init(self) -> Any:
        """Give the control variables to begin with."""
        ...

    def weigh(self, seen: Seen, yardstick: jax.Array) -> Seen:
        """Change the weight of an admitted draw."""
        ...

    def screen(self, luck: jax.Array, control: Any, elbo: jax.Array, yardstick: jax.Array, t: jax.Array) -> Any:
        """May this draw be used? A Python True means always, and costs nothing."""
        ...

    def judge(
        self, look: Callable[..., Any], luck: Any, control: Any, journey: StepSeen, yardstick: jax.Array, t: Any
    ) -> Answer:
        """Rule on a step; `look(params)` gives the ELBO at one fresh draw, `luck` is a uniform number."""
        ...


class _OneStep:
    """Rules that use every draw as it is."""

    looks_again: ClassVar[bool] = False

    @property
    def restores_optimizer(self) -> bool:
        return True

    def weigh(self, seen: Any, yardstick: Any) -> Any:
        return seen

    def screen(self, luck: Any, control: Any, elbo: Any, yardstick: Any, t: Any) -> Any:
        return True


@dataclass(frozen=True)
class Always(_OneStep):
    """Accept everything that is finite: plain stochastic optimisation."""

    def init(self) -> Any:
        return ()

    def judge(self, look: Any, luck: Any, control: Any, journey: StepSeen, yardstick: Any, t: Any) -> Answer:
        nan = jnp.full_like(journey.elbo, jnp.nan)
        seen = jnp.where(journey.finite, journey.elbo, yardstick)
        return Answer(journey.finite, seen, journey.elbo, nan, jnp.zeros_like(nan), control)


class DrawControl(NamedTuple):
    """What rules on draws remember."""

    tempering: Any
    mean: Any  # running mean and variance of the ELBO draws, for scale="noise"
    variance: Any


@dataclass(frozen=True)
class _DrawRule(_OneStep, ABC):
    """Accept a draw by M (L_t - L_ref) / scale, L_ref the last accepted draw's ELBO.

    The paper's scale is |L_ref|, floored: it makes the rule change when a constant is added to log p. "noise"
    is the standard deviation of the ELBO draws instead. `centered=True` weights an accepted draw's score by
    L_t - L_ref instead of L_t: without it the mean accepted update points away from the gradient once M > 1-2.
    """

    tempering: Tempering = Logarithmic(3.0)
    scale: str = "elbo"
    floor: float = 1e-3
    centered: bool = False

    def __post_init__(self) -> None:
        check(self.scale in ("elbo", "noise"), "scale", type(self).__name__, "'elbo' or 'noise'", self.scale)
        positive_number("floor", type(self).__name__, self.floor)

    @abstractmethod
    def probability(self, exponent: jax.Array) -> jax.Array:
        """Give the probability of acceptance, where it is below one."""

    def weigh(self, seen: Any, yardstick: Any) -> Any:
        reference = jnp.where(jnp.isnan(yardstick), seen.elbo, yardstick) if self.centered else 0.0
        return seen._replace(elbo=seen.elbo - reference)

    def init(self) -> Any:
        return DrawControl(self.tempering.init(), 0.0, 1.0)

    def screen(self, luck: Any, control: Any, elbo: Any, yardstick: Any, t: Any) -> Any:
        scale = jnp.abs(yardstick) if self.scale == "elbo" else jnp.sqrt(control.variance)
        exponent = self.tempering.strictness(control.tempering, t) * (elbo - yardstick) / jnp.maximum(scale, self.floor)
        lucky = luck < self.probability(exponent)
        return jnp.isfinite(elbo) & (jnp.isnan(yardstick) | lucky)  # the first draw has nothing to be compared with

    def judge(self, look: Any, luck: Any, control: Any, journey: StepSeen, yardstick: Any, t: Any) -> Answer:
        elbo, accept = journey.elbo, journey.admitted & journey.finite
        tempering = self.tempering.update(control.tempering, accept & (elbo < yardstick))
        kept = jnp.where(t == 1, 0.0, 0.95)
        ok = jnp.isfinite(elbo)
        mean = jnp.where(ok, kept * control.mean + (1 - kept) * elbo, control.mean)
        variance = jnp.where(ok, 0.95 * control.variance + 0.05 * (elbo - mean) ** 2, control.variance)
        strictness = self.tempering.strictness(control.tempering, t)
        control = DrawControl(tempering, mean, variance)
        return Answer(accept, jnp.where(accept, elbo, yardstick), elbo, elbo - yardstick, strictness, control)


@dataclass(frozen=True)
class Naive(_DrawRule):
    """Algorithm 1: accept a draw with probability min(1, 1 + M (L_t - L_ref)/|L_ref|)."""

    def probability(self, exponent: Any) -> Any:
        return 1.0 + exponent


@dataclass(frozen=True)
class Metropolis(_DrawRule):
    """Algorithm 2: accept a draw with probability min(1, exp(M (L_t - L_ref)/|L_ref|))."""

    def probability(self, exponent: Any) -> Any:
        xp = space(exponent)
        return xp.exp(xp.minimum(exponent, 0.0))


@dataclass(frozen=True)
class Step(_OneStep):
    """Take the step, look at a fresh draw there, and undo the step with probability 1 - exp(M gain/|L_ref|).

    The author's later form. `restore_optimizer=False` keeps the optimiser's memory of undone steps.
    """

    tempering: Tempering = Logarithmic(3.0)
    restore_optimizer: bool = True
    floor: float = 1e-3
    looks_again: ClassVar[bool] = True

    @property
    def restores_optimizer(self) -> bool:
        return self.restore_optimizer

    def init(self) -> Any:
        return self.tempering.init()

    def judge(self, look: Any, luck: Any, control: Any, journey: StepSeen, yardstick: Any, t: Any) -> Answer:
        elbo = look(journey.candidate)
        strictness = self.tempering.strictness(control, t)
        exponent = strictness * (elbo - yardstick) / jnp.maximum(jnp.abs(yardstick), self.floor)
        accept = journey.finite & jnp.isfinite(elbo) & (jnp.isnan(yardstick) | (jnp.log(luck) < exponent))
        control = self.tempering.update(control, accept & (elbo < yardstick))
        return Answer(accept, jnp.where(accept, elbo, yardstick), elbo, elbo - yardstick, strictness, control)
