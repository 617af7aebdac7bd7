"""fit(): check the arguments, choose, start, drive, and put the answer together."""

from __future__ import annotations

import inspect
import numbers
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from yoasovi.answer.result import Fit, Seconds
from yoasovi.calling import sort_out
from yoasovi.choosing import choose_family
from yoasovi.drive import drive, lane
from yoasovi.errors import check, positive_integer
from yoasovi.families import Arrow, Factorised, Gaussian
from yoasovi.files import identity
from yoasovi.files.checkpoint import Checkpoint, Saved, Store
from yoasovi.kernels import kernels_of
from yoasovi.kernels.programs import Clock, precision
from yoasovi.methods import Method, method as named
from yoasovi.model import Density, Model
from yoasovi.model.minibatch import in_batches, small_part
from yoasovi.optimizers import Natural
from yoasovi.randomness import Purpose, open_uniform, stream
from yoasovi.run.interrupts import Interrupts
from yoasovi.run.nonfinite import Nonfinite, explain, search
from yoasovi.run.progress import Progress
from yoasovi.run.trace import Trace
from yoasovi.start import Begin, Origin, cold_start, own_start, prior_draw, take, warm_start
from yoasovi.stopping import StopReason
from yoasovi.turns import ChainTurns, GroupTurns, LabelTurns, Limits, NaturalTurns, RunState, ScoreTurns, Turns, ValueTurns
from yoasovi.verdict.diagnostics import Estimate, estimate
from yoasovi.windows.rule import Window
from yoasovi.windows.state import COLD_TRUST, Setting
from yoasovi.windows.value_rule import ValueWindow

# Draws behind the ELBO: as many as its error asks for (windows end within 0.02 nats), or as cost nothing.
_FEWEST_DRAWS, _MOST_DRAWS, _ENOUGH, _CLOSEST = 64, 1000, 0.02, 8
_NUMBERS = 2**24  # of noise at a time


def fit(
    model: Any,
    *args: Any,
    method: str | Method = "yoasovi",
    family: Any = "auto",
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
    mend: bool = True,
    **settings: Any,
) -> Fit:
    """Fit q to the posterior of `model`.

    Parameters
    ----------
    model
        A `Model`, a NumPyro model function, or a PyMC model.
    *args
        The arguments of a NumPyro model function, also by keyword: `fit(fn, x, y=y)` is `fit(from_numpyro(fn, x, y=y))`.
        Or a name or `Method` that is the method, and a family.
    method, family
        A name (`yoasovi methods` lists them) or a `Method`, with its own `settings`; a family or its name.
    seed
        The same seed gives the same bits.
    max_steps, restarts
        Most iterations (the method's own limit if None); how many starts, of which the best is returned.
    batch_size
        Rows of the data that one look takes, drawn at random; the start, anchors and what is reported take all of them.
        Of a hierarchy, whole groups with about so many rows.
    progress
        Live progress: True, False, or None for "where there is a terminal or a notebook".
    checkpoint, resume
        A folder, or a `Checkpoint`, to write the run to; True goes on from what is there, or begins if nothing is.
    mesh
        Devices that share the rows of the data among them: "all" (of all processes, after `yo.connect`), a list of
        devices, or a `jax.sharding.Mesh` of one axis.
    nonfinite, max_nonfinite
        Refuse ("reject") draws that are not finite until `max_nonfinite` in a row, or "raise" at the first.
    mend
        After a fit by the default method, where looks at log p are cheap: look for a funnel that a non-centred form of the
        model does not have, and for other modes; try what may help, and keep what is better. `Fit.mended` tells.
    """
    clock = Clock()
    check(isinstance(mend, bool), "mend", "fit", "True or False", mend)
    given = sort_out(model, args, method, family, settings | ({} if optimizer is None else {"optimizer": optimizer}), _OWN)
    asked = _asked(method=given.method, family=given.family, max_steps=max_steps, restarts=restarts, batch_size=batch_size,
                   nonfinite=nonfinite, max_nonfinite=max_nonfinite, mend=mend, **given.settings)  # fmt: skip
    chosen = named(given.method, **given.settings)
    options = _options(seed, max_steps, restarts, progress, nonfinite, max_nonfinite, checkpoint, resume, chosen.max_steps)
    with Interrupts() as interrupts, Progress(options.progress, chosen, options.max_steps) as show:
        clock.watch, clock.guard = show.compiling, interrupts.run
        with clock.stage("model"):
            model = as_model(model, *given.args, **given.kwargs)
            if mesh is not None:
                from yoasovi.scale.sharding import over

                model = over(model, mesh)
            family, why, looked = choose_family(model, chosen, given.family, clock, restarts, seed)
            chosen = chosen.for_family(model, family)
            groups = _groups(model, chosen, family, batch_size, options)
            parts = in_batches(model, batch_size if groups is None else None)
        options = options._replace(max_steps=max_steps or chosen.max_steps)  # that form has a limit of its own
        try:
            if groups is None:
                answer = _fit(parts, chosen, family, why, options, clock, interrupts, show)
            else:
                answer = groups(why, clock, interrupts, show)
        except jax.errors.JaxRuntimeError as error:
            if jax.process_count() == 1:
                raise
            raise ConnectionError(_lost(error, options.checkpoint)) from error
        answer.asked, answer.model = asked, model  # what is said of a fit is about all the data
        answer.num_gradients += looked
    if not mend or chosen.name != "yoasovi":
        return answer
    from yoasovi.answer.mend import mended

    return mended(answer, options.progress, {"max_steps": max_steps, "nonfinite": nonfinite, "max_nonfinite": max_nonfinite})


def _groups(model: Model, method: Method, family: Any, batch_size: Any, options: Options) -> Callable[..., Any] | None:
    """Give what fits a hierarchy by minibatches of its groups; None where none are asked for, or there are no groups."""
    unsaid = batch_size is None
    if unsaid and model.batch_groups is None:
        return None
    if not isinstance(family, Arrow):
        if unsaid:
            said = f"latent sites are inside, and q is {family.name}, which does not hold groups apart"
            warnings.warn(f"Plates that take a subsample are evaluated in full: {said}.", stacklevel=3)
        return None
    from yoasovi.scale.group_fit import cut_in_groups, fit_in_groups

    try:
        parts = cut_in_groups(model, method, family, batch_size, options)
    except ValueError as error:
        if not unsaid:
            raise
        warnings.warn(f"Plates that take a subsample are evaluated in full. {error}", stacklevel=3)
        return None
    return None if parts is None else lambda *rest: fit_in_groups(parts, method, rest[0], options, *rest[1:])


def _asked(**given: Any) -> dict[str, str]:
    """Give the arguments that decide the numbers of a fit and are not the usual ones, as Python text."""
    usual = {k: p.default for k, p in inspect.signature(fit).parameters.items()}
    return {k: repr(v) for k, v in given.items() if k not in usual or type(v) is not type(usual[k]) or v != usual[k]}


_OWN = {k for k, p in inspect.signature(fit).parameters.items() if p.kind == p.KEYWORD_ONLY}


def as_model(model: Any, /, *args: Any, **kwargs: Any) -> Model:
    """Take a model from whichever library it comes; a NumPyro model function with its arguments."""
    if isinstance(model, Model):
        return model
    if any(kind.__module__.split(".")[0] == "pymc" for kind in type(model).__mro__):
        from yoasovi.pymc import from_pymc

        return from_pymc(model)
    if callable(model):
        from yoasovi.numpyro import from_numpyro

        return from_numpyro(model, *args, **kwargs)
    raise ValueError(f"`model` of `fit` must be a Model, a NumPyro model function or a PyMC model; got {model!r}.")


def fitted_density(model: Model, method: Method, family: Any) -> Density:
    """Give the density that windows look at: that of minibatches, where there are any and the method can take them."""
    if model.subsampled is None:
        return model.density
    natural = isinstance(method.acceptance, Window) and isinstance(method.optimizer, Natural)
    if model.stream is not None and not (isinstance(family, Gaussian) and natural):
        raise ValueError("`data` of `Model` can be a stream only where the default method fits a Gaussian; read them first.")
    if isinstance(family, Gaussian) and not isinstance(method.acceptance, ValueWindow):
        return model.batch_density
    text = "minibatches are for Gaussian families, and for methods that do not regress values"
    warnings.warn(f"{model.name} is evaluated in full: {text}.", stacklevel=5)
    return model.density


class Options(NamedTuple):
    """How to run a fit; none of it is the method's."""

    seed: int
    max_steps: int
    restarts: int
    progress: bool | None
    strict: bool  # raise at the first draw that is not finite
    max_nonfinite: int
    checkpoint: Checkpoint | None
    resume: bool


def _options(
    seed: Any, max_steps: Any, restarts: Any, progress: Any, nonfinite: Any, max_nonfinite: Any, checkpoint: Any,
    resume: Any, usual: int,
) -> Options:  # fmt: skip
    """Check the arguments that are no part of a method; `usual` is the method's own limit of steps."""
    whole = isinstance(seed, numbers.Integral) and not isinstance(seed, bool) and -(2**63) <= int(seed) < 2**63
    check(whole, "seed", "fit", "an integer of 64 bits", seed)
    positive_integer("restarts", "fit", restarts)
    positive_integer("max_nonfinite", "fit", max_nonfinite)
    if max_steps is not None:
        positive_integer("max_steps", "fit", max_steps)
    check(nonfinite in ("reject", "raise"), "nonfinite", "fit", "'reject' or 'raise'", nonfinite)
    check(isinstance(resume, bool), "resume", "fit", "True or False", resume)
    if checkpoint is not None and not isinstance(checkpoint, Checkpoint):
        checkpoint = Checkpoint(checkpoint)
    check(not resume or checkpoint is not None, "checkpoint", "fit", "the folder to resume from", checkpoint)
    strict = nonfinite == "raise"
    most = 1 if strict else max_nonfinite
    return Options(int(seed), max_steps or usual, restarts, progress, strict, most, checkpoint, resume)


class Costs(NamedTuple):
    """What the starts have cost."""

    values: int
    gradients: int
    nonfinite: Nonfinite


def turns_of(model: Model, method: Method, family: Any, limits: Limits, clock: Clock, lanes: int) -> Turns:
    """Choose the kind of turn that a method's parts ask for."""
    density = fitted_density(model, method, family)
    kernels = kernels_of(model, family, clock, lanes, density)
    setting = Setting(model.density.dim, family, density.subsampled is not None)
    if isinstance(method.acceptance, ValueWindow):
        kind: type[Turns] = LabelTurns if LabelTurns.suit(kernels.layout()) else ValueTurns
    elif isinstance(method.acceptance, Window):
        natural = GroupTurns if isinstance(family, Arrow) else NaturalTurns
        kind = natural if isinstance(method.optimizer, Natural) else ScoreTurns
    else:
        kind = ChainTurns
    return kind(kernels, method, setting, limits)


def _fit(
    model: Model, method: Method, family: Any, why: str, options: Options, clock: Clock, interrupts: Interrupts, show: Any
) -> Fit:
    limits = Limits(options.seed, options.max_steps, options.max_nonfinite)
    store: Store | None = None
    saved = None
    if options.checkpoint is not None:
        with clock.stage("start"):
            with precision():
                same = identity.of_fit(model, method, family, options.seed, options.restarts, options.max_nonfinite)
            store = Store(options.checkpoint, same)
            saved = store.open(options.resume)
    with clock.stage("start"):
        turns = turns_of(model, method, family, limits, clock, options.restarts)
        whole = turns.kernels
        if turns.setting.batched:  # the start, and all that is said of the fit, look at all the data
            whole = kernels_of(model, family, clock, options.restarts)
        if store is None or saved is None:
            state, trace, costs = _fresh(model, turns, whole, options)
            origin = clock.run
        else:
            state, trace, costs, origin = _restored(model, turns, clock, options, saved, store.folder)

    def write(store: Store, state: Any) -> None:
        if jax.process_index():  # of several processes one writes
            return
        numbers = {**costs._asdict(), "seconds": clock.so_far(), "origin": origin}
        store.write(int(np.max(state.step)), state, trace.arrays(), numbers)

    def between(state: Any, row: Any, more: Any) -> None:
        show(state, row)
        if options.strict and np.sum(state.refused.counts):
            raise FloatingPointError(_blame(model, family, whole, state, options.seed))
        if store is not None and more and store.due(int(np.max(state.step))):
            write(store, state)

    with clock.stage("windows"):
        state = drive(turns, state, trace, clock, origin, lambda: interrupts.asked, between)
        if store is not None:
            write(store, state)
    with clock.stage("elbo"):
        elbos, ratios = fresh_elbos(whole, family, state.incumbent, options.seed, options.restarts)
    # Common noise: the restarts are compared on paired draws, those that were drawn most often among themselves.
    most = max(map(len, ratios))
    best = int(np.argmax([e.value if len(x) == most else -np.inf for e, x in zip(elbos, ratios, strict=True)]))
    num_values, num_gradients = int(np.sum(state.values)) + costs.values, int(np.sum(state.gradients)) + costs.gradients
    nonfinite = Nonfinite(*(int(a) + b for a, b in zip(np.sum(state.refused.counts, 0), costs.nonfinite, strict=True)))
    won = lane(state, best)
    reason = StopReason(int(won.reason))
    reason = StopReason.INTERRUPTED if reason == StopReason.RUNNING else reason
    with clock.stage("elbo"):
        detail = _detail(model, family, reason, won, options)
    answer = Fit(
        model=model, method=method, family=family, family_reason=why, params=won.incumbent,
        elbo=elbos[best], converged=reason == StopReason.CONVERGED, stop_reason=reason, num_steps=int(won.step),
        num_values=num_values, num_gradients=num_gradients, num_nonfinite=sum(nonfinite),
        seconds=Seconds(clock.compile, clock.run, clock.stages), trace=trace.of(best), seed=options.seed,
        log_ratio=ratios[best], reported_elbo=float(won.yardstick), restart_elbos=elbos, nonfinite=nonfinite,
        stop_detail=detail,
    )  # fmt: skip
    return answer.looking_through(whole if options.restarts == 1 else None)


def _fresh(model: Model, turns: Turns, whole: Any, options: Options) -> tuple[RunState, Trace, Costs]:
    """Begin: give the state before the first turn, an empty trace, and what the start cost."""
    begin = _begin(model, turns, whole, options.seed, options.restarts)
    _check_start(model, begin.params)
    nonfinite = Nonfinite(log_p=begin.refused[0], gradient=begin.refused[1])
    return turns.begin(begin.params, begin.trust, begin.origin), Trace(), Costs(begin.values, begin.gradients, nonfinite)


def _begin(model: Model, turns: Turns, whole: Any, seed: int, lanes: int) -> Begin:
    family = turns.family
    if isinstance(family, Factorised):
        given = [own_start(model, seed, r) or (prior_draw(model, seed, r) if r else {}) for r in range(lanes)]
        params = [family.init(model, start) for start in given]
        return Begin(jax.tree.map(lambda *x: np.stack([np.asarray(a) for a in x]), *params), np.full(lanes, COLD_TRUST))
    if isinstance(turns.method.optimizer, Natural):
        few = small_part(model) if turns.setting.batched and lanes == 1 else None
        part = None if few is None else kernels_of(few, family, turns.kernels.clock)
        return warm_start(model, whole, family, seed, lanes, part=part)
    return cold_start(model, family, seed, lanes)


def _restored(model: Model, turns: Turns, clock: Clock, options: Options, saved: Saved, folder: Path) -> Any:
    """Go on: give the same as `_fresh`, as a checkpoint has it, and when the loop began."""
    flat = np.zeros((options.restarts, model.density.dim))
    if isinstance(turns.family, Factorised):
        params = jax.tree.map(lambda x: np.stack([x] * options.restarts), turns.family.init(model, {}))
    else:
        params = turns.family.init(flat, flat + 1.0, stream(0, Purpose.LOADINGS))
    origin = Origin(flat, flat + 1.0, np.zeros(options.restarts, bool)) if isinstance(turns, NaturalTurns) else None
    state = saved.state(turns.begin(params, np.full(options.restarts, COLD_TRUST), origin), folder)
    # More steps may be allowed than before.
    more = (state.reason == StopReason.MAX_STEPS) & (state.step < options.max_steps)
    state = state._replace(reason=np.where(more, int(StopReason.RUNNING), state.reason))
    numbers = saved.numbers
    clock.go_on(*numbers["seconds"])
    costs = Costs(numbers["values"], numbers["gradients"], Nonfinite(*numbers["nonfinite"]))
    return state, Trace.from_arrays(saved.trace), costs, numbers["origin"]


def fresh_elbos(
    kernels: Any, family: Any, params: Any, seed: int, lanes: int, fewest: int = _FEWEST_DRAWS
) -> tuple[list[Estimate], list[np.ndarray]]:
    """Estimate the ELBO of every lane on fresh draws, the same for all; give log p - log q at them too.

    Where looks are expensive, draws end once the error is small; where there are many lanes, those beyond doubt behind the
    best end early.
    """
    rng, size = stream(seed, Purpose.ELBO), family.noise_size(kernels.density)
    ratios, value, se = [np.empty(0)] * lanes, np.full(lanes, -np.inf), np.full(lanes, np.inf)
    enough = _ENOUGH * max(1.0, size / 450)  # as with the nats that a window may leave, see `Window`
    some, seen = np.arange(lanes), np.empty((lanes, 0))  # those that go on, and all that was seen of them
    while some.size:
        more = fewest if lanes > 1 or not kernels.cheap else _MOST_DRAWS
        done = seen.shape[1]
        more = min(max(more, done), _MOST_DRAWS - done, max(_NUMBERS // (len(some) * size), fewest))
        noise = family.noise(open_uniform(rng, (more, size)))
        found = kernels.values(take(params, some), np.broadcast_to(noise, (len(some), *noise.shape)))
        seen = np.concatenate([seen, found], 1)
        value[some], se[some] = estimates(seen)
        for r, row in zip(some, seen, strict=True):
            ratios[r] = row
        top = int(np.argmax(value))
        with np.errstate(invalid="ignore"):  # an ELBO of minus infinity has an error without bounds
            behind = value[some] + 4.0 * np.hypot(se[some], se[top]) < value[top]
        sure = (se[some] < enough) & (not kernels.cheap)
        full = seen.shape[1] >= _MOST_DRAWS
        left = np.flatnonzero(~(behind | full))
        if sure[left].all():  # all of them together: who leaves early could not be compared with the rest
            break
        if len(left) > _CLOSEST:  # of many that are as good as the best, a few are enough
            left = np.sort(left[np.argsort(-value[some[left]], kind="stable")[:_CLOSEST]])
        some, seen = some[left], seen[left]
    return [Estimate(*x) for x in zip(value.tolist(), se.tolist(), strict=True)], ratios


def estimates(draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Give `estimate` of every row: values and standard errors."""
    if np.isfinite(draws).all() and np.abs(draws).max() < 1e150 and draws.shape[1] > 1:
        return draws.mean(1), draws.std(1, ddof=1) / np.sqrt(draws.shape[1])
    value, se = zip(*map(estimate, draws), strict=True)
    return np.array(value), np.array(se)


def _check_start(model: Model, params: Any) -> None:
    """Refuse to begin where a parameter of q is not finite."""
    for path, x in jax.tree_util.tree_leaves_with_path(params):
        if np.isfinite(x).all():
            continue
        site = jax.tree_util.keystr(path)
        if path[-1] == jax.tree_util.GetAttrKey("mean"):
            site = ", ".join(repr(k) for k, v in model.density.split(x).items() if not np.isfinite(v).all())
        raise ValueError(
            f"`start` of `Model` must lie inside the support: {site} begins at a value that is not finite on the "
            "unconstrained scale."
        )


def _lost(error: Exception, checkpoint: Checkpoint | None) -> str:
    """Say that another process of the fit is gone, and what is left."""
    left = "with checkpoint=FOLDER (--checkpoint FOLDER) a run can be resumed"
    if checkpoint is not None:
        left = f"begin all of them again with checkpoint={str(checkpoint.folder)!r}, resume=True (--resume) to go on"
    return f"another process of this fit is gone or cannot be reached ({str(error).splitlines()[0][:200]}); {left}."


def _blame(model: Model, family: Any, kernels: Any, state: RunState, seed: int) -> str:
    """Say what was not finite first, with the draw's values."""
    for r, reason in enumerate(state.reason):
        if reason == StopReason.NON_FINITE:
            refused = lane(state.refused, r)
            return explain(model, family, int(refused.kind), int(refused.step), refused.theta)
    return search(model, family, kernels, lane(state.params, 0), seed)  # met while judging, where draws are not kept


def _detail(model: Model, family: Any, reason: StopReason, state: RunState, options: Options) -> str:
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
