"""The words of a verdict: a grade, the evidence behind it, and the next thing to try."""

from __future__ import annotations

import math
import shutil
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from yoasovi.verdict.looks import Search

GRADES = ("good", "usable", "poor", "failed")
FINE, AGAINST, UNKNOWN = STATES = ("fine", "against", "cannot tell")
MARKS = {FINE: "✓", AGAINST: "✗", UNKNOWN: "?"}


_LABELS = {
    "stopped": "end of the run", "finite": "log p not finite", "resolution": "digits of log p", "shift": "means, off by",
    "scale": "sds, off by a factor", "corrected": "correction", "to_gain": "left to gain", "outside": "missed outside q",
    "correlation": "correlation missed", "funnel": "funnel", "gap": "ELBO below evidence", "effective_size": "even weights",
    "khat": "Pareto k-hat", "prior": "away from its prior", "restarts": "restarts that agree", "rhat": "R-hat of the chains",
    "ess": "effective draws", "divergences": "divergences", "moved": "q was off by", "modes": "in other modes",
}  # fmt: skip


class Finding(NamedTuple):
    """One piece of evidence: a number with its error and limit, what it says, and the worst grade it forces.

    `state` is "fine", "against" or "cannot tell". A finding can speak against q and cost no grade, where the answer that
    the user gets was mended. Numbers that do not exist are NaN.
    """

    name: str
    value: float
    error: float
    grade: str
    sentence: str
    label: str = ""  # a few words for a table
    limit: float = math.nan  # where it begins to cost a grade
    state: str = FINE
    unit: str = ""

    @property
    def figure(self) -> str:
        """The value with its error, as a table shows them."""
        if not math.isfinite(self.value):
            return "–"
        error = f" ± {_short(self.error)}" if self.error > 0 and math.isfinite(self.error) else ""
        return f"{_short(self.value)}{error}{self.unit and ' ' + self.unit}"

    @property
    def bound(self) -> str:
        """The limit, as a table shows it."""
        return _short(self.limit) if math.isfinite(self.limit) else ""


def state_of(grade: str) -> str:
    """Give the state of a finding that costs a grade, or does not."""
    return FINE if grade == "good" else AGAINST


# Findings whose limit is the most that is fine, but which are judged by their error and by other findings too.
_NOT_BY_LIMIT_ALONE = ("outside", "funnel", "to_gain", "correlation")


def found(name: str, value: float, grade: str, sentence: str, **more: Any) -> Finding:
    """Make a finding: its label by its name, its state by its grade unless told; marks that limits deny are explained."""
    more = {"error": 0.0, "state": state_of(grade), "label": _LABELS.get(name, name), **more}
    if name in _NOT_BY_LIMIT_ALONE and grade == "good":
        above = abs(value) > more.get("limit", math.inf)
        if more["state"] == FINE and above:
            sentence += " Above the limit, but not beyond its error."
        elif more["state"] == AGAINST and not above:
            sentence += " Below the limit it costs nothing."
    return Finding(name, float(value), grade=grade, sentence=sentence, **more)


def _short(x: float) -> str:
    """Write a number of any size in a few characters."""
    if x == 0 or 0.01 <= abs(x) < 1000:
        return f"{x:.0f}" if float(x).is_integer() else f"{x:.3f}" if abs(x) < 0.1 else f"{x:.2f}"
    return f"{x:,.0f}" if 1000 <= abs(x) < 1e7 else f"{x:.1g}"


@dataclass(frozen=True, repr=False)
class Verdict:
    """`grade` is good, usable, poor or failed; `evidence` maps names to `Finding`s; `advice` is the next thing to try."""

    grade: str
    evidence: Mapping[str, Finding]
    advice: str
    num_values: int  # evaluations of log p that the verdict cost
    num_gradients: int
    search: Search | None = field(default=None, compare=False)  # what climbs found; not known of a loaded fit

    def as_json(self) -> dict[str, Any]:
        """Give it as plain data; numbers that are not finite become null."""
        plain = lambda x: (float(x) if math.isfinite(x) else None) if isinstance(x, (int, float)) else x
        evidence = {key: {k: plain(v) for k, v in f._asdict().items()} for key, f in self.evidence.items()}
        cost = {"num_values": self.num_values, "num_gradients": self.num_gradients}
        return {"grade": self.grade, "advice": self.advice, "evidence": evidence, **cost}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Verdict:
        """Read what `as_json` gave, and believe nothing else."""
        kinds = {name: float if name in ("value", "error", "limit") else str for name in Finding._fields}
        read = lambda x, kind: kind("nan" if kind is float and x is None else x)
        evidence = {
            str(key): Finding(**{name: read(f[name], kind) for name, kind in kinds.items() if name in f})
            for key, f in dict(found["evidence"]).items()
        }
        if not {str(found["grade"]), *(f.grade for f in evidence.values())} <= set(GRADES):
            raise ValueError(f"grades must be among {', '.join(GRADES)}")
        if not {f.state for f in evidence.values()} <= set(STATES):
            raise ValueError(f"states must be among {', '.join(STATES)}")
        cost = int(found["num_values"]), int(found["num_gradients"])
        return cls(str(found["grade"]), evidence, str(found["advice"]), *cost)

    def __str__(self):
        """Lines for a terminal: one finding each, sentences wrapped at words."""
        width = min(shutil.get_terminal_size((120, 24)).columns, 120)
        lines = textwrap.wrap(f"{self.grade.upper()}: {self.advice}", width)
        head = ("", "", "value", "limit", "")
        rows = [(MARKS[f.state], f.label or f.name, f.figure, f.bound, f.sentence) for f in self.evidence.values()]
        _, what, value, limit, _ = (max(map(len, column)) for column in zip(head, *rows, strict=True))
        left = 2 + 2 + what + 2 + value + 2 + limit + 2
        indent = left if left + 40 <= width else 4  # where there is no room beside the figures, sentences go below
        for a, b, c, d, sentence in [head, *rows]:
            start = f"  {a:1} {b:{what}}  {c:>{value}}  {d:>{limit}}  "
            below = textwrap.wrap(sentence, max(width - indent, 20), break_on_hyphens=False)
            lines += [(start + below.pop(0) if indent == left and below else start).rstrip()]
            lines += [" " * indent + line for line in below]
        return "\n".join(
            [*lines, f"  (looking cost {self.num_gradients:,} gradients and {self.num_values:,} values of log p)"]
        )

    def __repr__(self):
        return f"Verdict({self.grade}: {self.advice})"

    def _repr_html_(self) -> str:
        """Show it as a table in a notebook."""
        rows = "".join(
            f"<tr><td>{MARKS[f.state]}</td><td>{escape(f.label or f.name)}</td><td>{escape(f.figure)}</td>"
            f'<td>{escape(f.bound)}</td><td style="text-align:left">{escape(f.sentence)}</td></tr>'
            for f in self.evidence.values()
        )
        head = "<tr><th></th><th></th><th>value</th><th>limit</th><th></th></tr>"
        return f"<p><b>{self.grade.upper()}</b>: {escape(self.advice)}</p><table>{head}{rows}</table>"


@dataclass(frozen=True)
class Thresholds:
    """Where a number begins to cost a grade; pairs are (usable from, poor from) unless said otherwise.

    shift, scale
        What the user gets against the best estimate of the posterior: difference of a mean in sds, ratio of sds either way.
    khat
        Of the importance ratios p/q, where no such comparison can be made: Yao et al. 2018 trust q below 0.5, corrected
        draws below 0.7; it must exceed them by its own error.
    outside
        Share of the posterior where q has 1e-4: beyond 1/50 a 95% interval cannot be right in its tails.
    gap
        How far the ELBO surely is below the evidence, in nats (poor from, failed from); or per parameter, whichever is more.
    other_modes, barrier
        Share of the posterior in other modes; how far log p must fall between modes for them to be two (nats).
    to_gain, to_gain_each
        ELBO that one more step would gain, in nats (usable from, failed from); or per parameter, whichever is more.
    resolution
        How far apart floating-point numbers of the size of log p are, in nats (usable from, failed from).
    correlation, funnel
        Missed partial correlation; relative change of one parameter's precision over one sd of another (usable from; told
        from half of it).
    neck
        Share of the posterior in the tails of a parameter that scales follow, beyond what the draws have of it.
    prior
        How many sds a parameter may lie from where its normal prior would let one expect it, if the prior also moves it
        (usable from); more where there are so many parameters that chance alone would bring one as far.
    min_steps
        A fit that its stopping rule did not end has failed if it took fewer steps than this; one of a method that has no
        such rule, if there also is something left to gain, or no way to tell.
    """

    shift: tuple[float, float] = (0.15, 0.4)
    scale: tuple[float, float] = (1.25, 2.0)
    khat: tuple[float, float] = (0.5, 0.7)
    outside: tuple[float, float] = (0.003, 0.02)
    gap: tuple[float, float] = (5.0, 20.0)
    gap_each: tuple[float, float] = (0.25, 1.0)
    other_modes: tuple[float, float] = (0.01, 0.05)
    barrier: float = 0.5
    to_gain: tuple[float, float] = (0.1, 1.0)
    to_gain_each: tuple[float, float] = (0.002, 0.05)
    resolution: tuple[float, float] = (0.1, 1.0)
    correlation: float = 0.2
    funnel: float = 0.5
    neck: tuple[float, float] = (0.03, 0.08)
    prior: float = 3.0
    min_steps: int = 1000


# ---- a mixture of fits ----------------------------------------------------------------------------------

_COUNTS = 0.05  # weight beyond which a part of a mixture must be good by itself


def of_parts(parts: Any, verdicts: list[Verdict]) -> Verdict:
    """Judge a mixture by the worst finding of each kind over its parts; of parts that hardly count, only by other modes."""
    evidence: dict[str, Finding] = {}
    chosen = verdicts[0]
    for k, (part, verdict) in enumerate(zip(parts, verdicts, strict=True)):
        for name, f in verdict.evidence.items():
            counts = part.weight > _COUNTS or name == "modes"
            if not counts or (name in evidence and GRADES.index(f.grade) <= GRADES.index(evidence[name].grade)):
                continue
            told = f"Mode {k + 1}, {part.weight:.0%}: {f.sentence}" if k or f.grade != "good" else f.sentence
            evidence[name] = f._replace(sentence=told)
            chosen = verdict if GRADES.index(f.grade) > GRADES.index(chosen.grade) else chosen
    grade = GRADES[max(GRADES.index(f.grade) for f in evidence.values())]
    seen = [v.search for v in verdicts if v.search is not None]
    search = seen[0]._replace(others=tuple(m for s in seen for m in s.others)) if seen else None
    cost = sum(v.num_values for v in verdicts), sum(v.num_gradients for v in verdicts)
    return Verdict(grade, evidence, chosen.advice, *cost, search)
