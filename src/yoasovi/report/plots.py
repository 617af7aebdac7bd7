"""A fit drawn by matplotlib: the same charts that the HTML report has."""

from __future__ import annotations

import math
from typing import Any

from yoasovi.errors import check
from yoasovi.extras import need
from yoasovi.report import checks, content, posterior
from yoasovi.report.content import Panel, Series

KINDS = ("all", "elbo", "steps", "forest", "marginals", "pairs", "weights", "predictive", "clusters")
_COLOURS = ("#2560a8", "#c2500f", "#1f8052", "#b3243f", "#7a5ba8", "#0f7c8a", "#8a6d12", "#3c4250")
_MARKERS = {"circle": "o", "square": "s", "triangle": "^", "cross": "x", "star": "D"}


def plot(fit: Any, kind: str = "all", columns: int = 3) -> Any:
    """Draw the charts of one kind, or of all kinds that the fit has, in one matplotlib figure.

    Parameters
    ----------
    kind
        "elbo" (against evaluations and seconds), "steps" (step size and temperature), "forest" (intervals of all
        parameters, those of comparable scale on one axis), "marginals", "pairs" (of the parameters that importance
        correction moves most), "weights" (their tail, with k-hat), "predictive" (calibration of binary outcomes),
        "clusters" (of a mixture), or "all".
    """
    check(kind in KINDS, "kind", "plot", f"one of {', '.join(KINDS)}", kind)
    with content.uncounted([fit]):
        charts = _charts(fit, kind)
    if not charts:
        raise ValueError(f"`plot` has nothing to show for kind {kind!r}: {fit.model.name} has no such chart.")
    figures = need("matplotlib.figure", "report")
    need("matplotlib.backends.backend_agg", "report")
    small, forests = [c for c in charts if not c.rows], [c for c in charts if c.rows]
    columns = max(1, min(columns, len(small)))
    wide, high = (6.4, 4.4) if columns == 1 else (5.0, 3.8)
    # Forests have a line of the grid each, as high as their rows need.
    heights = [high] * math.ceil(len(small) / columns) + [1.4 + 0.24 * len(c.rows) for c in forests]
    figure = figures.Figure(figsize=(max(6.4, wide * columns), sum(heights)), layout="constrained")
    grid = figure.add_gridspec(len(heights), columns, height_ratios=heights)
    for i, chart in enumerate(small):
        draw(figure.add_subplot(grid[i // columns, i % columns]), chart)
    for i, chart in enumerate(reversed(forests)):
        draw(figure.add_subplot(grid[len(heights) - 1 - i, :]), chart)
    if kind == "all":
        figure.suptitle(_plain(f"{fit.model.name}: {fit.diagnose().grade} fit"))
    return figure


def _charts(fit: Any, kind: str) -> list[Panel]:
    wanted = lambda *names: kind in ("all", *names)
    charts: list[Panel | None] = []
    if wanted("elbo"):
        charts += content.elbo_charts([fit], [fit.method.name])
    if wanted("steps"):
        charts += content.step_charts(fit)
    if wanted("weights"):
        charts.append(checks.weight_chart(fit))
    if wanted("predictive"):
        charts += checks.predictive_charts(fit)
    if wanted("clusters"):
        charts.append(checks.cluster_chart(fit))
    if wanted("forest", "marginals", "pairs"):
        found = posterior.draws(fit)
        charts += posterior.forest_charts(found) if wanted("forest") else []
        charts += posterior.marginal_charts([found], [fit.method.name]) if wanted("marginals") else []
        charts += posterior.pair_charts(found) if wanted("pairs") else []
    return [c for c in charts if c is not None]


def draw(ax: Any, chart: Panel) -> None:
    """Draw one chart into matplotlib axes."""
    for series in chart.series:
        _draw_series(ax, series)
    ax.set(xlabel=_plain(chart.x_label), ylabel=_plain(chart.y_label))
    ax.set_title(_plain(chart.title), fontsize=10, loc="left")
    ax.tick_params(labelsize=8)
    ax.spines[["top", "right"]].set_visible(False)
    if chart.view is not None:
        ax.set_ylim(*chart.view)
    if chart.equal:
        ax.set_aspect("equal", adjustable="datalim")
    for which, log in (("x", chart.x_log), ("y", chart.y_log)):
        _log_axis(ax, which) if log else ax.locator_params(axis=which, nbins=6)
    if chart.rows:
        ax.set_yticks(range(len(chart.rows)), [_plain(r.label) for r in reversed(chart.rows)])
        for text, row in zip(ax.get_yticklabels(), reversed(chart.rows), strict=True):
            text.set_fontweight("bold" if row.heading else "normal")
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="x", alpha=0.3)
    if len(chart.series) > 1:
        # Below the axis, where it hides nothing.
        low = -0.17 * 3.8 / max(3.8, 0.24 * len(chart.rows))
        ax.legend(fontsize=8, frameon=False, loc="upper center", bbox_to_anchor=(0.5, low), ncols=3)


def _log_axis(ax: Any, which: str) -> None:
    """Make an axis logarithmic, with ticks at 1, 2 and 5 times powers of ten."""
    getattr(ax, f"set_{which}scale")("log")
    ends = content.log_limits(*getattr(ax, f"get_{which}lim")())
    getattr(ax, f"set_{which}lim")(*ends)
    ticks = content.log_ticks(*ends)
    getattr(ax, f"set_{which}ticks")(ticks, [f"{t:g}" for t in ticks])
    getattr(ax, f"{which}axis").minorticks_off()


def _plain(text: str) -> str:
    """Names come from users, and are not mathematics; long ones are cut, as a figure does not wrap them."""
    text = text if len(text) <= 60 else text[:59] + "…"
    return text.replace("$", r"\$")


def _draw_series(ax: Any, series: Series) -> None:
    look: dict[str, Any] = dict(color=_COLOURS[series.colour % 8], label=_plain(series.name))
    if series.kind == "band":
        ax.fill_between(series.x, series.low, series.y, alpha=0.28, linewidth=0, **look)
    elif series.kind == "bars":
        ax.vlines(series.x, series.low, series.y, linewidth=5, alpha=0.4, **look)
    elif series.kind == "spans":
        ax.hlines(series.y, series.low, series.x, linewidth=1.4 if series.faint else 4.5, **look)
    elif series.kind == "line":
        ax.plot(series.x, series.y, linewidth=1.4, **look)
    else:
        size = 6 if series.x.size > 150 else 14
        ax.scatter(
            series.x, series.y, s=size, marker=_MARKERS[series.shape], alpha=0.55 if series.faint else 0.9, zorder=3, **look
        )
