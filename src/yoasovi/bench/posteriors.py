"""The posteriors: their data, which NumPy and scikit-learn make, and the names of their models.

Nothing here imports JAX, so that a process can have its data before the clock starts. The model of a posterior is the
function of `models`, and where there is one of `pymc_models`, with the name that stands here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from yoasovi.bench import database

Data = tuple[np.ndarray, ...]


class Posterior(NamedTuple):
    """A posterior that ships with the project."""

    model: str  # in `models`
    data: Callable[[], Data]  # its arguments
    dim: int
    about: str
    centred: tuple[str, ...] = ()  # sites that NUTS, for the reference alone, sees in their non-centred form
    compared: tuple[str, ...] = ()  # quantities whose means and sds are compared; all latent sites if there are none
    needs: str = ""  # a library that has the data


def proportions() -> Data:
    """Draw overdispersed proportions."""
    rng = np.random.default_rng(11)
    trials = rng.integers(5, 40, size=40)
    return trials, rng.binomial(trials, rng.beta(2, 6, size=40))


def process() -> Data:
    """Draw a noisy sine at uneven places."""
    rng = np.random.default_rng(16)
    x = np.sort(rng.uniform(-3, 3, 30))
    return x, np.sin(2 * x) + 0.3 * rng.normal(size=30)


def growth() -> Data:
    """Draw an animal's weight in grams over 120 days, before it is fully grown."""
    rng = np.random.default_rng(14)
    days = np.arange(0.0, 121.0, 5.0)
    return days, 2400 / (1 + np.exp(-(days - 85) / 18)) + rng.normal(0, 60, days.size)


def two_normals() -> Data:
    """Draw from two overlapping normal components."""
    rng = np.random.default_rng(18)
    return (np.concatenate([rng.normal(-1.5, 0.8, 60), rng.normal(1.8, 0.8, 90)]),)


def counts() -> Data:
    """Draw counts that depend on four columns."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(200, 4))
    return X, rng.poisson(np.exp(0.5 + X @ np.array([1.0, -0.7, 0.3, 0.0])))


def schools() -> Data:
    """Give standard errors and effects of coaching in eight schools (Rubin 1981)."""
    return np.array([15.0, 10, 16, 11, 9, 11, 10, 18]), np.array([28.0, 8, -3, 7, -1, 1, 18, 12])


def diabetes() -> Data:
    """Give scikit-learn's diabetes data in their raw units."""
    from sklearn.datasets import load_diabetes

    return load_diabetes(return_X_y=True, scaled=False)


def iris() -> Data:
    """Give three kinds, and scikit-learn's iris data, in centimetres, with a column of ones."""
    from sklearn.datasets import load_iris

    X, y = load_iris(return_X_y=True)
    return np.arange(3), *_with_ones(X, y)


def cancer() -> Data:
    """Give scikit-learn's breast cancer data, standardised, with a column of ones."""
    from sklearn.datasets import load_breast_cancer

    X, y = load_breast_cancer(return_X_y=True)
    return _with_ones((X - X.mean(0)) / X.std(0), y)


def digits() -> Data:
    """Give ten kinds, and a third of scikit-learn's handwritten digits, grey from 0 to 1, with a column of ones."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return np.arange(10), *_with_ones(X[::3] / 16.0, y[::3])  # a third, since the reference is a long run of NUTS


def _with_ones(X: np.ndarray, y: np.ndarray) -> Data:
    return np.column_stack([np.ones(len(X)), X]), y


def latent_counts() -> Data:
    """Draw counts around a smooth curve."""
    rng = np.random.default_rng(17)
    x = np.linspace(0, 1, 20)
    return x, rng.poisson(np.exp(1 + np.sin(5 * x)))


def groups(num: int, size: int) -> Data:
    """Draw groups with intercepts of their own: their names; group, x and y of each row."""
    rng = np.random.default_rng(20)
    group = np.repeat(np.arange(num), size)
    x = rng.normal(size=group.size)
    return np.arange(num), group, x, rng.normal(1, 0.8, num)[group] + 0.5 * x + rng.normal(size=group.size)


def returns() -> Data:
    """Draw 60 returns whose volatility changes."""
    rng = np.random.default_rng(24)
    h = np.zeros(60)
    for i in range(1, 60):
        h[i] = 0.95 * h[i - 1] + 0.25 * rng.normal()
    return (np.exp(h / 2) * rng.normal(size=60),)


def curve() -> Data:
    """Draw a bent surface over three columns."""
    rng = np.random.default_rng(30)
    X = rng.normal(size=(150, 3))
    return X, np.sin(X[:, 0]) + 0.5 * X[:, 1] ** 2 - X[:, 2] + 0.3 * rng.normal(size=150)


def areas() -> Data:
    """Draw counts of 3,000 areas with rates of their own."""
    rng = np.random.default_rng(31)
    return (rng.poisson(np.exp(1.0 + 0.6 * rng.normal(size=3000))),)


POSTERIORS: dict[str, Posterior] = {
    "proportions": Posterior("proportions", proportions, 2, "overdispersed proportions, beta-binomial"),
    "process": Posterior("process", process, 3, "hyperparameters of a Gaussian process"),
    "growth": Posterior("growth", growth, 4, "logistic growth in grams and days"),
    "two-normals": Posterior("two_normals", two_normals, 4, "mixture of two normals in order, labels summed out"),
    "counts": Posterior("counts", counts, 5, "Poisson regression"),
    "schools": Posterior("schools", schools, 10, "eight schools, non-centred"),
    "schools-centred": Posterior("schools_centred", schools, 10, "eight schools, centred: a funnel", ("theta",)),
    "diabetes": Posterior("diabetes", diabetes, 12, "linear regression, raw units, real data", needs="sklearn"),
    "iris": Posterior("softmax", iris, 15, "multinomial regression, raw units, real data", needs="sklearn"),
    "latent-counts": Posterior("latent_counts", latent_counts, 23, "counts around a latent Gaussian process"),
    "groups": Posterior("groups", partial(groups, 20, 10), 24, "varying intercepts, 20 groups of 10, centred"),
    "cancer": Posterior("logistic", cancer, 31, "logistic regression, real data", needs="sklearn"),
    "groups-of-three": Posterior("groups", partial(groups, 40, 3), 44, "the same, 40 groups of 3", ("a",)),
    "volatility": Posterior("volatility", returns, 63, "stochastic volatility of 60 returns"),
    "network": Posterior("network", curve, 26, "a network of 5 hidden units; its outputs are compared", (), ("output",)),
    "digits": Posterior("softmax", digits, 650, "multinomial regression, 599 rows, real data", needs="sklearn"),
    "areas": Posterior("areas", areas, 3002, "Poisson rates of 3,000 areas, non-centred"),
}  # fmt: skip


class Case:
    """A posterior in a process: its data at once, its NumPyro model and arguments when they are first asked for."""

    def __init__(self, name: str, folder: Path | None = None):
        self.name, self.folder = name, None if name in POSTERIORS else folder
        self.posterior = POSTERIORS.get(name)
        self._data: Any = database.data(self.folder, name) if self.folder else POSTERIORS[name].data()

    @cached_property
    def _form(self) -> tuple[Callable[..., None], tuple[Any, ...]]:
        if self.posterior is None:
            from yoasovi.bench.real_models import FORMS

            return FORMS[self.name](self._data)
        from yoasovi.bench import models

        return getattr(models, self.posterior.model), self._data

    @property
    def model(self) -> Callable[..., None]:
        """The NumPyro model function."""
        return self._form[0]

    @property
    def args(self) -> tuple[Any, ...]:
        """What the model function is called with."""
        return self._form[1]

    @property
    def pymc(self) -> Any:
        """The posterior as a PyMC model."""
        from yoasovi.bench import pymc_models

        assert self.posterior is not None  # none of the database has a PyMC form
        return getattr(pymc_models, self.posterior.model)(*self._data)
