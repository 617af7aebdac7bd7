"""What one turn of each kind of method is: plan, look, propose, judge; and `settle`, which does what the verdict says.

Windows decide on the host, for all running lanes at once; single steps run many to a call inside `kernels.chain`. Only a
rule may say "roll back", and only `settle` (in a chain, `chain.turn`) does it, for parameters, optimiser and yardstick
together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import jax
import numpy as np

from yoasovi.acceptance import Always
from yoasovi.kernels import chain
from yoasovi.kernels.looks import Rows
from yoasovi.kernels.walk import DRAW, GRADIENT, LOG_P, PARAMETER, Pace, Refused, Steps, Trip, nothing_refused, walk
from yoasovi.methods import Method
from yoasovi.model.minibatch import Anchor
from yoasovi.randomness import Purpose, key_words, open_uniform, stream
from yoasovi.start import put, take
from yoasovi.stopping import MaxSteps, StopReason
from yoasovi.windows import judge
from yoasovi.windows.state import CANDIDATE, INCUMBENT, LINE, STEPS, Forecast, Plan, Ruling, Setting
from yoasovi.windows.value_regression import absorbed, fit_line, local_promise, newton, nothing_known, promise, values_of
from yoasovi.windows.value_rule import ValueForecast

# Single steps: turns whose noise is made together, and their numbers of noise; turns, numbers and work in one call.
_BLOCK, _BLOCK_NUMBERS = 32, 2**20
_TURNS, _NUMBERS, _WORK = 256, 2**22, 2**28


class State(NamedTuple):
    """What the next turn needs, and what has been spent; every array has a leading axis of lanes."""

    # evolving
    params: Any  # where the next turn starts
    incumbent: Any  # the answer so far
    memory: Any  # the optimiser's
    yardstick: np.ndarray
    control: Any  # the rule's
    patience: Any  # the stopping rule's
    anchor: Anchor | None  # of minibatches
    # statistics
    step: np.ndarray  # iterations so far
    turn: np.ndarray
    values: np.ndarray  # evaluations of log p alone
    gradients: np.ndarray  # evaluations of log p with its gradient
    refused: Refused  # draws that were not finite
    # output
    reason: np.ndarray


class TurnRow(NamedTuple):
    """Rows of the trace, (lanes, turns); the candidate is recorded whether or not it was taken. No window: no turn."""

    step: np.ndarray
    evaluations: np.ndarray
    elbo: np.ndarray
    gain: np.ndarray
    gain_se: np.ndarray
    accepted: np.ndarray
    rolled_back: np.ndarray
    strictness: np.ndarray
    step_size: np.ndarray
    window: np.ndarray
    kind: np.ndarray


class Journey(NamedTuple):
    """What the draws of a window led to, by lane."""

    candidate: Any
    end: Any  # where the last iteration left the parameters
    memory: Any
    forecast: Any
    refused: Refused
    nonfinite: np.ndarray  # draws of this window that were refused
    values: np.ndarray
    gradients: np.ndarray


class Limits(NamedTuple):
    """Where a run ends."""

    seed: int
    max_steps: int
    max_nonfinite: int


class Turns(ABC):
    """Turns of one kind of method."""

    def __init__(self, kernels: Any, method: Method, setting: Setting, limits: Limits):
        self.kernels, self.method, self.setting, self.limits = kernels, method, setting, limits
        self.family, self.rule = setting.family, method.acceptance

    @abstractmethod
    def begin(self, params: Any, trust: np.ndarray) -> State:
        """Give the state before the first turn."""

    @abstractmethod
    def take(self, state: State) -> tuple[State, TurnRow]:
        """Take one turn, or a few, of every lane that is running."""


class WindowTurns(Turns):
    """A window of iterations, its proposal, and the verdict on it."""

    @abstractmethod
    def travel(self, state: State, plan: Plan, place: int) -> Journey:
        """Take the window's draws, and say where they lead."""

    @abstractmethod
    def judged(self, state: State, plan: Plan, journey: Journey, sound: np.ndarray, place: int):
        """Rule on the window; also how many values that took, and how many of them were not finite."""

    def departed(self, state: State, running: np.ndarray) -> Any:
        """Give where the next window starts, from where the ruling left the parameters."""
        return state.params

    def take(self, state):
        lanes = np.flatnonzero(state.reason == StopReason.RUNNING)
        part, place = take(state, lanes), int(state.turn[lanes[0]])
        planned = self.rule.plan(part.control)
        plan = planned._replace(size=np.minimum(planned.size, self.limits.max_steps - part.step))
        journey = self.travel(part, plan, place)
        sound = finite_lanes(journey.candidate)
        ruling, values, nonfinite = self.judged(part, plan, journey, sound, place)
        # Whatever a rule says, parameters stay finite.
        ruling = ruling._replace(accept=ruling.accept & sound)
        journey = journey._replace(candidate=pick(sound, journey.candidate, part.incumbent))
        counts = journey.refused.counts.copy()
        counts[:, LOG_P] += nonfinite
        counts[:, PARAMETER] += ~sound
        journey = journey._replace(refused=journey.refused._replace(counts=counts), values=journey.values + values)
        new = self._settled(part, plan, planned, journey, ruling)
        row = TurnRow(
            new.step, new.values + new.gradients, ruling.elbo, ruling.gain, ruling.gain_se, ruling.accept, ruling.rollback,
            ruling.strictness, plan.length, plan.size, plan.kind,
        )  # fmt: skip
        blank = TurnRow(*(np.zeros((len(state.step), 1), x.dtype) for x in row))
        return put(state, lanes, new), TurnRow(*(put(b, lanes, x[:, None]) for b, x in zip(blank, row, strict=True)))

    def _settled(self, state: State, plan: Plan, planned: Plan, journey: Journey, ruling: Ruling) -> State:
        """Do what the ruling says, in one place, and count."""
        incumbent = pick(ruling.accept, journey.candidate, state.incumbent)
        here = pick(ruling.resume == CANDIDATE, journey.candidate, journey.end)
        params = pick(ruling.rollback | (ruling.resume == INCUMBENT), incumbent, here)
        memory = pick(ruling.rollback, self.forgotten(state.memory), journey.memory)
        change = relative_change(state.params, params)
        patience, stop = self.method.stopping.update(state.patience, ruling.missed, ruling.progressed, change)
        # A window that went astray and was undone says nothing against the model.
        astray = ruling.rollback & (journey.nonfinite < plan.size)
        refused = journey.refused._replace(run=np.where(astray, 0, journey.refused.run))
        step = state.step + plan.size
        whole = plan.size >= planned.size  # a window cut short by `max_steps` proves nothing
        conditions = [
            refused.run >= self.limits.max_nonfinite, (ruling.settled | stop) & whole, ruling.stuck,
            step >= self.limits.max_steps,
        ]  # fmt: skip
        reasons = (StopReason.NON_FINITE, StopReason.CONVERGED, StopReason.NO_STEP, StopReason.MAX_STEPS)
        reason = np.select(conditions, [int(r) for r in reasons], int(StopReason.RUNNING))
        new = State(
            params, incumbent, memory, ruling.yardstick, ruling.control, patience, state.anchor, step, state.turn + 1,
            state.values + journey.values, state.gradients + journey.gradients, refused, reason,
        )  # fmt: skip
        new = new._replace(params=self.departed(new, reason == StopReason.RUNNING))
        return self._anchored(new)

    def forgotten(self, memory: Any) -> Any:
        """Forget what led astray, after a rollback."""
        return memory

    def _anchored(self, state: State) -> State:
        return state

    def paired(self, new: Any, old: Any, most: np.ndarray, place: int, which: int, anchor: Anchor | None) -> judge.Gain:
        """Compare two q on the same fresh noise, a block of pairs at a time, until sure or `most` pairs are spent."""
        tally = judge.empty(np.zeros(len(most)))
        rng = stream(self.limits.seed, Purpose.JUDGE, place, which)
        keys = stream(self.limits.seed, Purpose.JUDGE_ROWS, place, which)
        size = self.family.noise_size(self.kernels.density)
        lanes = np.flatnonzero(most > 0)
        while lanes.size:
            shape = (lanes.size, judge.BLOCK, size)
            noise = self.noise(rng, shape)
            rows = None if anchor is None else Rows(key_words(keys, shape[:2]), take(anchor, lanes))
            pairs = self.kernels.pairs(take(new, lanes), take(old, lanes), noise, rows)
            tally = put(tally, lanes, judge.add(take(tally, lanes), *pairs))
            lanes = lanes[(tally.drawn[lanes] < most[lanes]) & ~judge.sure(take(tally, lanes))]
        return judge.gained(tally)

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Give independent noise of the family's own kind."""
        return rng.standard_normal(shape)

    def window_ruling(self, state: State, plan: Plan, journey: Journey, sound, place: int):
        """Rule by paired gains: of the candidate over the incumbent, and over the window's end."""
        asked = [np.where(sound, most, 0) for most in self.rule.most_pairs(state.control)]
        gain = self.paired(journey.candidate, state.incumbent, asked[0], place, 0, state.anchor)
        noise = self.paired(journey.candidate, journey.end, asked[1], place, 1, state.anchor)
        luck = open_uniform(stream(self.limits.seed, Purpose.LUCK, place), sound.shape)
        with np.errstate(invalid="ignore"):
            ruling = self.rule.rule(
                self.setting, state.control, gain, noise, journey.forecast, sound, state.yardstick, luck, state.turn + 1
            )
        return ruling, 2 * (gain.pairs + noise.pairs), gain.nonfinite + noise.nonfinite


class NaturalTurns(WindowTurns):
    """Lines through scores while q stands still, then windows of natural steps."""

    def begin(self, params, trust):
        lanes, dim = params.mean.shape
        size = self.family.noise_size(self.kernels.density)
        still = [self.family.natural(take(params, i), np.zeros(size), np.zeros(dim)) for i in range(lanes)]
        velocity = jax.tree.map(lambda *x: np.zeros_like(np.stack(x)), *still)
        anchor = self.kernels.anchor(params.mean) if self.setting.batched else None
        zero = np.zeros(lanes, int)
        return State(
            params, params, Pace(velocity, np.zeros((lanes, dim)), np.zeros(lanes)), np.full(lanes, np.nan),
            self.rule.init(self.setting, lanes, trust), in_lanes(self.method.stopping.init(), lanes), anchor,
            zero, zero, zero, zero + (anchor is not None), nothing_refused(np.zeros((lanes, dim)), lanes),
            zero + int(StopReason.RUNNING),
        )  # fmt: skip

    def travel(self, state, plan, place):
        lanes, longest = len(plan.size), int(plan.size.max())
        rng = stream(self.limits.seed, Purpose.WINDOW, place)
        size = self.family.noise_size(self.kernels.density)
        half = rng.standard_normal((lanes, -(-longest // 2), size))
        noise = np.stack([half, -half], 2).reshape(lanes, -1, size)[:, :longest]
        rows = None
        if state.anchor is not None:  # a mirrored pair shares its minibatch
            keys = key_words(stream(self.limits.seed, Purpose.ROWS, place), (lanes, half.shape[1]))
            rows = Rows(np.repeat(keys, 2, 1)[:, :longest], state.anchor)
        parts = []
        stepping = plan.kind == STEPS
        if stepping.any():
            parts.append((np.flatnonzero(stepping), self._stepped))
        for kind, count in sorted(set(zip(plan.kind[~stepping].tolist(), plan.size[~stepping].tolist(), strict=True))):
            same = np.flatnonzero((plan.kind == kind) & (plan.size == count))
            parts.append((same, self._lined))
        done = []
        for some, go in parts:
            count = int(plan.size[some].max())
            cut = None if rows is None else Rows(rows.keys[some][:, :count], take(rows.anchor, some))
            done.append((some, go(take(state, some), take(plan, some), noise[some][:, :count], cut)))
        if len(done) == 1:
            return done[0][1]
        order = np.argsort(np.concatenate([some for some, _ in done]))
        return jax.tree.map(lambda *x: np.concatenate(x)[order], *[journey for _, journey in done])

    def _lined(self, state: State, plan: Plan, noise: np.ndarray, rows: Rows | None) -> Journey:
        """Look at the scores of a q that stands still, and go where their line points."""
        family, full = self.family, bool(plan.kind[0] == LINE)
        seen = self.kernels.scores(state.params, noise, rows)
        with np.errstate(all="ignore"):
            found = family.propose(state.params, noise, seen.white, full, plan.length, plan.trust)
        refused, nonfinite = self._refusals(state, noise, seen)
        # Nothing to fit a line to: the draws fell where log p is not finite, so draw closer to the mean.
        lost = nonfinite > plan.size // 2
        candidate = pick(lost, family.widen(state.params, 0.25), found.params)
        forecast = Forecast(found.expected, found.signal, found.noise)
        return Journey(candidate, state.params, state.memory, forecast, refused, nonfinite, 0 * plan.size, plan.size)

    def _refusals(self, state: State, noise: np.ndarray, seen: Any) -> tuple[Refused, np.ndarray]:
        """Count the draws of a window that were not finite, and keep the latest of them."""
        steep = ~np.isfinite(seen.white).all(-1)
        lost = ~np.isfinite(seen.ratio)
        bad = steep | lost
        if not bad.any():
            return state.refused._replace(run=np.zeros_like(state.refused.run)), bad.sum(1)
        theta = self.family.place(state.params, noise)
        placed = np.isfinite(theta).all(-1)
        kind = np.select([~placed, lost], [DRAW, LOG_P], GRADIENT)
        counts = state.refused.counts + np.stack([(bad & (kind == k)).sum(1) for k in range(4)], 1)
        n = bad.shape[1]
        last = n - 1 - np.argmax(bad[:, ::-1], 1)
        trailing = np.where(bad.all(1), n, np.argmin(bad[:, ::-1], 1))
        run = np.where(trailing == n, state.refused.run + n, trailing)
        some, rows = bad.any(1), np.arange(len(bad))
        choose = lambda new, old: np.where(some.reshape(-1, *[1] * (new.ndim - 1)), new, old)
        return Refused(
            counts, run, choose(kind[rows, last], state.refused.kind), choose(state.step + last, state.refused.step),
            choose(theta[rows, last], state.refused.theta),
        ), bad.sum(1)  # fmt: skip

    def _stepped(self, state: State, plan: Plan, noise: np.ndarray, rows: Rows | None) -> Journey:
        zero = np.zeros_like(plan.size)
        trip = Trip(state.params, state.params, state.memory, state.refused, zero)
        most = zero + self.limits.max_nonfinite
        end = walk(
            self.kernels, self.method.optimizer, trip, Steps(state.step, plan.size, plan.length, plan.cap, most), noise, rows
        )
        none = np.zeros(len(zero))
        forecast = Forecast(none, none, none)
        return Journey(end.average, end.params, end.pace, forecast, end.refused, end.nonfinite, zero, plan.size)

    def judged(self, state, plan, journey, sound, place):
        return self.window_ruling(state, plan, journey, sound, place)

    def forgotten(self, memory):
        return memory._replace(velocity=jax.tree.map(np.zeros_like, memory.velocity))

    def _anchored(self, state):
        """Move anchors to q's mean where they have drifted so far that they add to the noise of minibatches."""
        if state.anchor is None:
            return state
        q, at = state.incumbent, state.anchor.flat
        heights = [_summed(self.family.log_q(q, x[:, None])) for x in (q.mean, at)]
        drifted = ~(heights[0] - heights[1] < 0.1 * self.setting.dim) & (state.reason == StopReason.RUNNING)
        lanes = np.flatnonzero(drifted)
        if not lanes.size:
            return state
        new = self.kernels.anchor(q.mean[lanes])
        sound = finite_lanes(new)
        anchor = put(state.anchor, lanes[sound], take(new, sound))
        return state._replace(anchor=anchor, gradients=state.gradients + drifted)


class ValueTurns(WindowTurns):
    """Windows in which q stands still while its values are regressed."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.layout = self.kernels.layout()

    def begin(self, params, trust):
        lanes = len(jax.tree.leaves(params)[0])
        memory = in_lanes(nothing_known(self.layout), lanes)
        theta = self.kernels.blank_draw(lanes)
        zero = np.zeros(lanes, int)
        return State(
            params, params, memory, np.full(lanes, np.nan), self.rule.init(self.layout, lanes),
            in_lanes(self.method.stopping.init(), lanes), None, zero, zero, zero, zero, nothing_refused(theta, lanes),
            zero + int(StopReason.RUNNING),
        )  # fmt: skip

    def travel(self, state, plan, place):
        rng = stream(self.limits.seed, Purpose.WINDOW, place)
        size = self.family.noise_size(self.kernels.density)
        done = []
        for lane, count in enumerate(plan.size):
            noise = self.noise(rng, (int(count), size))
            done.append(self._looked(take(state, lane), noise))
        journey = jax.tree.map(lambda *x: np.stack(x), *done)
        return journey

    def noise(self, rng, shape):
        points = open_uniform(rng, shape)
        return self.family.noise(points)

    def _looked(self, state: State, noise: np.ndarray) -> Journey:
        """Look at one lane's values where it stands, and say what they tell of that place."""
        with np.errstate(all="ignore"):
            sights, theta = self.kernels.sights(state.params, noise, self.method.gradient.spread)
            values = values_of(state.memory, sights)
            line, elbo, se = fit_line(self.layout, sights.features, values)
            tables = absorbed(state.memory, sights, self.method.optimizer.recall)
            local = local_promise(tables, sights.log_probs)
        forecast = ValueForecast(elbo, se, promise(line), local, line.lost, len(values))
        bad = ~np.isfinite(values)
        refused = state.refused
        if bad.any():
            last = int(np.flatnonzero(bad)[-1])
            trailing = len(bad) if bad.all() else int(np.argmin(bad[::-1]))
            run = state.refused.run + trailing if trailing == len(bad) else trailing
            counts = state.refused.counts + bad.sum() * (np.arange(4) == LOG_P)
            refused = Refused(counts, run, LOG_P, state.step + last, jax.tree.map(lambda x: x[last], theta))
        else:
            refused = refused._replace(run=0)
        memory = state.memory._replace(line=line, tables=tables)
        spent, none = np.asarray(len(values)), np.asarray(0)
        journey = Journey(state.params, state.params, memory, forecast, refused, bad.sum(), spent, none)
        return jax.tree.map(np.asarray, journey)

    def judged(self, state, plan, journey, sound, place):
        ruling = self.rule.rule(self.layout, state.control, journey.forecast, sound, state.yardstick)
        zero = np.zeros_like(plan.size)
        return ruling, zero, zero

    def departed(self, state, running):
        """Stand where the incumbent's line and tables point."""
        moved = []
        for lane in range(len(running)):
            params, memory, control = take(state.params, lane), take(state.memory, lane), take(state.control, lane)
            if running[lane] and not control.again:
                with np.errstate(all="ignore"):
                    shift, stretch = newton(self.layout, memory.line, control.length, control.trust)
                    reach = self.method.optimizer.reach
                    new = self.kernels.depart(params, shift, stretch, reach * control.length, memory, reach, control.length)
                params = new if all(np.isfinite(x).all() for x in jax.tree.leaves(new)) else params
            moved.append(params)
        return jax.tree.map(lambda *x: np.stack(x), *moved)


class ScoreTurns(WindowTurns):
    """Windows of score steps by an optimiser, where q is neither Gaussian nor has a chart."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.links = Links(self.kernels, self.method, self.family, self.limits)

    def begin(self, params, trust):
        link = self.links.begin(params)
        lanes = len(link.step)
        zero = np.zeros(lanes, int)
        return State(
            params, params, (link.memory, link.baseline), np.full(lanes, np.nan),
            self.rule.init(self.setting, lanes, trust), in_lanes(self.method.stopping.init(), lanes), None, zero, zero,
            zero, zero, link.refused, zero + int(StopReason.RUNNING),
        )  # fmt: skip

    def travel(self, state, plan, place):
        lanes, link = len(plan.size), self.links.window(state)
        before = state.refused.counts.sum(1)
        until = state.step + plan.size
        for start in range(0, int(plan.size.max()), self.links.turns(lanes)):
            link, _ = self.links.go(link, np.full(lanes, start), until, plan.length, state.step, plan.size, place)
        none = np.zeros(lanes)
        nonfinite = link.refused.counts.sum(1) - before
        values, gradients = self.links.parts.costs
        return Journey(
            link.average, link.params, (link.memory, link.baseline), Forecast(none, none, none), link.refused, nonfinite,
            values * plan.size, gradients * plan.size,
        )  # fmt: skip

    def noise(self, rng, shape):
        return self.family.noise(open_uniform(rng, shape))

    def judged(self, state, plan, journey, sound, place):
        return self.window_ruling(state, plan, journey, sound, place)


class ChainTurns(Turns):
    """Single steps, each accepted or undone: the paper's methods."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.links = Links(self.kernels, self.method, self.family, self.limits)

    def begin(self, params, trust):
        link = self.links.begin(params)
        zero = np.zeros(len(link.step), int)
        return State(
            link.params, link.params, (link.memory, link.baseline), link.yardstick, link.control, link.patience, None,
            zero, zero, zero, zero, link.refused, link.reason,
        )  # fmt: skip

    def take(self, state):
        lanes = len(state.step)
        link = chain.Link(
            state.params, *state.memory, state.yardstick, state.control, state.patience, state.params, state.step,
            np.zeros(lanes, int), state.refused, state.reason,
        )  # fmt: skip
        one, until = np.ones(lanes), np.full(lanes, self.limits.max_steps)
        link, seen = self.links.go(link, state.step, until, one, state.step, one.astype(int))
        taken = seen.done.sum(1)
        values, gradients = self.links.parts.costs
        new = State(
            link.params, link.params, (link.memory, link.baseline), link.yardstick, link.control, link.patience, None,
            link.step, state.turn + 1, state.values + values * taken, state.gradients + gradients * taken, link.refused,
            link.reason,
        )  # fmt: skip
        step = state.step[:, None] + np.cumsum(seen.done, 1)
        spent = (values + gradients) * step
        nan, done = np.full(seen.elbo.shape, np.nan), seen.done.astype(int)
        row = TurnRow(
            step, spent, seen.elbo, seen.gain, nan, seen.accepted, ~seen.accepted & seen.done, seen.strictness,
            np.ones_like(nan), done, STEPS * done,
        )  # fmt: skip
        return new, row


class Links:
    """Runs chains: makes their noise, and calls the program, or the host's function between its halves."""

    def __init__(self, kernels: Any, method: Method, family: Any, limits: Limits):
        self.kernels, self.method, self.limits = kernels, method, limits
        self.host = getattr(kernels, "host", None)  # the function, where the host calls it
        windowed = not hasattr(method.acceptance, "looks_again")  # then a rule on windows judges, not one on steps
        rule, stop = (Always(), MaxSteps()) if windowed else (method.acceptance, method.stopping)
        self.parts = chain.Parts(kernels.density, family, method.gradient, rule, method.optimizer, stop, method.draws.size)
        self.size = family.noise_size(kernels.density)
        # Turns whose noise is made together: an even number, since iterations may come in mirrored pairs.
        self.block = 2 * int(np.clip(_BLOCK_NUMBERS // (2 * method.draws.size * self.size), 1, _BLOCK // 2))

    def begin(self, params: Any) -> chain.Link:
        """Give the state before the first turn."""
        return jax.tree.map(np.array, self.kernels.bind(chain._begin, self.parts)(params))

    def window(self, state: State) -> chain.Link:
        """Give the state before the first turn of a window."""
        none, (memory, baseline) = np.zeros_like(state.step), state.memory
        return chain.Link(
            state.params, memory, baseline, state.yardstick, self.parts.acceptance.init(), self.parts.stopping.init(),
            state.params, state.step, none, state.refused, none,
        )  # fmt: skip

    def turns(self, lanes: int) -> int:
        """How many turns one call takes: whole blocks, as many as their noise and the work in them allow."""
        if self.host is not None:
            return self.block
        draws = lanes * self.method.draws.size
        most = min(_NUMBERS // (draws * self.size), _WORK // (draws * self.parts.density.width), _TURNS)
        return max(most // self.block, 1) * self.block

    def go(self, link: chain.Link, first, until, length, begin, size, *place: int) -> tuple[Any, Any]:
        """Take as many turns as one call does, fewer where a lane ends; `first` says which of the noise comes first.

        `begin` and `size` are the window whose second half is averaged.
        """
        lanes = len(link.step)
        most = np.full(lanes, self.limits.max_nonfinite)
        limits, noise = chain.Limits(until, most, length, begin, size), self._noise(first, self.turns(lanes), *place)
        if self.host is not None:
            link, seen = self._on_host(link, noise, limits)
        else:
            left = np.where(link.reason == StopReason.RUNNING, until - link.step, 0)
            count = min(int(left.max()), noise.luck.shape[1])
            link, seen = self.kernels.bind(chain._chain, self.parts)(link, noise, limits, count)
        return jax.tree.map(np.asarray, link), jax.tree.map(np.asarray, seen)

    def _noise(self, first: np.ndarray, count: int, *place: int) -> chain.Noise:
        """Give the noise of `count` turns from each lane's own `first` on.

        It is made in blocks of turns, each from a stream of its own, so that it does not matter how many turns a call takes.
        """
        rows = []
        for lane, begin in enumerate(first.tolist()):
            blocks = range(begin // self.block, -(-(begin + count) // self.block))
            made = [self._block(*place, lane, block) for block in blocks]
            cut = slice(begin % self.block, begin % self.block + count)
            rows.append(jax.tree.map(lambda *x, cut=cut: np.concatenate(x)[cut], *made))
        return jax.tree.map(lambda *x: np.stack(x), *rows)

    def _block(self, *place: int) -> chain.Noise:
        named = lambda purpose: stream(self.limits.seed, purpose, *place)
        family, draws, count = self.parts.family, self.method.draws, self.block
        fresh = keys = fresh_keys = None
        batched, again = self.parts.density.subsampled is not None, self.parts.acceptance.looks_again
        if again:
            fresh = family.noise(open_uniform(named(Purpose.CHAIN_JUDGE), (count, 1, self.size)))
        if batched:
            keys = draws.keys(named(Purpose.ROWS), count)
        if batched and again:
            fresh_keys = key_words(named(Purpose.JUDGE_ROWS), (count, 1))
        points = draws.points(named(Purpose.CHAIN), count, self.size)
        luck = open_uniform(named(Purpose.CHAIN_LUCK), (count, 2))
        return chain.Noise(family.noise(points), fresh, luck, keys, fresh_keys)

    def _on_host(self, link: chain.Link, noise: chain.Noise, limits: chain.Limits) -> tuple[Any, Any]:
        count = noise.luck.shape[1]
        links, seen = [], []
        for lane in range(len(link.step)):
            now, bounds = take(link, lane), take(limits, lane)
            told = chain.TurnSeen(*(np.full(count, blank) for blank in (np.nan, np.nan, False, np.nan, False)))
            for i in range(count):
                if now.reason != StopReason.RUNNING:
                    break
                row = jax.tree.map(lambda x, lane=lane, i=i: x[lane, i], noise)
                now, new = self._turn_on_host(now, row, bounds)
                told = put(told, i, new)
            links.append(now)
            seen.append(told)
        return tuple(jax.tree.map(lambda *x: np.stack(x), *part) for part in (links, seen))

    def _turn_on_host(self, link: chain.Link, row: chain.Noise, limits: chain.Limits) -> tuple[Any, Any]:
        bind, look = (lambda fn: self.kernels.bind(fn, self.parts)), self.kernels.host.values
        theta = np.asarray(bind(chain._ask)(link.params, row))
        seen = [theta, look(theta)]
        if self.parts.acceptance.looks_again:
            seen += [look(np.asarray(bind(chain._ask_again)(link, row, limits, *seen)))[0]]
        return jax.tree.map(np.asarray, bind(chain._tell)(link, row, limits, *seen))


def in_lanes(tree: Any, lanes: int) -> Any:
    """Give the same arrays to every lane."""
    return jax.tree.map(lambda x: np.stack([x] * lanes), tree)


def pick(condition: np.ndarray, new: Any, old: Any) -> Any:
    """Choose lane by lane between two trees of arrays."""
    return jax.tree.map(lambda a, b: np.where(condition.reshape(-1, *[1] * (np.ndim(a) - 1)), a, b), new, old)


def finite_lanes(tree: Any) -> np.ndarray:
    """Say for each lane whether every number in the tree is finite."""
    return np.all([np.isfinite(x).reshape(len(x), -1).all(1) for x in jax.tree.leaves(tree)], 0)


def relative_change(old: Any, new: Any) -> np.ndarray:
    """|new - old| / |old| over all parameters, by lane."""
    squares = lambda tree: sum((x**2).reshape(len(x), -1).sum(1) for x in jax.tree.leaves(tree))
    return np.sqrt(squares(jax.tree.map(np.subtract, new, old)) / np.maximum(squares(old), 1e-30))


def _summed(x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), -1).sum(1)
