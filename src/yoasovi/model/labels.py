"""Names: of the numbers in a site's array, and of the laws that a model's priors are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpyro.distributions as dist

from yoasovi.model.words import in_words, is_of_numbers

_MOST_PRIORS = 100  # numbers of one site whose laws are told one by one
_MOST_LINES = 20  # laws in a sentence


@dataclass(frozen=True)
class Labels:
    """What is known of a model's arrays.

    `dims` and `coords` name the axes of sites and the places along them. `log_marginal` of the model is one vector: `blocks`
    says of which observed variables it is made, in its order, and the shape of each one's part. `priors` has the laws, in
    words, of sites whose law is among the likelihood's terms. `notes` are sentences on what was made of the data.
    """

    dims: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    coords: Mapping[str, Any] = field(default_factory=dict)
    observed: Mapping[str, np.ndarray] = field(default_factory=dict)
    constant: Mapping[str, np.ndarray] = field(default_factory=dict)
    blocks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    priors: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def names(site: str, shape: tuple[int, ...], labels: Labels | None) -> list[str]:
    """Name every number of an array: site, site[i,j], or site[age] where the places of an axis have names."""
    dims = () if labels is None else labels.dims.get(site, ())
    axes = []
    for axis, size in enumerate(shape):
        dim = dims[axis] if axis < len(dims) else None
        known = None if labels is None or dim is None else labels.coords.get(dim)
        axes.append([str(x) for x in known] if known is not None and len(known) == size else [str(i) for i in range(size)])
    places = (",".join(axis[i] for axis, i in zip(axes, index, strict=True)) for index in np.ndindex(shape))
    return [f"{site}[{place}]" for place in places] if shape else [site]


def priors(laws: Mapping[str, dist.Distribution], labels: Labels | None) -> dict[str, str]:
    """Give the priors in words, by the names of the parameters; one for a whole site where its numbers share a law.

    Improper and discrete laws that no label tells are left out: the prior may be elsewhere, in a log density or graph.
    """
    known = {} if labels is None else labels.priors
    out = {}
    for site, law in laws.items():
        if site in known:
            out[site] = known[site]
        elif not isinstance(law, dist.ImproperUniform) and not law.is_discrete:
            shape = tuple(law.batch_shape) + tuple(law.event_shape)
            few = is_of_numbers(law) and 0 < np.prod(shape) <= _MOST_PRIORS
            each = [in_words(law, place) for place in np.ndindex(shape)] if few else []
            whole = not few or (len(set(each)) == 1 and shape != (1,))
            out |= {site: in_words(law)} if whole else dict(zip(names(site, shape, labels), each, strict=True))
    return out


def told(model: Any) -> list[str]:
    """Give lines on what was made of the data and on the priors."""
    lines = [] if model.labels is None else list(model.labels.notes)
    laws = [f"{name} ~ {law}" for name, law in model.priors.items()]
    if len(laws) > _MOST_LINES:
        laws = [*laws[:_MOST_LINES], f"and {len(laws) - _MOST_LINES:,} more"]
    return [*lines, f"Priors: {'; '.join(laws)}."] if laws else lines
