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
    """Draws of the variables that are summed out; several are each drawn from their own marginal law."""

    model: Any

    def with_draws(self, seed: int, draws: Params) -> dict[str, np.ndarray]:
        """Draw them by pymc-extras, on the host, one for each draw of the other free variables."""
        import arviz
        from pymc_extras import recover_marginals

        free = {x.name: np.asarray(draws[x.name])[None] for x in self.model.free_RVs}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            idata = arviz.from_dict(posterior=free)
            found = recover_marginals(idata, model=self.model, extend_inferencedata=False, random_seed=seed % 2**32)
        return {k: v.values[0] for k, v in found.data_vars.items() if not k.startswith("lp_")}


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
    return made, Marginals(made)
