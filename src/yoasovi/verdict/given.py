"""What the user gets, against the best that can be known of the posterior: how far means and sds are off."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from yoasovi.randomness import Purpose, stream
from yoasovi.verdict import chains
from yoasovi.verdict.landscape import FULL_UP_TO, Landscape

_HELD = 0.7  # of its beginning, at most, that a chain is taken to hold
_FEW = 8  # draws that show what a parameter follows
DRAWS = 4000  # as many as `fit.mean()`, `sd()` and `summary()` take


@dataclass(frozen=True)
class Moments:
    """Means and logarithms of sds of scalar parameters on their own scale, with standard errors; errors of means in sds."""

    mean: np.ndarray
    sd: np.ndarray
    mean_error: np.ndarray
    log_sd_error: np.ndarray

    @classmethod
    def of(cls, x: np.ndarray, weights: np.ndarray | None = None, size: float | None = None) -> Moments:
        """Moments of rows, under normalised weights; `size` is the number of independent ones that equal rows are worth."""
        w = np.full(len(x), 1.0 / len(x)) if weights is None else weights
        mean = w @ x
        square = (x - mean) ** 2
        variance = np.maximum(w @ square, 1e-300)
        more = 1.0 if size is None else len(x) / size
        error = np.sqrt(more * (w**2 @ square) / variance)
        return cls(mean, np.sqrt(variance), error, 0.5 * np.sqrt(more * (w**2 @ (square - variance) ** 2)) / variance)

    @classmethod
    def of_chains(cls, ends: np.ndarray, begins: np.ndarray, known: Moments) -> Moments:
        """Moments by each chain's mean and mean square, (2, chains, k), and where it began, all relative to the known mean.

        Chains began at some of the rows that `known` is of.
        """
        first = _far_on(ends[0], begins, 0.0)
        shift, n = first.mean(0), len(begins)
        about = ends[1] - 2 * shift * ends[0] + shift**2  # squares about the mean that was found
        square = _far_on(about, (begins - shift) ** 2, known.sd**2 + shift**2)
        variance = np.maximum(square.mean(0), 1e-300)
        error = first.std(0, ddof=1) / np.sqrt(n * variance)
        return cls(known.mean + shift, np.sqrt(variance), error, 0.5 * square.std(0, ddof=1) / np.sqrt(n) / variance)


def _far_on(ends: np.ndarray, begins: np.ndarray, expected: np.ndarray | float) -> np.ndarray:
    """Where chains would come to if they were long, by a line through ends against begins (rows), which are `expected`.

    The line tells how much a chain still holds of its beginning: its luck comes off, and what it moved is only a part of the
    way.
    """
    away, moved = begins - begins.mean(0), ends - ends.mean(0)
    square = np.maximum((away**2).sum(0), 1e-300)
    slope = (away * moved).sum(0) / square
    error = np.sqrt(((moved - slope * away) ** 2).mean(0) / square)
    slope = np.clip(slope - 2.0 * error, 0.0, _HELD)  # no more than there surely is: of many parameters the worst is taken
    return expected + (ends - expected - slope * (begins - expected)) / (1.0 - slope)


class Off(NamedTuple):
    """How far an answer is off: of its worst parameter the difference, its standard error and its name."""

    value: float
    error: float
    name: str


class GivenDraws:
    """The draws that a fit gives by default, and what comparing them tells."""

    def __init__(self, fit: Any):
        self.fit = fit
        self.corrected, self.eps = fit.worth_correcting, None  # q's own draws need no second look
        if self.corrected:  # as `draws` has them, with the noise behind them, in which q is a standard normal
            self.eps = fit.pool(DRAWS).resample(DRAWS, stream(0, Purpose.RESAMPLE))
            self.theta = fit.family.place(fit.lane, self.eps[None])[0]
        else:
            self.theta = fit.draws(DRAWS, 0, False)[1]
        self.names, self.x = self._flat(self.theta)
        self.moments = Moments.of(self.x, size=fit.effective_size(DRAWS))
        self.chains: list[tuple[np.ndarray, np.ndarray]] = []  # means and mean squares, and where they began

    def wider(self, theta: np.ndarray, weights: np.ndarray) -> float:
        """Give the sd of the parameter that alone changes over weighted rows, on its own scale, over that of the draws.

        One where several change, and where it also follows others, which stand still in these rows: of an ordered vector
        the last is the one before plus a gap.
        """
        x, leader = self._flat(theta)[1], np.ptp(theta, axis=0) > 0
        still = self.theta[:_FEW].copy()
        still[:, leader] = theta[0, leader]
        alone = np.ptp(self._flat(still)[1], axis=0) == 0
        (which,) = np.nonzero(np.ptp(x, axis=0))
        if len(which) != 1 or not alone[which[0]]:
            return 1.0
        return float(Moments.of(x, weights).sd[which[0]] / self.moments.sd[which[0]])

    def _flat(self, theta: np.ndarray) -> tuple[list[str], np.ndarray]:
        found = self.fit.kernels.constrain(theta, self.fit.model.deterministics)  # as `sample` does, with its program
        found = {s.name: found[s.name] for s in self.fit.model.density.sites}
        names = [name for k, v in found.items() for name in self.fit.model.names(k, v.shape[1:])]
        return names, np.concatenate([np.asarray(v, float).reshape(len(v), -1) for v in found.values()], 1)

    def weighted(self, theta: np.ndarray, weights: np.ndarray) -> tuple[Off, Off]:
        """Compare with weighted draws."""
        with np.errstate(all="ignore"):
            x = self._flat(theta)[1]
            sound = np.isfinite(x**2).all(1)  # far out a parameter may overflow on its own scale
        kept = weights[sound]
        return self._off(Moments.of(x[sound], kept / kept.sum()))

    def anew(self, bill: Any, seed: int) -> tuple[Off, Off] | None:
        """Compare with draws made anew, group by group, from wider laws; None where these were not made so."""
        pool = self.fit.pool_anew(DRAWS, bill, seed) if self.corrected else None
        if pool is None:
            return None
        return self.weighted(self.fit.family.place(self.fit.lane, pool.eps[None])[0], pool.weights)

    def wandered(self, count: int, most: int, seed: int) -> tuple[tuple[Off, Off] | None, int]:
        """Compare with where short chains from these draws come to; None where they do not move. Also their gradients.

        Asked again, it runs as many more from other draws, and compares with all of them.
        """
        k, known = len(self.chains), self.moments
        chosen = stream(seed, Purpose.VERDICT_CHAINS).permutation(len(self.theta))[k * count : (k + 1) * count]
        mean, frame = (x[0] for x in self.fit.family.frame(self.fit.lane))
        if self.corrected and mean.size <= FULL_UP_TO:
            with suppress(np.linalg.LinAlgError):  # draws that lie in fewer dimensions stay in q's units
                root = np.linalg.cholesky(np.cov(self.theta.T).reshape(mean.size, mean.size))
                mean, frame = self.theta.mean(0), root
        landscape = Landscape(self.fit.kernels.point, mean, frame)
        seen = chains.wander(landscape, self.theta[chosen], most, stream(seed, Purpose.VERDICT_CHAINS, k + 1))
        if len(seen.theta) < 4 or seen.accepted < 0.3:
            return None, seen.num_gradients
        steps, n, dim = seen.theta.shape
        x = self._flat(seen.theta.reshape(-1, dim))[1].reshape(steps, n, -1) - known.mean
        self.chains.append((np.stack([x.mean(0), (x**2).mean(0)]), self.x[chosen] - known.mean))
        ends, begins = (np.concatenate(part, -2) for part in zip(*self.chains, strict=True))
        return self._off(Moments.of_chains(ends, begins, known)), seen.num_gradients

    def _off(self, better: Moments) -> tuple[Off, Off]:
        """Differences of means in sds, and ratios of sds (better over given), at their worst.

        Draws are given as they are, chance included: what is in doubt is only what they are compared with. What is
        constant, as parts of a Cholesky factor are, is left out.
        """
        mine = self.moments
        still = mine.sd <= 1e-12 * np.abs(mine.mean) + 1e-100
        with np.errstate(all="ignore"):
            shift = np.where(still, 0.0, np.abs(better.mean - mine.mean) / better.sd)
            scale = np.where(still, 0.0, np.log(better.sd / mine.sd))
        error, doubt = (np.where(still, 0.0, e) for e in (better.mean_error, better.log_sd_error))
        i = int(np.argmax(shift**2 - error**2))  # what is left beside noise
        j = int(np.argmax(scale**2 - doubt**2))
        return Off(float(shift[i]), float(error[i]), self.names[i]), Off(float(scale[j]), float(doubt[j]), self.names[j])
