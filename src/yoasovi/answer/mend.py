"""A fit that mends itself: where a cure is known for what is wrong, it is tried, judged by the ELBO, and told.

Two things are looked for, with the looks of the verdict: a funnel, in models whose sites can be non-centred, and other
modes. Only where one is found is more spent. Markov chains are never run unasked.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from yoasovi.answer.modes import mend_modes, promising
from yoasovi.answer.result import Fit, Seconds
from yoasovi.answer.summary import Mended
from yoasovi.families import Gaussian
from yoasovi.fitting import fit as fit_again
from yoasovi.model import reparameterisations
from yoasovi.randomness import Purpose, stream
from yoasovi.stopping import StopReason
from yoasovi.verdict import looks
from yoasovi.verdict.diagnostics import effective_size, importance_weights
from yoasovi.verdict.findings import Thresholds
from yoasovi.verdict.pairs import funnel_of

_MODES_UP_TO = 1000  # parameters; climbs of more take longer than the fit
_UNEVEN = 0.5  # of their number that weights of q's draws are worth: below it another form may have a better q
_WIDE = 1000  # draws about q; the few of them that weigh most are climbed from
_MOST = 4  # times the evaluations of the fit may be spent on mending it


def can_mend(fit: Fit) -> bool:
    """Whether there is anything to look for, at a cost that goes unnoticed: elsewhere the verdict advises."""
    return fit.converged and isinstance(fit.family, Gaussian) and fit.model.differentiable and fit.kernels.cheap


def mended(fit: Fit, progress: bool | None, limits: Mapping[str, Any]) -> Fit:
    """Give a better answer where there is one, with what was found and tried in its `mended`.

    `limits` are arguments of `fit` that hold for other fits too. Ended by the user, the fit stays as it was.
    """
    if not can_mend(fit):
        return fit
    begin, spent, stages = time.perf_counter(), fit.seconds.total, dict(fit.seconds.stages)
    most = _MOST * _cost(fit)
    try:
        answer = _by_form(fit, most, progress, limits)
        answer = _by_modes(answer, most, limits) if fit.model.density.dim <= _MODES_UP_TO else answer
    except KeyboardInterrupt:
        warnings.warn("Interrupted while mending: the fit is what it was before.", stacklevel=3)
        answer = fit
    waited = time.perf_counter() - begin
    compiled = answer.seconds.compile
    return answer.timed(Seconds(compiled, spent + waited - compiled, {**stages, "mend": waited}))


def _gained(new: Fit, old: Fit) -> bool:
    """Say whether an ELBO is higher beyond doubt."""
    return bool(new.elbo.value - old.elbo.value > 2.0 * np.hypot(new.elbo.se, old.elbo.se))


def _cost(fit: Any) -> int:
    return int(fit.num_gradients + fit.num_values)


def _seed(fit: Fit) -> int:
    """Give a seed for looks, so that those of the verdict are elsewhere."""
    return int(stream(fit.seed, Purpose.MEND).integers(2**62))


def _by_form(fit: Fit, most: int, progress: bool | None, limits: Mapping[str, Any]) -> Fit:
    """Try non-centred forms where q is visibly not the posterior, or a scale depends on another site and the answer is poor.

    Of many groups none may show the funnel that all of them make; then q's weights do, which are uneven. ELBOs of all forms
    compare, and a fit costs less than a verdict, which is asked only where weights are nearly even.
    """
    if fit.model.centring is None:
        return fit
    weights = importance_weights(fit.ratios())
    seen = looks.scores(fit, looks.Effort.of(fit, None, None).pairs, _seed(fit))
    pair = funnel_of(fit.model, seen, Thresholds())
    share = effective_size(weights) / len(weights)
    values, gradients = seen.num_values, seen.num_gradients
    if share > _UNEVEN:
        if pair is None or (verdict := fit.judged()).grade != "poor":
            return fit
        values, gradients = values + verdict.num_values, gradients + verdict.num_gradients
    what = f"weights of q's draws are worth {share:.0%} of their number"
    what = what if pair is None else f"the scale of {pair[1]} depends on {pair[0]}"
    best, notes, tried, spent = fit, [], list[Fit](), 0
    for description, model in reparameterisations(fit.model, pair):
        if spent >= most:
            break
        settings = {"method": fit.method, "family": fit.family, "seed": fit.seed, "progress": progress, **limits}
        other = fit_again(model, **settings, mend=False)
        if other.stop_reason == StopReason.INTERRUPTED:
            raise KeyboardInterrupt
        gain, kept = other.elbo.value - best.elbo.value, other.converged and _gained(other, best)
        notes.append(Mended(what, description, bool(kept), float(gain), other.num_values, other.num_gradients))
        spent += _cost(other)
        other.seconds = other.seconds._replace(compile=best.seconds.compile + other.seconds.compile)
        if kept:
            other = best = replace(other, family_reason=fit.family_reason).looking_through(other.kernels)
        tried.append(other)
        if kept and best.judged().grade != "poor":
            break
    # A verdict looks at corrected draws, which count as the fit's own.
    values, gradients = values + sum(f.num_values for f in tried), gradients + sum(f.num_gradients for f in tried)
    return _told(best, fit, notes, values, gradients)


def _by_modes(fit: Fit, most: int, limits: Mapping[str, Any]) -> Fit:
    """Try what climbs from scattered starts find beside q."""
    effort, seed = looks.Effort.of(fit, None, None), _seed(fit)
    around = looks.wide(fit, None, min(effort.draws, _WIDE), seed)
    seen = looks.search(fit, effort, seed=seed, far=around.far)
    values, gradients = around.num_values, 0
    if not promising(seen, fit.elbo.value) and seen.lost:  # a longer search is worth its cost
        values, gradients = values + seen.num_values, seen.num_gradients
        seen = looks.search(fit, effort._replace(starts=3 * effort.starts), seed=seed + 1, far=around.far)
    if not promising(seen, fit.elbo.value):
        return fit
    before = fit.num_values, fit.num_gradients
    better = mend_modes(fit, most, seen, limits)
    if better is not None and not better.parts and not _gained(better, fit):
        fit.num_values, fit.num_gradients, better = better.num_values, better.num_gradients, None
    spent = fit if better is None else better
    spent.num_values, spent.num_gradients = spent.num_values + values, spent.num_gradients + gradients
    cost = spent.num_values - before[0], spent.num_gradients - before[1]
    gain = 0.0 if better is None else better.elbo.value - fit.elbo.value
    tried = "a fit from each" if better is None or not better.parts else f"a mixture of {len(better.parts)} fits"
    note = Mended("other modes were seen", tried, better is not None, float(gain), *cost)
    return _told(better or fit, fit, [note], 0, 0)


def _told(answer: Fit, before: Fit, notes: list[Mended], values: int, gradients: int) -> Fit:
    """Write down what was tried, and count it."""
    answer.mended = (*before.mended, *notes)
    if answer is before:
        answer.num_values, answer.num_gradients = answer.num_values + values, answer.num_gradients + gradients
    elif values or gradients:
        answer.num_values, answer.num_gradients = before.num_values + values, before.num_gradients + gradients
    answer.asked = before.asked
    return answer
