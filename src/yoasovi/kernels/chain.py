"""Single steps in a row, accepting and undoing inside: the paper's methods, and score steps in windows.

One turn: draw, look, ask whether the draws may be used, move, and keep or undo. The noise of all turns is handed in. Where
log p is called by the host, a turn is cut in two there: what to look at, and what follows from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from yoasovi.acceptance import StepSeen
from yoasovi.gradients import Problem, Seen, seen_at
from yoasovi.kernels.walk import DRAW, GRADIENT, LOG_P, PARAMETER, Refused, finite, keep, note
from yoasovi.model import Density, Terms
from yoasovi.stopping import StopReason


@dataclass(frozen=True)
class Parts:
    """All that is static about a chain: rebuilt with equal parts, it hits the same compiled program."""

    density: Density
    family: Any
    gradient: Any
    acceptance: Any
    optimizer: Any
    stopping: Any
    draws: int  # per iteration

    @property
    def costs(self) -> tuple[int, int]:
        """Values and gradients of log p that one turn takes."""
        again = int(self.acceptance.looks_again)
        return (again, self.draws) if self.gradient.reparameterised else (self.draws + again, 0)


class Link(NamedTuple):
    """The state of one lane between two turns."""

    params: Any
    memory: Any  # the optimiser's
    baseline: Any  # the gradient estimator's
    yardstick: Any
    control: Any  # the acceptance rule's
    patience: Any  # the stopping rule's
    average: Any  # of the parameters over a window's second half
    step: Any
    refused: Refused
    reason: Any


class Noise(NamedTuple):
    """What turns need of randomness; axes (turns, ...)."""

    draws: Any  # (S, k)
    fresh: Any  # (1, k) for a second look; None without
    luck: Any  # (2,) uniform
    keys: Any  # (S, 2), naming minibatches; None without
    fresh_keys: Any  # (1, 2), that of the second look


class ChainLimits(NamedTuple):
    """Where a chain ends, and how its average is taken."""

    max_steps: Any
    max_nonfinite: Any
    length: Any  # multiplies the optimiser's steps
    first: Any  # step at which the window to be averaged begins
    size: Any  # of that window


class TurnSeen(NamedTuple):
    """What one turn has to tell; `done` is False for turns that were not taken."""

    elbo: Any
    gain: Any
    accepted: Any
    strictness: Any
    done: Any


def begin(parts: Parts, inputs: Any, params: Any) -> Link:
    """Give the state before the first turn of one lane."""
    problem = Problem(parts.density, parts.family, inputs)
    size = parts.family.noise_size(parts.density)
    theta = jax.eval_shape(problem.draws, params, jax.ShapeDtypeStruct((1, size), jnp.result_type(float)))
    blank = jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), theta)
    none = jnp.asarray(0)
    made = Link(
        params, parts.optimizer.init(params), parts.gradient.init(problem, params), jnp.asarray(jnp.nan, float),
        parts.acceptance.init(), parts.stopping.init(), params, none,
        Refused(jnp.zeros(4, int), none, none, none, blank), jnp.asarray(int(StopReason.RUNNING)),
    )  # fmt: skip
    # No weak types: the chain's answer has none, and would compile the next call anew.
    return jax.tree.map(lambda x: jax.lax.convert_element_type(x, jnp.asarray(x).dtype), made)


class Moved(NamedTuple):
    """Where the draws of a turn lead."""

    params: Any
    memory: Any
    baseline: Any
    elbo: Any  # of the draws
    admitted: Any  # were they used?
    sound: Any  # was everything finite?
    steep: Any  # was the direction not finite?


def turn(
    parts: Parts, problem: Problem, limits: ChainLimits, link: Link, noise: Noise, seen: Seen | None = None,
    again: Any = None,
):  # fmt: skip
    """Take one turn; what is seen may be given, and log p at the draw of the second look."""
    t = link.step + 1
    if seen is None:
        seen = parts.gradient.evaluate(problem, link.params, noise.draws, noise.keys)
    moved = move(parts, problem, limits, link, noise, seen)

    def look(params):
        if again is None:
            return problem.elbo(params, noise.fresh, noise.fresh_keys)[0]
        return again - problem.log_q(params, problem.draws(params, noise.fresh))[0]

    journey = StepSeen(moved.params, moved.elbo, moved.admitted, moved.sound)
    answer = parts.acceptance.judge(look, noise.luck[1], link.control, journey, link.yardstick, t)
    accept = answer.accept
    params, memory, baseline = keep(accept, moved.params, link.params), moved.memory, moved.baseline
    if parts.acceptance.restores_optimizer:
        memory, baseline = keep(accept, (memory, baseline), (link.memory, link.baseline))
    refused = _noted(limits, link, seen, moved)
    if parts.acceptance.looks_again:
        refused = refused._replace(counts=refused.counts.at[LOG_P].add(~jnp.isfinite(answer.elbo)))
    patience, stop = parts.stopping.update(link.patience, ~accept, accept, relative_change(link.params, params))
    share = 1.0 / (1.0 + jnp.maximum(link.step - limits.first - limits.size // 2, 0))
    average = jax.tree.map(lambda a, p: a + share * (p - a), link.average, params)
    reason = jnp.select(
        [refused.run >= limits.max_nonfinite, stop, t >= limits.max_steps],
        [int(StopReason.NON_FINITE), int(StopReason.CONVERGED), int(StopReason.MAX_STEPS)], int(StopReason.RUNNING),
    )  # fmt: skip
    new = Link(
        params, memory, baseline, answer.yardstick, answer.control, patience, average, t, refused, reason,
    )  # fmt: skip
    return new, TurnSeen(answer.elbo, answer.gain, accept, answer.strictness, jnp.asarray(True))


def move(parts: Parts, problem: Problem, limits: ChainLimits, link: Link, noise: Noise, seen: Seen) -> Moved:
    """Ask whether the draws may be used, and go where they lead; nowhere if anything on the way is not finite."""
    elbo = jnp.mean(seen.ratio * seen.elbo)
    admitted = parts.acceptance.screen(noise.luck[0], link.control, elbo, link.yardstick, link.step + 1)
    here = (link.params, link.memory, link.baseline)

    def use(_):
        weighed = parts.acceptance.weigh(seen, link.yardstick)
        direction, baseline = parts.gradient.direction(problem, link.params, link.baseline, noise.draws, weighed)
        steep = ~finite(direction)
        params, memory = parts.optimizer.step(parts.family, link.params, link.memory, direction, limits.length)
        sound = jnp.isfinite(elbo) & finite((params, memory, baseline))
        if parts.gradient.reparameterised:  # a direction that is not finite may leave an optimiser's parameters finite
            sound = sound & ~steep
        return *keep(sound, (params, memory, baseline), here), sound, steep

    def skip(_):
        return *here, jnp.isfinite(elbo), jnp.asarray(False)

    always = admitted is True
    params, memory, baseline, sound, steep = use(None) if always else jax.lax.cond(admitted, use, skip, None)
    return Moved(params, memory, baseline, elbo, jnp.asarray(admitted), sound, steep)


def _noted(limits: ChainLimits, link: Link, seen: Seen, moved: Moved) -> Refused:
    """Take note of draws that were not finite, and keep the first of them."""
    flat = lambda x: jnp.isfinite(x).reshape(len(x), -1).all(1) if jnp.issubdtype(x.dtype, jnp.floating) else True
    placed = jnp.ones(len(seen.elbo), bool)
    for x in jax.tree.leaves(seen.theta):
        placed = placed & flat(x)
    good = jnp.isfinite(seen.elbo) & placed
    first = jnp.argmin(good if seen.steep is None else good & ~seen.steep)
    kind = jnp.select([~placed.all(), ~jnp.isfinite(moved.elbo), moved.steep], [DRAW, LOG_P, GRADIENT], PARAMETER)
    culprit = jax.tree.map(lambda x: x[first], seen.theta)
    return note(link.refused, ~moved.sound, kind, link.step, culprit, limits.max_nonfinite)


def relative_change(old, new) -> jax.Array:
    """|new - old| / |old| over all parameters."""
    squares = lambda tree: sum(jnp.sum(x**2) for x in jax.tree.leaves(tree))
    return jnp.sqrt(squares(jax.tree.map(jnp.subtract, new, old)) / jnp.maximum(squares(old), 1e-30))


# ---- programs ----------------------------------------------------------------------------------------------


def _begin(parts, inputs, params):
    return jax.vmap(lambda p: begin(parts, inputs, p))(params)


def _chain(parts, inputs, links, noise, limits, count):
    problem, most = Problem(parts.density, parts.family, inputs), noise.luck.shape[1]
    nan, no = jnp.asarray(jnp.nan, float), jnp.asarray(False)
    blank = TurnSeen(nan, nan, no, nan, no)

    def lane(link, noise, limits):
        def body(i, carry):
            link, told = carry
            go = lambda link: turn(parts, problem, limits, link, jax.tree.map(lambda x: x[i], noise))
            link, row = jax.lax.cond(link.reason == StopReason.RUNNING, go, lambda link: (link, blank), link)
            return link, jax.tree.map(lambda rows, x: rows.at[i].set(x), told, row)

        told = jax.tree.map(lambda x: jnp.broadcast_to(x, most), blank)
        return jax.lax.fori_loop(0, count, body, (link, told))

    if len(links.step) > 1:
        return jax.vmap(lane)(links, noise, limits)
    # A single lane is not mapped over: its conditionals stay conditionals.
    return jax.tree.map(lambda x: x[None], lane(*jax.tree.map(lambda x: x[0], (links, noise, limits))))


def _ask(parts, inputs, params, noise):
    """Give the draws that a turn wants to look at."""
    problem = Problem(parts.density, parts.family, inputs)
    wide = _drawn_from(parts, problem, params)
    return problem.draws(params if wide is None else wide, noise.draws)


def _ask_again(parts, inputs, link, noise, limits, theta, values):
    """Give the draw, at the place the turn leads to, that its rule wants to look at."""
    problem = Problem(parts.density, parts.family, inputs)
    moved = move(parts, problem, limits, link, noise, _told(parts, problem, link.params, theta, values))
    return problem.draws(moved.params, noise.fresh)


def _tell(parts, inputs, link, noise, limits, theta, values, *again):
    """Go on with the values that the host found at those draws, and at that of the second look if there is one."""
    problem = Problem(parts.density, parts.family, inputs)
    return turn(parts, problem, limits, link, noise, _told(parts, problem, link.params, theta, values), *again)


def _told(parts, problem, params, theta, values) -> Seen:
    terms = Terms({s.name: jnp.zeros_like(values) for s in parts.density.sites}, {}, values[:, None])
    return seen_at(problem, params, theta, terms, _drawn_from(parts, problem, params))


def _drawn_from(parts, problem, params):
    return getattr(parts.gradient, "drawn_from", lambda problem, params: None)(problem, params)
