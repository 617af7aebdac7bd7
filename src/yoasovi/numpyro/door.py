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
from numpyro.distributions import biject_to, constraints

from yoasovi.errors import check
from yoasovi.kernels.programs import precision
from yoasovi.model.model import Model
from yoasovi.numpyro.checks import check_improper, check_looks
from yoasovi.numpyro.laws import as_categorical, in_numpy, is_improper, kernel
from yoasovi.numpyro.looking import Look, PriorDraw, find_choices, find_local, in_full, look_once, touched
from yoasovi.numpyro.naming import labels_of
from yoasovi.numpyro.predictive import Predictive
from yoasovi.numpyro.replay import Deterministics, LocalLaw, LogBatch, LogObservations, LogTerms, Replay, Slot, Source

# What `Factorised` has a law for; where there are discrete sites, those of all other supports are unconstrained first.
_WITH_A_LAW = (constraints.real, constraints.positive, constraints.unit_interval, constraints.simplex)


def from_numpyro(model_fn: Callable, /, *args, **kwargs) -> Model:
    """Make a `Model` of a NumPyro model function and the arguments it is called with.

    The density is the one NumPyro's own samplers see (where `handlers.scale` or `mask` is around a constrained latent
    site, SVI's: the Jacobian is left alone). `log_likelihood` has one entry per observation first, then those of
    factors and of latent sites whose law depends on other sites; `log_marginal` has the observations alone. Sites
    given by `handlers.substitute`, and `numpyro.param` sites, keep their values.

    With plates that have a `subsample_size` the fit looks at minibatches, at rows of its own for each mirrored pair of
    draws. The start and, now and then, a gradient that takes most of their noise off look at all the data. What is
    reported of the fit (ELBO, importance correction, k-hat, LOO, predictions, the verdict) is about all the data. Where
    a latent site is inside such a plate, or discrete, the plate is evaluated in full, with a warning.

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
    source = Source(model_fn, args, kwargs)
    _check_arguments(source)
    # In the precision of the fit, so that constants are not rounded before it; NumPyro's checks do not know the
    # names of sites, so they are made here, afterwards.
    with precision(), validation_enabled(False):
        partial = source
        source, first, plates = in_full(source, look_once(source, 0))
        looks = first, look_once(source, 1)
        check_looks(*looks)
        check_improper(source, looks)
        prior, replay = _arrange(source, looks)
        replay, data = _with_data(replay, source, prior)
        discrete = replay.local or any(law.is_discrete for law in prior.values())
        made = Model(
            prior=prior,
            local={k: Partial(LocalLaw(replay, k), data) for k in replay.local},
            log_likelihood=LogTerms(replay),
            log_marginal=LogObservations(replay) if not replay.local or replay.choices else None,
            data=data,
            deterministics=Deterministics(replay) if replay.has_deterministics else None,
            predictive=Predictive(source, replay),
            start=PriorDraw(source) if discrete else None,  # labels need a start that tells them apart
            name=_name(model_fn),
            labels=labels_of(looks[0], replay),
        )
        return _in_batches(made, LogBatch(replace(replay, fn=partial.fn)), first, plates) if plates else made


def _in_batches(model: Model, subsampled: LogBatch, look: Look, plates: dict[str, str]) -> Model:
    """Let the model be fitted by minibatches where it can be; else say why not."""
    for name in look.latents:
        inside = any(frame.name in plates for frame in look.sites[name]["cond_indep_stack"])
        if inside or look.sites[name]["fn"].is_discrete:
            why = "inside: a minibatch would say nothing of most of it" if inside else "discrete"
            said = f"{', '.join(plates.values())}, since latent site {name!r} is {why}"
            warnings.warn(f"Plates that take a subsample are evaluated in full: {said}.", stacklevel=3)
            return model
    return replace(model, subsampled=subsampled)


def _arrange(source: Source, looks: tuple[Look, Look]) -> tuple[dict[str, dist.Distribution], Replay]:
    """Give every latent site a prior in the model, and note what the replay has to add to the log density for it."""
    first, second = looks
    dependent, moved, _ = touched(source, [x.values for x in looks])
    some_discrete = any(first.sites[k]["fn"].is_discrete for k in first.latents)
    local, plate = find_local(source, looks)
    prior, settled, stand_ins, moving = {}, set(local), {}, {}
    for name in first.latents:
        law, shape = first.sites[name]["fn"], np.shape(first.sites[name]["value"])
        fixed = None if name in dependent else _fixed_law(law, second.sites[name]["value"], second.log_probs[name])
        awkward = some_discrete and kernel(law.support) not in _WITH_A_LAW
        if name in local:
            continue
        if not law.is_discrete and (name in moved or awkward):
            moving[name] = _new_name(name, first.sites)
            prior[moving[name]] = dist.ImproperUniform(constraints.real, (), biject_to(law.support).inverse_shape(shape))
        elif fixed is not None:
            prior[name] = fixed
            settled.add(name)
        elif law.is_discrete:
            prior[name] = stand_ins[name] = _stand_in(law, shape)
        else:
            prior[name] = in_numpy(dist.ImproperUniform(law.support, (), shape))
    kinds = {k: s["type"] for k, s in first.sites.items()}
    return prior, Replay(
        fn=source.fn, tree=None, leaves=(), latents=first.latents, settled=frozenset(settled), stand_ins=stand_ins,
        held={k: in_numpy(s["value"]) for k, s in first.sites.items() if kinds[k] in ("param", "mutable")}, moving=moving,
        local=local, plate=plate, size=len(first.values[local[0]]) if local else 0,
        choices=find_choices(first, local, plate), has_deterministics=bool(moving) or "deterministic" in kinds.values(),
    )  # fmt: skip


def _with_data(replay: Replay, source: Source, prior: dict[str, dist.Distribution]) -> tuple[Replay, dict[str, Any] | None]:
    """Make data of the arrays among the arguments, so that they may change without compiling again."""
    paths, tree = tree_flatten_with_path((source.args, source.kwargs))
    fits = lambda x: _is_data(x) and (not replay.local or (x.ndim > 0 and len(x) == replay.size))
    data = {keystr(path[1:]): x for path, x in paths if fits(x)}
    whole = replace(replay, tree=tree, leaves=tuple(x for _, x in paths))
    split = replace(whole, leaves=tuple(Slot(keystr(path[1:])) if fits(x) else x for path, x in paths))
    point = {k: jax.ShapeDtypeStruct(x.shape(), jnp.result_type(int if x.is_discrete else float)) for k, x in prior.items()}
    try:
        jax.eval_shape(lambda *x: split.log_probs(*x)[0], point, data)
    except Exception:  # NumPy on an array, or a shape made from one, needs its values: then it is part of the program
        split, data = whole, {}
    if replay.local and not data:  # `Model` takes the number of observations from its data
        data = {str(replay.plate): np.arange(replay.size)}
    return split, data or None


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


def _fixed_law(law: dist.Distribution, value: jax.Array, log_prob: jax.Array) -> dist.Distribution | None:
    """Give a site's law in one run as its prior, if it gives the value in another run the log probability it had there."""
    try:
        law = in_numpy(as_categorical(law, np.shape(value)) or law)
        same = np.allclose(jnp.sum(law.log_prob(value)), jnp.sum(log_prob), rtol=1e-6, equal_nan=True)
        if not same or law.shape() != np.shape(value):  # scaled, broadcast, or with parts that JAX does not see
            return None
        if not is_improper(law):
            jax.eval_shape(lambda key: law.sample(key, (2,)), jax.random.key(0))
    except Exception:  # a law that cannot be taken apart and rebuilt stays in the model
        return None
    return law


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
