"""Charts: coordinates in which a family can be fitted to values of log p alone.

The global sites of a chart have features t(theta), of mean zero and variance one under q. A Normal has its noise
e, and e^2 - 1 besides; any other law has the scores of its unconstrained parameters, over their standard deviations.
Regressing log p - log q on the scores gives (E[s s'])^-1 E[s (log p - log q)]: the coefficients are the natural gradient.
Local discrete sites have a table of log probabilities instead, one row per observation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree
from jax.scipy.special import polygamma

from yoasovi.families.factorised import Factorised, Law, PaperCategorical, PaperNormal
from yoasovi.model import Density, Inputs, Site, local_law


class Chart(NamedTuple):
    """What values need to know of a family; lives inside a trace only."""

    blocks: dict[str, Any]  # by global site
    labels: dict[str, Any]  # the factors of the local sites
    normal: np.ndarray  # (P,) is this feature the noise of a Normal?
    element: np.ndarray  # (P,) which independent part of q it belongs to

    def features(self, params: Any, theta: Any) -> jax.Array:
        """Give t(theta), shape (P,)."""
        parts = [b.features(params[k], theta[k]) for k, b in self.blocks.items()]
        return jnp.concatenate(parts) if parts else jnp.zeros(0)

    def move(self, params: Any, shift: jax.Array, stretch: jax.Array, limit: jax.Array) -> Any:
        """Shift along t and stretch Normals by exp(stretch); a parameter of another law moves `limit` at most."""
        start = 0
        for key, block in self.blocks.items():
            part = slice(start, start + block.size)
            params = {**params, key: block.move(params[key], shift[part], stretch[part], limit)}
            start += block.size
        return params

    def log_probs(self, params: Any) -> dict[str, jax.Array]:
        """Give the (N, K) log probabilities of every local site."""
        return {k: _log_probs(factor, params[k]) for k, factor in self.labels.items()}

    def with_log_probs(self, params: Any, log_probs: dict[str, jax.Array]) -> Any:
        """Give `params` with other probabilities of the local sites."""
        return {**params, **{k: _from_log_probs(self.labels[k], x) for k, x in log_probs.items()}} if log_probs else params


def chart(density: Density, family: Any, inputs: Inputs) -> Chart | None:
    """Give the chart of a family, or None if it has none."""
    if not isinstance(family, Factorised):
        return None
    factors = dict(family.factors)
    labels = {s.name: factors[s.name] for s in density.local_sites}
    blocks = {s.name: _block(factors[s.name], s, inputs.prior[s.name]) for s in density.sites}
    if None in blocks.values() or not all(map(_is_labels, labels.values())):
        return None
    normal = [np.full(b.size, isinstance(b, Normals)) for b in blocks.values()]
    element, first = [], 0
    for block in blocks.values():
        element.append(first + block.element)
        first = element[-1].max(initial=first - 1) + 1
    return Chart(blocks, labels, np.concatenate(normal), np.concatenate(element))


def num_labels(density: Density, family: Any, inputs: Inputs) -> dict[str, int]:
    """How many values each local site can take."""
    sizes = {}
    ones = {s.name: np.ones(s.shape) for s in density.sites}
    for site in density.local_sites:
        factor, law = dict(family.factors)[site.name], local_law(inputs.local[site.name], ones)
        sizes[site.name] = jax.eval_shape(lambda f=factor, s=site, p=law: _log_probs(f, f.init(s, p, None))).shape[-1]
    return sizes


@dataclass(frozen=True)
class Normals:
    """Independent Normals, of the site or of its logarithm."""

    factor: Any
    shape: tuple[int, ...]

    @property
    def size(self) -> Any:
        return int(np.prod(self.shape))

    @property
    def element(self) -> Any:
        return np.arange(self.size)

    def features(self, params: Any, theta: Any) -> Any:
        law = self.factor.law(params)
        x = jnp.log(theta) if isinstance(law, dist.LogNormal) else theta
        return jnp.ravel((x - law.loc) / law.scale)

    def move(self, params: Any, shift: Any, stretch: Any, limit: Any) -> Any:
        shift, stretch, scale = shift.reshape(self.shape), stretch.reshape(self.shape), self.factor.law(params).scale
        if isinstance(self.factor, PaperNormal):
            variance = params["variance"] * jnp.exp(2.0 * stretch)
            return self.factor.project({"mean": params["mean"] + scale * shift, "variance": variance})
        return {"loc": params["loc"] + scale * shift, "scale": params["scale"] + stretch}


@dataclass(frozen=True)
class ScoreFeatures:
    """Any other law: its scores, in units of their standard deviations."""

    factor: Law
    shapes: tuple[tuple[str, tuple[int, ...]], ...]  # of the unconstrained parameters
    batch: tuple[int, ...]  # of independent elements

    @property
    def size(self) -> Any:
        return sum(int(np.prod(shape)) for _, shape in self.shapes)

    @property
    def element(self) -> Any:
        count = int(np.prod(self.batch))
        return np.concatenate([np.repeat(np.arange(count), int(np.prod(shape)) // count) for _, shape in self.shapes])

    def features(self, params: Any, theta: Any) -> Any:
        score = jax.grad(lambda p: jnp.sum(self.factor.log_prob(p, theta)))(params)
        return ravel_pytree(score)[0] / self._deviation(params)

    def move(self, params: Any, shift: Any, stretch: Any, limit: Any) -> Any:
        flat, back = ravel_pytree(params)
        return back(flat + jnp.clip(shift / self._deviation(params), -limit, limit))

    def _deviation(self, params: Any) -> Any:
        law = self.factor.law(params)
        return jnp.sqrt(jnp.maximum(ravel_pytree(_FISHER[self.factor.distribution](law))[0], 1e-12))


def _concentrations(*names: Any) -> Any:
    """Fisher information of the logarithms of the concentrations of a Beta or Dirichlet."""

    def fisher(law: Any) -> Any:
        each = jnp.stack([getattr(law, n) for n in names], -1) if len(names) > 1 else getattr(law, names[0])
        found = each**2 * (polygamma(1, each) - polygamma(1, jnp.sum(each, -1, keepdims=True)))
        return {n: found[..., i] for i, n in enumerate(names)} if len(names) > 1 else {names[0]: found}

    return fisher


# Fisher information of each unconstrained parameter, by law.
_FISHER = {
    dist.BernoulliLogits: lambda law: {"logits": law.probs * (1.0 - law.probs)},
    dist.CategoricalLogits: lambda law: {"logits": law.probs * (1.0 - law.probs)},
    dist.Poisson: lambda law: {"rate": law.rate},
    dist.Exponential: lambda law: {"rate": jnp.ones_like(law.rate)},
    dist.Gamma: lambda law: {
        "concentration": law.concentration**2 * polygamma(1, law.concentration),
        "rate": jnp.broadcast_to(law.concentration, jnp.shape(law.rate)),
    },
    dist.Beta: _concentrations("concentration0", "concentration1"),
    dist.Dirichlet: _concentrations("concentration"),
}


def _block(factor: Any, site: Site, prior: dist.Distribution) -> Any:
    distribution = getattr(factor, "distribution", None)
    if isinstance(factor, PaperNormal) or distribution in (dist.Normal, dist.LogNormal):
        return Normals(factor, site.shape)
    if distribution not in _FISHER:
        return None
    params = jax.eval_shape(lambda: factor.init(site, prior, None))
    batch = site.shape[:-1] if distribution is dist.Dirichlet else site.shape
    return ScoreFeatures(factor, tuple((k, params[k].shape) for k in sorted(params)), batch)


def _is_labels(factor: Any) -> bool:
    discrete = (dist.CategoricalLogits, dist.BernoulliLogits)
    return isinstance(factor, PaperCategorical) or getattr(factor, "distribution", None) in discrete


def _log_probs(factor: Any, params: Any) -> Any:
    if isinstance(factor, PaperCategorical):
        return jnp.log(params["probs"])
    logits = params["logits"]
    if factor.distribution is dist.BernoulliLogits:
        return jnp.stack([jax.nn.log_sigmoid(-logits), jax.nn.log_sigmoid(logits)], -1)
    return jax.nn.log_softmax(logits, -1)


def _from_log_probs(factor: Any, log_probs: Any) -> Any:
    if isinstance(factor, PaperCategorical):
        return factor.project({"probs": jnp.exp(log_probs)})
    if factor.distribution is dist.BernoulliLogits:
        return {"logits": log_probs[..., 1] - log_probs[..., 0]}
    return {"logits": log_probs}
