"""fit(): check the arguments, run the loop in chunks, look in between, and put the answer together."""

from __future__ import annotations

import numbers
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from yoasovi.answer.result import Fit, Seconds, fresh_ratios
from yoasovi.drive import Program, run_chunk, start
from yoasovi.errors import check, positive_integer
from yoasovi.families.base import FullRank, Gaussian, LowRank, MeanField
from yoasovi.families.factorised import Factorised
from yoasovi.files import identity
from yoasovi.files.checkpoint import Checkpoint, Saved, Store
from yoasovi.kernels.programs import Clock, as_arrays, call, precision, prepare, raise_faults
from yoasovi.methods import Method, method as named
from yoasovi.model.model import Density, Model
from yoasovi.optimizers import Natural
from yoasovi.run.interrupts import Interrupts
from yoasovi.run.nonfinite import Nonfinite, explain, search
from yoasovi.run.progress import Progress
from yoasovi.run.trace import Trace
from yoasovi.start import COLD_TRUST, Begin, cold_start, own_start, prior_draw, warm_start
from yoasovi.stopping import StopReason
from yoasovi.verdict.diagnostics import estimate
from yoasovi.windows.rule import Window
from yoasovi.windows.value_rule import Values, ValueWindow

FAMILIES = {"mean_field": MeanField(), "full_rank": FullRank(), "low_rank": LowRank()}
# Up to here a full covariance pays for its O(d^2) steps and O(d^3) lines; above, low rank; above that, none.
FULL_RANK_UP_TO, LOW_RANK_UP_TO = 300, 2000
_ELBO_DRAWS = 1000


def fit(
    model: Any,
    method: str | Method = "yoasovi",
    family: Any = "auto",
    *,
    seed: int = 0,
    max_steps: int | None = None,
    restarts: int = 1,
    batch_size: int | None = None,
    optimizer: Any = None,
    progress: bool | None = None,
    checkpoint: Any = None,
    resume: bool = False,
    mesh: Any = None,
    nonfinite: str = "reject",
    max_nonfinite: int = 200,
    chunk: int | None = None,
    **settings,
) -> Fit:
    """Fit q to the posterior of `model`.

    Parameters
    ----------
    model
        A `Model`, a NumPyro model function without arguments, or a PyMC model.
    method, family
        A name (`yoasovi methods` lists them) or a `Method`, with its own `settings`; a family or its name.
    seed
        The same seed gives the same bits, whatever `chunk` (turns between two looks of the host) is.
    max_steps, restarts
        Most iterations (the method's own limit if None); how many starts, of which the best is returned.
    checkpoint, resume
        A folder, or a `Checkpoint`, to write the run to; True goes on from what is there, or begins if nothing is.
    nonfinite, max_nonfinite
        Refuse ("reject") draws that are not finite until `max_nonfinite` in a row, or "raise" at the first.
    """
    model = as_model(model)
    if optimizer is not None:
        settings["optimizer"] = optimizer
    chosen = named(method, **settings)
    family, why = choose_family(model, chosen, family)
    chosen = chosen.for_family(model, family)
    for name, value in (("batch_size", batch_size), ("mesh", mesh)):
        if value is not None:
            raise NotImplementedError(f"`{name}` of `fit` is not available yet.")
    options = _options(
        seed, max_steps, restarts, progress, nonfinite, max_nonfinite, chunk, checkpoint, resume, chosen.max_steps
    )
    with precision(), Interrupts() as interrupts:
        return _fit(model, chosen, family, why, options, interrupts)


def as_model(model: Any) -> Model:
    """Take a model from whichever library it comes."""
    if isinstance(model, Model):
        return model
    if any(kind.__module__.split(".")[0] == "pymc" for kind in type(model).__mro__):
        from yoasovi.pymc import from_pymc

        return from_pymc(model)
    if callable(model):
        from yoasovi.numpyro import from_numpyro

        return from_numpyro(model)
    raise ValueError(f"`model` of `fit` must be a Model, a NumPyro model function or a PyMC model; got {model!r}.")


def choose_family(model: Model, method: Method, family: Any) -> tuple[Any, str]:
    """Resolve a family and say why."""
    density = model.density
    discrete = [s.name for s in (*density.sites, *density.local_sites) if s.discrete or s in density.local_sites]
    why = "as asked"
    if family == "auto":
        if model.default_family is not None:
            family, why = model.default_family, "the model's own"
        elif discrete:
            family, why = Factorised(), f"the model has discrete or local latents: {', '.join(discrete)}"
        elif not isinstance(method.optimizer, Natural) or not model.differentiable:
            family, why = MeanField(), "the usual choice where steps are not natural ones"
        elif density.dim <= FULL_RANK_UP_TO:
            family, why = FullRank(), f"{density.dim} parameters, few enough for a full covariance"
        elif density.dim <= LOW_RANK_UP_TO:
            family, why = LowRank(), f"{density.dim} parameters, too many for a full covariance"
        else:
            family, why = MeanField(), f"{density.dim} parameters, too many for correlations"
    elif isinstance(family, str):
        check(family in FAMILIES, "family", "fit", f"auto, {', '.join(FAMILIES)} or a family", family)
        family = FAMILIES[family]
    if isinstance(family, Factorised):
        return family.complete(model), why
    check(isinstance(family, Gaussian), "family", "fit", f"auto, {', '.join(FAMILIES)} or a family", family)
    if discrete:
        names = ", ".join(discrete)
        raise ValueError(f"`family` of `fit` is {family.name}, a Gaussian, but {names} cannot be; use Factorised().")
    return family, why


def fitted_density(model: Model, method: Method, family: Any) -> Density:
    """Give the density that the loop looks at: that of minibatches, where there are any and the method can take them."""
    if model.subsampled is None:
        return model.density
    if isinstance(family, Gaussian) and not isinstance(method.gradient, Values):
        return model.density._replace(subsampled=model.subsampled)
    text = "minibatches are for Gaussian families, and for methods that do not regress values"
    warnings.warn(f"{model.name} is evaluated in full: {text}.", stacklevel=4)
    return model.density


class Options(NamedTuple):
    """How to run a fit; none of it is the method's."""

    seed: int
    max_steps: int
    restarts: int
    progress: bool | None
    strict: bool  # raise at the first draw that is not finite
    max_nonfinite: int
    chunk: int | None
    checkpoint: Checkpoint | None
    resume: bool


def _options(seed, max_steps, restarts, progress, nonfinite, max_nonfinite, chunk, checkpoint, resume, usual) -> Options:
    """Check the arguments that are no part of a method; `usual` is the method's own limit of steps."""
    whole = isinstance(seed, numbers.Integral) and not isinstance(seed, bool) and -(2**63) <= int(seed) < 2**63
    check(whole, "seed", "fit", "an integer of 64 bits", seed)
    positive_integer("restarts", "fit", restarts)
    positive_integer("max_nonfinite", "fit", max_nonfinite)
    for name, value in (("max_steps", max_steps), ("chunk", chunk)):
        if value is not None:
            positive_integer(name, "fit", value)
    check(nonfinite in ("reject", "raise"), "nonfinite", "fit", "'reject' or 'raise'", nonfinite)
    check(isinstance(resume, bool), "resume", "fit", "True or False", resume)
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint(checkpoint)
    check(not resume or checkpoint is not None, "checkpoint", "fit", "the folder to resume from", checkpoint)
    strict = nonfinite == "raise"
    most = 1 if strict else max_nonfinite
    return Options(int(seed), max_steps or usual, restarts, progress, strict, most, chunk, checkpoint, resume)


class Costs(NamedTuple):
    """What the starts have cost."""

    values: int
    gradients: int
    nonfinite: Nonfinite


def _fit(model, method, family, why, options: Options, interrupts: Interrupts) -> Fit:
    clock = Clock()
    density = fitted_density(model, method, family)
    program = Program(
        density, family, method.draws, method.gradient, method.acceptance, method.optimizer, method.stopping,
        options.max_nonfinite,
    )  # fmt: skip
    store = saved = None
    if options.checkpoint is not None:
        same = identity.of_fit(model, method, family, options.seed, options.restarts, options.max_nonfinite)
        store = Store(options.checkpoint, same)
        saved = store.open(options.resume)
    if store is None or saved is None:
        state, trace, costs = _fresh(model, program, clock, options)
        origin = clock.run
    else:
        state, trace, costs, origin = _restored(model, program, clock, options, saved, store.folder)
    state, trace = _run(model, method, program, clock, options, interrupts, store, state, trace, costs, origin)
    elbos, ratios = [], []
    for r in range(options.restarts):
        ratios.append(fresh_ratios(model, family, lane(state.incumbent, r), options.seed, _ELBO_DRAWS, clock))
        elbos.append(estimate(ratios[-1]))
    best = int(np.argmax([e.value for e in elbos]))  # common noise: the restarts are compared on paired draws
    num_values, num_gradients = int(np.sum(state.values)) + costs.values, int(np.sum(state.gradients)) + costs.gradients
    nonfinite = Nonfinite(*(int(a) + b for a, b in zip(np.sum(state.refused.counts, 0), costs.nonfinite, strict=True)))
    state = lane(state, best)
    reason = StopReason(int(state.reason))
    reason = StopReason.INTERRUPTED if reason == StopReason.RUNNING else reason
    return Fit(
        model=model, method=method, family=family, family_reason=why, params=state.incumbent,
        elbo=elbos[best], converged=reason == StopReason.CONVERGED, stop_reason=reason, num_steps=int(state.step),
        num_values=num_values, num_gradients=num_gradients, num_nonfinite=sum(nonfinite),
        seconds=Seconds(clock.compile, clock.run), trace=trace.of(best), seed=options.seed, log_ratio=ratios[best],
        reported_elbo=float(state.yardstick), restart_elbos=elbos, nonfinite=nonfinite,
        stop_detail=_detail(model, family, reason, state, options),
    )  # fmt: skip


def _fresh(model, program, clock, options: Options):
    """Begin: give the state before the first turn, an empty trace, and what the start cost."""
    begins = [_begin(model, program, clock, options.seed, r) for r in range(options.restarts)]
    params = jax.tree.map(lambda *x: np.stack(x), *[b.params for b in begins])
    _check_start(model, program.family, params)
    inputs = as_arrays(model.inputs)
    state = call(clock, _start_all, (program,), inputs, params, np.array([b.trust for b in begins]))
    nonfinite = Nonfinite(*(sum(kind) for kind in zip(*(b.nonfinite for b in begins), strict=True)))
    return state, Trace(), Costs(sum(b.values for b in begins), sum(b.gradients for b in begins), nonfinite)


def _restored(model, program, clock, options: Options, saved: Saved, folder: Path):
    """Go on: give the same as `_fresh`, as a checkpoint has it, and when the loop began."""
    trust = jax.ShapeDtypeStruct((options.restarts,), jnp.result_type(float))
    one = _shapes_of_params(model, program.family)
    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct((options.restarts, *x.shape), x.dtype), one)
    like = jax.eval_shape(lambda i, p, t: _start_all(program, i, p, t), as_arrays(model.inputs), params, trust)
    state = saved.state(like, folder)
    # More steps may be allowed than before.
    more = (state.reason == StopReason.MAX_STEPS) & (state.step < options.max_steps)
    state = state._replace(reason=np.where(more, int(StopReason.RUNNING), state.reason))
    numbers = saved.numbers
    clock.go_on(*numbers["seconds"])
    costs = Costs(numbers["values"], numbers["gradients"], Nonfinite(*numbers["nonfinite"]))
    return state, Trace.from_arrays(saved.trace), costs, numbers["origin"]


def _run(model, method, program, clock, options, interrupts, store, state, trace, costs, origin):
    """Run chunks until all restarts have ended or the user asks for it, and look in between."""
    inputs = as_arrays(model.inputs)
    turns = options.chunk or (4 if isinstance(program.acceptance, (Window, ValueWindow)) else 250)
    running = lambda: bool((np.asarray(state.reason) == StopReason.RUNNING).any())

    def write():
        numbers = {**costs._asdict(), "seconds": (clock.compile, clock.run), "origin": origin}
        store.write(int(np.max(state.step)), state, trace.arrays(), numbers)

    with Progress(options.progress, method, options.max_steps) as show:
        while running() and not interrupts.asked:
            chunk, args = prepare(clock, _run_all, (program, turns), inputs, options.seed, state, options.max_steps)
            begin = clock.run
            state, info = jax.tree.map(np.asarray, interrupts.run(chunk, *args))
            raise_faults()
            trace.add(info, begin - origin, clock.run - origin)
            show(state, info)
            if options.strict and np.sum(state.refused.counts):
                raise FloatingPointError(_blame(model, program.family, state, options.seed))
            if store is not None and running() and store.due(int(np.max(state.step))):
                write()
    if store is not None:
        write()
    return state, trace


def _begin(model, program, clock, seed, restart) -> Begin:
    if isinstance(program.family, Factorised):
        given = own_start(model, seed, restart) or (prior_draw(model, jax.random.key(seed + restart)) if restart else {})
        return Begin(program.family.init(model, given), COLD_TRUST, 0, 0)
    if isinstance(program.optimizer, Natural):
        return warm_start(model, program.density, program.family, clock, seed, restart)
    return Begin(cold_start(model, program.family, clock, seed, restart), COLD_TRUST, 0, 0)


def _start_all(program, inputs, params, trust):
    return jax.vmap(lambda p, t: start(program, inputs, p, t))(params, trust)


def _run_all(program, turns, inputs, seed, state, max_steps):
    count = len(state.reason)
    keys = jax.vmap(lambda r: jax.random.fold_in(jax.random.key(seed), r))(jnp.arange(count))
    one = lambda key, state: run_chunk(program, inputs, key, state, max_steps, turns)
    if count > 1:
        return jax.vmap(one)(keys, state)
    # A single fit is not vmapped: its conditionals stay conditionals.
    return jax.tree.map(lambda x: x[None], one(keys[0], lane(state, 0)))


def lane(tree, r: int):
    """Give one restart's part of stacked arrays."""
    return jax.tree.map(lambda x: x[r], tree)


def _shapes_of_params(model, family):
    if isinstance(family, Factorised):
        return jax.eval_shape(lambda: family.init(model, {}))
    flat = jnp.zeros(model.density.dim)
    return jax.eval_shape(lambda: family.init(flat, flat + 1.0, jax.random.key(0)))


def _check_start(model, family, params) -> None:
    """Refuse to begin where a parameter of q is not finite."""
    for path, x in jax.tree_util.tree_leaves_with_path(params):
        if np.isfinite(x).all():
            continue
        site = jax.tree_util.keystr(path)
        if path[-1] == jax.tree_util.GetAttrKey("mean"):
            parts = jax.vmap(model.density.split)(x)
            site = ", ".join(repr(k) for k, v in parts.items() if not np.isfinite(v).all())
        raise ValueError(
            f"`start` of `Model` must lie inside the support: {site} begins at a value that is not finite on the "
            "unconstrained scale."
        )


def _blame(model, family, state, seed: int) -> str:
    """Say what was not finite first, with the draw's values."""
    for r, reason in enumerate(state.reason):
        if reason == StopReason.NON_FINITE:
            refused = lane(state.refused, r)
            return explain(model, family, int(refused.kind), int(refused.step), refused.theta)
    return search(model, family, lane(state.params, 0), seed)  # met while judging, where draws are not kept


def _detail(model, family, reason: StopReason, state, options: Options) -> str:
    """Say more about how a fit ended than its reason can: where it broke, or how to go on."""
    if reason == StopReason.NON_FINITE:
        refused = state.refused
        said = explain(model, family, int(refused.kind), int(refused.step), refused.theta)
        said = f"{int(refused.run)} draws in a row were refused; the last: {said}"
        warnings.warn(said, RuntimeWarning, stacklevel=4)
        return said
    if reason == StopReason.INTERRUPTED and options.checkpoint is not None:
        folder = str(options.checkpoint.folder)
        return f"Go on with checkpoint={folder!r}, resume=True (--checkpoint {folder} --resume)."
    if reason == StopReason.INTERRUPTED:
        return "With checkpoint=FOLDER (--checkpoint FOLDER) a run can be resumed."
    return ""
