"""Looks at a model function: runs that show its sites, which depend on which, and which are local."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.core import Tracer
from numpyro import validation_enabled
from numpyro.distributions import biject_to
from numpyro.handlers import seed, substitute
from numpyro.infer.initialization import init_to_uniform
from numpyro.infer.util import helpful_support_errors

from yoasovi.model import Params
from yoasovi.numpyro.frames import frame_of
from yoasovi.numpyro.laws import (
    can_be_rebuilt,
    in_numpy,
    is_improper,
    is_masked,
    is_observation,
    is_one,
    layers,
    masks,
    member_dim,
    per_member,
)  # fmt: skip
from yoasovi.numpyro.plates import WholePlates, takes_part
from yoasovi.numpyro.replay import Source

_LATER = object()  # the place of an array that is yet to be computed


@dataclass(frozen=True)
class Look:
    """What one run of the model function showed."""

    sites: dict[str, dict]
    log_probs: dict[str, Any]
    latents: tuple[str, ...]

    @property
    def values(self) -> Params:
        """The latent sites' values."""
        return {k: jnp.asarray(self.sites[k]["value"]) for k in self.latents}


class Range(NamedTuple):
    """Where the law of an observation allows its values to be, and its masks."""

    support: Any
    masks: tuple[tuple[Any, int], ...]


@dataclass(frozen=True)
class Outline(Look):
    """What a run showed that was only traced.

    What no latent site touches is known in numbers, in the laws and supports of latent sites, in observations, their
    supports and masks, and in what `numpyro.param` and mutable sites hold. Of all else a `ShapeDtypeStruct` is left.
    """

    source: Source  # with arguments as they can be traced
    supports: dict[str, Any]  # of latent sites
    ranges: dict[str, Range]  # of observations
    free_shapes: dict[str, tuple[int, ...]]  # of continuous latent sites, unconstrained
    own: frozenset[str]  # latent sites whose log probability is that of a law which no latent site touches
    moved: frozenset[str]  # latent sites whose support depends on latent sites
    shifting: frozenset[str]  # deterministic sites that do
    touched: frozenset[str]  # all sites whose log probability depends on latent sites
    frames: dict[str, bool]  # latent sites of location and scale that latent sites touch, and whether the law is a joint one
    constants: tuple[Any, ...]  # arrays that came with the model function

    @property
    def discrete(self) -> tuple[str, ...]:
        """The latent sites that are discrete."""
        return tuple(k for k in self.latents if self.supports[k].is_discrete)


def look_at(source: Source, names: tuple[str, ...] | None = None) -> Outline:
    """Trace the model once, to see what depends on its latent sites, or on those of the `names` alone."""
    return _with_numbers(*_trace(source, names))


def _trace(source: Source, names: tuple[str, ...] | None = None, terms: bool = True) -> tuple[dict[str, Any], Any]:
    """Give what a traced run shows, and the traced function that computes the numbers still missing in it."""
    with compiling(source):
        try:
            return _trace_as_it_is(source, names, terms)
        except (TypeError, IndexError) as error:
            # NumPy's arrays do not take the indices of a plate, which are JAX's; JAX's arrays cannot give a shape.
            try:
                return _trace_as_it_is(source.in_jax(), names, terms)
            except Exception:
                raise error from None


def _trace_as_it_is(source: Source, names: tuple[str, ...] | None, terms: bool) -> tuple[dict[str, Any], Any]:
    """Trace the model.

    Under `vmap` over values of latent sites, exactly what depends on them is a tracer of `vmap`. Without `terms` there are
    no log probabilities, which take most of the time.
    """
    found: dict[str, Any] = {"source": source}

    def probe(one):
        varies = lambda tree: any(isinstance(x, type(one)) for x in jax.tree.leaves(tree))

        def place(site):
            blank = one if names is None or site["name"] in names else jnp.zeros(())
            shape = site["kwargs"]["sample_shape"] + site["fn"].shape()
            return jnp.broadcast_to(blank.astype(int if site["fn"].support.is_discrete else float), shape)

        look = _run(source, 0, place, terms)
        found.update(_outline(look, varies))
        numbers, found["tree"] = jax.tree.flatten(_numbers(look, found["supports"], found["ranges"]))
        found["numbers"] = [_LATER if isinstance(x, Tracer) and not varies(x) else _as_shape(x) for x in numbers]
        return [x for x, y in zip(numbers, found["numbers"], strict=True) if y is _LATER]

    return found, jax.jit(jax.vmap(probe, out_axes=None)).trace(jax.ShapeDtypeStruct((2,), jnp.result_type(float)))


@contextmanager
def compiling(source: Source):
    """Say what is wrong with a model that can be run but not compiled."""
    try:
        yield
    except (TypeError, IndexError) as error:
        _check_steady(look_once(source, 0), look_once(source, 1))  # raises the model's own errors too
        raise ValueError(
            "The NumPyro model's Python code depends on the value of a latent site, or of an array that JAX computes (in an "
            f"`if`, a shape or NumPy), which cannot be compiled; use jnp.where or jax.lax instead: {error}"
        ) from error


def _with_numbers(found: dict[str, Any], traced: Any) -> Outline:
    """Compute the numbers that a traced run left open, all in one program, and put them where they belong."""
    computed = iter(traced.lower().compile()(np.zeros(2, jnp.result_type(float))) if traced.out_info else ())
    numbers = [next(computed) if x is _LATER else x for x in found.pop("numbers")]
    laws, found["supports"], found["ranges"], values = in_numpy(jax.tree.unflatten(found.pop("tree"), numbers))
    for given, part in ((laws, "fn"), (values, "value")):
        for name, x in given.items():
            found["sites"][name][part] = x
    return Outline(**found, constants=tuple(traced.jaxpr.consts))


def _outline(look: Look, varies: Callable[[Any], bool]) -> dict[str, Any]:
    """Note what a traced run shows without computing anything."""
    sites, latents = look.sites, look.latents
    supports, free_shapes = {k: sites[k]["fn"].support for k in latents}, {}
    for name in latents:
        if not supports[name].is_discrete:
            with helpful_support_errors(sites[name]):
                free_shapes[name] = biject_to(supports[name]).inverse_shape(np.shape(sites[name]["value"]))
    own = {k for k in latents if is_improper(sites[k]["fn"]) or is_one(sites[k]["scale"])}
    own = {k for k in own if can_be_rebuilt(sites[k]["fn"], sites[k]["value"], varies)}
    shown = ("type", "is_observed", "cond_indep_stack", "args", "scale", "infer", "fn", "value")
    return {
        "sites": {k: {part: jax.tree.map(_as_shape, s[part]) for part in shown if part in s} for k, s in sites.items()},
        "log_probs": jax.tree.map(_as_shape, look.log_probs),
        "latents": latents,
        "supports": supports,
        "ranges": {k: Range(_support(s["fn"]), masks(s["fn"])) for k, s in sites.items() if is_observation(s)},
        "free_shapes": free_shapes,
        "own": frozenset(own),
        "frames": _frames(look, varies),
        "moved": frozenset(k for k in latents if varies(supports[k])),
        "shifting": frozenset(k for k, s in sites.items() if s["type"] == "deterministic" and varies(s["value"])),
        "touched": frozenset(k for k, x in look.log_probs.items() if varies(x)),
    }


def _frames(look: Look, varies: Callable[[Any], bool]) -> dict[str, bool]:
    """Find the sites that can be non-centred; not those inside NumPyro's scan, or under `handlers.scale`."""
    whole = lambda site: "_scan_current_index" not in site["infer"] and is_one(site["scale"])
    found = {k: frame_of(look.sites[k]["fn"]) for k in look.latents if whole(look.sites[k])}
    return {k: x.joint for k, x in found.items() if x is not None and varies((x.loc, x.scale))}


def _support(law: dist.Distribution) -> Any:
    try:
        return law.support
    except Exception:  # laws of the user's own, and mixtures, may have none
        return None


def _numbers(look: Look, *more: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    """Give what has to be known in numbers, as far as it is fixed: laws of latent sites, `more`, and values."""
    held = {k: s["value"] for k, s in look.sites.items() if s.get("is_observed") or s["type"] in ("param", "mutable")}
    return {k: look.sites[k]["fn"] for k in look.latents}, *more, held


def _as_shape(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype) if isinstance(x, Tracer) else x


def _check_steady(first: Look, second: Look) -> None:
    """Refuse sites that are there, or have their shape, only at some values of others."""
    for name in dict.fromkeys((*first.log_probs, *second.log_probs)):
        shapes = [np.shape(x.sites[name]["value"]) if name in x.sites else "no such site" for x in (first, second)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"Site {name!r} of the NumPyro model changes with the values of other sites: {shapes[0]} in one run, "
                f"{shapes[1]} in another. Sites and their shapes must stay the same."
            )


def look_once(source: Source, key, anywhere=lambda law: not law.support.is_discrete) -> Look:
    """Run the model once, with values for the latent sites.

    Those for whose law `anywhere` is true go anywhere in their support, uniformly on the unconstrained scale; the
    others are drawn from their law.
    """
    uniform = init_to_uniform()
    return _run(source, key, lambda site: uniform(site) if anywhere(site["fn"]) else None)


def look_twice(source: Source) -> tuple[Look, Look]:
    """Run the model at two points, compiled."""
    shown = []

    def run(key):
        look = look_once(source, key)
        shown.append(look)
        samples = {k: s for k, s in look.sites.items() if s["type"] == "sample"}
        return {k: {part: s[part] for part in ("fn", "value")} for k, s in samples.items()}, look.log_probs

    made = [*map(jax.jit(run), range(2))]
    whole = lambda parts: {k: {**s, **parts.get(k, {})} for k, s in shown[0].sites.items()}
    first, second = (Look(whole(parts), log_probs, shown[0].latents) for parts, log_probs in made)
    return first, second


def _run(source: Source, key, place: Callable[[dict], Any], terms: bool = True) -> Look:
    """Run the model with its latent sites where `place` says, else drawn from their law."""
    fixed = set()

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
        return place(site)

    source = source._replace(fn=substitute(seed(source.fn, key), substitute_fn=begin))
    log_probs, sites = source.log_probs({}) if terms else ({}, source.sites())
    latents = (k for k, s in sites.items() if s["type"] == "sample" and not s["is_observed"] and k not in fixed)
    return Look(sites, log_probs, tuple(latents))


def in_full(source: Source) -> tuple[Source, Outline, dict[str, tuple[int, int]]]:
    """Give the model with its plates in full, a look at it, and the sizes and parts of plates that take a subsample."""
    found, traced = _trace(source, terms=False)
    plates = {k: s["args"] for k, s in found["sites"].items() if s["type"] == "plate"}
    plates = {k: x for k, x in plates.items() if takes_part(*x)}
    if not plates:
        return source, _with_numbers(found, traced), {}
    whole = source._replace(fn=WholePlates(source.fn))
    try:
        look = look_at(whole)
    except Exception as error:
        raise ValueError(
            f"Plate {named(plates)} of the NumPyro model takes a subsample, and the model fails with the plate "
            "in full: give it all the data, and take the batch by the plate's indices or by `numpyro.subsample`. For a "
            f"model that is given one batch at a time use `yoasovi.numpyro.YOASOVI` with a guide. ({error})"
        ) from error
    return whole, look, plates


def named(plates: dict[str, tuple[int, int]]) -> str:
    """Name plates that take a subsample."""
    return ", ".join(f"{k!r} ({part:,} of {size:,})" for k, (size, part) in plates.items())


@dataclass(frozen=True, eq=False)
class PriorDraw:
    """A start from the prior; sites with an improper one go anywhere in their support."""

    source: Source
    names: frozenset[str]  # sites of the model: those whose support moves are not among them

    def __call__(self, key):
        """Draw it."""
        with validation_enabled(False):
            return {k: v for k, v in look_once(self.source, key, is_improper).values.items() if k in self.names}


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
    plate, seen = frames[names[0]][0].name, look_at(source, names)
    inside = [k for k in seen.touched if member_dim(first.log_probs[k], first.sites[k], plate) is not None]
    if not seen.own.issuperset(names) or len(inside) < len(seen.touched):
        return (), None  # a chain, or a term outside the plate that depends on its members
    # A plate is a promise that its members are independent; see that the first is when all others change.
    others = {k: np.append(first.values[k][:1], second.values[k][1:]) for k in names}
    again = jax.jit(lambda values: source.log_probs(values)[0])({**first.values, **others})
    own = lambda terms: [float(jnp.asarray(per_member(terms[k], first.sites[k], plate))[0]) for k in inside]
    return (names, plate) if np.allclose(own(first.log_probs), own(again), equal_nan=True) else ((), None)


def _is_plain_member(look: Look, name: str, size: int) -> bool:
    site, log_prob = look.sites[name], look.log_probs[name]
    plain = site["scale"] is None and not is_masked(site["fn"])
    return size > 1 and plain and np.shape(site["value"]) == np.shape(log_prob) == (size,)
