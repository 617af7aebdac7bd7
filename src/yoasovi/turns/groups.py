"""The default method over a hierarchy: full lines through batches of draws, of which one at a time is in memory."""

from __future__ import annotations

import jax
import numpy as np

from yoasovi.kernels.looks import Rows, Scores
from yoasovi.randomness import Purpose, key_words, stream
from yoasovi.start import take
from yoasovi.turns.natural import NaturalTurns
from yoasovi.turns.state import Journey, RunState, pick
from yoasovi.windows.state import LINE, Forecast, Plan


class GroupTurns(NaturalTurns):
    """Natural turns whose full lines are gathered batch by batch, on draws that match their law."""

    def travel(self, state, plan, place):
        full = plan.kind == LINE
        done, order = [], []
        if not full.all():
            some = np.flatnonzero(~full)
            done.append(super().travel(take(state, some), take(plan, some), place))
            order.append(some)
        for size in np.unique(plan.size[full]):
            some = np.flatnonzero(full & (plan.size == size))
            done.append(self._gathered(take(state, some), take(plan, some), place))
            order.append(some)
        back = np.argsort(np.concatenate(order))
        return jax.tree.map(lambda *x: np.concatenate(x)[back], *done)

    def _gathered(self, state: RunState, plan: Plan, place: int) -> Journey:
        """Go where the line through the scores of all batches points."""
        rng, keys = (stream(self.limits.seed, purpose, place) for purpose in (Purpose.WINDOW, Purpose.ROWS))
        lanes, size, dim = len(plan.size), int(plan.size[0]), self.setting.dim
        rows = max(min(self.family.batch(size, dim), size // 2 * 2), 2)
        sums, refused, nonfinite = None, state.refused, np.zeros(lanes, int)
        for _ in range(max(size // rows, 1)):
            half = self.family.matched(rng.standard_normal((lanes, rows // 2, dim)))
            noise = np.stack([half, -half], 2).reshape(lanes, rows, dim)
            batch = None
            if state.anchor is not None:  # a mirrored pair shares its minibatch
                batch = Rows(np.repeat(key_words(keys, half.shape[:2]), 2, 1), state.anchor)
            seen: Scores = self.kernels.scores(state.params, noise, batch)
            with np.errstate(all="ignore"):
                sums = self.family.gather(sums, noise, seen.white)
            refused, bad = self._refusals(state._replace(refused=refused), noise, seen)
            nonfinite = nonfinite + bad
        with np.errstate(all="ignore"):
            found = self.family.propose_from(state.params, sums, plan.length, plan.trust)
        candidate = pick(nonfinite > plan.size // 2, self.family.widen(state.params, 0.25), found.params)
        forecast = Forecast(found.expected, found.signal, found.noise, plan.size)
        return Journey(candidate, state.params, state.memory, forecast, refused, nonfinite, 0 * plan.size, plan.size)
