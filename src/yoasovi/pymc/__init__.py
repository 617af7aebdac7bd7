"""The PyMC door: a `pm.Model` in, a `Model` out, in the JAX that PyTensor makes of it.

Every free variable is a site, with PyMC's own transform as the way to its support. One whose support moves with other
variables, as y ~ Uniform(0, x) does, is an unconstrained site of PyMC's name for that, `y_interval__`, and y itself a
deterministic.

Nothing is compiled here: PyTensor writes all terms of log p anew once, as for its own JAX backend, and what has to be known
before the fit (where it begins, shapes, whether log p is finite there) is what those operations give in NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpyro.distributions import ImproperUniform

from yoasovi.errors import check
from yoasovi.extras import need
from yoasovi.kernels.programs import precision
from yoasovi.model import Centring, Labels, Model
from yoasovi.pymc.beginning import InitialPoint, Start, begin_at, initial_point
from yoasovi.pymc.graphs import import_backend
from yoasovi.pymc.marginal import marginal
from yoasovi.pymc.predictive import predictive_of
from yoasovi.pymc.sites import sites_of
from yoasovi.pymc.terms import GraphQuantities, GraphTerms, parts_of

__all__ = ["from_pymc"]


def from_pymc(model: Any) -> Model:
    """Make a `Model` of a PyMC model; its transforms, dims and coords are kept.

    The density is the one PyMC's own samplers see. `log_likelihood` has one entry per observation first, then those of
    the free variables and of potentials; `log_marginal` has the observations alone. Missing values that PyMC imputes are
    free variables like others. A fit begins at PyMC's initial point, jittered as PyMC does it. `fit.predict()` draws the
    observed variables at what `pm.Data` hold then: change it by `pm.set_data`, or for one call, `fit.predict({"X": new})`.

    Parameters
    ----------
    model
        A `pymc.Model`. Discrete free variables with finitely many values are summed out by pymc-extras, where that is
        installed; draws come with them. Others are refused.

    Examples
    --------
    >>> with pm.Model(coords={"school": list("ABCDEFGH")}) as schools:
    ...     mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
    ...     theta = pm.Normal("theta", mu, tau, dims="school")
    ...     pm.Normal("y", theta, se, observed=y, dims="school")
    >>> fit = yo.fit(schools)  # or yo.fit(yo.from_pymc(schools))
    """
    pm = need("pymc", "pymc")
    check(isinstance(model, pm.Model), "model", "from_pymc", "a PyMC model", model)
    _check_variables(model)
    labelled, (model, marginals) = model, marginal(model)
    import_backend()
    point = initial_point(model)
    sites = sites_of(model, point)
    parts = parts_of(model, sites)
    begin = begin_at(model, sites, point, parts)
    with precision():
        return Model(
            prior={x.name: ImproperUniform(x.support, (), x.shape) for x in sites},
            log_likelihood=GraphTerms(parts.terms), log_marginal=GraphTerms(parts.observations), data=parts.data,
            start=Start(sites, begin), deterministics=GraphQuantities(parts.others, parts.shown) if parts.others else None,
            centring=None if parts.frames is None else Centring(parts.frames),
            recovered=marginals, predictive=predictive_of(model), name=model.name or "PyMC model",
            labels=_labels(labelled, begin),
        )  # fmt: skip


def _labels(model: Any, begin: InitialPoint) -> Labels:
    from pymc.backends.arviz import coords_and_dims_for_inferencedata, find_constants, find_observations

    coords, dims = coords_and_dims_for_inferencedata(model)
    return Labels(
        dims={k: tuple(v) for k, v in dims.items()},
        coords=coords,
        observed={k: np.asarray(v) for k, v in find_observations(model).items()},
        constant={k: np.asarray(v) for k, v in find_constants(model).items()},
        blocks={rv.name: begin.shapes[rv.name] for rv in model.observed_RVs},
        priors={rv.name: _law(rv) for rv in model.free_RVs if hasattr(rv, "str_repr")},  # imputed values have none
    )


def _law(rv: Any) -> str:
    return rv.str_repr(formatting="plain", include_params=True).partition(" ~ ")[2]


def _check_variables(model: Any) -> None:
    if not model.free_RVs:
        raise ValueError("The PyMC model has no free variable: there is nothing to infer.")
