"""Log densities with known answers."""

import numpy as np
from numpyro.distributions import constraints

import yoasovi as yo


def density(fn, dim):
    return yo.Model.from_log_density(fn, {"x": constraints.real}, {"x": (dim,)})


class GaussianTarget:
    """A Gaussian log density, normalised, so that the best ELBO is exactly zero."""

    def __init__(self, mean, covariance):
        self.mean, self.precision = np.asarray(mean), np.linalg.inv(covariance)
        self.constant = 0.5 * np.linalg.slogdet(self.precision)[1] - 0.5 * len(mean) * np.log(2 * np.pi)
        self.model = density(self.log_density, len(mean))

    def log_density(self, params):
        gap = params["x"] - self.mean
        return -0.5 * gap @ self.precision @ gap + self.constant


def correlated(dim, seed=0, spread=2.0):
    """Raw units over 2 * `spread` orders of magnitude, strong correlations."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(dim, dim)) / np.sqrt(dim) + 0.3 * np.eye(dim)
    scale = 10 ** rng.uniform(-spread, spread, size=dim)
    return scale * rng.normal(size=dim), scale[:, None] * (root @ root.T + 0.05 * np.eye(dim)) * scale
