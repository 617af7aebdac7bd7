"""Simulated data, with seeds stated so that every figure can be drawn again."""

from __future__ import annotations

import numpy as np

from yoasovi.errors import positive_integer


def mixture(p: int, k: int, n: int = 500, seed: int = 1) -> np.ndarray:
    """Draw n points from k equally likely unit Gaussians in p dimensions, their means from N(0, 2.5^2).

    The paper does not print its means; these are the project's own. Returns shape (n, p).
    """
    for name, value in (("p", p), ("k", k), ("n", n)):
        positive_integer(name, "mixture", value)
    rng = np.random.default_rng(seed)
    means = 2.5 * rng.normal(size=(k, p))
    return means[rng.integers(k, size=n)] + rng.normal(size=(n, p))


def network(n: int = 400, seed: int = 42) -> tuple[np.ndarray, np.ndarray]:
    """Draw X of shape (n, 10) and y = sin x0 + 2 x1^2 - 1.5 x2 + 0.5 e, e standard normal; seven columns are idle."""
    positive_integer("n", "network", n)
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 10))
    return X, np.sin(X[:, 0]) + 2.0 * X[:, 1] ** 2 - 1.5 * X[:, 2] + 0.5 * rng.normal(size=n)
