"""Several Gaussians of one family, side by side: what a posterior with several modes is described by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.special import logsumexp, ndtr

from yoasovi.families.base import Gaussian


class MixtureParams(NamedTuple):
    """Logarithms of weights, and the parameters of each part."""

    log_weights: Any  # (..., K)
    parts: Any  # (..., K, ...)


@dataclass(frozen=True)
class Mixture:
    """sum_k w_k q_k, put together of fits and not fitted itself; the first number of a draw's noise chooses its part."""

    part: Gaussian

    @property
    def name(self) -> str:
        """Say of what it is a mixture."""
        return f"mixture of {self.part.name}"

    def together(self, weights: np.ndarray, parts: list[Any]) -> MixtureParams:
        """Give the parameters of a mixture of q with the given weights."""
        return MixtureParams(np.log(weights), jax.tree.map(lambda *x: np.stack(x), *parts))

    def noise_size(self, density: Any) -> int:
        """How many normal numbers make one draw."""
        return 1 + self.part.noise_size(density)

    def noise(self, points: np.ndarray) -> np.ndarray:
        """Turn points of the open unit cube into noise."""
        return self.part.noise(points)

    def place(self, params: MixtureParams, eps: np.ndarray) -> np.ndarray:
        """Map noise (lanes, n, k) to theta (lanes, n, d)."""
        ends = np.cumsum(np.exp(params.log_weights), -1)[:, None, :-1]
        which = (ndtr(eps[..., :1]) > ends).sum(-1)
        each = self.part.place(params.parts, eps[:, None, :, 1:])
        return np.take_along_axis(each, which[:, None, :, None], 1)[:, 0]

    def minus_log_q(self, params: MixtureParams, eps: np.ndarray) -> np.ndarray:
        """Give -log q at place(params, eps), (lanes, n)."""
        return -self.log_q(params, self.place(params, eps))

    def log_q(self, params: MixtureParams, theta: np.ndarray) -> np.ndarray:
        """Give log q(theta), (lanes, n)."""
        return logsumexp(self.log_terms(params, theta), axis=1)

    def log_terms(self, params: MixtureParams, theta: np.ndarray) -> np.ndarray:
        """Give log w_k q_k(theta), (lanes, K, n)."""
        found = self.part.log_q(params.parts, theta[:, None])
        return params.log_weights[..., None] + (found.sum(-1) if found.ndim == 4 else found)


@dataclass(frozen=True)
class Share:
    """The share w_k q_k / sum_j w_j q_j of one part of a mixture, by which a posterior is cut into pieces, one per mode."""

    family: Mixture
    params: MixtureParams
    index: int

    def log_value(self, theta: np.ndarray) -> np.ndarray:
        """Give its logarithm at points (n, d)."""
        terms = self._terms(theta)
        return terms[self.index] - logsumexp(terms, axis=0)

    def slope(self, theta: np.ndarray) -> np.ndarray:
        """Give the gradient of its logarithm, (n, d)."""
        terms = self._terms(theta)
        slopes = self.family.part.slope(self.params.parts, theta[None])
        shares = np.exp(terms - logsumexp(terms, axis=0))
        return slopes[self.index] - np.einsum("kn,knd->nd", shares, slopes)

    def _terms(self, theta: np.ndarray) -> np.ndarray:
        lane = jax.tree.map(lambda x: x[None], self.params)
        return self.family.log_terms(lane, theta[None])[0]
