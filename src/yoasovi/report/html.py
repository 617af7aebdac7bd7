"""One self-contained HTML file about one fit, or about several side by side.

Charts are drawn by 16 kB of JavaScript beside their numbers (plotly's bundle alone would be 4.8 MB of a 6 MB budget). All
that comes from a user, model and parameter names above all, passes through `escape` or is set as text by the script.
"""

from __future__ import annotations

import json
import platform
import sys
import warnings
from collections.abc import Iterable
from datetime import UTC, datetime
from html import escape
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from yoasovi.errors import check
from yoasovi.report import content
from yoasovi.report.content import Panel, ShownDraws

_ROWS = 1000  # of the table of parameters
_WORDS = {"good": "Good", "usable": "Usable", "poor": "Poor", "failed": "Failed"}
_ICONS = {
    "good": "M2 8.5l4 4 8-9", "usable": "M2 9.5c2-5 4-5 6-1.5s4 3.5 6-1.5", "poor": "M8 2v7M8 12.5v1",
    "failed": "M3 3l10 10M13 3L3 13",
}  # fmt: skip


def write(
    fits: list[Any], path: Any, title: str | None = None, rerun: str | None = None, names: list[str] | None = None
) -> Path:
    """Write the report of one fit, or of several compared; give the path of the file."""
    check(len(fits) > 0, "fits", "report", "at least one fit", fits)
    path = Path(path)
    check(path.suffix in (".html", ".htm"), "path", "report", "a file name that ends in .html", str(path))
    with content.uncounted(fits):
        page = render(fits, title, rerun or _code(fits, path), names or _names(fits))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


def render(fits: list[Any], title: str | None, rerun: str, names: list[str]) -> str:
    """Give the page as a string."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the verdict is the first thing on the page
        verdicts = [fit.diagnose() for fit in fits]
        with content.uncounted(fits):
            founds = [content.draws(fit) for fit in fits]
    top = _top(fits, verdicts, names)  # before charts are drawn: some of them evaluate log p
    page, alone = _Page(), len(fits) == 1
    if alone:
        _one(page, fits[0], verdicts[0], founds[0])
    else:
        _several(page, fits, verdicts, founds, names)
    page.section("rerun", "Run it again", "The same seed gives the same numbers on the same machine and versions.")
    page.add(f'<pre id="code">{escape(rerun)}</pre><button type="button" class="copy" data-for="code">Copy</button>')
    page.section("versions", "Versions")
    page.add(_table([("", ""), ("", "")], [(escape(k), escape(v)) for k, v in _versions()]))
    heading = title or fits[0].model.name
    kind = "Variational fit" if alone else f"{len(fits)} variational fits compared"
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    first = fits[0]
    about = f"{first.method.name}, {first.family.name}, seed {first.seed}" if alone else ", ".join(names)
    head = (f'<header class="top"><p class="eyebrow">{kind} · yoasovi</p><h1>{escape(heading)}</h1>'
            f'<p class="lead">{escape(about)} · {when}</p>{top}</header>')  # fmt: skip
    return _PAGE.format(
        title=escape(f"{heading}: {_WORDS[verdicts[0].grade].lower()} fit" if alone else heading), css=_asset("report.css"),
        head=head, body="".join(page.parts), charts=_json(page.charts), js=_asset("report.js"),
    )  # fmt: skip


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{css}</style>
</head>
<body>
<a class="skip" href="#content">Skip to the evidence</a>
{head}
<main id="content">{body}</main>
<footer>Drag over a chart to zoom, double-click to go back; with the keyboard, arrows walk along a series and 0 resets.
Colours never carry meaning alone.
<noscript>Charts need JavaScript; every number that matters is also in the tables.</noscript></footer>
<script type="application/json" id="charts">{charts}</script>
<script>{js}</script>
</body>
</html>
"""


class _Page:
    """Collects sections and the numbers of their charts."""

    def __init__(self):
        self.parts: list[str] = []
        self.charts: dict[str, dict] = {}

    def add(self, text: str) -> None:
        self.parts.append(text)

    def section(self, key: str, title: str, lead: str = "") -> None:
        self.add(f'<h2 id="{key}">{escape(title)}</h2>' + (f'<p class="lead">{escape(lead)}</p>' if lead else ""))

    def figure(self, chart: Panel, prefix: str = "", size: str = "large", hidden: bool = False, level: int = 3) -> str:
        key = f"{prefix}{chart.key}"
        self.charts[key] = _spec(key, chart)
        names = ", ".join(s.name for s in chart.series)
        alt = f"Panel: {chart.title}. {chart.y_label} against {chart.x_label}, showing {names}. {chart.caption}"
        kind = f'class="{"wide" if size == "large" else ""}"{" data-equal" * chart.equal}{" hidden" if hidden else ""}'
        return (
            f'<figure id="{escape(key)}" data-size="{size}" {kind}>'
            f"<h{level}>{escape(chart.title)}</h{level}>"
            f'<div class="chart" role="img" tabindex="0" aria-label="{escape(alt)}"></div>'
            + (f'<figcaption class="caption">{escape(chart.caption)}</figcaption>' if chart.caption else "")
            + "</figure>"
        )

    def tabs(self, charts: list[Panel], labels: list[str], prefix: str = "") -> None:
        """Put several charts in one place."""
        if not charts:
            return
        if len(charts) > 1:
            self.add('<div class="tabs" role="tablist">' + "".join(
                f'<button type="button" role="tab" aria-selected="{"true" if i == 0 else "false"}" '
                f'aria-controls="{escape(prefix + c.key)}">{escape(label)}</button>'
                for i, (c, label) in enumerate(zip(charts, labels, strict=True))) + "</div>")  # fmt: skip
        self.add("".join(self.figure(c, prefix, hidden=i > 0) for i, c in enumerate(charts)))

    def grid(self, charts: Iterable[Panel], prefix: str = "", size: str = "small") -> None:
        self.add(
            f'<div class="grid{" two" if size == "medium" else ""}">'
            + "".join(self.figure(c, prefix, size) for c in charts)
            + "</div>"
        )


# ---- sections --------------------------------------------------------------------------------------------


def _one(page: _Page, fit: Any, verdict: Any, found: ShownDraws, prefix: str = "") -> None:
    page.section(
        f"{prefix}evidence", "Evidence", "What was looked at, and what it says. A grade is that of the worst finding."
    )
    page.add(_evidence(verdict))
    page.section(f"{prefix}run", "The run", str(fit.stop_reason))
    page.tabs(content.elbo_charts([fit], [fit.method.name]), ["by evaluations", "by seconds"], prefix)
    more = content.step_charts(fit)
    if more:
        page.grid(more, prefix, "medium")
    page.section(f"{prefix}posterior", "The posterior", _lead(found))
    page.grid(content.marginal_charts([found], [fit.method.name]), prefix)
    page.add(_parameters(found, f"{prefix}parameters"))
    pairs = content.pair_charts(found)
    if pairs:
        page.section(f"{prefix}pairs", "Pairs", "The parameters that importance correction moves most, or the first ones.")
        page.grid(pairs, prefix)
    checks = [c for c in (content.weight_chart(fit), content.predictive_chart(fit), content.cluster_chart(fit)) if c]
    if checks:
        page.section(f"{prefix}checks", "Checks")
        page.grid(checks, prefix, "medium")
    _priors(page, fit.model, prefix)
    page.section(f"{prefix}settings", "Settings")
    page.add(_table([("setting", ""), ("value", "")], [(escape(k), escape(v)) for k, v in _settings(fit)]))


def _priors(page: _Page, model: Any, prefix: str) -> None:
    """Tell the priors, and what was made of the data."""
    notes = [] if model.labels is None else model.labels.notes
    if model.priors:
        page.section(f"{prefix}priors", "Priors")
        page.add(_table([("parameter", ""), ("prior", "")], [(escape(k), escape(v)) for k, v in model.priors.items()]))
    if notes:
        page.section(f"{prefix}data", "Data", " ".join(notes))


def _lead(found: ShownDraws) -> str:
    few = min(len(found.names), 12)
    which = (
        "Those that correction moves most of" if found.corrected is not None and len(found.names) > few else "The first of"
    )
    which = "All" if len(found.names) <= few else which
    text = f"{which} {len(found.names):,} parameters, on their own scale."
    return text + (" Shaded: importance-corrected draws." if found.corrected is not None else "")


def _several(page: _Page, fits: list[Any], verdicts: list[Any], founds: list[ShownDraws], names: list[str]) -> None:
    page.section(
        "figures", "Side by side", "Reported: the ELBO that a run last accepted. Compare by fresh draws; higher is better."
    )
    page.add(_comparison(fits, verdicts, names))
    page.section("runs", "The runs")
    page.tabs(content.elbo_charts(fits, names), ["by evaluations", "by seconds"])
    page.section("posterior", "The posterior", "The same parameters in every approximation; draws of q, not corrected.")
    page.grid(content.marginal_charts(founds, names))
    page.section("each", "Each fit")
    for i, (fit, verdict, found, name) in enumerate(zip(fits, verdicts, founds, names, strict=True)):
        page.add(f"<details><summary>{escape(name)}: {escape(verdict.grade)}</summary>")
        _one(page, fit, verdict, found, f"fit{i}-")
        page.add("</details>")


def _top(fits: list[Any], verdicts: list[Any], names: list[str]) -> str:
    if len(fits) > 1:
        return '<div class="cards">' + "".join(
            _banner(v, f"<h2>{escape(n)}</h2>") for v, n in zip(verdicts, names, strict=True)) + "</div>"  # fmt: skip
    fit, khat = fits[0], verdicts[0].evidence.get("khat")
    cells = [
        ("ELBO on fresh draws", f"{fit.elbo.value:,.2f} <small>± {fit.elbo.se:.2f}</small>"),
        ("Pareto k-hat", f"{khat.value:.2f}" if khat is not None and np.isfinite(khat.value) else "–"),
        ("parameters", f"{fit.model.density.dim:,}"),
        ("steps", f"{fit.num_steps:,}"),
        ("gradients · values", f"{fit.num_gradients:,} <small>· {fit.num_values:,}</small>"),
        ("seconds", f"{fit.seconds.run:.2f} <small>+ {fit.seconds.compile:.1f} compiling</small>"),
    ]
    figures = "".join(f"<div><dt>{k}</dt><dd>{v}</dd></div>" for k, v in cells)
    return _banner(verdicts[0]) + f'<dl class="figures">{figures}</dl>'


def _banner(verdict: Any, above: str = "") -> str:
    return (f'<section class="verdict {verdict.grade}" aria-label="Verdict">{above}<p class="grade">{_icon(verdict.grade)}'
            f'{_WORDS[verdict.grade]}</p><p class="advice">{escape(verdict.advice)}</p></section>')  # fmt: skip


def _icon(grade: str) -> str:
    return (f'<svg viewBox="0 0 16 16" aria-hidden="true"><path d="{_ICONS[grade]}" fill="none" stroke="currentColor" '
            'stroke-width="2.4" stroke-linecap="round" stroke-linejoin="round"/></svg>')  # fmt: skip


def _mark(grade: str) -> str:
    return f'<span class="mark {grade}">{_icon(grade)}{_WORDS[grade].lower()}</span>'


def _evidence(verdict: Any) -> str:
    found = sorted(verdict.evidence.values(), key=lambda f: (-_rank(f.grade), f.name in _NOTED))
    rows = [(_NOTE if f.name in _NOTED else _mark(f.grade), escape(f.sentence)) for f in found]
    note = f"Looking cost {verdict.num_gradients:,} gradients and {verdict.num_values:,} values of log p on top of the fit."
    return _table([("finding", ""), ("what it says", "")], rows, "stack") + f'<p class="caption">{note}</p>'


_NOTED = ("gradient_noise", "gap")  # told, but without a grade of their own
_NOTE = '<span class="mark noted">noted</span>'


def _rank(grade: str) -> int:
    return list(_WORDS).index(grade)


def _comparison(fits: list[Any], verdicts: list[Any], names: list[str]) -> str:
    heads = [
        ("method", ""),
        ("verdict", ""),
        ("reported ELBO", "n"),
        ("ELBO on fresh draws", "n"),
        ("k-hat", "n"),
        ("steps", "n"),
        ("gradients", "n"),
        ("values", "n"),
        ("compile s", "n"),
        ("run s", "n"),
    ]
    rows = []
    for fit, verdict, name in zip(fits, verdicts, names, strict=True):
        khat = verdict.evidence.get("khat")
        rows.append((
            escape(name), _mark(verdict.grade), f"{fit.reported_elbo:,.2f}", f"{fit.elbo.value:,.2f} ± {fit.elbo.se:.2f}",
            f"{khat.value:.2f}" if khat is not None else "–", f"{fit.num_steps:,}", f"{fit.num_gradients:,}",
            f"{fit.num_values:,}", f"{fit.seconds.compile:.1f}", f"{fit.seconds.run:.2f}",
        ))  # fmt: skip
    return _table(heads, rows)


def _parameters(found: ShownDraws, key: str) -> str:
    """Table of all parameters; intervals of one site share their axis."""
    best = found.own if found.corrected is None else found.corrected
    low, middle, high = np.quantile(best, [0.05, 0.5, 0.95], axis=0)
    mean, sd = best.mean(0), best.std(0)
    error = sd / np.sqrt(len(best))
    ends = {s: (low[w].min(), high[w].max()) for s in dict.fromkeys(found.site) if (w := np.array(found.site) == s).any()}
    rows = []
    for j, name in enumerate(found.names[:_ROWS]):
        numbers = [f"{v:.4g}" for v in (mean[j], sd[j], low[j], middle[j], high[j], error[j])]
        rows.append((escape(name), *numbers, _interval(low[j], middle[j], high[j], *ends[found.site[j]])))
    heads = [("parameter", ""), *((h, "n") for h in ("mean", "sd", "5%", "50%", "95%", "MC error")), ("90% interval", "")]
    kind = "importance-corrected draws" if found.corrected is not None else "draws from q"
    note = f"{len(best):,} {kind}" + (
        f"; the first {_ROWS:,} of {len(found.names):,} parameters." if len(found.names) > _ROWS else "."
    )
    box = f'<input type="search" placeholder="Filter parameters" aria-label="Filter parameters" aria-controls="{key}">'
    table = _table(heads, rows, key=key, tall=len(rows) > 20)
    return (
        f'<h3 style="margin-top:26px">All parameters</h3><p class="caption">{note}</p>{box if len(rows) > 20 else ""}{table}'
    )


def _interval(low: float, middle: float, high: float, first: float, last: float) -> str:
    at = lambda v: 4 + 172 * (v - first) / ((last - first) or 1.0)
    if not np.isfinite([low, middle, high]).all():
        return ""
    return (f'<svg class="interval" viewBox="0 0 180 18" role="img" aria-label="{low:.4g} to {high:.4g}">'
            '<line class="axis" x1="0" x2="180" y1="9" y2="9"/>'
            f'<line class="thin" x1="{at(low):.1f}" x2="{at(high):.1f}" y1="9" y2="9"/>'
            f'<circle class="dot" cx="{at(middle):.1f}" cy="9" r="3.5"/></svg>')  # fmt: skip


def _table(heads: list[tuple[str, str]], rows: list[tuple], kind: str = "", key: str = "", tall: bool = False) -> str:
    """Build a table; cells are HTML already. The first cell of a row is its heading."""
    top = "" if not any(h for h, _ in heads) else "<thead><tr>" + "".join(
        f'<th scope="col" class="{c}">{escape(h)}</th>' for h, c in heads) + "</tr></thead>"  # fmt: skip
    body = "".join(
        f'<tr><th scope="row">{row[0]}</th>'
        + "".join(f'<td class="{c}">{cell}</td>' for cell, (_, c) in zip(row[1:], heads[1:], strict=True)) + "</tr>"
        for row in rows
    )  # fmt: skip
    name = f' id="{escape(key)}"' if key else ""
    return (
        f'<div class="scroll{" tall" if tall else ""}"><table class="{kind}"{name}>{top}<tbody>{body}</tbody></table></div>'
    )


# ---- facts -----------------------------------------------------------------------------------------------


def _settings(fit: Any) -> list[tuple[str, str]]:
    parts = {k: repr(getattr(fit.method, k)) for k in ("draws", "gradient", "acceptance", "optimizer", "stopping")
             if hasattr(fit.method, k)} or {"parts": repr(fit.method)}  # a loaded fit knows its method as text
    restarts = f"{len(fit.restart_elbos)}, ELBOs {', '.join(f'{e.value:,.2f}' for e in fit.restart_elbos)}"
    return [
        ("method", fit.method.name), ("family", f"{fit.family.name} ({fit.family_reason})"), ("seed", str(fit.seed)),
        ("restarts", restarts), ("stopped", str(fit.stop_reason)), *parts.items(),
        ("seconds", _waited(fit)),
        ("observations", f"{fit.model.num_observations:,}"), ("draws that were not finite", f"{fit.num_nonfinite:,}"),
    ]  # fmt: skip


def _waited(fit: Any) -> str:
    """Say what was waited for, by stage, until the report was drawn."""
    stages = fit.seconds.stages
    each = ", ".join(f"{name} {seconds:.2f}" for name, seconds in stages.items())
    said = f"{sum(stages.values()):.2f} in all: {each}; " if stages else ""
    return f"{said}{fit.seconds.compile:.2f} of the fit went into compiling"


def _versions() -> list[tuple[str, str]]:
    import jax

    out = [("python", sys.version.split()[0])]
    for name in ("yoasovi", "jax", "jaxlib", "numpyro", "optax", "numpy", "scipy", "arviz-stats"):
        try:
            out.append((name, version(name)))
        except PackageNotFoundError:
            out.append((name, "not installed"))
    return [*out, ("machine", f"{platform.system()} {platform.machine()}, JAX on {jax.default_backend()}")]


def _code(fits: list[Any], path: Path) -> str:
    lines = ["import yoasovi as yo", "", f"model = ...  # {' '.join(fits[0].model.name.split())}"]
    for fit in fits:
        restarts = f", restarts={len(fit.restart_elbos)}" if len(fit.restart_elbos) > 1 else ""
        lines.append(f"fit = yo.fit(model, {fit.method.name!r}, family={fit.family.name!r}, seed={fit.seed}{restarts})")
    return "\n".join([*lines, f"fit.report({path.name!r})"])


def _names(fits: list[Any]) -> list[str]:
    """Name fits by their method; by family and seed too where methods are the same."""
    names = [f.method.name for f in fits]
    if len(set(names)) < len(names):
        names = [f"{f.method.name}, {f.family.name}" for f in fits]
    return names if len(set(names)) == len(names) else [f"{n}, {i + 1}" for i, n in enumerate(names)]


# ---- embedding -------------------------------------------------------------------------------------------


def _asset(name: str) -> str:
    return files("yoasovi.report").joinpath(name).read_text("utf-8")


def _spec(key: str, chart: Panel) -> dict:
    series = [
        {"name": s.name, "kind": s.kind, "x": _numbers(s.x), "y": _numbers(s.y),
         "low": None if s.low is None else _numbers(s.low), "colour": s.colour, "shape": s.shape, "faint": s.faint}
        for s in chart.series
    ]  # fmt: skip
    return {
        "id": key, "x_label": chart.x_label, "y_label": chart.y_label, "x_log": chart.x_log, "y_log": chart.y_log,
        "view": None if chart.view is None else _numbers(np.array(chart.view)), "equal": chart.equal, "series": series,
    }  # fmt: skip


def _numbers(x: np.ndarray) -> list[float | None]:
    """Six digits are more than a screen shows; what is not finite becomes null."""
    return [float(f"{v:.6g}") if np.isfinite(v) else None for v in np.asarray(x, float)]


def _json(value: Any) -> str:
    """Write JSON that may stand inside a script element: nothing in it can end the element or begin a comment."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for bad in "<>&\u2028\u2029":
        text = text.replace(bad, f"\\u{ord(bad):04x}")
    return text
