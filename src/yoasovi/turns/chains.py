"""Single steps in a row: the paper's methods, and windows of score steps."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from yoasovi.acceptance import Always
from yoasovi.kernels import chain
from yoasovi.methods import Method
from yoasovi.randomness import Purpose, key_words, open_uniform, stream
from yoasovi.start import put, take
from yoasovi.stopping import MaxSteps, StopReason
from yoasovi.turns.state import Journey, Limits, RunState, TurnRow, Turns, in_lanes
from yoasovi.turns.windows import WindowTurns
from yoasovi.windows.state import STEPS, Forecast

# Single steps: turns whose noise is made together, and their numbers of noise; turns, numbers and work in one call.
_BLOCK, _BLOCK_NUMBERS = 32, 2**20
_TURNS, _NUMBERS, _WORK = 256, 2**22, 2**28


class ScoreTurns(WindowTurns):
    """Windows of score steps by an optimiser, where q is neither Gaussian nor has a chart."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.links = Links(self.kernels, self.method, self.family, self.limits)

    def begin(self, params, trust, origin=None):
        link = self.links.begin(params)
        lanes = len(link.step)
        zero = np.zeros(lanes, int)
        return RunState(
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
            link.average, link.params, (link.memory, link.baseline), Forecast(none, none, none, plan.size), link.refused,
            nonfinite,
            values * plan.size, gradients * plan.size,
        )  # fmt: skip

    def noise(self, rng, shape):
        return self.family.noise(open_uniform(rng, shape))


class ChainTurns(Turns):
    """Single steps, each accepted or undone: the paper's methods."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.links = Links(self.kernels, self.method, self.family, self.limits)

    def begin(self, params, trust, origin=None):
        link = self.links.begin(params)
        zero = np.zeros(len(link.step), int)
        return RunState(
            link.params, link.params, (link.memory, link.baseline), link.yardstick, link.control, link.patience, None,
            zero, zero, zero, zero, link.refused, link.reason,
        )  # fmt: skip

    def take(self, state):
        lanes = len(state.step)
        link = chain.Link(
            state.params, *state.memory, state.yardstick, state.control, state.patience, state.params, state.step,
            state.refused, state.reason,
        )  # fmt: skip
        one, until = np.ones(lanes), np.full(lanes, self.limits.max_steps)
        link, seen = self.links.go(link, state.step, until, one, state.step, one.astype(int))
        taken = seen.done.sum(1)
        values, gradients = self.links.parts.costs
        new = RunState(
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

    def window(self, state: RunState) -> chain.Link:
        """Give the state before the first turn of a window."""
        none, (memory, baseline) = np.zeros_like(state.step), state.memory
        return chain.Link(
            state.params, memory, baseline, state.yardstick, self.parts.acceptance.init(), self.parts.stopping.init(),
            state.params, state.step, state.refused, none,
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
        limits, noise = chain.ChainLimits(until, most, length, begin, size), self._noise(first, self.turns(lanes), *place)
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

    def _on_host(self, link: chain.Link, noise: chain.Noise, limits: chain.ChainLimits) -> tuple[Any, Any]:
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

    def _turn_on_host(self, link: chain.Link, row: chain.Noise, limits: chain.ChainLimits) -> tuple[Any, Any]:
        bind, look = (lambda fn: self.kernels.bind(fn, self.parts)), self.kernels.host.values
        theta = np.asarray(bind(chain._ask)(link.params, row))
        seen = [theta, look(theta)]
        if self.parts.acceptance.looks_again:
            seen += [look(np.asarray(bind(chain._ask_again)(link, row, limits, *seen)))[0]]
        return jax.tree.map(np.asarray, bind(chain._tell)(link, row, limits, *seen))
