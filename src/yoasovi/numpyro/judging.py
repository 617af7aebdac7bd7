"""The parts that put a NumPyro guide, loss and optimiser into the loop, and the rule that judges windows of their steps.

A draw is a random key, and log p - log q at a draw is minus the loss with that key. The length of a step has no natural
unit here (it is the user's learning rate that has to be mended), so the rule finds it: longer while the end of a window
beats its average, shorter once the average beats the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from yoasovi.acceptance import CANDIDATE, INCUMBENT, STEPS, Plan, Verdict
from yoasovi.gradients import Seen
from yoasovi.model.model import Terms
from yoasovi.tempering import Logarithmic, Tempering
from yoasovi.windows.rule import even, paired_gain

# Pairs of losses that a window may spend on whether its average beats its end, and on whether it beats the incumbent.
_MOST_FOR_NOISE, _MOST_FOR_GAIN = 64, 256
_BLOCK = 16  # pairs evaluated side by side; more would need more memory than a user of one particle expects
Loss = Callable[[Any, jax.Array], jax.Array]  # of (unconstrained parameters, key)


@dataclass(frozen=True)
class Keys:
    """One key per iteration."""

    size: ClassVar[int] = 1

    def at(self, key, step, size):
        """Give the key of a step, shape (1,)."""
        return jax.random.fold_in(key, step)[None]


@dataclass(frozen=True)
class Guided:
    """A guide and its model, seen through their loss in nats."""

    loss: Loss
    unit: float  # what one nat is in the loss, where `handlers.scale` has scaled it
    name: ClassVar[str] = "guide"

    def noise_size(self, density):
        return 2

    def draw(self, density, params, uniform):
        """Give nothing: the guide's draws stay inside its loss."""
        return jnp.asarray(0.0)

    def draw_with_log_q(self, density, params, uniform):
        """Make a key of two uniform numbers; log q is in the loss already."""
        words = (uniform * 2.0**24).astype(jnp.uint32)
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), words[0]), words[1])
        return (params, key), jnp.asarray(0.0)

    def terms(self, density, inputs, theta):
        return Terms({}, {}, -self.loss(*theta)[None] / self.unit)


@dataclass(frozen=True)
class LossGradient:
    """The gradient of the loss, as NumPyro's own SVI takes it."""

    forward: bool
    reparameterised: ClassVar[bool] = True

    def init(self, problem, params):
        return ()

    def evaluate(self, problem, params, uniform):
        def loss(params):
            value = problem.family.loss(params, uniform[0])
            return value, value

        differentiate = jax.jacfwd if self.forward else jax.grad
        gradient, value = differentiate(loss, has_aux=True)(params)
        return Seen(jax.tree.map(lambda g: g[None], gradient), None, None, jnp.ones(1), -value[None])

    def direction(self, problem, params, memory, uniform, seen):
        """Give the gradient of the loss with its value, which some optimisers want."""
        return (jax.tree.map(lambda g: g[0], seen.theta), -seen.elbo[0]), memory


@dataclass(frozen=True)
class Steps:
    """Steps of a NumPyro optimiser (every optax one is wrapped as such), times the length the rule asks for.

    Its state holds the parameters, and `put` changes them there; the record of a window is its losses.
    """

    optim: Any
    put: Callable[[Any, Any], Any]
    longest: int

    def init(self, problem, params):
        return self.optim.init(params)

    def step(self, problem, params, memory, direction, plan):
        gradient, loss = direction
        memory = self.optim.update(gradient, self.put(memory, params), value=loss)
        moved = jax.tree.map(lambda p, q: p + plan.length * (q - p), params, self.optim.get_params(memory))
        return moved, memory

    def blank(self, problem, acceptance):
        return jnp.full(self.longest, jnp.nan)

    def record(self, record, memory, direction, i):
        return record.at[i].set(direction[1].astype(record.dtype), mode="drop")

    def propose(self, problem, start, trip, plan):
        """Propose the average of the window's second half if it beats the window's end on common draws, else the end."""
        key = jax.random.fold_in(jax.random.key(1), trip.memory[0])
        noise = paired_gain(key, problem, trip.average, trip.params, _MOST_FOR_NOISE, _BLOCK)
        quiet = noise.mean > 0
        candidate = jax.tree.map(lambda a, b: jnp.where(quiet, a, b), trip.average, trip.params)
        return candidate, trip.memory, noise

    def restart(self, memory):
        return memory

    def depart(self, problem, params, memory, control):
        return params


class Control(NamedTuple):
    """What the rule adapts."""

    size: jax.Array  # steps in the next window
    length: jax.Array  # multiplies the optimiser's own steps
    noisy: jax.Array  # has noise shown since steps last descended? If so they are long enough to get somewhere


# What a flat window takes of the patience of `Judge`: much where noise has shown that steps are long enough to get
# somewhere, little where they may just have been too short (the next ones are twice as long).
_SURE_MISS, _FAINT_MISS = 3, 1


@dataclass(frozen=True)
class Judge:
    """Judge windows of an arbitrary optimiser's steps by the paired gain over the incumbent.

    Parameters
    ----------
    first, longest
        Steps in the first window, and in the longest.
    sure
        Standard errors beyond which a gain is believed.
    flat
        A window whose gain is smaller than this beyond doubt uses up patience: nats.
    tempering
        A flat window that looks worse is kept with probability exp(M(t) gain / se), t counting windows.
    """

    first: int = 64
    longest: int = 1024
    sure: float = 2.0
    flat: float = 0.05
    tempering: Tempering = Logarithmic(3.0)
    patience: ClassVar[int] = 3 * _SURE_MISS
    restores_optimizer: ClassVar[bool] = True

    def init(self, problem, trust):
        return Control(jnp.asarray(self.first), jnp.asarray(1.0), jnp.asarray(False))

    def plan(self, control):
        return Plan(control.size, control.length, STEPS, 1.0, 1.0)

    def weigh(self, seen, yardstick):
        return seen

    def screen(self, key, control, elbo, yardstick, t):
        return True

    def judge(self, key, control, problem, journey, yardstick, t):
        k_gain, k_luck = jax.random.split(key)
        most = jnp.where(journey.finite, _MOST_FOR_GAIN, 0)
        gain = paired_gain(k_gain, problem, journey.candidate, journey.incumbent, most, _BLOCK)
        mean = jnp.where(journey.finite, gain.mean, -jnp.inf)
        se = jnp.where(journey.finite, gain.se, 0.0)
        better, worse = mean > self.sure * se, mean < -self.sure * se
        small = jnp.abs(mean) + self.sure * se < self.flat
        strictness = self.tempering.strictness(self.tempering.init(), t)
        lucky = small & (jnp.log(jax.random.uniform(k_luck, dtype=mean.dtype)) < strictness * mean / se)
        likely = (mean > 0) & (gain.wins > 0.5)
        noise = journey.forecast
        after = self._adapt(control, mean, worse, small, noise)
        missed = jnp.where(small, jnp.where(after.noisy, _SURE_MISS, _FAINT_MISS), 0)
        accept = better | (~worse & (lucky | likely))
        return Verdict(
            accept=accept, rollback=worse, resume=jnp.where(worse, INCUMBENT, CANDIDATE), missed=missed,
            progressed=better & ~small, settled=jnp.asarray(False), stuck=control.length < 1e-10,
            yardstick=jnp.where(accept, gain.elbo, yardstick), elbo=gain.elbo, gain=mean, gain_se=se, strictness=strictness,
            values=2 * (gain.pairs + noise.pairs), nonfinite=gain.nonfinite + noise.nonfinite,
            control=after,
        )  # fmt: skip

    def _adapt(self, control: Control, gain, worse, small, noise) -> Control:
        """Shorten steps that led astray or whose noise is most of what they brought; lengthen those that still descend."""
        descends, shows = noise.mean < -self.sure * noise.se, noise.mean > noise.se
        noisy = shows & (noise.mean > 0.5 * jnp.maximum(gain, 0.0))
        known = jnp.where(descends, False, control.noisy | shows)
        lost = worse & ~jnp.isfinite(gain)
        factor = jnp.select([lost, worse, noisy, descends, small & ~known], [0.1, 0.5, 0.5, 2.0, 2.0], 1.0)
        growth = jnp.select([worse, small & known, descends], [1.0, 1.5, 1.0], 1.25)
        size = jnp.minimum(even(growth * control.size), self.longest)
        return Control(size, control.length * factor, known)


def selector(optim, state) -> Callable[[Any, Any], Any] | None:
    """Give a function that puts parameters into a state of `optim`; None if its state does not hold them as they are."""
    leaves, tree = jax.tree.flatten(state[1])
    marks = [_Mark(i) for i in range(len(leaves))]
    try:
        found = jax.tree.leaves(optim.get_params_fn(jax.tree.unflatten(tree, marks)))
        where = [mark.index for mark in found]
    except Exception:  # arithmetic on marks: parameters are computed from the state, not held in it
        return None

    def put(state, params):
        leaves, tree = jax.tree.flatten(state[1])
        for i, leaf in zip(where, jax.tree.leaves(params), strict=True):
            leaves[i] = leaf
        return state[0], jax.tree.unflatten(tree, leaves)

    return put


@dataclass(frozen=True)
class _Mark:
    index: int
