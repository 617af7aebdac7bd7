"""The default rule where there are no gradients: values of log p at one draw per iteration, a regression per window.

A window is drawn after its q was chosen, so the intercept of its regression is a fresh estimate of that q's ELBO, and
judges it against the incumbent's; the incumbent's coefficients say where the next window stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from yoasovi.errors import positive_integer, positive_number
from yoasovi.windows.state import INCUMBENT, VALUES, Plan, Ruling, choose
from yoasovi.windows.value_regression import BLIND, Layout


class ValueControl(NamedTuple):
    """What the rule adapts from window to window; (lanes,) each."""

    size: Any  # iterations in the next window
    length: Any  # share of the full step
    trust: Any  # by how much a step may change a variance
    refusals: Any  # in a row
    again: Any  # is the next window to stand at the incumbent once more?
    se: Any  # of the yardstick
    lost: Any  # share of the incumbent's draws that were not finite


class ValueForecast(NamedTuple):
    """What a window says of the q it was drawn from; (lanes,) each."""

    elbo: Any
    se: Any
    promise: Any  # gain of a full step, global sites (nats)
    local_promise: Any  # and local sites
    lost: Any
    draws: Any


@dataclass(frozen=True)
class ValueWindow:
    """Judge the place where a window stood by the intercept of its values against the incumbent's.

    Parameters
    ----------
    tolerance, local_tolerance
        A flat window is a miss only if a full step promises less than this many nats.
    sure
        Standard errors beyond which a gain is believed.
    flat
        Gains below this many nats, beyond doubt, are flat.
    step
        Share of the full step to begin with.
    longest
        Most iterations in a window (more if the family has so many parameters).
    """

    tolerance: float = 0.05
    local_tolerance: float = 0.5
    sure: float = 2.0
    flat: float = 0.5
    step: float = 0.3
    longest: int = 2048

    def __post_init__(self):
        for name in ("tolerance", "local_tolerance", "sure", "flat", "step"):
            positive_number(name, "ValueWindow", getattr(self, name))
        positive_integer("longest", "ValueWindow", self.longest)

    def first(self, layout: Layout) -> int:
        """Iterations in the first window: three to a coefficient."""
        return max(32, 3 * (1 + layout.normal.size + int(layout.normal.sum())))

    def init(self, layout: Layout, lanes: int) -> ValueControl:
        """Give the control variables to begin with."""
        one, none = np.ones(lanes), np.zeros(lanes, int)
        size = none + self.first(layout)
        return ValueControl(size, self.step * one, 4.0 * one, none, none.astype(bool), 0.0 * one, 0.0 * one)

    def plan(self, control):
        none = np.zeros_like(control.size)
        return Plan(control.size, control.length, none + VALUES, control.trust, np.ones_like(control.length))

    def rule(self, layout: Layout, control: ValueControl, seen: ValueForecast, sound, yardstick) -> Ruling:
        """Rule on a turn."""
        first = ~np.isfinite(yardstick) | (control.lost > BLIND)  # nothing to compare with
        again = control.again
        with np.errstate(invalid="ignore"):
            gain, se = seen.elbo - yardstick, np.hypot(seen.se, control.se)
            lost = seen.lost > control.lost + 0.05  # a window that falls off the support more often is no better
            hidden = (gain < -self.flat) & (seen.se > 4.0 * control.se)  # a loss behind an error that the incumbent has not
            worse = ~(gain >= -self.sure * se) | lost | hidden | ~sound
            better = ~worse & (gain > self.sure * se) & (gain > 0.02)
            flat = ~worse & ~better & (np.abs(gain) + self.sure * se < self.flat)
        # A window cut short by `max_steps` may win, but no doubt is read in its favour.
        cut = seen.draws < control.size
        enough = ~cut | (better & (seen.draws >= self.first(layout)))
        accept = first | (enough & (again | ~worse))
        settled = first | again | cut
        promised = (seen.promise > self.tolerance) | (seen.local_promise > self.local_tolerance)
        adapted = self._adapted(layout, control, better, worse, flat, promised)
        control = choose(settled, control._replace(again=again & False), adapted)
        control = control._replace(se=np.where(accept, seen.se, control.se), lost=np.where(accept, seen.lost, control.lost))
        no = np.zeros_like(accept)
        return Ruling(
            accept=accept, rollback=~accept, resume=np.full(len(accept), INCUMBENT), missed=flat & ~promised & ~settled,
            progressed=better & ~settled, settled=no, stuck=no, yardstick=np.where(accept, seen.elbo, yardstick),
            elbo=seen.elbo, gain=gain, gain_se=se, strictness=np.full(len(accept), np.inf), control=control,
        )  # fmt: skip

    def _adapted(self, layout: Layout, control: ValueControl, better, worse, flat, promised) -> ValueControl:
        """Longer steps after a clear gain, shorter after a loss; longer windows when in doubt."""
        refusals = np.where(worse, control.refusals + 1, 0)
        again = refusals >= 2  # twice refused: the yardstick may have been a lucky window, so draw it again, longer
        length = control.length
        length = np.select(
            [again, worse, better, flat & promised, flat],
            [
                np.maximum(0.5 * length, 0.1), np.maximum(0.5 * length, 0.02), np.minimum(1.25 * length, 1.0),
                np.minimum(1.5 * length, 1.0), length,
            ],
            np.maximum(0.9 * length, 0.05),
        )  # fmt: skip
        trust = np.where(better, np.minimum(2.0 * control.trust, 1e4), control.trust)
        trust = np.where(worse, np.maximum(2.0, np.sqrt(trust)), trust)
        grow = again | ~(worse | better)
        capacity = max(self.longest, self.first(layout))
        size = np.where(grow, np.minimum(1.5 * control.size, capacity).astype(int), control.size)
        return control._replace(size=size, length=length, trust=trust, refusals=np.where(again, 0, refusals), again=again)
