"""How good an answer is."""

from yoasovi.verdict.findings import Finding, Thresholds, Verdict, diagnose

__all__ = ["Finding", "Thresholds", "Verdict", "diagnose"]
