"""The model function inside a fit: run at given parameters, for its log probabilities and deterministic sites."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro import validation_enabled
from numpyro.distributions import biject_to
from numpyro.handlers import block, seed, substitute, trace
from numpyro.infer.util import compute_log_probs

from yoasovi.errors import first_line
from yoasovi.model import Params
from yoasovi.numpyro.laws import as_categorical, is_observation, per_member
from yoasovi.numpyro.plates import Batches, FewerMembers

if TYPE_CHECKING:
    from yoasovi.numpyro.enumeration import Cluster


class Source(NamedTuple):
    """A model function and what it is called with."""

    fn: Callable
    args: tuple
    kwargs: dict

    def in_jax(self) -> Source:
        """Turn NumPy's arrays among the arguments into JAX's."""
        change = lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) and x.dtype.kind in "biuf" else x
        return self._replace(args=jax.tree.map(change, self.args), kwargs=jax.tree.map(change, self.kwargs))

    def in_arrays(self) -> Source:
        """Turn columns of tables that are numbers, as of pandas, into arrays; give itself where there are none."""
        if not any(_is_column(x) for x in jax.tree.leaves((self.args, self.kwargs))):
            return self
        return self._replace(args=jax.tree.map(_as_array, self.args), kwargs=jax.tree.map(_as_array, self.kwargs))

    def forms(self) -> tuple[Source, Source]:
        """Give it as it is and in JAX: NumPy's arrays do not take traced indices, JAX's cannot give a shape."""
        return self, self.in_jax()

    def sites(self) -> dict[str, dict]:
        """Run the function, for its sites."""
        return trace(self.fn).get_trace(*self.args, **self.kwargs)

    def log_probs(self, values: Params, key=0) -> tuple[dict[str, jax.Array], dict[str, dict]]:
        """Give the log probabilities of all sites, scaled and masked but not summed, and the sites themselves."""
        model = substitute(seed(self.fn, key), data=values)
        return compute_log_probs(model, self.args, self.kwargs, {}, sum_log_prob=False)


@dataclass(frozen=True, eq=False)
class Replay:
    """Runs the model function at given parameters.

    Compared by identity: a function that reads a global may be another model the next time it is given.
    """

    fn: Callable
    tree: Any  # how the leaves make up (args, kwargs)
    leaves: tuple[Any, ...]  # arguments that are part of the program, `Slot`s where an array of the data goes
    held: Mapping[str, Any]  # values of `numpyro.param` and of mutable sites
    latents: tuple[str, ...]
    settled: frozenset[str]  # sites whose log probability is in the model's priors
    stand_ins: Mapping[str, dist.Distribution]  # flat priors of discrete sites, to be taken off again
    moving: Mapping[str, str]  # sites whose support moves, and their unconstrained names
    local: tuple[str, ...]  # discrete sites of which each observation has one
    plate: str | None  # theirs
    size: int
    summed: tuple[Cluster, ...]  # discrete sites that are summed out
    has_deterministics: bool
    narrow: bool  # the function runs in single precision

    def source(self, params: Params, data) -> Source:
        """Give the model function with its sites at `params`, and its arguments; what is summed out may be left out."""
        if self.narrow:
            params, data = in_single((params, data))
        given = {k: params[k] for k in (*self.latents, *self.summed_names) if k not in self.moving and k in params}
        blank = {k: jnp.zeros(self.size, int) for k in self.local}

        def place(site):
            if site["type"] != "sample" or site["name"] not in self.moving:
                return None
            free, step = params[self.moving[site["name"]]], site["infer"].get("_scan_current_index")
            # Inside NumPyro's scan a site is one time step of the whole.
            return biject_to(site["fn"].support)(free if step is None else free[step])

        fn = substitute(seed(self.fn, 0), data={**self.held, **blank, **given})
        leaves = [data[x.key] if isinstance(x, Slot) else x for x in self.leaves]
        return Source(substitute(fn, substitute_fn=place), *jax.tree.unflatten(self.tree, leaves))

    @property
    def summed_names(self) -> tuple[str, ...]:
        """The discrete sites that are summed out."""
        return tuple(k for x in self.summed for k in x.names)

    @property
    def shifting(self) -> frozenset[str]:
        """The deterministic sites that depend on them."""
        return frozenset().union(*(x.shifting for x in self.summed))

    def sites(self, params: Params, data) -> dict[str, dict]:
        """Give the sites alone, without their log probabilities."""
        return self.source(params, data).sites()

    def log_probs(self, params: Params, data) -> tuple[dict[str, jax.Array], dict[str, dict]]:
        """Give the log probabilities of all sites but the settled ones, not summed, and these sites.

        Those that depend on sites which are summed out are one entry for each cluster of them, by its label.
        """
        params = {k: v for k, v in params.items() if k not in self.summed_names}
        source, settled = self.source(params, data), [*self.settled.difference(self.local)]
        log_probs, sites = source._replace(fn=block(source.fn, hide=settled)).log_probs({})
        for cluster in self.summed:
            log_probs = {k: v for k, v in log_probs.items() if k not in cluster.touched}
            log_probs[cluster.label] = cluster.log_terms(source)
        for name, base in self.moving.items():
            value, free, transform = sites[name]["value"], params[base], biject_to(sites[name]["fn"].support)
            log_probs[base] = transform.log_abs_det_jacobian(free, value)
        for name, law in self.stand_ins.items():
            log_probs[name] = log_probs[name] - law.log_prob(sites[name]["value"])
        return log_probs, sites

    def observed(self, terms: Iterable[str], sites: Mapping[str, dict]) -> list[str]:
        """Name the terms that are log p of observations, in their order: clusters that are nothing else come last."""
        labels = {x.label: x.likelihood for x in self.summed}
        plain = [k for k in terms if k not in labels and is_observation(sites.get(k))]
        return [*plain, *(k for k in terms if labels.get(k))]


class Slot(NamedTuple):
    """The place of an array of the data among the arguments."""

    key: str


@dataclass(frozen=True)
class LogTerms:
    """All terms of log p but the priors: one per observation if there are local latents, else observations come first."""

    replay: Replay

    def __call__(self, params, data):
        """Evaluate them."""
        terms, sites = self.replay.log_probs(params, data)
        terms = {k: v for k, v in terms.items() if k not in self.replay.settled}
        if self.replay.plate is None:
            seen = self.replay.observed(terms, sites)
            return _flat([terms[k] for k in (*seen, *(k for k in terms if k not in seen))])
        own = {k: per_member(v, sites.get(k), self.replay.plate) for k, v in terms.items()}
        inside = sum((v for v in own.values() if v is not None), jnp.zeros(self.replay.size))
        # What no local latent touches is shared out evenly: the sum is right, and no latent's choice changes by it.
        return inside + jnp.sum(_flat([terms[k] for k, v in own.items() if v is None])) / self.replay.size

    def of_groups(self, size: int, members: int) -> LogTerms:
        """Give the terms of a model of fewer groups: in plates, and among arguments that are their number."""
        number = lambda x: isinstance(x, int) and not isinstance(x, bool) and x == size
        leaves = tuple(members if number(x) else x for x in self.replay.leaves)
        return LogTerms(replace(self.replay, fn=FewerMembers(self.replay.fn, size, members), leaves=leaves))


@dataclass(frozen=True)
class LogBatch:
    """The same terms from the rows of a minibatch, those of subsampled plates scaled up by NumPyro."""

    replay: Replay

    def __call__(self, key, params, data):
        """Evaluate them."""
        return LogTerms(replace(self.replay, fn=Batches(self.replay.fn, key)))(params, data)


@dataclass(frozen=True)
class LogObservations:
    """The log probability of each observation, discrete sites summed out."""

    replay: Replay

    def __call__(self, params, data):
        """Evaluate it."""
        terms, sites = self.replay.log_probs(params, data)
        seen = [terms[k] for k in self.replay.observed(terms, sites)]
        if not seen:
            raise ValueError("The NumPyro model has no likelihood by observation.")
        return _flat(seen)


@dataclass(frozen=True)
class LocalLaw:
    """The law of a local latent, given the global parameters."""

    replay: Replay
    name: str

    def __call__(self, data, params):
        """Give a distribution of batch shape (N,)."""
        with validation_enabled(False):  # `Model` asks for it at parameters that are only of the right shape
            law = self.replay.sites(params, data)[self.name]["fn"]
            return as_categorical(law, (self.replay.size,)) or law


@dataclass(frozen=True)
class Deterministics:
    """The model's deterministic sites, and the sites whose support moves, at given parameters."""

    replay: Replay

    def __call__(self, params, data):
        """Evaluate them."""
        sites = self.replay.sites(params, data)
        known = lambda k: sites[k]["type"] == "deterministic" and k not in self.replay.shifting
        wanted = (k for k in sites if known(k) or k in self.replay.moving)
        return {k: jnp.asarray(sites[k]["value"]) for k in wanted}


@dataclass(frozen=True)
class Recovered:
    """Draws of the discrete sites that are summed out, and the deterministic sites that depend on them."""

    replay: Replay

    def __call__(self, key, params, data):
        """Draw them, given the parameters; leave out, with a warning, those that cannot be drawn."""
        source, found = self.replay.source(params, data), {}
        for one, cluster in zip(jax.random.split(key, len(self.replay.summed)), self.replay.summed, strict=True):
            try:
                found |= cluster.draw(one, source)
            except Exception as error:
                said = f"Discrete site(s) {', '.join(cluster.names)} of the NumPyro model are left out of draws"
                warnings.warn(f"{said}: {first_line(error)}", stacklevel=2)
        sites = self.replay.sites({**params, **found}, data)
        shown = (k for x in self.replay.summed for k in x.shifting if found.keys() >= set(x.names))
        return {**found, **{k: jnp.asarray(sites[k]["value"]) for k in shown}}


def _is_column(x: Any) -> bool:
    return hasattr(x, "to_numpy") and len(getattr(x, "shape", ())) == 1 and not hasattr(x, "dims")


def _as_array(x: Any) -> Any:
    array = x.to_numpy() if _is_column(x) else x
    return array if _is_column(x) and array.dtype.kind in "biuf" else x


def in_single(tree: Any) -> Any:
    """Turn numbers of 64 bits into such of 32."""
    kinds = {"f": jnp.float32, "i": jnp.int32}
    number = lambda x: isinstance(x, (np.ndarray, np.generic, jax.Array)) and x.dtype.kind in kinds
    change = lambda x: x.astype(kinds[x.dtype.kind]) if number(x) else x
    return jax.tree.map(change, tree)


def _flat(terms: list) -> jax.Array:
    """Put all terms into one vector, never an empty one."""
    return jnp.concatenate([jnp.zeros(0 if terms else 1), *(jnp.ravel(jnp.asarray(x, float)) for x in terms)])
