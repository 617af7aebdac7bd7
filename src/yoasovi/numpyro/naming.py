"""Names for labelled output: plates as dims, observed sites with their log probabilities."""

from __future__ import annotations

import numpy as np

from yoasovi.answer.arviz import Labels
from yoasovi.numpyro.laws import is_observation, per_member
from yoasovi.numpyro.looking import Look
from yoasovi.numpyro.replay import Replay


def labels_of(look: Look, replay: Replay) -> Labels:
    """Label the sites of a model function, seen in one run of it."""
    seen = [k for k in look.log_probs if is_observation(look.sites.get(k))]
    blocks = {k: np.shape(look.log_probs[k]) for k in seen}
    if replay.plate is not None:  # observations of the plate share one term each, their local latents summed out
        inside = [k for k in seen if per_member(look.log_probs[k], look.sites[k], replay.plate) is not None]
        apart = {k: v for k, v in blocks.items() if k not in inside}
        blocks = {"_".join(inside): (replay.size,), **apart} if replay.choices else {}
    return Labels(
        dims={k: _dims(site, look.sites) for k, site in look.sites.items() if site["type"] == "sample"},
        observed={k: np.asarray(look.sites[k]["value"]) for k in seen},
        blocks=blocks,
    )


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
