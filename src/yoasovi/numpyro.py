"""The NumPyro door: a model function with its arguments in, a `Model` out.

The function is run a few times to see its sites and which of them depend on which; from then on only inside compiled
programs. A latent site whose law is fixed keeps it as its prior. One whose law depends on other sites has a flat prior
on its support, and its log probability joins the terms of the likelihood. One whose support moves with other sites, as
y ~ Uniform(0, x) does, becomes an unconstrained site `y_base`, and y itself a deterministic one. Discrete sites of a
plate that NumPyro would enumerate are the model's local latents, so that each is judged by its own observation.
"""

from __future__ import annotations

import inspect
import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from jax.tree_util import Partial, keystr, tree_flatten_with_path
from numpyro import validation_enabled
from numpyro.distributions import biject_to, constraints
from numpyro.handlers import seed, substitute, trace
from numpyro.infer.initialization import init_to_uniform
from numpyro.infer.util import compute_log_probs

from yoasovi.compiling import precision
from yoasovi.errors import check
from yoasovi.model import Model, Params

# What `Factorised` has a law for; beside discrete sites, all other supports are unconstrained first.
_WITH_A_LAW = (constraints.real, constraints.positive, constraints.unit_interval, constraints.simplex)
_MOST_CHOICES = 100  # values of the local latents of one observation that are summed over for DIC and LOO


def from_numpyro(model_fn: Callable, /, *args, **kwargs) -> Model:
    """Make a `Model` of a NumPyro model function and the arguments it is called with.

    The density is the one NumPyro's own samplers see (where `handlers.scale` or `mask` is around a constrained latent
    site, SVI's: the Jacobian is left alone). `log_likelihood` has one entry per observation first, then those of
    factors and of latent sites whose law depends on other sites; `log_marginal` has the observations alone. Sites
    given by `handlers.substitute`, and `numpyro.param` sites, keep their values.

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
        looks = _look(source, 0), _look(source, 1)
        _check_looks(*looks)
        prior, replay = _arrange(source, looks)
        replay, data = _with_data(replay, source, prior)
        discrete = replay.local or any(law.is_discrete for law in prior.values())
        return Model(
            prior=prior,
            local={k: Partial(LocalLaw(replay, k), data) for k in replay.local},
            log_likelihood=LogTerms(replay),
            log_marginal=LogObservations(replay) if not replay.local or replay.choices else None,
            data=data,
            deterministics=Deterministics(replay) if replay.has_deterministics else None,
            start=PriorDraw(source) if discrete else None,  # labels need a start that tells them apart
            name=_name(model_fn),
        )


class Source(NamedTuple):
    """A model function and what it is called with."""

    fn: Callable
    args: tuple
    kwargs: dict

    def log_probs(self, values: Params, key=0) -> tuple[dict[str, jax.Array], dict[str, dict]]:
        """Give the log probabilities of all sites, scaled and masked but not summed, and the sites themselves."""
        model = substitute(seed(self.fn, key), data=values)
        return compute_log_probs(model, self.args, self.kwargs, {}, sum_log_prob=False)


@dataclass(frozen=True, eq=False)
class Replay:
    """Runs the model function at given parameters.

    Compared by identity: a function that reads a global may be another model the next time it is given.
    """

    fn: Callable
    tree: Any  # how the leaves make up (args, kwargs)
    leaves: tuple[Any, ...]  # arguments that are part of the program, `Slot`s where an array of the data goes
    held: Mapping[str, Any]  # values of `numpyro.param` and of mutable sites
    latents: tuple[str, ...]
    settled: frozenset[str]  # sites whose log probability is in the model's priors
    stand_ins: Mapping[str, dist.Distribution]  # flat priors of discrete sites, to be taken off again
    moving: Mapping[str, str]  # sites whose support moves, and their unconstrained names
    local: tuple[str, ...]  # discrete sites of which each observation has one
    plate: str | None  # theirs
    size: int
    choices: tuple[dict[str, Any], ...]  # all values that the local sites of one observation can take together
    has_deterministics: bool

    def source(self, params: Params, data) -> Source:
        """Give the model function with its sites at `params`, and its arguments."""
        given = {k: params[k] for k in self.latents if k not in self.moving and k in params}
        blank = {k: jnp.zeros(self.size, int) for k in self.local}

        def place(site):
            if site["type"] != "sample" or site["name"] not in self.moving:
                return None
            free, step = params[self.moving[site["name"]]], site["infer"].get("_scan_current_index")
            # Inside NumPyro's scan a site is one time step of the whole.
            return biject_to(site["fn"].support)(free if step is None else free[step])

        fn = substitute(seed(self.fn, 0), data={**self.held, **blank, **given})
        leaves = [data[x.key] if isinstance(x, Slot) else x for x in self.leaves]
        return Source(substitute(fn, substitute_fn=place), *jax.tree.unflatten(self.tree, leaves))

    def log_probs(self, params: Params, data) -> tuple[dict[str, jax.Array], dict[str, dict]]:
        """Give the log probabilities of all sites, not summed, and the sites."""
        log_probs, sites = self.source(params, data).log_probs({})
        for name, base in self.moving.items():
            value, free, transform = sites[name]["value"], params[base], biject_to(sites[name]["fn"].support)
            log_probs[base] = transform.log_abs_det_jacobian(free, value)
        for name, law in self.stand_ins.items():
            log_probs[name] = log_probs[name] - law.log_prob(sites[name]["value"])
        return log_probs, sites


class Slot(NamedTuple):
    """The place of an array of the data among the arguments."""

    key: str


@dataclass(frozen=True)
class LogTerms:
    """All terms of log p but the priors: one per observation where there are local latents, else observations first."""

    replay: Replay

    def __call__(self, params, data):
        """Evaluate them."""
        terms, sites = self.replay.log_probs(params, data)
        terms = {k: v for k, v in terms.items() if k not in self.replay.settled}
        if self.replay.plate is None:
            seen = [k for k in terms if _is_observation(sites.get(k))]
            return _flat([terms[k] for k in (*seen, *(k for k in terms if k not in seen))])
        own = {k: _per_member(v, sites.get(k), self.replay.plate) for k, v in terms.items()}
        inside = sum((v for v in own.values() if v is not None), jnp.zeros(self.replay.size))
        # What no local latent touches is shared out evenly: the sum is right, and no latent's choice changes by it.
        return inside + jnp.sum(_flat([terms[k] for k, v in own.items() if v is None])) / self.replay.size


@dataclass(frozen=True)
class LogObservations:
    """The log probability of each observation, its local latents summed out."""

    replay: Replay

    def __call__(self, params, data):
        """Evaluate it."""
        if self.replay.plate is None:
            terms, sites = self.replay.log_probs(params, data)
            seen = [v for k, v in terms.items() if _is_observation(sites.get(k))]
            if not seen:
                raise ValueError("The NumPyro model has no observed site (`obs=`): it has no likelihood by observation.")
            return _flat(seen)
        joint, apart = [], []
        for choice in self.replay.choices:
            values = {k: jnp.full(self.replay.size, v) for k, v in choice.items()}
            terms, sites = self.replay.log_probs({**params, **values}, data)
            terms = {k: v for k, v in terms.items() if _is_observation(sites.get(k)) or k in self.replay.local}
            own = {k: _per_member(v, sites[k], self.replay.plate) for k, v in terms.items()}
            joint.append(sum(v for v in own.values() if v is not None))
            apart = [terms[k] for k, v in own.items() if v is None]
        return _flat([logsumexp(jnp.stack(joint), 0), *apart])


@dataclass(frozen=True)
class LocalLaw:
    """The law of a local latent, given the global parameters."""

    replay: Replay
    name: str

    def __call__(self, data, params):
        """Give a distribution of batch shape (N,)."""
        with validation_enabled(False):  # `Model` asks for it at parameters that are only of the right shape
            law = self.replay.log_probs(params, data)[1][self.name]["fn"]
            return _categorical(law, (self.replay.size,)) or law


@dataclass(frozen=True)
class Deterministics:
    """The model's deterministic sites, and the sites whose support moves, at given parameters."""

    replay: Replay

    def __call__(self, params, data):
        """Evaluate them."""
        fn, args, kwargs = self.replay.source(params, data)
        sites = trace(fn).get_trace(*args, **kwargs)
        wanted = (k for k, s in sites.items() if s["type"] == "deterministic" or k in self.replay.moving)
        return {k: jnp.asarray(sites[k]["value"]) for k in wanted}


@dataclass(frozen=True, eq=False)
class PriorDraw:
    """A start from the prior."""

    source: Source

    def __call__(self, key):
        """Draw it."""
        with validation_enabled(False):
            return _look(self.source, key, _improper).values


class Look(NamedTuple):
    """What one run of the model function showed."""

    sites: dict[str, dict]
    log_probs: dict[str, jax.Array]
    latents: tuple[str, ...]

    @property
    def values(self) -> Params:
        """The latent sites' values."""
        return {k: jnp.asarray(self.sites[k]["value"]) for k in self.latents}


def _look(source: Source, key, anywhere=lambda law: not law.support.is_discrete) -> Look:
    """Run the model once; `anywhere` says which latent sites go anywhere in their support, the others being drawn."""
    fixed, uniform = set(), init_to_uniform()

    def begin(site):
        if site["type"] != "sample" or site["is_observed"]:
            return None
        name, law = site["name"], site["fn"]
        if site["value"] is not None:  # by `handlers.substitute`
            fixed.add(name)
            return None
        if any(isinstance(x, dist.Delta) for x in _layers(law)):
            raise ValueError(f"Site {name!r} of the NumPyro model has a Delta law; use `numpyro.deterministic` for it.")
        if _improper(law) and law.support.is_discrete:
            raise ValueError(
                f"Site {name!r} of the NumPyro model is discrete and has an improper prior; "
                "give it a proper one, such as Categorical, Bernoulli or Poisson."
            )
        return uniform(site) if anywhere(law) else None

    log_probs, sites = source._replace(fn=substitute(seed(source.fn, key), substitute_fn=begin)).log_probs({})
    latents = (k for k, s in sites.items() if s["type"] == "sample" and not s["is_observed"] and k not in fixed)
    return Look(sites, log_probs, tuple(latents))


def _arrange(source: Source, looks: tuple[Look, Look]) -> tuple[dict[str, dist.Distribution], Replay]:
    """Give every latent site its place in the model, and note what is left for the replay to add."""
    first, second = looks
    dependent, moved, _ = _touched(source, [x.values for x in looks])
    some_discrete = any(first.sites[k]["fn"].is_discrete for k in first.latents)
    local, plate = _local(source, looks)
    prior, settled, stand_ins, moving = {}, set(local), {}, {}
    for name in first.latents:
        law, shape = first.sites[name]["fn"], np.shape(first.sites[name]["value"])
        fixed = None if name in dependent else _fixed_law(law, second.sites[name]["value"], second.log_probs[name])
        awkward = some_discrete and _kernel(law.support) not in _WITH_A_LAW
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
            prior[name] = _plain(dist.ImproperUniform(law.support, (), shape))
    kinds = {k: s["type"] for k, s in first.sites.items()}
    return prior, Replay(
        fn=source.fn, tree=None, leaves=(), latents=first.latents, settled=frozenset(settled), stand_ins=stand_ins,
        held={k: _plain(s["value"]) for k, s in first.sites.items() if kinds[k] in ("param", "mutable")}, moving=moving,
        local=local, plate=plate, size=len(first.values[local[0]]) if local else 0, choices=_choices(first, local, plate),
        has_deterministics=bool(moving) or "deterministic" in kinds.values(),
    )  # fmt: skip


def _touched(source: Source, points: list[Params], given: Params | None = None) -> tuple[set[str], set[str], set[str]]:
    """Name the latent sites whose law, those whose support, and all sites whose log probability depends on `points`.

    `points` are values of latent sites, the others being `given`. Under `vmap` over them, exactly what depends on
    them is a tracer.
    """
    laws, supports, terms = set(), set(), set()
    traced = lambda tree: any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(tree))

    def probe(values):
        log_probs, sites = source.log_probs({**(given or {}), **values})
        laws.update(k for k in values if traced((sites[k]["fn"], sites[k]["scale"])))
        supports.update(k for k in values if traced(sites[k]["fn"].support))
        terms.update(k for k in log_probs if traced(log_probs[k]))
        return ()

    try:
        jax.vmap(probe)(jax.tree.map(lambda *x: jnp.stack(x), *points))
    except (TypeError, IndexError) as error:
        raise ValueError(
            "The NumPyro model's Python code depends on the value of a latent site (in an `if`, a shape or NumPy), "
            f"which cannot be compiled; use jnp.where or jax.lax instead: {error}"
        ) from error
    return laws, supports, terms


def _local(source: Source, looks: tuple[Look, Look]) -> tuple[tuple[str, ...], str | None]:
    """Find the discrete sites of which every member of a plate has one, independently of the others given the rest."""
    first, second = looks
    frames = {k: first.sites[k]["cond_indep_stack"] for k in first.latents if first.sites[k]["fn"].is_discrete}
    names = tuple(k for k, f in frames.items() if len(f) == 1 and _is_plain_member(first, k, f[0].size))
    names = tuple(k for k in names if frames[k] == frames[names[0]])
    if not names:
        return (), None
    plate, given = frames[names[0]][0].name, {k: v for k, v in first.values.items() if k not in names}
    laws, _, terms = _touched(source, [{k: x.values[k] for k in names} for x in looks], given)
    inside = [k for k in terms if _per_member(first.log_probs[k], first.sites[k], plate) is not None]
    if laws or len(inside) < len(terms):  # a chain, or a term outside the plate that depends on its members
        return (), None
    # A plate is a promise that its members are independent; see that the first is when all others change.
    others = {k: jnp.concatenate([first.values[k][:1], second.values[k][1:]]) for k in names}
    again, _ = source.log_probs({**first.values, **others})
    own = lambda terms: [float(jnp.asarray(_per_member(terms[k], first.sites[k], plate))[0]) for k in inside]
    return (names, plate) if np.allclose(own(first.log_probs), own(again), equal_nan=True) else ((), None)


def _is_plain_member(look: Look, name: str, size: int) -> bool:
    site, log_prob = look.sites[name], look.log_probs[name]
    plain = site["scale"] is None and not _masked(site["fn"])
    return size > 1 and plain and np.shape(site["value"]) == np.shape(log_prob) == (size,)


def _choices(look: Look, local: tuple[str, ...], plate: str | None) -> tuple[dict[str, Any], ...]:
    """All values of the local latents of one observation; none if there are too many, or latents of other kinds too."""
    laws = [[*_layers(look.sites[k]["fn"])][-1] for k in local]
    others = [k for k in look.latents if k not in local]
    mixed = any(f.name == plate for k in others for f in look.sites[k]["cond_indep_stack"])
    if not local or mixed or not all(x.has_enumerate_support for x in laws):
        return ()
    values = [np.ravel(x.enumerate_support(expand=False)) for x in laws]
    if np.prod([len(x) for x in values]) > _MOST_CHOICES:
        return ()
    return tuple(dict(zip(local, x, strict=True)) for x in itertools.product(*values))


def _per_member(term: jax.Array, site: dict | None, plate: str) -> jax.Array | None:
    """Sum a site's log probabilities within each member of a plate; None if it is not in the plate."""
    dims = [f.dim for f in site["cond_indep_stack"] if f.name == plate] if site else []
    if not dims or jnp.ndim(term) < -dims[0]:
        return None
    return jnp.sum(jnp.moveaxis(term, dims[0], 0).reshape(term.shape[dims[0]], -1), 1)


def _fixed_law(law: dist.Distribution, value: jax.Array, log_prob: jax.Array) -> dist.Distribution | None:
    """Give a site's law in one run as its prior, if it says the same of another run as the model does."""
    try:
        law = _plain(_categorical(law, np.shape(value)) or law)
        same = np.allclose(jnp.sum(law.log_prob(value)), jnp.sum(log_prob), rtol=1e-6, equal_nan=True)
        if not same or law.shape() != np.shape(value):  # scaled, broadcast, or with parts that JAX does not see
            return None
        if not _improper(law):
            jax.eval_shape(lambda key: law.sample(key, (2,)), jax.random.key(0))
    except Exception:  # a law that cannot be taken apart and rebuilt stays in the model
        return None
    return law


def _stand_in(law: dist.Distribution, shape: tuple[int, ...]) -> dist.Distribution:
    """Give a law that says which values a discrete site takes and prefers none."""
    flat = _categorical(law, shape, flat=True)
    if flat is None and _kernel(law.support) is constraints.boolean:
        flat = dist.Bernoulli(logits=np.zeros(shape))
    return _plain(flat or law.mask(False))


def _categorical(law: dist.Distribution, shape: tuple[int, ...], flat: bool = False) -> dist.Distribution | None:
    """Give a categorical law without the layers that `plate` and `to_event` put around it; None if it is another law."""
    inner = [*_layers(law)][-1]
    if not isinstance(inner, (dist.CategoricalLogits, dist.CategoricalProbs)):
        return None
    logits = jnp.zeros_like(inner.logits) if flat else inner.logits
    return dist.Categorical(logits=jnp.broadcast_to(logits, (*shape, logits.shape[-1])))


def _with_data(replay: Replay, source: Source, prior) -> tuple[Replay, dict[str, Any] | None]:
    """Tell the arrays among the arguments, which may change without compiling again, from the rest."""
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
    """Is it an array of finite numbers? Missing values are the model function's own affair: `Model` takes none."""
    if not isinstance(x, (np.ndarray, jax.Array)) or not x.size:
        return False
    number = any(jnp.issubdtype(x.dtype, kind) for kind in (np.floating, np.integer, np.bool_))
    return number and bool(np.isfinite(np.asarray(x)).all())


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
    for name in dict.fromkeys((*first.log_probs, *second.log_probs)):
        shapes = [np.shape(x.sites[name]["value"]) if name in x.sites else "no such site" for x in (first, second)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"Site {name!r} of the NumPyro model changes with the values of other sites: {shapes[0]} in one run, "
                f"{shapes[1]} in another. Sites and their shapes must stay the same."
            )
        _check_missing(name, first)
        faults = [_fault(name, x) for x in (first, second)]
        if all(faults):  # whatever the values of other sites
            raise ValueError(f"Site {name!r} of the NumPyro model: {faults[0]}")


def _check_missing(name: str, look: Look) -> None:
    site = look.sites[name]
    missing = int(np.isnan(np.asarray(site["value"], float)).sum()) if site["is_observed"] else 0
    if missing and (not _masked(site["fn"]) or np.isnan(look.log_probs[name]).any()):
        raise ValueError(
            f"Observed site {name!r} of the NumPyro model has {missing} missing value(s) (NaN). Drop them, mask them "
            "with `numpyro.handlers.mask`, or make them latent with `obs_mask`."
        )


def _fault(name: str, look: Look) -> str:
    """Say what is wrong with the parameters of a site's law, if anything."""
    law, lost = look.sites[name]["fn"], lambda x: bool(np.isnan(np.asarray(x, float)).any())
    nowhere = lost(look.log_probs[name])
    if name not in look.latents:  # the law of an observation may overflow where latent sites are far off
        parts = [x for x in jax.tree.leaves(law) if jnp.issubdtype(jnp.result_type(x), np.floating)]
        return "its law has NaN parameters." if nowhere and any(map(lost, parts)) else ""
    try:
        for layer in _layers(law):
            layer.validate_args()
    except ValueError as error:
        return str(error)
    return f"the log probability of its {type(law).__name__} law is NaN." if nowhere else ""


def _layers(law: dist.Distribution) -> Iterator[dist.Distribution]:
    """Give the law, and what is inside the layers that `plate`, `expand`, `to_event` and `mask` put around it."""
    yield law
    while isinstance(law, (dist.ExpandedDistribution, dist.Independent, dist.MaskedDistribution)):
        law = law.base_dist
        yield law


def _masked(law: dist.Distribution) -> bool:
    return any(isinstance(x, dist.MaskedDistribution) for x in _layers(law))


def _improper(law: dist.Distribution) -> bool:
    return any(isinstance(x, dist.ImproperUniform) for x in _layers(law))


def _kernel(support: constraints.Constraint) -> constraints.Constraint:
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support


def _is_observation(site: dict | None) -> bool:
    if site is None or site["type"] != "sample" or not site["is_observed"]:
        return False
    return not any(isinstance(x, dist.Unit) for x in _layers(site["fn"]))  # a factor is not an observation


def _flat(terms: list) -> jax.Array:
    """Put all terms into one vector, never an empty one."""
    return jnp.concatenate([jnp.zeros(0 if terms else 1), *(jnp.ravel(jnp.asarray(x, float)) for x in terms)])


def _plain(tree: Any) -> Any:
    """Put NumPy in the place of JAX arrays: they keep their precision outside the fit too."""
    return jax.tree.map(lambda x: np.asarray(x) if isinstance(x, jax.Array) else x, tree)


def _new_name(name: str, taken) -> str:
    name = f"{name}_base"
    return _new_name(name, taken) if name in taken else name


def _name(fn: Any) -> str:
    while not hasattr(fn, "__name__"):
        fn = getattr(fn, "fn", None) or getattr(fn, "func", None)
        if fn is None:
            return "model"
    return fn.__name__
