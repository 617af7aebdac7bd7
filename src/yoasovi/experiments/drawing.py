"""How figures look: two widths of a paper's column, letters of 8 points, colours that everybody can tell apart."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from yoasovi.experiments.files import write
from yoasovi.extras import need

COLUMN, PAGE = 3.4, 7.0  # inches
# Okabe and Ito's; lines differ in their dashes too, points in their markers.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_STYLE = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7,
    "legend.fontsize": 7, "legend.frameon": False, "axes.spines.top": False, "axes.spines.right": False,
    "lines.linewidth": 1.3, "svg.fonttype": "path", "svg.hashsalt": "yoasovi",
}  # fmt: skip


def panels(rows: int, columns: int, width: float = PAGE, height: float = 2.5, **more: Any) -> tuple[Any, Any]:
    """Give a figure and its axes; it is drawn without a window."""
    matplotlib = need("matplotlib", "report")
    figures = need("matplotlib.figure", "report")
    matplotlib.rcParams.update(_STYLE)
    figure = figures.Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(rows, columns, **more)


def legend_below(axes: Any, columns: int) -> None:
    """Put the legend under the axes, where it hides nothing."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=columns, handlelength=1.8, columnspacing=1.0)


def save(figure: Any, path: Path) -> None:
    """Write a figure as PNG and SVG, the same bytes every time."""
    for kind, more in (("png", {"dpi": 200}), ("svg", {"metadata": {"Date": None}})):
        image = io.BytesIO()
        figure.savefig(image, format=kind, **more)
        write(path.with_suffix(f".{kind}"), image.getvalue())
