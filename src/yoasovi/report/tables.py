"""Tables of a report as HTML: findings, parameters, fits side by side."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from yoasovi.report.posterior import ShownDraws

WORDS = {"good": "Good", "usable": "Usable", "poor": "Poor", "failed": "Failed"}
_ICONS = {
    "good": "M2 8.5l4 4 8-9", "usable": "M2 9.5c2-5 4-5 6-1.5s4 3.5 6-1.5", "poor": "M8 2v7M8 12.5v1",
    "failed": "M3 3l10 10M13 3L3 13",
}  # fmt: skip
_MARKS = {"against": ("✗", "against"), "cannot tell": ("?", "unsure"), "fine": ("✓", "fine")}  # the gravest first
_OFF = "q is off there; it lowers the grade only where the draws you get are off too"
_LONGEST = 20  # letters of a number or name that is not broken
_ROWS = 1000  # of the table of parameters
NONE = "–"


def table(heads: list[tuple[str, str]], rows: list[tuple], kind: str = "", key: str = "", tall: bool = False) -> str:
    """Build a table; cells are HTML already. The first cell of a row is its heading."""
    top = "" if not any(h for h, _ in heads) else "<thead><tr>" + "".join(
        f'<th scope="col" class="{c}">{escape(h)}</th>' for h, c in heads) + "</tr></thead>"  # fmt: skip
    body = "".join(
        f'<tr><th scope="row" class="{heads[0][1]}">{row[0]}</th>'
        + "".join(f'<td class="{c}{" none" * (cell in (NONE, ""))}" data-head="{escape(h)}">{cell}</td>'
                  for cell, (h, c) in zip(row[1:], heads[1:], strict=True)) + "</tr>"
        for row in rows
    )  # fmt: skip
    name = f' id="{escape(key)}"' if key else ""
    return (
        f'<div class="scroll{" tall" if tall else ""}"><table class="{kind}"{name}>{top}<tbody>{body}</tbody></table></div>'
    )


def plain(heads: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Build a table of words, which are escaped here."""
    return table([(h, "") for h in heads], [tuple(map(escape, row)) for row in rows], "words")


def laws(rows: Sequence[tuple[str, ...]]) -> str:
    """Build the table of parameters, sizes and priors, in which lines break between the parts of a law, not in a number."""
    heads = [("parameter", ""), ("size", ""), ("prior", "")]
    return table(heads, [(escape(name), escape(size), _law(law)) for name, size, law in rows], "words")


def _law(text: str) -> str:
    parts = re.split(r"(?<=[(=\[ ])", text)
    whole = lambda x: re.search(r"\d", x) and len(x) <= _LONGEST
    return "<wbr>".join(f'<span class="whole">{escape(x)}</span>' if whole(x) else escape(x) for x in parts)


def icon(grade: str) -> str:
    """Draw the sign of a grade."""
    return (f'<svg viewBox="0 0 16 16" aria-hidden="true"><path d="{_ICONS[grade]}" fill="none" stroke="currentColor" '
            'stroke-width="2.4" stroke-linecap="round" stroke-linejoin="round"/></svg>')  # fmt: skip


def evidence(verdict: Any) -> str:
    """Table of what was looked at, what speaks against the fit first."""
    order = list(_MARKS)
    found = sorted(verdict.evidence.values(), key=lambda f: order.index(f.state) if f.state in order else len(order))
    rows = []
    for f in found:
        sign, kind = _MARKS.get(f.state, ("", "fine"))
        mark = f'<span class="mark {kind}" role="img" aria-label="{escape(f.state)}">{sign}</span>'
        rows.append((
            mark, escape(f.label or f.name.replace("_", " ")), escape(f.figure), escape(f.bound), escape(f.sentence),
        ))  # fmt: skip
    heads = [("", "sign"), ("what", "what"), ("value ± error", "n"), ("limit", "n limit"), ("what it says", "says")]
    note = f"Looking cost {verdict.num_gradients:,} gradients and {verdict.num_values:,} values of log p on top of the fit."
    signs = f"✓ fine, ✗ {_OFF}, ? cannot be told."
    return table(heads, rows, "findings") + f'<p class="caption">{signs} {note}</p>'


def comparison(fits: list[Any], verdicts: list[Any], names: list[str]) -> str:
    """Table of fits side by side."""
    heads = [
        ("method", ""), ("verdict", ""), ("reported ELBO", "n"), ("ELBO on fresh draws", "n"), ("k-hat", "n"),
        ("steps", "n"), ("gradients", "n"), ("values", "n"), ("compile s", "n"), ("run s", "n"),
    ]  # fmt: skip
    rows = []
    for fit, verdict, name in zip(fits, verdicts, names, strict=True):
        khat = verdict.evidence.get("khat")
        grade = f'<span class="mark {verdict.grade}">{icon(verdict.grade)}{WORDS[verdict.grade].lower()}</span>'
        rows.append((
            escape(name), grade, f"{fit.reported_elbo:,.2f}", f"{fit.elbo.value:,.2f} ± {fit.elbo.se:.2f}",
            f"{khat.value:.2f}" if khat is not None else NONE, f"{fit.num_steps:,}", f"{fit.num_gradients:,}",
            f"{fit.num_values:,}", f"{fit.seconds.compile:.1f}", f"{fit.seconds.run:.2f}",
        ))  # fmt: skip
    return table(heads, rows, "cells")


def parameters(found: ShownDraws, title: str, key: str) -> str:
    """Table of scalars; intervals of one site share their axis."""
    best = found.best
    low, middle, high = np.quantile(best, [0.05, 0.5, 0.95], axis=0)
    mean, sd = best.mean(0), best.std(0)
    error = np.full(len(mean), np.nan) if found.errors is None else found.errors
    ends = {s: (low[w].min(), high[w].max()) for s in dict.fromkeys(found.site) if (w := np.array(found.site) == s).any()}
    rows = []
    for j, name in enumerate(found.names[:_ROWS]):
        shown = [*(f"{v:.4g}" for v in (mean[j], sd[j], low[j], middle[j], high[j])), f"{error[j]:.2g}"]
        rows.append((escape(name), *shown, _interval(low[j], middle[j], high[j], *ends[found.site[j]])))
    numbers = ("mean", "sd", "5%", "50%", "95%", "MC error")
    heads = [("parameter", ""), *((h, "n") for h in numbers), ("90% interval", "wide")]
    total = sum(found.sizes.values())
    note = f"{len(best):,} {found.kind}" + (f"; {len(rows):,} of {total:,} entries." if len(rows) < total else ".")
    box = f'<input type="search" placeholder="Filter by name" aria-label="Filter by name" aria-controls="{key}">'
    body = table(heads, rows, "cells", key, tall=len(rows) > 20)
    return f'<h3 class="over">{title}</h3><p class="caption">{note}</p>{box if len(rows) > 20 else ""}{body}'


def _interval(low: float, middle: float, high: float, first: float, last: float) -> str:
    at = lambda v: 4 + 172 * (v - first) / ((last - first) or 1.0)
    if not np.isfinite([low, middle, high]).all():
        return ""
    return (f'<svg class="interval" viewBox="0 0 180 18" role="img" aria-label="{low:.4g} to {high:.4g}">'
            '<line class="axis" x1="0" x2="180" y1="9" y2="9"/>'
            f'<line class="thin" x1="{at(low):.1f}" x2="{at(high):.1f}" y1="9" y2="9"/>'
            f'<circle class="dot" cx="{at(middle):.1f}" cy="9" r="3.5"/></svg>')  # fmt: skip
