"""The static half of a model: its sites, and the terms of log p at given parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import Distribution, biject_to

from yoasovi.model.centring import Centring
from yoasovi.model.minibatch import Batch, estimated
from yoasovi.model.sums import SummedRows, wide_total

Params = dict[str, Any]  # arrays by site, of JAX or of NumPy


class Site(NamedTuple):
    """What is static about one random variable: its shape on its own and on the unconstrained scale."""

    name: str
    shape: tuple[int, ...]
    free_shape: tuple[int, ...]
    discrete: bool


class Inputs(NamedTuple):
    """Everything of a model that may change without compiling again."""

    prior: dict[str, Distribution]
    local: dict[str, Any]
    data: Any


class Terms(NamedTuple):
    """log p(y, theta), kept apart so that differences can be taken term by term before they are summed."""

    prior: dict[str, jax.Array]  # one number per global site, Jacobian included where there is one
    local: dict[str, jax.Array]  # (N,) per local site
    likelihood: jax.Array  # (N,)

    def total(self) -> jax.Array:
        return total(self)


def total(tree: Any) -> jax.Array:
    """Sum all entries of all arrays."""
    return sum((jnp.sum(x) for x in jax.tree.leaves(tree)), jnp.asarray(0.0))


class Density(NamedTuple):
    """The static half of a model, hashable: with `Inputs` it can be evaluated inside a compiled program.

    `subsampled` is there inside a fit by minibatches only; what is said of the fit afterwards is about all the data.
    """

    log_likelihood: Callable[..., Any]
    sites: tuple[Site, ...]
    local_sites: tuple[Site, ...]
    num_observations: int
    differentiable: bool
    width: int = 1  # numbers in the largest array that one look makes
    subsampled: Callable[..., Any] | None = None
    centring: Centring | None = None  # of the sites that are not centred, if there are any

    @property
    def dim(self) -> int:
        """Length of the flat unconstrained vector of all global sites."""
        return sum(int(np.prod(s.free_shape)) for s in self.sites)

    def split(self, flat: Any) -> dict[str, Any]:
        """Cut flat vectors (..., d) into one unconstrained array per global site."""
        parts, start = {}, 0
        for site in self.sites:
            size = int(np.prod(site.free_shape))
            parts[site.name] = flat[..., start : start + size].reshape((*flat.shape[:-1], *site.free_shape))
            start += size
        return parts

    def constrain(self, inputs: Inputs, flat: jax.Array) -> tuple[Params, Params]:
        """Map a flat vector to the sites' own supports; also the log Jacobian of each site, log p of a non-centred one."""
        free, transforms = self.split(flat), self._transforms(inputs)
        own: Params = {}
        if self.centring is not None:
            free, own = self.centring.outward(free, transforms, inputs.data)
        params = {k: transforms[k](x) for k, x in free.items()}
        jacobian = lambda k: jnp.sum(transforms[k].log_abs_det_jacobian(free[k], params[k]))
        return params, {k: own[k] if k in own else jacobian(k) for k in free}

    def inward(self, inputs: Inputs, free: Params) -> jax.Array:
        """Give the flat vector of a point that is on the unconstrained scale of the sites' own supports."""
        if self.centring is not None:
            free = self.centring.inward(free, self._transforms(inputs), inputs.data)
        return jnp.concatenate([jnp.ravel(free[s.name]) for s in self.sites])

    def _transforms(self, inputs: Inputs) -> dict[str, Any]:
        return {s.name: biject_to(inputs.prior[s.name].support) for s in self.sites}

    def terms(self, inputs: Inputs, params: Params, likelihood: jax.Array | None = None) -> Terms:
        """Evaluate the terms of log p(y, theta) at parameters on their own supports; the likelihood's may be given."""
        prior = {s.name: jnp.sum(inputs.prior[s.name].log_prob(params[s.name])) for s in self.sites}
        local = {s.name: local_law(inputs.local[s.name], params).log_prob(params[s.name]) for s in self.local_sites}
        return Terms(prior, local, self.log_likelihood(params, inputs.data) if likelihood is None else likelihood)

    def free_terms(self, inputs: Inputs, flat: jax.Array, batch: Batch | None = None) -> Terms:
        """Evaluate the terms at a flat unconstrained vector, with the Jacobians of the transforms."""
        params, jacobian = self.constrain(inputs, flat)
        likelihood = None
        if batch is not None:
            rows = lambda x: self.subsampled(batch.key, self.constrain(inputs, x)[0], inputs.data)  # type: ignore[misc]
            likelihood = estimated(rows, flat, batch.anchor)
        terms = self.terms(inputs, params, likelihood)
        return terms._replace(prior={k: v + jacobian[k] for k, v in terms.prior.items()})

    def totals(self, inputs: Inputs, flat: jax.Array) -> jax.Array:
        """Give log p of all the data at flat vectors (n, d): (n, 2), the second what rounding left of the first."""
        if isinstance(self.log_likelihood, SummedRows) and not self.local_sites:
            params, jacobian = jax.vmap(lambda x: self.constrain(inputs, x))(flat)
            likelihood = self.log_likelihood.totals(params, inputs.data)
            if likelihood is not None:
                total = lambda own, *parts: wide_total((self.terms(inputs, *parts), own))
                return jax.vmap(total)(jacobian, params, likelihood)
        return jax.vmap(lambda x: wide_total(self.free_terms(inputs, x)))(flat)

    def whole_likelihood(self, inputs: Inputs, flat: jax.Array) -> jax.Array:
        """Give the log likelihood of all the data."""
        return jnp.sum(self.log_likelihood(self.constrain(inputs, flat)[0], inputs.data))


@jax.tree_util.register_static
@dataclass(frozen=True)
class Rule:
    """The law of a local latent as a function of the global parameters; static, unlike a fixed law."""

    fn: Callable[[Params], Distribution]

    def __call__(self, params: Params) -> Distribution:
        return self.fn(params)


def local_law(law: Distribution | Callable[[Params], Distribution], params: Params) -> Distribution:
    """Give the prior of a local latent: fixed, or a function of the global parameters."""
    return law if isinstance(law, Distribution) else law(params)


def widest(jaxpr: Any) -> int:
    """Give the size of the largest array that a program makes, its inner programs included."""
    size = 1
    for equation in jaxpr.eqns:
        inner = [x for x in jax.tree.leaves(list(equation.params.values()), is_leaf=_is_program) if _is_program(x)]
        made = (int(np.prod(v.aval.shape)) for v in equation.outvars)
        size = max([size, *made, *(widest(getattr(x, "jaxpr", x)) for x in inner)])
    return size


def _is_program(x: Any) -> bool:
    return hasattr(x, "eqns") or hasattr(x, "jaxpr")
