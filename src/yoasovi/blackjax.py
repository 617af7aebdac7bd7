"""The default method in BlackJAX's shape: `init`, `step` and `sample` as pure functions over a visible state.

A step is one window of the loop: draws, a proposal, a verdict on paired fresh draws. Everything runs in the caller's
precision and can be compiled, scanned and mapped over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro.distributions import ImproperUniform, constraints

from yoasovi import drive as loop
from yoasovi.acceptance import open_uniform
from yoasovi.errors import check, positive_number
from yoasovi.extras import need
from yoasovi.families.base import FullRank, Gaussian, LowRank, MeanField
from yoasovi.fitting import FAMILIES, FULL_RANK_UP_TO, LOW_RANK_UP_TO
from yoasovi.methods import yoasovi
from yoasovi.model import Density, Inputs, Site
from yoasovi.start import COLD_TRUST
from yoasovi.stopping import StopReason

_NO_LIMIT = 2**30  # steps; whoever calls `step` counts
_MAX_NONFINITE = 200


class VIAlgorithm(NamedTuple):
    """What `as_top_level_api` gives where BlackJAX itself is not installed: the same three functions."""

    init: Callable
    step: Callable
    sample: Callable


class State(NamedTuple):
    """What the next step needs; `mean` is that of the answer so far, in the shape of the position."""

    mean: Any
    loop: loop.State


class Info(NamedTuple):
    """What happened in one step. `elbo` is an ELBO: higher is better."""

    elbo: jax.Array  # of the answer so far, as seen on the draws that it was accepted on
    candidate_elbo: jax.Array  # of this window's proposal, taken or not; NaN in a step after the end
    gain: jax.Array  # of the proposal over the answer before, on paired draws
    gain_se: jax.Array
    accepted: jax.Array
    rolled_back: jax.Array
    num_gradients: jax.Array  # so far, of the log density
    num_values: jax.Array  # so far, of the log density without its gradient
    converged: jax.Array  # from here on steps change nothing
    stop_reason: jax.Array  # a `yoasovi.StopReason`


def init(position: Any, family: Any = "auto", init_scale: float = 0.3, **settings) -> State:
    """Give the state of a Gaussian around `position`, any pytree of numbers, with standard deviations `init_scale`."""
    positive_number("init_scale", "init", init_scale)
    mean = jax.tree.map(lambda x: jnp.asarray(x, float), position)
    flat, _ = ravel_pytree(mean)
    check(flat.size > 0, "position", "init", "a pytree with at least one number", position)
    program, inputs = _program(_nothing, flat.size, family, settings)
    params = program.family.init(flat, jnp.full(flat.shape, init_scale, flat.dtype), jax.random.key(0))
    return State(mean, loop.start(program, inputs, params, jnp.asarray(COLD_TRUST, float)))


def step(
    rng_key: jax.Array, state: State, logdensity_fn: Callable, family: Any = "auto", **settings
) -> tuple[State, Info]:
    """Take one window: propose, judge, keep or roll back; nothing once the state has converged."""
    flat, unravel = ravel_pytree(state.mean)
    program, inputs = _program(lambda x: logdensity_fn(unravel(x)), flat.size, family, settings)
    new, rows = loop.run_chunk(program, inputs, rng_key, state.loop, _NO_LIMIT, 1)
    row = jax.tree.map(lambda x: x[0], rows)
    moved = row.window > 0
    seen = lambda x: jnp.where(moved, x, jnp.nan)
    info = Info(
        new.yardstick, seen(row.elbo), seen(row.gain), seen(row.gain_se), row.accepted, row.rolled_back, new.gradients,
        new.values, new.reason == StopReason.CONVERGED, new.reason,
    )  # fmt: skip
    return State(unravel(new.incumbent.mean), new), info


def sample(rng_key: jax.Array, state: State, num_samples: int = 1, family: Any = "auto") -> Any:
    """Draw from the answer so far: a pytree like the position, with a leading axis."""
    flat, unravel = ravel_pytree(state.mean)
    program, _ = _program(_nothing, flat.size, family, {})
    uniform = open_uniform(rng_key, (num_samples, program.family.noise_size(program.density)))
    return jax.vmap(lambda u: unravel(program.family.draw(program.density, state.loop.incumbent, u)))(uniform)


def as_top_level_api(logdensity_fn: Callable, family: Any = "auto", *, init_scale: float = 0.3, **settings) -> Any:
    """Give the default method as a BlackJAX `VIAlgorithm(init, step, sample)`.

    Parameters
    ----------
    logdensity_fn
        JAX function of a position (any pytree of unconstrained numbers) giving the log density up to a constant.
    family
        "auto" (a full covariance up to 300 numbers), "mean_field", "full_rank", "low_rank" or a Gaussian family.
    init_scale
        Standard deviations of q at the start, around the position given to `init`. Rather too narrow than too wide.
    **settings
        Of the method `yoasovi`: tolerance, patience, step, momentum, clip, tempering.

    Examples
    --------
    >>> vi = as_top_level_api(lambda x: -0.5 * jnp.sum((x - 1.0) ** 2))
    >>> state, info = jax.lax.scan(lambda s, k: vi.step(k, s), vi.init(jnp.zeros(3)), jax.random.split(key, 20))
    >>> draws = vi.sample(key, state, 1000)
    """
    check(callable(logdensity_fn), "logdensity_fn", "as_top_level_api", "callable", logdensity_fn)
    _parts(1, family, settings)  # complains now, not inside a trace

    def init_fn(position, rng_key=None):
        return init(position, family, init_scale, **settings)

    def step_fn(rng_key, state):
        return step(rng_key, state, logdensity_fn, family, **settings)

    def sample_fn(rng_key, state, num_samples=1):
        return sample(rng_key, state, num_samples, family)

    return _shape()(init_fn, step_fn, sample_fn)


def _shape() -> Any:
    """Give BlackJAX's own tuple where there is one, so that its checks of type hold."""
    try:
        return need("blackjax.base", "blackjax").VIAlgorithm
    except ImportError:
        return VIAlgorithm


def _parts(dim: int, family: Any, settings: dict[str, Any]) -> tuple[Any, Any]:
    if family == "auto":
        family = FullRank() if dim <= FULL_RANK_UP_TO else LowRank() if dim <= LOW_RANK_UP_TO else MeanField()
    elif isinstance(family, str):
        check(family in FAMILIES, "family", "as_top_level_api", f"auto, {', '.join(FAMILIES)} or a family", family)
        family = FAMILIES[family]
    check(isinstance(family, Gaussian), "family", "as_top_level_api", "a Gaussian family", family)
    return yoasovi(**settings), family


def _program(fn: Callable, dim: int, family: Any, settings: dict[str, Any]) -> tuple[loop.Program, Inputs]:
    method, family = _parts(dim, family, settings)
    whole = lambda params, data: jnp.reshape(fn(params["x"]), (1,))
    density = Density(whole, (Site("x", (dim,), (dim,), False),), (), 1, True)
    program = loop.Program(
        density, family, method.draws, method.gradient, method.acceptance, method.optimizer, method.stopping, _MAX_NONFINITE
    )
    return program, Inputs({"x": ImproperUniform(constraints.real, (), (dim,))}, {}, None)


def _nothing(x):
    return jnp.zeros((), np.result_type(x))
