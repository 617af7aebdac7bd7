"""`numpyro.infer.SVI` with windows of steps that are judged, undone or kept, and a run that stops by itself."""

from __future__ import annotations

import sys
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import tqdm
from jax.extend.core import jaxpr_as_fun
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import SVI
from numpyro.infer.svi import SVIRunResult, SVIState
from numpyro.optim import _NumPyroOptim

from yoasovi.drive import Program, State, arrive, start, travel
from yoasovi.errors import positive_integer
from yoasovi.model.model import Density, Inputs
from yoasovi.numpyro.judging import Guided, Judge, Keys, LossGradient, Steps, selector
from yoasovi.stopping import MaxSteps, Patience, StopReason

_NO_INPUTS = Inputs({}, {}, None)
_NO_DENSITY = Density(lambda params, data: jnp.zeros(1), (), (), 1, True)  # it is in the loss
_MAX_NONFINITE = 500


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
        num_steps = int(num_steps) if isinstance(num_steps, np.integer) else num_steps
        positive_integer("num_steps", "run", num_steps)
        state = init_state
        if state is None:
            state = self.init(rng_key, *args, init_params=init_params, **kwargs)
        put = selector(self.optim, state.optim_state)
        stepping = type(self.optim).eval_and_update is _NumPyroOptim.eval_and_update
        if put is None or not stepping or jax.tree.leaves(state.mutable_state):
            why = "mutable sites" if stepping and put else f"optimiser {type(self.optim).__name__}"
            warnings.warn(f"YOASOVI cannot judge steps with this {why}; running them as SVI does.", stacklevel=2)
            return super().run(
                rng_key, num_steps, *args, progress_bar=progress_bar, stable_update=stable_update,
                forward_mode_differentiation=forward_mode_differentiation, init_state=state, **kwargs,
            )  # fmt: skip
        traced = any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((rng_key, state, args, kwargs)))
        loss = lambda params, key: self._loss(params, key, args, kwargs)
        rule = Judge()
        longest = min(rule.longest, num_steps)
        program = Program(
            _NO_DENSITY, Guided(loss, self._unit(state, args, kwargs)), Keys(), LossGradient(forward_mode_differentiation),
            rule, Steps(self.optim, put, longest), MaxSteps() if traced else Patience(rule.patience), _MAX_NONFINITE,
        )  # fmt: skip
        begin = start(program, _NO_INPUTS, self.optim.get_params(state.optim_state), jnp.asarray(1.0))
        begin = begin._replace(memory=state.optim_state)
        carry = begin, jnp.full(num_steps + longest, jnp.nan)
        go = lambda carry, until: _run_until(program, state.rng_key, num_steps, carry, until)
        if traced:
            end, losses = go(carry, num_steps)
            taken = num_steps
        else:
            end, losses = _in_chunks(go, carry, num_steps, progress_bar)
            taken = int(end.step)
            _complain(end)
        losses = losses[:taken]
        if stable_update:
            losses = jnp.where(jnp.isfinite(losses), losses, jnp.nan)
        found = SVIState(put(end.memory, end.incumbent), state.mutable_state, jax.random.fold_in(state.rng_key, taken))
        return SVIRunResult(self.get_params(found), found, losses)

    def _loss(self, params, key, args, kwargs):
        """Evaluate the loss at unconstrained parameters."""
        return self.loss.loss(key, self.constrain_fn(params), self.model, self.guide, *args, **kwargs, **self.static_kwargs)

    def _unit(self, state: SVIState, args, kwargs) -> float:
        """Find what a nat is in the loss: the least scale that `handlers.scale` gives to a site of the guide."""
        guide = seed(substitute(self.guide, data=self.get_params(state)), state.rng_key)
        sites = trace(guide).get_trace(*args, **kwargs, **self.static_kwargs).values()
        scales = [s["scale"] for s in sites if s["type"] == "sample" and not s["is_observed"]]
        known = [float(np.min(x)) for x in scales if not isinstance(x, (type(None), jax.core.Tracer))]
        least = min([*known, 1.0] if len(known) < len(scales) or not known else known)
        return least if least > 0 else 1.0


def _run_until(program: Program, key, num_steps: int, carry, until):
    """Take turns until a step is reached or the run ends; windows do not depend on where the host looks."""

    def turn(carry):
        state, losses = carry
        plan, trip = travel(program, _NO_INPUTS, key, num_steps, state)
        losses = jax.lax.dynamic_update_slice(losses, trip.record, (state.step,))
        return arrive(program, _NO_INPUTS, key, num_steps, state, plan, trip)[0], losses

    more = lambda carry: (carry[0].step < until) & (carry[0].reason == StopReason.RUNNING)
    return jax.lax.while_loop(more, turn, carry)


def _in_chunks(go, carry, num_steps: int, progress_bar: bool) -> tuple[State, jax.Array]:
    """Run compiled, with a look now and then for the progress bar."""
    # The data are arguments of the compiled program and not constants in it, though the model sees them as they are.
    # (A `jit` anywhere inside `go` would make constants of them again.)
    traced, shape = jax.make_jaxpr(go, return_shape=True)(carry, num_steps)
    tree = jax.tree.structure(shape)
    flat = jax.jit(lambda consts, *leaves: jaxpr_as_fun(traced.replace(consts=consts))(*leaves))
    call = lambda carry, until: jax.tree.unflatten(tree, flat(traced.consts, *jax.tree.leaves((carry, until))))
    if not progress_bar:
        return call(carry, num_steps)
    with tqdm.tqdm(total=num_steps) as bar:
        while (state := carry[0]).reason == StopReason.RUNNING:
            seen = int(state.step)
            carry = call(carry, seen + max(num_steps // 20, 1))
            now = int(carry[0].step)
            recent = np.asarray(carry[1][seen:now])
            bar.update(now - seen)
            average = np.mean(recent[np.isfinite(recent)]) if np.isfinite(recent).any() else np.nan
            bar.set_postfix_str(f"init loss: {carry[1][0]:.4f}, avg. loss [{seen + 1}-{now}]: {average:.4f}", refresh=False)
        if carry[0].reason == StopReason.CONVERGED:
            text = f"Nothing worth having was left to gain after {int(carry[0].step)} of {num_steps} steps."
            bar.write(text, file=sys.stderr)
    return carry


def _complain(end: State) -> None:
    if end.reason == StopReason.NON_FINITE:
        text = f"The loss was not finite for {_MAX_NONFINITE} steps in a row; check priors, supports and data."
        warnings.warn(text, stacklevel=3)
