"""Means, deviations and columns of many draws of many parameters, of which some draws at a time are in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from yoasovi.answer.long_pool import LONG
from yoasovi.families import Gaussian
from yoasovi.randomness import Purpose, stream

_NUMBERS = 2**25  # that are in memory at once


def chunks(fit: Any, n: int, seed: int) -> Iterator[dict[str, np.ndarray]]:
    """Give n draws as `fit.sample` does, all at once or, where that is too much, some at a time."""
    if _at_once(fit, n):
        yield fit.sample(n, seed)
        return
    size = fit.family.noise_size(fit.model.density)
    pieces = fit.pool(n).picked(n, stream(seed, Purpose.RESAMPLE)) if fit.worth_correcting else _noise(n, size, seed)
    for noise in pieces:
        yield _placed(fit, noise)


def _at_once(fit: Any, n: int) -> bool:
    """Say whether n draws fit into memory, or have to."""
    size = fit.family.noise_size(fit.model.density)
    as_one = fit.kept is not None or fit.refined is not None or fit.parts or not isinstance(fit.family, Gaussian)
    return bool(as_one or n * size <= _NUMBERS or (fit.worth_correcting and size <= LONG))


def _weighted(fit: Any, n: int, seed: int) -> Iterator[tuple[dict[str, np.ndarray], np.ndarray]]:
    """Give what n draws are averaged over, some at a time, and the weight of each."""
    if _at_once(fit, n) or not fit.worth_correcting:
        yield from ((draws, np.ones(len(next(iter(draws.values()))))) for draws in chunks(fit, n, seed))
    else:  # weights as they are: resampling would only add noise
        yield from ((_placed(fit, noise), weights) for noise, weights in fit.pool(n).pieces())


def _placed(fit: Any, noise: np.ndarray) -> dict[str, np.ndarray]:
    return fit.kernels.constrain(fit.family.place(fit.lane, noise[None])[0], fit.model.deterministics)


def _noise(n: int, size: int, seed: int) -> Iterator[np.ndarray]:
    rng, rows = stream(seed, Purpose.SAMPLE), max(_NUMBERS // (4 * size), 1)
    for start in range(0, n, rows):
        yield rng.standard_normal((min(rows, n - start), size))


def moments(fit: Any, n: int, seed: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Give means and standard deviations of n draws."""
    total, mean, squares = 0.0, dict[str, Any](), dict[str, Any]()
    for draws, weights in _weighted(fit, n, seed):
        new = weights.sum()
        for name, x in draws.items():
            here = np.tensordot(weights / new, x, 1)
            about = np.tensordot(weights, (x - here) ** 2, 1)
            if total:  # Chan, Golub and LeVeque (1983)
                away = here - mean[name]
                here = mean[name] + away * (new / (total + new))
                about = squares[name] + about + away**2 * (total * new / (total + new))
            mean[name], squares[name] = here, about
        total += new
    return mean, {k: np.sqrt(x / total) for k, x in squares.items()}


def columns(fit: Any, n: int, most: int) -> dict[str, tuple[tuple[int, ...], np.ndarray]]:
    """Give the shape of every drawn quantity, and n draws of its first numbers, `most` at most: (n, few)."""
    found: dict[str, list[np.ndarray]] = {}
    shapes = {}
    for draws in chunks(fit, n, 0):
        for name, x in draws.items():
            shapes[name] = x.shape[1:]
            found.setdefault(name, []).append(x.reshape(len(x), -1)[:, :most])
    return {k: (shapes[k], np.concatenate(x)) for k, x in found.items()}
