"""How a verdict is reached: what is looked at, in which order, and what each look says."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from yoasovi.extras import how
from yoasovi.families.base import Gaussian
from yoasovi.methods import METHODS, Method
from yoasovi.model.centring import may_be_centred
from yoasovi.stopping import MaxSteps, StopReason
from yoasovi.verdict import diagnostics, looks
from yoasovi.verdict.advice import Facts
from yoasovi.verdict.diagnostics import Estimate, effective_size
from yoasovi.verdict.findings import AGAINST, FINE, UNKNOWN, Finding, Thresholds, found, state_of
from yoasovi.verdict.given import GivenDraws, Off
from yoasovi.verdict.landscape import FULL_UP_TO, Landscape, Mode
from yoasovi.verdict.neck import tails
from yoasovi.verdict.pairs import surest
from yoasovi.verdict.prior import expected

_ENOUGH = 0.25  # of the wide draws must count before their weights are believed where chains can be asked
_ALL_BUT_EQUAL = 0.98  # share of their number that weights of q's draws are worth, where q is the posterior
_WEIGHTED, _CHAINS = "importance-weighted draws", "short Markov chains that begin there"
_ANEW = "draws made anew from wider laws, group by group"
_CROSSED = 1.5  # nats of a valley that draws and chains cross
_ROUNDS = 3  # of short chains at most, while they cannot tell


class Inquiry:
    """Gathers findings, the facts that advice is given by, and the cost."""

    def __init__(self, fit: Any, thresholds: Thresholds, effort: looks.Effort, seed: int):
        from yoasovi.answer.refine import expected_gradients, refusal

        self.fit, self.limits, self.effort, self.seed = fit, thresholds, effort, seed
        self.dim = fit.model.density.dim
        self.facts = Facts(
            family=fit.family.name, dim=self.dim, method=fit.method.name, steps=fit.num_steps, corrects=fit.worth_correcting,
            gradients=fit.model.differentiable or not fit.model.on_host,
            refine=expected_gradients(fit) if refusal(fit.model) is None and isinstance(fit.family, Gaussian) else None,
            refined=None if fit.refined is None else fit.refined.wanted.max_gradients,
        )  # fmt: skip
        self.ratios = fit.ratios()
        self.axes: np.ndarray | None = None
        self.num_values = self.num_gradients = 0
        self.log_evidence = fit.elbo.value
        self.far: np.ndarray | None = None  # where heavy-tailed proposals found most of what q lacks
        self.sure = False  # whether the answer could be compared with something better,
        self.fine = False  # and agreed with it,
        self.off = False  # or surely did not
        self.seen: looks.Search | None = None
        self.given: GivenDraws | None = None
        self.hidden = False  # there is a funnel whose neck could not be looked into
        self.entered = False  # draws made anew, which go far into any neck, agreed with those that are given

    def everything(self) -> Iterator[Finding]:
        gaussian = isinstance(self.fit.family, Gaussian) and bool(np.isfinite(self.fit.elbo.value))
        climbs = gaussian and self.fit.model.differentiable
        yield from self.finite()
        yield from self.resolved()
        scores = looks.scores(self.fit, self.effort.pairs, self.seed) if climbs else None
        if scores is not None:
            self._spend(scores)
            self.axes = self._axes(scores)
        if gaussian:
            seen = looks.wide(self.fit, self.axes, self.effort.draws, self.seed)
            self._spend(seen)
            self.log_evidence, self.far = seen.log_evidence.value, seen.far
            given = self.given = GivenDraws(self.fit)
            yield from self.answer(seen, given)
            yield from self.outside(seen, given)
        if scores is not None and len(scores.eps) >= 32:
            yield from self.scores(scores)
        yield from self.weights()
        yield from self.restarts()
        yield from self.modes() if climbs else self.no_search()
        if gaussian:
            yield from self.prior()

    # ---- the run ------------------------------------------------------------------------------------------

    def stopped(self, others: list[Finding]) -> Finding:
        """Only a stopping rule that was met is proof; a method without one is judged by what is left to gain."""
        reason, steps, method = self.fit.stop_reason, self.fit.num_steps, _whole(self.fit.method)
        self.facts.stopped = reason.name
        say = partial(found, "stopped", steps, unit="step" + "s" * (steps != 1))
        if reason == StopReason.CONVERGED:
            return say("good", "The stopping rule ended the fit.")
        if reason != StopReason.MAX_STEPS:
            return say("failed", str(reason))
        short = "failed" if steps < self.limits.min_steps or not self.fit.model.differentiable else "usable"
        if not isinstance(getattr(method, "stopping", None), MaxSteps):
            return say(short, f"Cut at {steps:,} steps, before the stopping rule was met.")
        if steps >= method.max_steps:
            text = f"The method took the {steps:,} steps it takes; it has no rule that tells when to stop."
            return say("good", text, state=UNKNOWN)
        # A full step from far away may overshoot, which looks like nothing to gain: the evidence must not be far off either.
        states = {f.name: f.state for f in others}
        enough = states.get("to_gain") == FINE and states.get("gap", FINE) == FINE
        text = f"Ended after {steps:,} of the {method.max_steps:,} steps that the method usually takes, as it was asked to"
        return say("good" if enough else short, f"{text}, with little left to gain." if enough else f"{text}.")

    def finite(self) -> Iterator[Finding]:
        bad = float(np.mean(~np.isfinite(self.ratios)))
        grade = "good" if bad <= 0.001 else "usable" if bad < 0.05 else "poor" if bad < 0.5 else "failed"
        text = f"log p is not finite at {bad:.1%} of q's draws." if bad else "log p is finite at all of q's draws."
        yield found("finite", 100 * bad, grade, text, limit=0.1, unit="%")

    def resolved(self) -> Iterator[Finding]:
        """See whether numbers as large as log p can show differences of a nat at all."""
        value = np.abs(self.ratios[np.isfinite(self.ratios)])
        apart = float(np.spacing(value.max())) if value.size else 0.0
        usable, failed = self.limits.resolution
        if apart < usable:
            return
        self.facts.coarse = True
        text = f"log p is about {value.max():.1g}, where numbers are {apart:.1g} apart: smaller differences cannot be seen."
        yield found("resolution", apart, "failed" if apart >= failed else "usable", text, limit=usable, unit="nats")

    def restarts(self) -> Iterator[Finding]:
        elbos = self.fit.restart_elbos
        if len(elbos) < 2:
            return
        seen = diagnostics.agreement(elbos)
        alone = seen.total > 2 and seen.best == 1
        text = f"{seen.best} of {seen.total} restarts reached the best ELBO; the median one is {seen.behind:.2f} nats below."
        yield found("restarts", seen.best, "usable" if alone else "good", text, unit=f"of {seen.total}")

    # ---- the answer ---------------------------------------------------------------------------------------

    def answer(self, seen: looks.Wide, given: GivenDraws) -> Iterator[Finding]:
        """Compare what the user gets with something better: weighted draws where weights carry, else short chains.

        Draws that were made group by group are first compared with others that were.
        """
        if given.corrected:
            yield self._corrected()
        size, off, how = effective_size(seen.weights), None, ""
        if size >= _ENOUGH * len(seen.weights):
            off, how = self._by_weights(seen, given), _WEIGHTED
        if self._in_doubt(off, how) and (other := given.anew(self, self.seed)) is not None:
            off, how = other, _ANEW
        if self._in_doubt(off, how) and self.effort.chains:
            for _ in range(_ROUNDS):
                more, cost = given.wandered(self.effort.chains, self.effort.chain_gradients, self.seed)
                self.num_gradients += cost
                if more is not None:
                    off, how = more, _CHAINS
                if more is None or not self._in_doubt(more, how):
                    break
        if off is None and size >= 100:
            off, how = self._by_weights(seen, given), _WEIGHTED
        if off is None:
            text = "Nothing better could be had to compare the draws with: weights are too uneven"
            text += ", and Markov chains from q do not move." if self.effort.chains else "."
            yield found("shift", math.nan, "usable", text, limit=self.limits.shift[0], state=UNKNOWN, unit="sd")
            return
        both = [self._shift(off[0], how), self._scale(off[1], how)]
        if not given.corrected and self._even() > _ALL_BUT_EQUAL:  # what cannot be told for heavy tails, equal weights tell
            text = "Importance weights of q's draws are all but equal: there is no difference to be seen."
            both = [f._replace(state=FINE, grade="good", sentence=text) if f.state == UNKNOWN else f for f in both]
        self.sure, self.fine = True, all(f.state == FINE for f in both)
        self.entered = self.fine and how == _ANEW
        self.off = any(f.state == AGAINST for f in both)
        yield from both

    def _by_weights(self, seen: looks.Wide, given: GivenDraws) -> tuple[Off, Off]:
        return given.weighted(self.fit.family.place(self.fit.lane, seen.eps[None])[0], seen.weights)

    def _in_doubt(self, off: tuple[Off, Off] | None, how: str) -> bool:
        """Tell whether to ask further: weights are believed only where they agree, chains also where they surely do not."""
        if off is None:
            return True
        states = {self._shift(off[0], how).state, self._scale(off[1], how).state}
        return UNKNOWN in states or (how != _CHAINS and AGAINST in states)

    def _even(self) -> float:
        """Give the share of their number that q's draws are worth."""
        raw = np.exp(self.ratios - np.max(self.ratios[np.isfinite(self.ratios)], initial=-np.inf))
        raw = raw[np.isfinite(raw)]
        return float(raw.sum() ** 2 / np.sum(raw**2) / raw.size) if raw.size else 0.0

    def _corrected(self) -> Finding:
        size = self.fit.effective_size()
        text = f"The draws you get are importance-corrected, and worth {size:,.0f} independent ones."
        return found("corrected", size, "usable" if size < 400 else "good", text, limit=400, unit="draws")

    def _shift(self, off: Off, how: str) -> Finding:
        usable, poor = self.limits.shift
        sure = off.value - 2.5 * off.error
        grade = "good" if off.value + off.error <= usable else "poor" if off.value - 2.0 * off.error > poor else "usable"
        against = sure > usable
        state = FINE if grade == "good" else AGAINST if against else UNKNOWN
        text = {
            FINE: f"Means of what you get agree with those of {how}.",
            AGAINST: f"The mean of {off.name} is off, compared with {how}.",
            UNKNOWN: f"The mean of {off.name} may be off; {how} cannot tell for sure.",
        }[state]
        return found("shift", off.value, grade, text, error=off.error, limit=usable, state=state, unit="sd")

    def _scale(self, off: Off, how: str) -> Finding:
        usable, poor = self.limits.scale
        far, sure = abs(off.value), abs(off.value) - 2.5 * off.error
        against = sure > np.log(usable)
        grade = "poor" if sure > np.log(poor) else "usable" if against or far + 2.0 * off.error > np.log(usable) else "good"
        state = FINE if grade == "good" else AGAINST if against else UNKNOWN
        ratio = float(np.exp(-off.value))  # given over better
        side = "small" if ratio < 1 else "large"
        text = {
            FINE: f"Sds of what you get agree with those of {how}.",
            AGAINST: f"The sd of {off.name} is too {side}, compared with {how}.",
            UNKNOWN: f"The sd of {off.name} may be too {side}; {how} cannot tell for sure.",
        }[state]
        return found("scale", ratio, grade, text, error=ratio * off.error, limit=usable, state=state)

    def outside(self, seen: looks.Wide, given: GivenDraws) -> Iterator[Finding]:
        """Tell how much of the posterior, beyond what the draws have of it, lies where q hardly goes."""
        size, (share, error) = effective_size(seen.weights), seen.outside
        usable, poor = self.limits.outside
        have = float(np.mean(looks.outside(given.eps, self.axes))) if given.eps is not None else 0.0
        missed = share - have
        say = partial(found, "outside", 100 * max(missed, 0.0), error=100 * error, limit=100 * usable, unit="%")
        if size < 0.02 * len(seen.weights):
            text = f"A few draws far out carry all the weight ({size:.0f} of {len(seen.weights):,} count)"
            yield say("good" if self.sure else "poor", f"{text}: how much lies there cannot be told.", state=UNKNOWN)
            return
        sure = missed - 2 * error
        grade = "poor" if sure > poor and not self.fine else "usable" if sure > usable else "good"
        unknown = grade == "good" and missed + error > poor
        self.facts.outside = missed if grade != "good" else 0.0
        text = f"{100 * share:.2g}% of the posterior lies where q has a probability of 0.01%"
        text += f"; of the draws you get {100 * have:.2g}% do." if have else "."
        yield say("usable" if unknown and not self.fine else grade, text, state=UNKNOWN if unknown else state_of(grade))

    # ---- q ------------------------------------------------------------------------------------------------

    def _axes(self, seen: looks.ScoreLook) -> np.ndarray | None:
        """Give the axes along which scores are largest; None where they are too many, or q has noise of its own."""
        round_q = self.fit.family.noise_size(self.fit.model.density) == self.dim <= FULL_UP_TO
        return np.linalg.eigh(seen.white.T @ seen.white)[1] if round_q and len(seen.eps) >= 32 else None

    def scores(self, seen: looks.ScoreLook) -> Iterator[Finding]:
        yield self._to_gain(seen.gain)
        if 1 < self.dim <= FULL_UP_TO:
            yield self._correlation(diagnostics.missed_correlations(seen.eps, seen.white))
            yield self._funnel(diagnostics.changing_scales(seen.eps, seen.white))

    def _to_gain(self, gain: Estimate) -> Finding:
        usable, failed = (max(a, b * self.dim) for a, b in zip(self.limits.to_gain, self.limits.to_gain_each, strict=True))
        sure = gain.value - 2.0 * gain.se
        grade = "failed" if sure > failed else "usable" if sure > usable else "good"
        unknown = grade == "good" and gain.value + gain.se > failed
        self.facts.to_gain = gain.value if grade != "good" else 0.0
        text = "One more full step would gain " + ("something." if gain.value > 2 * gain.se else "nothing that can be seen.")
        state = UNKNOWN if unknown else state_of(grade)
        grade = "good" if self.fine else "usable" if unknown else grade  # q was mended by correction
        return found("to_gain", gain.value, grade, text, error=gain.se, limit=usable, state=state, unit="nats")

    def _correlation(self, pairs: diagnostics.Pairwise) -> Finding:
        value, error, pair = surest(self.fit.model, pairs, self.limits.correlation)
        self.facts.correlated = pair
        say = partial(found, "correlation", float(np.clip(value, -1, 1)), error=error, limit=self.limits.correlation)
        if pair is None:
            return say("good", "No correlation is missed.")
        text = f"q misses a partial correlation between {pair[0]} and {pair[1]}"
        if self.facts.corrects:
            return say("good", f"{text}; correction of the draws makes up for it as far as it goes.", state=AGAINST)
        return say("usable", f"{text}.")

    def _funnel(self, pairs: diagnostics.Pairwise) -> Finding:
        value, error, pair = surest(self.fit.model, pairs, 0.5 * self.limits.funnel)
        in_vain = any(not note.kept and "centred" in note.tried for note in self.fit.mended)
        self.facts.funnel, self.facts.centred = pair, may_be_centred(self.fit.model, pair) and not in_vain
        say = partial(found, "funnel", 100 * abs(value), error=100 * error, limit=100 * self.limits.funnel, unit="%")
        if pair is None:
            return say("good", "Scales do not depend on other parameters.")
        text = f"One sd of {pair[0]} changes the precision of {pair[1]} by that much: a funnel, which q cannot have."
        if self.entered:
            return say("good", f"{text} The draws you get follow it.", state=AGAINST)
        seen = self._neck(pair[0])
        if seen is None:  # where the draws are seen to be off as well, or may be, its neck hides more than is seen
            surely, deep = abs(value) - 2.0 * error > self.limits.funnel, abs(value) > self.limits.funnel
            self.hidden = deep
            poor = self.off or (surely and self.sure and not self.fine)
            return say("poor" if poor else "usable" if deep else "good", text, state=AGAINST)
        missed, ratio = seen
        usable, bad = self.limits.neck
        if missed > usable:
            text += f" About {missed:.0%} of the posterior lies far out along {pair[0]}, where the draws you get hardly go."
        elif ratio > self.limits.scale[0]:
            text += f" Its tails make the sd of {pair[0]} {ratio:.1f} times that of the draws you get."
        short = missed > usable or ratio > self.limits.scale[0]
        poor = self.off or missed > bad or (missed > usable and self.sure and not self.fine)
        return say("poor" if poor else "usable" if short else "good", text, state=AGAINST)

    def _neck(self, name: str) -> tuple[float, float] | None:
        """Give the share of the posterior that the draws miss in the tails of a parameter, and how much smaller its sd is.

        None where it cannot be told.
        """
        if self.given is None or not self.effort.hessian:
            return None
        seen = tails(self.fit, self.fit.model.free_names.index(name), self.given.theta)
        if seen is None:
            return None
        self._spend(seen)
        return None if np.isnan(seen.missed) else (seen.missed, self.given.wider(seen.theta, seen.weights))

    def weights(self) -> Iterator[Finding]:
        """Importance weights of q's own draws; they cost a grade only where nothing better was to be had."""
        ratios = self.ratios[np.isfinite(self.ratios)]
        if ratios.size < 100:
            return
        yield self._gap(diagnostics.gap(ratios))
        share = self._even()
        doubt = share <= 0.3 and not self.sure
        text = f"Importance weights of q's draws are worth {share:.0%} of their number."
        state = FINE if share > 0.3 else AGAINST
        yield found("effective_size", 100 * share, "usable" if doubt else "good", text, limit=30, state=state, unit="%")
        if not self.fit.can_correct and self.sure:
            return
        try:
            khat = diagnostics.pareto_khat(ratios)
        except ImportError:
            text = f"It was not computed for want of arviz-stats; {how('arviz')}."
            yield found("khat", math.nan, "good" if share > diagnostics.EVEN or self.sure else "usable", text, state=UNKNOWN)
            return
        usable, poor = self.limits.khat
        error = (1.0 + max(khat, 0.0)) / np.sqrt(3.0 * np.sqrt(ratios.size))  # of a tail index from that many draws
        say = partial(found, "khat", khat, error=error, limit=poor)
        if share > diagnostics.EVEN:  # a tail index knows no scale: where weights are all but equal, it says nothing
            yield say("good", f"The weights are worth {share:.0%} of their number: their tail moves nothing.")
        elif self.sure:
            state = FINE if khat <= poor else UNKNOWN if khat - error <= poor else AGAINST
            hidden = khat > poor and self.hidden  # chains hardly enter the neck that correction missed
            text = "The tail of q's weights; what you get was compared with something better above."
            text = "The tail of q's weights, in a funnel: its neck may hide from all that was looked at." if hidden else text
            yield say("usable" if hidden else "good", text, state=state)
        else:
            grade = "good" if khat - error <= usable else "usable" if khat - error <= poor else "poor"
            yield say(grade, "The tail of the importance weights: above 0.7 they are not to be trusted.")

    def _gap(self, gap: Estimate) -> Finding:
        poor, failed = (max(a, b * self.dim) for a, b in zip(self.limits.gap, self.limits.gap_each, strict=True))
        sure = gap.value - 2.0 * gap.se
        grade = "failed" if sure > failed else "poor" if sure > poor else "good"
        state = state_of(grade)
        grade = "good" if self.fine else grade  # q is far off, what you get is not
        self.facts.gap = gap.value if grade != "good" else 0.0
        text = "A lower bound on the distance between q and the posterior, KL(q || p)."
        return found("gap", max(gap.value, 0.0), grade, text, error=gap.se, limit=poor, state=state, unit="nats")

    # ---- other modes --------------------------------------------------------------------------------------

    def modes(self) -> Iterator[Finding]:
        self.seen = seen = looks.search(self.fit, self.effort, seed=self.seed, far=self.far)
        self._spend(seen)
        # What the draws were compared with crosses a low valley: what is behind it would have shown.
        barrier = max(self.limits.barrier, _CROSSED) if self.sure and not self.off else self.limits.barrier
        apart = seen.elsewhere(barrier, self.fit.elbo.value)
        masses = np.array([m.log_mass for m in apart])
        base = max(self.log_evidence, seen.own.log_mass)
        ratios = np.exp(np.minimum(masses - base, 50.0))
        shares = ratios / (1.0 + ratios.sum())
        share = float(sum(max(each - self._has(m, seen.own), 0.0) for each, m in zip(shares, apart, strict=True)))
        usable, poor = self.limits.other_modes
        grade = "poor" if share > poor else "usable" if share > usable else "good"
        if grade != "good":
            self.facts.modes = 1 + len(apart)
        top = seen.own
        self.facts.runaway = bool(top.distance > 5.0 and top.log_mass < self.log_evidence - 10.0)
        climbs = f"{seen.climbs} climbs of log p from scattered starts"
        say = partial(found, "modes", 100 * share, limit=100 * usable, unit="%")
        if grade != "good":
            many = f"{len(apart)} other mode{'s' * (len(apart) > 1)}"
            valley = max(apart[0].barrier, 0.0)
            yield say(grade, f"{climbs} found {many}, {valley:.1f} nats of valley in between.")
        elif self.facts.runaway:
            text = f"{climbs} ran away from q, to where log p is high but has no mass: a funnel's neck, or a flat direction."
            hidden = self.facts.funnel is not None and not self.fine
            yield say("poor" if hidden else "good" if self.sure else "usable", text, state=UNKNOWN)
        elif seen.relabelled:
            yield say("good", f"{climbs} found other modes that only swap labels: one of them is enough.")
        else:
            yield say("good", f"{climbs} found no other mode of weight.")

    def _has(self, mode: Mode, own: Mode) -> float:
        """Give the share of the draws that lie on a mode's side: seen from q's own mode, or from q's mean if it is that."""
        origin = own.x if mode is not own else np.zeros_like(own.x)
        way = mode.x - origin
        if self.given is None or not way.any():
            return 0.0
        mean, frame = (x[0] for x in self.fit.family.frame(self.fit.lane))
        along = (Landscape(self.fit.kernels.point, mean, frame).into(self.given.theta) - origin) @ way
        return float(np.mean(along > 0.5 * way @ way))

    def no_search(self) -> Iterator[Finding]:
        seen = diagnostics.agreement(self.fit.restart_elbos) if self.fit.restart_elbos else None
        if seen is not None and seen.total >= 3 and seen.best >= 2:
            return
        self.facts.unsearched = True
        text = "Other modes were not looked for: this q has no gradients to climb by, and there were no restarts to compare."
        yield found("modes", math.nan, "usable", text, state=UNKNOWN)

    # ---- the prior ----------------------------------------------------------------------------------------

    def prior(self) -> Iterator[Finding]:
        """Tell whether the data speak against a prior that the answer owes much to."""
        seen = expected(self.fit, self.limits.prior)
        if seen is None:
            return
        self.facts.prior = seen.parameter if seen.conflict else ""
        grade = "usable" if seen.conflict else "good"
        yield found("prior", seen.away, grade, seen.sentence, limit=seen.limit, unit="sd")

    def _spend(self, seen: Any) -> None:
        self.num_values += seen.num_values
        self.num_gradients += getattr(seen, "num_gradients", 0)


def _whole(method: Any) -> Any:
    """Give a method with its parts; that of a loaded fit is only a name."""
    return METHODS[method.name]() if not isinstance(method, Method) and method.name in METHODS else method
