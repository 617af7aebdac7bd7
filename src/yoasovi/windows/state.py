"""What windows are: their kinds, what a turn plans, what it has to show, and what a verdict on it says.

Every array has a leading axis of lanes (restarts).
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from yoasovi.arrays import space

# Kinds of window: q stands still while a line is fitted to its scores or values, moves with every draw in STEPS, and begins
# anew in CLIMB, on fixed draws.
SCALES, LINE, STEPS, VALUES, CLIMB = 0, 1, 2, 3, 4
# Where the next turn starts.
INCUMBENT, CANDIDATE, END = 0, 1, 2


class Setting(NamedTuple):
    """What a rule on windows has to know of a problem."""

    dim: int
    family: Any
    batched: bool = False  # are there minibatches?


class Plan(NamedTuple):
    """What the next turn is to be."""

    size: Any  # iterations
    length: Any  # of the step: a share of the line's, or what multiplies the optimiser's
    kind: Any
    trust: Any  # see `score_line.newton`
    cap: Any  # most that one natural step may move a mean, in its own standard deviations


class Forecast(NamedTuple):
    """What a line says of the candidate it proposes (nats); zero where there is no line."""

    expected: Any
    signal: Any
    noise: Any
    draws: Any  # that the line rests on


class Ruling(NamedTuple):
    """The answer of a rule on windows. Only it may say `rollback`; only the loop does it."""

    accept: Any  # the candidate becomes the incumbent
    rollback: Any  # parameters, optimiser and yardstick go back to the incumbent's
    resume: Any  # INCUMBENT, CANDIDATE or END
    missed: Any  # uses up patience
    progressed: Any  # restores it
    settled: Any  # nothing is left to gain
    stuck: Any  # no step is acceptable
    yardstick: Any  # what the next candidate is compared with
    elbo: Any  # candidate's, as seen here
    gain: Any
    gain_se: Any
    strictness: Any
    control: Any


# How far one line may change a variance: a narrow q sees the curvature at one point, and may be believed far out.
COLD_TRUST, WARM_TRUST = 16.0, 1e4


class WindowRule(Protocol):
    """Plans windows, says how many common draws a judgement may take, and rules on what came out."""

    def init(self, setting: Setting, lanes: int, trust: Any) -> Any:
        """Give the control variables to begin with, (lanes,) each."""
        ...

    def with_climb(self, control: Any, now: Any) -> Any:
        """Allow a climb of the ELBO: before all else where `now` says so, and elsewhere when lines have failed."""
        ...

    def plan(self, control: Any) -> Plan:
        """Say what the next turn is to be."""
        ...

    def most_pairs(self, control: Any) -> tuple[Any, Any]:
        """Give the common draws for two questions: is the candidate better than the incumbent, and than the window's end."""
        ...

    def close_enough(self, setting: Setting, control: Any) -> Any:
        """Give the nats within which the size of a gain need not be known better; 0 where it must be."""
        ...

    def rule(self, setting: Setting, control, gain, noise, forecast: Forecast, sound, yardstick, luck, t) -> Ruling:
        """Rule on a turn by its paired gains; `ValueWindow` rules by a regression's intercepts instead."""
        ...


def choose(condition: Any, new: Any, old: Any) -> Any:
    """Choose lane by lane between two named tuples of arrays."""
    xp = space(condition)
    out = []
    for a, b in zip(new, old, strict=True):
        wide = condition.reshape(condition.shape + (1,) * (xp.asarray(a).ndim - condition.ndim))
        out.append(xp.where(wide, a, b))
    return type(new)(*out)


def even(x: Any) -> Any:
    """Round down to an even integer: draws come in mirrored pairs."""
    return (x // 2).astype(int) * 2
