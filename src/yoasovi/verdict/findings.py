"""The verdict on a fit: a grade, the evidence behind it, and the next thing to try."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from yoasovi.errors import check
from yoasovi.families.base import Gaussian
from yoasovi.methods import METHODS, Method
from yoasovi.stopping import MaxSteps, StopReason
from yoasovi.verdict import diagnostics, looks
from yoasovi.verdict.advice import Facts, advise
from yoasovi.verdict.diagnostics import Estimate, effective_size

GRADES = ("good", "usable", "poor", "failed")


class Finding(NamedTuple):
    """One piece of evidence: a number, its error where it has one, the worst grade it forces, and what it says."""

    name: str
    value: float
    error: float
    grade: str
    sentence: str


@dataclass(frozen=True)
class Verdict:
    """`grade` is good, usable, poor or failed; `evidence` maps names to `Finding`s; `advice` is the next thing to try."""

    grade: str
    evidence: Mapping[str, Finding]
    advice: str
    num_values: int  # evaluations of log p that the verdict cost
    num_gradients: int

    def as_json(self) -> dict[str, Any]:
        """Give it as plain data; numbers that are not finite become null."""
        finite = lambda x: float(x) if math.isfinite(x) else None
        evidence = {
            key: {**f._asdict(), "value": finite(f.value), "error": finite(f.error)} for key, f in self.evidence.items()
        }
        cost = {"num_values": self.num_values, "num_gradients": self.num_gradients}
        return {"grade": self.grade, "advice": self.advice, "evidence": evidence, **cost}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Verdict:
        """Read what `as_json` gave, and believe nothing else."""
        number = lambda x: math.nan if x is None else float(x)
        evidence = {
            str(key): Finding(str(f["name"]), number(f["value"]), number(f["error"]), str(f["grade"]), str(f["sentence"]))
            for key, f in dict(found["evidence"]).items()
        }
        if not {str(found["grade"]), *(f.grade for f in evidence.values())} <= set(GRADES):
            raise ValueError(f"grades must be among {', '.join(GRADES)}")
        cost = int(found["num_values"]), int(found["num_gradients"])
        return cls(str(found["grade"]), evidence, str(found["advice"]), *cost)

    def __str__(self):
        lines = [f"{self.grade.upper()}: {self.advice}"]
        lines += [f"  {'·' if f.grade == 'good' else '!'} {f.sentence}" for f in self.evidence.values()]
        return "\n".join(
            [*lines, f"  (looking cost {self.num_gradients:,} gradients and {self.num_values:,} values of log p)"]
        )


@dataclass(frozen=True)
class Thresholds:
    """Where a number begins to cost a grade; pairs are (usable from, poor from) unless said otherwise.

    khat
        Of the importance ratios p/q: Yao et al. 2018 trust q below 0.5, corrected draws below 0.7; it must
        exceed them by its own error.
    shift, scale
        Corrected mean minus q's, in q's sd; ratio of sds, either way. Half an sd or twice the sd is visible in any plot.
    outside
        Share of the posterior where q has 1e-4: beyond 1/50 a 95% interval cannot be right in its tails.
    other_modes, barrier
        Share of the posterior in other modes; how far log p must fall between modes for them to be two (nats).
    to_gain, to_gain_each
        ELBO that one more step would gain, in nats (usable from, failed from); or per parameter, whichever is more.
    resolution
        How far apart floating-point numbers of the size of log p are, in nats (usable from, failed from).
    correlation, funnel
        Missed partial correlation; relative change of one parameter's precision over one sd of another (usable from).
    min_steps
        A fit that its stopping rule did not end has failed if it took fewer steps than this; one of a method that has no
        such rule, if there also is something left to gain, or no way to tell.
    """

    khat: tuple[float, float] = (0.5, 0.7)
    shift: tuple[float, float] = (0.15, 0.5)
    scale: tuple[float, float] = (1.25, 2.0)
    outside: tuple[float, float] = (0.003, 0.02)
    other_modes: tuple[float, float] = (0.01, 0.05)
    barrier: float = 0.5
    to_gain: tuple[float, float] = (0.1, 1.0)
    to_gain_each: tuple[float, float] = (0.002, 0.05)
    resolution: tuple[float, float] = (0.1, 1.0)
    correlation: float = 0.2
    funnel: float = 0.25
    min_steps: int = 1000


def diagnose(
    fit: Any, thresholds: Thresholds, draws: int | None = None, starts: int | None = None, seed: int = 0
) -> Verdict:
    """Look at a fit from all sides and grade it by its worst finding."""
    check(isinstance(thresholds, Thresholds), "thresholds", "diagnose", "a Thresholds", thresholds)
    if draws is not None:
        check(isinstance(draws, int) and draws >= 400, "draws", "diagnose", "an integer of at least 400", draws)
    if starts is not None:
        check(isinstance(starts, int) and starts >= 0, "starts", "diagnose", "an integer of at least 0", starts)
    effort = looks.Effort.of(fit, draws, starts)
    gaussian = isinstance(fit.family, Gaussian)
    ask = _Inquiry(fit, thresholds)
    findings = [ask.finite(), *ask.resolved()]
    if gaussian and fit.model.differentiable and np.isfinite(fit.elbo.value):
        findings += ask.scores(effort, seed)
    if gaussian and np.isfinite(fit.elbo.value):
        findings += ask.wide(effort.draws, seed)
    findings += ask.weights()
    findings += ask.restarts()
    if gaussian and fit.model.differentiable and np.isfinite(fit.elbo.value):
        findings += ask.modes(effort, seed)
    else:
        findings += ask.no_search()
    findings.insert(0, ask.stopped(findings))
    grade = GRADES[max(GRADES.index(f.grade) for f in findings)]
    evidence = {f.name: f for f in findings}
    return Verdict(grade, evidence, advise(grade, evidence, ask.facts), ask.num_values, ask.num_gradients)


class _Inquiry:
    """Gathers findings, the facts that advice is given by, and the cost."""

    def __init__(self, fit: Any, thresholds: Thresholds):
        self.fit, self.limits = fit, thresholds
        self.dim = fit.model.density.dim
        self.facts = Facts(
            family=fit.family.name, dim=self.dim, method=fit.method.name, steps=fit.num_steps, corrects=fit.worth_correcting
        )  # fmt: skip
        self.ratios = fit.ratios() if fit.kernels.cheap else fit.log_ratio
        self.axes: np.ndarray | None = None
        self.num_values = self.num_gradients = 0
        self.log_evidence = fit.elbo.value
        self.far: np.ndarray | None = None  # where heavy-tailed proposals found most of what q lacks

    def stopped(self, others: list[Finding]) -> Finding:
        """Only a stopping rule that was met is proof; a method without one is judged by what is left to gain."""
        reason, steps, method = self.fit.stop_reason, self.fit.num_steps, _whole(self.fit.method)
        self.facts.stopped = reason.name
        say = partial(Finding, "stopped", float(steps), 0.0)
        if reason == StopReason.CONVERGED:
            return say("good", f"The stopping rule ended the fit after {steps:,} steps.")
        if reason != StopReason.MAX_STEPS:
            return say("failed", str(reason))
        short = "failed" if steps < self.limits.min_steps else "usable"
        if not isinstance(getattr(method, "stopping", None), MaxSteps):
            return say(short, f"Cut at {steps:,} steps, before the stopping rule was met.")
        if steps >= method.max_steps:
            return say("good", f"The method took the {steps:,} steps it takes; it has no rule that tells when to stop.")
        enough = any(f.name == "to_gain" and f.grade == "good" for f in others)
        text = f"Ended after {steps:,} of the {method.max_steps:,} steps that the method usually takes, as it was asked to"
        return say("good" if enough else short, f"{text}, with little left to gain." if enough else f"{text}.")

    def finite(self) -> Finding:
        bad = float(np.mean(~np.isfinite(self.ratios)))
        grade = "good" if bad <= 0.001 else "usable" if bad < 0.05 else "poor" if bad < 0.5 else "failed"
        text = f"log p is not finite at {bad:.1%} of q's draws." if bad else "log p is finite at all of q's draws."
        return Finding("finite", bad, 0.0, grade, text)

    def resolved(self) -> Iterator[Finding]:
        """See whether numbers as large as log p can show differences of a nat at all."""
        value = np.abs(self.ratios[np.isfinite(self.ratios)])
        apart = float(np.spacing(value.max())) if value.size else 0.0
        usable, failed = self.limits.resolution
        if apart < usable:
            return
        self.facts.coarse = True
        text = f"log p is about {value.max():.1g}, where numbers are {apart:.1g} apart: smaller differences cannot be seen."
        yield Finding("resolution", apart, 0.0, "failed" if apart >= failed else "usable", text)

    def scores(self, effort: looks.Effort, seed: int) -> Iterator[Finding]:
        seen = looks.scores(self.fit, effort.pairs, seed)
        self._spend(seen)
        if len(seen.eps) < 32:
            return
        noise = diagnostics.gradient_noise(seen.white)
        yield Finding(
            "gradient_noise",
            noise,
            0.0,
            "good",
            f"Scores of q's draws are {noise:.2g} per parameter in q's own units (0 where q is the posterior).",
        )
        yield self._to_gain(seen.gain)
        if self.dim > looks.FULL_UP_TO:
            return
        if self.fit.family.noise_size(self.fit.model.density) == self.dim:
            self.axes = np.linalg.eigh(seen.white.T @ seen.white)[1]
        if self.dim > 1:
            yield self._correlation(diagnostics.missed_correlations(seen.eps, seen.white))
            yield self._funnel(diagnostics.changing_scales(seen.eps, seen.white))

    def _to_gain(self, gain: Estimate) -> Finding:
        usable, failed = (max(a, b * self.dim) for a, b in zip(self.limits.to_gain, self.limits.to_gain_each, strict=True))
        sure = gain.value - 2.0 * gain.se
        grade = "failed" if sure > failed else "usable" if sure > usable else "good"
        self.facts.to_gain = gain.value if grade != "good" else 0.0
        some = f"One more full step would gain {gain.value:.3f} ± {gain.se:.3f} nats"
        none = f"One more full step would gain nothing ({gain.value:.3f} ± {gain.se:.3f} nats)"
        return Finding("to_gain", gain.value, gain.se, grade, f"{some if gain.value > 2 * gain.se else none}.")

    def _correlation(self, pairs: diagnostics.Pairwise) -> Finding:
        value, error, pair = self._surest(pairs, self.limits.correlation)
        self.facts.correlated = pair
        if pair is None:
            return Finding("correlation", value, error, "good", "No correlation is missed.")
        text = f"q misses a partial correlation of about {np.clip(value, -1, 1):.2f} between {pair[0]} and {pair[1]}."
        return Finding("correlation", value, error, "usable", text)

    def _funnel(self, pairs: diagnostics.Pairwise) -> Finding:
        value, error, pair = self._surest(pairs, self.limits.funnel)
        self.facts.funnel = pair
        if pair is None:
            return Finding("funnel", abs(value), error, "good", "Scales do not depend on other parameters.")
        text = f"One sd of {pair[0]} changes the precision of {pair[1]} by about {abs(value):.0%}: a funnel."
        return Finding("funnel", abs(value), error, "usable", text)

    def _surest(self, pairs: diagnostics.Pairwise, limit: float) -> tuple[float, float, tuple[str, str] | None]:
        """Give the value that is surely largest, its error, and the names of its pair if it is beyond doubt and a limit."""
        i, j = _largest(pairs)
        value, sure = float(pairs.value[i, j]), abs(pairs.z[i, j]) > -ndtri(0.001 / self.dim**2)
        names = self.fit.model.free_names
        return value, float(pairs.error[i, j]), (names[i], names[j]) if sure and abs(value) > limit else None

    def wide(self, draws: int, seed: int) -> Iterator[Finding]:
        seen = looks.wide(self.fit, self.axes, draws, seed)
        self._spend(seen)
        self.ratios = np.concatenate([self.ratios, seen.log_ratio])
        self.log_evidence, self.far = seen.log_evidence.value, seen.far
        size = effective_size(seen.weights)
        share, error = seen.outside
        usable, poor = self.limits.outside
        lost = size < 0.02 * draws
        grade = "poor" if lost or share - 2 * error > poor else "usable" if share - error > usable else "good"
        self.facts.outside = share if grade != "good" else 0.0
        text = f"{share:.1%} ± {error:.1%} of the posterior lies where q has a probability of 0.01%."
        if lost:
            text = f"A few draws far out carry most of the posterior ({size:.0f} of {draws:,} count): q is not where it is."
        yield Finding("outside", share, error, grade, text)
        if size >= 100:
            yield from self._marginals(seen, size)

    def _marginals(self, seen: Any, size: float) -> Iterator[Finding]:
        d = self.dim if seen.eps.shape[1] == self.dim else seen.eps.shape[1]
        found = diagnostics.moments(seen.eps[:, :d], seen.weights)
        j = int(np.argmax(np.abs(found.mean)))
        shift, error = float(abs(found.mean[j])), float(found.error[j])
        usable, poor = self.limits.shift
        grade = "poor" if shift - 3 * error > poor else "usable" if shift - 3 * error > usable else "good"
        yield Finding(
            "shift", shift, error, grade, f"Importance-corrected means differ from q's by at most {shift:.2f} sd of q."
        )
        k = int(np.argmax(np.abs(np.log(found.sd))))
        ratio, error = float(found.sd[k]), float(found.sd[k] / np.sqrt(size))
        usable, poor = self.limits.scale
        far = abs(np.log(ratio)) - 2.0 / np.sqrt(size)
        grade = "poor" if far > np.log(poor) else "usable" if far > np.log(usable) else "good"
        yield Finding(
            "scale",
            ratio,
            error,
            grade,
            f"Importance-corrected sds are {found.sd.min():.2f} to {found.sd.max():.2f} times q's.",
        )

    def weights(self) -> Iterator[Finding]:
        ratios = self.ratios[np.isfinite(self.ratios)]
        if ratios.size < 100:
            return
        distance = diagnostics.gap(ratios)
        yield Finding(
            "gap",
            distance.value,
            distance.se,
            "good",
            f"The ELBO is at least {max(distance.value, 0.0):.3f} ± {distance.se:.3f} nats below the evidence.",
        )
        raw = np.exp(ratios - ratios.max())
        even = raw.max() < 1.5 * raw.mean()
        share = float(raw.sum() ** 2 / np.sum(raw**2) / raw.size)
        yield Finding(
            "effective_size",
            share,
            0.0,
            "good" if share > 0.3 else "usable",
            f"Importance weights of q's draws are worth {share:.0%} of their number.",
        )
        try:
            khat = diagnostics.pareto_khat(ratios)
        except ImportError:
            yield Finding(
                "khat",
                np.nan,
                0.0,
                "good" if even else "usable",
                'Pareto k-hat was not computed: pip install "yoasovi[arviz]".',
            )
            return
        good, usable = self.limits.khat
        error = (1.0 + max(khat, 0.0)) / np.sqrt(3.0 * np.sqrt(ratios.size))  # of a tail index from that many draws
        # A tail index knows no scale: where the weights are worth all but their number, a heavy tail of them moves nothing.
        bearable = khat - error <= usable or share > 0.98
        grade = "good" if even or khat - error <= good else "usable" if bearable else "poor"
        text = f"Pareto k-hat of the importance weights is {khat:.2f} ± {error:.2f}"
        yield Finding("khat", khat, error, grade, f"{text}, and they are all but equal." if even else f"{text}.")

    def restarts(self) -> Iterator[Finding]:
        elbos = self.fit.restart_elbos
        if len(elbos) < 2:
            return
        seen = diagnostics.agreement(elbos)
        alone = seen.total > 2 and seen.best == 1
        yield Finding(
            "restarts",
            seen.best / seen.total,
            0.0,
            "usable" if alone else "good",
            f"{seen.best} of {seen.total} restarts reached the best ELBO; the median one is {seen.behind:.2f} nats below.",
        )

    def modes(self, effort: looks.Effort, seed: int) -> Iterator[Finding]:
        seen = looks.search(self.fit, effort, seed=seed, far=self.far)
        self._spend(seen)
        apart = [m for m in seen.others if m.barrier > self.limits.barrier]
        masses = np.array([m.log_mass for m in apart])
        base = max(self.log_evidence, seen.own.log_mass)
        share = float(np.sum(np.exp(np.minimum(masses - base, 50.0)))) if apart else 0.0
        share = share / (1.0 + share)
        usable, poor = self.limits.other_modes
        grade = "poor" if share > poor else "usable" if share > usable else "good"
        if grade != "good":
            self.facts.modes = 1 + len(apart)
        top = seen.own
        self.facts.runaway = bool(top.distance > 5.0 and top.log_mass < self.log_evidence - 10.0)
        climbs = f"{seen.climbs} climbs of log p from scattered starts"
        text = f"{climbs} found no other mode of weight."
        if grade != "good":
            many = f"{len(apart)} other mode{'s' * (len(apart) > 1)} with about {share:.0%} of the posterior"
            text = f"{climbs} found {many}, {apart[0].barrier:.1f} nats of valley in between."
        elif self.facts.runaway:
            text = f"{climbs} ran away from q, to where log p is high but has no mass: a funnel's neck, or a flat direction."
        yield Finding("modes", share, 0.0, "usable" if grade == "good" and self.facts.runaway else grade, text)

    def no_search(self) -> Iterator[Finding]:
        seen = diagnostics.agreement(self.fit.restart_elbos) if self.fit.restart_elbos else None
        if seen is not None and seen.total >= 3 and seen.best >= 2:
            return
        self.facts.unsearched = True
        yield Finding(
            "modes",
            np.nan,
            0.0,
            "usable",
            "Other modes were not looked for: this q has no gradients to climb by, and there were no restarts to compare.",
        )

    def _spend(self, seen: Any) -> None:
        self.num_values += seen.num_values
        self.num_gradients += getattr(seen, "num_gradients", 0)


def _whole(method: Any) -> Any:
    """Give a method with its parts; that of a loaded fit is only a name."""
    return METHODS[method.name]() if not isinstance(method, Method) and method.name in METHODS else method


def _largest(pairs: diagnostics.Pairwise) -> tuple[int, int]:
    """Give the pair whose value is surely largest; the diagonal does not count."""
    sure = np.where(np.eye(len(pairs.value), dtype=bool), -np.inf, np.abs(pairs.value) - 2.0 * pairs.error)
    i, j = np.unravel_index(int(np.argmax(sure)), sure.shape)
    return int(i), int(j)
