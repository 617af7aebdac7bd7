"""The NumPyro door: a model function with its arguments in, a `Model` out.

The function is run twice to see its sites, once more to see which laws depend on other sites, and from then on only
inside compiled programs. A latent site whose law is fixed keeps it as its prior. One whose law depends on other sites
has a flat prior on its support, and its log probability joins the terms of the likelihood. One whose support moves with
other sites, as y ~ Uniform(0, x) does, becomes an unconstrained site `y_base`, and y a deterministic one.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import biject_to, constraints
from numpyro.handlers import seed, substitute, trace
from numpyro.infer.initialization import init_to_uniform
from numpyro.infer.util import compute_log_probs

from yoasovi.compiling import precision
from yoasovi.errors import check, shown
from yoasovi.model import Model, Params

# What `Factorised` has a law for; beside discrete sites, all other supports are unconstrained first.
_WITH_A_LAW = (constraints.real, constraints.positive, constraints.unit_interval, constraints.simplex)


def from_numpyro(model_fn: Callable, /, *args, **kwargs) -> Model:
    """Make a `Model` of a NumPyro model function and the arguments it is called with.

    The density is the one NumPyro's own samplers see. `log_likelihood` of the model has one entry per observation
    first, then those of factors and of latent sites whose law depends on other sites; `log_marginal` has the
    observations alone. Sites fixed by `handlers.substitute`, and `numpyro.param` sites, keep their values.

    Parameters
    ----------
    model_fn
        A function with NumPyro primitives, or any handler (condition, reparam, mask, scale, ...) around one.
    *args, **kwargs
        Its arguments. Arrays become the model's data; everything else is part of the program.

    Examples
    --------
    >>> def schools(y, se):
    ...     mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5))
    ...     theta = numpyro.sample("theta", dist.Normal(mu, tau).expand([len(y)]))
    ...     numpyro.sample("y", dist.Normal(theta, se), obs=y)
    >>> model = from_numpyro(schools, y, se=se)
    """
    check(callable(model_fn), "model_fn", "from_numpyro", "a NumPyro model function", model_fn)
    _check_arguments(model_fn, args, kwargs)
    with precision():  # the precision of the fit, so that constants of the priors are not rounded before it
        looks = _look(model_fn, args, kwargs, 0), _look(model_fn, args, kwargs, 1)
        _check_looks(*looks)
        prior, replay = _arrange(model_fn, args, kwargs, looks)
        replay, data = _with_data(replay, args, kwargs, prior)
        return Model(
            prior=prior, log_likelihood=LogTerms(replay), log_marginal=LogObservations(replay), data=data,
            deterministics=Deterministics(replay) if replay.has_deterministics else None, name=_name(model_fn),
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Replay:
    """Runs the model function at given parameters.

    Compared by identity: a function that reads a global may be another model the next time it is made into one.
    """

    fn: Callable
    tree: Any  # how the leaves make up (args, kwargs)
    leaves: tuple[Any, ...]  # arguments that are part of the program; `_DATA` where an array of the data goes
    latents: tuple[str, ...]
    held: Mapping[str, Any]  # values of `numpyro.param` and of mutable sites
    settled: frozenset[str]  # sites whose log probability is the model's prior
    stand_ins: Mapping[str, dist.Distribution]  # flat priors of discrete sites, to be taken off again
    moving: Mapping[str, str]  # sites whose support moves, and their unconstrained names
    has_deterministics: bool

    def arguments(self, data) -> tuple[tuple, dict]:
        """Put the arrays of the data back into their places."""
        arrays = iter((data or {}).values())
        return jax.tree.unflatten(self.tree, [next(arrays) if x is _DATA else x for x in self.leaves])

    def model(self, params: Params) -> Callable:
        """Give the model function with its sites at `params`."""
        given = {k: params[k] for k in self.latents if k not in self.moving}

        def place(site):
            if site["type"] != "sample" or site["name"] not in self.moving:
                return None
            free, step = params[self.moving[site["name"]]], site["infer"].get("_scan_current_index")
            # Inside NumPyro's scan a site is one time step of the whole.
            return biject_to(site["fn"].support)(free if step is None else free[step])

        model = substitute(seed(self.fn, 0), data={**self.held, **given})
        return substitute(model, substitute_fn=place) if self.moving else model

    def log_probs(self, params: Params, data) -> tuple[dict[str, jax.Array], dict]:
        """Give the log probabilities of all sites, not summed, scaled and masked as the model says, and the sites."""
        log_probs, sites = compute_log_probs(self.model(params), *self.arguments(data), {}, sum_log_prob=False)
        for name, base in self.moving.items():
            value, free, transform = sites[name]["value"], params[base], biject_to(sites[name]["fn"].support)
            log_probs[base] = transform.log_abs_det_jacobian(free, value)
        for name, law in self.stand_ins.items():
            log_probs[name] = log_probs[name] - law.log_prob(sites[name]["value"])
        return log_probs, sites


@dataclass(frozen=True)
class LogTerms:
    """All terms of log p but the priors: observations first."""

    replay: Replay

    def __call__(self, params, data):
        terms, sites = self.replay.log_probs(params, data)
        rest = [terms[k] for k in terms if k not in self.replay.settled and not _is_observation(sites.get(k))]
        return _flat([terms[k] for k in terms if _is_observation(sites.get(k))] + rest)


@dataclass(frozen=True)
class LogObservations:
    """The log probability of each observation."""

    replay: Replay

    def __call__(self, params, data):
        terms, sites = self.replay.log_probs(params, data)
        seen = [terms[k] for k in terms if _is_observation(sites.get(k))]
        if not seen:
            raise ValueError("The NumPyro model has no observed site, so no likelihood of single observations; give it `obs=`.")
        return _flat(seen)


@dataclass(frozen=True)
class Deterministics:
    """The model's deterministic sites, and the sites whose support moves, at given parameters."""

    replay: Replay

    def __call__(self, params, data):
        args, kwargs = self.replay.arguments(data)
        sites = trace(self.replay.model(params)).get_trace(*args, **kwargs)
        wanted = (k for k, s in sites.items() if s["type"] == "deterministic" or k in self.replay.moving)
        return {k: jnp.asarray(sites[k]["value"]) for k in wanted}


class Look(NamedTuple):
    """What one run of the model function showed."""

    sites: dict[str, dict]
    log_probs: dict[str, jax.Array]
    latents: tuple[str, ...]

    @property
    def values(self) -> Params:
        return {k: jnp.asarray(self.sites[k]["value"]) for k in self.latents}


_DATA = object()


def _look(fn, args, kwargs, key: int) -> Look:
    """Run the model once, its latent sites anywhere in their supports."""
    fixed, anywhere = set(), init_to_uniform()

    def begin(site):
        if site["type"] != "sample" or site["is_observed"]:
            return None
        name, law = site["name"], site["fn"]
        if site["value"] is not None:  # by `handlers.substitute`
            fixed.add(name)
            return None
        if any(isinstance(x, dist.Delta) for x in _layers(law)):
            raise ValueError(f"Site {name!r} of the NumPyro model has a Delta law; use `numpyro.deterministic` for it.")
        if law.support.is_discrete:
            if any(isinstance(x, dist.ImproperUniform) for x in _layers(law)):
                raise ValueError(
                    f"Site {name!r} of the NumPyro model is discrete and has an improper prior; "
                    "give it a proper one, such as Categorical, Bernoulli or Poisson."
                )
            return None
        return anywhere(site)

    model = substitute(seed(fn, key), substitute_fn=begin)
    log_probs, sites = compute_log_probs(model, args, kwargs, {}, sum_log_prob=False)
    latents = (k for k, s in sites.items() if s["type"] == "sample" and not s["is_observed"] and k not in fixed)
    return Look(sites, log_probs, tuple(latents))


def _arrange(fn, args, kwargs, looks: tuple[Look, Look]) -> tuple[dict[str, dist.Distribution], Replay]:
    """Give every latent site its prior, and note what is left for the replay to add."""
    first, second = looks
    laws_depend, supports_depend = _dependent(fn, args, kwargs, looks)
    some_discrete = any(first.sites[k]["fn"].support.is_discrete for k in first.latents)
    prior, settled, stand_ins, moving = {}, set(), {}, {}
    for name in first.latents:
        site = first.sites[name]
        shape, discrete = np.shape(site["value"]), site["fn"].support.is_discrete
        law = None if name in laws_depend else _fixed_law(site, second, name)
        awkward = some_discrete and not discrete and _kernel(site["fn"].support) not in _WITH_A_LAW
        if not discrete and (name in supports_depend or awkward):
            moving[name] = _new_name(name, first.sites)
            free = biject_to(site["fn"].support).inverse_shape(shape)
            prior[moving[name]] = dist.ImproperUniform(constraints.real, (), free)
        elif law is not None:
            prior[name] = law
            settled.add(name)
        elif discrete:
            prior[name] = stand_ins[name] = _stand_in(site["fn"], shape)
        else:
            prior[name] = _plain(dist.ImproperUniform(site["fn"].support, (), shape))
    kinds = {k: s["type"] for k, s in first.sites.items()}
    held = {k: s["value"] for k, s in first.sites.items() if kinds[k] in ("param", "mutable")}
    replay = Replay(
        fn=fn, tree=None, leaves=(), latents=first.latents, held=held, settled=frozenset(settled), stand_ins=stand_ins,
        moving=moving, has_deterministics=bool(moving) or "deterministic" in kinds.values(),
    )  # fmt: skip
    return prior, replay


def _dependent(fn, args, kwargs, looks: tuple[Look, Look]) -> tuple[set[str], set[str]]:
    """Name the latent sites whose law, and those whose support, depends on other latent sites.

    Under `vmap` over two points, exactly what depends on them is a tracer.
    """
    laws, supports = set(), set()
    touched = lambda tree: any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(tree))

    def probe(values):
        sites = trace(substitute(seed(fn, 0), data=values)).get_trace(*args, **kwargs)
        laws.update(k for k in values if touched((sites[k]["fn"], sites[k]["scale"])))
        supports.update(k for k in values if touched(sites[k]["fn"].support))
        return ()

    try:
        jax.vmap(probe)(jax.tree.map(lambda *x: jnp.stack(x), *[x.values for x in looks]))
    except (TypeError, IndexError) as error:
        raise ValueError(
            "The NumPyro model's Python code depends on the value of a latent site (in an `if`, a shape or NumPy), "
            f"which cannot be compiled; use jnp.where or jax.lax instead: {error}"
        ) from error
    return laws, supports


def _fixed_law(site, second: Look, name: str) -> dist.Distribution | None:
    """The law of a site as a prior, if as one it says the same elsewhere as the model does."""
    value = second.sites[name]["value"]
    try:
        law = _categorical(site["fn"], np.shape(value)) or _plain(site["fn"])
        same = np.allclose(jnp.sum(law.log_prob(value)), jnp.sum(second.log_probs[name]), rtol=1e-6, equal_nan=True)
        if not same or law.shape() != np.shape(value):  # scaled, broadcast, or with parts that JAX does not see
            return None
        if not isinstance(law, dist.ImproperUniform):
            jax.eval_shape(lambda key: law.sample(key, (2,)), jax.random.key(0))
    except Exception:  # a law that cannot be taken apart and rebuilt stays in the model
        return None
    return law


def _stand_in(law: dist.Distribution, shape: tuple[int, ...]) -> dist.Distribution:
    """Give a law that says which values a discrete site takes and prefers none."""
    flat = _categorical(law, shape, flat=True)
    if flat is None and _kernel(law.support) is constraints.boolean:
        flat = dist.Bernoulli(logits=np.zeros(shape))
    return flat or _plain(law).mask(False)


def _categorical(law: dist.Distribution, shape: tuple[int, ...], flat: bool = False) -> dist.Distribution | None:
    """A categorical law without the layers that `plate` and `to_event` put around it; None if it is another law."""
    inner = list(_layers(law))[-1]
    if not isinstance(inner, (dist.CategoricalLogits, dist.CategoricalProbs)):
        return None
    logits = np.asarray(inner.logits)
    logits = np.zeros_like(logits) if flat else logits
    return dist.Categorical(logits=np.broadcast_to(logits, (*shape, logits.shape[-1])))


def _with_data(replay: Replay, args, kwargs, prior) -> tuple[Replay, dict[str, Any] | None]:
    """Tell the arrays among the arguments, which may change without compiling again, from the rest."""
    paths, tree = jax.tree_util.tree_flatten_with_path((args, kwargs))
    data = {jax.tree_util.keystr(path[1:]): x for path, x in paths if _is_data(x)}
    whole = replace(replay, tree=tree, leaves=tuple(x for _, x in paths))
    split = replace(whole, leaves=tuple(_DATA if _is_data(x) else x for x in whole.leaves))
    point = {k: jax.ShapeDtypeStruct(x.shape(), jnp.result_type(int if x.is_discrete else float)) for k, x in prior.items()}
    try:
        jax.eval_shape(lambda *x: split.log_probs(*x)[0], point, data)
    except Exception:  # NumPy on an array, or a shape made from one, needs its values: it is part of the program then
        return whole, None
    return split, data or None


def _is_data(x) -> bool:
    """Is it an array of finite numbers? Missing values are the model's own affair, and `Model` takes none."""
    if not isinstance(x, (np.ndarray, jax.Array)) or not x.size:
        return False
    number = any(jnp.issubdtype(x.dtype, kind) for kind in (np.floating, np.integer, np.bool_))
    return number and bool(np.isfinite(np.asarray(x)).all())


def _check_arguments(fn, args, kwargs) -> None:
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ValueError(
            f"`model_fn` of `from_numpyro` cannot be called with these arguments: {error}. "
            f"Give the model's arguments after it: from_numpyro({_name(fn)}, ...)."
        ) from error


def _check_looks(first: Look, second: Look) -> None:
    """Refuse, by name, the sites that cannot be fitted."""
    for name, site in first.sites.items():
        if site["type"] == "plate":
            size, subsample = site["args"]
            if subsample is not None and subsample < size:
                raise ValueError(
                    f"Plate {name!r} of the NumPyro model takes a subsample of {subsample} of {size}, which is not "
                    "available yet; leave `subsample_size` out and give all the data."
                )
        elif site["type"] == "param" and not name.endswith("$params"):  # those of random modules have priors
            text = f"`numpyro.param` site {name!r} keeps its initial value; give it a prior to have it inferred."
            warnings.warn(text, stacklevel=3)
    if not first.latents:
        raise ValueError("The NumPyro model has no latent site: there is nothing to infer.")
    for name in sorted({*first.latents, *second.latents}, key=[*first.latents, *second.latents].index):
        shapes = [np.shape(x.sites[name]["value"]) if name in x.latents else "no such site" for x in (first, second)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"Site {name!r} of the NumPyro model changes with the values of other sites: {shapes[0]} in one run, "
                f"{shapes[1]} in another. Sites and their shapes must stay the same."
            )
    for name in first.log_probs:
        _check_numbers(name, *[x.sites[name] for x in (first, second)], *[x.log_probs[name] for x in (first, second)])


def _check_numbers(name, site, again, log_prob, log_prob_again) -> None:
    """Refuse what is not a number whatever the latent sites are."""
    lost = lambda x: np.isnan(np.asarray(x, float)).any()
    if site["is_observed"] and lost(site["value"]):
        masked = any(isinstance(x, dist.MaskedDistribution) for x in _layers(site["fn"]))
        if not masked or lost(log_prob):
            missing = int(np.isnan(np.asarray(site["value"], float)).sum())
            raise ValueError(
                f"Observed site {name!r} of the NumPyro model has {missing} missing value(s) (NaN). Drop them, mask them "
                "with `numpyro.handlers.mask`, or make them latent with `obs_mask`."
            )
    if site["is_observed"] or not lost(log_prob) or not lost(log_prob_again):
        return
    raise ValueError(f"Site {name!r} of the NumPyro model has a law with NaN or impossible parameters: {_shown(site['fn'])}.")


def _shown(law: dist.Distribution) -> str:
    inner = [*_layers(law)][-1]
    known = {k: np.asarray(v) for k in inner.arg_constraints if (v := inner.__dict__.get(k)) is not None}
    return f"{type(inner).__name__}({', '.join(f'{k}={shown(v.tolist())}' for k, v in known.items())})"


def _layers(law: dist.Distribution) -> Iterator[dist.Distribution]:
    """The law and those inside it, without what `plate`, `expand`, `to_event` and `mask` put around it."""
    yield law
    while isinstance(law, (dist.ExpandedDistribution, dist.Independent, dist.MaskedDistribution)):
        law = law.base_dist
        yield law


def _kernel(support: constraints.Constraint) -> constraints.Constraint:
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support


def _is_observation(site: dict | None) -> bool:
    if site is None or site["type"] != "sample" or not site["is_observed"]:
        return False
    return not any(isinstance(x, dist.Unit) for x in _layers(site["fn"]))  # a factor is not an observation


def _flat(terms: list) -> jax.Array:
    return jnp.concatenate([jnp.zeros(0 if terms else 1), *(jnp.ravel(jnp.asarray(x, float)) for x in terms)])


def _plain(tree: Any) -> Any:
    """NumPy in the place of JAX arrays: they keep their precision outside the fit too."""
    return jax.tree.map(lambda x: np.asarray(x) if isinstance(x, jax.Array) else x, tree)


def _new_name(name: str, taken) -> str:
    name = f"{name}_base"
    return _new_name(name, taken) if name in taken else name


def _name(fn: Any) -> str:
    while not hasattr(fn, "__name__"):
        inner = getattr(fn, "fn", None) or getattr(fn, "func", None)
        if inner is None:
            return "model"
        fn = inner
    return fn.__name__
