"""Modes that are one mode under other names: labels of groups or components can be swapped, and log p is the same.

Two modes are the same up to labels if a permutation of an axis, done to some sites that have an axis of that length, leads
from one to the other and changes log p nowhere. Which sites have to do with labels is not known: all choices are tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product
from typing import Any

import numpy as np
from numpyro.distributions import biject_to

from yoasovi.kernels.programs import precision

_POINTS = 4  # at which log p must be the same
_SAME = 0.5  # root mean square distance in q's own units
_CHOICES = 64  # of sites and axes
_LONGEST = 100  # labels: more are groups, whose data tell them apart

Choice = tuple[tuple[str, int], ...]  # sites, and the axis of each


class Relabelling:
    """Permutations of a model's sites."""

    def __init__(self, model: Any, kernels: Any, frame: np.ndarray, rng: np.random.Generator):
        self.sites, self.prior, self.kernels, self.frame = model.density.sites, model.prior, kernels, frame
        self.split, self.rng, self.num_values = model.density.split, rng, 0

    def swapped(self, a: np.ndarray, b: np.ndarray) -> bool:
        """Say whether two modes, as flat unconstrained points, differ by names only."""
        with precision():
            both = {k: self._turn(k, x) for k, x in self.split(np.stack([a, b])).items()}
            for choice in self._choices():
                order = _matched(*(np.concatenate([_rows(both[k][i], axis) for k, axis in choice], 1) for i in (0, 1)))
                if (order == np.arange(len(order))).all():
                    continue
                near = self._distance(self._permuted(b[None], choice, order)[0], a) < _SAME
                if near and self._symmetric(a, choice, order):
                    return True
        return False

    def _choices(self) -> Iterator[Choice]:
        """Give sets of sites with an axis of the same length, the larger ones first."""
        for length in sorted({n for s in self.sites for n in s.shape if 1 < n <= _LONGEST}):
            with_it = [(s.name, [i for i, n in enumerate(s.shape) if n == length]) for s in self.sites if length in s.shape]
            for axes in islice(product(*([*found, None] for _, found in with_it)), _CHOICES):
                choice = tuple((k, i) for (k, _), i in zip(with_it, axes, strict=True) if i is not None)
                if choice:
                    yield choice

    def _permuted(self, theta: np.ndarray, choice: Choice, order: np.ndarray) -> np.ndarray:
        """Permute the sites of a choice at rows of points."""
        parts = self.split(theta)
        for name, axis in choice:
            parts[name] = self._turn(name, np.take(self._turn(name, parts[name]), order, 1 + axis), back=True)
        return np.concatenate([x.reshape(len(theta), -1) for x in parts.values()], 1)

    def _turn(self, name: str, x: np.ndarray, back: bool = False) -> np.ndarray:
        """Give a site on its own support, or back, where its entries are not free one by one (a simplex)."""
        site = next(s for s in self.sites if s.name == name)
        if site.shape == site.free_shape:
            return x
        transform = biject_to(self.prior[name].support)
        turn = transform.inv if back else transform
        return np.stack([np.asarray(turn(row)) for row in x])  # PyMC's know one point at a time

    def _distance(self, theta: np.ndarray, a: np.ndarray) -> float:
        away = theta - a
        white = np.linalg.solve(self.frame, away) if self.frame.ndim == 2 else away / self.frame
        return float(np.sqrt(np.mean(white**2)))

    def _symmetric(self, a: np.ndarray, choice: Choice, order: np.ndarray) -> bool:
        """Compare log p at points around a mode with its values where labels are swapped."""
        eps = self.rng.normal(size=(_POINTS, a.size))
        points = a + (eps @ self.frame.T if self.frame.ndim == 2 else eps * self.frame)
        found = self.kernels.heights(np.concatenate([points, self._permuted(points, choice, order)]))
        self.num_values += len(found)
        before, after = found[:_POINTS], found[_POINTS:]
        return bool(np.all(np.abs(before - after) <= 0.01 + 1e-6 * np.abs(before)))


def _rows(x: np.ndarray, axis: int) -> np.ndarray:
    """Give one row of numbers per label."""
    return np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1)


def _matched(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Give the order of b's rows that is closest to a's."""
    from scipy.optimize import linear_sum_assignment

    unit = np.maximum(np.concatenate([a, b]).std(0), 1e-12)
    return linear_sum_assignment((((a[:, None] - b[None]) / unit) ** 2).sum(-1))[1]
