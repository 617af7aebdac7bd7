"""From a model function to a `Model`: every site gets its place in it."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.tree_util import Partial, keystr, tree_flatten_with_path
from numpyro import validation_enabled
from numpyro.distributions import constraints

from yoasovi.errors import check
from yoasovi.kernels.programs import precision
from yoasovi.model import Centring, Model
from yoasovi.numpyro.checks import check_look
from yoasovi.numpyro.enumeration import Cluster, find_clusters
from yoasovi.numpyro.frames import SiteFrames
from yoasovi.numpyro.laws import as_categorical, can_be_drawn, in_numpy, is_improper, kernel
from yoasovi.numpyro.looking import Outline, PriorDraw, compiling, find_local, in_full, look_twice, named
from yoasovi.numpyro.naming import labels_of
from yoasovi.numpyro.predictive import Predictive
from yoasovi.numpyro.replay import (
    Deterministics,
    LocalLaw,
    LogBatch,
    LogObservations,
    LogTerms,
    Recovered,
    Replay,
    Slot,
    Source,
    in_single,
)  # fmt: skip

# What `Factorised` has a law for; where there are discrete sites, those of all other supports are unconstrained first.
_WITH_A_LAW = (constraints.real, constraints.positive, constraints.unit_interval, constraints.simplex)


def from_numpyro(model_fn: Callable, /, *args, **kwargs) -> Model:
    """Make a `Model` of a NumPyro model function and the arguments it is called with.

    The density is the one NumPyro's own samplers see (where `handlers.scale` or `mask` is around a constrained latent
    site, SVI's: the Jacobian is left alone). `log_likelihood` has one entry per observation first, then those of
    factors and of latent sites whose law depends on other sites; `log_marginal` has the observations alone. Sites
    given by `handlers.substitute` keep their values. Parameters without a prior (`numpyro.param`, `flax_module`) are
    refused: nothing here would fit them.

    Discrete sites with finitely many values are summed out by NumPyro's own enumeration, marked for it or not, in plates
    and in `scan` too; the fit is of the continuous sites, and draws come with the discrete ones. What NumPyro cannot
    enumerate (a Poisson site, values without a plate) is fitted by values of log p alone.

    With plates that have a `subsample_size` the fit looks at minibatches, at rows of its own for each mirrored pair of
    draws. The start and, now and then, a gradient that takes most of their noise off look at all the data. What is
    reported of the fit (ELBO, importance correction, k-hat, LOO, predictions, the verdict) is about all the data. Where
    a latent site is inside such a plate, a minibatch takes along those of its members. Where one is discrete the plate is
    evaluated in full, with a warning.

    Parameters
    ----------
    model_fn
        A function with NumPyro primitives, or any handler (condition, reparam, mask, scale, ...) around one.
    *args, **kwargs
        Its arguments. Arrays and columns of tables become the model's data; everything else is part of the program.

    Examples
    --------
    >>> def schools(y, se):
    ...     mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5))
    ...     theta = numpyro.sample("theta", dist.Normal(mu, tau).expand([len(y)]))
    ...     numpyro.sample("y", dist.Normal(theta, se), obs=y)
    >>> model = from_numpyro(schools, y, se=se)
    """
    check(callable(model_fn), "model_fn", "from_numpyro", "a NumPyro model function", model_fn)
    source = Source(model_fn, args, kwargs)
    _check_arguments(source)
    try:
        return _made_in_precision(arrays := source.in_arrays())
    except AttributeError:
        if arrays is source:
            raise
    return _made_in_precision(source)  # the function asks a column of a table for what arrays do not have


def _made_in_precision(source: Source) -> Model:
    wide = bool(jax.config.read("jax_enable_x64"))  # outside of the fit
    try:
        return _made(source)
    except TypeError as error:  # of a loop that keeps numbers of 32 bits, perhaps
        if wide:
            raise
        try:
            made = _made(source._replace(fn=InSingle(source.fn)), narrow=True)
        except Exception:
            raise error from None
        said = "keeps numbers of 32 bits where a fit has 64; the model function is run in your own precision, float32"
        warnings.warn(f"The NumPyro model {said}.", stacklevel=3)
        return made


def _made(source: Source, narrow: bool = False) -> Model:
    """Make the model; with `narrow`, its function runs in single precision."""
    # In the precision of the fit, so that constants are not rounded before it; NumPyro's checks do not know the
    # names of sites, so they are made here, afterwards.
    with precision(), validation_enabled(False):
        partial = source
        source, look, plates = in_full(source)
        check_look(look)
        clusters = _summed(look)
        look = replace(look, latents=tuple(k for k in look.latents if not any(k in x.names for x in clusters)))
        prior, replay = _arrange(look, clusters)
        replay = replace(replay, narrow=narrow)
        replay, data, terms = _with_data(replay, source, prior)
        made = Model(
            prior=prior,
            local={k: Partial(LocalLaw(replay, k), data) for k in replay.local},
            log_likelihood=LogTerms(replay),
            log_marginal=None if replay.local else LogObservations(replay),
            data=data,
            deterministics=Deterministics(replay) if replay.has_deterministics else None,
            recovered=Recovered(replay) if clusters else None,
            predictive=Predictive(source, replay),
            centring=_centring(look, replay),
            # Labels need a start that tells them apart.
            start=PriorDraw(source, frozenset((*prior, *replay.local))) if look.discrete else None,
            name=_name(source.fn),
            labels=labels_of(look.sites, terms, replay),
        )
        return _in_batches(made, LogBatch(replace(replay, fn=partial.fn)), look, plates) if plates else made


def _summed(look: Outline) -> tuple[Cluster, ...]:
    """Find the discrete sites that are summed out; say of finite ones why not."""
    if len(look.discrete) == len(look.latents):
        return ()  # nothing would be left to fit
    clusters, faults = find_clusters(look)
    for name, fault in faults.items():
        said = f"Discrete site {name!r} of the NumPyro model cannot be summed out and is fitted by values alone: {fault}."
        warnings.warn(said, stacklevel=5)
    return clusters


def _in_batches(model: Model, subsampled: LogBatch, look: Outline, plates: dict[str, tuple[int, int]]) -> Model:
    """Let the model be fitted by minibatches where it can be; else say why not."""
    if discrete := (*look.discrete, *subsampled.replay.summed_names):
        said = f"{named(plates)}, since latent site {discrete[0]!r} is discrete"
        warnings.warn(f"Plates that take a subsample are evaluated in full: {said}.", stacklevel=5)
        return model
    if any(frame.name in plates for name in look.latents for frame in look.sites[name]["cond_indep_stack"]):
        # A minibatch takes the latents of its members along.
        return replace(model, batch_groups=min(part for _, part in plates.values()))
    return replace(model, subsampled=subsampled)


def _centring(look: Outline, replay: Replay) -> Centring | None:
    """Let sites be non-centred; where there are discrete ones q has a law for each site as it is."""
    touched = frozenset().union(*(x.touched for x in replay.summed))
    names = () if look.discrete else tuple(k for k in look.frames if k not in touched)
    return Centring(SiteFrames(replay, names, frozenset(k for k in names if look.frames[k]))) if names else None


def _arrange(look: Outline, summed: tuple[Cluster, ...]) -> tuple[dict[str, dist.Distribution], Replay]:
    """Give every latent site a prior in the model, and note what the replay has to add to the log density for it."""
    looks = look_twice(look.source) if look.discrete else None
    local, plate = find_local(look.source, looks) if looks and not summed else ((), None)
    prior, settled, stand_ins, moving = {}, set(local), {}, {}
    for name in look.latents:
        support, shape = look.supports[name], np.shape(look.sites[name]["value"])
        fixed = _fixed_law(look.sites[name]["fn"], shape) if name in look.own else None
        awkward = look.discrete and kernel(support) not in _WITH_A_LAW
        if name in local:
            continue
        if not support.is_discrete and (name in look.moved or awkward):
            moving[name] = _new_name(name, look.sites)
            prior[moving[name]] = dist.ImproperUniform(constraints.real, (), look.free_shapes[name])
        elif fixed is not None:
            prior[name] = fixed
            settled.add(name)
        elif looks and support.is_discrete:
            prior[name] = stand_ins[name] = _stand_in(looks[0].sites[name]["fn"], shape)
        else:
            prior[name] = dist.ImproperUniform(support, (), shape)
    kinds = {k: s["type"] for k, s in look.sites.items()}
    return prior, Replay(
        fn=look.source.fn, tree=None, leaves=(), latents=look.latents, settled=frozenset(settled), stand_ins=stand_ins,
        held={k: s["value"] for k, s in look.sites.items() if kinds[k] in ("param", "mutable")}, moving=moving,
        local=local, plate=plate, size=look.sites[local[0]]["value"].shape[0] if local else 0,
        summed=summed, narrow=False,
        has_deterministics=bool(moving) or "deterministic" in kinds.values(),
    )  # fmt: skip


def _with_data(replay: Replay, source: Source, prior: dict[str, dist.Distribution]) -> tuple[Replay, Any, dict[str, Any]]:
    """Make data of the arrays among the arguments, so that they may change without compiling again.

    Gives the shapes of the sites' log probabilities too.
    """
    paths, tree = tree_flatten_with_path((source.args, source.kwargs))
    fits = lambda x: _is_data(x) and (not replay.local or (x.ndim > 0 and len(x) == replay.size))
    data = {keystr(path[1:]): x for path, x in paths if fits(x)}
    whole = replace(replay, tree=tree, leaves=tuple(x for _, x in paths))
    split = replace(whole, leaves=tuple(Slot(keystr(path[1:])) if fits(x) else x for path, x in paths))
    point = {k: jax.ShapeDtypeStruct(x.shape(), jnp.result_type(int if x.is_discrete else float)) for k, x in prior.items()}
    try:
        terms = jax.eval_shape(lambda *x: split.log_probs(*x)[0], point, data)
    except Exception:  # NumPy on an array, or a shape made from one, needs its values: then it is part of the program
        split, data = whole, {}
        with compiling(source):
            terms = jax.eval_shape(lambda *x: split.log_probs(*x)[0], point, data)
    if replay.local and not data:  # `Model` takes the number of observations from its data
        data = {str(replay.plate): np.arange(replay.size)}
    return split, data or None, terms


def _is_data(x) -> bool:
    """Say whether it is an array of finite numbers; one with missing values stays in the program, as `Model` takes none."""
    if not isinstance(x, (np.ndarray, jax.Array)) or not x.size:
        return False
    number = any(jnp.issubdtype(x.dtype, kind) for kind in (np.floating, np.integer, np.bool_))
    return number and bool(np.isfinite(np.asarray(x)).all())


def _stand_in(law: dist.Distribution, shape: tuple[int, ...]) -> dist.Distribution:
    """Give a law that says which values a discrete site takes and prefers none."""
    flat = as_categorical(law, shape, flat=True)
    if flat is None and kernel(law.support) is constraints.boolean:
        flat = dist.Bernoulli(logits=np.zeros(shape))
    return in_numpy(flat or law.mask(False))


def _fixed_law(law: dist.Distribution, shape: tuple[int, ...]) -> dist.Distribution | None:
    """Give a law that depends on no other site as a prior, if it can be one."""
    law = in_numpy(as_categorical(law, shape) or law)
    return law if law.shape() == shape and (is_improper(law) or can_be_drawn(law)) else None


class InSingle:
    """A model function that runs in single precision, whatever is around it."""

    def __init__(self, fn: Callable):
        self.fn = fn
        self.__wrapped__ = fn  # whose arguments it has

    def __call__(self, *args, **kwargs):
        """Run it."""
        with jax.enable_x64(False):
            return self.fn(*in_single(args), **in_single(kwargs))


def _new_name(name: str, taken) -> str:
    name = f"{name}_base"
    return _new_name(name, taken) if name in taken else name


def _check_arguments(source: Source) -> None:
    try:
        signature = inspect.signature(source.fn)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*source.args, **source.kwargs)
    except TypeError as error:
        raise ValueError(
            f"`model_fn` of `from_numpyro` cannot be called with these arguments: {error}. "
            f"Give the model's arguments after it: from_numpyro({_name(source.fn)}, ...)."
        ) from error


def _name(fn: Any) -> str:
    while not hasattr(fn, "__name__"):
        fn = getattr(fn, "fn", None) or getattr(fn, "func", None)
        if fn is None:
            return "model"
    return fn.__name__
