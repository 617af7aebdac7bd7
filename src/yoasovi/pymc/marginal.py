"""Discrete free variables, summed out by pymc-extras and drawn again given the rest."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from yoasovi.errors import first_line
from yoasovi.model import Params
from yoasovi.pymc.beginning import named


@dataclass(frozen=True, eq=False)
class Marginals:
    """Draws of the variables that are summed out: each given the free variables and those drawn before it."""

    model: Any
    names: tuple[str, ...]

    def with_draws(self, seed: int, draws: Params) -> dict[str, np.ndarray]:
        """Draw them by pymc-extras, on the host, one of each for each draw of the other free variables."""
        given = {x.name: np.asarray(draws[x.name]) for x in self.model.free_RVs}
        for i, name in enumerate(self.names):
            given[name] = self._drawn(name, self.names[:i], given, (seed + i) % 2**32)
        return {name: given[name] for name in self.names}

    def _drawn(self, name: str, before: tuple[str, ...], given: dict[str, np.ndarray], seed: int) -> np.ndarray:
        import arviz
        from pymc_extras import recover_marginals
        from pymc_extras.model.marginal.marginal_model import unmarginalize

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = recover_marginals(
                arviz.from_dict(posterior={k: v[None] for k, v in given.items()}),
                model=unmarginalize(self.model, before) if before else self.model,
                var_names=[name], extend_inferencedata=False, random_seed=seed,
            )  # fmt: skip
        return found[name].values[0]


def marginal(model: Any) -> tuple[Any, Marginals | None]:
    """Give the model without its discrete free variables, and what draws them; refuse those that cannot be summed out."""
    discrete = [rv.name for rv in model.free_RVs if rv.dtype.startswith(("int", "uint", "bool"))]
    if not discrete:
        return model, None
    begin, way = f"{named(discrete)} of the PyMC model: discrete", "write `pm.Mixture`, or a NumPyro model"
    try:
        from pymc_extras import marginalize
    except ImportError as error:
        raise ValueError(
            f"{begin}. Install pymc-extras, which sums over finitely many values: pip install pymc-extras. Or {way}."
        ) from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = marginalize(model, discrete)
    except (NotImplementedError, ValueError) as error:
        raise ValueError(f"{begin}, and pymc-extras cannot sum over all values ({first_line(error)}); {way}.") from error
    return made, Marginals(made, tuple(discrete))
