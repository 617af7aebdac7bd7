"""Posterior predictive draws of a NumPyro model."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from numpyro.handlers import trace
from numpyro.infer import Predictive as NumPyroPredictive

from yoasovi.errors import check
from yoasovi.model import Params
from yoasovi.numpyro.laws import is_observation
from yoasovi.numpyro.replay import Replay, Source


@dataclass(frozen=True, eq=False)
class Predictive:
    """Draws every observed site of the model from its law, given the parameters.

    A law that depends on other observations (a time series on its past) is that of the next step: the past stays as it was.
    """

    source: Source
    replay: Replay

    def __call__(self, key: jax.Array, params: Params, data: Any) -> dict[str, jax.Array]:
        """Give one new data set, by observed site."""
        fn, args, kwargs = self.replay.source(params, data)
        sites = {k: s for k, s in trace(fn).get_trace(*args, **kwargs).items() if is_observation(s)}
        if not sites:
            raise ValueError("The NumPyro model has no observed site (`obs=`): it has nothing to predict.")
        keys = jax.random.split(key, len(sites))
        return {k: s["fn"].sample(one) for one, (k, s) in zip(keys, sites.items(), strict=True)}

    def with_arguments(self, key: int, draws: dict[str, np.ndarray], changed: dict[str, Any]) -> dict[str, np.ndarray]:
        """Run the model function with some of its arguments changed; observed ones must be given as None."""
        bound = inspect.signature(self.source.fn).bind(*self.source.args, **self.source.kwargs)
        unknown = sorted(set(changed) - set(inspect.signature(self.source.fn).parameters))
        check(not unknown, "data", "predict", f"named after arguments of the model ({', '.join(bound.arguments)})", unknown)
        bound.arguments.update(changed)
        latent = {k: v for k, v in draws.items() if k in self.replay.latents and k not in self.replay.local}
        made = NumPyroPredictive(self.source.fn, latent)(jax.random.key(key), *bound.args, **bound.kwargs)
        return {k: np.asarray(v) for k, v in made.items()}
