"""Models: a prior, a likelihood with one value per observation, and latents that belong to one observation each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.tree_util import all_leaves
from numpyro.distributions import Distribution, ExpandedDistribution, ImproperUniform, Independent, biject_to, constraints

from yoasovi.display import table
from yoasovi.errors import absent, check
from yoasovi.kernels.programs import precision
from yoasovi.model.centring import Centring, in_use
from yoasovi.model.density import Density, Inputs, Params, Rule, Site, local_law, widest
from yoasovi.model.external import HostDensity
from yoasovi.model.labels import Labels, names, priors
from yoasovi.model.minibatch import RowStream

_SHOWN = 8  # sites that are named where a model is shown


@dataclass(frozen=True, eq=False, kw_only=True)
class Model:
    """A Bayesian model: log p(y, theta) = sum of log priors + sum over observations of log p(y_i | theta).

    Parameters
    ----------
    prior
        One NumPyro distribution per global parameter; it gives both the prior and the support.
    log_likelihood
        Function of (params, data), parameters on their own supports, returning one value per observation: shape (N,).
    data
        Any pytree of arrays, or of lists of numbers, passed to `log_likelihood` as arrays. A Parquet file or folder, memory
        maps and other objects that can be sliced are read as rows are needed; so is `yo.stream(...)`, which has more to say
        about how.
    local
        One NumPyro distribution (or a function of the global parameters returning one) per latent variable that
        each observation has one of; `log_likelihood` finds it in `params` with shape (N,). Or, for a site of `prior`, the
        axis along which groups lie that are independent given the other sites: {"theta": 0} (see `Arrow`).
    log_marginal
        The likelihood with local latents summed out, shape (N,); used by DIC and LOO where there are local latents.
    start
        Function of a key giving the point, on the sites' own supports, where the means of q begin.
    deterministics
        Function of (params, data) giving further quantities that samples should carry.
    recovered
        Function of (key, params, data) that draws latents which `log_likelihood` has summed out; samples carry them.
    predictive
        Function of (key, params, data) that draws new observations, for `Fit.predict`.
    subsampled
        Function of (key, params, data) that gives terms of a random minibatch, scaled so that their sum is on average
        that of `log_likelihood`. A fit then looks at minibatches; what it reports is about all the data.
    batch_groups
        Groups of a hierarchy that a minibatch takes, unless `batch_size` of `fit` says otherwise.
    centring
        Sites that can be non-centred, and those that are; see `noncentred`.
    stream
        Where the rest of the rows is: given as `data` (see `yo.stream`), of which a random sample of rows is kept here.
    mesh
        Devices that share the rows of the data among them; `fit(mesh=...)` sets it.
    labels
        A `Labels`: names of axes (`dims`) and of the places along them (`coords`), used wherever parameters are shown.

    Examples
    --------
    >>> import jax.numpy as jnp, numpyro.distributions as dist, yoasovi as yo
    >>> model = yo.Model(prior={"mu": dist.Normal(0, 1)},
    ...                  log_likelihood=lambda p, y: dist.Normal(p["mu"], 0.5).log_prob(y), data=jnp.array([10.0]))
    """

    prior: Mapping[str, Distribution]
    log_likelihood: Callable[[Params, Any], jax.Array]
    data: Any = None
    local: Mapping[str, Any] = field(default_factory=dict)
    name: str = "model"
    differentiable: bool = True
    log_marginal: Callable[[Params, Any], jax.Array] | None = None
    start: Callable[[jax.Array], Params] | None = None
    deterministics: Callable[[Params, Any], Params] | None = None
    recovered: Any = None
    predictive: Callable[[jax.Array, Params, Any], Any] | None = None
    subsampled: Callable[[jax.Array, Params, Any], jax.Array] | None = None
    batch_groups: int | None = None
    default_family: Any = None
    exact_elbo: Callable[[Any], jax.Array] | None = None
    optimum: Callable[[], float] | None = None
    centring: Centring | None = None
    labels: Labels | None = None
    mesh: Mesh | None = None
    stream: RowStream | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", _as_rows(_in_arrays(self.data)))
        if isinstance(self.data, RowStream):
            rows = self.data.sample
            object.__setattr__(self, "stream", self.data if len(self.data) > len(jax.tree.leaves(rows)[0]) else None)
            object.__setattr__(self, "data", rows)
        check(isinstance(self.prior, Mapping) and len(self.prior) > 0, "prior", "Model", "a non-empty dict", self.prior)
        for name, law in self.prior.items():
            check(isinstance(law, Distribution), f"prior[{name!r}]", "Model", "a NumPyro distribution", law)
        check(callable(self.log_likelihood), "log_likelihood", "Model", "callable", self.log_likelihood)
        if clash := set(self.prior) & set(self.laws):
            raise ValueError(f"`local` of `Model` repeats names of `prior`: {sorted(clash)}.")
        usable = self.subsampled is None or (callable(self.subsampled) and not self.laws)
        check(usable, "subsampled", "Model", "a function, of a model without `local`", self.subsampled)
        _check_data(self.data)
        unknown = sorted(set(self.groups) - set(self.prior))
        check(not unknown, "local", "Model", f"an axis of sites of the prior ({', '.join(self.prior)})", unknown)
        _ = self.density  # evaluates shapes once, so that a wrong model fails here and not inside a compiled loop

    @classmethod
    def from_log_density(
        cls,
        fn: Callable[[Params], jax.Array],
        supports: Mapping[str, constraints.Constraint],
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        **fields: Any,
    ) -> Model:
        """Wrap any JAX function of a dict of parameters that returns log p up to a constant.

        `supports` gives the NumPyro constraint of each parameter, `shapes` its shape (scalars may be left out).
        """
        check(callable(fn), "fn", "Model.from_log_density", "callable", fn)
        check(isinstance(supports, Mapping) and supports, "supports", "Model.from_log_density", "a dict", supports)
        shapes = dict(shapes or {})
        if unknown := set(shapes) - set(supports):
            raise ValueError(
                f"`shapes` of `Model.from_log_density` names {sorted(unknown)}; `supports` has {', '.join(supports)}."
            )
        prior = {k: ImproperUniform(c, (), tuple(shapes.get(k, ()))) for k, c in supports.items()}
        return cls(prior=prior, log_likelihood=WholeDensity(fn), **fields)

    @classmethod
    def external(
        cls, fn: Callable[[np.ndarray], Any], dim: int, *, gradient: bool = False, batched: bool = False,
        vectorized: bool = False, **fields: Any,
    ) -> Model:  # fmt: skip
        """Wrap any Python function of a NumPy vector of length `dim`: it is called as it is, never traced.

        Values alone are used, unless `gradient=True`: then it gives (value, gradient) and the whole default method works.
        With `batched=True` (or `vectorized=True`, its older name) it is given (S, dim) and returns (S,), with a gradient of
        shape (S, dim). All of x is real: what is positive or bounded is for `fn` to transform, with the log Jacobian, and
        for `deterministics` to give back on its own scale.
        """
        check(callable(fn), "fn", "Model.external", "callable", fn)
        check(isinstance(dim, int) and dim > 0, "dim", "Model.external", "a positive integer", dim)
        for name, value in (("gradient", gradient), ("batched", batched), ("vectorized", vectorized)):
            check(isinstance(value, bool), name, "Model.external", "True or False", value)
        prior = {"x": ImproperUniform(constraints.real, (), (dim,))}
        density = HostDensity(fn, batched or vectorized, gradient)
        return cls(prior=prior, log_likelihood=density, differentiable=gradient, **fields)

    @property
    def laws(self) -> dict[str, Any]:
        """Laws of the latents that each observation has one of."""
        return {k: law for k, law in self.local.items() if not isinstance(law, int)}

    @property
    def groups(self) -> dict[str, int]:
        """The axis along which groups lie, by site, where it was said."""
        return {k: axis for k, axis in self.local.items() if isinstance(axis, int)}

    @property
    def inputs(self) -> Inputs:
        local = {k: law if isinstance(law, Distribution) else Rule(law) for k, law in self.laws.items()}
        return Inputs(dict(self.prior), local, self.data)

    @property
    def num_observations(self) -> int:
        return self.density.num_observations if self.stream is None else len(self.stream)

    @cached_property
    def density(self) -> Density:
        sites = tuple(_site(name, law) for name, law in self.prior.items())
        point = {s.name: jax.ShapeDtypeStruct(s.shape, jnp.result_type(int if s.discrete else float)) for s in sites}
        size = _leading(self.data)
        locals_ = []
        for name, law in self.laws.items():
            if size is None:
                raise ValueError("`local` of `Model` needs `data` whose arrays share their first dimension.")
            law = local_law(law, {k: np.ones(v.shape, v.dtype) for k, v in point.items()})
            check(isinstance(law, Distribution), f"local[{name!r}]", "Model", "a NumPyro distribution", law)
            locals_.append(Site(name, (size,), (size,), bool(law.is_discrete)))
            point[name] = jax.ShapeDtypeStruct((size,), jnp.result_type(int if law.is_discrete else float))
        if isinstance(self.log_likelihood, HostDensity):
            return Density(self.log_likelihood, sites, (), 1, self.differentiable)
        try:
            with precision():
                program, out = jax.make_jaxpr(self.log_likelihood, return_shape=True)(point, self.data)
        except KeyError as error:
            raise ValueError(f"`log_likelihood` of `Model` asks for {absent(error, point, self.data)}") from error
        except Exception as error:
            raise ValueError(f"`log_likelihood` of `Model` failed on parameters of the prior's shapes: {error}") from error
        shape = getattr(out, "shape", None)
        if shape is None or len(shape) != 1 or (size is not None and locals_ and shape[0] != size):
            want = "(N,)" if size is None else f"({size},)"
            raise ValueError(
                f"`log_likelihood` of `Model` must return one value per observation, shape {want}; got shape {shape}. "
                "Do not sum over observations; for a single number use `Model.from_log_density`."
            )
        width, centring = widest(program.jaxpr), self.centring if self.centred else None
        return Density(
            self.log_likelihood, sites, tuple(locals_), shape[0], self.differentiable, width, centring=centring
        )  # fmt: skip

    @cached_property
    def batch_density(self) -> Density:
        """The density of minibatches, where there are any."""
        if self.subsampled is None:
            return self.density
        point = {s.name: jax.ShapeDtypeStruct(s.shape, jnp.result_type(float)) for s in self.density.sites}
        with precision():
            program = jax.make_jaxpr(self.subsampled)(jax.random.key(0), point, self.data)
        return self.density._replace(subsampled=self.subsampled, width=widest(program.jaxpr))

    @property
    def centred(self) -> dict[str, float]:
        """The sites that are non-centred, each with how far it is centred still."""
        return {} if self.centring is None else dict(self.centring.centred)

    def names(self, site: str, shape: tuple[int, ...]) -> list[str]:
        """Name every number of a site's, or another drawn quantity's, array."""
        return names(site, shape, self.labels)

    @property
    def free_names(self) -> list[str]:
        """Names of the coordinates of the flat unconstrained vector, with the form of sites that are in another."""
        each = [(site.name, name) for site in self.density.sites for name in self.names(site.name, site.free_shape)]
        return [in_use(name, self.centred.get(site)) for site, name in each]

    @property
    def priors(self) -> dict[str, str]:
        """The proper priors of continuous parameters in words, by name."""
        return priors(self.prior, self.labels)

    @property
    def on_host(self) -> bool:
        """Whether log p is a function that the host calls."""
        return isinstance(self.log_likelihood, HostDensity)

    def __repr__(self) -> str:
        sites = [" ".join((s.name, str(s.shape))) if s.shape else s.name for s in self._sites]
        shown = ", ".join([*sites[:_SHOWN], *(["..."] if len(sites) > _SHOWN else [])])
        return f"Model({self.name}, {self._size}: {shown})"

    def _repr_html_(self) -> str:
        rows = [(s.name, str(s.shape) if s.shape else "", _law(self, s)) for s in self._sites[:_SHOWN]]
        more = [("...", "", "")] if len(self._sites) > _SHOWN else []
        return table(f"{self.name}: {self._size}", [*rows, *more], ("site", "shape", "prior"))

    @property
    def _sites(self) -> tuple[Site, ...]:
        return (*self.density.sites, *self.density.local_sites)

    @property
    def _size(self) -> str:
        count, local = (sum(math.prod(s.shape) for s in x) for x in (self.density.sites, self.density.local_sites))
        return f"{count:,} parameter{'s' if count != 1 else ''}" + (f", {local:,} latents of observations" if local else "")


@dataclass(frozen=True)
class WholeDensity:
    """A log density given as one number, seen as a likelihood with a single observation."""

    fn: Callable[..., Any]

    def __call__(self, params: Any, data: Any) -> Any:
        value = jnp.asarray(self.fn(params))
        if value.shape != ():
            raise ValueError(f"`fn` of `Model.from_log_density` must return a scalar; got shape {value.shape}")
        return value[None]


def _law(model: Model, site: Site) -> str:
    law = model.prior.get(site.name, model.local.get(site.name))
    while isinstance(law, ExpandedDistribution | Independent):
        law = law.base_dist
    return "flat" if isinstance(law, ImproperUniform) else type(law).__name__ if isinstance(law, Distribution) else "local"


def _site(name: str, law: Distribution) -> Site:
    shape = tuple(law.batch_shape) + tuple(law.event_shape)
    if law.is_discrete:
        return Site(name, shape, shape, True)
    return Site(name, shape, tuple(biject_to(law.support).inverse_shape(shape)), False)


def _in_arrays(data: Any) -> Any:
    """Turn lists of numbers, and lists of such lists, into arrays; all else stays as it is."""
    if not any(map(_is_listed, jax.tree.leaves(data, is_leaf=_is_listed))):
        return data
    return jax.tree_util.tree_map_with_path(_as_array, data, is_leaf=_is_listed)


def _as_array(path: Any, x: Any) -> Any:
    if not _is_listed(x):
        return x
    try:
        return np.asarray(x)
    except ValueError as error:
        where = f"`data{jax.tree_util.keystr(path)}` of `Model`"
        raise ValueError(f"{where} must be an array, or lists of one length; got lists of several lengths.") from error


def _is_listed(x: Any) -> bool:
    if not isinstance(x, list):
        return False
    rows = bool(x) and all(isinstance(row, list) and row for row in x)
    return bool(x) and all(
        isinstance(one, int | float | np.number | np.bool_) for row in (x if rows else [x]) for one in row
    )


def _as_rows(data: Any) -> Any:
    """Read rows as they are needed where data are a path, memory maps, or something of a length that can be sliced."""
    parts = list(data.values()) if isinstance(data, Mapping) else [data]
    rows = any(map(_in_slices, parts)) and len({len(x) for x in parts if hasattr(x, "__len__")}) == 1
    if not rows and not isinstance(data, str | PathLike):
        return data
    from yoasovi.scale.stream import stream

    try:
        return stream(data)
    except ValueError as error:
        raise ValueError(str(error).replace("`source` of `stream`", "`data` of `Model`")) from error


def _in_slices(x: Any) -> bool:
    if isinstance(x, np.memmap):
        return True
    sliced = hasattr(x, "__len__") and hasattr(x, "__getitem__") and not hasattr(x, "columns")  # tables go by their names
    return sliced and not isinstance(x, Mapping | Sequence | np.ndarray | jax.Array | RowStream) and all_leaves([x])


def _leading(data: Any) -> int | None:
    sizes = {np.shape(x)[0] for x in jax.tree.leaves(data) if np.ndim(x) > 0}
    return sizes.pop() if len(sizes) == 1 else None


def _check_data(data: Any) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(data):
        where = f"data{jax.tree_util.keystr(path)}"
        array = np.asarray(leaf)
        check(array.dtype.kind in "biufc", where, "Model", "numeric", array.dtype)
        check(array.size > 0, where, "Model", "non-empty", f"an array of shape {array.shape}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            bad = int((~np.isfinite(array)).sum())
            raise ValueError(
                f"`{where}` of `Model` must be finite; got {bad} NaN or infinite value(s). "
                "Drop or impute them; model missing values as latent variables."
            )
