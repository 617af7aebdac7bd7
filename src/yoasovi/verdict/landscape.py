"""log p in q's own units, and its maxima."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from yoasovi.kernels.programs import difference_step

FULL_UP_TO = 300  # parameters, for what costs d gradients or d^2 numbers


class Mode(NamedTuple):
    """A maximum of log p."""

    x: np.ndarray  # in q's own units, q's mean at zero
    theta: np.ndarray  # where log p lives
    log_p: float
    log_mass: float  # by Laplace's method; -inf if it is no proper maximum
    distance: float  # from q's mean: root mean square over the coordinates
    barrier: float  # how far log p falls between q's own mode and this one
    guessed: bool = False  # the mass, from the height alone: a peak that is narrower than q is thought too large


class Landscape:
    """log p in q's own units, with a count of its evaluations."""

    def __init__(self, point: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]], mean: np.ndarray, frame: np.ndarray):
        self.point, self.mean, self.frame = point, mean, frame
        self.volume = float(np.log(np.diag(frame) if frame.ndim == 2 else frame).sum())  # logarithm of one unit of volume
        self.gradients = 0

    def out(self, x: np.ndarray) -> np.ndarray:
        """From q's own units to where log p lives."""
        return self.mean + (x @ self.frame.T if self.frame.ndim == 2 else x * self.frame)

    def into(self, theta: np.ndarray) -> np.ndarray:
        """Undo `out`."""
        away = theta - self.mean
        return np.linalg.solve(self.frame, away.T).T if self.frame.ndim == 2 else away / self.frame

    def look(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Give log p and its gradient at rows of points."""
        square = self.frame.ndim == 2
        with np.errstate(all="ignore"):  # what is not finite is told by the answer
            value, gradient = self.point(self.out(x))
            return value, gradient @ self.frame if square else gradient * self.frame

    def at(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Look, and count."""
        self.gradients += len(x)
        return self.look(x)

    def mode(self, x: np.ndarray, hessian: bool = True) -> Mode:
        """Take a closer look at where a climb ended: Laplace's estimate of the mass around it, in q's own units."""
        height, gradient = (v[0] for v in self.at(x[None]))
        blank = Mode(x, self.out(x), float(height), -np.inf, float(np.sqrt(np.mean(x**2))), 0.0)
        if not np.isfinite(height):
            return blank
        unit = 0.5 * x.size * np.log(2 * np.pi) + self.volume
        if x.size > FULL_UP_TO or not hessian:  # taken to be as wide as q
            cut = 0.5 * gradient @ gradient > self._slack(x)
            return blank if cut else blank._replace(log_mass=float(height + unit), guessed=True)
        step = difference_step()
        columns = (self.at(x + step * np.eye(x.size))[1] - gradient) / step
        curvature = -0.5 * (columns + columns.T)
        if not np.isfinite(curvature).all():
            return blank
        values, vectors = np.linalg.eigh(curvature)
        if values[0] <= 1e-6 * values[-1]:  # a saddle, a ridge, or a climb that has no end
            return blank
        more = 0.5 * float(np.sum((vectors.T @ gradient) ** 2 / values))
        if more > self._slack(x):
            return blank
        mass = height + more + unit - 0.5 * np.log(values).sum()
        return blank._replace(log_mass=float(mass))

    def _slack(self, x: np.ndarray) -> float:
        """Give the nats to the top beyond which a climb was cut on its way."""
        return 1.0 + 0.1 * x.size

    def barrier(self, a: Mode, b: Mode) -> float:
        """Give how far log p falls on the straight way between two modes."""
        heights = self.at(np.linspace(a.x, b.x, 25)[1:-1])[0]
        return min(a.log_p, b.log_p) - float(np.min(np.where(np.isfinite(heights), heights, -1e300)))
