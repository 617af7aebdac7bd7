"""How good an answer is."""

from yoasovi.verdict.findings import Finding, Thresholds, Verdict
from yoasovi.verdict.grading import diagnose

__all__ = ["Finding", "Thresholds", "Verdict", "diagnose"]
