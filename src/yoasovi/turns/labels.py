"""Windows of values that look at every label of every observation."""

from __future__ import annotations

import numpy as np

from yoasovi.turns.values import Look, ValueTurns
from yoasovi.windows import label_surface
from yoasovi.windows.label_surface import LabelMemory, nothing_aimed
from yoasovi.windows.value_regression import BLIND, Layout, fit_line, newton, nothing_known, promise
from yoasovi.windows.value_rule import ValueForecast

MOST_LABELS = 64  # more would make a window of few draws too dear
_WORTH_A_LEAP = 0.5  # nats


class LabelTurns(ValueTurns):
    """Windows that stand still, look at K values per draw, and leave for where the surface of their values is high."""

    @staticmethod
    def suit(layout: Layout) -> bool:
        """Say whether every label can be looked at: observations have one each, with few values."""
        return len(layout.labels) == 1 and max(layout.labels.values()) <= MOST_LABELS

    def begin(self, params, trust):
        state = super().begin(params, trust)
        return state._replace(control=state.control._replace(length=np.ones(len(trust))))

    def blank_memory(self):
        return nothing_aimed(self.layout, nothing_known(self.layout).line)

    def look(self, state, noise, luck):
        sights, theta = self.kernels.every_label(state.params, noise)
        values = label_surface.values_of(sights)
        line, elbo, se = fit_line(self.layout, sights.features, values)
        ground = label_surface.surface(self.layout, sights, line)
        uphill, top = label_surface.uphill(ground, sights, elbo, float(state.control.trust))
        beyond = uphill._replace(gain=np.asarray(-np.inf))
        if line.lost > BLIND:
            shift, stretch = newton(self.layout, line, 1.0, 1.0)
            uphill = uphill._replace(shift=shift, stretch=stretch)
        elif not np.isfinite(state.yardstick) or uphill.gain < _WORTH_A_LEAP:
            beyond = label_surface.leap(ground, top, luck)
        worth = ground.each[:, 0].reshape(ground.size)
        target = worth - np.logaddexp.reduce(worth, -1, keepdims=True)
        local = float(np.sum(np.exp(sights.log_probs) * (sights.log_probs - target)))
        forecast = ValueForecast(elbo, se, promise(line), local, line.lost, len(values))
        return Look(values, forecast, LabelMemory(line, uphill, beyond), theta, sights.each.shape[-1] * len(values))

    def depart(self, params, memory, control):
        leaps = memory.leap.gain > _WORTH_A_LEAP and control.refusals == 0
        aim, length = (memory.leap, 1.0) if leaps else (memory.uphill, float(control.length))
        limit = self.method.optimizer.reach * length
        return self.kernels.place(params, length * aim.shift, length * aim.stretch, limit, aim.log_probs, length)
