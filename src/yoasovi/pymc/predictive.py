"""Posterior predictive draws by PyMC's own random graph."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from yoasovi.errors import check, first_line
from yoasovi.model import Params
from yoasovi.pymc.graphs import on_host


@dataclass(frozen=True, eq=False)
class RandomGraph:
    """Draws the observed variables by PyMC's own random graph, given the free variables.

    A free variable whose law, or shape, rests on data or coords that are no longer those of the fit is drawn anew too.
    """

    model: Any
    fitted: Mapping[str, np.ndarray]  # what `pm.Data` held when the model was taken
    coords: Mapping[str, tuple | None]
    lengths: Mapping[str, int]

    def with_arguments(self, seed: int, draws: Params, changed: Mapping[str, Any]) -> dict[str, np.ndarray]:
        """Draw with other values in `pm.Data`; those it has now are there again afterwards."""
        known = [x.name for x in self.model.data_vars]
        unknown = sorted(set(changed) - set(known))
        check(not unknown, "data", "predict", f"named after `pm.Data` of the model ({', '.join(known) or 'none'})", unknown)
        if not self.model.observed_RVs:
            raise ValueError("The PyMC model has no observed variable: it has nothing to predict.")
        before, coords = {k: self.model[k].get_value() for k in known}, dict(self.model.coords)
        try:
            _set_data(self.model, self.fitted, self.coords)
            outputs = [_following(self.model, rv, draws) for rv in self.model.observed_RVs]
            _set_data(self.model, {**before, **changed}, self.coords if changed is self.fitted else coords)
            return self._draw(outputs, seed, draws)
        finally:
            _set_data(self.model, before, coords)

    def _draw(self, outputs: list[Any], seed: int, draws: Params) -> dict[str, np.ndarray]:
        from pymc.sampling.forward import compile_forward_sampling_function

        lengths, coords = _lengths(self.model), self.model.coords
        same = {k for k in lengths if (lengths[k], coords[k]) == (self.lengths.get(k), self.coords.get(k))}
        fn, _ = compile_forward_sampling_function(
            outputs, vars_in_trace=self.model.free_RVs, basic_rvs=self.model.basic_RVs, random_seed=seed,
            constant_data=dict(self.fitted), constant_coords=same, allow_input_downcast=True, accept_inplace=True,
        )  # fmt: skip
        free = {x.name for x in self.model.free_RVs}
        given = [x.name for x in fn.maker.fgraph.inputs if x.name in free]
        try:
            made = [fn(**{k: draws[k][i] for k in given}) for i in range(len(next(iter(draws.values()))))]
        except NotImplementedError as error:
            said = f"The PyMC model cannot be drawn from: {first_line(error).rstrip('.')}."
            raise NotImplementedError(said) from None  # PyTensor's own goes on with the whole graph
        except ValueError as error:
            held = ", ".join(f"{x.name} {x.get_value(borrow=True).shape}" for x in self.model.data_vars)
            raise ValueError(
                f"The PyMC model cannot be drawn from at these data ({held}): {first_line(error).rstrip('.')}. Give all "
                "that must change together; where an observed variable itself does not follow, give it shape=x.shape[0]."
            ) from error
        return {x.name: np.stack([np.asarray(one[j]) for one in made]) for j, x in enumerate(outputs)}


def predictive_of(model: Any) -> Any:
    """Give what draws the observed variables of a model."""
    return RandomGraph(model, {x.name: x.get_value() for x in model.data_vars}, dict(model.coords), _lengths(model))


def _following(model: Any, rv: Any, draws: Params) -> Any:
    """Give an observed variable the shape of its parameters, if that is the one of its observations: then it follows them.

    PyMC gives it the shape of the observations once and for all, unless it has `dims` or a `shape` that follow the data.
    """
    from pytensor.graph.traversal import ancestors
    from pytensor.tensor.random.op import RandomVariable

    node, others = rv.owner, [x for x in model.observed_RVs if x is not rv]
    if not isinstance(node.op, RandomVariable) or rv in ancestors(others):
        return rv
    free = node.op(*node.op.dist_params(node), size=None, rng=node.op.rng_param(node), name=rv.name)
    given = {x: draws[x.name][0] for x in model.free_RVs}
    try:
        same = on_host([free], given)[0].shape == on_host([rv], given)[0].shape
    except Exception:  # operations without NumPy code
        return rv
    return free if same else rv


def _lengths(model) -> dict[str, int]:
    return {k: int(x) for k, x in zip(model.dim_lengths, on_host(model.dim_lengths.values(), {}), strict=True)}


def _set_data(model, values: Mapping[str, Any], coords: Mapping[str, Any]) -> None:
    """Set `pm.Data`; a dimension that gets another length is numbered, where `coords` has no values of that length."""
    for name, value in values.items():
        new = {}
        for dim, size in zip(model.named_vars_to_dims.get(name) or (), np.shape(value), strict=False):
            if coords.get(dim) is not None and len(coords[dim]) == size:
                new[dim] = coords[dim]
            elif model.coords.get(dim) is not None and len(model.coords[dim]) != size:
                new[dim] = range(size)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a dimension that another of the values is about to change as well
            model.set_data(name, value, coords=new)
