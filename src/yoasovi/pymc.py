"""The PyMC door: a `pm.Model` in, a `Model` out, compiled to JAX by PyMC itself.

Every free variable is a site of its own name on PyMC's unconstrained scale, with PyMC's transform and its Jacobian among the
terms of log p. Samples show it on its own scale, under the same name, with the model's deterministics.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import ImproperUniform, constraints

from yoasovi.compiling import precision
from yoasovi.errors import check
from yoasovi.extras import need
from yoasovi.labelled import Labels
from yoasovi.model import Model, Params

_DATA_FROM = 16  # constants of at least so many numbers are data of the compiled program, not part of it
_TRIES = 10  # jittered starts, each closer to PyMC's own, before that one itself is taken


def from_pymc(model: Any) -> Model:
    """Make a `Model` of a PyMC model; its transforms, dims and coords are kept.

    The density is the one PyMC's own samplers see. `log_likelihood` has one entry per observation first, then those of
    the free variables, with Jacobians, and of potentials; `log_marginal` has the observations alone. Missing values that
    PyMC imputes are free variables like others. A fit begins at PyMC's initial point, jittered as PyMC does it.

    Parameters
    ----------
    model
        A `pymc.Model` without discrete free variables.

    Examples
    --------
    >>> with pm.Model(coords={"school": list("ABCDEFGH")}) as schools:
    ...     mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
    ...     theta = pm.Normal("theta", mu, tau, dims="school")
    ...     pm.Normal("y", theta, se, observed=y, dims="school")
    >>> fit = yo.fit(schools)  # or yo.fit(yo.from_pymc(schools))
    """
    pm = need("pymc", "pymc")
    check(isinstance(model, pm.Model), "model", "from_pymc", "a PyMC model", model)
    _check_variables(model)
    begin = _begin(model)
    _import_backend()
    with precision():
        terms, observations, others, data = _compiled(model, [x.shape for x in begin.point.values()])
        flat = {k: ImproperUniform(constraints.real, (), x.shape) for k, x in begin.point.items()}
        own = OwnScale(others, tuple(x.name for x in (*model.free_RVs, *model.deterministics)))
        return Model(
            prior=flat, log_likelihood=LogTerms(terms), log_marginal=LogTerms(observations), data=data, start=begin,
            deterministics=own, name=model.name or "PyMC model", labels=_labels(model, own, observations, flat, data),
        )  # fmt: skip


# ---- inside a fit ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Graph:
    """A PyTensor graph as a JAX function of the free variables and the data."""

    fn: Callable
    sites: tuple[str, ...]
    data: tuple[str, ...]

    def __call__(self, params: Params, data: Mapping[str, Any] | None) -> list:
        """Evaluate its outputs."""
        return self.fn(*(params[k] for k in self.sites), *((data or {})[k] for k in self.data))


@dataclass(frozen=True)
class LogTerms:
    """Terms of log p in one vector."""

    graph: Graph

    def __call__(self, params, data):
        """Evaluate them."""
        terms = self.graph(params, data)
        if not terms:
            raise ValueError("The PyMC model has no observed variable: it has no likelihood by observation.")
        return jnp.concatenate([jnp.ravel(jnp.asarray(x, float)) for x in terms])


@dataclass(frozen=True)
class OwnScale:
    """The free variables on their own scales, which take the place of the unconstrained ones, and the deterministics."""

    graph: Graph
    names: tuple[str, ...]

    def __call__(self, params, data):
        """Evaluate them."""
        return {k: jnp.asarray(x) for k, x in zip(self.names, self.graph(params, data), strict=True)}


@dataclass(frozen=True, eq=False)
class Start:
    """PyMC's initial point on the unconstrained scale, jittered by up to one as PyMC's samplers do."""

    point: Mapping[str, np.ndarray]
    log_terms: Callable

    def __call__(self, key):
        """Give a point where log p is finite."""
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
        for i in range(_TRIES):
            moved = {k: x + 0.5**i * rng.uniform(-1.0, 1.0, x.shape) for k, x in self.point.items()}
            if all(np.isfinite(x).all() for x in self.log_terms(*moved.values())):
                return moved
        return dict(self.point)


# ---- from PyMC ---------------------------------------------------------------------------------------------


def _compiled(model, shapes) -> tuple[Graph, Graph, Graph, dict[str, np.ndarray] | None]:
    """Compile all terms of log p, those of observations alone, and what samples show."""
    from pymc.logprob import conditional_logp
    from pytensor.graph.replace import clone_replace

    free, seen = model.free_RVs, model.observed_RVs
    own = {rv: rv.type(rv.name) for rv in free}
    by_value = conditional_logp({**own, **{rv: model.rvs_to_values[rv] for rv in seen}}, warn_rvs=False)
    groups = [
        (model.value_vars, model.logp([*seen, *free, *model.potentials], sum=False)),
        # As functions of the variables on their own scales, as samples have them.
        (list(own.values()), [by_value[model.rvs_to_values[rv]] for rv in seen]),
        (model.value_vars, model.replace_rvs_by_values([*free, *model.deterministics])),
    ]
    outputs = [x for _, group in groups for x in group]
    constants = _constants(outputs)
    names = tuple(rv.name for rv in free)
    point = [jax.ShapeDtypeStruct(shape, float) for shape in shapes]
    for data in (constants, {}):
        slots = {k: variable.type(k) for k, (variable, _) in data.items()}
        opened = iter(clone_replace(outputs, {data[k][0]: slot for k, slot in slots.items()}))
        arrays = {k: array for k, (_, array) in data.items()}
        graphs = [
            Graph(_to_jax([*inputs, *slots.values()], [next(opened) for _ in group]), names, tuple(slots))
            for inputs, group in groups
        ]
        try:
            for i in (0, 2):
                jax.eval_shape(lambda x, d, g=graphs[i]: g(dict(zip(names, x, strict=True)), d), point, arrays)
            break
        except Exception:  # a shape or an index made from a constant needs its value: then all are part of the program
            if not data:
                raise
    return graphs[0], graphs[1], graphs[2], arrays or None


def _constants(outputs) -> dict[str, tuple[Any, np.ndarray]]:
    """Find the larger constants of a graph, `pm.Data` among them."""
    from pytensor.compile import SharedVariable
    from pytensor.graph import Constant
    from pytensor.graph.traversal import graph_inputs
    from pytensor.tensor.random.type import RandomType

    found: dict[str, tuple[Any, np.ndarray]] = {}
    for variable in dict.fromkeys(graph_inputs(outputs)):
        if isinstance(getattr(variable, "type", None), RandomType):
            raise ValueError(
                "The PyMC model draws random numbers inside its log density (`pm.Minibatch`, or a variable that is not "
                "in the model); give it all the data."
            )
        if isinstance(variable, (SharedVariable, Constant)):
            value = variable.get_value() if isinstance(variable, SharedVariable) else variable.data
            number = isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.size >= _DATA_FROM
            if number and np.isfinite(value).all():  # `Model` takes no missing values
                name = variable.name or "constant"
                name = name if name not in found else f"{name}_{len(found)}"
                found[name] = variable, value
    return found


def _to_jax(inputs, outputs) -> Callable:
    if not outputs:
        return lambda *_: []
    from pymc.sampling.jax import get_jaxified_graph

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of assertions that JAX leaves out
            return get_jaxified_graph(inputs=inputs, outputs=outputs)
    except NotImplementedError as error:
        raise ValueError(f"The PyMC model cannot be compiled to JAX: {error}.") from error


def _import_backend() -> None:
    """Import PyMC's JAX backend without what comes with it: 64 bits and a hundred devices for the whole process."""
    flags, wide = os.environ.get("XLA_FLAGS"), jax.config.read("jax_enable_x64")
    try:
        need("pymc.sampling.jax", "pymc")
    finally:
        if flags is None:
            os.environ.pop("XLA_FLAGS", None)
        else:
            os.environ["XLA_FLAGS"] = flags
        jax.config.update("jax_enable_x64", wide)


def _labels(model, own: OwnScale, observations: Graph, prior, data) -> Labels:
    from pymc.backends.arviz import coords_and_dims_for_inferencedata, find_constants, find_observations

    coords, dims = coords_and_dims_for_inferencedata(model)
    point = {k: jax.ShapeDtypeStruct(x.shape(), float) for k, x in prior.items()}
    terms = jax.eval_shape(lambda p, d: observations(own(p, d), d), point, data)
    names = [rv.name for rv in model.observed_RVs]
    return Labels(
        dims={k: tuple(v) for k, v in dims.items()},
        coords=coords,
        observed={k: np.asarray(v) for k, v in find_observations(model).items()},
        constant={k: np.asarray(v) for k, v in find_constants(model).items()},
        blocks={k: tuple(x.shape) for k, x in zip(names, terms, strict=True)},
    )


# ---- what cannot be fitted ---------------------------------------------------------------------------------


def _check_variables(model) -> None:
    if not model.free_RVs:
        raise ValueError("The PyMC model has no free variable: there is nothing to infer.")
    if discrete := [rv.name for rv in model.free_RVs if rv.dtype.startswith(("int", "uint", "bool"))]:
        raise ValueError(
            f"{_named(discrete)} of the PyMC model: discrete. Sum over the values, as `pm.Mixture` or pymc-extras' "
            "`marginalize` do, or write the model with `yo.Model` or NumPyro, where discrete variables can be fitted."
        )


def _begin(model) -> Start:
    """Give where fits begin; refuse, by name, the first variable whose log probability is not finite there."""
    variables = [*model.free_RVs, *model.observed_RVs, *model.potentials]
    try:
        initial = model.initial_point(0)
        point = [initial[x.name] for x in model.value_vars]
    except Exception as error:
        raise ValueError(f"The PyMC model has no initial point: {_first_line(error)}") from error
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
                raise ValueError(f"{_named([variable.name])} of the PyMC model: {_first_line(error)}") from error
    advice = "Look for NaN, or values outside the support, in the parameters of its law, its observations or its `initval`."
    for i, (variable, value) in enumerate(zip(variables, values, strict=True)):
        where = _named([variable.name])
        if i < len(point) and not np.isfinite(point[i]).all():
            raise ValueError(f"{where} of the PyMC model: its initial value is {point[i]}. {advice}")
        if not np.isfinite(value).all():
            bad = np.ravel(value)[~np.isfinite(np.ravel(value))][0]
            raise ValueError(f"{where} of the PyMC model: its log probability is {bad} where PyMC begins. {advice}")
    return Start({rv.name: np.asarray(x, float) for rv, x in zip(model.free_RVs, point, strict=True)}, log_terms)


def _named(names: list[str]) -> str:
    return f"Variable{'s' * (len(names) > 1)} {', '.join(map(repr, names))}"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
