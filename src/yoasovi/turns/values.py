"""Windows of values, where there are no gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from yoasovi.kernels.walk import LOG_P, Refused, nothing_refused
from yoasovi.randomness import Purpose, open_uniform, stream
from yoasovi.start import take
from yoasovi.stopping import StopReason
from yoasovi.turns.state import Journey, RunState, in_lanes
from yoasovi.turns.windows import WindowTurns
from yoasovi.windows.value_regression import absorbed, fit_line, local_promise, newton, nothing_known, promise, values_of
from yoasovi.windows.value_rule import ValueForecast


class Shown(NamedTuple):
    """What one lane's window shows."""

    values: np.ndarray
    forecast: ValueForecast
    memory: Any
    theta: Any  # the draws
    cost: int  # values of log p


class ValueTurns(WindowTurns):
    """Windows in which q stands still while its values are regressed."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.layout = self.kernels.layout()

    def begin(self, params, trust, origin=None):
        lanes = len(jax.tree.leaves(params)[0])
        memory = in_lanes(self.blank_memory(), lanes)
        theta = self.kernels.blank_draw(lanes)
        zero = np.zeros(lanes, int)
        return RunState(
            params, params, memory, np.full(lanes, np.nan), self.rule.init(self.layout, lanes),
            in_lanes(self.method.stopping.init(), lanes), None, zero, zero, zero, zero, nothing_refused(theta, lanes),
            zero + int(StopReason.RUNNING),
        )  # fmt: skip

    def blank_memory(self) -> Any:
        """Give one lane's memory to begin with."""
        return nothing_known(self.layout)

    def travel(self, state, plan, place):
        rng = stream(self.limits.seed, Purpose.WINDOW, place)
        luck = stream(self.limits.seed, Purpose.LEAP, place)
        size = self.family.noise_size(self.kernels.density)
        done = []
        for lane, count in enumerate(plan.size):
            noise = self.noise(rng, (int(count), size))
            done.append(self._looked(take(state, lane), noise, luck))
        journey = jax.tree.map(lambda *x: np.stack(x), *done)
        return journey

    def noise(self, rng, shape):
        points = open_uniform(rng, shape)
        return self.family.noise(points)

    def look(self, state: RunState, noise: np.ndarray, luck: np.random.Generator) -> Shown:
        """Look at one lane's values where it stands, and say what they tell of that place."""
        sights, theta = self.kernels.sights(state.params, noise, self.method.gradient.spread)
        values = values_of(state.memory, sights)
        line, elbo, se = fit_line(self.layout, sights.features, values)
        tables = absorbed(state.memory, sights, self.method.optimizer.recall)
        local = local_promise(tables, sights.log_probs)
        forecast = ValueForecast(elbo, se, promise(line), local, line.lost, len(values))
        return Shown(values, forecast, state.memory._replace(line=line, tables=tables), theta, len(values))

    def depart(self, params: Any, memory: Any, control: Any) -> Any:
        """Go where one lane's line and tables point."""
        shift, stretch = newton(self.layout, memory.line, control.length, control.trust)
        reach = self.method.optimizer.reach
        return self.kernels.depart(params, shift, stretch, reach * control.length, memory, reach, control.length)

    def _looked(self, state: RunState, noise: np.ndarray, luck: np.random.Generator) -> Journey:
        """Look, and count what was not finite."""
        with np.errstate(all="ignore"):
            values, forecast, memory, theta, cost = self.look(state, noise, luck)
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
        spent, none = np.asarray(cost), np.asarray(0)
        journey = Journey(state.params, state.params, memory, forecast, refused, bad.sum(), spent, none)
        return jax.tree.map(np.asarray, journey)

    def judged(self, state, plan, journey, sound, place):
        ruling = self.rule.rule(self.layout, state.control, journey.forecast, sound, state.yardstick)
        zero = np.zeros_like(plan.size)
        return ruling, zero, zero

    def departed(self, state, running):
        """Stand where the incumbent's memory points."""
        moved = []
        for lane in range(len(running)):
            params, memory, control = take(state.params, lane), take(state.memory, lane), take(state.control, lane)
            if running[lane] and not control.again:
                with np.errstate(all="ignore"):
                    new = self.depart(params, memory, control)
                params = new if all(np.isfinite(x).all() for x in jax.tree.leaves(new)) else params
            moved.append(params)
        return jax.tree.map(lambda *x: np.stack(x), *moved)
