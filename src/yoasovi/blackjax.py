"""The default method in BlackJAX's shape: `init`, `step` and `sample` as pure functions over a visible state.

A step is one window: draws, a proposal, a verdict on paired fresh draws. The rules are those of `yoasovi.fit`, run under
jax.numpy instead of NumPy, so that everything can be compiled, scanned and mapped over, in the caller's precision.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from yoasovi.choosing import FULL_RANK_UP_TO, LOW_RANK_UP_TO, PLAIN
from yoasovi.errors import check, positive_number
from yoasovi.extras import need
from yoasovi.families import Arrow, FullRank, Gaussian, LowRank, MeanField
from yoasovi.kernels.walk import (
    Pace,
    Refused,
    Steps,
    Trip,
    finite,
    joined_trip,
    keep,
    nothing_refused,
    split,
    split_trip,
    step as natural_step,
)  # fmt: skip
from yoasovi.methods import Method, yoasovi
from yoasovi.stopping import StopReason
from yoasovi.windows import judge
from yoasovi.windows.state import CANDIDATE, COLD_TRUST, INCUMBENT, Forecast, Setting

_MAX_NONFINITE = 200


class VIAlgorithm(NamedTuple):
    """What `as_top_level_api` gives where BlackJAX itself is not installed: the same three functions."""

    init: Callable
    step: Callable
    sample: Callable


class WindowState(NamedTuple):
    """What the rules need from window to window; every array has a leading axis of length one."""

    params: Any  # where the next window starts
    incumbent: Any  # the answer so far
    memory: Pace
    yardstick: Any
    control: Any
    patience: Any
    turn: Any
    values: Any
    gradients: Any
    refused: Refused
    reason: Any


class State(NamedTuple):
    """What the next step needs; `mean` is that of the answer so far, in the shape of the position."""

    mean: Any
    run: WindowState


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


class _Size(NamedTuple):
    dim: int  # all that a Gaussian asks of a density


def init(position: Any, family: Any = "auto", init_scale: float = 0.3, **settings) -> State:
    """Give the state of a Gaussian around `position`, any pytree of numbers, with standard deviations `init_scale`."""
    positive_number("init_scale", "init", init_scale)
    mean = jax.tree.map(lambda x: jnp.asarray(x, float), position)
    flat, _ = ravel_pytree(mean)
    check(flat.size > 0, "position", "init", "a pytree with at least one number", position)
    method, family = _parts(flat.size, family, settings)
    dim, size = flat.size, family.noise_size(_Size(flat.size))
    params = family.init(flat[None], jnp.full((1, dim), init_scale, flat.dtype), np.random.default_rng(0))
    still = family.natural(jax.tree.map(lambda x: x[0], params), jnp.zeros(size, flat.dtype), jnp.zeros(dim, flat.dtype))
    velocity = jax.tree.map(lambda x: jnp.zeros((1, *x.shape), flat.dtype), still)
    none = np.zeros(1, int)
    run = WindowState(
        params, params, Pace(velocity, jnp.zeros((1, dim)), jnp.zeros(1)), jnp.full(1, jnp.nan),
        method.acceptance.init(Setting(dim, family), 1, COLD_TRUST), none + method.stopping.init(), none, none, none,
        nothing_refused(np.zeros((1, dim)), 1), none + int(StopReason.RUNNING),
    )  # fmt: skip
    # Concrete types, those of the answer of `step`: it is scanned over.
    as_float = lambda x: jnp.asarray(x, flat.dtype if np.issubdtype(np.asarray(x).dtype, np.floating) else None)
    return State(mean, jax.tree.map(lambda x: x if isinstance(x, jax.core.Tracer) else as_float(x), run))


def step(rng_key: jax.Array, state: State, logdensity_fn: Callable, family: Any = "auto", **settings) -> tuple[State, Info]:
    """Take one window: propose, judge, keep or roll back; nothing once the state has converged."""
    flat, unravel = ravel_pytree(state.mean)
    method, family = _parts(flat.size, family, settings)
    window = _Window(lambda x: jnp.reshape(logdensity_fn(unravel(x)), ()), method, Setting(flat.size, family))
    old = state.run
    shape = jax.eval_shape(lambda r: window.turn(rng_key, r), old)[1]
    blank = jax.tree.map(lambda x: jnp.full(x.shape, jnp.nan if x.dtype.kind == "f" else 0, x.dtype), shape)
    run, row = jax.lax.cond(
        old.reason[0] == StopReason.RUNNING, lambda r: window.turn(rng_key, r), lambda r: (r, blank), old
    )
    elbo, gain, gain_se, accepted, rolled_back = (x[0] for x in row)
    info = Info(
        run.yardstick[0], elbo, gain, gain_se, accepted, rolled_back, run.gradients[0], run.values[0],
        run.reason[0] == StopReason.CONVERGED, run.reason[0],
    )  # fmt: skip
    return State(unravel(run.incumbent.mean[0]), run), info


class _Row(NamedTuple):
    elbo: jax.Array
    gain: jax.Array
    gain_se: jax.Array
    accepted: jax.Array
    rolled_back: jax.Array


class _Window:
    """One window, traced."""

    def __init__(self, log_p: Callable, method: Method, setting: Setting):
        self.log_p, self.method, self.setting, self.rule = log_p, method, setting, method.acceptance
        self.family, self.size = setting.family, setting.family.noise_size(_Size(setting.dim))

    def turn(self, key, run: WindowState) -> tuple[WindowState, _Row]:
        """Plan, look, propose, judge and settle."""
        k_window, k_gain, k_noise, k_luck = jax.random.split(key, 4)
        plan = self.rule.plan(run.control)
        scales, line = (partial(self._lined, k_window, plan, full) for full in (False, True))
        branches = [scales, line, partial(self._stepped, k_window, plan)]
        candidate, end, memory, forecast, refused, lost = jax.lax.switch(plan.kind[0], branches, run)
        sound = finite(candidate)[None]
        most, most_noise = (jnp.where(sound, x, 0) for x in self.rule.most_pairs(run.control))
        flat = self.rule.close_enough(self.setting, run.control)
        gain = self._gain(k_gain, candidate, run.incumbent, most, flat)
        noise = self._gain(k_noise, candidate, end, most_noise, jnp.zeros(1))
        luck = jax.random.uniform(k_luck, (1,), minval=1e-7)
        ruling = self.rule.rule(self.setting, run.control, gain, noise, forecast, sound, run.yardstick, luck, run.turn + 1)
        accept = ruling.accept & sound
        candidate = keep(sound[0], candidate, run.incumbent)
        incumbent = keep(accept[0], candidate, run.incumbent)
        here = keep(ruling.resume[0] == CANDIDATE, candidate, end)
        back = ruling.rollback[0]
        params = keep(back | (ruling.resume[0] == INCUMBENT), incumbent, here)
        still = run.memory._replace(velocity=jax.tree.map(jnp.zeros_like, run.memory.velocity))
        memory = keep(back, still, memory)
        patience, stop = self.method.stopping.update(run.patience, ruling.missed, ruling.progressed, jnp.zeros(1))
        refused = refused._replace(run=jnp.where(ruling.rollback & (lost < plan.size), 0, refused.run))
        reason = jnp.select(
            [refused.run >= _MAX_NONFINITE, ruling.settled | stop, ruling.stuck],
            [int(StopReason.NON_FINITE), int(StopReason.CONVERGED), int(StopReason.NO_STEP)], int(StopReason.RUNNING),
        )  # fmt: skip
        values = run.values + 2 * (gain.pairs + noise.pairs)
        new = WindowState(
            params, incumbent, memory, ruling.yardstick, ruling.control, patience, run.turn + 1, values,
            run.gradients + plan.size, refused, reason,
        )  # fmt: skip
        row = _Row(ruling.elbo, ruling.gain, ruling.gain_se, accept, ruling.rollback)
        return jax.tree.map(lambda a, b: jnp.asarray(a, b.dtype), new, run), row

    def _noise(self, key, i):
        """Give the noise of iteration i: fresh for even ones, mirrored for odd ones."""
        eps = jax.random.normal(jax.random.fold_in(key, i // 2), (self.size,))
        return jnp.where(i % 2 == 0, eps, -eps)

    def _lined(self, key, plan, full: bool, run: WindowState):
        capacity = self.rule.capacity(self.setting)
        full = full and self.family.line_size(self.setting.dim) > 0

        def look(i, carry):
            eps, white = carry
            e = self._noise(key, i)
            theta = self.family.place(run.params, e[None, None])[0, 0]
            value, gradient = jax.value_and_grad(self.log_p)(theta)
            w = self.family.white(run.params, e[None, None], gradient[None, None])[0, 0]
            w = jnp.where(jnp.isfinite(value), w, jnp.nan)
            return eps.at[0, i].set(e), white.at[0, i].set(w)

        blank = jnp.zeros((1, capacity, self.size)), jnp.full((1, capacity, self.setting.dim), jnp.nan)
        eps, white = jax.lax.fori_loop(0, plan.size[0], look, blank)
        found = self.family.propose(run.params, eps, white, full, plan.length, plan.trust)
        bad = ~jnp.isfinite(white).all(-1) & (jnp.arange(capacity) < plan.size[0])
        lost = bad.sum(-1)
        # Nothing to fit a line to: the draws fell where log p is not finite, so draw closer to the mean.
        candidate = keep(lost[0] > plan.size[0] // 2, self.family.widen(run.params, 0.25), found.params)
        refused = run.refused._replace(run=jnp.where(lost >= plan.size, run.refused.run + lost, 0))
        forecast = Forecast(found.expected, found.signal, found.noise, plan.size)
        return candidate, run.params, run.memory, forecast, refused, lost

    def _stepped(self, key, plan, run: WindowState):
        optimizer = self.method.optimizer
        zero, most = jnp.zeros((), int), jnp.asarray(_MAX_NONFINITE)
        steps = Steps(zero, plan.size[0], plan.length[0], plan.cap[0], most)

        first = lambda tree: jax.tree.map(lambda x: x[0], tree)
        begin = Trip(first(run.params), first(run.params), first(run.memory), first(run.refused), zero)
        shape, still = begin.params, begin.pace.velocity

        def body(i, trip):
            eps = self._noise(key, i)
            theta = self.family.place(split(shape, trip.params), eps[None])[0]
            value, gradient = jax.value_and_grad(self.log_p)(theta)
            new = natural_step(
                self.family, optimizer.momentum, optimizer.clip, shape, still, trip, steps, i, eps, theta, value, gradient
            )
            return jax.tree.map(lambda a, b: jnp.asarray(a, b.dtype), new, trip)

        end = jax.lax.fori_loop(0, plan.size[0], body, joined_trip(begin))
        end = jax.tree.map(lambda x: x[None], split_trip(end, shape, still))
        none = jnp.zeros_like(plan.length)
        return end.average, end.params, end.pace, Forecast(none, none, none, plan.size), end.refused, end.nonfinite

    def _gain(self, key, new, old, most, flat) -> judge.Gain:
        def more(carry):
            i, tally = carry
            eps = jax.random.normal(jax.random.fold_in(key, i), (1, judge.BLOCK, self.size))
            sides = jnp.stack([self.family.place(q, eps)[0] for q in (new, old)])
            value = jax.vmap(jax.vmap(self.log_p))(sides)
            minus = [self.family.minus_log_q(q, eps)[0] for q in (new, old)]
            change = (value[0] - value[1]) + (minus[0] - minus[1])
            return i + 1, judge.add(tally, change[None], (value[0] + minus[0])[None], (value[1] + minus[1])[None])

        unsure = lambda tally: ~(judge.sure(tally) | judge.surely_small(tally, flat))
        going = lambda carry: ((carry[1].drawn < most) & unsure(carry[1]))[0]
        return judge.gained(jax.lax.while_loop(going, more, (0, judge.empty(jnp.zeros(1))))[1])


def sample(rng_key: jax.Array, state: State, num_samples: int = 1, family: Any = "auto") -> Any:
    """Draw from the answer so far: a pytree like the position, with a leading axis."""
    flat, unravel = ravel_pytree(state.mean)
    family = _parts(flat.size, family, {})[1]
    eps = jax.random.normal(rng_key, (1, num_samples, family.noise_size(_Size(flat.size))), flat.dtype)
    return jax.vmap(unravel)(family.place(state.run.incumbent, eps)[0])


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
        check(family in PLAIN, "family", "as_top_level_api", f"auto, {', '.join(PLAIN)} or a family", family)
        family = PLAIN[family]
    known = isinstance(family, Gaussian) and not isinstance(family, Arrow)
    check(known, "family", "as_top_level_api", "a Gaussian family, not Arrow, which has to know a model's sites", family)
    return yoasovi(**settings), family
