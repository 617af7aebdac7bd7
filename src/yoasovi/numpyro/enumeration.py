"""Discrete sites that are summed out of log p by NumPyro's own enumeration, and drawn again given the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.handlers import infer_config, seed, substitute
from numpyro.infer.initialization import init_to_uniform
from numpyro.infer.util import _guess_max_plate_nesting
from numpyro.primitives import Messenger

from yoasovi.errors import first_line
from yoasovi.numpyro.laws import is_observation
from yoasovi.numpyro.looking import Outline, look_at
from yoasovi.numpyro.replay import Source
from yoasovi.numpyro.scans import drawn_along, log_sum, root


@dataclass(frozen=True, eq=False)
class Cluster:
    """Discrete sites that are summed out together, and all sites whose log probability depends on them."""

    names: tuple[str, ...]
    touched: frozenset[str]  # they themselves among them
    shifting: frozenset[str]  # deterministic sites that depend on them
    shapes: dict[str, tuple[int, ...]]  # of the discrete sites
    plates: dict[str, int]  # those that all touched sites are in, outermost first, with their sizes: one term per member
    nesting: int  # dimensions that plates take
    label: str  # of its terms
    likelihood: bool  # its terms are log p of observations, of nothing else
    own: frozenset[str]  # discrete sites of which every observation has its own
    scanned: bool

    @property
    def size(self) -> tuple[int, ...]:
        """The shape of its terms."""
        return tuple(self.plates.values())

    def log_terms(self, source: Source) -> jax.Array:
        """Give log p of the touched sites, the discrete ones summed out, for each member of the plates."""
        import funsor
        from numpyro.contrib.funsor import enum

        marked = enum(self._marked(source), first_available_dim=-self.nesting - 1)
        total = log_sum(Touched(marked, self.touched, frozenset(self.plates)), source)
        dims = {k: i - len(self.plates) for i, k in enumerate(self.plates)}
        return jnp.broadcast_to(funsor.to_data(total, name_to_dim=dims), self.size)

    def draw(self, key: jax.Array, source: Source) -> dict[str, jax.Array]:
        """Draw the discrete sites, given all others."""
        from numpyro.contrib.funsor import enum
        from numpyro.contrib.funsor.discrete import _sample_posterior

        marked, dim = self._marked(source), -self.nesting - 1
        if self.scanned:  # NumPyro's `infer_discrete` does not know `scan`
            found = drawn_along(key, Touched(enum(marked, first_available_dim=dim), self.touched), source, self.nesting)
        else:
            found = _sample_posterior(Touched(marked, self.touched), dim, 1, key, *source.args, **source.kwargs)
        return {k: jnp.reshape(found[k], self.shapes[k]).astype(int) for k in self.names}

    def _marked(self, source: Source) -> Callable:
        mark = lambda site: {"enumerate": "parallel" if root(site["name"]) in self.names else "not"}
        return infer_config(source.fn, lambda site: mark(site) if site["type"] == "sample" else {})


class Touched(Messenger):
    """Shows some sites alone; plates that are `kept` stay an axis of the terms."""

    def __init__(self, fn: Callable, names: frozenset[str], kept: frozenset[str] = frozenset()):
        super().__init__(fn)
        self.names, self.kept = names, kept

    def process_message(self, msg):
        """Hide other sites."""
        if msg["type"] == "sample":
            msg["stop"] = root(msg["name"]) not in self.names
            msg["cond_indep_stack"] = [x for x in msg["cond_indep_stack"] if x.name not in self.kept]


def find_clusters(look: Outline) -> tuple[tuple[Cluster, ...], dict[str, str]]:
    """Find the discrete sites that can be summed out; also why finite ones cannot be."""
    faults: dict[str, str] = {}
    seen: dict[str, Outline] = {}
    for name in look.discrete:
        law = look.sites[name]["fn"]
        if not law.has_enumerate_support:
            continue
        seen[name] = look_at(look.source, (name,))
        if fault := _fault(name, look, seen[name]):
            faults[name] = fault
            del seen[name]
    groups: list[tuple[list[str], set[str]]] = []
    for name, shown in seen.items():
        names, touched = [name], {name, *shown.touched}
        for group in [x for x in groups if x[1] & touched]:
            groups.remove(group)
            names, touched = [*group[0], *names], touched | group[1]
        groups.append((names, touched))
    clusters = [_cluster(names, touched, look, seen) for names, touched in groups]
    for cluster in [*clusters]:
        try:
            jax.eval_shape(lambda x=cluster: x.log_terms(_anywhere(look.source)))
        except Exception as error:  # the model's own code may not take the axes that enumeration adds on the left
            faults |= dict.fromkeys(cluster.names, f"NumPyro's enumeration fails, {first_line(error).rstrip('.')}")
            clusters.remove(cluster)
    return tuple(clusters), faults


def _anywhere(source: Source) -> Source:
    """Put continuous sites anywhere in their supports."""
    uniform = init_to_uniform()

    def place(site):
        free = site["type"] == "sample" and not site["is_observed"] and site["value"] is None
        return uniform(site) if free and not site["fn"].support.is_discrete else None

    return source._replace(fn=substitute(seed(source.fn, 0), substitute_fn=place))


def _fault(name: str, look: Outline, seen: Outline) -> str:
    """Say why a discrete site cannot be summed out, if so: NumPyro counts values from 0, and takes plates at their word."""
    site = look.sites[name]
    try:
        values = np.ravel(site["fn"].enumerate_support(expand=False))
        counted = np.array_equal(values, np.arange(len(values)))
    except Exception:
        counted = False
    if not counted or site["fn"].event_dim:
        return (
            "its values are not 0, 1, 2, ... (write it as a site that counts from 0, and add to it what it begins at, as in "
            "1 + Categorical)"
        )
    if seen.moved:
        return f"the support of {min(seen.moved)!r} depends on it"
    for k in sorted({name, *seen.touched}):
        if not set(_plates(look, name)) <= set(_plates(look, k)):
            return f"{k!r}, outside of its plate, depends on it"
        if bare := _bare_axes(look.sites[k], seen.log_probs[k]):
            return f"axis {bare[0]} of {k!r} is in no plate"
    return ""


def _bare_axes(site: dict, term: Any) -> list[int]:
    """Give the axes of a site's log probabilities that belong to no plate."""
    named, shape = {x.dim for x in site["cond_indep_stack"]}, np.shape(term)[_is_scanned(site) :]
    return [i for i in range(-len(shape), 0) if shape[i] > 1 and i not in named]


def _cluster(names: list[str], touched: set[str], look: Outline, seen: dict[str, Outline]) -> Cluster:
    sites = {k: look.sites[k] for k in look.sites if k in touched}
    names = [k for k in sites if k in names]
    frames = {k: _plates(look, k) for k in sites}
    common = [x for x in frames[names[0]].values() if all(x.name in y for y in frames.values())]
    common.sort(key=lambda x: x.dim)
    plates = {x.name: x.size for x in common}
    observed = [k for k, s in sites.items() if is_observation(s)]
    others = [k for k in sites if k not in (*observed, *names)]
    label, size = "_".join(observed), tuple(plates.values())
    if len(observed) != 1 or np.shape(seen[names[0]].log_probs[label]) != size:
        label = "_".join([label, "by", *plates])
    return Cluster(
        names=tuple(names), touched=frozenset(touched), shifting=frozenset().union(*(seen[k].shifting for k in names)),
        shapes={k: np.shape(sites[k]["value"]) for k in names}, plates=plates, nesting=_guess_max_plate_nesting(look.sites),
        label=label, likelihood=bool(observed) and bool(plates) and not others,
        own=frozenset(k for k in names if any(set(frames[y]) <= set(frames[k]) for y in observed if y in seen[k].touched)),
        scanned=any(map(_is_scanned, sites.values())),
    )  # fmt: skip


def _plates(look: Outline, name: str) -> dict[str, Any]:
    return {x.name: x for x in look.sites[name]["cond_indep_stack"]}


def _is_scanned(site: dict) -> bool:
    return "_scan_current_index" in site["infer"]
