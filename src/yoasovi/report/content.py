"""Charts of a fit as plain numbers: what matplotlib draws and what an HTML report holds are the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

MOST = 1000  # points of one series, at most: a screen has no more
DOTS = 400
_FARTHEST = 1e6  # times 1 + |ELBO| from where a run ends: what lies further away is not drawn, no zoom would show both


@dataclass(frozen=True)
class Series:
    """One thing in a chart: line, points, band or bars from `low` to `y`, or spans from `low` to `x`; colour from 0."""

    name: str
    kind: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    colour: int = 0
    shape: str = "circle"
    faint: bool = False


class AxisWord(NamedTuple):
    """A word on the y axis; a heading has no point of its own."""

    label: str
    heading: bool = False


@dataclass(frozen=True)
class Panel:
    """A chart: `view` is the (low, high) of the y axis to begin with; None shows everything.

    With `rows` the y axis has words in place of numbers: row i, counted from above, is at y = len(rows) - 1 - i.
    """

    key: str
    title: str
    caption: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    x_log: bool = False
    y_log: bool = False
    view: tuple[float, float] | None = None
    equal: bool = False  # both axes in the same units
    rows: tuple[AxisWord, ...] = ()


@contextmanager
def uncounted(fits: list[Any]) -> Iterator[None]:
    """Put counts back afterwards: a picture of a fit is no part of what the fit cost."""
    spent = [fit.num_values for fit in fits]
    try:
        yield
    finally:
        for fit, values in zip(fits, spent, strict=True):
            fit.num_values = values


def thin(x: np.ndarray, y: np.ndarray, most: int = MOST) -> tuple[np.ndarray, np.ndarray]:
    """Keep the lowest and the highest point of each of most/2 stretches: a thinned line looks like the whole one."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    sound = np.isfinite(x) & np.isfinite(y)
    x, y = x[sound], y[sound]
    if x.size <= most:
        return x, y
    edges = np.linspace(0, x.size, most // 2 + 1).astype(int)
    keep: set[int] = {0, x.size - 1}
    for a, b in pairwise(edges):
        keep |= {a + int(np.argmin(y[a:b])), a + int(np.argmax(y[a:b]))}
    order = np.array(sorted(keep))
    return x[order], y[order]


def some(mask: np.ndarray, most: int = DOTS) -> np.ndarray:
    """Give at most `most` of the places where the mask holds, spread evenly."""
    where = np.flatnonzero(mask)
    return where if where.size <= most else where[np.linspace(0, where.size - 1, most).astype(int)]


# ---- the run ---------------------------------------------------------------------------------------------


def elbo_charts(fits: list[Any], names: list[str]) -> list[Panel]:
    """ELBO against evaluations and against seconds; of one fit with every turn's fate, of several as lines."""
    charts = []
    for key, column, label in (("elbo", "evaluations", "evaluations of log p"), ("elbo-seconds", "elapsed", "seconds")):
        series: list[Series] = []
        for i, (fit, name) in enumerate(zip(fits, names, strict=True)):
            if fit.trace:
                series += _elbo_series(fit, name, column, i, alone=len(fits) == 1)
        caption = (
            "Candidates as the run judged them; the band is the final q's ELBO on fresh draws, ± 2 standard errors."
            if len(fits) == 1
            else "Running mean of each run's own estimates; the diamond at its end is the ELBO on fresh draws."
        )
        if series:
            charts.append(
                Panel(key, f"ELBO against {label}", caption, label, "ELBO (nats)", tuple(series), view=_view(fits))
            )
    return charts


def _elbo_series(fit: Any, name: str, column: str, colour: int, alone: bool) -> list[Series]:
    trace = fit.trace
    x, y = trace[column], _drawable(trace["elbo"], fit.elbo.value)
    span = np.array([x[0], x[-1]], float)
    out = [Series("own estimate" if alone else name, "line", *thin(x, _smooth(y, trace["window"])), colour=colour)]
    if not alone:
        # The same name: one button of the legend shows or hides both.
        end = np.array([x[-1]], float), np.array([fit.elbo.value])
        return [*out, Series(name, "points", *end, colour=colour, shape="star")]
    low, high = (np.full(2, fit.elbo.value + s * 2.0 * fit.elbo.se) for s in (-1, 1))
    accepted, back = trace["accepted"].astype(bool), trace["rolled_back"].astype(bool)
    fates = (
        ("accepted", accepted, 2, "circle"),
        ("refused", ~accepted & ~back, 1, "square"),
        ("rolled back", back & ~accepted, 3, "cross"),
    )
    dots = [
        Series(n, "points", x[w], y[w], colour=c, shape=s) for n, m, c, s in fates if (w := some(m & np.isfinite(y))).size
    ]
    return [Series("fresh draws ± 2 se", "band", span, high, low, colour=4), *out, *dots]


def _drawable(y: np.ndarray, end: float) -> np.ndarray:
    """Leave out what no axis can show: a refused step may have an ELBO of -1e247, and browsers end a line there."""
    if not np.isfinite(end):
        end = float(np.median(y[np.isfinite(y)])) if np.isfinite(y).any() else 0.0
    with np.errstate(invalid="ignore"):
        return np.where(np.abs(y - end) < _FARTHEST * (1.0 + abs(end)), y, np.nan)


def _smooth(y: np.ndarray, size: np.ndarray) -> np.ndarray:
    """Mean over a fiftieth of the run, 20 to 500 rows, where rows are single steps; windows are averages already."""
    width = int(np.clip(y.size // 50, 20, 500))
    if np.median(size) > 1:
        return y
    filled = np.where(np.isfinite(y), y, np.nanmedian(y))
    total = np.concatenate([[0.0], np.cumsum(filled)])
    ends = np.arange(1, y.size + 1)
    begins = np.maximum(ends - width, 0)
    return (total[ends] - total[begins]) / (ends - begins)


def _view(fits: list[Any]) -> tuple[float, float] | None:
    """Look at where the runs end, not at how low they began."""
    seen = [f.trace["elbo"][np.isfinite(f.trace["elbo"])] for f in fits if f.trace]
    ends = np.concatenate([y[len(y) // 4 :] for y in seen] or [np.empty(0)])
    finals = [f.elbo.value for f in fits if np.isfinite(f.elbo.value)]
    if ends.size < 2 or not finals:
        return None
    low, high = min(np.quantile(ends, 0.02), *finals, np.inf), max(np.quantile(ends, 0.98), *finals, -np.inf)
    pad = 0.15 * (high - low) + 1e-3 * abs(high) * (high == low)
    return float(low - pad), float(high + pad)


def step_charts(fit: Any) -> list[Panel]:
    """Step size and temperature along the run, where they say anything."""
    if not fit.trace:
        return []
    x, charts = fit.trace["evaluations"], []
    kinds = (
        ("step", "step_size", "Step size", "Length of each window's steps, as the method chose it.", "step size"),
        (
            "temperature",
            "temperature",
            "Temperature",
            "Of the acceptance rule: high accepts nearly everything.",
            "temperature",
        ),
    )
    for key, column, title, caption, label in kinds:
        y = np.where(np.isfinite(fit.trace[column]), fit.trace[column], np.nan)
        y = np.where(y > 0, y, np.nan)
        if np.isfinite(y).sum() > 1 and np.nanmax(y) > np.nanmin(y):
            line = Series(label, "line", *thin(x, y), colour=0)
            charts.append(Panel(key, title, caption, "evaluations of log p", label, (line,), y_log=True))
    return charts


# ---- densities --------------------------------------------------------------------------------------------


def reach(*columns: np.ndarray) -> tuple[float, float]:
    """Give the ends of an axis that holds all but the outermost of some draws."""
    lows, highs = zip(*(np.quantile(c[np.isfinite(c)], [0.002, 0.998]) for c in columns), strict=True)
    low, high = min(lows), max(highs)
    pad = 0.08 * (high - low) + 1e-9
    return float(low - pad), float(high + pad)


def density(
    x: np.ndarray, span: tuple[float, float], points: int = 80, positive: bool | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian kernel density on a grid, Silverman's width from the interquartile range; `positive` draws stay so."""
    x = x[np.isfinite(x)]
    positive = (x.min() >= 0.0 if positive is None else positive) and span[0] < 0.0
    grid = np.linspace(0.0 if positive else span[0], span[1], points)
    quarter = np.subtract(*np.quantile(x, [0.75, 0.25])) / 1.349
    width = 0.9 * (min(x.std(), quarter) or x.std() or 1.0) * x.size**-0.2
    kernels = lambda at: np.exp(-0.5 * ((at[:, None] - x) / width) ** 2).mean(1) / (width * np.sqrt(2 * np.pi))
    # What kernels would put below the edge of a support is reflected.
    return grid, kernels(grid) + (kernels(-grid) if positive else 0.0)


# ---- axes ------------------------------------------------------------------------------------------------


def log_ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Give ticks at 1, 2 and 5 times powers of ten, or at powers of ten alone where those would be too many."""
    first, last = int(np.floor(np.log10(low))), int(np.ceil(np.log10(high)))
    for digits, step in (((1, 2, 5), 1), ((1,), 1), ((1,), 2), ((1,), 5), ((1,), 20)):
        ticks = [m * 10.0**e for e in range(first, last + 1) if e % step == 0 for m in digits]
        ticks = [t for t in ticks if low * (1 - 1e-9) <= t <= high * (1 + 1e-9)]
        if len(ticks) <= most:
            break
    return ticks


def log_limits(low: float, high: float) -> tuple[float, float]:
    """Widen the ends of a log axis until two ticks or more lie between them."""
    first, last = int(np.floor(np.log10(low))), int(np.ceil(np.log10(high)))
    steps = [m * 10.0**e for e in range(first - 1, last + 2) for m in (1, 2, 5)]
    inside = [t for t in steps if low * (1 - 1e-9) <= t <= high * (1 + 1e-9)]
    if len(inside) > 1:
        return low, high
    return max(t for t in steps if t <= low * (1 + 1e-9)), min(t for t in steps if t >= high * (1 - 1e-9) and t > low)
