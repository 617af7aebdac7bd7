"""The verdict on a mixture of fits, from those on its parts."""

from __future__ import annotations

from typing import Any

from yoasovi.verdict.findings import GRADES, Finding, Verdict

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
