"""Rules that accept or refuse: a draw before it is used, a step after it is taken, a window after it is judged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from yoasovi.errors import check, positive_number
from yoasovi.gradients import Problem, Seen
from yoasovi.tempering import Logarithmic, Tempering

# Where the next turn starts.
INCUMBENT, CANDIDATE, END = 0, 1, 2


class Journey(NamedTuple):
    """What a turn has to show: where it led, and what was seen on the way."""

    candidate: Any
    end: Any  # where the last iteration left the parameters
    incumbent: Any
    elbo: jax.Array  # of the last iteration's draws
    admitted: jax.Array  # was the last iteration's draw used?
    finite: jax.Array  # is every parameter of the candidate finite?
    forecast: Any  # what a fitted line says of the candidate; None elsewhere


class Plan(NamedTuple):
    """What the next turn is to be."""

    size: Any  # iterations; None for exactly one, known when compiling
    length: Any  # multiplies the optimiser's step
    kind: Any  # of window: SCALES, LINE, STEPS or VALUES
    trust: Any  # see `curvature.newton`
    cap: Any  # most that one natural step may move a mean, in its own standard deviations


# Kinds of window: q stands still while a line is fitted to its scores or values, and moves with every draw in STEPS.
SCALES, LINE, STEPS, VALUES = 0, 1, 2, 3
ONE_STEP = Plan(None, 1.0, STEPS, 1.0, 1.0)


class Verdict(NamedTuple):
    """The answer of an acceptance rule. Only it may say `rollback`; only the loop does it."""

    accept: jax.Array  # the candidate becomes the incumbent
    rollback: jax.Array  # parameters, optimiser and yardstick go back to the incumbent's
    resume: jax.Array  # INCUMBENT, CANDIDATE or END
    missed: jax.Array  # uses up patience
    progressed: jax.Array  # restores it
    settled: jax.Array  # nothing is left to gain
    stuck: jax.Array  # no step is acceptable
    yardstick: jax.Array  # what the next candidate is compared with
    elbo: jax.Array  # candidate's, as seen here
    gain: jax.Array
    gain_se: jax.Array
    strictness: jax.Array
    values: jax.Array  # evaluations of log p spent on judging
    nonfinite: jax.Array  # how many of them were not finite
    control: Any


class Acceptance(Protocol):
    """`screen` sees a draw before it moves anything, `judge` sees where the turn led."""

    restores_optimizer: bool

    def plan(self, control: Any) -> Plan:
        """Say how long the next turn is, and how long its steps."""
        ...

    def weigh(self, seen: Seen, yardstick: jax.Array) -> Seen:
        """Change the weight of an admitted draw."""
        ...

    def init(self, problem: Problem, trust: float) -> Any:
        """Give the control variables to begin with."""
        ...

    def screen(self, key: jax.Array, control: Any, elbo: jax.Array, yardstick: jax.Array, t: jax.Array) -> Any:
        """May this draw be used? A Python True means always, and costs nothing."""
        ...

    def judge(self, key: jax.Array, control: Any, problem: Problem, journey: Journey, yardstick: jax.Array, t) -> Verdict:
        """Give the verdict on a turn."""
        ...


def _plain_verdict(accept, control, journey, yardstick, strictness, **changes) -> Verdict:
    no, zero = jnp.asarray(False), jnp.asarray(0)
    nan = jnp.asarray(jnp.nan, journey.elbo.dtype)
    verdict = Verdict(
        accept=accept, rollback=~accept, resume=jnp.asarray(END), missed=~accept, progressed=accept, settled=no, stuck=no,
        yardstick=yardstick, elbo=journey.elbo, gain=nan, gain_se=nan, strictness=strictness, values=zero, nonfinite=zero,
        control=control,
    )  # fmt: skip
    return verdict._replace(**changes)


class _OneStep:
    """Rules whose turn is a single iteration that uses every draw as it is."""

    restores_optimizer = True

    def plan(self, control):
        return ONE_STEP

    def weigh(self, seen, yardstick):
        return seen

    def screen(self, key, control, elbo, yardstick, t):
        return True


@dataclass(frozen=True)
class Always(_OneStep):
    """Accept everything that is finite: plain stochastic optimisation."""

    def init(self, problem, trust):
        return ()

    def judge(self, key, control, problem, journey, yardstick, t):
        return _plain_verdict(journey.finite, control, journey, journey.elbo, jnp.asarray(0.0))


class DrawControl(NamedTuple):
    """What rules on draws remember."""

    tempering: Any
    mean: jax.Array  # running mean and variance of the ELBO draws, for scale="noise"
    variance: jax.Array


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

    def __post_init__(self):
        check(self.scale in ("elbo", "noise"), "scale", type(self).__name__, "'elbo' or 'noise'", self.scale)
        positive_number("floor", type(self).__name__, self.floor)

    @abstractmethod
    def probability(self, exponent: jax.Array) -> jax.Array:
        """Give the probability of acceptance, where it is below one."""

    def weigh(self, seen, yardstick):
        reference = jnp.where(jnp.isnan(yardstick), seen.elbo, yardstick) if self.centered else 0.0
        return seen._replace(elbo=seen.elbo - reference)

    def init(self, problem, trust):
        return DrawControl(self.tempering.init(), jnp.asarray(0.0), jnp.asarray(1.0))

    def screen(self, key, control, elbo, yardstick, t):
        scale = jnp.abs(yardstick) if self.scale == "elbo" else jnp.sqrt(control.variance)
        exponent = self.tempering.strictness(control.tempering, t) * (elbo - yardstick) / jnp.maximum(scale, self.floor)
        lucky = jax.random.uniform(key, dtype=elbo.dtype) < self.probability(exponent)
        return jnp.isfinite(elbo) & (jnp.isnan(yardstick) | lucky)  # the first draw has nothing to be compared with

    def judge(self, key, control, problem, journey, yardstick, t):
        elbo, accept = journey.elbo, journey.admitted & journey.finite
        tempering = self.tempering.update(control.tempering, accept & (elbo < yardstick))
        kept = jnp.where(t == 1, 0.0, 0.95)
        ok = jnp.isfinite(elbo)
        mean = jnp.where(ok, kept * control.mean + (1 - kept) * elbo, control.mean)
        variance = jnp.where(ok, 0.95 * control.variance + 0.05 * (elbo - mean) ** 2, control.variance)
        return _plain_verdict(
            accept, DrawControl(tempering, mean, variance), journey, jnp.where(accept, elbo, yardstick),
            self.tempering.strictness(control.tempering, t), gain=elbo - yardstick,
        )  # fmt: skip


@dataclass(frozen=True)
class Naive(_DrawRule):
    """Algorithm 1: accept a draw with probability min(1, 1 + M (L_t - L_ref)/|L_ref|)."""

    def probability(self, exponent):
        return 1.0 + exponent


@dataclass(frozen=True)
class Metropolis(_DrawRule):
    """Algorithm 2: accept a draw with probability min(1, exp(M (L_t - L_ref)/|L_ref|))."""

    def probability(self, exponent):
        return jnp.exp(jnp.minimum(exponent, 0.0))


@dataclass(frozen=True)
class Step(_OneStep):
    """Take the step, look at a fresh draw there, and undo the step with probability 1 - exp(M gain/|L_ref|).

    The author's later form. `restore_optimizer=False` keeps the optimiser's memory of undone steps.
    """

    tempering: Tempering = Logarithmic(3.0)
    restore_optimizer: bool = True
    floor: float = 1e-3

    @property
    def restores_optimizer(self):
        return self.restore_optimizer

    def init(self, problem, trust):
        return self.tempering.init()

    def judge(self, key, control, problem, journey, yardstick, t):
        k_draw, k_luck = jax.random.split(key)
        uniform = open_uniform(k_draw, (problem.noise_size,))
        elbo = problem.elbo(journey.candidate, uniform)
        strictness = self.tempering.strictness(control, t)
        exponent = strictness * (elbo - yardstick) / jnp.maximum(jnp.abs(yardstick), self.floor)
        lucky = jnp.log(jax.random.uniform(k_luck, dtype=elbo.dtype)) < exponent
        accept = journey.finite & jnp.isfinite(elbo) & (jnp.isnan(yardstick) | lucky)
        return _plain_verdict(
            accept, self.tempering.update(control, accept & (elbo < yardstick)), journey, jnp.where(accept, elbo, yardstick),
            strictness, elbo=elbo, gain=elbo - yardstick, values=jnp.asarray(1),
            nonfinite=1 - jnp.isfinite(elbo).astype(int),
        )  # fmt: skip


def open_uniform(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Uniform noise that never touches 0 or 1."""
    tiny = jnp.finfo(jnp.result_type(float)).eps
    return jax.random.uniform(key, shape, minval=tiny, maxval=1.0 - tiny)
