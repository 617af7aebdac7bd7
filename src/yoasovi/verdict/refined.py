"""What chains say of themselves, as evidence for the verdict on a refined fit."""

from __future__ import annotations

from typing import Any

import numpy as np

# Where a number begins to cost a grade: (usable from, poor from).
_RHAT = 1.05, 1.1  # Vehtari et al. 2021 ask for 1.01 of few long chains; that of many short ones is higher by chance alone
_ESS = 400.0, 100.0  # below 100 the error of a mean is a tenth of its sd
_DIVERGENT = 0.001, 0.02  # share of transitions: beyond it there is a corner that the chains do not enter


def refined_findings(fit: Any) -> list[tuple[str, float, float, float, str, str, str]]:
    """Give (name, value, error, limit, state, grade, sentence) of each finding; `state` is within or beyond the limit."""
    chains, names = fit.refined, fit.model.density.labels
    worst, least, lost = int(np.argmax(chains.rhat)), int(np.argmin(chains.ess)), chains.num_divergent
    rhat, ess, share = chains.worst_rhat, chains.least_ess, lost / chains.size
    state = lambda beyond: "beyond" if beyond else "within"
    grade = lambda usable, poor: "poor" if poor else "usable" if usable else "good"
    agree = "agree" if rhat <= _RHAT[0] else "do not agree yet" if rhat <= _RHAT[1] else "disagree"
    broke = "No transition of NUTS diverged."
    if lost:
        broke = (
            f"{lost:,} of {chains.size:,} transitions diverged: the posterior has a corner too narrow for the steps of "
            "NUTS, and draws from there are too few."
        )
    shift, low, high = _moved(fit)
    return [
        ("rhat", rhat, 0.0, _RHAT[0], state(rhat > _RHAT[0]), grade(rhat > _RHAT[0], rhat > _RHAT[1]),
         f"The chains {agree}: R-hat is at most {rhat:.3f} ({names[worst]})."),
        ("ess", ess, 0.0, _ESS[0], state(ess < _ESS[0]), grade(ess < _ESS[0], ess < _ESS[1]),
         f"Draws of the chains are worth at least {ess:,.0f} independent ones ({names[least]}): means are known to "
         f"{1.0 / np.sqrt(max(ess, 1.0)):.2f} sd."),
        ("divergences", share, float(np.sqrt(share * (1.0 - share) / chains.size)), _DIVERGENT[0],
         state(share > _DIVERGENT[0]), grade(share > _DIVERGENT[0], share > _DIVERGENT[1]),
         broke),
        ("moved", shift, 0.0, np.inf, "within", "good",
         f"q's means were up to {shift:.2f} sd from the chains', its sds {low:.2f} to {high:.2f} times theirs."),
    ]  # fmt: skip


def _moved(fit: Any) -> tuple[float, float, float]:
    """Compare q with the chains, on the scale q lives on: largest shift in sds, and the range of the ratios of sds."""
    theta = fit.refined.theta.reshape(fit.refined.size, -1)
    mean, factor = fit.family.frame(fit.params)
    own, sd = factor if factor.ndim == 1 else np.sqrt((factor**2).sum(1)), theta.std(0) + 1e-300
    return float(np.max(np.abs(theta.mean(0) - mean) / sd)), float((own / sd).min()), float((own / sd).max())
