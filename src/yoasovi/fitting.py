"""fit(): check the arguments, run the loop in chunks, look in between, and put the answer together."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from yoasovi.acceptance import open_uniform
from yoasovi.compiling import Clock, as_arrays, call, precision
from yoasovi.diagnostics import estimate
from yoasovi.errors import check, positive_integer
from yoasovi.factorised import Factorised
from yoasovi.families import FullRank, Gaussian, LowRank, MeanField
from yoasovi.gradients import Problem
from yoasovi.loop import Program, run_chunk, start
from yoasovi.methods import Method, method as named
from yoasovi.model import Model
from yoasovi.optimizers import Natural
from yoasovi.progress import Progress
from yoasovi.result import Fit, Seconds, fresh_ratios
from yoasovi.start import COLD_TRUST, Begin, cold_start, own_start, prior_draw, warm_start
from yoasovi.stopping import StopReason
from yoasovi.values import ValueWindow
from yoasovi.window import Window

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
    chunk: int | None = None,
    **settings,
) -> Fit:
    """Fit q to the posterior of `model`.

    Parameters
    ----------
    model
        A `Model`, a NumPyro model function without arguments, or a PyMC model.
    method
        A name (`yoasovi methods` lists them) or a `Method`; `settings` are the named method's own.
    family
        "auto", "mean_field", "full_rank", "low_rank", or a family.
    seed
        The same seed gives the same bits, whatever `chunk` is.
    max_steps
        Most iterations; the method's own limit if None.
    restarts
        Fits from different starts, in one compiled program; the best by the ELBO on common draws is returned.
    chunk
        Turns of the loop between two looks of the host.
    """
    model = as_model(model)
    if optimizer is not None:
        settings["optimizer"] = optimizer
    chosen = named(method, **settings)
    family, why = choose_family(model, chosen, family)
    chosen = chosen.for_family(model, family)
    check(isinstance(seed, int), "seed", "fit", "an integer", seed)
    positive_integer("restarts", "fit", restarts)
    if max_steps is not None:
        positive_integer("max_steps", "fit", max_steps)
    check(nonfinite in ("reject", "raise"), "nonfinite", "fit", "'reject' or 'raise'", nonfinite)
    for name, value in (("batch_size", batch_size), ("checkpoint", checkpoint), ("mesh", mesh)):
        if value is not None:
            raise NotImplementedError(f"`{name}` of `fit` is not available yet.")
    if resume:
        raise NotImplementedError("`resume` of `fit` is not available yet.")
    with precision():
        return _fit(model, chosen, family, why, seed, max_steps or chosen.max_steps, restarts, progress, nonfinite, chunk)


def as_model(model: Any) -> Model:
    """Take a model from whichever library it comes."""
    if isinstance(model, Model):
        return model
    if type(model).__module__.split(".")[0] == "pymc":
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


def _fit(model, method, family, why, seed, max_steps, restarts, progress, nonfinite, chunk) -> Fit:
    clock = Clock()
    program = Program(
        model.density, family, method.draws, method.gradient, method.acceptance, method.optimizer, method.stopping, 200
    )
    inputs = as_arrays(model.inputs)
    begins = [_begin(model, program, clock, seed, r) for r in range(restarts)]
    params = jax.tree.map(lambda *x: np.stack(x), *[b.params for b in begins])
    state = call(clock, _start_all, (program,), inputs, params, np.array([b.trust for b in begins]))
    turns = chunk or (4 if isinstance(method.acceptance, (Window, ValueWindow)) else 250)
    rows, seconds, reason = [], [clock.run], None
    with Progress(progress, method, max_steps) as show:
        try:
            while (np.asarray(state.reason) == StopReason.RUNNING).any():
                state, info = call(clock, _run_all, (program, turns), inputs, seed, state, max_steps)
                rows.append(jax.tree.map(np.asarray, info))
                seconds.append(clock.run)
                show(state, rows[-1])
                if nonfinite == "raise" and int(np.sum(state.nonfinite)):
                    raise FloatingPointError(_blame(model, family, lane(state.params, 0), seed))
        except KeyboardInterrupt:
            reason = StopReason.INTERRUPTED
    state = jax.tree.map(np.asarray, state)
    elbos, ratios = [], []
    for r in range(restarts):
        ratios.append(fresh_ratios(model, family, lane(state.incumbent, r), seed, _ELBO_DRAWS, clock))
        elbos.append(estimate(ratios[-1]))
    best = int(np.argmax([e.value for e in elbos]))  # common noise: the restarts are compared on paired draws
    num_values = int(np.sum(state.values)) + sum(b.values for b in begins)
    num_gradients = int(np.sum(state.gradients)) + sum(b.gradients for b in begins)
    state = lane(state, best)
    reason = reason or StopReason(int(state.reason))
    return Fit(
        model=model, method=method, family=family, family_reason=why, params=state.incumbent,
        elbo=elbos[best], converged=reason == StopReason.CONVERGED, stop_reason=reason, num_steps=int(state.step),
        num_values=num_values, num_gradients=num_gradients, num_nonfinite=int(state.nonfinite),
        seconds=Seconds(clock.compile, clock.run), trace=_trace(rows, seconds, best), seed=seed, log_ratio=ratios[best],
        reported_elbo=float(state.yardstick), restart_elbos=elbos,
    )  # fmt: skip


def _begin(model, program, clock, seed, restart) -> Begin:
    if isinstance(program.family, Factorised):
        given = own_start(model, seed, restart) or (prior_draw(model, jax.random.key(seed + restart)) if restart else {})
        return Begin(program.family.init(model, given), COLD_TRUST, 0, 0)
    if isinstance(program.optimizer, Natural):
        return warm_start(model, program.family, clock, seed, restart)
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


def _trace(rows, seconds, best: int) -> dict[str, np.ndarray]:
    """One row per turn. `elapsed` (without compiling) is known between chunks and spread evenly within them."""
    if not rows:
        return {}
    columns = {k: np.concatenate([getattr(row, k)[best] for row in rows]) for k in rows[0]._fields}
    turns = rows[0].window.shape[1]
    shares = np.arange(1, turns + 1) / turns
    ends = [a + shares * (b - a) for a, b in pairwise(seconds)]
    columns["elapsed"] = np.concatenate(ends) - seconds[0]
    with np.errstate(divide="ignore"):
        columns["temperature"] = 1.0 / columns["strictness"]
    done = columns["window"] > 0
    return {k: v[done] for k, v in columns.items()}


def lane(tree, r: int):
    """Give one restart's part of stacked arrays."""
    return jax.tree.map(lambda x: x[r], tree)


def _blame(model, family, params, seed) -> str:
    """Find which term of log p is not finite, for the message."""
    problem = Problem(model.density, family, as_arrays(model.inputs))
    uniform = open_uniform(jax.random.key(seed), (200, family.noise_size(model.density)))
    terms = jax.jit(jax.vmap(lambda u: problem.terms(problem.draw(params, u))))(uniform)
    bad = [f"prior of {k!r}" for k, v in terms.prior.items() if not np.isfinite(v).all()]
    bad += [f"prior of latent {k!r}" for k, v in terms.local.items() if not np.isfinite(v).all()]
    bad += ["the likelihood"] if not np.isfinite(terms.likelihood).all() else []
    return f"log p is not finite: {', '.join(bad) or 'its gradient'}."
