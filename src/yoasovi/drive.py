"""The one loop: every method is a row of parts, and this is where they meet.

A turn is a window of iterations followed by a verdict. For most of the paper's methods the window is one iteration.
Only an acceptance rule may say "roll back"; only `settle` does it, for parameters, optimiser and yardstick together.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from yoasovi.acceptance import CANDIDATE, INCUMBENT, Journey, Plan, Verdict
from yoasovi.gradients import Problem, total
from yoasovi.model.model import Anchor, Density, Inputs
from yoasovi.run.nonfinite import DRAW, GRADIENT, LOG_P, PARAMETER, Refused, note, nothing_refused
from yoasovi.stopping import StopReason


@dataclass(frozen=True)
class Program:
    """All that is static about a fit: rebuilt with equal parts, it hits the same compiled loop."""

    density: Density
    family: Any
    draws: Any
    gradient: Any
    acceptance: Any
    optimizer: Any
    stopping: Any
    max_nonfinite: int  # refused draws in a row that end the fit


class State(NamedTuple):
    """What the next turn needs."""

    # evolving
    params: Any  # where the next turn starts
    incumbent: Any  # the answer so far
    memory: Any  # the optimiser's
    baseline: Any  # the gradient estimator's
    yardstick: jax.Array
    control: Any  # the acceptance rule's
    patience: Any  # the stopping rule's
    anchor: Anchor | None  # of minibatches
    # statistics
    step: jax.Array  # iterations so far
    turn: jax.Array
    values: jax.Array  # evaluations of log p alone
    gradients: jax.Array  # evaluations of log p with its gradient
    accepted: jax.Array
    rollbacks: jax.Array
    refused: Refused  # draws that were not finite
    # output
    reason: jax.Array


class TurnInfo(NamedTuple):
    """One row of the trace; the candidate is recorded whether or not it was taken."""

    step: jax.Array
    evaluations: jax.Array
    elbo: jax.Array
    gain: jax.Array
    gain_se: jax.Array
    accepted: jax.Array
    rolled_back: jax.Array
    strictness: jax.Array
    step_size: jax.Array
    window: jax.Array
    kind: jax.Array


class Trip(NamedTuple):
    """The carry of a window's iterations."""

    params: Any
    memory: Any
    baseline: Any
    average: Any  # of the parameters over the second half
    record: Any  # the window's draws, where the proposal is made from them
    elbo: jax.Array
    admitted: jax.Array
    nonfinite: jax.Array  # draws of this window that were refused
    refused: Refused


def start(program: Program, inputs: Inputs, params: Any, trust: jax.Array) -> State:
    """Give the state before the first turn."""
    problem = Problem(program.density, program.family, inputs)
    control = program.acceptance.init(problem, trust)
    # A look at all the data is worth a window of minibatches, not a single one.
    windows = program.acceptance.plan(control).size is not None
    anchor = program.density.anchored(inputs, params.mean) if program.density.subsampled and windows else None
    zero = jnp.asarray(0)
    state = State(
        params=params, incumbent=params, memory=program.optimizer.init(problem, params),
        baseline=program.gradient.init(problem, params), yardstick=jnp.asarray(jnp.nan, float),
        control=control, patience=program.stopping.init(), anchor=anchor,
        step=zero, turn=zero, values=zero, gradients=jnp.asarray(int(anchor is not None)), accepted=zero, rollbacks=zero,
        refused=nothing_refused(problem, params), reason=jnp.asarray(int(StopReason.RUNNING)),
    )  # fmt: skip
    # No weak types: the loop's answer has none, and would compile the next chunk anew.
    return jax.tree.map(lambda x: jax.lax.convert_element_type(x, x.dtype), state)


def iterate(program: Program, problem: Problem, key, state: State, plan: Plan, i, trip: Trip) -> Trip:
    """One iteration: draw, look, ask whether the draw may be used, and move."""
    t = state.step + i
    uniform = program.draws.at(key, t, problem.noise_size)
    seen = program.gradient.evaluate(problem, trip.params, uniform)
    elbo = jnp.mean(seen.ratio * seen.elbo)
    admitted = program.acceptance.screen(jax.random.fold_in(key, 4 * t + 1), state.control, elbo, state.yardstick, t + 1)

    pathwise = program.gradient.reparameterised

    def use(_):
        weighed = program.acceptance.weigh(seen, state.yardstick)
        direction, baseline = program.gradient.direction(problem, trip.params, trip.baseline, uniform, weighed)
        if pathwise:  # where log p is not finite its derivative may be, and means nothing
            direction = jax.tree.map(lambda g: jnp.where(jnp.isfinite(elbo), g, jnp.nan), direction)
        params, memory = program.optimizer.step(problem, trip.params, trip.memory, direction, plan)
        steep = ~finite(direction)
        # Windows that stand still keep gradients for later, so these must be finite by themselves.
        sound = jnp.isfinite(elbo) & finite((params, memory, baseline, direction if pathwise else ()))
        kept = keep(sound, (params, memory, baseline), (trip.params, trip.memory, trip.baseline))
        return *kept, program.optimizer.record(trip.record, trip.memory, direction, i), sound, steep

    def skip(_):
        return trip.params, trip.memory, trip.baseline, trip.record, jnp.isfinite(elbo), jnp.asarray(False)

    always = admitted is True
    params, memory, baseline, record, sound, steep = use(None) if always else jax.lax.cond(admitted, use, skip, None)
    draws = jax.vmap(partial(problem.draw, trip.params))(uniform) if pathwise else seen.theta
    first = jnp.argmin(jnp.isfinite(seen.elbo) & jax.vmap(finite)(seen.theta))
    kind = jnp.select([~finite(draws), ~jnp.isfinite(elbo), steep], [DRAW, LOG_P, GRADIENT], PARAMETER)
    culprit = jax.tree.map(lambda x: x[first], draws)
    refused = note(trip.refused, ~sound, kind, t, culprit, program.max_nonfinite)
    weight = 1.0 / (1.0 + jnp.maximum(i - plan.size // 2, 0))
    average = jax.tree.map(lambda a, p: a + weight * (p - a), trip.average, params)
    return Trip(params, memory, baseline, average, record, elbo, jnp.asarray(admitted), trip.nonfinite + ~sound, refused)


def turn(program: Program, inputs: Inputs, key, max_steps, state: State) -> tuple[State, TurnInfo]:
    """One window of iterations, its proposal, the verdict on it, and what follows."""
    plan, trip = travel(program, inputs, key, max_steps, state)
    return arrive(program, inputs, key, max_steps, state, plan, trip)


def travel(program: Program, inputs: Inputs, key, max_steps, state: State) -> tuple[Plan, Trip]:
    """The window's iterations."""
    problem = Problem(program.density, program.family, inputs, state.anchor)
    plan = program.acceptance.plan(state.control)
    alive = state.reason == StopReason.RUNNING  # a finished fit among unfinished ones (restarts) idles
    if plan.size is not None:
        plan = plan._replace(size=jnp.where(alive, jnp.minimum(plan.size, max_steps - state.step), 0))
    trip = Trip(
        state.params, state.memory, state.baseline, state.params, program.optimizer.blank(problem, program.acceptance),
        jnp.asarray(jnp.nan, float), jnp.asarray(False), jnp.asarray(0), state.refused,
    )  # fmt: skip
    body = partial(iterate, program, problem, key, state)
    if plan.size is None:
        plan = plan._replace(size=jnp.asarray(1))
        trip = body(plan, 0, trip)
    else:
        trip = jax.lax.fori_loop(0, plan.size, lambda i, c: body(plan, i, c), trip)
    return plan, trip


def arrive(program: Program, inputs: Inputs, key, max_steps, state: State, plan: Plan, trip: Trip) -> tuple[State, TurnInfo]:
    """The window's proposal, the verdict on it, and what follows."""
    problem = Problem(program.density, program.family, inputs, state.anchor)
    candidate, memory, forecast = program.optimizer.propose(problem, state.params, trip, plan)
    trip = trip._replace(memory=memory)
    alive, sound = state.reason == StopReason.RUNNING, finite(candidate)
    journey = Journey(candidate, trip.params, state.incumbent, trip.elbo, trip.admitted, sound & alive, forecast)
    key = jax.random.fold_in(key, 4 * state.step + 3)
    verdict = program.acceptance.judge(key, state.control, problem, journey, state.yardstick, state.turn + 1)
    # Whatever a rule says, parameters stay finite.
    verdict, candidate = verdict._replace(accept=verdict.accept & sound), keep(sound, candidate, state.incumbent)
    counts = trip.refused.counts.at[LOG_P].add(verdict.nonfinite).at[PARAMETER].add(alive & ~sound)
    trip = trip._replace(refused=trip.refused._replace(counts=counts))
    return settle(program, problem, state, trip, candidate, verdict, plan, max_steps)


def settle(
    program, problem, state: State, trip: Trip, candidate, verdict: Verdict, plan, max_steps
) -> tuple[State, TurnInfo]:
    """Do what the verdict says, in one place, and count."""
    incumbent = keep(verdict.accept, candidate, state.incumbent)
    back = verdict.rollback
    here = keep(verdict.resume == CANDIDATE, candidate, trip.params)
    params = keep(back | (verdict.resume == INCUMBENT), incumbent, here)
    memory, baseline = trip.memory, trip.baseline
    if program.acceptance.restores_optimizer:
        memory = keep(back, program.optimizer.restart(state.memory), memory)
        baseline = keep(back, state.baseline, baseline)
    departed = program.optimizer.depart(problem, params, memory, verdict.control)
    params = keep(finite(departed), departed, params)
    patience, stop = program.stopping.update(
        state.patience, verdict.missed, verdict.progressed, relative_change(state.params, params)
    )
    size, draws = plan.size, program.draws.size
    # A window that went astray and was undone says nothing against the model.
    astray = back & (trip.nonfinite < size)
    refused = trip.refused._replace(run=jnp.where(astray, 0, trip.refused.run))
    spent = size * draws
    step = state.step + size
    planned = program.acceptance.plan(state.control).size
    whole = planned is None or size >= planned  # a window cut short by `max_steps` proves nothing
    reason = jnp.select(
        [refused.run >= program.max_nonfinite, (verdict.settled | stop) & whole, verdict.stuck, step >= max_steps],
        [int(r) for r in (StopReason.NON_FINITE, StopReason.CONVERGED, StopReason.NO_STEP, StopReason.MAX_STEPS)],
        int(StopReason.RUNNING),
    )
    pathwise = program.gradient.reparameterised
    values = state.values + verdict.values + (0 if pathwise else spent)
    gradients = state.gradients + (spent if pathwise else 0)
    anchor = state.anchor
    if anchor is not None:
        drifted = (reason == StopReason.RUNNING) & drifts(problem, incumbent, anchor)
        anchor, gradients = anchored_anew(problem, drifted, incumbent, anchor), gradients + drifted
    new = State(
        params, incumbent, memory, baseline, verdict.yardstick, verdict.control, patience, anchor, step, state.turn + 1,
        values, gradients, state.accepted + verdict.accept, state.rollbacks + back, refused, reason,
    )  # fmt: skip
    info = TurnInfo(
        step, values + gradients, verdict.elbo, verdict.gain, verdict.gain_se, verdict.accept, back, verdict.strictness,
        jnp.asarray(plan.length, float), size, jnp.asarray(plan.kind),
    )  # fmt: skip
    return new, info


def drifts(problem: Problem, params, anchor: Anchor) -> jax.Array:
    """Say whether the anchor is so far from q's mean that it adds to the noise of minibatches, as told by log q."""
    heights = [total(problem.family.log_q(params, x)) for x in (params.mean, anchor.flat)]
    return ~(heights[0] - heights[1] < 0.1 * problem.density.dim)


def anchored_anew(problem: Problem, drifted, params, anchor: Anchor) -> Anchor:
    """Move the anchor to q's mean where it has drifted: one gradient on all the data."""
    new = jax.lax.cond(drifted, lambda: problem.density.anchored(problem.inputs, params.mean), lambda: anchor)
    return keep(finite(new), new, anchor)


def run_chunk(program: Program, inputs: Inputs, key, state: State, max_steps, turns: int) -> tuple[State, TurnInfo]:
    """Take up to `turns` turns; rows of the trace past the end have `window` 0."""

    def go(state):
        return turn(program, inputs, key, max_steps, state)

    def guarded(state, _):
        blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(go, state)[1])
        return jax.lax.cond(state.reason == StopReason.RUNNING, go, lambda s: (s, blank), state)

    return jax.lax.scan(guarded, state, None, length=turns)


def keep(condition, new, old):
    """Choose between two trees of arrays."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), new, old)


def finite(tree) -> jax.Array:
    """Say whether every number in the tree is finite."""
    checks = [jnp.isfinite(x).all() for x in jax.tree.leaves(tree) if jnp.issubdtype(jnp.asarray(x).dtype, jnp.floating)]
    return jnp.stack(checks).all() if checks else jnp.asarray(True)


def relative_change(old, new) -> jax.Array:
    """|new - old| / |old| over all parameters."""
    squares = lambda tree: sum(jnp.sum(x**2) for x in jax.tree.leaves(tree))
    return jnp.sqrt(squares(jax.tree.map(jnp.subtract, new, old)) / jnp.maximum(squares(old), 1e-30))
