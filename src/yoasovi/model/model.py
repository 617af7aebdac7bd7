"""Models: a prior, a likelihood with one value per observation, and latents that belong to one observation each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import Distribution, ImproperUniform, biject_to, constraints

from yoasovi.errors import check
from yoasovi.kernels.programs import FAULTS

Params = dict[str, jax.Array]


class Site(NamedTuple):
    """What is static about one random variable: its shape on its own and on the unconstrained scale."""

    name: str
    shape: tuple[int, ...]
    free_shape: tuple[int, ...]
    discrete: bool


class Inputs(NamedTuple):
    """Everything of a model that may change without compiling again."""

    prior: dict[str, Distribution]
    local: dict[str, Any]
    data: Any


class Terms(NamedTuple):
    """log p(y, theta), kept apart so that differences can be taken term by term before they are summed."""

    prior: dict[str, jax.Array]  # one number per global site, Jacobian included where there is one
    local: dict[str, jax.Array]  # (N,) per local site
    likelihood: jax.Array  # (N,)

    def total(self) -> jax.Array:
        return sum((jnp.sum(x) for x in jax.tree.leaves(self)), jnp.asarray(0.0))


class Anchor(NamedTuple):
    """A place where the likelihood is known on all the data, with its gradient."""

    flat: jax.Array  # (d,), unconstrained
    value: jax.Array
    gradient: jax.Array  # (d,)


class Batch(NamedTuple):
    """A minibatch: the key that names its rows, and the anchor its noise is taken off at, if there is one."""

    key: jax.Array
    anchor: Anchor | None = None


class Density(NamedTuple):
    """The static half of a model, hashable: with `Inputs` it can be evaluated inside a compiled loop.

    `subsampled` is there inside a fit by minibatches only; what is said of the fit afterwards is about all the data.
    """

    log_likelihood: Callable
    sites: tuple[Site, ...]
    local_sites: tuple[Site, ...]
    num_observations: int
    differentiable: bool
    subsampled: Callable | None = None

    @property
    def dim(self) -> int:
        """Length of the flat unconstrained vector of all global sites."""
        return sum(int(np.prod(s.free_shape)) for s in self.sites)

    def split(self, flat: jax.Array) -> Params:
        """Cut a flat vector into one unconstrained array per global site."""
        parts, start = {}, 0
        for site in self.sites:
            size = int(np.prod(site.free_shape))
            parts[site.name] = flat[start : start + size].reshape(site.free_shape)
            start += size
        return parts

    def constrain(self, inputs: Inputs, flat: jax.Array) -> tuple[Params, Params]:
        """Map a flat vector to the sites' own supports; also the log Jacobian of each site."""
        params, jacobian = {}, {}
        for name, x in self.split(flat).items():
            transform = biject_to(inputs.prior[name].support)
            params[name] = transform(x)
            jacobian[name] = jnp.sum(transform.log_abs_det_jacobian(x, params[name]))
        return params, jacobian

    def terms(self, inputs: Inputs, params: Params, likelihood: jax.Array | None = None) -> Terms:
        """Evaluate the terms of log p(y, theta) at parameters on their own supports; the likelihood's may be given."""
        prior = {s.name: jnp.sum(inputs.prior[s.name].log_prob(params[s.name])) for s in self.sites}
        local = {s.name: local_law(inputs.local[s.name], params).log_prob(params[s.name]) for s in self.local_sites}
        return Terms(prior, local, self.log_likelihood(params, inputs.data) if likelihood is None else likelihood)

    def free_terms(self, inputs: Inputs, flat: jax.Array, batch: Batch | None = None) -> Terms:
        """Evaluate the terms at a flat unconstrained vector, with the Jacobians of the transforms."""
        params, jacobian = self.constrain(inputs, flat)
        terms = self.terms(inputs, params, None if batch is None else self._estimated(inputs, flat, batch))
        return terms._replace(prior={k: v + jacobian[k] for k, v in terms.prior.items()})

    def anchored(self, inputs: Inputs, flat: jax.Array) -> Anchor:
        """Look at the likelihood of all the data at one place."""
        whole = lambda x: jnp.sum(self.log_likelihood(self.constrain(inputs, x)[0], inputs.data))
        return Anchor(flat, *jax.value_and_grad(whole)(flat))

    def _estimated(self, inputs: Inputs, flat: jax.Array, batch: Batch) -> jax.Array:
        """Estimate the likelihood from a minibatch: terms whose sum is right on average.

        The tangent at the anchor is known on all the data. What the minibatch says of it is pure noise, and taken off.
        """
        rows = lambda x: self.subsampled(batch.key, self.constrain(inputs, x)[0], inputs.data)  # type: ignore[misc]
        if batch.anchor is None:
            return rows(flat)
        away = flat - batch.anchor.flat
        there, slope = jax.jvp(rows, (batch.anchor.flat,), (away,))
        return jnp.append(rows(flat) - there - slope, batch.anchor.value + batch.anchor.gradient @ away)


@jax.tree_util.register_static
@dataclass(frozen=True)
class Rule:
    """The law of a local latent as a function of the global parameters; static, unlike a fixed law."""

    fn: Callable[[Params], Distribution]

    def __call__(self, params: Params) -> Distribution:
        return self.fn(params)


def local_law(law: Distribution | Callable[[Params], Distribution], params: Params) -> Distribution:
    """Give the prior of a local latent: fixed, or a function of the global parameters."""
    return law if isinstance(law, Distribution) else law(params)


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
        Any pytree of arrays, passed to `log_likelihood`.
    local
        One NumPyro distribution (or a function of the global parameters returning one) per latent variable that
        each observation has one of; `log_likelihood` finds it in `params` with shape (N,).
    log_marginal
        The likelihood with local latents summed out, shape (N,); used by DIC and LOO where there are local latents.
    start
        Function of a key giving the point, on the sites' own supports, where the means of q begin.
    deterministics
        Function of (params, data) giving further quantities that samples should carry.
    predictive
        Function of (key, params, data) that draws new observations, for `Fit.predict`.
    subsampled
        Function of (key, params, data) that gives terms of a random minibatch, scaled so that their sum is on average
        that of `log_likelihood`. A fit then looks at minibatches; what it reports is about all the data.

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
    predictive: Callable[[jax.Array, Params, Any], Any] | None = None
    subsampled: Callable[[jax.Array, Params, Any], jax.Array] | None = None
    default_family: Any = None
    exact_elbo: Callable[[Any], jax.Array] | None = None
    optimum: Callable[[], float] | None = None
    labels: Any = None  # `labelled.Labels`: dims, coords and observed variables of labelled output

    def __post_init__(self):
        check(isinstance(self.prior, Mapping) and len(self.prior) > 0, "prior", "Model", "a non-empty dict", self.prior)
        for name, law in self.prior.items():
            check(isinstance(law, Distribution), f"prior[{name!r}]", "Model", "a NumPyro distribution", law)
        check(callable(self.log_likelihood), "log_likelihood", "Model", "callable", self.log_likelihood)
        if clash := set(self.prior) & set(self.local):
            raise ValueError(f"`local` of `Model` repeats names of `prior`: {sorted(clash)}.")
        usable = self.subsampled is None or (callable(self.subsampled) and not self.local)
        check(usable, "subsampled", "Model", "a function, of a model without `local`", self.subsampled)
        _check_data(self.data)
        _ = self.density  # evaluates shapes once, so that a wrong model fails here and not inside a compiled loop

    @classmethod
    def from_log_density(
        cls,
        fn: Callable[[Params], jax.Array],
        supports: Mapping[str, constraints.Constraint],
        shapes: Mapping[str, tuple[int, ...]] | None = None,
        **fields,
    ) -> Model:
        """Wrap any JAX function of a dict of parameters that returns log p up to a constant.

        `supports` gives the NumPyro constraint of each parameter, `shapes` its shape (scalars may be left out).
        """
        check(callable(fn), "fn", "Model.from_log_density", "callable", fn)
        check(isinstance(supports, Mapping) and supports, "supports", "Model.from_log_density", "a dict", supports)
        shapes = dict(shapes or {})
        if unknown := set(shapes) - set(supports):
            raise ValueError(f"`shapes` of `Model.from_log_density` names {sorted(unknown)}, not in `supports`.")
        prior = {k: ImproperUniform(c, (), tuple(shapes.get(k, ()))) for k, c in supports.items()}
        return cls(prior=prior, log_likelihood=WholeDensity(fn), **fields)

    @classmethod
    def external(cls, fn: Callable[[np.ndarray], float], dim: int, *, vectorized: bool = False, **fields) -> Model:
        """Wrap any Python function of a NumPy vector of length `dim`: not traced, not differentiated.

        Only its values are used (the score path). With `vectorized=True` it is given (S, dim) and returns (S,).
        """
        check(callable(fn), "fn", "Model.external", "callable", fn)
        check(isinstance(dim, int) and dim > 0, "dim", "Model.external", "a positive integer", dim)
        prior = {"x": ImproperUniform(constraints.real, (), (dim,))}
        return cls(prior=prior, log_likelihood=HostDensity(fn, vectorized), differentiable=False, **fields)

    @property
    def inputs(self) -> Inputs:
        local = {k: law if isinstance(law, Distribution) else Rule(law) for k, law in self.local.items()}
        return Inputs(dict(self.prior), local, self.data)

    @property
    def num_observations(self) -> int:
        return self.density.num_observations

    @cached_property
    def density(self) -> Density:
        sites = tuple(_site(name, law) for name, law in self.prior.items())
        point = {s.name: jax.ShapeDtypeStruct(s.shape, jnp.result_type(int if s.discrete else float)) for s in sites}
        size = _leading(self.data)
        locals_ = []
        for name, law in self.local.items():
            if size is None:
                raise ValueError("`local` of `Model` needs `data` whose arrays share their first dimension.")
            law = local_law(law, {k: jnp.ones(v.shape, v.dtype) for k, v in point.items()})
            check(isinstance(law, Distribution), f"local[{name!r}]", "Model", "a NumPyro distribution", law)
            locals_.append(Site(name, (size,), (size,), bool(law.is_discrete)))
            point[name] = jax.ShapeDtypeStruct((size,), jnp.result_type(int if law.is_discrete else float))
        try:
            out = jax.eval_shape(self.log_likelihood, point, self.data)
        except Exception as error:
            raise ValueError(f"`log_likelihood` of `Model` failed on parameters of the prior's shapes: {error}") from error
        shape = getattr(out, "shape", None)
        if shape is None or len(shape) != 1 or (size is not None and locals_ and shape[0] != size):
            want = "(N,)" if size is None else f"({size},)"
            raise ValueError(
                f"`log_likelihood` of `Model` must return one value per observation, shape {want}; got shape {shape}. "
                "Do not sum over observations; for a single number use `Model.from_log_density`."
            )
        return Density(self.log_likelihood, sites, tuple(locals_), shape[0], self.differentiable)


@dataclass(frozen=True)
class WholeDensity:
    """A log density given as one number, seen as a likelihood with a single observation."""

    fn: Callable

    def __call__(self, params, data):
        value = jnp.asarray(self.fn(params))
        if value.shape != ():
            raise ValueError(f"`fn` of `Model.from_log_density` must return a scalar; got shape {value.shape}")
        return value[None]


@dataclass(frozen=True)
class HostDensity:
    """A Python function called on the host with NumPy vectors."""

    fn: Callable
    vectorized: bool = False

    def __call__(self, params, data):
        x = params["x"]
        # Numbers travel as words: JAX would round them to 32 bits on the host's thread, which has the global precision.
        words = jax.lax.bitcast_convert_type(x, jnp.uint32)
        out = jax.ShapeDtypeStruct((1, *words.shape[1:]), words.dtype)
        method = "expand_dims" if self.vectorized else "sequential"
        found = jax.pure_callback(partial(self._host, np.dtype(x.dtype)), out, words, vmap_method=method)
        return jax.lax.bitcast_convert_type(found, x.dtype)

    def _host(self, dtype, words):
        x = np.array(words).view(dtype)  # a copy, which the function may change
        wide = dtype.itemsize > 4
        x = x[..., 0] if wide else x
        rows = x.reshape(-1, x.shape[-1])
        value = np.full(len(rows), np.nan)
        if self not in FAULTS:
            try:
                value = self._values(rows)
            except Exception as error:  # raised here it would lose its type; see `raise_faults`
                FAULTS[self] = self._with_draw(error, rows)
        value = value.astype(dtype).reshape(*x.shape[:-1], 1)
        return (value[..., None] if wide else value).view(np.uint32)

    def _values(self, rows: np.ndarray) -> np.ndarray:
        """Call the function and check what it returns, (S, dim) to (S,)."""
        found = self.fn(rows) if self.vectorized else self.fn(rows[0])
        value = np.asarray(found)
        shape = (len(rows),) if self.vectorized else ()
        check(value.dtype.kind in "biuf", "fn", "Model.external", "a function returning numbers", found)
        ok = value.shape == shape or (not self.vectorized and value.size == 1)
        check(ok, "fn", "Model.external", f"a function returning shape {shape}", f"shape {value.shape}")
        return value.reshape(-1)

    def _with_draw(self, error: Exception, rows: np.ndarray) -> Exception:
        """Note on the error which draw raised it; of several, the first that does so alone."""
        culprit = rows[0] if len(rows) == 1 else None
        for row in rows if culprit is None else ():
            try:
                self._values(row[None])
            except Exception:
                culprit = row
                break
        shown = f"{len(rows)} draws together" if culprit is None else f"x = {np.array2string(culprit, threshold=20)}"
        error.add_note(f"raised by `fn` of `Model.external` at {shown}")
        return error


def _site(name: str, law: Distribution) -> Site:
    shape = tuple(law.batch_shape) + tuple(law.event_shape)
    if law.is_discrete:
        return Site(name, shape, shape, True)
    return Site(name, shape, tuple(biject_to(law.support).inverse_shape(shape)), False)


def _leading(data) -> int | None:
    sizes = {np.shape(x)[0] for x in jax.tree.leaves(data) if np.ndim(x) > 0}
    return sizes.pop() if len(sizes) == 1 else None


def _check_data(data) -> None:
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
