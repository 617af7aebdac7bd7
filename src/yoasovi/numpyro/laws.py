"""Questions about the laws of sites, and about sites in plates."""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints

_MADE = (dist.Distribution, constraints.Constraint, dist.transforms.Transform)
_PLAIN = (bool, int, float, str, type(None), np.ndarray, np.generic, jax.Array, weakref.ref)  # the last: inverses


def layers(law: dist.Distribution) -> Iterator[dist.Distribution]:
    """Give the law, and what is inside the layers that `plate`, `expand`, `to_event` and `mask` put around it."""
    yield law
    while isinstance(law, (dist.ExpandedDistribution, dist.Independent, dist.MaskedDistribution)):
        law = law.base_dist
        yield law


def is_masked(law: dist.Distribution) -> bool:
    """Say whether some of its log probabilities may be left out."""
    return any(isinstance(x, dist.MaskedDistribution) for x in layers(law))


def masks(law: dist.Distribution) -> tuple[tuple[Any, int], ...]:
    """Give the masks around a law, outermost first, each with the number of axes of the events that it is for."""
    return tuple((x._mask, x.event_dim) for x in layers(law) if isinstance(x, dist.MaskedDistribution))


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
    return site is not None and site["type"] == "sample" and site["is_observed"] and not is_factor(site)


def is_factor(site: dict) -> bool:
    """Say whether a sampled site is a `numpyro.factor`."""
    return any(isinstance(x, dist.Unit) for x in layers(site["fn"]))


def member_dim(term: Any, site: dict | None, plate: str) -> int | None:
    """Give the axis of a site's log probabilities that is a plate's; None if it is not in the plate."""
    dims = [f.dim for f in site["cond_indep_stack"] if f.name == plate] if site else []
    return dims[0] if dims and np.ndim(term) >= -dims[0] else None


def per_member(term: jax.Array, site: dict | None, plate: str) -> jax.Array | None:
    """Sum a site's log probabilities within each member of a plate; None if it is not in the plate."""
    dim = member_dim(term, site, plate)
    return None if dim is None else jnp.sum(jnp.moveaxis(term, dim, 0).reshape(term.shape[dim], -1), 1)


def is_one(scale: Any) -> bool:
    """Say whether a site's log probability is not scaled."""
    return scale is None or (not isinstance(scale, jax.core.Tracer) and bool(np.all(np.asarray(scale) == 1)))


def can_be_rebuilt(law: dist.Distribution, value: jax.Array, varies: Callable[[Any], bool]) -> bool:
    """Say whether a law can be taken apart and put together again by JAX, and no part of it `varies`."""
    if is_plain(law):
        return not varies([*contents(law)])
    like = jax.ShapeDtypeStruct(value.shape, value.dtype)
    try:
        own, again = (jax.make_jaxpr(x.log_prob)(like) for x in (law, jax.tree.map(lambda x: x, law)))
    except Exception:  # for want of parts that JAX does not see
        return False
    program = lambda x: re.sub("0x[0-9a-f]+", "", str(x.jaxpr))  # where in memory its functions are does not count
    same = program(own) == program(again) and all(map(_is_same, own.consts, again.consts))
    return same and not varies((law, own.consts))


def _is_same(x, y) -> bool:
    return x is y or (not any(isinstance(z, jax.core.Tracer) for z in (x, y)) and np.array_equal(x, y, equal_nan=True))


def can_be_drawn(law: dist.Distribution) -> bool:
    """Say whether there are draws of a law."""
    inner = (x for x in contents(law) if isinstance(x, dist.Distribution))
    if is_plain(law) and all(type(x).sample is not dist.Distribution.sample for x in inner):
        return True
    try:
        jax.eval_shape(lambda: law.sample(jax.random.key(0), (2,)))
    except Exception:
        return False
    return True


def is_plain(law: dist.Distribution) -> bool:
    """Say whether a law is made of NumPyro's own parts, numbers and arrays, and of nothing else, such as functions."""
    known = lambda x: type(x).__module__.startswith("numpyro.") if isinstance(x, _MADE) else isinstance(x, _PLAIN)
    return all(map(known, contents(law)))


def contents(x: Any) -> Iterator[Any]:
    """Give all that a law is made of, and that its parts are made of."""
    held = isinstance(x, (dict, list, tuple))
    if not held:
        yield x
    for y in x.values() if isinstance(x, dict) else x if held else vars(x).values() if isinstance(x, _MADE) else ():
        yield from contents(y)


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
