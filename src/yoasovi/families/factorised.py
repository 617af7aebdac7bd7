"""Products of NumPyro distributions, discrete ones included, each on its own support."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import biject_to, constraints

from yoasovi.errors import positive_number
from yoasovi.families.quantiles import inverse_cdf
from yoasovi.model import Density, Model, Params, Site, local_law


class Factor(Protocol):
    """One independent part of q: the law of one site."""

    def init(self, site: Site, prior: dist.Distribution, start: jax.Array | None) -> Params:
        """Give the parameters to begin with."""
        ...

    def law(self, params: Params) -> dist.Distribution:
        """Give the distribution that draws come from."""
        ...

    def log_prob(self, params: Params, value: jax.Array) -> jax.Array:
        """Give log q, elementwise: its derivative is the score."""
        ...

    def project(self, params: Params) -> Params:
        """Bring parameters back to where they are valid."""
        ...

    def widen(self, params: Params, factor: float) -> Params:
        """Give the parameters of q^(1/factor)."""
        ...


@dataclass(frozen=True)
class Law:
    """Any NumPyro distribution; its arguments are optimised on their unconstrained scale."""

    distribution: type[dist.Distribution]

    def _constraint(self, name: Any) -> Any:
        return self.distribution.arg_constraints[name]

    def init(self, site: Any, prior: Any, start: Any) -> Any:
        shapes = {name: site.shape for name in self.distribution.arg_constraints}
        if self.distribution is dist.CategoricalLogits:
            return {"logits": np.zeros((*site.shape, _num_categories(prior)))}
        free = {k: np.zeros(biject_to(self._constraint(k)).inverse_shape(s)) for k, s in shapes.items()}
        if start is not None and self.distribution in (dist.Normal, dist.LogNormal):
            free["loc"] = np.log(start) if self.distribution is dist.LogNormal else np.asarray(start, float)
        if "scale" in free:
            free["scale"] = free["scale"] - 1.0
        return free

    def law(self, params: Any) -> Any:
        return self.distribution(**{k: biject_to(self._constraint(k))(x) for k, x in params.items()})

    def log_prob(self, params: Any, value: Any) -> Any:
        if self.distribution is dist.BernoulliLogits:  # NumPyro's has a kink at 0, where fits begin
            log_odds = params["logits"]
            return jnp.where(value == 1, jax.nn.log_sigmoid(log_odds), jax.nn.log_sigmoid(-log_odds))
        return self.law(params).log_prob(value)

    def project(self, params: Any) -> Any:
        return params

    def widen(self, params: Any, factor: Any) -> Any:
        if self.distribution in (dist.Normal, dist.LogNormal):
            return {**params, "scale": params["scale"] + 0.5 * jnp.log(factor)}
        if self.distribution in (dist.CategoricalLogits, dist.BernoulliLogits):
            return {"logits": params["logits"] / factor}
        raise TypeError(f"Overdispersed draws are known for Normal and discrete factors, not {self.distribution.__name__}.")


@dataclass(frozen=True)
class PaperNormal:
    """The paper's raw Gaussian: mean and variance are optimised as they are, the variance clipped after each step."""

    low: float = 0.01
    high: float = 1000.0

    def __post_init__(self) -> None:
        positive_number("low", "PaperNormal", self.low)
        positive_number("high", "PaperNormal", self.high)

    def init(self, site: Any, prior: Any, start: Any) -> Any:
        mean = np.zeros(site.shape) if start is None else np.asarray(start, float)
        return {"mean": mean, "variance": np.ones(site.shape)}

    def law(self, params: Any) -> Any:
        return dist.Normal(params["mean"], jnp.sqrt(params["variance"]))

    def log_prob(self, params: Any, value: Any) -> Any:
        return self.law(params).log_prob(value)

    def project(self, params: Any) -> Any:
        return {**params, "variance": jnp.clip(params["variance"], self.low, self.high)}

    def widen(self, params: Any, factor: Any) -> Any:
        return {**params, "variance": params["variance"] * factor}


@dataclass(frozen=True)
class PaperCategorical:
    """The paper's raw Categorical: probabilities as they are, floored and renormalised after each step.

    Its score is z/phi, without the term that keeps probabilities summing to one: the projection does that.
    """

    floor: float = 0.01

    def __post_init__(self) -> None:
        positive_number("floor", "PaperCategorical", self.floor)

    def init(self, site: Any, prior: Any, start: Any) -> Any:
        k = _num_categories(prior)
        return {"probs": np.full((*site.shape, k), 1.0 / k)}

    def law(self, params: Any) -> Any:
        return dist.CategoricalProbs(params["probs"])

    def log_prob(self, params: Any, value: Any) -> Any:
        return jnp.log(jnp.take_along_axis(params["probs"], value[..., None], -1)[..., 0])

    def project(self, params: Any) -> Any:
        probs = jnp.maximum(params["probs"], self.floor)
        return {"probs": probs / jnp.sum(probs, -1, keepdims=True)}

    def widen(self, params: Any, factor: Any) -> Any:
        probs = params["probs"] ** (1.0 / factor)
        return {"probs": probs / jnp.sum(probs, -1, keepdims=True)}


@dataclass(frozen=True)
class Factorised:
    """q = product over sites of independent laws; `factors` maps site names to a `Factor`, in a tuple of pairs.

    Sites that are not named get the law that suits their support (see `factor_for`).
    """

    factors: tuple[tuple[str, Any], ...] = ()
    name: ClassVar[str] = "factorised"

    def __post_init__(self) -> None:
        if isinstance(self.factors, Mapping):  # hashable, so that a family built again hits the compiled program
            object.__setattr__(self, "factors", tuple(self.factors.items()))

    def complete(self, model: Model) -> Factorised:
        """Choose a law for every site that has none yet."""
        given = dict(self.factors)
        sites = (*model.density.sites, *model.density.local_sites)
        if unknown := set(given) - {s.name for s in sites}:
            raise ValueError(f"`factors` of `Factorised` names {sorted(unknown)}; the model has {[s.name for s in sites]}.")
        for site in sites:
            if site.name not in given:
                given[site.name] = factor_for(site.name, _prior_of(model, site))
        return Factorised(tuple((s.name, given[s.name]) for s in sites))

    def init(self, model: Model, start: Params) -> dict[str, Params]:
        sites = {s.name: s for s in (*model.density.sites, *model.density.local_sites)}
        return {k: f.init(sites[k], _prior_of(model, sites[k]), start.get(k)) for k, f in self.factors}

    def _sites(self, density: Density) -> Any:
        return {s.name: s for s in (*density.sites, *density.local_sites)}

    def noise_size(self, density: Any) -> Any:
        return sum(_size(s) for s in self._sites(density).values())

    def noise(self, points: Any) -> Any:
        return points

    def uniform(self, noise: Any) -> Any:
        return noise

    def draw(self, density: Any, params: Any, noise: Any) -> Any:
        """Turn rows of uniform noise into draws, by site."""
        return jax.vmap(lambda u: self._draw(density, params, u))(noise)

    def _draw(self, density: Any, params: Any, uniform: Any) -> Any:
        theta, start = {}, 0
        for name, site in self._sites(density).items():
            u = uniform[start : start + _size(site)].reshape(site.shape)
            theta[name] = inverse_cdf(dict(self.factors)[name].law(params[name]), u)
            start += _size(site)
        return theta

    def terms(self, density: Any, inputs: Any, theta: Any) -> Any:
        return density.terms(inputs, theta)

    def pieces(self, density: Any, params: Any, theta: Any) -> Any:
        return jax.vmap(lambda x: {k: f.log_prob(params[k], x[k]) for k, f in self.factors})(theta)

    def project(self, params: Any) -> Any:
        return {k: f.project(params[k]) for k, f in self.factors}

    def widen(self, params: Any, factor: Any) -> Any:
        return {k: f.widen(params[k], factor) for k, f in self.factors}

    def lines_pay(self, dim: Any) -> Any:
        return False

    def bend(self, dim: Any) -> Any:
        return 1.5

    def lines_last(self) -> Any:
        return False

    def line_size(self, dim: Any) -> Any:
        return 0

    def longest_line(self, dim: Any) -> Any:
        return 0

    def longest_first_step(self, dim: Any) -> Any:
        return 1.0


def factor_for(name: str, prior: dist.Distribution) -> Law:
    """Choose the law that suits a site's support."""
    support = prior.support
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    for known, law in (
        (constraints.real, dist.Normal),
        (constraints.positive, dist.LogNormal),
        (constraints.unit_interval, dist.Beta),
        (constraints.simplex, dist.Dirichlet),
        (constraints.boolean, dist.BernoulliLogits),
        (constraints.nonnegative_integer, dist.Poisson),
    ):
        if support is known or support == known:
            return Law(law)
    base = prior
    while isinstance(base, (dist.Independent, dist.ExpandedDistribution)):
        base = base.base_dist
    if isinstance(base, (dist.CategoricalLogits, dist.CategoricalProbs)):
        return Law(dist.CategoricalLogits)
    if support.is_discrete:
        raise ValueError(
            f"`Factorised` has no law for discrete site {name!r} with support {support}. Write it as a Categorical, whose "
            "values count from 0, and add to it in the model what it begins at, as in 1 + Categorical."
        )
    raise ValueError(
        f"`Factorised` has no default law for site {name!r} with support {support}; give one: "
        f"Factorised({{{name!r}: Law(...)}}), or use a Gaussian family if every site is continuous."
    )


def _prior_of(model: Model, site: Site) -> dist.Distribution:
    if site.name in model.prior:
        return model.prior[site.name]
    ones = {s.name: np.ones(s.shape) for s in model.density.sites}
    return local_law(model.local[site.name], ones)


def _num_categories(prior: Any) -> int:
    while not isinstance(prior, (dist.CategoricalLogits, dist.CategoricalProbs)):
        prior = prior.base_dist
    return (prior.probs if isinstance(prior, dist.CategoricalProbs) else prior.logits).shape[-1]


def _size(site: Site) -> int:
    size = 1
    for n in site.shape:
        size *= n
    return size
