"""From gains on common draws to a decision: the one judge of every window, NumPyro's guides included."""

from __future__ import annotations

from typing import Any, NamedTuple

from yoasovi.arrays import space

BLOCK, SMALL_BLOCK = 32, 8  # pairs at a time, where looks are cheap and where they are not
SURELY, SURELY_OF_FEW = 4.0, 6.0  # standard errors beyond which no more pairs are drawn, and with few pairs
SURELY_SMALL = 3.0


class Tally(NamedTuple):
    """Running sums over the pairs drawn so far; (lanes,) each."""

    drawn: Any
    count: Any  # pairs of which both sides were finite
    gains: Any
    squares: Any
    elbos: Any  # of the candidate
    wins: Any  # pairs in which the candidate is better
    bad_new: Any
    bad_old: Any


class Gain(NamedTuple):
    """Mean ELBO difference over common draws."""

    mean: Any
    se: Any
    elbo: Any  # of the candidate
    wins: Any  # share of pairs in which the candidate is better
    pairs: Any
    nonfinite: Any  # pairs that could not be used


class Decision(NamedTuple):
    """What a gain says."""

    better: Any
    worse: Any
    small: Any  # less than `flat`, beyond doubt
    accept: Any


def empty(like: Any) -> Tally:
    """Give the tally before the first pair; `like` has the shape of the lanes."""
    xp = space(like)
    none, zero = xp.zeros(like.shape, int), xp.zeros(like.shape, like.dtype)
    return Tally(none, none, zero, zero, zero, none, none, none)


def add(tally: Tally, change: Any, new: Any, old: Any) -> Tally:
    """Count a block of pairs, (..., n): the gains, and the ELBO draws of both sides."""
    xp = space(change)
    ok_new, ok_old = xp.isfinite(new), xp.isfinite(old)
    use = ok_new & ok_old & xp.isfinite(change)
    change = xp.where(use, change, 0.0)
    return Tally(
        tally.drawn + new.shape[-1], tally.count + use.sum(-1), tally.gains + change.sum(-1),
        tally.squares + (change**2).sum(-1), tally.elbos + xp.where(use, new, 0.0).sum(-1),
        tally.wins + (change > 0).sum(-1), tally.bad_new + (~ok_new).sum(-1), tally.bad_old + (~ok_old).sum(-1),
    )  # fmt: skip


def moments(tally: Tally) -> tuple[Any, Any]:
    """Mean and standard error of the gain so far."""
    xp = space(tally.gains)
    n = xp.maximum(tally.count, 2)
    mean = tally.gains / n
    return mean, xp.sqrt(xp.maximum(tally.squares / n - mean**2, 0.0) / (n - 1)) + 1e-12


def sure(tally: Tally, surely: float = SURELY, block: int = BLOCK) -> Any:
    """Say whether the sign of the gain is beyond doubt, so that more pairs would be wasted."""
    mean, se = moments(tally)
    few = tally.count < BLOCK // 2
    needed = space(se).where(few, max(surely, SURELY_OF_FEW), surely)
    return (abs(mean) > needed * se) & (tally.count > block // 2)


def surely_small(tally: Tally, flat: Any) -> Any:
    """Say whether the gain is beyond doubt between `flat` nats less and more."""
    mean, se = moments(tally)
    return (abs(mean) + SURELY_SMALL * se < flat) & (tally.count >= 2 * BLOCK)


def gained(tally: Tally) -> Gain:
    """Give the gain.

    A pair in which either side is not finite says nothing about its size; if that happens to one side much more often than
    to the other, that decides.
    """
    xp = space(tally.gains)
    mean, se = moments(tally)
    margin = xp.maximum(0.25 * tally.drawn, 2.0 * xp.sqrt(1.0 * tally.bad_old))
    worse, better = tally.bad_new > tally.bad_old + margin, tally.bad_old > tally.bad_new + margin
    mean = xp.where(worse, -xp.inf, xp.where(better, xp.inf, mean))
    se = xp.where(worse | better, 0.0, xp.where(tally.count < 2, xp.inf, se))
    many = xp.maximum(tally.count, 1)
    return Gain(mean, se, tally.elbos / many, tally.wins / many, tally.drawn, tally.bad_new + tally.bad_old)


def decide(gain: Gain, sure: float, flat: Any, strictness: Any, luck: Any) -> Decision:
    """Believe a gain or a loss beyond `sure` errors; keep a flat window that looks worse with a tempered probability.

    `luck` is uniform noise. `flat` is in nats.
    """
    xp, mean, se = space(gain.mean), gain.mean, gain.se
    # Losses with heavy tails hide behind their own error: to lose in clearly more than half of the pairs is enough.
    most_lost = (mean < -flat) & (gain.wins < 0.5 - 1.0 / xp.sqrt(xp.maximum(gain.pairs, 1)))
    better, worse = mean > sure * se, (mean < -sure * se) | most_lost
    # A gain that is small but sure is progress: on a plateau there may be no other.
    small = (abs(mean) + sure * se < flat) & ~(better & (mean > 0.2 * flat))
    ratio = xp.where(small, mean / xp.where(se > 0, se, 1.0), 0.0)
    lucky = small & (xp.log(luck) < strictness * ratio)
    # Gains with heavy tails: an undecided mean is believed only if most of the pairs agree with it.
    likely = (mean > 0) & (gain.wins > 0.5)
    return Decision(better, worse, small, better | (~worse & (lucky | likely)))
