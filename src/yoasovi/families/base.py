"""What a family of approximations is asked for, and what all Gaussian ones share.

The maths of a family runs twice: on the host, in NumPy, for all lanes at once, and inside compiled windows of steps, in
jax.numpy. So every method takes its functions from the arrays it is given (`space`), and arrays may have leading axes:
parameters (..., d), noise and draws (..., n, d).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.special import ndtri

from yoasovi.arrays import space

LOG_2PI = float(np.log(2.0 * np.pi))
SCALE_CAP = 0.4  # most that one natural step may change the logarithm of a scale


class Proposal(NamedTuple):
    """Where a window leads, and what its line says of the gain (nats)."""

    params: Any
    expected: Any  # of this step
    signal: Any  # still to gain
    noise: Any  # how much of that could be luck


class Root(NamedTuple):
    """q's own coordinates, as many as theta has: theta = mean + C (eps + V (stretch * V^T eps)), eps standard normal."""

    mean: Any  # (d,)
    factor: Any  # C: (d, d), or (d,) where it is diagonal
    axes: Any  # V: (d, r), orthonormal columns
    stretch: Any  # (r,)

    def place(self, eps: Any) -> Any:
        """Map eps (..., d) to theta."""
        white = eps + ((eps @ self.axes) * self.stretch) @ self.axes.T
        return self.mean + (white * self.factor if self.factor.ndim == 1 else white @ self.factor.T)

    def pull(self, gradient: Any) -> Any:
        """Turn gradients by theta into gradients by eps."""
        white = gradient * self.factor if self.factor.ndim == 1 else gradient @ self.factor
        return white + ((white @ self.axes) * self.stretch) @ self.axes.T


class Gaussian(ABC):
    """A Gaussian on the flat unconstrained vector: theta = place(params, eps), eps standard normal."""

    name: ClassVar[str]

    @abstractmethod
    def init(self, mean: Any, scale: Any, rng: np.random.Generator) -> Any:
        """Start at the given means and scales, (..., d)."""

    @abstractmethod
    def place(self, params: Any, eps: Any) -> Any:
        """Map standard normal noise (..., n, k) to theta (..., n, d)."""

    @abstractmethod
    def minus_log_q(self, params: Any, eps: Any) -> Any:
        """Give -log q at place(params, eps), (..., n)."""

    @abstractmethod
    def log_q(self, params: Any, theta: Any) -> Any:
        """Give log q(theta): (..., n), or (..., n, d) where q is a product."""

    @abstractmethod
    def slope(self, params: Any, theta: Any) -> Any:
        """Give the gradient of log q(theta), (..., n, d)."""

    @abstractmethod
    def white(self, params: Any, eps: Any, grad: Any) -> Any:
        """Give d/dtheta [log p - log q] in q's units with q's parameters held fixed (sticking the landing)."""

    @abstractmethod
    def natural(self, params: Any, eps: Any, white: Any) -> Any:
        """Give the natural-gradient step of one draw: eps (k,), white (d,)."""

    @abstractmethod
    def move(self, params: Any, step: Any, cap: Any) -> Any:
        """Take a step, of at most `cap` standard deviations of each mean."""

    @abstractmethod
    def propose(self, params: Any, eps: Any, white: Any, full: Any, length: Any, trust: Any, weight: Any = None) -> Proposal:
        """Fit a line to a window's scores and go where it says; see `windows.score_line`.

        `weight` is of rows, where some are another q's: only where there is a `behind`, and `full` is true.
        """

    def behind(self, params: Any, theta: Any) -> Any:
        """Give the noise behind draws, (..., n, d); None where that is not settled, or lines are gathered otherwise."""
        return None

    def matched(self, noise: Any) -> Any:
        """Give one half of mirrored pairs (..., n, k) for a full line, moments made those of their law where that pays."""
        return noise

    @abstractmethod
    def frame(self, params: Any) -> tuple[np.ndarray, np.ndarray]:
        """Give q's mean and its own units: a triangular factor (..., d, d), or one scale per coordinate (..., d)."""

    def root(self, params: Any) -> Root:
        """Give coordinates in which q is a standard normal, for one lane."""
        mean, factor = self.frame(params)
        return Root(mean, factor, np.zeros((len(mean), 0)), np.zeros(0))

    @abstractmethod
    def widen(self, params: Any, factor: float) -> Any:
        """Give the parameters of q^(1/factor), normalised: the same family with heavier tails."""

    def line_size(self, dim: int) -> int:
        """Give the draws a window needs for a full line; 0 if the family has no use for one."""
        return 0

    def longest_line(self, dim: int) -> int:
        """Give the most draws that a full line is worth; more would do better as natural steps."""
        return 4 * self.line_size(dim)

    def bend(self, dim: int) -> float:
        """Give the noise about a line, times its draws, up to which the posterior counts as straight."""
        return 1.5

    def lines_pay(self, dim: int) -> bool:
        """Say whether to begin with lines at all; with many parameters scales would widen before means are learned."""
        return dim <= 300

    def hub(self, dim: int) -> tuple[int, ...]:
        """Give the few coordinates that all others depend on, if the family knows such."""
        return ()

    def lines_last(self) -> bool:
        """Say whether full lines that gain little go on, on more draws, until they are sure of it."""
        return False

    def longest_first_step(self, dim: int) -> float:
        """Give the longest natural step that is stable to begin with."""
        return 1.0

    def noise_size(self, density: Any) -> int:
        """How many normal numbers make one draw."""
        return density.dim

    # What single-step methods ask of every family, `Factorised` too; theta is (S, d) here and a dict there.

    def noise(self, points: np.ndarray) -> np.ndarray:
        """Turn points of the open unit cube into noise."""
        return ndtri(points)

    def uniform(self, noise: Any) -> Any:
        """Turn noise back into points of the unit cube, inside a program."""
        from jax.scipy.special import ndtr

        return ndtr(noise)

    def draw(self, density: Any, params: Any, noise: Any) -> Any:
        """Turn rows of noise into draws."""
        return self.place(params, noise)

    def terms(self, density: Any, inputs: Any, theta: Any) -> Any:
        """Give the terms of log p at one draw, on the scale the family lives on."""
        return density.free_terms(inputs, theta)

    def pieces(self, density: Any, params: Any, theta: Any) -> dict[str, Any]:
        """Give log q at draws in its independent pieces, by site; they sum to log q."""
        log_q = self.log_q(params, theta)
        return {"q": log_q} if log_q.ndim == theta.ndim - 1 else density.split(log_q)

    def project(self, params: Any) -> Any:
        """Bring parameters back to where they are valid after a step: everywhere."""
        return params


def squares(x: Any) -> Any:
    """Sum the squares of (..., d) over the last axis."""
    return np.einsum("...i,...i->...", x, x) if isinstance(x, np.ndarray) else (x * x).sum(-1)


def diagonal(x: Any) -> Any:
    """Give the diagonals of (..., d, d)."""
    return space(x).diagonal(x, axis1=-2, axis2=-1)


def as_diagonal(x: Any) -> Any:
    """Give matrices with the diagonals (..., d)."""
    return x[..., None] * space(x).eye(x.shape[-1], dtype=x.dtype)


def turned(x: Any) -> Any:
    """Transpose the last two axes."""
    return space(x).swapaxes(x, -1, -2)


def whole_line_size(dim: int) -> int:
    """Give draws enough for a whole line: a fifth more pairs than unknowns per row, and a few, to tell its noise."""
    return 2 * (dim + dim // 5 + 4)


def clip(x: Any, cap: Any) -> Any:
    """Cut to [-cap, cap]."""
    return space(x).clip(x, -cap, cap)
