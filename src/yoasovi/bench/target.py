"""A posterior's flat unconstrained log density, and what is said of any answer by the same code: ELBO, means, sds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro.infer.util import initialize_model

_AT_ONCE = 100  # draws in one look


class Target:
    """log p on the flat unconstrained vector, its sites in alphabetical order, as NumPyro's own samplers see it."""

    def __init__(self, model: Callable[..., None], args: tuple[Any, ...], seed: int = 0):
        info = initialize_model(jax.random.key(seed), model, model_args=args, validate_grad=False)
        self.latents = sorted(info.param_info.z)
        self.start, self._sites = ravel_pytree({k: info.param_info.z[k] for k in self.latents})
        self._potential, self._constrain = info.potential_fn, info.postprocess_fn

    @property
    def dim(self) -> int:
        """The length of the vector."""
        return self.start.size

    def log_density(self, flat: jax.Array) -> jax.Array:
        """Give log p with the Jacobian of the constraints; all constants are in it."""
        return -self._potential(self._sites(flat))

    def constrain(self, flat: jax.Array) -> dict[str, jax.Array]:
        """Give the latent sites on their own scales, and deterministic ones."""
        return self._constrain(self._sites(flat))


class Scorer:
    """What is said of draws, all in double precision; made once per posterior."""

    def __init__(self, model: Callable[..., None], args: tuple[Any, ...]):
        from yoasovi.kernels.programs import precision

        self._wide = precision
        with precision():
            self.target = Target(model, args)
            self._heights = jax.jit(lambda x: jax.lax.map(self.target.log_density, x, batch_size=_AT_ONCE))
            self._values = jax.jit(lambda x: jax.lax.map(self.target.constrain, x, batch_size=_AT_ONCE))

    def heights(self, theta: Any) -> np.ndarray:
        """Give log p at draws (n, d)."""
        with self._wide():
            return np.asarray(self._heights(np.asarray(theta, float)))

    def constrained(self, theta: Any) -> dict[str, np.ndarray]:
        """Give draws by site on the constrained scale."""
        with self._wide():
            return {k: np.asarray(v) for k, v in self._values(np.asarray(theta, float)).items()}

    def elbo(self, theta: Any, log_q: Any) -> tuple[float, float]:
        """Give the mean of log p - log q and its standard error; minus infinity where log p is not finite somewhere."""
        ratio = self.heights(theta) - np.asarray(log_q, float)
        if not np.isfinite(ratio).all():
            return -np.inf, np.inf
        return float(ratio.mean()), float(ratio.std(ddof=1) / np.sqrt(len(ratio)))


def moments(draws: dict[str, np.ndarray], names: tuple[str, ...]) -> tuple[dict[str, list], dict[str, list]]:
    """Give means and sds of the named quantities, flat, as JSON can hold them: None where they are not finite."""
    plain = lambda row: [float(x) if np.isfinite(x) else None for x in row]
    with np.errstate(all="ignore"):
        flat = {k: np.asarray(draws[k], float).reshape(len(draws[k]), -1) for k in names}
        return {k: plain(v.mean(0)) for k, v in flat.items()}, {k: plain(v.std(0)) for k, v in flat.items()}
