"""Short Markov chains from the draws that a fit gives: draws of the posterior stay what they are, others wander off.

Importance weights tell how far an answer is off only while they are not too uneven, which in many dimensions they soon
are. Chains that leave the posterior alone (Hamiltonian Monte Carlo, in units in which the draws are round) need no weights:
the answer's draws go in, and if means or spreads of what comes out differ, the answer was off at least by that much. They
are many, short and run together, one call of the kernel per leapfrog step.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from yoasovi.verdict.landscape import Landscape

_TRAJECTORIES = 48
_LONGEST = 24  # leapfrog steps of a trajectory
_ACCEPT = 0.8


class Wandered(NamedTuple):
    """Where chains came to."""

    theta: np.ndarray  # (trajectories kept, chains, d)
    accepted: float  # share of the kept trajectories' proposals
    num_gradients: int


def wander(landscape: Landscape, theta: np.ndarray, most: int, rng: np.random.Generator) -> Wandered:
    """Run one chain from each row of `theta`, shape (chains, d), with about `most` gradients; keep the later two thirds."""
    x = landscape.into(theta)
    height, slope = landscape.at(x)
    step, kept, shares = float(x.shape[1] ** -0.25), [], []
    for t in range(_TRAJECTORIES):
        early = t < _TRAJECTORIES // 3
        if landscape.gradients >= most:
            break
        way = rng.uniform(0.8, 2.0) if t % 3 else rng.uniform(3.0, 5.0)  # now and then farther, along what is wide
        length = int(np.clip(np.ceil(way / step), 1, _LONGEST))
        p = rng.standard_normal(x.shape)
        energy = height - 0.5 * (p**2).sum(1)
        there, new, force = x, height, slope
        with np.errstate(all="ignore"):
            for _ in range(length):
                p = p + 0.5 * step * force
                there = there + step * p
                new, force = landscape.at(there)
                p = p + 0.5 * step * force
            gain = new - 0.5 * (p**2).sum(1) - energy
        gain = np.where(np.isfinite(gain), gain, -np.inf)
        share = float(np.exp(np.minimum(gain, 0.0)).mean())
        yes = np.log(rng.uniform(size=len(x))) < gain
        x, slope = (np.where(yes[:, None], a, b) for a, b in ((there, x), (force, slope)))
        height = np.where(yes, new, height)
        if early:
            step = float(np.clip(step * np.exp(share - _ACCEPT), 1e-4, 1.0))
        else:
            kept.append(landscape.out(x))
            shares.append(share)
    return Wandered(np.array(kept), float(np.mean(shares)) if shares else 0.0, landscape.gradients)
