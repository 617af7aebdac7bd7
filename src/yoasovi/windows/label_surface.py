"""What a window that looks at every label of every observation says of all q around: a surface, climbed at no cost.

log p of observation i under label k, and the prior, are regressed on [1, t, t^2 - 1 of Normals]. The ELBO of any q nearby
follows: of its shift a and stretch log b along t, and of its labels. Coordinate ascent climbs it; leaps look for higher
hills, by giving a label away and starting it anew at one observation. Whether a place is as high as it is said to be, the
next window tells. Arrays here are of one lane; candidates lead where there are several.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from yoasovi.windows.value_regression import Layout, ValueSlopes

_OUT_OF_REACH = -1e6  # worth of a label under which log p was not finite
_SWEEPS, _FEW_SWEEPS, _CALM = 200, 25, 1e-3  # of coordinate ascent; it ends when a sweep gains less than this (nats)
_EXACT = 1e-9  # of the size of log p: what rounding leaves of the residuals where the surface is log p itself
_FLATTEST = 1e-8  # precision of a target, in units of q's
_NEAR = 2.0  # standard deviations that a mean may move, and factor by which a scale may change, on any other surface
_ROUNDS, _MISSES = 30, 3  # of leaps, and without success
_WORK = 2e8  # multiplications in a sweep of all candidates of a round


class Aim(NamedTuple):
    """A place to go to."""

    shift: Any  # (P,) along t
    stretch: Any  # (P,) log of the change of Normal scales
    log_probs: Any  # (N, K) of the labels
    gain: Any  # nats that the surface promises


class LabelMemory(NamedTuple):
    """What is known of the incumbent, and where it leads."""

    line: ValueSlopes
    log_probs: Any  # (N, K) best labels where the incumbent is
    exact: Any  # is the surface log p itself?
    uphill: Aim  # its gain is minus infinity where the window is too noisy to climb on
    leap: Aim  # its gain is over the other's; minus infinity where the surface is not log p itself


class LabelSights(NamedTuple):
    """What the draws of a window show; leading axis n."""

    features: np.ndarray  # (n, P)
    shared: np.ndarray  # (n,) the part of log p - log q that belongs to no single observation
    each: np.ndarray  # (n, N, K) log p of each observation under each label
    log_probs: np.ndarray  # (N, K) of q


class Surface(NamedTuple):
    """Coefficients on [1, t, t^2 - 1 of Normals]."""

    each: np.ndarray  # (N K, F)
    shared: np.ndarray  # (F,)
    cross: np.ndarray  # (P, P) second moments of t: what a shift does to its mean
    line: ValueSlopes  # of the window's values
    exact: bool  # does the surface go through every draw? Then it is log p itself, near and far
    layout: Layout
    size: tuple[int, int]  # N, K


class Place(NamedTuple):
    """Candidates, (B, ...)."""

    shift: np.ndarray
    stretch: np.ndarray
    worth: np.ndarray  # (B, N, K) expected log p of each observation under each label
    elbo: np.ndarray


def nothing_aimed(layout: Layout, line: ValueSlopes) -> LabelMemory:
    """Give the memory to begin with."""
    (labels,) = layout.labels.values()
    none, table = np.zeros(layout.normal.size), np.zeros((layout.observations, labels))
    aim = Aim(none, none, table, np.asarray(-np.inf))
    return LabelMemory(line, table, np.asarray(False), aim, aim)


def values_of(sights: LabelSights) -> np.ndarray:
    """Give log p - log q at every draw, with labels summed over as q has them."""
    probs = np.exp(sights.log_probs)
    seen = np.where(probs > 1e-12, sights.each - sights.log_probs, 0.0)  # where q is not, log p may be minus infinity
    return sights.shared + np.einsum("nik,ik->n", seen, probs)


def surface(layout: Layout, sights: LabelSights, line: ValueSlopes) -> Surface:
    """Regress the parts of log p on the features."""
    _, observations, labels = sights.each.shape
    ok = np.isfinite(sights.features).all(1) & np.isfinite(sights.shared)
    t = sights.features[ok]
    each = sights.each[ok].reshape(len(t), -1)
    x = np.concatenate([np.ones((len(t), 1)), t, t[:, layout.normal] ** 2 - 1.0], 1)
    inverse = np.linalg.pinv(x)
    sound = np.isfinite(each).all(0)
    each = np.where(sound, each, 0.0)
    found, shared = inverse @ each, inverse @ sights.shared[ok]
    left = [np.abs(x @ found - each).max(initial=0.0), np.abs(x @ shared - sights.shared[ok]).max(initial=0.0)]
    size = max(np.abs(each).max(initial=1.0), np.abs(sights.shared[ok]).max(initial=1.0))
    exact = bool(layout.normal.all() and len(t) >= 2 * x.shape[1] and max(left) < _EXACT * size)
    found[0, ~sound] = _OUT_OF_REACH
    apart = layout.normal | layout.normal[:, None]
    cross = np.where(apart, np.eye(len(apart)), t.T @ t / max(len(t), 1))
    return Surface(found.T, shared, cross, line, exact, layout, (observations, labels))


def uphill(ground: Surface, elbo: float) -> tuple[Aim, Place]:
    """Climb from where the window stood."""
    none = np.zeros((1, len(ground.layout.normal)))
    found = _ascended(ground, _at(ground, none, none), _SWEEPS)
    return _aim(found, found.elbo[0] - elbo), found


def leap(ground: Surface, begin: Place, rng: np.random.Generator) -> Aim:
    """Look for a higher hill: give label k away, start it anew at an observation that is badly explained, and climb."""
    best, misses, labels = begin, 0, ground.size[1]
    most = int(np.clip(_WORK / ground.each.size, 2, 4 * labels))
    for _ in range(_ROUNDS):
        given = rng.permutation(np.arange(max(most, labels)) % labels)[:most]
        explained = np.logaddexp.reduce(best.worth[0], -1)
        badly = explained.max() - explained
        seeds = rng.choice(len(badly), most, p=badly / badly.sum()) if badly.sum() > 0 else np.zeros(most, int)
        worth = np.repeat(best.worth, most, 0)
        rows = np.arange(most)
        worth[rows, :, given] = _OUT_OF_REACH
        worth[rows, seeds] = _OUT_OF_REACH
        worth[rows, seeds, given] = 0.0
        tried = _ascended(ground, best._replace(worth=worth, elbo=np.full(most, -np.inf)), _FEW_SWEEPS)
        top = int(np.argmax(tried.elbo))
        found = _ascended(ground, Place(*(x[top : top + 1] for x in tried)), _SWEEPS)
        better = found.elbo[0] > best.elbo[0] + 0.1
        best, misses = (found, 0) if better else (best, misses + 1)
        if misses == _MISSES:
            break
    return _aim(best, best.elbo[0] - begin.elbo[0])


def best_labels(ground: Surface) -> np.ndarray:
    """Give the log probabilities of labels that are best where the window stood."""
    return _normalised(ground.each[:, 0].reshape(ground.size))


def _aim(place: Place, gain: float) -> Aim:
    return Aim(place.shift[0], place.stretch[0], _normalised(place.worth[0]), np.asarray(gain))


def _normalised(worth: np.ndarray) -> np.ndarray:
    return worth - np.logaddexp.reduce(worth, -1, keepdims=True)


def _at(ground: Surface, shift: np.ndarray, stretch: np.ndarray) -> Place:
    """Look at the surface where labels are at their best for what they share."""
    bells = ground.layout.normal
    square = shift[:, bells] ** 2 + np.exp(2.0 * stretch[:, bells]) - 1.0
    mean = shift @ ground.cross
    seen = np.concatenate([np.ones((len(shift), 1)), mean, square], 1)
    worth = (seen @ ground.each.T).reshape(-1, *ground.size)
    away = np.sum(0.5 * square, 1) - np.sum(stretch, 1) + 0.5 * np.sum((shift * mean)[:, ~bells], 1)  # KL(q there || q)
    return Place(shift, stretch, worth, seen @ ground.shared + np.logaddexp.reduce(worth, -1).sum(-1) - away)


def _ascended(ground: Surface, place: Place, sweeps: int) -> Place:
    """Sweep: shared parts given the labels, labels given the shared parts."""
    for _ in range(sweeps):
        weights = np.exp(_normalised(place.worth)).reshape(len(place.worth), -1)
        new = _at(ground, *_newton(ground, ground.shared + weights @ ground.each))
        calm = np.all(new.elbo - place.elbo < _CALM)
        place = new
        if calm:
            break
    return place


def _newton(ground: Surface, slopes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Give shift and stretch, as `value_regression.newton`; not far where the surface is not log p itself."""
    bells, line = ground.layout.normal, ground.line
    width = len(bells)
    slope, bend = slopes[:, 1 : 1 + width], np.zeros((len(slopes), width))
    bend[:, bells] = slopes[:, 1 + width :]
    if ground.exact:
        precision = np.maximum(1.0 - 2.0 * bend, _FLATTEST)
        return slope / precision, -0.5 * np.log(precision)
    slope = _shrunk(slope * bells, line.slope_noise * bells) + _shrunk(slope * ~bells, line.slope_noise * ~bells)
    precision = np.where(bells, np.maximum(1.0 - 2.0 * _shrunk(bend, line.bend_noise), 1.0 / _NEAR**2), 1.0)
    return np.clip(slope / precision, -_NEAR, _NEAR), -0.5 * np.log(np.minimum(precision, _NEAR**2))


def _shrunk(x: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Positive-part James-Stein of each row."""
    squares = np.maximum(np.sum(x**2, 1, keepdims=True), np.finfo(float).tiny)
    return x * np.maximum(0.0, 1.0 - np.sum(noise) / squares)
