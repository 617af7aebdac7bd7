"""A Bayesian neural network for regression."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist

from yoasovi.errors import check, positive_integer, positive_number
from yoasovi.model import Model, Params
from yoasovi.models.arrays import table
from yoasovi.models.regression import RowDraw

SLOPE = 0.01  # of the leaky ReLU below zero
START_SD = 0.1  # of the weights a fit begins with: small, but not alike, or the hidden units would stay alike


def NeuralNetwork(
    X: Any, y: Any, hidden: tuple[int, ...] = (50, 50), *, prior_scale: float = 1.0, max_noise: float = 10.0
) -> Model:
    """Regress y on X by a network with leaky ReLU units: y_i ~ N(f(x_i), noise^2).

    Parameters
    ----------
    X, y
        Shapes (N, p) and (N,).
    hidden
        Units of each hidden layer.
    prior_scale
        All weights and biases ~ N(0, prior_scale^2).
    max_noise
        noise ~ Uniform(0, max_noise).

    Sites: `w0` (p, hidden[0]), `b0` (hidden[0],), `w1`, `b1`, ..., `noise`.
    """
    owner = "NeuralNetwork"
    found, y = table(owner, X, y)
    X = found.X
    check(isinstance(hidden, (tuple, list)) and len(hidden) > 0, "hidden", owner, "a non-empty tuple of integers", hidden)
    for units in hidden:
        positive_integer("hidden", owner, units)
    positive_number("prior_scale", owner, prior_scale)
    positive_number("max_noise", owner, max_noise)
    shapes: dict[str, tuple[int, ...]] = {}
    for layer, (n_in, n_out) in enumerate(pairwise((X.shape[1], *hidden, 1))):
        shapes |= {f"w{layer}": (n_in, n_out), f"b{layer}": (n_out,)}
    prior = {k: dist.Normal(np.zeros(s), np.full(s, float(prior_scale))).to_event(len(s)) for k, s in shapes.items()}
    prior["noise"] = dist.Uniform(0.0, float(max_noise))
    network = NetworkNormal(len(hidden) + 1)
    draw = RowDraw(network.law, X.shape[1], names=None if found.names is None else tuple(found.names))
    return Model(
        prior=prior, log_likelihood=network, data={"X": X, "y": y}, name="neural network",
        start=SmallWeights(tuple(shapes.items())), predictive=draw,
    )  # fmt: skip


@dataclass(frozen=True)
class NetworkNormal:
    """log N(y_i | f(x_i), noise^2) of a network of `depth` affine layers."""

    depth: int

    def mean(self, params: Params, X: jax.Array) -> jax.Array:
        """Give f(x_i), shape (N,)."""
        h = X
        for layer in range(self.depth):
            h = h @ params[f"w{layer}"] + params[f"b{layer}"][None, :]
            if layer < self.depth - 1:
                h = jax.nn.leaky_relu(h, SLOPE)
        return h[:, 0]

    def law(self, params: Params, data: Any) -> dist.Distribution:
        """Give N(f(x_i), noise^2)."""
        return dist.Normal(self.mean(params, data["X"]), params["noise"])

    def __call__(self, params: Params, data: Any) -> jax.Array:
        """Give the log density of each y_i, shape (N,)."""
        return self.law(params, data).log_prob(data["y"])


@dataclass(frozen=True)
class SmallWeights:
    """Start of the weights, N(0, 0.1^2) each; the noise begins at its prior's centre."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]

    def __call__(self, key: jax.Array) -> Params:
        """Give the weights and biases by name."""
        keys = jax.random.split(key, len(self.shapes))
        return {k: START_SD * jax.random.normal(one, s) for one, (k, s) in zip(keys, self.shapes, strict=True)}
