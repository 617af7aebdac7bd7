"""One self-contained HTML file about one fit, or about several side by side.

Charts are drawn by 16 kB of JavaScript beside their numbers (plotly's bundle alone would be 4.8 MB of a 6 MB budget). All
that comes from a user, model and parameter names above all, passes through `escape` or is set as text by the script.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from yoasovi.errors import check
from yoasovi.report import checks, content, facts, posterior, tables
from yoasovi.report.content import Panel
from yoasovi.report.facts import Again
from yoasovi.report.posterior import ShownDraws
from yoasovi.report.tables import WORDS, icon


def write(
    fits: list[Any], path: Any, title: str | None = None, rerun: str | None = None, names: list[str] | None = None
) -> Path:
    """Write the report of one fit, or of several compared; give the path of the file.

    `rerun` is a command that does the same again; without it the report shows the calls of `fit` and what they need.
    """
    check(len(fits) > 0, "fits", "report", "at least one fit", fits)
    path = Path(path)
    check(path.suffix in (".html", ".htm"), "path", "report", "a file name that ends in .html", str(path))
    check(path.parent.is_dir(), "path", "report", "in a folder that exists", str(path))
    with content.uncounted(fits):
        again = facts.again(fits, path) if rerun is None else Again(rerun, [])
        page = render(fits, title, again, names or _names(fits))
    path.write_text(page, encoding="utf-8")
    return path


def render(fits: list[Any], title: str | None, again: Again, names: list[str]) -> str:
    """Give the page as a string."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the verdict is the first thing on the page
        verdicts = [fit.diagnose() for fit in fits]
        with content.uncounted(fits):
            founds = [posterior.draws(fit) for fit in fits]
    top = _top(fits, verdicts, names)  # before charts are drawn: some of them evaluate log p
    page, alone = _Page(), len(fits) == 1
    if alone:
        _one(page, fits[0], verdicts[0], founds[0])
    else:
        _several(page, fits, verdicts, founds, names)
    page.section("rerun", "Run it again", "The same seed gives the same numbers on the same machine and versions.")
    page.add(_again(again))
    page.section("versions", "Versions")
    page.add(tables.plain(("", ""), facts.versions()))
    heading = title or fits[0].model.name
    kind = "Variational fit" if alone else f"{len(fits)} variational fits compared"
    when = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    first = fits[0]
    about = f"{first.method.name}, {first.family.name}, seed {first.seed}" if alone else ", ".join(names)
    head = (f'<header class="top"><p class="eyebrow">{kind} · yoasovi</p><h1>{escape(heading)}</h1>'
            f'<p class="lead">{escape(about)} · {when}</p>{top}</header>')  # fmt: skip
    return _PAGE.format(
        title=escape(f"{heading}: {WORDS[verdicts[0].grade].lower()} fit" if alone else heading), css=_asset("report.css"),
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
        alt = f"Chart: {chart.title}. {chart.y_label or 'Rows'} against {chart.x_label}, showing {names}. {chart.caption}"
        kind = f'class="{"wide" if size == "large" else ""}"{" data-equal" * chart.equal}{" hidden" if hidden else ""}'
        height = f' style="height:{60 + 22 * len(chart.rows)}px"' if chart.rows else ""
        return (
            f'<figure id="{escape(key)}" data-size="{size}" {kind}>'
            f"<h{level}>{escape(chart.title)}</h{level}>"
            f'<div class="chart" role="img" tabindex="0" aria-label="{escape(alt)}"{height}></div>'
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
    page.section(f"{prefix}evidence", "Evidence", "What was looked at, and what it says.")
    page.add(tables.evidence(verdict))
    page.section(f"{prefix}run", "The run", str(fit.stop_reason))
    page.tabs(content.elbo_charts([fit], [fit.method.name]), ["by evaluations", "by seconds"], prefix)
    more = content.step_charts(fit)
    if more:
        page.grid(more, prefix, "medium")
    notes = [] if fit.model.labels is None else fit.model.labels.notes
    said = f"{fit.model.num_observations:,} terms of the likelihood, and these priors."
    page.section(f"{prefix}model", "The model", " ".join([said, *notes]))
    page.add(tables.laws(facts.priors(fit.model)))
    page.section(f"{prefix}posterior", "The posterior", _lead(found))
    page.add("".join(page.figure(c, prefix) for c in posterior.forest_charts(found)))
    page.grid(posterior.marginal_charts([found], [fit.method.name]), prefix)
    page.add(tables.parameters(found, "All parameters", f"{prefix}parameters"))
    if found.derived is not None:
        page.add(tables.parameters(found.derived, "Derived quantities", f"{prefix}derived"))
    pairs = posterior.pair_charts(found)
    if pairs:
        page.section(f"{prefix}pairs", "Pairs", "The parameters that importance correction moves most, or the first ones.")
        page.grid(pairs, prefix)
    page.section(f"{prefix}checks", "Checks")
    charts = [checks.weight_chart(fit), *checks.predictive_charts(fit), checks.cluster_chart(fit)]
    page.grid([c for c in charts if c is not None], prefix, "medium")
    page.section(f"{prefix}loo", "Leave-one-out cross-validation", "How well each observation is foretold by all others.")
    page.add(tables.plain(("", ""), checks.loo_in_words(fit, verdict.grade)))
    page.section(f"{prefix}settings", "Settings")
    page.add(tables.plain(("setting", "value"), facts.settings(fit)))


def _lead(found: ShownDraws) -> str:
    few = min(len(found.names), 12)
    which = (
        "Those that correction moves most of" if found.corrected is not None and len(found.names) > few else "The first of"
    )
    which = "All" if len(found.names) <= few else which
    text = f"{which} {len(found.names):,} parameters, on their own scale."
    return text + (f" Shaded: {found.kind}." if found.corrected is not None else "")


def _several(page: _Page, fits: list[Any], verdicts: list[Any], founds: list[ShownDraws], names: list[str]) -> None:
    page.section(
        "figures", "Side by side", "Reported: the ELBO that a run last accepted. Compare by fresh draws; higher is better."
    )
    page.add(tables.comparison(fits, verdicts, names))
    page.section("runs", "The runs")
    page.tabs(content.elbo_charts(fits, names), ["by evaluations", "by seconds"])
    page.section("posterior", "The posterior", "The same parameters in every approximation; draws of q, not corrected.")
    page.grid(posterior.marginal_charts(founds, names))
    page.section("each", "Each fit")
    for i, (fit, verdict, found, name) in enumerate(zip(fits, verdicts, founds, names, strict=True)):
        page.add(f"<details><summary>{escape(name)}: {escape(verdict.grade)}</summary>")
        _one(page, fit, verdict, found, f"fit{i}-")
        page.add("</details>")


def _top(fits: list[Any], verdicts: list[Any], names: list[str]) -> str:
    if len(fits) > 1:
        each = (_banner(v, f, f"<h2>{escape(n)}</h2>") for v, f, n in zip(verdicts, fits, names, strict=True))
        return f'<div class="cards">{"".join(each)}</div>'
    fit, khat = fits[0], verdicts[0].evidence.get("khat")
    cells = [
        ("ELBO on fresh draws", f"{fit.elbo.value:,.2f} <small>± {fit.elbo.se:.2f}</small>"),
        ("Pareto k-hat", f"{khat.value:.2f}" if khat is not None and np.isfinite(khat.value) else "–"),
        *(
            [("R-hat · ESS of NUTS", f"{fit.refined.worst_rhat:.3f} <small>· {fit.refined.least_ess:,.0f}</small>")]
            if fit.refined is not None
            else []
        ),
        ("parameters", f"{fit.model.density.dim:,}"),
        ("steps", f"{fit.num_steps:,}"),
        ("gradients · values", f"{fit.num_gradients:,} <small>· {fit.num_values:,}</small>"),
        ("seconds", f"{fit.seconds.run:.2f} <small>+ {fit.seconds.compile:.1f} compiling</small>"),
    ]
    figures = "".join(f"<div><dt>{k}</dt><dd>{v}</dd></div>" for k, v in cells)
    return _banner(verdicts[0], fit) + f'<dl class="figures">{figures}</dl>'


def _banner(verdict: Any, fit: Any, above: str = "") -> str:
    notes = "".join(f'<p class="mended">{escape(str(note))}</p>' for note in fit.mended)
    return (f'<section class="verdict {verdict.grade}" aria-label="Verdict">{above}<p class="grade">{icon(verdict.grade)}'
            f'{WORDS[verdict.grade]}</p><p class="advice">{escape(verdict.advice)}</p>{notes}</section>')  # fmt: skip


def _again(again: Again) -> str:
    code = f'<pre id="code">{escape(again.code)}</pre><button type="button" class="copy" data-for="code">Copy</button>'
    if not again.needs:
        return code
    needs = "".join(f"<li><code>{escape(name)}</code>: {escape(words)}</li>" for name, words in again.needs)
    return f'<p>The lines below run once these are there:</p><ul class="needs">{needs}</ul>{code}'


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
        "rows": chart.rows,
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
