"""Names for labelled output: plates as dims, observed sites with their log probabilities."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from yoasovi.model import Labels
from yoasovi.model.words import in_words
from yoasovi.numpyro.laws import is_observation
from yoasovi.numpyro.replay import Replay


def labels_of(sites: dict[str, dict], terms: dict[str, Any], replay: Replay) -> Labels:
    """Label the sites of a model function, by the sites and the shapes of their log probabilities."""
    seen = [k for k, s in sites.items() if is_observation(s)]
    # Where discrete sites are not summed out by observation there is no likelihood by observation.
    apart = replay.plate is None and all(x.likelihood for x in replay.summed)
    blocks = {k: np.shape(terms[k]) for k in replay.observed(terms, sites)} if apart else {}
    values = {k: sites[k]["value"] for k in seen}  # one that is made of latent sites is not known
    return Labels(
        dims={k: _dims(site, sites) for k, site in sites.items() if site["type"] == "sample"},
        observed={k: np.asarray(v) for k, v in values.items() if not isinstance(v, jax.ShapeDtypeStruct)},
        blocks=blocks,
        priors=_priors(sites, replay),
    )


def _priors(sites: dict[str, dict], replay: Replay) -> dict[str, str]:
    """Tell the laws that are not among the model's priors: they depend on other sites."""
    open_ = [k for k in replay.latents if k not in replay.settled]
    laws = {k: f"{in_words(sites[k]['fn'])}, which depends on other sites" for k in open_}
    unbounded = {base: f"{name} without its bounds ({name} is {laws[name]})" for name, base in replay.moving.items()}
    return {k: v for k, v in laws.items() if k not in replay.moving} | unbounded


def _dims(site: dict, taken: dict[str, dict]) -> tuple[str | None, ...]:
    """Name the axes of a site that belong to plates."""
    shape, event = np.shape(site["value"]), site["fn"].event_dim
    names: list[str | None] = [None] * len(shape)
    for frame in site["cond_indep_stack"]:
        axis = len(shape) - event + frame.dim
        free = taken.get(frame.name, {"type": "plate"})["type"] == "plate"  # not also the name of a variable
        if 0 <= axis < len(shape) and shape[axis] == frame.size and free:
            names[axis] = frame.name
    return tuple(names)
