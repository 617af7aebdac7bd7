"""What the user gets, against the best that can be known of the posterior: how far means and sds are off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from yoasovi.randomness import Purpose, stream
from yoasovi.verdict import chains
from yoasovi.verdict.landscape import FULL_UP_TO, Landscape

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
    def of_chains(cls, x: np.ndarray, begin: np.ndarray, known: Moments) -> Moments:
        """Moments of chains, (steps, chains, k), that began at rows whose true mean is known: their luck comes off."""
        each, n = x.mean(0), x.shape[1]
        away = begin - begin.mean(0)
        slope = (away * each).sum(0) / np.maximum((away**2).sum(0), 1e-300)
        each = each - slope * (begin - known.mean)
        mean = each.mean(0)
        square = ((x - mean) ** 2).mean(0)
        variance = np.maximum(square.mean(0), 1e-300)
        error = each.std(0, ddof=1) / np.sqrt(n * variance)
        return cls(mean, np.sqrt(variance), error, 0.5 * square.std(0, ddof=1) / np.sqrt(n) / variance)


class Off(NamedTuple):
    """How far an answer is off: of its worst parameter the difference, its standard error and its name."""

    value: float
    error: float
    name: str


class GivenDraws:
    """The draws that a fit gives by default, and what comparing them tells."""

    def __init__(self, fit: Any):
        self.fit = fit
        _, self.theta, self.corrected = fit.draws(DRAWS, 0, None)
        mean, frame = (x[0] for x in fit.family.frame(fit.lane))
        own = Landscape(fit.kernels.point, mean, frame)
        self.eps = own.into(self.theta) if self.corrected else None  # q's own draws need no second look
        self.names, self.x = self._flat(self.theta)
        self.moments = Moments.of(self.x, size=fit.effective_size(DRAWS))

    def _flat(self, theta: np.ndarray) -> tuple[list[str], np.ndarray]:
        found = self.fit.kernels.constrain(theta, self.fit.model.deterministics)  # as `sample` does, with its program
        found = {s.name: found[s.name] for s in self.fit.model.density.sites}
        names = [name for k, v in found.items() for name in self.fit.model.names(k, v.shape[1:])]
        return names, np.concatenate([np.asarray(v, float).reshape(len(v), -1) for v in found.values()], 1)

    def weighted(self, theta: np.ndarray, weights: np.ndarray) -> tuple[Off, Off]:
        """Compare with weighted draws."""
        with np.errstate(all="ignore"):
            x = self._flat(theta)[1]
        sound = np.isfinite(x).all(1)  # far out a parameter may overflow on its own scale
        kept = weights[sound]
        return self._off(Moments.of(x[sound], kept / kept.sum()))

    def wandered(self, count: int, most: int, seed: int) -> tuple[tuple[Off, Off] | None, int]:
        """Compare with where short chains from these draws come to; None where they do not move. Also their gradients."""
        rng = stream(seed, Purpose.VERDICT_CHAINS)
        chosen = rng.permutation(len(self.theta))[:count]
        mean, frame = (x[0] for x in self.fit.family.frame(self.fit.lane))
        if self.corrected and mean.size <= FULL_UP_TO:
            mean, frame = self.theta.mean(0), np.linalg.cholesky(np.cov(self.theta.T).reshape(mean.size, mean.size))
        seen = chains.wander(Landscape(self.fit.kernels.point, mean, frame), self.theta[chosen], most, rng)
        if len(seen.theta) < 4 or seen.accepted < 0.3:
            return None, seen.num_gradients
        steps, n, dim = seen.theta.shape
        x = self._flat(seen.theta.reshape(-1, dim))[1].reshape(steps, n, -1)
        return self._off(Moments.of_chains(x, self.x[chosen], self.moments)), seen.num_gradients

    def _off(self, better: Moments) -> tuple[Off, Off]:
        """Differences of means in sds, and ratios of sds (better over given), at their worst."""
        mine = self.moments
        shift = np.abs(better.mean - mine.mean) / better.sd
        error = np.hypot(better.mean_error, mine.mean_error * mine.sd / better.sd)
        i = int(np.argmax(shift**2 - error**2))  # what is left beside noise
        scale = np.log(better.sd / mine.sd)
        doubt = np.hypot(better.log_sd_error, mine.log_sd_error)
        j = int(np.argmax(scale**2 - doubt**2))
        return Off(float(shift[i]), float(error[i]), self.names[i]), Off(float(scale[j]), float(doubt[j]), self.names[j])
