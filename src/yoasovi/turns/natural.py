"""Lines through scores while q stands still, then windows of natural steps: the default method."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from yoasovi.climb import climb_elbo
from yoasovi.kernels.looks import Rows, Scores
from yoasovi.kernels.walk import DRAW, GRADIENT, LOG_P, Pace, Refused, Steps, Trip, nothing_refused, walk
from yoasovi.randomness import Purpose, key_words, mirrored, stream
from yoasovi.start import put, take
from yoasovi.stopping import StopReason
from yoasovi.turns.state import Journey, RunState, finite_lanes, in_lanes, pick
from yoasovi.turns.windows import WindowTurns
from yoasovi.windows import old_scores
from yoasovi.windows.old_scores import OldScores
from yoasovi.windows.state import CLIMB, LINE, SCALES, STEPS, Forecast, Plan

_MOST_LOOKS = 250  # of a climb of the ELBO


class NaturalTurns(WindowTurns):
    """Lines through scores while q stands still, then windows of natural steps."""

    def begin(self, params, trust, origin=None):
        lanes, dim = params.mean.shape
        size = self.family.noise_size(self.kernels.density)
        still = self.family.natural(take(params, 0), np.zeros(size), np.zeros(dim))
        velocity = jax.tree.map(lambda x: np.zeros((lanes, *x.shape), x.dtype), still)
        anchor = self.kernels.anchor(params.mean) if self.setting.batched else None
        zero, control = np.zeros(lanes, int), self.rule.init(self.setting, lanes, trust)
        if origin is not None and anchor is None:  # with minibatches, sixteen looks at all the data are too many
            control = self.rule.with_climb(control, origin.far)
        return RunState(
            params, params, Pace(velocity, np.zeros((lanes, dim)), np.zeros(lanes)), np.full(lanes, np.nan),
            control, in_lanes(self.method.stopping.init(), lanes), anchor,
            zero, zero, zero, zero + (anchor is not None), nothing_refused(np.zeros((lanes, dim)), lanes),
            zero + int(StopReason.RUNNING), None if origin is None else (origin.mean, origin.scale),
            self._room(params, lanes),
        )  # fmt: skip

    def _room(self, params: Any, lanes: int) -> OldScores | None:
        """Give room for scores that later lines may rest on; None where none do."""
        if self.setting.batched or self.family.behind(params, params.mean[:, None]) is None:
            return None
        return old_scores.empty(lanes, self.rule.capacity(self.setting), self.setting.dim)

    def travel(self, state, plan, place):
        lanes, longest = len(plan.size), int(plan.size.max())
        rng = stream(self.limits.seed, Purpose.WINDOW, place)
        half = rng.standard_normal((lanes, -(-longest // 2), self.family.noise_size(self.kernels.density)))
        keys = None
        if state.anchor is not None:  # a mirrored pair shares its minibatch
            keys = np.repeat(key_words(stream(self.limits.seed, Purpose.ROWS, place), half.shape[:2]), 2, 1)
        # Lanes whose windows are of the same kind and size are fitted together.
        alike: dict[tuple[int, int], list[int]] = {}
        for lane, (kind, count) in enumerate(zip(plan.kind.tolist(), plan.size.tolist(), strict=True)):
            alike.setdefault((kind, 0 if kind == STEPS else count), []).append(lane)
        groups = [np.array(x) for x in alike.values()]

        def cut(some):
            count, mine = int(plan.size[some].max()), half[some]
            if plan.kind[some[0]] == LINE:
                mine = self.family.matched(mine[:, : -(-count // 2)])
            noise = np.stack([mine, -mine], 2).reshape(len(some), -1, half.shape[-1])[:, :count]
            return noise, None if keys is None else Rows(keys[some][:, :count], take(state.anchor, some))

        of_kind = lambda *kinds: [some for some in groups if plan.kind[some[0]] in kinds]
        standing, stepping, climbing = of_kind(SCALES, LINE), of_kind(STEPS), of_kind(CLIMB)
        asked = [(take(state.params, some), *cut(some)) for some in standing]
        seen = self.kernels.scores_of(asked) if standing else []
        done = [self._lined(take(state, x), take(plan, x), y[1], z) for x, y, z in zip(standing, asked, seen, strict=True)]
        done += [self._stepped(take(state, some), take(plan, some), *cut(some)) for some in stepping]
        done += [self._climbed(take(state, some), take(plan, some), place) for some in climbing]
        order = np.argsort(np.concatenate([*standing, *stepping, *climbing]))
        return jax.tree.map(lambda *x: np.concatenate(x)[order], *done)

    def _lined(self, state: RunState, plan: Plan, noise: np.ndarray, seen: Scores) -> Journey:
        """Go where the line through the scores of a q that stands still points."""
        family, full, kept, draws = self.family, bool(plan.kind[0] == LINE), state.past, 1.0 * plan.size
        with np.errstate(all="ignore"):
            if full and kept is not None:
                found, draws, kept = self._with_old_scores(kept, state, plan, noise, seen)
            else:
                found = family.propose(state.params, noise, seen.white, full, plan.length, plan.trust)
        refused, nonfinite = self._refusals(state, noise, seen)
        # Nothing to fit a line to: the draws fell where log p is not finite, so draw closer to the mean.
        lost = nonfinite > plan.size // 2
        candidate = pick(lost, family.widen(state.params, 0.25), found.params)
        forecast = Forecast(found.expected, found.signal, found.noise, draws)
        return Journey(candidate, state.params, state.memory, forecast, refused, nonfinite, 0 * plan.size, plan.size, kept)

    def _with_old_scores(
        self, past: OldScores, state: RunState, plan: Plan, noise: np.ndarray, seen: Scores
    ) -> tuple[Any, np.ndarray, OldScores]:
        """Fit the line also to scores of earlier windows, as far as they are still worth it.

        Also how many draws it rests on, and what is kept of them for the next.
        """
        family, q, count = self.family, state.params, int(plan.size[0]) // 2 * 2
        known = np.where(np.isfinite(seen.ratio)[..., None], seen.gradient, np.nan)
        kept = old_scores.with_draws(past, seen.theta, known, -family.minus_log_q(q, noise), state.turn)
        past = old_scores.filled(past)
        behind = family.behind(q, past.theta)
        weight = old_scores.weights(past, -family.minus_log_q(q, behind))
        old = np.flatnonzero((weight > 0).any(0))
        if not old.size:
            found = family.propose(q, noise, seen.white, True, plan.length, plan.trust)
            return found, 1.0 * plan.size, kept
        join = lambda a, b: np.concatenate([a[:, old], b[:, :count]], 1)
        found = family.propose(
            q, join(behind, noise), join(family.white(q, behind, past.gradient), seen.white), True, plan.length, plan.trust,
            join(weight, np.ones(noise.shape[:2])),
        )  # fmt: skip
        worth = weight.sum(1) ** 2 / np.maximum((weight**2).sum(1), np.finfo(float).tiny)
        return found, plan.size + worth, kept

    def _refusals(self, state: RunState, noise: np.ndarray, seen: Scores) -> tuple[Refused, np.ndarray]:
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

    def _climbed(self, state: RunState, plan: Plan, place: int) -> Journey:
        """Begin anew: climb the ELBO of independent Gaussians on fixed draws."""
        seed, (mean, scale) = self.limits.seed, state.origin
        noise = mirrored(stream(seed, Purpose.FAR_START, place), int(plan.size.max()), mean.shape[1])
        noise /= np.sqrt((noise**2).mean(0))  # then scales are as exact as on many draws
        found = climb_elbo(self.kernels.point, mean, scale, noise, _MOST_LOOKS)
        top, log_scale = np.split(found.top, 2, axis=1)
        candidate = self.family.init(top, np.exp(log_scale), stream(seed, Purpose.LOADINGS, place))
        counts = state.refused.counts.copy()
        counts[:, LOG_P] += found.refused[0]
        counts[:, GRADIENT] += found.refused[1]
        zero = np.zeros_like(plan.size)
        none = 0.0 * plan.length
        forecast, refused = Forecast(none, none, none, plan.size), state.refused._replace(counts=counts)
        return Journey(candidate, state.params, state.memory, forecast, refused, zero, zero, found.gradients, state.past)

    def _stepped(self, state: RunState, plan: Plan, noise: np.ndarray, rows: Rows | None) -> Journey:
        zero = np.zeros_like(plan.size)
        trip = Trip(state.params, state.params, state.memory, state.refused, zero)
        most = zero + self.limits.max_nonfinite
        end = walk(
            self.kernels, self.method.optimizer, trip, Steps(state.step, plan.size, plan.length, plan.cap, most), noise, rows
        )
        none = np.zeros(len(zero))
        forecast = Forecast(none, none, none, plan.size)
        return Journey(end.average, end.params, end.pace, forecast, end.refused, end.nonfinite, zero, plan.size, state.past)

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


def _summed(x: np.ndarray) -> np.ndarray:
    return x.reshape(len(x), -1).sum(1)
