"""The default rule: a window of one-draw iterations is the proposal, judged on paired fresh draws.

Windows come in four kinds. While a straight line through the window's scores describes the posterior (see
`score_line`), q stands still during a window and the line is the proposal: first for the scales alone, then for the
whole covariance. Where the line stops paying, windows of natural steps take over: q moves with every draw and the
proposal is the average over the window's second half. Where lines fail from far away, a climb of the ELBO on fixed draws is
a window of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from yoasovi.arrays import space
from yoasovi.errors import positive_integer, positive_number
from yoasovi.tempering import Logarithmic, Tempering
from yoasovi.windows.judge import Gain, decide
from yoasovi.windows.state import (
    CANDIDATE,
    CLIMB,
    COLD_TRUST,
    END,
    INCUMBENT,
    LINE,
    SCALES,
    STEPS,
    WARM_TRUST,
    Forecast,
    Plan,
    Ruling,
    Setting,
    choose,
    even,
)  # fmt: skip

# A step of a tenth of a standard deviation is safe; far from the posterior, where all steps agree, more is better.
_CAP, _LOOSEST_CAP = 0.1, 6.4
_NUMBERS = 2**25  # of noise in a window of steps


class WindowControl(NamedTuple):
    """What the rule adapts from window to window; (lanes,) each."""

    kind: Any  # SCALES, LINE, STEPS or CLIMB
    size: Any  # iterations in the next window, even
    length: Any  # of the step: a share of the line's, or rho of natural steps
    trust: Any  # by how much a line may change a variance
    cap: Any  # most that one natural step may move a mean, in its own standard deviations
    failures: Any  # of the line, in a row
    windows: Any  # so far in this kind
    asked: Any  # how often a line was turned to
    climbs: Any  # of an ELBO that may still be tried


class Outcome(NamedTuple):
    """What came out of a window, in the rule's own terms."""

    gain: Any
    se: Any
    better: Any
    worse: Any
    small: Any
    travelled: Any
    noise: Any  # how much better the average of a window is than its end


@dataclass(frozen=True)
class Window:
    """Judge windows by the ELBO gain on common draws, with its standard error.

    Parameters
    ----------
    tolerance
        Stop when the gain still to be had is below this many nats, as far as can be told.
    first
        Iterations in the first window.
    pairs
        Common draws a judgement may always spend (more in longer windows).
    sure
        Standard errors beyond which a gain is believed.
    flat
        A window of steps whose gain is smaller than this beyond doubt uses up patience: nats, or a 3,000th of the
        number of parameters where that is more.
    step, longest_step
        First and greatest length of natural steps.
    longest
        Most iterations in a window of steps; twice as many where there are many parameters.
    lines
        Whether to begin with lines; if not, all windows are of steps.
    tempering
        A flat window that looks worse is kept with probability exp(M(t) gain / se), t counting windows.
    """

    tolerance: float = 0.02
    first: int = 16
    pairs: int = 64
    sure: float = 2.0
    flat: float = 0.15
    step: float = 0.1
    longest_step: float = 0.3
    longest: int = 1024
    lines: bool = True
    tempering: Tempering = Logarithmic(3.0)

    def __post_init__(self):
        for name in ("tolerance", "sure", "flat", "step", "longest_step"):
            positive_number(name, "Window", getattr(self, name))
        for name in ("first", "pairs", "longest"):
            positive_integer(name, "Window", getattr(self, name))

    def capacity(self, setting: Setting) -> int:
        """Most draws a line is fitted to; longer windows would do better as natural steps."""
        most = max(32 * self.first, setting.family.longest_line(setting.dim))
        return 8 * most if setting.batched else most  # minibatches blur a line that may be straight

    def longest_window(self, setting: Setting) -> int:
        """Most iterations in a window of steps: twice as many for what full lines left over, and for many parameters."""
        dim = setting.dim
        most = 2 * self.longest if setting.family.line_size(dim) else min(max(self.longest, dim), 2 * self.longest)
        return min(most, max(_NUMBERS // dim, 4 * self.first))

    def init(self, setting, lanes, trust):
        xp = space(trust)
        one = xp.ones(lanes)
        start = self._first_steps(setting, one)
        if not self.lines or not setting.family.lines_pay(setting.dim):
            return start
        whole, size = one.astype(int), setting.family.line_size(setting.dim)
        # At the top of log p a whole line gives all of its curvature; scales alone could not tell it from correlations.
        top = (trust * one >= WARM_TRUST) & (0 < size <= 8 * self.first)
        return start._replace(
            kind=xp.where(top, LINE, SCALES), size=xp.where(top, size, self.first * whole), length=one, trust=trust * one
        )

    def with_climb(self, control: WindowControl, now: Any) -> WindowControl:
        """Allow a climb of the ELBO: before all else where `now` says so, and elsewhere when lines have failed."""
        later = control._replace(climbs=control.climbs + 1)
        return choose(now, self._to_climb(control), later)

    def _to_climb(self, control: WindowControl) -> WindowControl:
        none = 0 * control.kind
        size, length = none + max(self.first // 4 * 2, 4), 0.0 * control.length + 1.0
        return control._replace(kind=none + CLIMB, size=size, length=length, climbs=none)

    def _first_steps(self, setting: Setting, like: Any) -> WindowControl:
        """Begin with windows of natural steps; `like` is an array of ones with the shape of the lanes."""
        length = min(self.step, setting.family.longest_first_step(setting.dim))
        size = max(4 * self.first, 2 * int(1.5 / length))  # long enough to get somewhere
        whole = like.astype(int)
        return WindowControl(
            STEPS * whole, size * whole, length * like, like, _CAP * like, 0 * whole, 0 * whole, 0 * whole, 0 * whole
        )

    def plan(self, control):
        return Plan(control.size, control.length, control.kind, control.trust, control.cap)

    def most_pairs(self, control: WindowControl) -> tuple[Any, Any]:
        """Give the common draws for two questions: is the candidate better than the incumbent, and than the window's end.

        The second question tells noise from progress, and so steers the length of steps; lines do not ask it.
        """
        xp = space(control.size)
        most = xp.maximum(control.size, self.pairs)
        return most, xp.where(control.kind == STEPS, most // 2, 0)

    def close_enough(self, setting: Setting, control: WindowControl) -> Any:
        """Give the nats within which a gain is small: a line says itself what is left, so that it need not be told."""
        lined = (control.kind == SCALES) | (control.kind == LINE)
        return space(control.size).where(lined & (not setting.batched), self._flat(setting), 0.0)

    def _flat(self, setting: Setting) -> float:
        return max(self.flat, setting.dim / 3000)

    def rule(self, setting, control, gain: Gain, noise: Gain, forecast: Forecast, sound, yardstick, luck, t) -> Ruling:
        """Rule on a turn: `gain` over the incumbent, `noise` the gain of the average over the window's end."""
        xp, stepping, climbing = space(gain.mean), control.kind == STEPS, control.kind == CLIMB
        gain = gain._replace(mean=xp.where(sound, gain.mean, -xp.inf), se=xp.where(sound, gain.se, 0.0))
        flat = self._flat(setting)
        strictness = xp.zeros_like(gain.mean) + self.tempering.strictness(self.tempering.init(), t)
        found = decide(gain, self.sure, flat, strictness, luck)
        # A short window of short steps is flat because it went nowhere.
        longest = self.longest_window(setting)
        travelled = (control.length * control.size >= 1.0) | (control.size >= longest)
        seen = Outcome(gain.mean, gain.se, found.better, found.worse, found.small, travelled, noise.mean)
        stepped = self._after_steps(control, setting, seen, longest)
        doubt = abs(gain.mean) + self.sure * gain.se
        settled = travelled & (doubt < 2.0 * self.tolerance * flat / self.flat)
        # Where natural scores have next to no noise the posterior is Gaussian as far as q can tell, and a few times
        # 1 / length steps reach all of it: one flat window is proof. (An end that beats the average is still on its way.)
        quiet = abs(noise.mean) + self.sure * noise.se < 0.0125 * control.length * setting.dim
        settled = settled | (quiet & seen.small & ~seen.worse & (control.length * control.size >= 3.0))
        lined, lines_settled = self._after_line(control, setting, forecast, seen)
        resume = xp.where(seen.better & (noise.mean < 0), END, CANDIDATE)
        new = choose(climbing, self._after_climb(control, setting, found.accept), choose(stepping, stepped, lined))
        return Ruling(
            accept=found.accept, rollback=seen.worse, resume=xp.where(stepping & ~seen.worse, resume, INCUMBENT),
            missed=stepping & seen.small & ~seen.worse & travelled, progressed=seen.better & ~seen.small,
            settled=xp.where(stepping, settled, lines_settled & ~climbing), stuck=stepping & (new.length < 1e-7),
            yardstick=xp.where(found.accept, gain.elbo, yardstick), elbo=gain.elbo, gain=gain.mean, gain_se=gain.se,
            strictness=strictness, control=new,
        )  # fmt: skip

    def _after_steps(self, control: WindowControl, setting: Setting, seen: Outcome, longest: int) -> WindowControl:
        """Adapt the length and its cap: up while the window's end is as good as its average, down when noise shows."""
        xp, gain, noise = space(seen.gain), seen.gain, seen.noise
        better = seen.better & ~seen.small
        worse, flat = seen.worse, seen.small & ~seen.worse
        capped = control.cap > _CAP
        clear, noisy = better & (noise < 0.1 * gain), better & (noise > xp.maximum(gain, 0.25 * setting.dim**0.5))
        long = control.length >= self.longest_step
        idle = flat & ~seen.travelled
        length = control.length * xp.select(
            [clear & ~long, (noisy | worse) & ~capped, flat & ~idle, ~better & ~worse & ~idle], [1.5, 0.5, 0.5, 0.7], 1.0
        )
        cap = control.cap * xp.select([clear & long, noisy & capped, worse & capped], [2.0, 0.5, 0.25], 1.0)
        growth = xp.select([flat, better & (noise > 0.25 * gain), ~better & ~worse], [2.0, 1.5, 1.5], 1.0)
        size = xp.minimum(even(growth * control.size), longest)
        return control._replace(
            size=size, length=xp.minimum(length, self.longest_step), cap=xp.clip(cap, _CAP, _LOOSEST_CAP),
            windows=control.windows + 1,
        )  # fmt: skip

    def _after_climb(self, control: WindowControl, setting: Setting, accepted: Any) -> WindowControl:
        """Begin with lines, unless they have failed from where the climb could not lead away."""
        xp = space(control.length)
        first = self.init(setting, len(control.length), xp.where(accepted, COLD_TRUST, control.trust))
        return choose(~accepted & (control.windows > 0), self._first_steps(setting, xp.ones_like(control.length)), first)

    def _after_line(self, control: WindowControl, setting: Setting, forecast: Forecast, seen: Outcome):
        """Adapt length and trust by what the line promised, and move on to the next kind when it stops paying."""
        xp, (expected, signal, noise, draws) = space(seen.gain), forecast
        # Looks at minibatches cost little: sds that are wrong by a tenth are worth more of them.
        tolerance = 0.4 * self.tolerance if setting.batched else self.tolerance
        dim, full_size = setting.dim, setting.family.line_size(setting.dim)
        full = control.kind == LINE
        short = seen.worse | (seen.gain + self.sure * seen.se < 0.25 * expected)
        kept = seen.better & (seen.gain > 0.75 * expected) & ~short
        # A shrunk line promises too little where there is much noise; only elsewhere does more call for longer steps.
        longest = xp.where((seen.gain > 1.2 * expected) & (signal > 4.0 * noise), 1.5, 1.0)
        length = xp.where(short, xp.maximum(0.5 * control.length, 0.1), control.length)
        length = xp.where(kept, xp.minimum(longest, 1.5 * control.length), length)
        trust = xp.where(short, xp.maximum(4.0, xp.sqrt(control.trust)), control.trust)
        trust = xp.where(kept, xp.minimum(2.0 * trust, 1e4), trust)
        # A posterior that bends (much noise about the line) may have plateaus on which no line promises anything.
        # Under minibatches the noise is mostly theirs, so it says little of that, and a longer window takes it off.
        straight = setting.batched | (noise * draws < setting.family.bend(dim))
        growth = xp.clip(noise / tolerance, 1.5, 4.0 if setting.batched else 2.0)
        # What a line of many draws promised is had once its step is taken: its noise is left.
        many = draws >= 16 * self.first
        little_left = many & (noise < tolerance) & (signal < 4.0 * tolerance)
        little_left = little_left | (signal + noise < 2.0 * tolerance)
        settled = seen.small & straight & little_left & (full if full_size else True)

        paying = seen.better & (seen.gain > xp.maximum(0.5 * expected, 0.1))
        blurred = ~paying & (noise > 0.25 * signal)
        # A full line that gains nothing where the posterior bends is at its end, unless lines come last.
        idle = full & seen.small & ~straight & (not setting.family.lines_last())
        failures = xp.where(paying, 0, control.failures + (~blurred | (~full & seen.worse) | idle))
        undecided = ~seen.better & ~seen.worse
        grow = xp.where(full, blurred, undecided)
        # Where earlier draws still count, it takes fewer for the line to rest on so many more.
        longer = xp.maximum(control.size, even((growth - 1.0) * draws))
        longer = xp.where(draws < 1.5 * control.size, even(growth * control.size), longer)
        size = xp.where(grow, longer, control.size)
        capacity = self.capacity(setting)
        windows = control.windows + 1
        near = (full_size <= 2 * control.size + 32) & (signal < 1.0 + 0.25 * dim)
        # Where a full line costs little more, correlations soon deserve one: along the axes alone progress can crawl.
        most = 8 if full_size <= 4 * self.first else 40
        little = seen.gain + self.sure * seen.se < 1.0
        crossed = (failures >= 3) & (full_size > 0)  # what fails along the axes may be a matter of correlations
        over = (windows > most + 20) | (size > capacity) | crossed
        scales_done = over | (~seen.worse & (near | little | (windows > most)))
        # At its largest a window goes on while its line is nearly there.
        nearly = straight & (noise < 2.0 * tolerance) & (signal < 4.0 * tolerance)
        # Many draws and still far from straight: steps follow a bend, lines creep along it.
        creeping = (control.size >= 16 * self.first) & (noise * draws > 10.0 + 2.0 * dim) & (not setting.batched)
        astray = (control.climbs > 0) & ~(straight & (signal + noise < 10.0 * tolerance))
        lost = astray & seen.worse & (full_size > 4 * self.first)  # a climb costs no more than a few such lines
        line_done = (failures >= 2) | ((size > capacity) & ~nearly) | creeping | lost

        none = 0 * control.kind
        here = control._replace(
            size=xp.minimum(size, capacity), length=length, trust=trust, failures=failures, windows=windows
        )
        to_line = here._replace(
            kind=none + LINE, size=xp.maximum(control.size, full_size),
            length=xp.where(crossed, 1.0, xp.minimum(length, 1.0)), failures=none, windows=none, asked=control.asked + 1,
        )  # fmt: skip
        one = xp.ones_like(control.length)
        to_steps = self._first_steps(setting, one)
        # A line that fails far from the posterior says that it was asked too soon; one that fails near it, that the
        # posterior is not Gaussian enough.
        to_scales = here._replace(
            kind=none + SCALES, size=none + self.first, length=one, trust=COLD_TRUST * one, failures=none, windows=none
        )
        far = (signal + noise > 10.0 * (1 + dim)) & (control.asked < 3)
        # Before steps take over: a posterior that bends looks flat from places far off, and another may be better.
        onwards = choose(astray, self._to_climb(here), to_steps)
        done = choose(full, choose(far & ~lost, to_scales, onwards), to_line if full_size else onwards)
        return choose(xp.where(full, line_done, scales_done), done, here), settled
