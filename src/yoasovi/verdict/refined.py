"""What chains say of themselves, as evidence for the verdict on a refined fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from yoasovi.verdict.findings import FINE, Finding, found

# Where a number begins to cost a grade: (usable from, poor from).
_RHAT = 1.05, 1.1  # Vehtari et al. 2021 ask for 1.01 of few long chains; that of many short ones is higher by chance alone
_ESS = 300.0, 100.0  # below 100 the error of a mean is a tenth of its sd
_DIVERGENT = 0.001, 0.02  # share of transitions: beyond it there is a corner that the chains do not enter


def refined_findings(fit: Any) -> Iterator[Finding]:
    """Say whether the chains agree, what their draws are worth, what broke, and how far q was from them."""
    chains, names = fit.refined, fit.model.free_names
    worst, least, lost = int(np.argmax(chains.rhat)), int(np.argmin(chains.ess)), chains.num_divergent
    rhat, ess, share = chains.worst_rhat, chains.least_ess, lost / chains.size
    grade = lambda usable, poor: "poor" if poor else "usable" if usable else "good"
    agree = "agree, on {} least" if rhat <= _RHAT[0] else "do not agree yet, on {}"
    agree = agree if rhat <= _RHAT[1] else "disagree, on {} most"
    yield found("rhat", rhat, grade(rhat > _RHAT[0], rhat > _RHAT[1]), f"The chains {agree.format(names[worst])}.",
                limit=_RHAT[0])  # fmt: skip
    known = 1.0 / np.sqrt(max(ess, 1.0))
    worth = f"Draws are worth so many independent ones at least ({names[least]}): means are known to {known:.2f} sd."
    yield found("ess", ess, grade(ess < _ESS[0], ess < _ESS[1]), worth, limit=_ESS[0], unit="draws")
    broke = "No transition of NUTS diverged."
    if lost:
        broke = f"{lost:,} of {chains.size:,} transitions diverged: a corner of the posterior is too narrow for NUTS."
    error = float(np.sqrt(share * (1.0 - share) / chains.size))
    yield found("divergences", 100 * share, grade(share > _DIVERGENT[0], share > _DIVERGENT[1]), broke, error=100 * error,
                limit=100 * _DIVERGENT[0], unit="%")  # fmt: skip
    shift, low, high = _moved(fit)
    text = f"So far q's means were from the chains', at most; its sds were {low:.2f} to {high:.2f} times theirs."
    yield found("moved", shift, "good", text, unit="sd", state=FINE)


def _moved(fit: Any) -> tuple[float, float, float]:
    """Compare q with the chains, on the scale q lives on: largest shift in sds, and the range of the ratios of sds."""
    theta = fit.refined.theta.reshape(fit.refined.size, -1)
    mean, factor = fit.family.frame(fit.params)
    own, sd = factor if factor.ndim == 1 else np.sqrt((factor**2).sum(1)), theta.std(0) + 1e-300
    return float(np.max(np.abs(theta.mean(0) - mean) / sd)), float((own / sd).min()), float((own / sd).max())
