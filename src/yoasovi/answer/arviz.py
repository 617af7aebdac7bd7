"""Labelled output: a fit as the DataTree of arrays that ArviZ reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from yoasovi.answer.predictive import recovered, replicate_if_drawn
from yoasovi.extras import need
from yoasovi.model import HostDensity, Labels, Model, WholeDensity

if TYPE_CHECKING:
    from yoasovi.answer.result import Fit


def to_datatree(fit: Fit, n: int = 1000, seed: int = 0, corrected: bool | None = None) -> Any:
    """Give `n` draws with all that belongs to them; see `Fit.to_datatree`."""
    base = need("arviz_base", "arviz")
    labels = fit.model.labels or guessed(fit.model)
    if fit.model.stream is not None:  # what is in memory are a few of the rows
        labels = replace(labels, observed={}, constant={}, blocks={})
    chains = fit.refined if corrected is not False else None
    if chains is not None:
        n, seed_of_draws, (several, each) = chains.size, 0, chains.theta.shape[:2]  # all of them, in their order
    else:
        seed_of_draws, (several, each) = seed, (1, n)
    draws, theta, corrected = fit.draws(n, seed_of_draws, corrected)
    model = fit.model
    draws = recovered(model, draws, seed)
    terms = _log_likelihood(fit, labels, draws)
    new = _predictive(model, labels, draws, seed)
    by_draw = {"posterior": draws, "posterior_predictive": new, "log_likelihood": terms}
    if chains is None:
        log_p, log_q = fit.kernels.densities(fit.lane, theta)
        fit.num_values += len(log_p)
        # Corrected draws stand for the posterior itself: nothing is left to weigh, and the density they have is nobody's.
        by_draw["sample_stats"] = {"log_p": log_p} | ({} if corrected else {"log_q": log_q})
    by_chain = lambda x: np.asarray(x).reshape(several, each, *np.shape(x)[1:])
    groups = {k: {name: by_chain(x) for name, x in v.items()} for k, v in by_draw.items()}
    if chains is not None:
        groups["sample_stats"] = dict(chains.stats)
    groups |= {"observed_data": dict(labels.observed), "constant_data": dict(labels.constant)}
    groups = {k: v for k, v in groups.items() if v}
    attrs = {"/": _attributes(fit, corrected)}
    dims = {k: list(v) for k, v in labels.dims.items()}
    return base.from_dict(groups, name=fit.model.name, dims=dims, coords=dict(labels.coords), attrs=attrs)


def guessed(model: Model) -> Labels:
    """Label a model that says nothing of its arrays: data of its own, or `y` of a dict, is what was observed."""
    data = model.data if isinstance(model.data, Mapping) else {} if model.data is None else {"y": model.data}
    arrays = {k: np.asarray(v) for k, v in data.items() if isinstance(v, (np.ndarray, jax.Array))}
    whole = isinstance(model.log_likelihood, (WholeDensity, HostDensity))  # one number for all observations
    known = not whole and (model.log_marginal is not None or not model.laws)
    return Labels(
        observed={k: v for k, v in arrays.items() if k == "y"},
        constant={k: v for k, v in arrays.items() if k != "y"},
        blocks={"y": (-1,)} if known else {},  # all there are
    )


def _log_likelihood(fit: Fit, labels: Labels, draws: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Give log p of each observation at each draw, one array per observed variable."""
    if not labels.blocks:
        return {}
    names = {s.name for s in fit.model.density.sites}
    fn = fit.model.log_marginal or fit.model.log_likelihood
    terms = fit.kernels.whole.each(fn, {k: v for k, v in draws.items() if k in names})
    ends = np.cumsum([int(np.prod(shape)) for shape in labels.blocks.values()])
    parts = np.split(terms, ends[:-1], axis=1)
    return {k: x.reshape(len(x), *shape) for x, (k, shape) in zip(parts, labels.blocks.items(), strict=True)}


def _predictive(model: Model, labels: Labels, draws: Mapping[str, np.ndarray], seed: int) -> Mapping[str, np.ndarray]:
    """Draw new observations, where the model says how."""
    if getattr(model, "predictive", None) is None or not labels.observed:
        return {}
    made = replicate_if_drawn(model, draws, seed)
    return made if isinstance(made, Mapping) else {"y": made}


def _attributes(fit: Fit, corrected: bool) -> dict[str, Any]:
    """What is known of the fit, in types that netCDF has."""
    from yoasovi import __version__

    return {
        "inference_library": "yoasovi", "inference_library_version": __version__, "method": fit.method.name,
        "family": fit.family.name, "elbo": fit.elbo.value, "elbo_se": fit.elbo.se, "converged": int(fit.converged),
        "stop_reason": fit.stop_reason.name.lower(), "num_steps": fit.num_steps, "num_gradients": fit.num_gradients,
        "num_values": fit.num_values, "seed": fit.seed, "sampling_time": fit.seconds.run, "corrected": int(corrected),
    }  # fmt: skip
