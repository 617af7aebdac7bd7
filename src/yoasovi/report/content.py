"""Charts of a fit as plain numbers: what matplotlib draws and what an HTML report holds are the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from yoasovi.answer.predictive import replicate

MOST = 1000  # points of one series, at most: a screen has no more
_MARGINALS, _PAIRED, _DRAWS, _DOTS = 12, 4, 2000, 400


@dataclass(frozen=True)
class Series:
    """One thing in a chart: `kind` is line, points, or band or bars from `low` to `y`; `colour` counts from 0."""

    name: str
    kind: str
    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    colour: int = 0
    shape: str = "circle"
    faint: bool = False


@dataclass(frozen=True)
class Panel:
    """A chart: `view` is the (low, high) of the y axis to begin with; None shows everything."""

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


def some(mask: np.ndarray, most: int = _DOTS) -> np.ndarray:
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
    x, y = trace[column], np.where(np.isfinite(trace["elbo"]), trace["elbo"], np.nan)
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


# ---- the posterior ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShownDraws:
    """Draws of all scalar parameters: q's own, and importance-corrected ones where that is possible."""

    names: list[str]
    own: np.ndarray  # (S, P)
    corrected: np.ndarray | None
    site: list[str]  # of each parameter


def draws(fit: Any, n: int = _DRAWS) -> ShownDraws:
    """Draw from q, and towards the posterior where q has few parameters; latents of single observations are left out."""
    from yoasovi.answer.correction import KERNELS_UP_TO
    from yoasovi.families.base import Gaussian

    local = {s.name for s in fit.model.density.local_sites}
    few = isinstance(fit.family, Gaussian) and fit.family.noise_size(fit.model.density) <= KERNELS_UP_TO
    if fit.kept is not None:  # loaded without its model: the draws that were saved, as they are
        names, sites, saved = _flat(fit, fit.sample(n), local)
        return ShownDraws(names, saved, None, sites)
    own = _flat(fit, fit.sample(n, corrected=False), local)
    can = few and fit.model.differentiable and bool(np.isfinite(fit.log_ratio).all())
    corrected = _flat(fit, fit.sample(n, corrected=True), local)[2] if can else None
    return ShownDraws(own[0], own[2], corrected, own[1])


def _flat(fit: Any, sample: dict[str, np.ndarray], skip: set[str]) -> tuple[list[str], list[str], np.ndarray]:
    names, sites, columns = [], [], []
    for name, x in sample.items():
        if name in skip:
            continue
        columns.append(np.asarray(x, float).reshape(len(x), -1))
        labels = fit.model.names(name, x.shape[1:])
        names += labels
        sites += [name] * len(labels)
    return names, sites, np.concatenate(columns, 1)


def worst(found: ShownDraws) -> list[int]:
    """Order parameters by how much correction moves them; by place where there is none."""
    if found.corrected is None:
        return list(range(len(found.names)))
    sd = found.own.std(0) + 1e-300
    moved = np.abs(found.corrected.mean(0) - found.own.mean(0)) / sd + np.abs(np.log(found.corrected.std(0) / sd + 1e-300))
    return [int(j) for j in np.argsort(-moved, kind="stable")]


def marginal_charts(founds: list[ShownDraws], names: list[str]) -> list[Panel]:
    """Densities of the parameters that correction moves most; of several fits those of the first, one line each."""
    charts, alone = [], len(founds) == 1
    for j in sorted(worst(founds[0])[:_MARGINALS]):
        label = founds[0].names[j]
        series: list[Series] = []
        for i, (found, name) in enumerate(zip(founds, names, strict=True)):
            if label not in found.names:
                continue
            column = found.own[:, found.names.index(label)]
            if alone and found.corrected is not None:
                fixed = found.corrected[:, j]
                curve = density(fixed, _range(column, fixed))
                series.append(Series("corrected", "band", *curve, low=np.zeros_like(curve[1]), colour=4))
            span = _range(column) if found.corrected is None or not alone else _range(column, found.corrected[:, j])
            series.append(Series("q" if alone else name, "line", *density(column, span), colour=i))
        low, high = np.quantile(founds[0].own[:, j], [0.05, 0.95])
        caption = f"90% of q lies in {low:.4g} to {high:.4g}." if alone else ""
        charts.append(Panel(f"marginal-{j}", label, caption, label, "density", tuple(series)))
    return charts


def _range(*columns: np.ndarray) -> tuple[float, float]:
    lows, highs = zip(*(np.quantile(c[np.isfinite(c)], [0.002, 0.998]) for c in columns), strict=True)
    low, high = min(lows), max(highs)
    pad = 0.08 * (high - low) + 1e-9
    return float(low - pad), float(high + pad)


def density(x: np.ndarray, span: tuple[float, float], points: int = 80) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian kernel density on a grid, Silverman's width from the interquartile range."""
    x = x[np.isfinite(x)]
    positive = x.min() >= 0.0 > span[0]
    grid = np.linspace(0.0 if positive else span[0], span[1], points)
    quarter = np.subtract(*np.quantile(x, [0.75, 0.25])) / 1.349
    width = 0.9 * (min(x.std(), quarter) or x.std() or 1.0) * x.size**-0.2
    kernels = lambda at: np.exp(-0.5 * ((at[:, None] - x) / width) ** 2).mean(1) / (width * np.sqrt(2 * np.pi))
    # What kernels would put below the edge of a support is reflected.
    return grid, kernels(grid) + (kernels(-grid) if positive else 0.0)


def pair_charts(found: ShownDraws) -> list[Panel]:
    """Scatter plots of the parameters that correction moves most, against each other."""
    chosen = worst(found)[:_PAIRED]
    charts, keep = [], some(np.ones(len(found.own), bool), 300)
    for a in range(len(chosen)):
        for b in range(a + 1, len(chosen)):
            i, j = chosen[a], chosen[b]
            series = [Series("q", "points", found.own[keep, i], found.own[keep, j], colour=0, faint=True)]
            if found.corrected is not None:
                series.append(
                    Series("corrected", "points", found.corrected[keep, i], found.corrected[keep, j], colour=1, faint=True)
                )
            names = found.names[i], found.names[j]
            charts.append(Panel(f"pair-{i}-{j}", f"{names[0]} and {names[1]}", "", *names, tuple(series)))
    return charts


# ---- how good it is --------------------------------------------------------------------------------------


def weight_chart(fit: Any) -> Panel | None:
    """The tail of the importance weights: survival against size, on log axes, where a Pareto tail is straight."""
    ratios = fit.log_ratio[np.isfinite(fit.log_ratio)]
    if ratios.size < 100 or np.ptp(ratios) < 1e-6:
        return None
    weights = np.sort(np.exp(ratios - ratios.max()))[::-1]
    weights = weights / weights.mean()
    share = np.arange(1, weights.size + 1) / weights.size
    shown = _spread(int((weights > 0.01).sum()))  # tiny weights would take up most of the axis and say nothing
    series = [Series("weights", "points", weights[shown], share[shown], colour=0)]
    text = "Share of draws whose weight p/q is larger, weights relative to their mean."
    known = fit.verdict.evidence.get("khat") if fit.verdict is not None else None
    try:
        khat = fit.khat() if known is None else known.value  # the verdict's, which may have looked at more draws
    except ImportError:
        khat = float("nan")
    if np.isfinite(khat):
        text += f" k-hat is {khat:.2f}: below 0.5 good, above 0.7 not to be trusted."
        if khat > 0.05:
            tail = int(min(0.2 * weights.size, 3 * np.sqrt(weights.size)))
            edge = weights[tail]
            x = np.geomspace(edge, weights[0] * 1.5, 40)
            scale = max(float(np.mean(weights[:tail] - edge)) * max(1.0 - khat, 0.1), 1e-12)
            y = share[tail] * (1.0 + khat * (x - edge) / scale) ** (-1.0 / khat)
            series.append(Series(f"Pareto tail, k = {khat:.2f}", "line", x, y, colour=1))
    return Panel("weights", "Importance weights", text, "weight relative to the mean", "share of draws above", tuple(series),
                 x_log=True, y_log=True)  # fmt: skip


def _spread(n: int, most: int = _DOTS) -> np.ndarray:
    """Give places from 0 to n - 1, dense at the beginning: the tail is what matters."""
    return np.unique(np.geomspace(1, n, min(n, most)).astype(int) - 1)


def predictive_chart(fit: Any, n: int = 400) -> Panel | None:
    """Data beside replicated data: few observations one by one, counts by value, others by their density."""
    if getattr(fit.model, "predictive", None) is None:  # or the model is absent
        return None
    observed = observations(fit.model)
    if observed is None:
        return None
    made = replicate(fit.model, fit.sample(n), 0)
    made = next(iter(made.values())) if isinstance(made, dict) else made
    made, observed = np.asarray(made, float).reshape(n, -1), np.asarray(observed, float).ravel()
    made = made[np.isfinite(made).all(1)]
    if len(made) < 30 or observed.size < 3:
        return None
    if observed.size <= 40 and made.shape[1] == observed.size:
        low, high = np.quantile(made, [0.05, 0.95], axis=0)
        order = np.arange(observed.size, dtype=float)
        series: tuple[Series, ...] = (
            Series("replicated, 90%", "bars", order, high, low, colour=4),
            Series("observed", "points", order, observed, colour=1),
        )
        text = "Each observation, and where the fitted model would put it nine times in ten."
        return Panel("predictive", "Predictive check", text, "observation", "y", series)
    if np.unique(observed).size <= 12 and np.array_equal(observed, np.round(observed)):
        values = np.unique(observed)
        counts = np.array([[(row == v).sum() for v in values] for row in made])
        low, high = np.quantile(counts, [0.05, 0.95], axis=0)
        seen = np.array([(observed == v).sum() for v in values], float)
        series = (
            Series("replicated, 90%", "band", values, high, low, colour=4),
            Series("observed", "points", values, seen, colour=1),
        )
        return Panel("predictive", "Predictive check", "How often each value occurs.", "y", "count", series)
    span = _range(observed, made[:, : observed.size].ravel())
    curves = np.array([density(row, span)[1] for row in made[:100]])
    grid = np.linspace(*span, curves.shape[1])
    low, high = np.quantile(curves, [0.05, 0.95], axis=0)
    series = (
        Series("replicated, 90%", "band", grid, high, low, colour=4),
        Series("replicated, median", "line", grid, np.median(curves, 0), colour=0),
        Series("observed", "line", *density(observed, span), colour=1),
    )
    text = "Density of the data against densities of data sets drawn from the fitted model."
    return Panel("predictive", "Predictive check", text, "y", "density", series)


def observations(model: Any) -> np.ndarray | None:
    """Find the observations: the first variable labelled so, else `y` of a model's data, or all of it if it is one array."""
    if model.labels is not None and model.labels.observed:
        return next(iter(model.labels.observed.values()))
    data = model.data
    if isinstance(data, dict):
        data = data.get("y")
    return None if data is None or isinstance(data, dict) else np.asarray(data)


def cluster_chart(fit: Any) -> Panel | None:
    """The first two columns of a mixture's data, by the component each observation most likely belongs to."""
    component = getattr(getattr(fit.model, "predictive", None), "component", None)  # or the model is absent
    if component is None:
        return None
    y = fit.model.data
    if np.ndim(y) != 2 or y.shape[1] < 2:
        return None
    from yoasovi.models.mixture import responsibilities

    centre = {k: v.mean(0) for k, v in fit.sample(1000, corrected=False).items() if k != "z"}
    label = responsibilities(component, centre, np.asarray(y)).argmax(1)
    keep = some(np.ones(len(y), bool), MOST)
    shapes = ("circle", "square", "triangle", "cross")
    series = [
        Series(f"component {k}", "points", y[keep][label[keep] == k, 0], y[keep][label[keep] == k, 1], colour=k % 8,
               shape=shapes[k % 4], faint=True)
        for k in range(len(centre["mu"]))
    ]  # fmt: skip
    middle = Series("means", "points", centre["mu"][:, 0], centre["mu"][:, 1], colour=7, shape="star")
    text = "Each observation by its most likely component, at the posterior mean; the first two columns of the data."
    return Panel("clusters", "Clusters", text, "y, column 0", "y, column 1", (*series, middle), equal=True)
