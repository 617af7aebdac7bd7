"""A law for importance sampling that bends: few leading parameters, and Gaussians for the rest whose place and width follow.

In a hierarchy the widths of many parameters follow one scale, and the place of others its square; given it, they are nearly
Gaussian. The law learns that from weighted draws: which parameters lead, their own law (kernels, and a wide t), and for
each of the rest a mean that is quadratic and a log sd that is quadratic in the leaders, shrunk to what is surely there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import gammaln

from yoasovi.verdict.diagnostics import effective_size

LEADERS = 3
_CENTRES = 400
_ENOUGH = 10_000  # draws to learn from
_ROWS = 512  # of a table of kernels, so that it stays in the processor's cache
_FAR, _DF, _SCALE = 0.2, 4.0, 1.5  # share of the wide law of leaders, a t, and its scale relative to theirs
_WIDE, _WIDER = 0.2, 1.3  # share of draws whose rest is wider, and by how much
_REACH = 5.0  # sds of a leader up to which the others follow it
_MOST = 6.0  # of a log sd


class Warped(NamedTuple):
    """The law; `axes` turns noise of q into parameters in units of their sds under q."""

    axes: np.ndarray
    mean: np.ndarray
    order: np.ndarray  # of parameters, leaders first
    root: np.ndarray  # of their covariance in that order, lower triangular
    bend: np.ndarray  # (features, rest): the mean of the rest
    stretch: np.ndarray  # (1 + leaders + features, rest): its log sd
    centres: np.ndarray  # (kernels, leaders)
    width: float
    middle: np.ndarray
    spread: np.ndarray  # of the leaders, lower triangular

    @classmethod
    def of(cls, eps: np.ndarray, weights: np.ndarray, axes: np.ndarray, rng: np.random.Generator) -> Warped:
        """Learn it from weighted draws."""
        chance = np.minimum(1.0, _ENOUGH * weights)  # draws of little weight are thinned out; those left stand for all
        kept = rng.uniform(size=len(weights)) < chance
        eps, weights = eps[kept], weights[kept] / chance[kept]
        weights = weights / weights.sum()
        y, size, dim = eps @ axes.T, effective_size(weights), eps.shape[1]
        mean = weights @ y
        away = y - mean
        sure = max(0.0, 1.0 - dim / size)
        covariance = sure * away.T @ (away * weights[:, None]) + (1.0 - sure) * axes @ axes.T
        leaders = _leaders(away, covariance, weights)
        order = np.r_[leaders, np.setdiff1d(np.arange(dim), leaders)].astype(int)
        root = np.linalg.cholesky(covariance[np.ix_(order, order)])
        x = away[:, order] @ np.linalg.inv(root).T
        lead, rest = x[:, : len(leaders)], x[:, len(leaders) :]
        quadratic = _features(lead)
        bend = _regressed(quadratic, rest, weights)
        stretch = _log_sds(np.c_[np.clip(lead, -_REACH, _REACH), quadratic], rest - quadratic @ bend, weights)
        middle = weights @ lead
        spread = np.linalg.cholesky((lead - middle).T @ ((lead - middle) * weights[:, None]) + 1e-9 * np.eye(len(leaders)))
        d = len(leaders)
        width = min(0.9, (4.0 / ((d + 2.0) * 300.0)) ** (1.0 / (d + 4.0)))  # Silverman's, for about 300 effective draws
        places = np.searchsorted(np.cumsum(weights), (np.arange(_CENTRES) + rng.uniform()) / _CENTRES).clip(0, len(y) - 1)
        centres = middle + np.sqrt(1.0 - width**2) * (lead[places] - middle)  # so that mean and covariance are kept
        return cls(axes, mean, order, root, bend, stretch, centres, width, middle, spread)

    def draw(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Draw n points, in q's own units."""
        d = len(self.middle)
        lead = self.centres[rng.integers(_CENTRES, size=n)] + self.width * rng.normal(size=(n, d)) @ self.spread.T
        far = rng.uniform(size=n) < _FAR
        heavy = rng.normal(size=(far.sum(), d)) * np.sqrt(_DF / rng.chisquare(_DF, size=(far.sum(), 1)))
        lead[far] = self.middle + _SCALE * heavy @ self.spread.T
        mean, log_sd = self._rest(lead)
        wider = np.where(rng.uniform(size=(n, 1)) < _WIDE, _WIDER, 1.0)
        x = np.c_[lead, mean + np.exp(log_sd) * wider * rng.normal(size=mean.shape)]
        y = np.empty_like(x)
        y[:, self.order] = x @ self.root.T
        return np.linalg.solve(self.axes, (y + self.mean).T).T

    def __call__(self, eps: np.ndarray) -> np.ndarray:
        """Give its log density relative to N(0, I), at points (n, d) in q's own units."""
        x = (eps @ self.axes.T - self.mean)[:, self.order] @ np.linalg.inv(self.root).T
        d = len(self.middle)
        lead, rest = x[:, :d], x[:, d:]
        mean, log_sd = self._rest(lead)
        square, size = (((rest - mean) * np.exp(-log_sd)) ** 2).sum(1), rest.shape[1]
        narrow, wider = -0.5 * square, -0.5 * square / _WIDER**2 - size * np.log(_WIDER)
        inside = np.logaddexp(np.log(1.0 - _WIDE) + narrow, np.log(_WIDE) + wider) - log_sd.sum(1)
        volume = np.log(np.diag(self.root)).sum() - np.linalg.slogdet(self.axes)[1]
        return self._of_leaders(lead) + inside - volume + 0.5 * (eps**2).sum(1)

    def _rest(self, lead: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Give mean and log sd of the rest, given the leaders."""
        quadratic, near = _features(lead), np.clip(lead, -_REACH, _REACH)
        log_sd = np.c_[np.ones(len(lead)), near, quadratic] @ self.stretch
        return quadratic @ self.bend, np.clip(log_sd, -_MOST, _MOST)

    def _of_leaders(self, lead: np.ndarray) -> np.ndarray:
        """Give the log density of leaders, up to the constant of N(0, I)."""
        d, volume = len(self.middle), np.log(np.diag(self.spread)).sum()
        into = np.linalg.inv(self.spread).T
        white, centres = (lead - self.middle) @ into, (self.centres - self.middle) @ into / self.width
        near = log_kernels(white / self.width, centres)
        near += -np.log(_CENTRES) - d * np.log(self.width)
        far = gammaln((_DF + d) / 2) - gammaln(_DF / 2) - 0.5 * d * np.log(_DF / 2) - d * np.log(_SCALE)
        far = far - 0.5 * (_DF + d) * np.log1p((white**2).sum(1) / (_DF * _SCALE**2))
        return np.logaddexp(np.log(1.0 - _FAR) + near, np.log(_FAR) + far) - volume


def log_kernels(x: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Give the log of the sum of exp(-|x - c|^2 / 2) over the centres c, at rows of x; -inf beyond 13 of all of them.

    Most of the time of a correction goes here: in place, in single precision, and by few rows at a time.
    """
    half, found = lambda x: -0.5 * (x**2).sum(1), np.empty(len(x))
    table = np.c_[centres, half(centres), np.ones(len(centres))].astype(np.float32).T
    places = np.c_[x, np.ones(len(x)), half(x)].astype(np.float32)
    for rows in range(0, len(x), _ROWS):
        heights = places[rows : rows + _ROWS] @ table
        found[rows : rows + _ROWS] = np.exp(heights, out=heights).sum(1)
    with np.errstate(divide="ignore"):
        return np.log(found)


def _leaders(away: np.ndarray, covariance: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Name the parameters that places and widths of others follow most, one after the other.

    After the first, those count whose effect on others the first one changes, as that of a group's mean by its scale.
    """
    s = away / np.sqrt(np.diag(covariance))
    x = away @ np.linalg.inv(np.linalg.cholesky(covariance)).T
    gain = _effect(s, x**2 - 1.0, weights) + _effect(s**2 - 1.0, x, weights)
    found = [int(np.argmax(gain))]
    while len(found) < LEADERS:
        also = gain + _effect(s * s[:, found[-1:]], x, weights)
        also[found] = 0.0
        best = int(np.argmax(also))
        if also[best] < max(0.05 * gain[found[0]], 1e-3):
            break
        found.append(best)
    return np.array(found)


def _effect(one: np.ndarray, others: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Give how much the others go with each column, summed over what is surely there."""
    size = (one * weights[:, None]).T @ others
    error = np.sqrt((one**2 * weights[:, None] ** 2).T @ others**2)
    return (_surely(size, error, 3.0) ** 2).sum(1)


def _features(lead: np.ndarray) -> np.ndarray:
    """Give products of leaders, zero on average."""
    near = np.clip(lead, -_REACH, _REACH)
    d = near.shape[1]
    return np.stack([near[:, i] * near[:, j] - (i == j) for i in range(d) for j in range(i, d)], 1)


def _surely(value: np.ndarray, error: np.ndarray, times: float) -> np.ndarray:
    """Shrink values to what is beyond so many errors."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.nan_to_num(value * np.clip(1.0 - (times * error / np.abs(value)) ** 2, 0.0, 1.0))


def _regressed(features: np.ndarray, rest: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Regress the rest on features of the leaders."""
    weighted = features * weights[:, None]
    inverse = np.linalg.pinv(features.T @ weighted)
    found = inverse @ (weighted.T @ rest)
    error = np.sqrt((weighted @ inverse).T ** 2 @ (rest - features @ found) ** 2)
    return _surely(found, error, 2.0)


def _log_sds(features: np.ndarray, rest: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Regress log sds on features of the leaders, by maximum likelihood; the first row is the constant."""
    design = np.c_[np.ones(len(rest)), features]
    weighted = design * weights[:, None]
    inverse, square = np.linalg.pinv(design.T @ weighted), rest**2
    over = lambda found: square * np.exp(-np.clip(design @ found, -2 * _MOST, 2 * _MOST))
    found = np.zeros((design.shape[1], rest.shape[1]))
    found[0] = np.log(np.maximum(weights @ square, 1e-12))
    for _ in range(10):
        found = found + np.clip(inverse @ (weighted.T @ (over(found) - 1.0)), -1.0, 1.0)
    error = np.sqrt((weighted @ inverse).T ** 2 @ (over(found) - 1.0) ** 2)
    found[1:] = _surely(found[1:], error[1:], 2.0)
    found[0] += np.log(np.maximum(weights @ over(found), 1e-12))
    return 0.5 * found
