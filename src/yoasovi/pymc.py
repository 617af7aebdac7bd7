"""The PyMC door: a `pm.Model` in, a `Model` out, compiled to JAX by PyMC itself.

Every free variable is a site, with PyMC's own transform as the way to its support. One whose support moves with other
variables, as y ~ Uniform(0, x) does, is an unconstrained site of PyMC's name for that, `y_interval__`, and y itself a
deterministic.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import ImproperUniform, biject_to, constraints
from numpyro.distributions.transforms import Transform

from yoasovi.answer.arviz import Labels
from yoasovi.errors import check
from yoasovi.extras import need
from yoasovi.kernels.programs import precision
from yoasovi.model import Model, Params

_DATA_FROM = 16  # constants of at least so many numbers are data of the compiled program, not part of it
_TRIES = 10  # jittered starts, each closer to PyMC's own, before that one itself is taken


def from_pymc(model: Any) -> Model:
    """Make a `Model` of a PyMC model; its transforms, dims and coords are kept.

    The density is the one PyMC's own samplers see. `log_likelihood` has one entry per observation first, then those of
    the free variables and of potentials; `log_marginal` has the observations alone. Missing values that PyMC imputes are
    free variables like others. A fit begins at PyMC's initial point, jittered as PyMC does it. `fit.predict()` draws the
    observed variables at what `pm.Data` hold then: change it by `pm.set_data`, or for one call, `fit.predict({"X": new})`.

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
        sites = _sites(model, begin.point)
        prior = {x.name: ImproperUniform(x.support, (), x.shape) for x in sites}
        terms, observations, others, data = _compiled(model, sites)
        shown = tuple(x.rv.name for x in sites if x.moves) + tuple(x.name for x in model.deterministics)
        return Model(
            prior=prior, log_likelihood=LogTerms(terms), log_marginal=LogTerms(observations), data=data,
            start=Start(sites, begin), deterministics=Deterministics(others, shown) if shown else None,
            predictive=_predictive(model), name=model.name or "PyMC model", labels=_labels(model, sites, observations, data),
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
class Deterministics:
    """The variables whose support moves, and the model's deterministics."""

    graph: Graph
    names: tuple[str, ...]

    def __call__(self, params, data):
        """Evaluate them."""
        return {k: jnp.asarray(x) for k, x in zip(self.names, self.graph(params, data), strict=True)}


@dataclass(frozen=True, eq=False)
class Warp:
    """A PyMC transform in JAX, and the shapes on both its sides."""

    forward: Callable
    backward: Callable
    log_jacobian: Callable
    shape: tuple[int, ...]
    free_shape: tuple[int, ...]


class Support(constraints.Constraint):
    """Where a PyMC transform leads."""

    def __init__(self, warp: Warp):
        self.warp = warp

    @property
    def event_dim(self):
        return len(self.warp.shape)

    def __call__(self, x):
        """Take every value: PyMC's density says what is outside."""
        return jnp.asarray(True)

    def tree_flatten(self):
        return (), ((), {"warp": self.warp})


class Unwarp(Transform):
    """From the unconstrained scale to a variable's own."""

    def __init__(self, warp: Warp):
        self.warp = warp

    def __call__(self, x):
        """Give the variable on its own scale."""
        return self.warp.backward(x)[0]

    def _inverse(self, y):
        return self.warp.forward(y)[0]

    def log_abs_det_jacobian(self, x, y, intermediates=None):
        return jnp.sum(self.warp.log_jacobian(x)[0])

    def forward_shape(self, shape):
        return self.warp.shape

    def inverse_shape(self, shape):
        return self.warp.free_shape

    def tree_flatten(self):
        return (), ((), {"warp": self.warp})


biject_to.register(Support, lambda support: Unwarp(support.warp))


class Site(NamedTuple):
    """A free variable and its place in the model."""

    name: str
    rv: Any
    value: Any  # the variable that stands for it in PyMC's graphs
    support: constraints.Constraint
    shape: tuple[int, ...]
    moves: bool


class Begin(NamedTuple):
    """PyMC's initial point on the unconstrained scale, in the order of the free variables, and log p as PyMC has it."""

    point: list[np.ndarray]
    log_terms: Callable


@dataclass(frozen=True, eq=False)
class Start:
    """PyMC's initial point, jittered by up to one on the unconstrained scale as PyMC's samplers do."""

    sites: tuple[Site, ...]
    begin: Begin

    def __call__(self, key):
        """Give a point where log p is finite."""
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel())
        for i in range(_TRIES):
            free = [x + 0.5**i * rng.uniform(-1.0, 1.0, x.shape) for x in self.begin.point]
            if all(np.isfinite(x).all() for x in self.begin.log_terms(*free)):
                break
        else:
            free = self.begin.point
        return {x.name: biject_to(x.support)(jnp.asarray(v)) for x, v in zip(self.sites, free, strict=True)}


@dataclass(frozen=True, eq=False)
class Predictive:
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
        before, coords = {k: self.model[k].get_value() for k in changed}, dict(self.model.coords)
        try:
            _set_data(self.model, changed, self.coords if changed is self.fitted else {})
            return self._draw(seed, draws)
        finally:
            _set_data(self.model, before, coords)

    def _draw(self, seed: int, draws: Params) -> dict[str, np.ndarray]:
        from pymc.sampling.forward import compile_forward_sampling_function

        outputs = self.model.observed_RVs
        if not outputs:
            raise ValueError("The PyMC model has no observed variable: it has nothing to predict.")
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
        except ValueError as error:
            raise ValueError(
                f"The PyMC model cannot be drawn from at these data: {_first_line(error)} An observed variable has the "
                "shape of its observations, unless it is given `dims` or a `shape` that follow the data: shape=x.shape[0]."
            ) from error
        return {x.name: np.stack([np.asarray(one[j]) for one in made]) for j, x in enumerate(outputs)}


# ---- from PyMC ---------------------------------------------------------------------------------------------


def _sites(model, point: list[np.ndarray]) -> tuple[Site, ...]:
    """Find each free variable's place: on its own scale, unless the way there depends on other variables."""
    from pytensor.graph.traversal import ancestors

    sites = []
    for rv, start in zip(model.free_RVs, point, strict=True):
        transform, value, shape = model.rvs_to_transforms[rv], model.rvs_to_values[rv], start.shape
        if transform is None:
            sites.append(Site(rv.name, rv, value, constraints.real, shape, False))
            continue
        own, around = rv.type(rv.name), rv.owner.inputs
        there, back = transform.backward(value, *around), transform.forward(own, *around)
        if set(ancestors([there])) & set(model.basic_RVs):
            sites.append(Site(value.name, rv, value, constraints.real, shape, True))
            continue
        jacobian = transform.log_jac_det(value, *around)
        forward, backward, log_jacobian = _to_jax([own], [back]), _to_jax([value], [there]), _to_jax([value], [jacobian])
        own_shape = jax.eval_shape(backward, jax.ShapeDtypeStruct(shape, float))[0].shape
        warp = Warp(forward, backward, log_jacobian, own_shape, shape)
        sites.append(Site(rv.name, rv, own, Support(warp), own_shape, False))
    return tuple(sites)


def _compiled(model, sites: tuple[Site, ...]) -> tuple[Graph, Graph, Graph, dict[str, np.ndarray] | None]:
    """Compile all terms of log p, those of observations alone, and what samples show besides the sites."""
    from pymc.logprob.basic import transformed_conditional_logp
    from pymc.logprob.utils import replace_rvs_by_values
    from pytensor.graph.replace import clone_replace

    seen = model.observed_RVs
    places = dict(
        rvs_to_values={**{x.rv: x.value for x in sites}, **{rv: model.rvs_to_values[rv] for rv in seen}},
        rvs_to_transforms={rv: None for rv in seen}
        | {x.rv: model.rvs_to_transforms[x.rv] if x.moves else None for x in sites},
    )
    terms = transformed_conditional_logp([*seen, *model.free_RVs], **places)
    potentials = replace_rvs_by_values(model.potentials, **places) if model.potentials else []
    others = [x.rv for x in sites if x.moves] + model.deterministics
    others = replace_rvs_by_values(others, **places) if others else []
    groups = [[*terms, *potentials], terms[: len(seen)], others]
    outputs = [x for group in groups for x in group]
    constants = _constants(outputs)
    names, inputs = tuple(x.name for x in sites), [x.value for x in sites]
    point = {x.name: jax.ShapeDtypeStruct(x.shape, float) for x in sites}
    for data in (constants, {}):
        slots = {k: variable.type(k) for k, (variable, _) in data.items()}
        opened = iter(clone_replace(outputs, {data[k][0]: slot for k, slot in slots.items()}))
        arrays = {k: array for k, (_, array) in data.items()}
        compiled = [_to_jax([*inputs, *slots.values()], [next(opened) for _ in group]) for group in groups]
        graphs = [Graph(fn, names, tuple(slots)) for fn in compiled]
        try:
            for graph in graphs:
                jax.eval_shape(graph, point, arrays)
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
    """Import PyMC's JAX backend without what comes with it: 64 bits and a hundred devices for the whole process.

    Whoever wants to use PyMC's own JAX samplers after this sets `jax_enable_x64`, or imports `pymc.sampling.jax` before.
    """
    flags, wide = os.environ.get("XLA_FLAGS"), jax.config.read("jax_enable_x64")
    try:
        need("pymc.sampling.jax", "pymc")
    finally:
        if flags is None:
            os.environ.pop("XLA_FLAGS", None)
        else:
            os.environ["XLA_FLAGS"] = flags
        jax.config.update("jax_enable_x64", wide)


def _labels(model, sites: tuple[Site, ...], observations: Graph, data) -> Labels:
    from pymc.backends.arviz import coords_and_dims_for_inferencedata, find_constants, find_observations

    coords, dims = coords_and_dims_for_inferencedata(model)
    terms = jax.eval_shape(observations, {x.name: jax.ShapeDtypeStruct(x.shape, float) for x in sites}, data)
    names = [rv.name for rv in model.observed_RVs]
    return Labels(
        dims={k: tuple(v) for k, v in dims.items()},
        coords=coords,
        observed={k: np.asarray(v) for k, v in find_observations(model).items()},
        constant={k: np.asarray(v) for k, v in find_constants(model).items()},
        blocks={k: tuple(x.shape) for k, x in zip(names, terms, strict=True)},
    )


def _predictive(model) -> Any:
    return Predictive(model, {x.name: x.get_value() for x in model.data_vars}, dict(model.coords), _lengths(model))


def _lengths(model) -> dict[str, int]:
    return {k: int(x.eval()) for k, x in model.dim_lengths.items()}


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


# ---- what cannot be fitted ---------------------------------------------------------------------------------


def _check_variables(model) -> None:
    if not model.free_RVs:
        raise ValueError("The PyMC model has no free variable: there is nothing to infer.")
    if discrete := [rv.name for rv in model.free_RVs if rv.dtype.startswith(("int", "uint", "bool"))]:
        raise ValueError(
            f"{_named(discrete)} of the PyMC model: discrete. Sum over the values and fit the rest: write `pm.Mixture`, "
            f"or give `pymc_extras.marginalize(model, {discrete})` in its place. `yo.Model` and NumPyro models may have "
            "discrete variables."
        )


def _begin(model) -> Begin:
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
    return Begin([np.asarray(x, float) for x in point], log_terms)


def _named(names: list[str]) -> str:
    return f"Variable{'s' * (len(names) > 1)} {', '.join(map(repr, names))}"


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
