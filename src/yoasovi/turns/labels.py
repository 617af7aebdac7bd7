"""Windows of values that look at every label of every observation."""

from __future__ import annotations

import numpy as np

from yoasovi.turns.values import Shown, ValueTurns
from yoasovi.windows import label_surface
from yoasovi.windows.label_surface import LabelMemory, nothing_aimed
from yoasovi.windows.value_regression import Layout, fit_line, newton, nothing_known, promise
from yoasovi.windows.value_rule import ValueForecast

MOST_LABELS = 64  # more would make a window of few draws too dear
_WORTH_A_LEAP = 0.5  # nats
_QUIET = 0.5  # error of a window's ELBO (nats) up to which its surface is climbed


class LabelTurns(ValueTurns):
    """Windows that stand still, look at K values per draw, and leave for where the surface of their values is high."""

    @staticmethod
    def suit(layout: Layout) -> bool:
        """Say whether every label can be looked at: observations have one each, with few values."""
        return len(layout.labels) == 1 and max(layout.labels.values()) <= MOST_LABELS

    def blank_memory(self):
        return nothing_aimed(self.layout, nothing_known(self.layout).line)

    def look(self, state, noise, luck):
        sights, theta = self.kernels.every_label(state.params, noise)
        values = label_surface.values_of(sights)
        line, elbo, se = fit_line(self.layout, sights.features, values)
        ground = label_surface.surface(self.layout, sights, line)
        best = label_surface.best_labels(ground)
        uphill = leap = state.memory.uphill._replace(gain=np.asarray(-np.inf))
        if se < _QUIET and line.lost == 0:
            uphill, top = label_surface.uphill(ground, elbo)
            if ground.exact and (not np.isfinite(state.yardstick) or uphill.gain < _WORTH_A_LEAP):
                leap = label_surface.leap(ground, top, luck)
        memory = LabelMemory(line, best, np.asarray(ground.exact), uphill, leap)
        local = float(np.sum(np.exp(sights.log_probs) * (sights.log_probs - best)))
        forecast = ValueForecast(elbo, se, promise(line), local, line.lost, len(values))
        return Shown(values, forecast, memory, theta, sights.each.shape[-1] * len(values))

    def depart(self, params, memory, control):
        length, reach = float(control.length), self.method.optimizer.reach
        if not np.isfinite(memory.uphill.gain):
            shift, stretch = newton(self.layout, memory.line, length, control.trust)
            return self.kernels.place(params, shift, stretch, reach * length, memory.log_probs, reach, length)
        sure = memory.exact and control.refusals == 0
        aim, length = memory.uphill, 1.0 if sure else length
        if sure and memory.leap.gain > _WORTH_A_LEAP:
            aim = memory.leap
        return self.kernels.place(params, length * aim.shift, length * aim.stretch, reach, aim.log_probs, np.inf, length)
