"""The rule that judges windows of an arbitrary optimiser's steps.

The length of a step has no natural unit here (it is the user's learning rate that has to be mended), so the rule finds it:
longer while the end of a window beats its average, shorter once the average beats the end. What a gain says is decided
where all windows are judged, in `windows.judge`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax

from yoasovi.arrays import space
from yoasovi.tempering import Logarithmic, Tempering
from yoasovi.windows.judge import Gain, decide
from yoasovi.windows.state import even


class GuideControl(NamedTuple):
    """What the rule adapts."""

    size: Any  # steps in the next window
    length: Any  # multiplies the optimiser's own steps
    noisy: Any  # has noise shown since steps last descended? If so they are long enough to get somewhere


class GuideRuling(NamedTuple):
    """What the rule says of a window."""

    accept: Any
    rollback: Any
    missed: Any  # how much of the patience it uses up
    progressed: Any
    stuck: Any
    control: GuideControl


# What a flat window takes of the patience: much where noise has shown that steps are long enough to get somewhere, little
# where they may just have been too short (the next ones are twice as long).
_SURE_MISS, _FAINT_MISS = 3, 1


@dataclass(frozen=True)
class GuideRule:
    """Judge windows of steps by the paired gain over the incumbent.

    Parameters
    ----------
    first, longest
        Steps in the first window, and in the longest.
    sure
        Standard errors beyond which a gain is believed.
    flat
        A window whose gain is smaller than this beyond doubt uses up patience: nats.
    tempering
        A flat window that looks worse is kept with probability exp(M(t) gain / se), t counting windows.
    """

    first: int = 64
    longest: int = 1024
    sure: float = 2.0
    flat: float = 0.05
    tempering: Tempering = Logarithmic(3.0)
    patience: ClassVar[int] = 3 * _SURE_MISS

    def rule(self, control: GuideControl, gain: Gain, noise: Gain, sound: Any, luck: Any, t: Any) -> GuideRuling:
        """Rule on a window: `gain` over the incumbent, `noise` the gain of the average over the window's end."""
        xp = space(gain.mean)
        gain = gain._replace(mean=xp.where(sound, gain.mean, -xp.inf), se=xp.where(sound, gain.se, 0.0))
        found = decide(gain, self.sure, self.flat, self.tempering.strictness(self.tempering.init(), t), luck)
        after = self._adapted(control, gain.mean, found.worse, found.small, noise)
        missed = xp.where(found.small, xp.where(after.noisy, _SURE_MISS, _FAINT_MISS), 0)
        return GuideRuling(
            found.accept & sound, found.worse, missed, found.better & ~found.small, control.length < 1e-10, after
        )

    def _adapted(self, control: GuideControl, gain, worse, small, noise: Gain) -> GuideControl:
        """Shorten steps that led astray or whose noise is most of what they brought; lengthen those that still descend."""
        xp = space(gain)
        descends, shows = noise.mean < -self.sure * noise.se, noise.mean > noise.se
        noisy = shows & (noise.mean > 0.5 * xp.maximum(gain, 0.0))
        known = xp.where(descends, False, control.noisy | shows)
        lost = worse & ~xp.isfinite(gain)
        factor = xp.select([lost, worse, noisy, descends, small & ~known], [0.1, 0.5, 0.5, 2.0, 2.0], 1.0)
        growth = xp.select([worse, small & known, descends], [1.0, 1.5, 1.0], 1.25)
        size = xp.minimum(even(growth * control.size), self.longest)
        return GuideControl(size, control.length * factor, known)


def selector(optim, state) -> Callable[[Any, Any], Any] | None:
    """Give a function that puts parameters into a state of `optim`; None if its state does not hold them as they are."""
    leaves, tree = jax.tree.flatten(state[1])
    marks = [_Mark(i) for i in range(len(leaves))]
    try:
        found = jax.tree.leaves(optim.get_params_fn(jax.tree.unflatten(tree, marks)))
        where = [mark.index for mark in found]
    except Exception:  # arithmetic on marks: parameters are computed from the state, not held in it
        return None

    def put(state, params):
        leaves, tree = jax.tree.flatten(state[1])
        for i, leaf in zip(where, jax.tree.leaves(params), strict=True):
            leaves[i] = leaf
        return state[0], jax.tree.unflatten(tree, leaves)

    return put


@dataclass(frozen=True)
class _Mark:
    index: int
