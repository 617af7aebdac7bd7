"""`numpyro.infer.SVI` with windows of steps that are judged, undone or kept, and a run that stops by itself."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tqdm
from jax.extend.core import jaxpr_as_fun
from jax.flatten_util import ravel_pytree
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import SVI
from numpyro.infer.svi import SVIRunResult, SVIState
from numpyro.optim import _NumPyroOptim

from yoasovi.errors import positive_integer
from yoasovi.kernels.walk import finite, keep
from yoasovi.numpyro.judging import GuideControl, GuideRule, selector
from yoasovi.numpyro.packing import packing
from yoasovi.stopping import StopReason
from yoasovi.windows import judge

_MAX_NONFINITE = 500
_BLOCK = 16  # pairs evaluated side by side; more would need more memory than a user of one particle expects
# Pairs of losses that a window may spend on whether its average beats its end, and on whether it beats the incumbent.
_MOST_FOR_NOISE, _MOST_FOR_GAIN = 64, 256
# What handles a few thousand numbers at a time gains nothing by being optimised, and compiles in two thirds of the time.
_FEW, _UNOPTIMISED = 10_000, {"xla_backend_optimization_level": 0}


class YOASOVI(SVI):
    """`numpyro.infer.SVI`, with a `run` that judges its steps: change the import, keep the script.

    `run` takes the optimiser's steps in windows. The end of a window, or the average of its second half if that is
    better, is compared with the best parameters so far by the same loss with the same random keys, so that most of the
    noise cancels. Clearly worse windows are undone, optimiser included; steps become longer while they still descend
    and shorter when noise is most of what they bring, so that the learning rate matters little. The run ends early
    after windows that gained less than 0.05 nats beyond doubt.

    `init`, `update`, `stable_update`, `evaluate` and `get_params` are SVI's own: in a loop of your own with other
    arguments at each step (minibatches) nothing is judged. Minibatches by `plate(subsample_size=...)` are judged, the
    same ones on both sides.

    Parameters
    ----------
    model, guide, optim, loss, **static_kwargs
        As for `SVI`: any guide, any loss, any optimiser of NumPyro, JAX or optax.
    """

    def run(
        self,
        rng_key,
        num_steps,
        *args,
        progress_bar=True,
        stable_update=False,
        forward_mode_differentiation=False,
        init_state=None,
        init_params=None,
        **kwargs,
    ) -> SVIRunResult:
        """Run at most `num_steps` steps; arguments and result are those of `SVI.run`.

        `params` and `state` are the best that were found. `losses` has one entry per step that was taken, undone
        ones too: fewer than `num_steps` where the run ended early, but never under `jit` or `vmap`.
        Judging costs between 64 and 640 evaluations of the loss, without gradients, per window of 64 steps or more:
        few while progress is clear, most near the end. A step that is not finite is left out, whatever
        `stable_update` says; `stable_update=True` also turns its loss into NaN. The length of steps is found anew
        in each run. Optimisers that do not step (`Minimize`) and models with mutable sites run as in `SVI`.
        """
        positive_integer("num_steps", "run", num_steps)
        state = init_state
        if state is None:
            state = self.init(rng_key, *args, init_params=init_params, **kwargs)
        plainly = lambda: super(YOASOVI, self).run(
            rng_key, num_steps, *args, progress_bar=progress_bar, stable_update=stable_update,
            forward_mode_differentiation=forward_mode_differentiation, init_state=state, **kwargs,
        )  # fmt: skip
        if not jax.tree.leaves(self.optim.get_params(state.optim_state)):
            return plainly()  # nothing to find, so nothing to judge
        packed = packing(self.optim, state.optim_state)
        memory = packed.pack(state.optim_state)
        put = selector(self.optim, memory)
        stepping = type(self.optim).eval_and_update is _NumPyroOptim.eval_and_update
        if put is None or not stepping or jax.tree.leaves(state.mutable_state):
            why = "mutable sites" if stepping and put else f"optimiser {type(self.optim).__name__}"
            warnings.warn(f"YOASOVI cannot judge steps with this {why}; running them as SVI does.", stacklevel=2)
            return plainly()
        traced = any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((rng_key, state, args, kwargs)))
        loss = lambda params, key: self._loss(packed.params(params), key, args, kwargs)
        rule = GuideRule()
        work = Windows(
            loss, self._unit(state, args, kwargs), self.optim, put, forward_mode_differentiation,
            min(rule.longest, num_steps), num_steps, rule,
        )  # fmt: skip
        begin = work.begin(memory, state.rng_key)
        if traced:
            end, losses = _in_one(work, begin)
            taken = num_steps
        else:
            end, losses = _by_the_host(work, begin, getattr(self.loss, "num_particles", 1), progress_bar)
            taken = int(end.step)
            _complain(end)
        if stable_update:
            losses = jnp.where(jnp.isfinite(losses), losses, jnp.nan)
        memory = packed.unpack(put(end.memory, end.incumbent))
        found = SVIState(memory, state.mutable_state, jax.random.fold_in(state.rng_key, taken))
        return SVIRunResult(self.get_params(found), found, losses)

    def _loss(self, params, key, args, kwargs):
        """Evaluate the loss at unconstrained parameters."""
        return self.loss.loss(key, self.constrain_fn(params), self.model, self.guide, *args, **kwargs, **self.static_kwargs)

    def _unit(self, state: SVIState, args, kwargs) -> float:
        """Find what a nat is in the loss: the least scale that `handlers.scale` gives to a site of the guide."""
        known: list[Any] = []
        unknown: list[Any] = []

        def look():
            guide = seed(substitute(self.guide, data=self.get_params(state)), state.rng_key)
            for site in trace(guide).get_trace(*args, **kwargs, **self.static_kwargs).values():
                if site["type"] == "sample" and not site["is_observed"]:
                    scale = site["scale"]
                    hidden = isinstance(scale, (type(None), jax.core.Tracer))
                    (unknown if hidden else known).append(scale)

        jax.eval_shape(look)
        least = [float(np.min(x)) for x in known]
        found = min([*least, 1.0] if unknown or not least else least)
        return found if found > 0 else 1.0


class GuideRun(NamedTuple):
    """A run between two windows."""

    params: Any  # where the next window starts
    memory: Any  # the optimiser's state, which holds parameters too
    incumbent: Any
    control: GuideControl
    patience: Any
    keys: Any  # of steps, judgements and luck
    step: Any
    turn: Any
    refused: Any  # steps in a row that were not finite
    reason: Any


class Windows:
    """The pieces of a window, each of which can be compiled on its own or be part of a larger program."""

    def __init__(self, loss, unit, optim, put, forward, longest, num_steps, rule: GuideRule):
        self.loss, self.unit, self.optim, self.put, self.forward = loss, unit, optim, put, forward
        self.longest, self.num_steps, self.rule = longest, num_steps, rule

    def begin(self, memory, key) -> GuideRun:
        """Give the state before the first window."""
        params, none = self.optim.get_params(memory), jnp.asarray(0)
        control = GuideControl(jnp.asarray(self.rule.first), jnp.asarray(1.0), jnp.asarray(False))
        return GuideRun(params, memory, params, control, none, jax.random.split(key, 3), none, none, none, none)

    def walk(self, run: GuideRun):
        """Take the window's steps: (params, memory, average, losses, refused in a row, luck)."""
        size = jnp.minimum(run.control.size, self.num_steps - run.step)

        # Real numbers travel as vectors: choosing among dozens of small arrays one by one takes far longer to compile.
        at, _, as_params = _vector(run.params)
        held, rest, as_memory = _vector(run.memory)

        def body(i, carry):
            at, held, rest, average, losses, refused = carry
            params = as_params(at, [])
            value, gradient = self._gradient(params, jax.random.fold_in(run.keys[0], run.step + i))
            new = self.optim.update(gradient, self.put(as_memory(held, rest), params), value=value)
            moved = at + run.control.length * (_vector(self.optim.get_params(new))[0] - at)
            new_held, new_rest, _ = _vector(new)
            sound = jnp.isfinite(value) & jnp.isfinite(moved).all() & jnp.isfinite(new_held).all()
            at, held, rest = keep(sound, (moved, new_held, new_rest), (at, held, rest))
            average += (at - average) / (1.0 + jnp.maximum(i - size // 2, 0))
            losses = losses.at[i].set(value.astype(losses.dtype), mode="drop")
            return at, held, rest, average, losses, jnp.where(sound, 0, refused + 1)

        begin = at, held, rest, at, jnp.full(self.longest, jnp.nan), run.refused
        at, held, rest, average, losses, refused = jax.lax.fori_loop(0, size, body, begin)
        params, memory, average = as_params(at, []), as_memory(held, rest), as_params(average, [])
        luck = jax.random.uniform(jax.random.fold_in(run.keys[2], run.turn), minval=1e-12)
        return params, memory, average, losses, refused, luck

    def _gradient(self, params, key):
        def loss(params):
            value = self.loss(params, key)
            return value, value

        gradient, value = (jax.jacfwd if self.forward else jax.grad)(loss, has_aux=True)(params)
        return value, gradient

    def pairs(self, new, old, key, place, block):
        """Compare two sets of parameters by the loss with the same keys, `_BLOCK` at a time, in nats."""
        keys = jax.random.split(jax.random.fold_in(jax.random.fold_in(key, place), block), _BLOCK)
        both = jax.tree.map(lambda a, b: jnp.stack([a, b]), new, old)
        value = jax.vmap(lambda k: jax.vmap(lambda p: -self.loss(p, k) / self.unit)(both))(keys)
        return value[:, 0] - value[:, 1], value[:, 0], value[:, 1]

    def settled(self, run: GuideRun, walked, candidate, noise: judge.Gain, gain: judge.Gain, xp: Any) -> GuideRun:
        """Do what the rule says."""
        _, memory, _, _, refused, luck = walked
        sound = finite(candidate)
        ruling = self.rule.rule(run.control, gain, noise, sound, luck, run.turn + 1)
        size = xp.minimum(run.control.size, self.num_steps - run.step)
        pick = lambda c, a, b: jax.tree.map(lambda x, y: xp.where(c, x, y), a, b)
        incumbent = pick(ruling.accept, candidate, run.incumbent)
        astray = ruling.rollback & (refused < size)
        refused = xp.where(astray, 0, refused)
        patience = xp.where(ruling.progressed, 0, run.patience + ruling.missed)
        step = run.step + size
        whole = size >= run.control.size
        reason = xp.select(
            [refused >= _MAX_NONFINITE, (patience >= self.rule.patience) & whole, ruling.stuck, step >= self.num_steps],
            [int(r) for r in (StopReason.NON_FINITE, StopReason.CONVERGED, StopReason.NO_STEP, StopReason.MAX_STEPS)],
            int(StopReason.RUNNING),
        )
        return GuideRun(
            pick(ruling.rollback, incumbent, candidate), pick(ruling.rollback, run.memory, memory), incumbent,
            ruling.control, patience, run.keys, step, run.turn + 1, refused, reason,
        )  # fmt: skip


def _by_the_host(work: Windows, run: GuideRun, particles: int, progress_bar: bool) -> tuple[GuideRun, jax.Array]:
    """Decide on the host, window by window, with a look now and then for the progress bar."""
    walk, pairs = _opened(work.walk, particles), _opened(work.pairs, particles)
    run = jax.tree.map(lambda x: x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else np.asarray(x), run)
    losses: list[np.ndarray] = []
    bar = tqdm.tqdm(total=work.num_steps) if progress_bar else None

    def gain(new, old, which, most):
        tally, block = judge.empty(np.zeros(())), 0
        while tally.drawn < most and not judge.sure(tally, block=_BLOCK):
            found = pairs(new, old, run.keys[1], 2 * int(run.turn) + which, block)
            tally, block = judge.add(tally, *(np.asarray(x, float) for x in found)), block + 1
        return judge.gained(tally)

    while run.reason == StopReason.RUNNING:
        walked = walk(run)
        end, average = walked[0], walked[2]
        with np.errstate(all="ignore"):
            noise = gain(average, end, 0, _MOST_FOR_NOISE)
            candidate = average if noise.mean > 0 else end
            most = _MOST_FOR_GAIN if bool(finite(candidate)) else 0
            won = gain(candidate, run.incumbent, 1, most)
            host = lambda tree: jax.tree.map(np.asarray, tree)
            size = min(int(run.control.size), work.num_steps - int(run.step))
            losses.append(np.asarray(walked[3])[:size])
            run = work.settled(run, host(walked), host(candidate), noise, won, np)
        if bar is not None:
            bar.update(size)
            seen = np.concatenate(losses)
            recent = losses[-1][np.isfinite(losses[-1])]
            average_loss = np.mean(recent) if recent.size else np.nan
            now = int(run.step)
            text = f"init loss: {seen[0]:.4f}, avg. loss [{now - size + 1}-{now}]: {average_loss:.4f}"
            bar.set_postfix_str(text, refresh=False)
    if bar is not None:
        if run.reason == StopReason.CONVERGED:
            text = f"Nothing worth having was left to gain after {int(run.step)} of {work.num_steps} steps."
            bar.write(text, file=sys.stderr)
        bar.close()
    return run, jnp.asarray(np.concatenate(losses))


def _in_one(work: Windows, run: GuideRun) -> tuple[GuideRun, jax.Array]:
    """The same inside a program of the user's: the windows do not end early there."""

    def gain(run, new, old, which, most):
        def more(carry):
            tally, block = carry
            return judge.add(tally, *work.pairs(new, old, run.keys[1], 2 * run.turn + which, block)), block + 1

        going = lambda carry: (carry[0].drawn < most) & ~judge.sure(carry[0], block=_BLOCK)
        return judge.gained(jax.lax.while_loop(going, more, (judge.empty(jnp.zeros(())), 0))[0])

    def turn(carry):
        run, losses = carry
        walked = work.walk(run)
        end, average = walked[0], walked[2]
        noise = gain(run, average, end, 0, _MOST_FOR_NOISE)
        candidate = keep(noise.mean > 0, average, end)
        won = gain(run, candidate, run.incumbent, 1, jnp.where(finite(candidate), _MOST_FOR_GAIN, 0))
        losses = jax.lax.dynamic_update_slice(losses, walked[3], (run.step,))
        new = work.settled(run, walked, candidate, noise, won, jnp)
        going = (new.step < work.num_steps) & (new.reason != StopReason.NON_FINITE)
        return jax.tree.map(_as, new._replace(reason=jnp.where(going, 0, new.reason)), run), losses

    losses = jnp.full(work.num_steps + work.longest, jnp.nan)
    run = jax.tree.map(lambda x: jax.lax.convert_element_type(x, x.dtype), run)
    going = lambda carry: (carry[0].step < work.num_steps) & (carry[0].reason == StopReason.RUNNING)
    run, losses = jax.lax.while_loop(going, turn, (run, losses))
    return run, losses[: work.num_steps]


def _as(new: Any, old: Any) -> Any:
    return new if jnp.issubdtype(old.dtype, jax.dtypes.prng_key) else jnp.asarray(new, old.dtype)


def _vector(tree: Any) -> tuple[jax.Array, list, Callable[[jax.Array, list], Any]]:
    """Give the real numbers of a tree as one vector, its other leaves, and what makes a tree of both again."""
    leaves, structure = jax.tree.flatten(tree)
    real = [jnp.issubdtype(x.dtype, jnp.floating) for x in leaves]
    flat, split = ravel_pytree([x for x, r in zip(leaves, real, strict=True) if r])

    def whole(flat: jax.Array, others: list) -> Any:
        numbers, rest = iter(split(flat)), iter(others)
        return jax.tree.unflatten(structure, [next(numbers if r else rest) for r in real])

    return flat, [x for x, r in zip(leaves, real, strict=True) if not r], whole


def _opened(fn: Callable, particles: int) -> Callable:
    """Compile a function at its first call, the arrays it closes over being arguments and not constants of the program."""
    made: list[Any] = []

    def call(*args):
        if not made:
            traced, shape = jax.make_jaxpr(fn, return_shape=True)(*args)
            # (A `jit` anywhere inside `fn` would make constants of them again.)
            few = particles * sum(np.size(x) for x in (*traced.consts, *jax.tree.leaves(args))) < _FEW
            options = _UNOPTIMISED if few and jax.default_backend() == "cpu" else None
            program = lambda consts, *leaves: jaxpr_as_fun(traced.replace(consts=consts))(*leaves)
            flat = jax.jit(program, compiler_options=options)
            made.extend([flat, traced.consts, jax.tree.structure(shape)])
        flat, consts, tree = made
        return jax.tree.unflatten(tree, flat(consts, *jax.tree.leaves(args)))

    return call


def _complain(end: GuideRun) -> None:
    if end.reason == StopReason.NON_FINITE:
        text = f"The loss was not finite for {_MAX_NONFINITE} steps in a row; check priors, supports and data."
        warnings.warn(text, stacklevel=3)
