"""The one host loop: turns until every lane has ended or the user asks for it, and a look around in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from yoasovi.kernels.programs import Clock
from yoasovi.run.trace import Trace
from yoasovi.stopping import StopReason
from yoasovi.turns import RunState, TurnRow, Turns


def drive(
    turns: Turns, state: RunState, trace: Trace, clock: Clock, origin: float, asked: Callable[[], bool],
    between: Callable[[RunState, TurnRow, bool], None],
) -> RunState:  # fmt: skip
    """Take turns from `state` on.

    `trace` gets a row per turn, with the seconds of running since `origin`. `asked` says whether the user wants to end;
    `between` is told the state after each turn, its rows, and whether more are to come.
    """
    while running(state) and not asked():
        begin = clock.run
        state, row = turns.take(state)
        trace.add(row, begin - origin, clock.run - origin)
        between(state, row, running(state))
    return state


def running(state: RunState) -> bool:
    """Say whether any lane has not ended."""
    return bool((np.asarray(state.reason) == StopReason.RUNNING).any())


def lane(tree: Any, r: int) -> Any:
    """Give one restart's part of stacked arrays."""
    return jax.tree.map(lambda x: x[r], tree)
