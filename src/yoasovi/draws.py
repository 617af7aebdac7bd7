"""Base noise: points in the open unit cube, one row per draw. `quantiles.inverse_cdf` makes other laws of it."""

from __future__ import annotations

import functools
import math
import numbers
from dataclasses import dataclass
from typing import ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from scipy.stats import qmc

from yoasovi.errors import check, positive_integer

__all__ = ["Antithetic", "Draws", "Halton", "Mirrored", "MonteCarlo", "Sobol"]


class Draws(Protocol):
    """A source of `size` points per iteration, each uniform on the open unit cube."""

    @property
    def size(self) -> int:
        """Number of draws per iteration, S."""

    def uniform(self, key: Array, dim: int) -> Array:
        """Return points strictly inside (0, 1), shape (size, dim); `dim` is static."""

    def at(self, key: Array, step: Array, dim: int) -> Array:
        """Return the points of iteration `step` of a run with this key, shape (size, dim); `step` may be traced."""


class _FreshEachStep:
    """Sources whose iterations are independent of each other."""

    def at(self: Draws, key: Array, step: Array, dim: int) -> Array:
        """Return the points of iteration `step`, those of a key of its own, shape (size, dim)."""
        # Four keys per iteration: this one is for the points, the other three are the loop's.
        return self.uniform(jax.random.fold_in(key, 4 * step), dim)


@dataclass(frozen=True)
class MonteCarlo(_FreshEachStep):
    """Independent uniform points.

    Parameters
    ----------
    size : int
        Number of draws per iteration.
    """

    size: int = 1

    def __post_init__(self) -> None:
        positive_integer("size", type(self).__name__, self.size)

    def uniform(self, key: Array, dim: int) -> Array:
        """Return independent points, shape (size, dim)."""
        return _independent(key, self.size, _checked_dim(self, dim))


@dataclass(frozen=True)
class Antithetic(_FreshEachStep):
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

    def uniform(self, key: Array, dim: int) -> Array:
        """Return S/2 independent points, then their mirror images, shape (size, dim)."""
        half = _independent(key, self.size // 2, _checked_dim(self, dim))
        return jnp.concatenate([half, 1 - half])


@dataclass(frozen=True)
class Mirrored:
    """One draw per iteration, in mirrored pairs: iteration 2i has a fresh point u, iteration 2i + 1 has 1 - u.

    Two iterations integrate every function that is odd about the centre without error, as one of
    `Antithetic(2)` does, but the parameters move in between.
    """

    size: ClassVar[int] = 1

    def uniform(self, key: Array, dim: int) -> Array:
        """Return one independent point, shape (1, dim)."""
        return _independent(key, self.size, _checked_dim(self, dim))

    def at(self, key: Array, step: Array, dim: int) -> Array:
        """Return a fresh point if `step` is even, else the mirror image of that of `step` - 1, shape (1, dim)."""
        point = self.uniform(jax.random.fold_in(key, step // 2), dim)
        return jnp.where(step % 2 == 0, point, 1 - point)


@dataclass(frozen=True)
class Sobol(_FreshEachStep):
    """Sobol' points under a fresh random digital shift per key.

    The base points x_i are SciPy's, scrambled once with a fixed seed. Each call draws one word d_j of
    random bits per coordinate and returns x_ij XOR d_j: every point is uniform on the cube, so averages
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

    def uniform(self, key: Array, dim: int) -> Array:
        """Return digitally shifted Sobol' points, shape (size, dim)."""
        dim = _checked_dim(self, dim, maximum=qmc.Sobol.MAXDIM, reason="SciPy has no more direction numbers")
        shift = jax.random.bits(key, (1, dim), jnp.uint32)
        return _open_unit(jnp.asarray(_sobol_words(self.size, dim)) ^ shift)


@dataclass(frozen=True)
class Halton(_FreshEachStep):
    """Halton points under a fresh random shift modulo one per key (Cranley-Patterson rotation).

    The base points x_i are SciPy's, scrambled once with a fixed seed; each call returns
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

    def uniform(self, key: Array, dim: int) -> Array:
        """Return rotated Halton points, shape (size, dim)."""
        dim = _checked_dim(self, dim, maximum=_HALTON_MAXDIM, reason="SciPy's scrambling tables fill memory")
        shift = jax.random.bits(key, (1, dim), jnp.uint32)
        # Unsigned integers wrap, so this sum is the shift modulo one, without rounding.
        return _open_unit(jnp.asarray(_halton_words(self.size, dim)) + shift)


# ---- points ----------------------------------------------------------------------------------------------

_SEED = 20_240_229  # Any constant: it fixes the base points, while the key gives the randomness.
_HALTON_MAXDIM = 2000  # The tables grow with the square of the dimension; at 3000 they took 1.2 GB and 4 s.


def _checked_dim(draws: Draws, dim: int, maximum: float = math.inf, reason: str = "") -> int:
    owner = f"{type(draws).__name__}.uniform"
    check(isinstance(dim, numbers.Integral) and dim > 0, "dim", owner, "a positive integer", dim)
    check(dim <= maximum, "dim", owner, f"at most {maximum}, since {reason}; use `MonteCarlo`", dim)
    return int(dim)


def _open_unit(bits: Array) -> Array:
    """Turn random words into the centres of equal cells of (0, 1).

    No more leading bits are kept than make every centre an exact float: 0 and 1 cannot occur, nothing is
    clipped or rounded, and 1 - u lies on the same grid.
    """
    dtype = jnp.result_type(float)
    width = jnp.iinfo(bits.dtype).bits
    kept = min(width, jnp.finfo(dtype).nmant)
    return ((bits >> (width - kept)).astype(dtype) + 0.5) * 2.0**-kept


def _independent(key: Array, size: int, dim: int) -> Array:
    """Return uniform points of all the bits that the default float can hold, shape (size, dim)."""
    word = jnp.uint64 if jnp.result_type(float) == jnp.float64 else jnp.uint32
    return _open_unit(jax.random.bits(key, (size, dim), word))


# NumPy arrays, not JAX ones: a cached JAX array could be a tracer of the first function to ask for it.
@functools.lru_cache(maxsize=16)
def _sobol_words(size: int, dim: int) -> np.ndarray:
    # A whole power of two is generated and cut, since SciPy warns of every other size.
    points = qmc.Sobol(dim, scramble=True, bits=32, rng=_SEED).random_base2((size - 1).bit_length())
    return _words(points[:size])


@functools.lru_cache(maxsize=16)
def _halton_words(size: int, dim: int) -> np.ndarray:
    return _words(qmc.Halton(dim, scramble=True, rng=_SEED).random(size))


def _words(points: np.ndarray) -> np.ndarray:
    words = np.floor(points * 2.0**32).astype(np.uint32)
    words.setflags(write=False)  # Shared by every caller through the cache.
    return words
