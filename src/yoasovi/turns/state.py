"""What a run is between two turns, and what every kind of turn is asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import jax
import numpy as np

from yoasovi.kernels.walk import Refused
from yoasovi.methods import Method
from yoasovi.model.minibatch import Anchor
from yoasovi.start import Origin
from yoasovi.windows.old_scores import OldScores
from yoasovi.windows.state import Setting


class RunState(NamedTuple):
    """What the next turn needs, and what has been spent; every array has a leading axis of lanes."""

    # evolving
    params: Any  # where the next turn starts
    incumbent: Any  # the answer so far
    memory: Any  # the optimiser's
    yardstick: np.ndarray
    control: Any  # the rule's
    patience: Any  # the stopping rule's
    anchor: Anchor | None  # of minibatches
    # statistics
    step: np.ndarray  # iterations so far
    turn: np.ndarray
    values: np.ndarray  # evaluations of log p alone
    gradients: np.ndarray  # evaluations of log p with its gradient
    refused: Refused  # draws that were not finite
    # output
    reason: np.ndarray
    # constant
    origin: Any = None  # means and scales from which an ELBO may be climbed
    # evolving, where lines are fitted
    past: OldScores | None = None  # scores that later lines may rest on


class TurnRow(NamedTuple):
    """Rows of the trace, (lanes, turns); the candidate is recorded whether or not it was taken. No window: no turn."""

    step: np.ndarray
    evaluations: np.ndarray
    elbo: np.ndarray
    gain: np.ndarray
    gain_se: np.ndarray
    accepted: np.ndarray
    rolled_back: np.ndarray
    strictness: np.ndarray
    step_size: np.ndarray
    window: np.ndarray
    kind: np.ndarray


class Journey(NamedTuple):
    """What the draws of a window led to, by lane."""

    candidate: Any
    end: Any  # where the last iteration left the parameters
    memory: Any
    forecast: Any
    refused: Refused
    nonfinite: np.ndarray  # draws of this window that were refused
    values: np.ndarray
    gradients: np.ndarray
    past: OldScores | None = None


class Limits(NamedTuple):
    """Where a run ends."""

    seed: int
    max_steps: int
    max_nonfinite: int


class Turns(ABC):
    """Turns of one kind of method."""

    def __init__(self, kernels: Any, method: Method, setting: Setting, limits: Limits):
        self.kernels, self.method, self.setting, self.limits = kernels, method, setting, limits
        self.family, self.rule = setting.family, method.acceptance

    @abstractmethod
    def begin(self, params: Any, trust: np.ndarray, origin: Origin | None = None) -> RunState:
        """Give the state before the first turn."""

    @abstractmethod
    def take(self, state: RunState) -> tuple[RunState, TurnRow]:
        """Take one turn, or a few, of every lane that is running."""


def in_lanes(tree: Any, lanes: int) -> Any:
    """Give the same arrays to every lane."""
    return jax.tree.map(lambda x: np.stack([x] * lanes), tree)


def pick(condition: np.ndarray, new: Any, old: Any) -> Any:
    """Choose lane by lane between two trees of arrays."""
    return jax.tree.map(lambda a, b: np.where(condition.reshape(-1, *[1] * (np.ndim(a) - 1)), a, b), new, old)


def finite_lanes(tree: Any) -> np.ndarray:
    """Say for each lane whether every number in the tree is finite."""
    return np.all([np.isfinite(x).reshape(len(x), -1).all(1) for x in jax.tree.leaves(tree)], 0)


def relative_change(old: Any, new: Any) -> np.ndarray:
    """|new - old| / |old| over all parameters, by lane."""
    squares = lambda tree: sum((x**2).reshape(len(x), -1).sum(1) for x in jax.tree.leaves(tree))
    return np.sqrt(squares(jax.tree.map(np.subtract, new, old)) / np.maximum(squares(old), 1e-30))
