"""Looks at a model function: runs that show its sites, which depend on which, and which are local."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro import validation_enabled
from numpyro.handlers import seed, substitute
from numpyro.infer.initialization import init_to_uniform

from yoasovi.model.model import Params
from yoasovi.numpyro.laws import is_improper, is_masked, layers, per_member
from yoasovi.numpyro.plates import WholePlates, takes_part
from yoasovi.numpyro.replay import Source

_MOST_CHOICES = 100  # values of the local latents of one observation that are summed over for DIC and LOO


class Look(NamedTuple):
    """What one run of the model function showed."""

    sites: dict[str, dict]
    log_probs: dict[str, jax.Array]
    latents: tuple[str, ...]

    @property
    def values(self) -> Params:
        """The latent sites' values."""
        return {k: jnp.asarray(self.sites[k]["value"]) for k in self.latents}


def look_once(source: Source, key, anywhere=lambda law: not law.support.is_discrete) -> Look:
    """Run the model once, with values for the latent sites.

    Those for whose law `anywhere` is true go anywhere in their support, uniformly on the unconstrained scale; the
    others are drawn from their law.
    """
    fixed, uniform = set(), init_to_uniform()

    def begin(site):
        if site["type"] != "sample" or site["is_observed"]:
            return None
        name, law = site["name"], site["fn"]
        if site["value"] is not None:  # by `handlers.substitute`
            fixed.add(name)
            return None
        if any(isinstance(x, dist.Delta) for x in layers(law)):
            raise ValueError(f"Site {name!r} of the NumPyro model has a Delta law; use `numpyro.deterministic` for it.")
        if is_improper(law) and law.support.is_discrete:
            raise ValueError(
                f"Site {name!r} of the NumPyro model is discrete and has an improper prior; "
                "give it a proper one, such as Categorical, Bernoulli or Poisson."
            )
        return uniform(site) if anywhere(law) else None

    log_probs, sites = source._replace(fn=substitute(seed(source.fn, key), substitute_fn=begin)).log_probs({})
    latents = (k for k, s in sites.items() if s["type"] == "sample" and not s["is_observed"] and k not in fixed)
    return Look(sites, log_probs, tuple(latents))


def in_full(source: Source, look: Look) -> tuple[Source, Look, dict[str, str]]:
    """Give the model with its plates in full, a look at it, and how to name the plates that take a subsample, if any."""
    plates = {k: s["args"] for k, s in look.sites.items() if s["type"] == "plate"}
    plates = {k: x for k, x in plates.items() if takes_part(*x)}
    if not plates:
        return source, look, {}
    whole = source._replace(fn=WholePlates(source.fn))
    named = {k: f"{k!r} ({part:,} of {size:,})" for k, (size, part) in plates.items()}
    try:
        look = look_once(whole, 0)
    except Exception as error:
        raise ValueError(
            f"Plate {', '.join(named.values())} of the NumPyro model takes a subsample, and the model fails with the plate "
            "in full: give it all the data, and take the batch by the plate's indices or by `numpyro.subsample`. For a "
            f"model that is given one batch at a time use `yoasovi.numpyro.YOASOVI` with a guide. ({error})"
        ) from error
    return whole, look, named


@dataclass(frozen=True, eq=False)
class PriorDraw:
    """A start from the prior; sites with an improper one go anywhere in their support."""

    source: Source

    def __call__(self, key):
        """Draw it."""
        with validation_enabled(False):
            return look_once(self.source, key, is_improper).values


def touched(source: Source, points: list[Params], given: Params | None = None) -> tuple[set[str], set[str], set[str]]:
    """Name the latent sites whose law, those whose support, and all sites whose log probability depends on `points`.

    `points` are values of latent sites, the others being `given`. Under `vmap` over them, exactly what depends on
    them is a tracer.
    """
    laws, supports, terms = set(), set(), set()
    traced = lambda tree: any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(tree))

    def probe(values):
        log_probs, sites = source.log_probs({**(given or {}), **values})
        laws.update(k for k in values if traced((sites[k]["fn"], sites[k]["scale"])))
        supports.update(k for k in values if traced(sites[k]["fn"].support))
        terms.update(k for k in log_probs if traced(log_probs[k]))
        return ()

    try:
        jax.vmap(probe)(jax.tree.map(lambda *x: jnp.stack(x), *points))
    except (TypeError, IndexError) as error:
        raise ValueError(
            "The NumPyro model's Python code depends on the value of a latent site (in an `if`, a shape or NumPy), "
            f"which cannot be compiled; use jnp.where or jax.lax instead: {error}"
        ) from error
    return laws, supports, terms


def find_local(source: Source, looks: tuple[Look, Look]) -> tuple[tuple[str, ...], str | None]:
    """Find the discrete sites of which every member of a plate has one, independently of the others given the rest.

    Gives their names and that of their plate; nothing and None if there are no such sites.
    """
    first, second = looks
    frames = {k: first.sites[k]["cond_indep_stack"] for k in first.latents if first.sites[k]["fn"].is_discrete}
    names = tuple(k for k, f in frames.items() if len(f) == 1 and _is_plain_member(first, k, f[0].size))
    names = tuple(k for k in names if frames[k] == frames[names[0]])
    if not names:
        return (), None
    plate, given = frames[names[0]][0].name, {k: v for k, v in first.values.items() if k not in names}
    laws, _, terms = touched(source, [{k: x.values[k] for k in names} for x in looks], given)
    inside = [k for k in terms if per_member(first.log_probs[k], first.sites[k], plate) is not None]
    if laws or len(inside) < len(terms):  # a chain, or a term outside the plate that depends on its members
        return (), None
    # A plate is a promise that its members are independent; see that the first is when all others change.
    others = {k: jnp.concatenate([first.values[k][:1], second.values[k][1:]]) for k in names}
    again, _ = source.log_probs({**first.values, **others})
    own = lambda terms: [float(jnp.asarray(per_member(terms[k], first.sites[k], plate))[0]) for k in inside]
    return (names, plate) if np.allclose(own(first.log_probs), own(again), equal_nan=True) else ((), None)


def _is_plain_member(look: Look, name: str, size: int) -> bool:
    site, log_prob = look.sites[name], look.log_probs[name]
    plain = site["scale"] is None and not is_masked(site["fn"])
    return size > 1 and plain and np.shape(site["value"]) == np.shape(log_prob) == (size,)


def find_choices(look: Look, local: tuple[str, ...], plate: str | None) -> tuple[dict[str, Any], ...]:
    """List all values of the local latents of one observation; none if too many, or if it has continuous latents too."""
    laws = [[*layers(look.sites[k]["fn"])][-1] for k in local]
    others = [k for k in look.latents if k not in local]
    mixed = any(f.name == plate for k in others for f in look.sites[k]["cond_indep_stack"])
    if not local or mixed or not all(x.has_enumerate_support for x in laws):
        return ()
    values = [np.ravel(x.enumerate_support(expand=False)) for x in laws]
    if np.prod([len(x) for x in values]) > _MOST_CHOICES:
        return ()
    return tuple(dict(zip(local, x, strict=True)) for x in itertools.product(*values))
