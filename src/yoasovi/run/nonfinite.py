"""Draws that are not finite: refused, counted by kind, and explained in a sentence that names the site."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from yoasovi.acceptance import open_uniform
from yoasovi.gradients import Problem
from yoasovi.kernels.programs import Clock, as_arrays, call

# What was not finite first, in the order in which an iteration meets it: the draw, log p there, its gradient, the step.
LOG_P, GRADIENT, DRAW, PARAMETER = range(4)
_SHOWN = 6  # numbers of an array that a message shows


class Nonfinite(NamedTuple):
    """How often something was not finite and was refused, by kind."""

    log_p: int = 0
    gradient: int = 0
    draw: int = 0
    parameter: int = 0

    def __str__(self):
        names = ("log p", "gradient", "draw", "parameter")
        return ", ".join(f"{name} {count:,}" for name, count in zip(names, self, strict=True) if count) or "none"


class Refused(NamedTuple):
    """What a run remembers of refused draws."""

    counts: jax.Array  # (4,), by kind
    run: jax.Array  # refused in a row; stays where it is once the limit is reached
    kind: jax.Array  # of the latest
    step: jax.Array
    theta: Any  # the latest refused draw


def nothing_refused(problem: Problem, params: Any) -> Refused:
    """Give the memory to begin with."""
    uniform = jnp.full(problem.noise_size, 0.5)
    theta = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(problem.draw, params, uniform))
    zero = jnp.asarray(0)
    return Refused(jnp.zeros(4, int), zero, zero, zero, theta)


def note(refused: Refused, bad: jax.Array, kind: jax.Array, step: jax.Array, theta: Any, most: int) -> Refused:
    """Take note of one iteration; once `most` in a row were refused the culprit is kept."""
    full = refused.run >= most
    counts = refused.counts.at[kind].add(bad)
    latest = Refused(counts, refused.run + 1, kind, step, theta)
    choose = lambda a, b: jnp.where(bad & ~full, a, b)
    out = jax.tree.map(choose, latest, refused)
    return out._replace(counts=counts, run=jnp.where(bad | full, out.run, 0))


def explain(model: Any, family: Any, kind: int, step: int, theta: Any) -> str:
    """Say what is not finite at a draw: which term of log p or which coordinate, and the values it was met at."""
    at, what = call(Clock(), _look, (model.density, family), as_arrays(model.inputs), theta)
    at = {k: np.asarray(v) for k, v in at.items()}
    local = {s.name for s in model.density.local_sites}
    where = ", ".join(f"{k} = {_shown(v)}" for k, v in at.items() if k not in local)
    if kind == DRAW:
        sites = _bad(at)
        return f"the draw of {', '.join(sites) or 'q'} is not finite at step {step}: {where}."
    terms, gradient = what
    if kind == LOG_P:
        return f"log p is not finite at step {step}: {', '.join(_bad_terms(terms)) or 'its sum'}, at {where}."
    sites = _bad(gradient)
    if kind == GRADIENT:
        along = ", ".join(sites) or "the path of q"
        return f"the gradient of log p is not finite at step {step}: along {along}, at {where}."
    return f"a parameter of q was not finite after step {step}, though log p and its gradient were finite, at {where}."


def search(model: Any, family: Any, params: Any, seed: int, draws: int = 200) -> str:
    """Look for a draw of q at which log p is not finite, for a message; say so if there is none among the first."""
    static, inputs = (model.density, family), as_arrays(model.inputs)
    theta, elbo = call(Clock(), _first_bad, (*static, draws), inputs, params, seed)
    if np.isfinite(elbo):
        return f"some draws were not finite while q was being judged; {draws} fresh ones are finite."
    return explain(model, family, LOG_P, 0, theta).replace(" at step 0", "", 1)


def _look(density, family, inputs, theta):
    problem = Problem(density, family, inputs)
    terms = problem.terms(theta)
    gradient = {}
    if density.differentiable and not isinstance(theta, dict):
        gradient = density.split(jax.grad(lambda x: problem.terms(x).total())(theta))
    return family.constrain(density, inputs, theta), (terms, gradient)


def _first_bad(density, family, draws, inputs, params, seed):
    problem = Problem(density, family, inputs)
    uniform = open_uniform(jax.random.key(seed), (draws, family.noise_size(density)))
    theta = jax.vmap(lambda u: problem.draw(params, u))(uniform)
    elbo = jax.lax.map(lambda u: problem.elbo(params, u), uniform)
    first = jnp.argmin(jnp.isfinite(elbo))
    return jax.tree.map(lambda x: x[first], theta), elbo[first]


def _bad_terms(terms) -> list[str]:
    names = [f"the prior of {k!r}" for k in _bad(terms.prior)]
    names += [f"the prior of latent {k!r}" for k in _bad(terms.local)]
    likelihood = np.asarray(terms.likelihood)
    if not np.isfinite(likelihood).all():
        rows = np.flatnonzero(~np.isfinite(likelihood))
        which = f" of observation {_shown(rows)}" if likelihood.size > 1 else ""
        names.append(f"the likelihood{which} is {_shown(likelihood[rows[:1]])}")
    return names


def _bad(arrays: dict) -> list[str]:
    return [k for k, v in arrays.items() if np.asarray(v).dtype.kind == "f" and not np.isfinite(v).all()]


def _shown(array: Any) -> str:
    flat = np.ravel(np.asarray(array))
    text = ", ".join(f"{x:.6g}" for x in flat[:_SHOWN].tolist())
    more = f", ... ({flat.size} in all)" if flat.size > _SHOWN else ""
    return text if flat.size == 1 else f"[{text}{more}]"
