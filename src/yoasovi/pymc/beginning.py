"""Where fits of a PyMC model begin; models whose log probability is not finite there are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from yoasovi.errors import first_line
from yoasovi.pymc.graphs import on_host
from yoasovi.pymc.sites import FreeVariable
from yoasovi.pymc.terms import Written

_TRIES = 10  # jittered starts, each closer to PyMC's own, before that one itself is taken
_ADVICE = "Look for NaN, or values outside the support, in the parameters of its law, its observations or its `initval`."


class InitialPoint(NamedTuple):
    """PyMC's initial point on the unconstrained scale, in the order of the free variables, and log p near it."""

    point: list[np.ndarray]
    log_terms: Callable[..., list[np.ndarray]]  # of such a point
    shapes: dict[str, tuple[int, ...]]  # of each variable's terms


@dataclass(frozen=True, eq=False)
class Start:
    """PyMC's initial point, jittered by up to one on the unconstrained scale as PyMC's samplers do."""

    sites: tuple[FreeVariable, ...]
    begin: InitialPoint

    def __call__(self, key):
        """Give a point where log p is finite."""
        free = self.free(key)
        return {x.name: x.place(free[x.name]) for x in self.sites}

    def free(self, key) -> dict[str, np.ndarray]:
        """Give that point on the unconstrained scale."""
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
        for i in range(_TRIES):
            free = [x + 0.5**i * rng.uniform(-1.0, 1.0, x.shape) for x in self.begin.point]
            if _finite(self.begin.log_terms, free):
                break
        else:
            free = self.begin.point
        return {x.name: v for x, v in zip(self.sites, free, strict=True)}


def _finite(log_terms: Callable, free: list[np.ndarray]) -> bool:
    try:
        return all(np.isfinite(x).all() for x in log_terms(*free))
    except Exception:  # a check of parameters
        return False


def initial_point(model: Any) -> list[np.ndarray]:
    """Give PyMC's initial point on the unconstrained scale, in the order of the free variables."""
    try:
        try:
            point = _plain_initial_point(model)
        except Exception:  # made by what only compiles; or it fails in earnest, and PyMC says how
            initial = model.initial_point(0)
            point = [initial[x.name] for x in model.value_vars]
    except Exception as error:
        raise ValueError(f"The PyMC model has no initial point: {first_line(error)}") from error
    for variable, x in zip(model.free_RVs, point, strict=True):
        if not np.isfinite(x).all():
            raise ValueError(f"{named([variable.name])} of the PyMC model: its initial value is {x}. {_ADVICE}")
    return [np.asarray(x, float) for x in point]


def _plain_initial_point(model: Any) -> list[np.ndarray]:
    from pymc.initial_point import make_initial_point_expression
    from pymc.pytensorf import find_rng_nodes, replace_rng_nodes, reseed_rngs

    graphs = make_initial_point_expression(
        free_rvs=model.free_RVs, rvs_to_transforms=model.rvs_to_transforms,
        initval_strategies=model.rvs_to_initial_values, return_transformed=True,
    )  # fmt: skip
    graphs = replace_rng_nodes(graphs)  # where it draws from the prior, the model's own generators stay as they are
    reseed_rngs(find_rng_nodes(graphs), 0)
    return on_host(graphs, {})


def begin_at(model: Any, sites: tuple[FreeVariable, ...], point: list[np.ndarray], parts: Written) -> InitialPoint:
    """Give where fits begin; refuse, by name, the first variable whose log probability is not finite there."""
    variables = [*model.observed_RVs, *model.free_RVs, *model.potentials]

    def log_terms(*free: np.ndarray) -> list[np.ndarray]:
        return parts.terms.on_host({x.name: x.place(v) for x, v in zip(sites, free, strict=True)}, parts.data)

    try:
        values = log_terms(*point)
        sound = all(np.isfinite(x).all() for x in values)
    except Exception:  # a check of parameters, or an operation that only compiles
        sound = False
    if not sound:
        log_terms, values = _compiled(model, variables, point)
    return InitialPoint(point, log_terms, {x.name: value.shape for x, value in zip(variables, values, strict=True)})


def _compiled(model: Any, variables: list[Any], point: list[np.ndarray]) -> tuple[Callable, list[np.ndarray]]:
    """Ask PyMC itself, which takes its time; name the first variable whose log probability is not finite."""
    fast = dict(inputs=model.value_vars, mode="FAST_COMPILE", point_fn=False, on_unused_input="ignore")
    log_terms = model.compile_fn(model.logp(variables, sum=False), **fast)
    try:
        values = log_terms(*point)
    except Exception:  # PyMC's checks of parameters do not name the variable: ask one by one
        values = []
        for variable in variables:
            try:
                values.append(model.compile_fn(model.logp([variable], sum=False), **fast)(*point)[0])
            except Exception as error:
                raise ValueError(f"{named([variable.name])} of the PyMC model: {first_line(error)}") from error
    found = dict(zip(variables, values, strict=True))
    for variable in [*model.free_RVs, *model.observed_RVs, *model.potentials]:
        if not np.isfinite(found[variable]).all():
            bad = np.ravel(found[variable])[~np.isfinite(np.ravel(found[variable]))][0]
            raise ValueError(
                f"{named([variable.name])} of the PyMC model: its log probability is {bad} where PyMC begins. {_ADVICE}"
            )
    return log_terms, [np.asarray(x) for x in values]


def named(names: list[str]) -> str:
    """Name variables at the beginning of a sentence."""
    return f"Variable{'s' * (len(names) > 1)} {', '.join(map(repr, names))}"
