"""Questions about the laws of sites, and about sites in plates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints


def layers(law: dist.Distribution) -> Iterator[dist.Distribution]:
    """Give the law, and what is inside the layers that `plate`, `expand`, `to_event` and `mask` put around it."""
    yield law
    while isinstance(law, (dist.ExpandedDistribution, dist.Independent, dist.MaskedDistribution)):
        law = law.base_dist
        yield law


def is_masked(law: dist.Distribution) -> bool:
    """Say whether some of its log probabilities may be left out."""
    return any(isinstance(x, dist.MaskedDistribution) for x in layers(law))


def is_improper(law: dist.Distribution) -> bool:
    """Say whether it is flat over its whole support, so that it cannot be drawn from."""
    return any(isinstance(x, dist.ImproperUniform) for x in layers(law))


def kernel(support: constraints.Constraint) -> constraints.Constraint:
    """Give the support of one event, without the layers that `to_event` puts around it."""
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support


def is_observation(site: dict | None) -> bool:
    """Say whether a site is data: observed, and not a `numpyro.factor`, which NumPyro observes too."""
    if site is None or site["type"] != "sample" or not site["is_observed"]:
        return False
    return not any(isinstance(x, dist.Unit) for x in layers(site["fn"]))


def per_member(term: jax.Array, site: dict | None, plate: str) -> jax.Array | None:
    """Sum a site's log probabilities within each member of a plate; None if it is not in the plate."""
    dims = [f.dim for f in site["cond_indep_stack"] if f.name == plate] if site else []
    if not dims or jnp.ndim(term) < -dims[0]:
        return None
    return jnp.sum(jnp.moveaxis(term, dims[0], 0).reshape(term.shape[dims[0]], -1), 1)


def as_categorical(law: dist.Distribution, shape: tuple[int, ...], flat: bool = False) -> dist.Distribution | None:
    """Give a categorical law without the layers that `plate` and `to_event` put around it; None if it is another law.

    `shape` is that of the site's value. With `flat`, all categories are equally likely.
    """
    inner = [*layers(law)][-1]
    if not isinstance(inner, (dist.CategoricalLogits, dist.CategoricalProbs)):
        return None
    logits = jnp.zeros_like(inner.logits) if flat else inner.logits
    return dist.Categorical(logits=jnp.broadcast_to(logits, (*shape, logits.shape[-1])))


def in_numpy(tree: Any) -> Any:
    """Turn JAX arrays into NumPy's, which keep their float64 outside the fit too."""
    return jax.tree.map(lambda x: np.asarray(x) if isinstance(x, jax.Array) else x, tree)
