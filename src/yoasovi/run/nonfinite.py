"""Draws that are not finite: refused, counted by kind, and explained in a sentence that names the site."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from yoasovi.kernels.programs import Clock, call
from yoasovi.kernels.walk import DRAW, GRADIENT, LOG_P
from yoasovi.randomness import Purpose, open_uniform, stream

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


def explain(model: Any, family: Any, kind: int, step: int, theta: Any) -> str:
    """Say what is not finite at a draw: which term of log p or which coordinate, and the values it was met at."""
    if model.on_host:
        return _explain_host(model, kind, step, theta)
    at, what = call(Clock(), _look, (model.density, family), model.inputs, theta)
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


def search(model: Any, family: Any, kernels: Any, params: Any, seed: int, draws: int = 200) -> str:
    """Look for a draw of q at which log p is not finite, for a message; say so if there is none among the first."""
    size, lane = family.noise_size(model.density), jax.tree.map(lambda x: x[None], params)
    noise = family.noise(open_uniform(stream(seed, Purpose.BLAME), (draws, size)))
    elbo = kernels.values(lane, noise[None])[0]
    if np.isfinite(elbo).all():
        return f"some draws were not finite while q was being judged; {draws} fresh ones are finite."
    first = int(np.argmin(np.isfinite(elbo)))
    some = noise[first : first + 1]
    theta = family.place(lane, some[None])[0] if hasattr(family, "place") else kernels.draws(params, some)
    theta = jax.tree.map(lambda x: x[0], theta)
    return explain(model, family, LOG_P, 0, theta).replace(" at step 0", "", 1)


def _explain_host(model: Any, kind: int, step: int, theta: Any) -> str:
    what = "the draw" if kind == DRAW else "the gradient of log p" if kind == GRADIENT else "log p"
    program = model.log_likelihood.program
    why = "" if program is None or kind == DRAW else program.why(np.asarray(theta))
    return f"{what} is not finite at step {step}: at x = {_shown(theta)}." + (f" {why}" if why else "")


def _look(density, family, inputs, theta):
    terms = family.terms(density, inputs, theta)
    if isinstance(theta, dict):
        return theta, (terms, {})
    gradient = {}
    if density.differentiable:
        gradient = density.split(jax.grad(lambda x: density.free_terms(inputs, x).total())(theta))
    return density.constrain(inputs, theta)[0], (terms, gradient)


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
