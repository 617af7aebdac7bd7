"""From what was looked at to a grade."""

from __future__ import annotations

from typing import Any

from yoasovi.errors import check
from yoasovi.families.base import Gaussian
from yoasovi.verdict import looks
from yoasovi.verdict.advice import advise
from yoasovi.verdict.findings import FINE, GRADES, Thresholds, Verdict, of_parts
from yoasovi.verdict.inquiry import Inquiry
from yoasovi.verdict.prior import endless
from yoasovi.verdict.refined import refined_findings


def diagnose(
    fit: Any, thresholds: Thresholds, draws: int | None = None, starts: int | None = None, seed: int = 0
) -> Verdict:
    """Look at a fit from all sides and grade it by its worst finding."""
    check(isinstance(thresholds, Thresholds), "thresholds", "diagnose", "a Thresholds", thresholds)
    if draws is not None:
        check(isinstance(draws, int) and draws >= 400, "draws", "diagnose", "an integer of at least 400", draws)
    if starts is not None:
        check(isinstance(starts, int) and starts >= 0, "starts", "diagnose", "an integer of at least 0", starts)
    if fit.parts:
        return of_parts(fit.parts, [diagnose(part.fit, thresholds, draws, starts, seed) for part in fit.parts])
    ask = Inquiry(fit, thresholds, looks.Effort.of(fit, draws, starts), seed)
    if fit.refined is not None:
        findings = list(refined_findings(fit))
        ask.sure = ask.fine = all(f.state == FINE for f in findings)  # chains that agree need no comparison
        findings += ask.modes()
    else:
        findings = list(ask.everything()) if fit.num_steps else []
        findings.insert(0, ask.stopped(findings))
    grade = GRADES[max(GRADES.index(f.grade) for f in findings)]
    evidence = {f.name: f for f in findings}
    if grade in ("poor", "failed") and fit.num_steps and isinstance(fit.family, Gaussian) and fit.refined is None:
        ask.facts.endless = endless(fit)
        ask.num_values += 3
    return Verdict(grade, evidence, advise(grade, evidence, ask.facts), ask.num_values, ask.num_gradients, ask.seen)
