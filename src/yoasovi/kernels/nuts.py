"""NumPyro's NUTS in q's own coordinates: some transitions of all chains, as one compiled program."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpyro.infer.hmc import hmc
from numpyro.infer.util import ParamInfo

ROUND = 50  # transitions in one call, all of them warm-up or none


class Spots(NamedTuple):
    """Where chains are: in q's own coordinates, and minus log p with its gradient there."""

    eps: Any  # (chains, d)
    potential: Any  # (chains,)
    gradient: Any  # (chains, d)


class Transitions(NamedTuple):
    """What every transition gave, (transitions, chains, ...)."""

    eps: Any
    potential: Any
    energy: Any
    accept_prob: Any
    num_steps: Any  # leapfrogs: one gradient each
    diverging: Any


def transitions(density, mixture, inputs, root, cut, words, start, step_size, warm, most):
    """Take `ROUND` transitions, or fewer once `most` gradients are spent.

    Where q is part of a mixture the chains are of that part's share of the posterior: `cut` has its parameters, and which
    part it is; else both are None. The step size of each chain, (chains,), is adapted if not `warm`; the metric is that of
    q's own coordinates.
    Gives how many were taken, the transitions (those not taken are zeros), where chains are now, and their step sizes.
    """

    def potential(eps):
        theta = root.place(eps)
        value = density.free_terms(inputs, theta).total()
        if mixture is not None:
            params, which = cut
            terms = mixture.log_terms(jax.tree.map(lambda x: x[None], params), theta[None, None])[0, :, 0]
            value = value + terms[which] - jax.nn.logsumexp(terms)
        return -value

    begin, advance = hmc(potential, algo="NUTS")

    def begun(key, spot, size):
        return begin(ParamInfo(*spot), ROUND, size, adapt_mass_matrix=False, rng_key=key)

    def row(s):
        return Transitions(s.z, s.potential_energy, s.energy, s.accept_prob, s.num_steps, s.diverging)

    def turn(carry):
        n, state, rows, spent = carry
        state = jax.vmap(advance)(state)
        rows = jax.tree.map(lambda all_, one: all_.at[n].set(one), rows, row(state))
        return n + 1, state, rows, spent + state.num_steps.sum()

    state = jax.vmap(begun)(words, start, step_size)
    state = state._replace(i=jnp.where(warm, ROUND, state.i))  # NumPyro adapts while it has counted less than ROUND
    rows = jax.tree.map(lambda x: jnp.zeros((ROUND, *x.shape), x.dtype), row(state))
    going = lambda carry: (carry[0] < ROUND) & (carry[3] < most)
    n, state, rows, _ = jax.lax.while_loop(going, turn, (0, state, rows, state.num_steps.sum()))
    return n, rows, Spots(state.z, state.potential_energy, state.z_grad), state.adapt_state.step_size
