"""Names: of the numbers in a site's array, and of the laws that a model's priors are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpyro.distributions as dist

_MOST_PRIORS = 1000  # laws of single numbers that are told one by one
_MOST_LINES = 20  # of them in a sentence


@dataclass(frozen=True)
class Labels:
    """What is known of a model's arrays.

    `dims` and `coords` name the axes of sites and the places along them. `log_marginal` of the model is one vector: `blocks`
    says of which observed variables it is made, in its order, and the shape of each one's part. `notes` are sentences on
    what was made of the data.
    """

    dims: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    coords: Mapping[str, Any] = field(default_factory=dict)
    observed: Mapping[str, np.ndarray] = field(default_factory=dict)
    constant: Mapping[str, np.ndarray] = field(default_factory=dict)
    blocks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
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

    Improper and discrete laws are left out: they may stand where a model has its prior elsewhere, in a log density or graph.
    """
    out = {}
    for site, law in laws.items():
        shape = tuple(law.batch_shape) + tuple(law.event_shape)
        each = _in_words(law, shape)
        if len(set(each)) == 1 and shape != (1,):
            out[site] = each[0]
        elif 0 < len(each) <= _MOST_PRIORS:
            out |= dict(zip(names(site, shape, labels), each, strict=True))
        elif each:
            out[site] = f"{each[0]}, {each[1]} and so on: {len(each):,} of them"
    return out


def told(model: Any) -> list[str]:
    """Give lines on what was made of the data and on the priors."""
    lines = [] if model.labels is None else list(model.labels.notes)
    laws = [f"{name} ~ {law}" for name, law in model.priors.items()]
    if len(laws) > _MOST_LINES:
        laws = [*laws[:_MOST_LINES], f"and {len(laws) - _MOST_LINES:,} more"]
    return [*lines, f"Priors: {'; '.join(laws)}."] if laws else lines


def _in_words(law: Any, shape: tuple[int, ...]) -> list[str]:
    """Describe the law of each number, or of all of them together; of none where the law is improper or discrete."""
    while isinstance(law, dist.ExpandedDistribution | dist.Independent | dist.MaskedDistribution):
        law = law.base_dist
    if isinstance(law, dist.ImproperUniform) or law.is_discrete:
        return []
    wanted = _ARGUMENTS.get(type(law))
    if wanted is None:
        return [type(law).__name__]
    values = [np.ravel(np.broadcast_to(np.asarray(getattr(law, name), float), shape)) for name in wanted]
    return [f"{type(law).__name__}({', '.join(f'{x:.4g}' for x in row)})" for row in zip(*values, strict=True)]


_ARGUMENTS: dict[type, tuple[str, ...]] = {
    **dict.fromkeys((dist.Normal, dist.Cauchy, dist.Laplace, dist.Logistic, dist.LogNormal, dist.Gumbel), ("loc", "scale")),
    **dict.fromkeys((dist.HalfNormal, dist.HalfCauchy), ("scale",)),
    dist.StudentT: ("df", "loc", "scale"),
    dist.Exponential: ("rate",),
    **dict.fromkeys((dist.Gamma, dist.InverseGamma), ("concentration", "rate")),
    dist.Beta: ("concentration1", "concentration0"),
    dist.Uniform: ("low", "high"),
}  # fmt: skip
