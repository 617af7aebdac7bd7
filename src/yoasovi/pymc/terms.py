"""The terms of log p, and what samples show besides the sites, from one graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from yoasovi.errors import first_line
from yoasovi.kernels.programs import precision
from yoasovi.model import Frame, Model, Params
from yoasovi.pymc.frames import Framed, framed
from yoasovi.pymc.graphs import constants, on_host, rewritten, to_jax
from yoasovi.pymc.sites import FreeVariable


@dataclass(frozen=True, eq=False)
class Graph:
    """A rewritten PyTensor graph as a function of the free variables and the data."""

    inputs: list[Any]
    outputs: list[Any]
    sites: tuple[str, ...]
    data: tuple[str, ...]

    @cached_property
    def fn(self) -> Callable:
        """Its JAX function, made when it is first needed."""
        return to_jax(self.inputs, self.outputs)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out that function: another process makes its own."""
        return {k: v for k, v in self.__dict__.items() if k != "fn"}

    def __call__(self, params: Params, data: Mapping[str, Any] | None) -> list:
        """Evaluate its outputs in JAX."""
        return self.fn(*self._values(params, data))

    def on_host(self, params: Mapping[str, np.ndarray], data: Mapping[str, Any] | None) -> list[np.ndarray]:
        """Evaluate its outputs in NumPy, checks of parameters included."""
        return on_host(self.outputs, dict(zip(self.inputs, self._values(params, data), strict=True)))

    def _values(self, params: Mapping[str, Any], data: Mapping[str, Any] | None) -> list[Any]:
        return [*(params[k] for k in self.sites), *((data or {})[k] for k in self.data)]


@dataclass(frozen=True)
class GraphTerms:
    """Terms of log p in one vector."""

    graph: Graph
    shows_frames: ClassVar[bool] = True  # sites that can be non-centred are known, whatever their priors look like

    def __call__(self, params, data):
        """Evaluate them."""
        terms = self.graph(params, data)
        if not terms:
            raise ValueError("The PyMC model has no observed variable: it has no likelihood by observation.")
        return jnp.concatenate([jnp.ravel(jnp.asarray(x, float)) for x in terms])


@dataclass(frozen=True)
class GraphQuantities:
    """The variables whose support moves, and the model's deterministics."""

    graph: Graph
    names: tuple[str, ...]

    def __call__(self, params, data):
        """Evaluate them."""
        return {k: jnp.asarray(x) for k, x in zip(self.names, self.graph(params, data), strict=True)}


@dataclass(frozen=True, eq=False)
class GraphFrames:
    """The free variables that can be non-centred: see `yoasovi.model.centring.Frames`."""

    framed: tuple[Framed, ...]
    graphs: tuple[Graph, ...]  # of their laws' parameters
    terms: Graph  # of log p
    places: Mapping[str, int]  # of free variables among the terms

    @property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(x.name for x in self.framed)

    @property
    def joint(self) -> frozenset[str]:
        """Those that cannot be partly centred."""
        return frozenset(x.name for x in self.framed if x.joint)

    def visit(self, names: Iterable[str], params: Mapping[str, Any], data: Any, put: Callable[[str, Frame], Any]) -> None:
        """Go through these variables in their order."""
        chosen, known = set(names), dict(params)
        for (name, law, _, joint), graph in zip(self.framed, self.graphs, strict=True):
            if name in chosen:
                *shapes, loc, scale = graph(known, data)
                known[name] = put(name, Frame(loc, scale, law(*shapes, 0.0, 1.0), joint))

    def without(self, model: Model, names: Iterable[str]) -> Model:
        """Give the model with log p of these variables left out."""
        out = {self.places[k] for k in names}
        rest = replace(self.terms, outputs=[x for i, x in enumerate(self.terms.outputs) if i not in out])
        return replace(model, log_likelihood=GraphTerms(rest))


class Written(NamedTuple):
    """Graphs of one model, all cut out of one that was rewritten once."""

    terms: Graph  # of log p: observed variables, free variables, potentials
    observations: Graph
    others: Graph | None  # what samples show besides the sites, by the names `shown`
    shown: tuple[str, ...]
    data: dict[str, np.ndarray] | None
    frames: GraphFrames | None


def parts_of(model: Any, sites: tuple[FreeVariable, ...]) -> Written:
    """Write down the terms of log p and the deterministics; larger constants are data, where JAX can follow that."""
    try:
        return _traced(_written(model, sites, as_data=True), sites)
    except ValueError:  # a shape or an index made from a constant needs its value: then all are part of the program
        return _traced(_written(model, sites, as_data=False), sites)


def _traced(parts: Written, sites: tuple[FreeVariable, ...]) -> Written:
    """Follow the graphs once, so that what JAX cannot do is said here, and not inside a fit or when draws are asked for."""
    point = {x.name: jax.ShapeDtypeStruct(x.shape, float) for x in sites}
    for graph in (parts.terms, parts.others):
        try:
            if graph is not None:
                _ = graph.fn  # made outside of the trace, where constants are cheaper to make
                with precision():
                    jax.eval_shape(graph, point, parts.data)
        except Exception as error:
            raise ValueError(f"The PyMC model cannot be compiled to JAX: {first_line(error)}") from error
    return parts


def _written(model: Any, sites: tuple[FreeVariable, ...], as_data: bool) -> Written:
    from pymc.logprob.basic import transformed_conditional_logp
    from pymc.logprob.utils import replace_rvs_by_values
    from pytensor.graph.replace import clone_replace

    seen = model.observed_RVs
    places = dict(
        rvs_to_values={**{x.rv: x.value for x in sites}, **{rv: model.rvs_to_values[rv] for rv in seen}},
        rvs_to_transforms={rv: None for rv in seen}
        | {x.rv: model.rvs_to_transforms[x.rv] if x.moves else None for x in sites},
    )
    terms = [*transformed_conditional_logp([*seen, *model.free_RVs], **places)]
    others = [x.rv for x in sites if x.moves] + model.deterministics
    frames = framed(model, sites)
    parts = [x for frame in frames for x in frame.parts]
    more = [*model.potentials, *others, *parts]
    outputs = terms + (replace_rvs_by_values(more, **places) if more else [])
    found = constants(outputs)  # also refuses what cannot be a constant
    found = found if as_data else {}
    slots = {k: variable.type(k) for k, (variable, _) in found.items()}
    opened = clone_replace(outputs, {found[k][0]: slot for k, slot in slots.items()}) if slots else outputs
    inputs, made = rewritten([*(x.value for x in sites), *slots.values()], opened)
    names, data = tuple(x.name for x in sites), tuple(slots)
    last = len(outputs) - len(parts)
    until = last - len(others)
    graph = lambda some: Graph(inputs, some, names, data)
    rest = iter(made[last:])
    graphs = tuple(graph([next(rest) for _ in frame.parts]) for frame in frames)
    whole, order = graph(made[:until]), {x.name: len(seen) + i for i, x in enumerate(sites)}
    return Written(
        whole, graph(made[: len(seen)]), graph(made[until:last]) if others else None,
        tuple(x.name for x in others), {k: array for k, (_, array) in found.items()} or None,
        GraphFrames(frames, graphs, whole, order) if frames else None,
    )  # fmt: skip
