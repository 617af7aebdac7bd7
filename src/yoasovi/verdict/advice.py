"""The next thing to try, in one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass
class Facts:
    """What an inquiry into a fit found that advice can be given by."""

    family: str
    dim: int
    method: str
    steps: int
    corrects: bool  # `fit.sample()` is importance-corrected by itself
    stopped: str = "CONVERGED"
    to_gain: float = 0.0
    outside: float = 0.0
    modes: int = 1
    correlated: tuple[str, str] | None = None
    funnel: tuple[str, str] | None = None
    runaway: bool = False
    unsearched: bool = False
    coarse: bool = False


def advise(grade: str, evidence: Mapping[str, Any], facts: Facts) -> str:
    """Say what to do, by the first cause that explains the grade."""
    if grade == "good":
        return "Use it: nothing that was looked at speaks against it."
    if grade == "failed":
        return _after_failure(facts)
    if facts.coarse:
        return "Nearly all digits of log p are taken by its size: leave out large constants, or compute in float64."
    if facts.modes > 1:
        return (
            "The posterior has several modes and q describes one; use NUTS with many chains, or a sampler that tempers. "
            "If the modes only swap labels, one is enough: order the labels."
        )
    if facts.funnel is not None or facts.runaway:
        where = f": the scale of {facts.funnel[1]} depends on {facts.funnel[0]}" if facts.funnel else ""
        return f"Reparameterise (non-centred){where}; or use NUTS on the reparameterised model."
    if facts.correlated is not None and facts.family != "full_rank":
        larger = "full_rank" if facts.dim <= 300 else "low_rank"
        larger = "full_rank" if facts.family == "low_rank" else larger
        a, b = facts.correlated
        return (
            f"Use family='{larger}' (full-rank where it can be paid for): {a} and {b} are correlated, and this q cannot be."
        )
    if facts.to_gain > 0:
        return _more(facts)
    if grade == "poor":
        tails = (
            "The posterior's tails are heavier than q's: use NUTS"
            if facts.outside
            else "q is not close to the posterior: use NUTS"
        )
        corrected = "fit.sample(), which is importance-corrected" if facts.corrects else "fit.sample(corrected=True)"
        return f"{tails}, or, with few parameters and after a look at k-hat, {corrected}."
    if facts.unsearched and all(f.grade == "good" for k, f in evidence.items() if k != "modes"):
        return "Nothing speaks against it, but other modes were not looked for: see whether restarts=4 agree."
    if facts.family == "factorised":
        return "Means are usable, q's spreads tend to be too small: sum the discrete latents out, or use NUTS."
    if all(f.grade == "good" for k, f in evidence.items() if k != "stopped"):
        return f"Nothing speaks against it but that it was cut: raise max_steps (it ended at {facts.steps:,})."
    close = "q is close enough for importance correction, not close enough to stand alone"
    if facts.corrects:
        return f"Use fit.sample() and what is made of it, which are importance-corrected: {close}."
    return f"Use fit.sample(corrected=True): {close}."


def _after_failure(facts: Facts) -> str:
    if facts.coarse:
        return "Bring log p to a size at which a nat can be seen: rescale the data, or leave out large constants."
    if facts.stopped == "MAX_STEPS":
        return f"More steps: raise max_steps (it ended at {facts.steps:,}), or leave it to the method."
    if facts.stopped == "INTERRUPTED":
        return "Let it run to its end."
    if facts.stopped == "NON_FINITE":
        return "Check priors, supports and data: log p was not finite for too many draws in a row."
    if facts.stopped == "NO_STEP":
        return "Rescale parameters to about unit scale, or check gradients: no step of any length was acceptable."
    return _more(facts)


def _more(facts: Facts) -> str:
    if facts.method == "yoasovi":
        return "More steps: the fit stopped early; try a smaller tolerance, or another seed."
    return "More steps or a smaller learning rate; method='yoasovi' chooses both by itself."
