"""Posterior predictive draws of a NumPyro model."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro import validation_enabled
from numpyro.handlers import seed, substitute, trace
from numpyro.primitives import Messenger

from yoasovi.answer.predictive import in_blocks
from yoasovi.errors import check, first_line
from yoasovi.kernels.programs import precision
from yoasovi.model import Params
from yoasovi.numpyro.arguments import Arguments
from yoasovi.numpyro.laws import is_factor, is_observation
from yoasovi.numpyro.replay import Replay, Source

_NOTHING = "The NumPyro model has no observed site (`obs=`): it has nothing to predict."


@dataclass(frozen=True, eq=False)
class Predictive:
    """Draws every observed site of the model from its law, given the parameters.

    A law that depends on other observations (a time series on its past) is that of the next step: the past stays as it was.
    """

    source: Source
    replay: Replay

    def __call__(self, key: jax.Array, params: Params, data: Any) -> dict[str, jax.Array]:
        """Give one new data set, by observed site."""
        if missing := [k for k in self.replay.summed_names if k not in params]:
            raise ValueError(f"Discrete site(s) {', '.join(missing)} cannot be drawn, and so the model cannot predict.")
        fn, args, kwargs = self.replay.source(params, data)
        sites = {k: s for k, s in trace(fn).get_trace(*args, **kwargs).items() if is_observation(s)}
        if not sites:
            raise ValueError(_NOTHING)
        keys = jax.random.split(key, len(sites))
        return {k: _as_observed(s["fn"], s["value"]).sample(one) for one, (k, s) in zip(keys, sites.items(), strict=True)}

    def with_arguments(self, key: int, draws: dict[str, np.ndarray], changed: dict[str, Any]) -> dict[str, np.ndarray]:
        """Run the model function with some of its arguments changed, and draw what was observed in the fit.

        Arguments that no draw depends on (observations, masks) need not be given: they follow the others in length. What
        was observed through them is drawn, and so is all that depends on it; another observation is drawn too, but what
        depends on it sees the value that is given. A latent site that changes its shape is drawn from its law.
        """
        arguments = Arguments(inspect.signature(self.source.fn), self.source).changed_by(changed)
        names, own = self.replay.latents + self.replay.summed_names, self.replay.local
        own = own + tuple(k for x in self.replay.summed for k in x.own)  # each observation's
        first = {k: v[0] for k, v in draws.items() if k in names}
        with precision(), validation_enabled(False):
            _, shapes = self._run([self.source])
            if not shapes.observed:
                raise ValueError(_NOTHING)
            idle, blank = arguments.idle(lambda source, varies: self._touched(first, source, varies))
            source, found = self._runnable(arguments, idle, shapes.observed)
        kept = {k for k in first if k not in own and found.laws.get(k) == shapes.laws[k]}
        rule = Anew(source, dict(self.replay.held), frozenset(kept), blank, shapes)
        return in_blocks(rule, None, {k: draws[k] for k in first}, key)

    def _at(self, values: Mapping[str, Any], source: Source) -> Source:
        return source._replace(fn=seed(substitute(source.fn, data={**self.replay.held, **values}), 0))

    def _touched(self, values: Params, source: Source, varies: Any) -> tuple[bool, set[str]]:
        """Say whether an argument that `varies` changes any draw given the parameters, and what is observed through it."""
        seen: dict[str, Any] = {}
        sites = self._at(values, source._replace(fn=Unobserved(source.fn, seen))).sites()
        drawn = [s["value"] for s in sites.values() if s["type"] in ("sample", "deterministic")]
        return varies(drawn), {k for k, v in seen.items() if varies(v)}

    def _runnable(self, arguments: Arguments, idle: frozenset[str], observed: frozenset[str]) -> tuple[Source, Shapes]:
        try:
            return self._run([arguments.following(idle), arguments.without(idle)], observed)
        except Exception as error:
            kept = arguments.kept(idle)
            hint = f" Not in `data`, and so as in the fit: {', '.join(kept)}." if kept else ""
            said = f"The NumPyro model cannot be run with the `data` of `predict`: {first_line(error).rstrip('.')}.{hint}"
            raise ValueError(said) from error

    def _run(self, sources: list[Source], wanted: frozenset[str] = frozenset()) -> tuple[Source, Shapes]:
        """Give the first of some sources that runs and has the sites that are wanted, and its shapes."""
        faults: list[Exception] = []
        for source in (x for one in sources for x in one.forms()):
            try:
                shapes = _shapes(self._at({}, source))
                check(wanted <= set(shapes.laws), "data", "predict", f"such that {', '.join(wanted)} are drawn", "others")
                return source, shapes
            except Exception as error:
                faults.append(error)
        raise faults[0]


class Shapes(NamedTuple):
    """The shapes of the laws of sampled sites and of their values, and which of them are observed."""

    laws: dict[str, tuple[int, ...]]
    values: dict[str, tuple[int, ...]]
    observed: frozenset[str]


def _shapes(source: Source) -> Shapes:
    """Look at a model without running it."""
    found: dict[str, Any] = {}
    jax.eval_shape(lambda: found.update(source.sites()))
    samples = {k: s for k, s in found.items() if s["type"] == "sample"}
    laws = {k: tuple(s["fn"].shape()) for k, s in samples.items()}
    values = {k: np.shape(s["value"]) for k, s in samples.items()}
    return Shapes(laws, values, frozenset(k for k, s in samples.items() if is_observation(s)))


@dataclass(frozen=True, eq=False)
class Anew:
    """The model at new arguments, with all that was observed in the fit drawn."""

    source: Source
    held: dict[str, Any]
    kept: frozenset[str]  # latent sites that have the values of the posterior draws
    blank: frozenset[str]  # observed sites without an observation at the new arguments
    shapes: Shapes  # at the fit's arguments

    def __call__(self, key: jax.Array, params: Params, data: Any) -> dict[str, jax.Array]:
        """Give one new data set: observed and deterministic sites, and latent ones that the posterior has no values for."""
        of_model, of_draws = jax.random.split(key)
        values = {**self.held, **{k: params[k] for k in self.kept}}
        fn = seed(substitute(Blanked(self.source.fn, self.blank, self.shapes), data=values), of_model)
        made = {}
        for i, (name, site) in enumerate(self.source._replace(fn=fn).sites().items()):
            drawn = site["type"] == "sample" and name not in self.kept and not is_factor(site)
            if is_observation(site):
                made[name] = _as_observed(site["fn"], site["value"]).sample(jax.random.fold_in(of_draws, i))
            elif drawn or site["type"] == "deterministic":
                made[name] = jnp.asarray(site["value"])
        return made


class Unobserved(Messenger):
    """Takes the observations off, and notes them."""

    def __init__(self, fn, seen: dict[str, Any]):
        super().__init__(fn)
        self.seen = seen

    def process_message(self, msg):
        """Have an observed site drawn."""
        if is_observation(msg):
            self.seen[msg["name"]], msg["value"], msg["is_observed"] = msg["value"], None, False


class Blanked(Messenger):
    """Takes the observations off that are not of the new data: blank ones, and the fit's where the law's shape is new."""

    def __init__(self, fn, blank: frozenset[str], shapes: Shapes):
        super().__init__(fn)
        self.blank, self.shapes = blank, shapes

    def process_message(self, msg):
        """Have such a site drawn, as often as it was observed."""
        if not is_observation(msg):
            return
        same = tuple(msg["fn"].shape()) == self.shapes.laws.get(msg["name"])
        stale = not same and np.shape(msg["value"]) == self.shapes.values.get(msg["name"])
        if msg["name"] in self.blank or stale:
            msg["fn"] = _as_observed(msg["fn"], msg["value"]) if same else msg["fn"]
            msg["value"], msg["is_observed"] = None, False


def _as_observed(law: dist.Distribution, value: Any) -> dist.Distribution:
    """Give the law of as many draws as there are observations: one law may be that of many, without a plate."""
    rows = np.shape(value)[: np.ndim(value) - law.event_dim]
    shape = np.broadcast_shapes(rows, law.batch_shape)
    return law if shape == law.batch_shape else law.expand(shape)
