"""The default rule: a window of one-draw iterations is the proposal, judged on paired fresh draws.

Windows come in three kinds. While a straight line through the window's scores describes the posterior (see
`curvature`), q stands still during a window and the line is the proposal: first for the scales alone, then for the
whole covariance. Where the line stops paying, windows of natural steps take over: q moves with every draw and the
proposal is the average over the window's second half.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from yoasovi.acceptance import CANDIDATE, END, INCUMBENT, LINE, SCALES, STEPS, Plan, Verdict, open_uniform
from yoasovi.errors import positive_integer, positive_number
from yoasovi.gradients import Problem, total
from yoasovi.tempering import Logarithmic, Tempering


class WindowControl(NamedTuple):
    """What the rule adapts from window to window."""

    kind: jax.Array  # SCALES, LINE or STEPS
    size: jax.Array  # iterations in the next window, even
    length: jax.Array  # of the step: a share of the line's, or rho of natural steps
    trust: jax.Array  # by how much a line may change a variance
    cap: jax.Array  # most that one natural step may move a mean, in its own standard deviations
    failures: jax.Array  # of the line, in a row
    windows: jax.Array  # so far in this kind
    asked: jax.Array  # how often a line was turned to


# A step of a tenth of a standard deviation is safe; far from the posterior, where all steps agree, more is better.
_CAP, _LOOSEST_CAP = 0.1, 6.4


class Gain(NamedTuple):
    """Mean ELBO difference over common draws."""

    mean: jax.Array
    se: jax.Array
    elbo: jax.Array  # of the candidate
    wins: jax.Array  # share of pairs in which the candidate is better
    pairs: jax.Array
    nonfinite: jax.Array  # pairs that could not be used


def paired_gain(key, problem: Problem, candidate, incumbent, most, block: int = 32, surely: float = 4.0) -> Gain:
    """Compare two q on the same fresh noise, `block` pairs at a time, until sure or `most` pairs are spent.

    Differences are taken term by term before they are summed. A pair in which either side is not finite says nothing
    about the size of the gain; if that happens to one side much more often than to the other, that decides.
    """
    size = problem.noise_size

    def pair(uniform):
        (new, new_q), (old, old_q) = problem.look(candidate, uniform), problem.look(incumbent, uniform)
        change = total(jax.tree.map(jnp.subtract, new, old))
        return change - (new_q - old_q), new.total() - new_q, old.total() - old_q

    def more(carry):
        i, count, gains, squares, elbos, wins, bad_new, bad_old, _ = carry
        change, new, old = jax.vmap(pair)(open_uniform(jax.random.fold_in(key, i), (block, size)))
        ok_new, ok_old = jnp.isfinite(new), jnp.isfinite(old)
        use = ok_new & ok_old & jnp.isfinite(change)
        change = jnp.where(use, change, 0.0)
        count, gains, squares = count + use.sum(), gains + change.sum(), squares + (change**2).sum()
        elbos, wins = elbos + jnp.where(use, new, 0.0).sum(), wins + (change > 0).sum()
        bad_new, bad_old = bad_new + (~ok_new).sum(), bad_old + (~ok_old).sum()
        mean, se = moments(count, gains, squares)
        sure = (jnp.abs(mean) > surely * se) & (count > block // 2)
        return i + 1, count, gains, squares, elbos, wins, bad_new, bad_old, sure

    zero, none = jnp.asarray(0.0), jnp.asarray(0)
    start = (none, none, zero, zero, zero, none, none, none, jnp.asarray(False))
    end = jax.lax.while_loop(lambda c: (c[0] * block < most) & ~c[-1], more, start)
    i, count, gains, squares, elbos, wins, bad_new, bad_old, _ = end
    mean, se = moments(count, gains, squares)
    drawn = i * block
    margin = jnp.maximum(0.25 * drawn, 2.0 * jnp.sqrt(1.0 * bad_old))
    worse, better = bad_new > bad_old + margin, bad_old > bad_new + margin
    mean = jnp.where(worse, -jnp.inf, jnp.where(better, jnp.inf, mean))
    se = jnp.where(worse | better, 0.0, jnp.where(count < 2, jnp.inf, se))
    many = jnp.maximum(count, 1)
    return Gain(mean, se, elbos / many, wins / many, drawn, bad_new + bad_old)


def moments(count, total_, squares):
    """Mean and standard error from running sums."""
    n = jnp.maximum(count, 2)
    mean = total_ / n
    return mean, jnp.sqrt(jnp.maximum(squares / n - mean**2, 0.0) / (n - 1)) + 1e-12


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
    step
        First length of natural steps.
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
    restores_optimizer: ClassVar[bool] = True

    def __post_init__(self):
        for name in ("tolerance", "sure", "flat", "step", "longest_step"):
            positive_number(name, "Window", getattr(self, name))
        for name in ("first", "pairs", "longest"):
            positive_integer(name, "Window", getattr(self, name))

    def capacity(self, problem: Problem) -> int:
        """Most draws a line is fitted to; longer windows would do better as natural steps."""
        most = max(32 * self.first, 4 * problem.family.line_size(problem.density.dim))
        return most if problem.density.subsampled is None else 8 * most  # minibatches blur a line that may be straight

    def init(self, problem, trust):
        start = self._first_steps(problem)
        if not self.lines or not problem.family.lines_pay(problem.density.dim):
            return start
        return start._replace(
            kind=jnp.asarray(SCALES), size=jnp.asarray(self.first), length=jnp.asarray(1.0), trust=jnp.asarray(trust, float)
        )

    def _longest(self, problem: Problem) -> int:
        """Most iterations in a window of steps: twice as many for what full lines left over, and for many parameters."""
        dim = problem.density.dim
        return 2 * self.longest if problem.family.line_size(dim) else min(max(self.longest, dim), 2 * self.longest)

    def _first_steps(self, problem: Problem) -> WindowControl:
        """Begin with windows of natural steps."""
        length = min(self.step, problem.family.longest_first_step(problem.density.dim))
        size = max(4 * self.first, 2 * int(1.5 / length))  # long enough to get somewhere
        number = lambda x: jnp.asarray(x, float)
        none = jnp.asarray(0)
        return WindowControl(
            jnp.asarray(STEPS), jnp.asarray(size), number(length), number(1.0), number(_CAP), none, none, none
        )

    def plan(self, control):
        return Plan(control.size, control.length, control.kind, control.trust, control.cap)

    def weigh(self, seen, yardstick):
        return seen

    def screen(self, key, control, elbo, yardstick, t):
        return True

    def judge(self, key, control, problem, journey, yardstick, t):
        k_gain, k_luck = jax.random.split(key)
        stepping = control.kind == STEPS
        # One program for both questions: is the candidate better than the incumbent, and (in windows of steps) than
        # the point where the window ended? The second tells noise from progress, and so steers the step's length.
        most = jnp.where(journey.finite, jnp.maximum(control.size, self.pairs), 0)
        most = jnp.stack([most, jnp.where(stepping, most // 2, 0)])
        others = jax.tree.map(lambda a, b: jnp.stack([a, b]), journey.incumbent, journey.end)
        compare = lambda x: paired_gain(x[0], problem, journey.candidate, x[1], x[2])
        gains = jax.lax.map(compare, (jax.random.split(k_gain), others, most))
        gain, noise = (Gain(*[x[i] for x in gains]) for i in (0, 1))
        mean = jnp.where(journey.finite, gain.mean, -jnp.inf)
        se = jnp.where(journey.finite, gain.se, 0.0)
        flat = max(self.flat, problem.density.dim / 3000)
        # Losses with heavy tails hide behind their own error: to lose in clearly more than half of the pairs is enough.
        most_lost = (mean < -flat) & (gain.wins < 0.5 - 1.0 / jnp.sqrt(jnp.maximum(gain.pairs, 1)))
        better, worse = mean > self.sure * se, (mean < -self.sure * se) | most_lost
        # A gain that is small but sure is progress: on a plateau there may be no other.
        small = (jnp.abs(mean) + self.sure * se < flat) & ~(better & (mean > 0.2 * flat))
        # A short window of short steps is flat because it went nowhere.
        longest = self._longest(problem)
        travelled = (control.length * control.size >= 1.0) | (control.size >= longest)
        seen = _Seen(mean, se, better, worse, small, travelled, noise.mean)
        strictness = self.tempering.strictness(self.tempering.init(), t)
        lucky = seen.small & (jnp.log(jax.random.uniform(k_luck, dtype=mean.dtype)) < strictness * mean / se)
        # Gains with heavy tails: an undecided mean is believed only if most of the pairs agree with it.
        likely = (mean > 0) & (gain.wins > 0.5)
        accept = better | (~worse & (lucky | likely))
        before, control = control, self._after_steps(control, problem, seen, longest)
        settled = seen.travelled & (jnp.abs(mean) + self.sure * se < 2.0 * self.tolerance * flat / self.flat)
        if journey.forecast is not None:
            # Where natural scores have next to no noise the posterior is Gaussian as far as q can tell, and a few times
            # 1 / length steps reach all of it: one flat window is proof.
            quiet = noise.mean + self.sure * noise.se < 0.0125 * before.length * problem.density.dim
            settled |= quiet & seen.small & ~worse & (before.length * before.size >= 3.0)
            lined, lines_settled = self._after_line(before, problem, journey.forecast, seen)
            control = jax.tree.map(lambda a, b: jnp.where(stepping, a, b), control, lined)
            settled = jnp.where(stepping, settled, lines_settled)
        resume = jnp.where(stepping & ~worse, jnp.where(better & (noise.mean < 0), END, CANDIDATE), INCUMBENT)
        progressed = better & ~seen.small
        return Verdict(
            accept=accept, rollback=worse, resume=resume, missed=stepping & seen.small & ~worse & seen.travelled,
            progressed=progressed, settled=settled, stuck=stepping & (control.length < 1e-7),
            yardstick=jnp.where(accept, gain.elbo, yardstick), elbo=gain.elbo, gain=mean, gain_se=se, strictness=strictness,
            values=2 * gains.pairs.sum(), nonfinite=gains.nonfinite.sum(), control=control,
        )  # fmt: skip

    def _after_steps(self, control: WindowControl, problem: Problem, seen: _Seen, longest: int) -> WindowControl:
        """Adapt the length and its cap: up while the window's end is as good as its average, down when noise shows."""
        gain, noise = seen.gain, seen.noise
        better = seen.better & ~seen.small
        worse, flat = seen.worse, seen.small & ~seen.worse
        capped = control.cap > _CAP
        clear, noisy = better & (noise < 0.1 * gain), better & (noise > jnp.maximum(gain, 0.25 * problem.density.dim**0.5))
        long = control.length >= self.longest_step
        idle = flat & ~seen.travelled
        length = control.length * jnp.select(
            [clear & ~long, (noisy | worse) & ~capped, flat & ~idle, ~better & ~worse & ~idle], [1.5, 0.5, 0.5, 0.7], 1.0
        )
        cap = control.cap * jnp.select([clear & long, noisy & capped, worse & capped], [2.0, 0.5, 0.25], 1.0)
        growth = jnp.select([flat, better & (noise > 0.25 * gain), ~better & ~worse], [2.0, 1.5, 1.5], 1.0)
        size = jnp.minimum(even(growth * control.size), longest)
        return control._replace(
            size=size, length=jnp.minimum(length, self.longest_step), cap=jnp.clip(cap, _CAP, _LOOSEST_CAP),
            windows=control.windows + 1,
        )  # fmt: skip

    def _after_line(self, control: WindowControl, problem: Problem, forecast, seen: _Seen):
        """Adapt length and trust by what the line promised, and move on to the next kind when it stops paying."""
        expected, signal, noise = forecast
        dim, full_size = problem.density.dim, problem.family.line_size(problem.density.dim)
        full = control.kind == LINE
        short = seen.worse | (seen.gain + self.sure * seen.se < 0.25 * expected)
        kept = seen.better & (seen.gain > 0.75 * expected) & ~short
        # A shrunk line promises too little where there is much noise; only elsewhere does more call for longer steps.
        longest = jnp.where((seen.gain > 1.2 * expected) & (signal > 4.0 * noise), 1.5, 1.0)
        length = jnp.where(short, jnp.maximum(0.5 * control.length, 0.1), control.length)
        length = jnp.where(kept, jnp.minimum(longest, 1.5 * control.length), length)
        trust = jnp.where(short, jnp.maximum(4.0, jnp.sqrt(control.trust)), control.trust)
        trust = jnp.where(kept, jnp.minimum(2.0 * trust, 1e4), trust)
        # A posterior that bends (much noise about the line) may have plateaus on which no line promises anything.
        # Under minibatches the noise is mostly theirs, so it says little of that, and a longer window takes it off.
        batched = problem.density.subsampled is not None
        straight = True if batched else noise * control.size < 1.5
        growth = jnp.clip(noise / self.tolerance, 1.5, 4.0) if batched else 1.5
        settled = seen.small & straight & (signal + noise < 2.0 * self.tolerance) & (full if full_size else True)

        paying = seen.better & (seen.gain > jnp.maximum(0.5 * expected, 0.1))
        blurred = ~paying & (noise > 0.25 * signal)
        failures = jnp.where(paying, 0, control.failures + (~blurred | (~full & seen.worse)))
        undecided = ~seen.better & ~seen.worse
        grow = jnp.where(full, blurred, undecided)
        size = jnp.where(grow, even(growth * control.size), control.size)
        capacity = self.capacity(problem)
        windows = control.windows + 1
        near = (full_size <= 2 * control.size + 32) & (signal < 1.0 + 0.25 * dim)
        # Where a full line costs little more, correlations soon deserve one: along the axes alone progress can crawl.
        most = 8 if full_size <= 4 * self.first else 40
        little = seen.gain + self.sure * seen.se < 1.0
        crossed = (failures >= 3) & (full_size > 0)  # what fails along the axes may be a matter of correlations
        over = (windows > most + 20) | (size > capacity) | crossed
        scales_done = over | (~seen.worse & (near | little | (windows > most)))
        line_done = (failures >= 2) | (size > capacity)

        here = control._replace(
            size=jnp.minimum(size, capacity), length=length, trust=trust, failures=failures, windows=windows
        )
        to_line = here._replace(
            kind=jnp.asarray(LINE), size=jnp.maximum(control.size, full_size),
            length=jnp.where(crossed, 1.0, jnp.minimum(length, 1.0)), failures=jnp.asarray(0), windows=jnp.asarray(0),
            asked=control.asked + 1,
        )  # fmt: skip
        to_steps = self._first_steps(problem)
        # A line that fails far from the posterior says that it was asked too soon; one that fails near it, that the
        # posterior is not Gaussian enough.
        to_scales = here._replace(
            kind=jnp.asarray(SCALES), size=jnp.asarray(self.first), length=jnp.asarray(1.0), trust=jnp.asarray(16.0),
            failures=jnp.asarray(0), windows=jnp.asarray(0),
        )  # fmt: skip
        pick = lambda c, a, b: jax.tree.map(lambda x, y: jnp.where(c, x, y), a, b)
        far = (signal + noise > 10.0 * (1 + dim)) & (control.asked < 3)
        after_line = pick(far, to_scales, to_steps)
        after_scales = to_line if full_size else to_steps
        return pick(full, pick(line_done, after_line, here), pick(scales_done, after_scales, here)), settled


class _Seen(NamedTuple):
    gain: jax.Array
    se: jax.Array
    better: jax.Array
    worse: jax.Array
    small: jax.Array
    travelled: jax.Array
    noise: jax.Array  # how much better the average of a window is than its end


def even(x: Any) -> jax.Array:
    """Round down to an even integer: draws come in mirrored pairs."""
    return (x // 2).astype(int) * 2
