"""Where a fit begins: the prior's own centre and scales, then a few quasi-Newton steps if the ELBO gains by them."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import biject_to
from scipy.optimize import minimize

from yoasovi.compiling import Clock, call
from yoasovi.gradients import Problem
from yoasovi.model import Model
from yoasovi.window import paired_gain

# Scales of q at the start, relative to the prior's (at most one): too narrow costs a window, too wide can cost the fit.
_COLD_SCALE, _WARM_SCALE = float(np.exp(-1.0)), 0.02
# How far one line may change a variance: a narrow q sees the curvature at one point, and may be believed far out.
COLD_TRUST, WARM_TRUST = 16.0, 1e4


class Begin(NamedTuple):
    """A start and what it cost."""

    params: Any
    trust: float
    values: int
    gradients: int


def centre_and_scale(model: Model, key: jax.Array, scattered: bool) -> tuple[jax.Array, jax.Array]:
    """Give flat unconstrained means and scales from the priors; `scattered` starts are as far apart as the prior."""
    k_prior, k_start, k_jitter = jax.random.split(key, 3)
    given = model.start(k_start) if model.start is not None else {}
    centres, scales = [], []
    for site, law in zip(model.density.sites, model.prior.values(), strict=True):
        inverse = biject_to(law.support).inv
        centre, scale = np.zeros(site.free_shape), np.ones(site.free_shape)
        try:
            draws = np.asarray(jax.vmap(inverse)(law.sample(k_prior, (256,))), float)
            middle = np.median(draws, 0)
            spread = 1.48 * np.median(np.abs(draws - middle), 0)
            sound = np.isfinite(middle) & np.isfinite(spread) & (spread > 0)
            centre, scale = np.where(sound, middle, centre), np.where(sound, spread, scale)
        except NotImplementedError:
            pass  # an improper prior says nothing about where to begin
        if site.name in given:
            centre = np.asarray(inverse(jnp.asarray(given[site.name], float)))
        centres.append(np.ravel(centre))
        scales.append(np.ravel(scale))
    middle, width = np.concatenate(centres), np.concatenate(scales)
    spread = np.minimum(width, 2.0) if scattered else 0.1 * np.minimum(width, 1.0)
    if model.start is not None:
        spread = 0.0 * spread  # a model's own start is as random as it wants to be
    jittered = middle + spread * np.asarray(jax.random.normal(k_jitter, middle.shape))
    return jnp.asarray(jittered, float), jnp.asarray(np.minimum(width, 1.0), float)


def cold_start(model: Model, family, key: jax.Array, scattered: bool = False) -> Any:
    """Give the family's first parameters."""
    k_where, k_family = jax.random.split(key)
    centre, scale = centre_and_scale(model, k_where, scattered)
    return family.init(centre, _COLD_SCALE * scale, k_family)


def warm_start(model: Model, family, key: jax.Array, clock: Clock, scattered: bool = False, budget: int = 100) -> Begin:
    """Climb log p from the cold start; take the place found, narrowly, only if the ELBO gains on common draws."""
    k_where, k_family, k_judge = jax.random.split(key, 3)
    centre, scale = centre_and_scale(model, k_where, scattered)
    cold = family.init(centre, _COLD_SCALE * scale, k_family)
    inputs = as_arrays(model.inputs)
    top, spent = climb(partial(call, clock, _log_density_and_gradient, (model.density,), inputs), np.asarray(centre), budget)
    warm = family.init(jnp.asarray(top, float), _WARM_SCALE * scale, k_family)
    gain = call(clock, _judge, (model.density, family), inputs, k_judge, warm, cold)
    better = bool(gain.mean > 0) and bool(np.isfinite(top).all())
    return Begin(warm if better else cold, WARM_TRUST if better else COLD_TRUST, 2 * int(gain.pairs), spent)


def climb(value_and_gradient, x: np.ndarray, budget: int, enough: float = 0.1) -> tuple[np.ndarray, int]:
    """L-BFGS from x, until two steps in a row gain less than `enough` nats or `budget` gradients are spent."""
    best: list[Any] = [-np.inf, x]
    spent, lasts = [0], [-np.inf, 0]

    def loss(x):
        if spent[0] >= budget:
            raise StopIteration
        spent[0] += 1
        value, gradient = value_and_gradient(jnp.asarray(x, float))
        value, gradient = float(value), np.asarray(gradient, float)
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return 1e300, np.zeros_like(x)
        if value > best[0]:
            best[:] = value, x.copy()
        return -value, -gradient

    def calm(_):
        lasts[1] = lasts[1] + 1 if best[0] - lasts[0] < enough else 0
        lasts[0] = best[0]
        if lasts[1] >= 2:
            raise StopIteration

    with suppress(StopIteration):
        minimize(loss, x, jac=True, method="L-BFGS-B", callback=calm, options={"maxcor": 20, "ftol": 0, "gtol": 0})
    return best[1], spent[0]


def as_arrays(tree):
    """Make every number of a tree an array of the precision in force."""
    def convert(x):
        x = jnp.asarray(x)
        return x.astype(float) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(convert, tree)


def _log_density_and_gradient(density, inputs, flat):
    return jax.value_and_grad(lambda x: density.free_terms(inputs, x).total())(flat)


def _judge(density, family, inputs, key, candidate, incumbent):
    return paired_gain(key, Problem(density, family, inputs), candidate, incumbent, 64)
