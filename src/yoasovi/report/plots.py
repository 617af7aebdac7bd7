"""A fit drawn by matplotlib: the same charts that the HTML report has."""

from __future__ import annotations

import math
from typing import Any

from yoasovi.errors import check
from yoasovi.extras import need
from yoasovi.report import content
from yoasovi.report.content import Panel, Series

KINDS = ("all", "elbo", "steps", "marginals", "pairs", "weights", "predictive", "clusters")
_COLOURS = ("#2560a8", "#c2500f", "#1f8052", "#b3243f", "#7a5ba8", "#0f7c8a", "#8a6d12", "#3c4250")
_MARKERS = {"circle": "o", "square": "s", "triangle": "^", "cross": "x", "star": "D"}


def plot(fit: Any, kind: str = "all", columns: int = 3) -> Any:
    """Draw the charts of one kind, or of all kinds that the fit has, in one matplotlib figure.

    Parameters
    ----------
    kind
        "elbo" (against evaluations and seconds), "steps" (step size and temperature), "marginals", "pairs" (of the
        parameters that importance correction moves most), "weights" (their tail, with k-hat), "predictive", "clusters"
        (of a mixture), or "all".
    """
    check(kind in KINDS, "kind", "plot", f"one of {', '.join(KINDS)}", kind)
    with content.uncounted([fit]):
        charts = _charts(fit, kind)
    if not charts:
        raise ValueError(f"`plot` has nothing to show for kind {kind!r}: {fit.model.name} has no such chart.")
    figures = need("matplotlib.figure", "report")
    need("matplotlib.backends.backend_agg", "report")
    rows, columns = math.ceil(len(charts) / columns), min(columns, len(charts))
    figure = figures.Figure(figsize=(4.2 * columns, 3.2 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for ax, chart in zip(axes, charts, strict=False):
        draw(ax, chart)
    for ax in axes[len(charts) :]:
        ax.remove()
    if kind == "all":
        figure.suptitle(f"{fit.model.name}: {fit.diagnose().grade} fit".replace("$", r"\$"))
    return figure


def _charts(fit: Any, kind: str) -> list[Panel]:
    wanted = lambda *names: kind in ("all", *names)
    charts: list[Panel | None] = []
    if wanted("elbo"):
        charts += content.elbo_charts([fit], [fit.method.name])
    if wanted("steps"):
        charts += content.step_charts(fit)
    if wanted("weights"):
        charts.append(content.weight_chart(fit))
    if wanted("predictive"):
        charts.append(content.predictive_chart(fit))
    if wanted("clusters"):
        charts.append(content.cluster_chart(fit))
    if wanted("marginals", "pairs"):
        found = content.draws(fit)
        charts += content.marginal_charts([found], [fit.method.name]) if wanted("marginals") else []
        charts += content.pair_charts(found) if wanted("pairs") else []
    return [c for c in charts if c is not None]


def draw(ax: Any, chart: Panel) -> None:
    """Draw one chart into matplotlib axes."""
    for series in chart.series:
        _draw_series(ax, series)
    plain = lambda text: text.replace("$", r"\$")  # names come from users, and are not mathematics
    ax.set(xlabel=plain(chart.x_label), ylabel=plain(chart.y_label))
    ax.set_title(plain(chart.title), fontsize=10, loc="left")
    if chart.x_log:
        ax.set_xscale("log")
    if chart.y_log:
        ax.set_yscale("log")
    if chart.view is not None:
        ax.set_ylim(*chart.view)
    if chart.equal:
        ax.set_aspect("equal", adjustable="datalim")
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)
    if len(chart.series) > 1:
        ax.legend(fontsize=7, frameon=False)


def _draw_series(ax: Any, series: Series) -> None:
    look: dict[str, Any] = dict(color=_COLOURS[series.colour % 8], label=series.name.replace("$", r"\$"))
    if series.kind == "band":
        ax.fill_between(series.x, series.low, series.y, alpha=0.28, linewidth=0, **look)
    elif series.kind == "bars":
        ax.vlines(series.x, series.low, series.y, linewidth=5, alpha=0.4, **look)
    elif series.kind == "line":
        ax.plot(series.x, series.y, linewidth=1.4, **look)
    else:
        size = 6 if series.x.size > 150 else 14
        ax.scatter(series.x, series.y, s=size, marker=_MARKERS[series.shape], alpha=0.55 if series.faint else 0.9, **look)
