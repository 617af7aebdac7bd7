"""Where a fit begins: the prior's own centre and scales, then a few quasi-Newton steps if the ELBO gains by them."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import biject_to
from scipy.optimize import minimize

from yoasovi.gradients import Problem
from yoasovi.kernels.programs import Clock, as_arrays, call
from yoasovi.model.model import Density, Inputs, Model, Params
from yoasovi.run.nonfinite import Nonfinite
from yoasovi.windows.rule import paired_gain

# Scales of q at the start, relative to the prior's (at most one): too narrow costs a window, too wide can cost the fit.
_COLD_SCALE, _WARM_SCALE = float(np.exp(-1.0)), 0.02
# How far one line may change a variance: a narrow q sees the curvature at one point, and may be believed far out.
COLD_TRUST, WARM_TRUST = 16.0, 1e4
_LONG_CLIMB = 40  # gradients


class Begin(NamedTuple):
    """A start and what it cost."""

    params: Any
    trust: float
    values: int
    gradients: int
    nonfinite: Nonfinite = Nonfinite()


def centre_and_scale(density: Density, scattered: bool, inputs: Inputs, given: Params, key: jax.Array):
    """Give flat unconstrained means and scales: the priors' own, or the model's `given` start.

    `scattered` starts are as far apart as the prior; a model's own start is as random as it wants to be.
    """
    k_prior, k_jitter = jax.random.split(key)
    centres, scales = [], []
    for site in density.sites:
        law = inputs.prior[site.name]
        inverse = biject_to(law.support).inv
        centre, scale = jnp.zeros(site.free_shape), jnp.ones(site.free_shape)
        with suppress(NotImplementedError):  # an improper prior says nothing about where to begin
            draws = jax.vmap(inverse)(law.sample(k_prior, (256,)))
            middle = jnp.median(draws, 0)
            spread = 1.48 * jnp.median(jnp.abs(draws - middle), 0)
            sound = jnp.isfinite(middle) & jnp.isfinite(spread) & (spread > 0)
            centre, scale = jnp.where(sound, middle, centre), jnp.where(sound, spread, scale)
        if site.name in given:
            centre = inverse(given[site.name])
        centres.append(jnp.ravel(centre))
        scales.append(jnp.ravel(scale))
    middle, width = jnp.concatenate(centres), jnp.concatenate(scales)
    jitter = 0.0 if given else jnp.minimum(width, 2.0) if scattered else 0.1 * jnp.minimum(width, 1.0)
    return middle + jitter * jax.random.normal(k_jitter, middle.shape), jnp.minimum(width, 1.0)


def prior_draw(model: Model, key: jax.Array) -> Params:
    """Draw every continuous site that has a proper prior."""
    out = {}
    for i, (name, law) in enumerate(model.prior.items()):
        with suppress(NotImplementedError):
            if not law.is_discrete:
                out[name] = law.sample(jax.random.fold_in(key, i))
    return out


def own_start(model: Model, seed: int, restart: int) -> Params:
    """Give the point where the model itself wants to begin; empty if it does not say."""
    return {} if model.start is None else model.start(_key(seed, restart))


def cold_start(model: Model, family, clock: Clock, seed: int, restart: int = 0) -> Any:
    """Give the family's first parameters."""
    given = own_start(model, seed, restart)
    return call(clock, _cold, (model.density, family, restart > 0), model.inputs, given, seed, restart)[0]


def warm_start(
    model: Model, density: Density, family, clock: Clock, seed: int, restart: int = 0, budget: int = 100
) -> Begin:
    """Climb log p from the cold start; take the place found, narrowly, only if the ELBO gains on common draws.

    Where there are minibatches, they judge, but what is climbed is log p of all the data: the top of a single minibatch
    can be many posterior standard deviations away, and the way back costs more.
    """
    inputs, given = as_arrays(model.inputs), own_start(model, seed, restart)
    cold, centre, scale = call(clock, _cold, (density, family, restart > 0), inputs, given, seed, restart)
    refused = [0, 0]

    def look(x):
        value, gradient = call(clock, _log_density_and_gradient, (model.density,), inputs, x)
        broken = not np.isfinite(value)
        refused[0] += broken
        refused[1] += not broken and not np.isfinite(gradient).all()
        return value, gradient

    top, spent, given_up = climb(look, np.asarray(centre), budget, near=20.0 * density.dim)
    if given_up:
        return Begin(cold, COLD_TRUST, 0, spent, Nonfinite(*refused))
    warm, gain = call(clock, _warm, (density, family), inputs, top, scale, cold, seed, restart)
    better = bool(gain.mean > 0) and bool(np.isfinite(top).all())
    nonfinite = Nonfinite(log_p=refused[0] + int(gain.nonfinite), gradient=refused[1])
    return Begin(warm if better else cold, WARM_TRUST if better else COLD_TRUST, 2 * int(gain.pairs), spent, nonfinite)


class Climb(NamedTuple):
    """The highest point of a climb, what it cost, and whether it was given up."""

    top: np.ndarray
    gradients: int
    given_up: bool


def climb(value_and_gradient, x: np.ndarray, budget: int, enough: float = 0.1, near: float = 0.0) -> Climb:
    """L-BFGS from x, until two steps in a row gain less than `enough` nats or `budget` gradients are spent.

    A climb that goes on and on but has gained less than `near` nats is given up: log p can rise for ever where the
    posterior has no mass (a hierarchy whose scale goes to zero), and x was not far away.
    """
    best: list[Any] = [-np.inf, x]
    spent, lasts, first, given_up = [0], [-np.inf, 0], [-np.inf], [False]

    def loss(x):
        if spent[0] >= budget:
            raise StopIteration
        spent[0] += 1
        value, gradient = value_and_gradient(x)
        value, gradient = float(value), np.asarray(gradient, float)
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            return 1e300, np.zeros_like(x)
        if spent[0] == 1:
            first[0] = value
        if value > best[0]:
            best[:] = value, x.copy()
        return -value, -gradient

    def calm(_):
        lasts[1] = lasts[1] + 1 if best[0] - lasts[0] < enough else 0
        lasts[0] = best[0]
        if lasts[1] >= 2:
            raise StopIteration
        given_up[0] = spent[0] >= _LONG_CLIMB and best[0] - first[0] < near
        if given_up[0]:
            raise StopIteration

    with suppress(StopIteration):
        minimize(loss, x, jac=True, method="L-BFGS-B", callback=calm, options={"maxcor": 20, "ftol": 0, "gtol": 0})
    return Climb(best[1], spent[0], given_up[0])


def _key(seed, restart):
    return jax.random.fold_in(jax.random.key(seed), 1_000_003 + restart)


def _cold(density, family, scattered, inputs, given, seed, restart):
    k_where, k_family = jax.random.split(_key(seed, restart))
    centre, scale = centre_and_scale(density, scattered, inputs, given, k_where)
    return family.init(centre, _COLD_SCALE * scale, k_family), centre, scale


def _warm(density, family, inputs, top, scale, cold, seed, restart):
    k_judge, k_family = jax.random.split(jax.random.fold_in(_key(seed, restart), 1))
    warm = family.init(top, _WARM_SCALE * scale, k_family)
    return warm, paired_gain(k_judge, Problem(density, family, inputs), warm, cold, 64)


def _log_density_and_gradient(density, inputs, flat):
    return jax.value_and_grad(lambda x: density.free_terms(inputs, x).total())(flat)
