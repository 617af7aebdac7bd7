"""The next thing to try, in a sentence or two."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from yoasovi.verdict.findings import UNKNOWN

_BY_LUCK = ("yoasovi-naive", "yoasovi-metropolis")  # the paper's algorithms as printed


@dataclass
class Facts:
    """What an inquiry into a fit found that advice can be given by."""

    family: str
    dim: int
    method: str
    steps: int
    corrects: bool  # `fit.sample()` is importance-corrected by itself
    gradients: bool = True  # log p has them
    refine: int | None = None  # gradients that `fit.refine()` would take, about; None where it cannot be asked
    refined: int | None = None  # gradients that it was allowed, if it was asked
    stopped: str = "CONVERGED"
    to_gain: float = 0.0
    gap: float = 0.0
    outside: float = 0.0
    modes: int = 1
    correlated: tuple[str, str] | None = None
    funnel: tuple[str, str] | None = None
    centred: bool = True  # the sites of the funnel, or any if none is named, may have a non-centred form
    runaway: bool = False
    unsearched: bool = False
    coarse: bool = False
    prior: str = ""  # the parameter that is far from its prior
    endless: list[str] = field(default_factory=list)  # parameters that nothing holds


def advise(grade: str, evidence: Mapping[str, Any], facts: Facts) -> str:
    """Say what to do, by the first cause that explains the grade."""
    costs = [name for name, f in evidence.items() if f.grade != "good"]
    if grade == "good":
        return "Use it: nothing that was looked at speaks against what you get."
    if facts.refined is not None and facts.modes == 1:
        if "divergences" in costs:
            return "Reparameterise (non-centred): NUTS does not enter a corner of the posterior, however long it runs."
        return f"Go on: fit.refine(max_gradients={4 * facts.refined:_}), or reparameterise if R-hat stays high."
    if facts.endless:
        what, far = " and ".join(facts.endless), "it goes" if len(facts.endless) == 1 else "they go together"
        return f"Give {what} a proper prior: log p hardly falls however far {far}, so the posterior is improper."
    if grade == "failed":
        return _after_failure(facts)
    if facts.coarse:
        return "Nearly all digits of log p are taken by its size: leave out large constants, or compute in float64."
    if facts.stopped == "MAX_STEPS" and facts.to_gain > 0:  # before any shape that q may only seem to lack
        return _more(facts)
    if facts.modes > 1:
        return (
            "The posterior has several modes and what you get describes some of them: compare fits of other seeds, or use a "
            "sampler that tempers. If the modes only swap labels, one is enough: order the labels."
        )
    if facts.funnel is not None or facts.runaway:
        where = f"the scale of {facts.funnel[1]} depends on {facts.funnel[0]}" if facts.funnel else ""
        if facts.centred:
            return f"Reparameterise (non-centred){where and ': ' + where}; {_sample(facts)} on the reparameterised model."
        cause = where.replace("the scale", "The scale") or "log p rises where it has no mass"
        return f"{cause}, which no Gaussian q can follow: {_sample(facts)}."
    if facts.correlated is not None and facts.family != "full_rank" and not facts.corrects:
        larger = "full_rank" if facts.dim <= 300 or facts.family == "low_rank" else "low_rank"
        a, b = facts.correlated
        return (
            f"Use family='{larger}' (full-rank where it can be paid for): {a} and {b} are correlated, and this q cannot be."
        )
    if facts.to_gain > 0:
        return _more(facts)
    if facts.family == "factorised":
        return "Means are usable, q's spreads tend to be too small: write the model with its discrete latents summed out."
    if costs == ["prior"]:
        return f"The fit is good, but {facts.prior} is where its prior hardly goes: check the prior's scale and units."
    if facts.unsearched and costs == ["modes"]:
        return "Nothing speaks against it, but other modes were not looked for: see whether restarts=4 agree."
    if costs == ["stopped"]:
        return f"Nothing speaks against it but that it was cut: raise max_steps (it ended at {facts.steps:,})."
    if all(evidence[name].state == UNKNOWN for name in costs):
        return f"Probably close, but that could not be told for sure; to be sure, {_sample(facts)}."
    cause = "q is not close to the posterior" if grade == "poor" else "q is close to the posterior, but not close enough"
    cause = "The posterior's tails are heavier than q's" if facts.outside else cause
    return f"{cause}: {_sample(facts)}."


def _sample(facts: Facts) -> str:
    """Name the sampler to ask for."""
    if not facts.gradients:
        return "a function that gives its gradient too (`gradient=True`) would tell more"
    return "use NUTS" if facts.refine is None else f"use fit.refine(), NUTS from here (about {facts.refine:,} gradients)"


def _after_failure(facts: Facts) -> str:
    if facts.coarse:
        return "Bring log p to a size at which a nat can be seen: rescale the data, or leave out large constants."
    if facts.stopped == "MAX_STEPS" and facts.method in _BY_LUCK:
        return "Use another method: this one keeps lucky draws, and does not climb the ELBO however long it runs."
    if facts.stopped == "MAX_STEPS":
        return f"More steps: raise max_steps (it ended at {facts.steps:,}), or leave it to the method."
    if facts.stopped == "INTERRUPTED":
        return "Let it run to its end."
    if facts.stopped == "NON_FINITE":
        return "Check priors, supports and data: log p was not finite for too many draws in a row."
    if facts.stopped == "NO_STEP":
        return "Rescale parameters to about unit scale, or check gradients: no step of any length was acceptable."
    if facts.gap > 0:
        return "q is nowhere near the posterior: try restarts=8, or another way to write the model."
    return _more(facts)


def _more(facts: Facts) -> str:
    if facts.method == "yoasovi":
        return "More steps: the fit stopped early; try a smaller tolerance, or another seed."
    return "More steps or a smaller learning rate; method='yoasovi' chooses both by itself."
