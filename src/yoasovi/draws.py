"""Base noise: points in the open unit cube, one row per draw, made on the host.

`Gaussian.noise` and `families.quantiles.inverse_cdf` make other laws of it.
"""

from __future__ import annotations

import functools
import math
import numbers
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from yoasovi.errors import check, positive_integer
from yoasovi.randomness import EDGE, key_words, open_uniform

__all__ = ["Antithetic", "Draws", "Halton", "Mirrored", "MonteCarlo", "Sobol"]


class Draws(Protocol):
    """A source of `size` points per iteration, each uniform on the open unit cube."""

    @property
    def size(self) -> int:
        """Number of draws per iteration, S."""

    def points(self, rng: np.random.Generator, count: int, dim: int) -> np.ndarray:
        """Return the points of `count` iterations, strictly inside (0, 1), shape (count, size, dim)."""

    def keys(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Return words that name the minibatches those points look at, shape (count, size, 2)."""


class _Apart:
    """Draws that look at a minibatch each."""

    size: int

    def keys(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Return independent words, shape (count, size, 2)."""
        return key_words(rng, (count, self.size))


@dataclass(frozen=True)
class MonteCarlo(_Apart):
    """Independent uniform points.

    Parameters
    ----------
    size : int
        Number of draws per iteration.
    """

    size: int = 1

    def __post_init__(self) -> None:
        positive_integer("size", type(self).__name__, self.size)

    def points(self, rng: np.random.Generator, count: int, dim: int) -> np.ndarray:
        """Return independent points, shape (count, size, dim)."""
        return open_uniform(rng, (count, self.size, _checked_dim(self, dim)))


@dataclass(frozen=True)
class Antithetic:
    """Mirrored pairs: the first S/2 rows are independent, row S/2 + i is 1 - row i.

    A pair integrates every function that is odd about the centre without error.

    Parameters
    ----------
    size : int
        Number of draws per iteration, even.
    """

    size: int = 2

    def __post_init__(self) -> None:
        positive_integer("size", "Antithetic", self.size)
        check(self.size % 2 == 0, "size", "Antithetic", "even", self.size)

    def points(self, rng: np.random.Generator, count: int, dim: int) -> np.ndarray:
        """Return S/2 independent points, then their mirror images, shape (count, size, dim)."""
        half = open_uniform(rng, (count, self.size // 2, _checked_dim(self, dim)))
        return np.concatenate([half, 1 - half], 1)

    def keys(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Return words that a mirrored pair shares: between its two draws the noise of the minibatch cancels."""
        return np.tile(key_words(rng, (count, self.size // 2)), (1, 2, 1))


@dataclass(frozen=True)
class Mirrored:
    """One draw per iteration, in mirrored pairs: iteration 2i has a fresh point u, iteration 2i + 1 has 1 - u.

    Two iterations integrate every function that is odd about the centre without error, as one of
    `Antithetic(2)` does, but the parameters move in between.
    """

    size: ClassVar[int] = 1

    def points(self, rng: np.random.Generator, count: int, dim: int) -> np.ndarray:
        """Return fresh points for even iterations, mirror images for odd ones, shape (count, 1, dim)."""
        half = open_uniform(rng, (-(-count // 2), 1, _checked_dim(self, dim)))
        return np.stack([half, 1 - half], 1).reshape(-1, 1, dim)[:count]

    def keys(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Return words that the two iterations of a mirrored pair share."""
        return np.repeat(key_words(rng, (-(-count // 2), 1)), 2, 0)[:count]


@dataclass(frozen=True)
class Sobol(_Apart):
    """Sobol' points under a fresh random digital shift per iteration.

    The base points x_i are SciPy's, scrambled once with a fixed seed. Each iteration draws one word d_j of
    random bits per coordinate and has x_ij XOR d_j: every point is uniform on the cube, so averages
    stay unbiased, and the points keep their even spread. Sizes that are not powers of two are allowed;
    powers of two are the best balanced.

    Parameters
    ----------
    size : int
        Number of draws per iteration.

    References
    ----------
    Owen, A. B. (2023). Practical Quasi-Monte Carlo Integration, chapters 15 and 17.
    """

    size: int = 10

    def __post_init__(self) -> None:
        positive_integer("size", type(self).__name__, self.size)

    def points(self, rng: np.random.Generator, count: int, dim: int) -> np.ndarray:
        """Return digitally shifted Sobol' points, shape (count, size, dim)."""
        dim = _checked_dim(self, dim, maximum=_SOBOL_MAXDIM, reason="SciPy has no more direction numbers")
        return _open_unit(_sobol_words(self.size, dim) ^ rng.integers(0, 2**32, (count, 1, dim), np.uint32))


@dataclass(frozen=True)
class Halton(_Apart):
    """Halton points under a fresh random shift modulo one per iteration (Cranley-Patterson rotation).

    The base points x_i are SciPy's, scrambled once with a fixed seed; each iteration has
    (x_ij + d_j) mod 1 with one uniform d_j per coordinate. Every size is equally well balanced.

    Parameters
    ----------
    size : int
        Number of draws per iteration.

    References
    ----------
    Cranley, R. and Patterson, T. N. L. (1976). Randomization of number theoretic methods for multiple
    integration. SIAM Journal on Numerical Analysis 13(6), 904-914.
    """

    size: int = 10

    def __post_init__(self) -> None:
        positive_integer("size", type(self).__name__, self.size)

    def points(self, rng: np.random.Generator, count: int, dim: int) -> np.ndarray:
        """Return rotated Halton points, shape (count, size, dim)."""
        dim = _checked_dim(self, dim, maximum=_HALTON_MAXDIM, reason="SciPy's scrambling tables fill memory")
        # Unsigned integers wrap, so this sum is the shift modulo one, without rounding.
        return _open_unit(_halton_words(self.size, dim) + rng.integers(0, 2**32, (count, 1, dim), np.uint32))


# ---- points ----------------------------------------------------------------------------------------------

_SEED = 20_240_229  # Any constant: it fixes the base points, while the stream gives the randomness.
_SOBOL_MAXDIM = 21_201
_HALTON_MAXDIM = 2000  # The tables grow with the square of the dimension; at 3000 they took 1.2 GB and 4 s.


def _checked_dim(draws: Draws, dim: int, maximum: float = math.inf, reason: str = "") -> int:
    owner = f"{type(draws).__name__}.points"
    check(isinstance(dim, numbers.Integral) and dim > 0, "dim", owner, "a positive integer", dim)
    check(dim <= maximum, "dim", owner, f"at most {maximum}, since {reason}; use `MonteCarlo`", dim)
    return int(dim)


def _open_unit(words: np.ndarray) -> np.ndarray:
    """Turn random words into the centres of equal cells of (0, 1); in single precision too, 0 and 1 cannot occur."""
    return np.clip((words + 0.5) * 2.0**-32, EDGE, 1.0 - EDGE)


@functools.lru_cache(maxsize=16)
def _sobol_words(size: int, dim: int) -> np.ndarray:
    from scipy.stats import qmc  # slow to import, and seldom needed

    # A whole power of two is generated and cut, since SciPy warns of every other size.
    points = qmc.Sobol(dim, scramble=True, bits=32, rng=_SEED).random_base2((size - 1).bit_length())
    return _words(points[:size])


@functools.lru_cache(maxsize=16)
def _halton_words(size: int, dim: int) -> np.ndarray:
    from scipy.stats import qmc

    return _words(qmc.Halton(dim, scramble=True, rng=_SEED).random(size))


def _words(points: np.ndarray) -> np.ndarray:
    words = np.floor(points * 2.0**32).astype(np.uint32)
    words.setflags(write=False)  # Shared by every caller through the cache.
    return words
