"""Windows of iterations, judged on paired draws; and what the ruling says is done, in one place."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from yoasovi.kernels.looks import Rows
from yoasovi.kernels.walk import LOG_P, PARAMETER
from yoasovi.model.minibatch import Anchor
from yoasovi.randomness import Purpose, key_words, open_uniform, stream
from yoasovi.start import put, take
from yoasovi.stopping import StopReason
from yoasovi.turns.state import Journey, RunState, TurnRow, Turns, finite_lanes, pick, relative_change
from yoasovi.windows import judge
from yoasovi.windows.state import CANDIDATE, INCUMBENT, Plan, Ruling

_MANY, _NEARLY_ALL = 32, 7 / 8  # restarts, and the share of them that has to have converged for the last to be ended


class WindowTurns(Turns):
    """A window of iterations, its proposal, and the verdict on it."""

    @abstractmethod
    def travel(self, state: RunState, plan: Plan, place: int) -> Journey:
        """Take the window's draws, and say where they lead."""

    def departed(self, state: RunState, running: np.ndarray) -> Any:
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
        return _without_the_last_few(put(state, lanes, new)), TurnRow(
            *(put(b, lanes, x[:, None]) for b, x in zip(blank, row, strict=True))
        )

    def _settled(self, state: RunState, plan: Plan, planned: Plan, journey: Journey, ruling: Ruling) -> RunState:
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
        new = RunState(
            params, incumbent, memory, ruling.yardstick, ruling.control, patience, state.anchor, step, state.turn + 1,
            state.values + journey.values, state.gradients + journey.gradients, refused, reason, state.origin, journey.past,
        )  # fmt: skip
        new = new._replace(params=self.departed(new, reason == StopReason.RUNNING))
        return self._anchored(new)

    def forgotten(self, memory: Any) -> Any:
        """Forget what led astray, after a rollback."""
        return memory

    def _anchored(self, state: RunState) -> RunState:
        return state

    def paired(
        self, new: Any, old: Any, most: np.ndarray, place: int, which: int, anchor: Anchor | None, flat: Any = 0.0
    ) -> judge.Gain:
        """Compare two q on the same fresh noise, a block of pairs at a time, until sure or `most` pairs are spent.

        Sure of the sign, or that the gain is less than `flat`.
        """
        tally = judge.empty(np.zeros(len(most)))
        rng = stream(self.limits.seed, Purpose.JUDGE, place, which)
        keys = stream(self.limits.seed, Purpose.JUDGE_ROWS, place, which)
        size, flat = self.family.noise_size(self.kernels.density), flat + np.zeros(len(most))
        lanes, block = np.flatnonzero(most > 0), judge.BLOCK if self.kernels.cheap else judge.SMALL_BLOCK
        while lanes.size:
            shape = (lanes.size, block, size)
            noise = self.noise(rng, shape)
            rows = None if anchor is None else Rows(key_words(keys, shape[:2]), take(anchor, lanes))
            pairs = self.kernels.pairs(take(new, lanes), take(old, lanes), noise, rows)
            with np.errstate(over="ignore", invalid="ignore"):  # a gain whose square overflows is one of undecided size
                tally = put(tally, lanes, judge.add(take(tally, lanes), *pairs))
                some = take(tally, lanes)
                unsure = ~(judge.sure(some, block=block) | judge.surely_small(some, flat[lanes]))
            lanes = lanes[(tally.drawn[lanes] < most[lanes]) & unsure]
        with np.errstate(over="ignore", invalid="ignore"):
            return judge.gained(tally)

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Give independent noise of the family's own kind."""
        return rng.standard_normal(shape)

    def judged(self, state: RunState, plan: Plan, journey: Journey, sound: np.ndarray, place: int):
        """Rule on the window by paired gains, of the candidate over the incumbent and over the window's end.

        Also how many values that took, and how many of them were not finite.
        """
        asked = [np.where(sound, most, 0) for most in self.rule.most_pairs(state.control)]
        flat = self.rule.close_enough(self.setting, state.control)
        gain = self.paired(journey.candidate, state.incumbent, asked[0], place, 0, state.anchor, flat)
        noise = self.paired(journey.candidate, journey.end, asked[1], place, 1, state.anchor)
        luck = open_uniform(stream(self.limits.seed, Purpose.LUCK, place), sound.shape)
        with np.errstate(invalid="ignore"):
            ruling = self.rule.rule(
                self.setting, state.control, gain, noise, journey.forecast, sound, state.yardstick, luck, state.turn + 1
            )
        return ruling, 2 * (gain.pairs + noise.pairs), gain.nonfinite + noise.nonfinite


def _without_the_last_few(state: RunState) -> RunState:
    """End the last of very many restarts, save those that are ahead of all others: they would hold up the answer."""
    done, running = state.reason == StopReason.CONVERGED, state.reason == StopReason.RUNNING
    if len(done) < _MANY or done.mean() < _NEARLY_ALL or not running.any():
        return state
    behind = running & ~(state.yardstick > state.yardstick[done].max())
    return state._replace(reason=np.where(behind, int(StopReason.OVERTAKEN), state.reason))
