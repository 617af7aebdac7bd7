"""A fit of a hierarchy by minibatches of groups, from its start on some of them to its answer about all."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from yoasovi.answer.result import Fit, Seconds
from yoasovi.errors import positive_integer
from yoasovi.families import Arrow
from yoasovi.fitting import Options, fit, fresh_elbos
from yoasovi.kernels import kernels_of
from yoasovi.kernels.programs import Clock
from yoasovi.methods import Method
from yoasovi.model import Model
from yoasovi.optimizers import Natural
from yoasovi.randomness import Purpose, stream
from yoasovi.run.interrupts import Interrupts
from yoasovi.run.trace import Trace
from yoasovi.scale.parts import GroupParts
from yoasovi.scale.readings import MOST_OWN, read_all
from yoasovi.stopping import StopReason
from yoasovi.turns import Limits
from yoasovi.windows.rule import Window

_START, _PER_PARAMETER = 200, 10  # groups that the start is fitted to
_FEW = 8  # draws behind the ELBO, at least


def cut_in_groups(model: Model, method: Method, family: Any, batch_size: Any, options: Options) -> GroupParts | None:
    """Give the parts of a hierarchy that minibatches of so many rows take; None where one holds all rows, or groups none."""
    natural = isinstance(method.acceptance, Window) and isinstance(method.optimizer, Natural)
    if not isinstance(family, Arrow) or not natural or model.subsampled is not None or model.stream is not None:
        return None
    parts = GroupParts(model, family, family.groups, options.seed)
    rows = parts.num_rows
    if batch_size is None and model.batch_groups is not None:
        batch_size = model.batch_groups * rows // family.groups
    positive_integer("batch_size", "fit", batch_size)
    if batch_size > rows:
        raise ValueError(
            f"`batch_size` of `fit` must be at most the number of rows of the data, {rows:,}; got {batch_size:,}."
        )
    if batch_size == rows:
        return None
    parts = GroupParts(model, family, max(batch_size * family.groups // rows, 1), options.seed)
    why = parts.check()
    if family.num_locals > MOST_OWN:
        why = f"a group has {family.num_locals} parameters of its own, more than {MOST_OWN}"
    if why:
        raise ValueError(f"`batch_size` of `fit` must be None for this model: {why}.")
    for name, given, usual in (("restarts", options.restarts, 1), ("checkpoint", options.checkpoint, None)):
        if given != usual:
            raise ValueError(f"`{name}` of `fit` must be {usual} for minibatches of groups; got {given!r}.")
    return parts


def fit_in_groups(
    parts: GroupParts, method: Method, why: str, options: Options, clock: Clock, interrupts: Interrupts, show: Any
) -> Fit:  # fmt: skip
    """Fit some of the groups, then read all of them part by part, and look at the answer as a whole."""
    model, family, trace = parts.model, parts.family, Trace()
    with clock.stage("start"):
        count = min(family.groups, max(_START, _PER_PARAMETER * (family.num_globals + family.num_locals)))
        some = np.sort(stream(options.seed, Purpose.GROUP_START).choice(family.groups, count, replace=False))
        own = parts.family_of(count)
        start = fit(
            parts.model_of(some), method=method, family=own, seed=options.seed, progress=False, mend=False,
            nonfinite="raise" if options.strict else "reject", max_nonfinite=options.max_nonfinite,
        )  # fmt: skip
        clock.compile += start.seconds.compile
    with clock.stage("windows"):
        limits = Limits(options.seed, options.max_steps, options.max_nonfinite)
        ended = start.stop_reason == StopReason.INTERRUPTED
        found = read_all(parts, start, clock, limits, trace, lambda: ended or interrupts.asked, show)
        if options.strict and found.refused:
            raise FloatingPointError("log p of some groups is not finite at a draw of the parameters that all share.")
    with clock.stage("elbo"):
        whole = kernels_of(model, family, clock)
        lane = jax.tree.map(lambda x: x[None], found.params)
        elbos, ratios = fresh_elbos(whole, family, lane, options.seed, 1, _FEW)
    nonfinite = start.nonfinite._replace(log_p=start.nonfinite.log_p + found.refused)
    answer = Fit(
        model=model, method=method, family=family, family_reason=f"{why}; {parts.count:,} minibatches of groups",
        params=found.params, elbo=elbos[0], converged=found.reason == StopReason.CONVERGED, stop_reason=found.reason,
        num_steps=found.looks, num_values=start.num_values, num_gradients=start.num_gradients + found.looks,
        num_nonfinite=sum(nonfinite), seconds=Seconds(clock.compile, clock.run, clock.stages), trace=trace.of(0),
        seed=options.seed, log_ratio=ratios[0], reported_elbo=found.elbo, restart_elbos=elbos, nonfinite=nonfinite,
    )  # fmt: skip
    return answer.looking_through(whole)
