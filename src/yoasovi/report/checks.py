"""How good a fit is, as charts: importance weights, replicated data, clusters; and leave-one-out in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from scipy.special import betaincinv

from yoasovi.answer.predictive import replicate_if_drawn
from yoasovi.report.content import DOTS, MOST, Panel, Series, density, reach, some

_REPLICATED, _NUMBERS = 2000, 2**24  # data sets, and how many numbers they may be
_ONE_BY_ONE = 40  # observations that are shown each by itself
_BARS = 30  # of a chart of counts, at most
_COLUMNS = 4  # of the data that get a chart each
_LEFT_OUT = 2000  # terms that leave-one-out is computed for in a report: each takes a millisecond or more


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
            series.append(Series(f"Pareto tail, k = {khat:.2f}", "line", *_tail(weights, share, khat), colour=1))
    return Panel("weights", "Importance weights", text, "weight relative to the mean", "share of draws above", tuple(series),
                 x_log=True, y_log=True)  # fmt: skip


def _spread(n: int, most: int = DOTS) -> np.ndarray:
    """Give places from 0 to n - 1, dense at the beginning: the tail is what matters."""
    return np.unique(np.geomspace(1, n, min(n, most)).astype(int) - 1)


def _tail(weights: np.ndarray, share: np.ndarray, khat: float) -> tuple[np.ndarray, np.ndarray]:
    """Give the Pareto law of this k-hat that suits the largest weights best."""
    from scipy.stats import genpareto

    tail = int(min(0.2 * weights.size, 3 * np.sqrt(weights.size)))
    edge = weights[tail]
    scale = genpareto.fit(weights[:tail] - edge, fc=khat, floc=0.0)[2]
    x = np.geomspace(edge, weights[0], 40)
    return x, share[tail] * genpareto.sf(x - edge, khat, scale=scale)


# ---- replicated data -------------------------------------------------------------------------------------


def predictive_charts(fit: Any, n: int = _REPLICATED) -> list[Panel]:
    """Data beside replicated data, drawn as suits them: calibration of 0 and 1, counts by value, others by density."""
    if getattr(fit.model, "predictive", None) is None:  # or the model is absent
        return []
    seen = observations(fit.model)
    size = sum(np.size(x) for x in seen.values())
    if not size:
        return []
    n = int(np.clip(_NUMBERS // size, 50, n))
    made = replicate_if_drawn(fit.model, fit.sample(n), 0)
    if isinstance(made, dict) and not made:
        return []
    charts = []
    for i, (name, new, old) in enumerate(_columns(seen, made)):
        new = new[np.isfinite(new).all(1)]
        if len(new) >= 30 and old.size >= 3 and i < _COLUMNS:
            charts.append(_predictive(f"predictive-{i}" if i else "predictive", name, new, old))
    return charts


def observations(model: Any) -> dict[str, np.ndarray]:
    """Find the observations: variables that are labelled so, else `y` of a model's data, or all of it if it is one array."""
    if model.labels is not None and model.labels.observed:
        return dict(model.labels.observed)
    data = model.data
    if isinstance(data, dict):
        data = data.get("y")
    return {} if data is None or isinstance(data, dict) else {"y": np.asarray(data)}


def _columns(seen: Mapping[str, np.ndarray], made: Any) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Give each observed variable, and each column of a matrix, with its replications, shape (n, N)."""
    for name, old in seen.items():
        new = np.asarray(made[name] if isinstance(made, dict) else made, float)
        old = np.asarray(old, float)
        if new.shape[1:] != old.shape:
            continue
        if old.ndim == 2 and 1 < old.shape[1] <= _COLUMNS:
            yield from ((f"{name}, column {j}", new[:, :, j], old[:, j]) for j in range(old.shape[1]))
        else:
            yield name, new.reshape(len(new), -1), old.ravel()


def _predictive(key: str, name: str, made: np.ndarray, observed: np.ndarray) -> Panel:
    whole = np.array_equal(observed, np.round(observed)) and np.array_equal(made, np.round(made))
    if whole and set(np.unique(observed)) | set(np.unique(made)) <= {0.0, 1.0}:
        return _calibration(key, name, made, observed)
    if observed.size <= _ONE_BY_ONE:
        low, high = np.quantile(made, [0.05, 0.95], axis=0)
        order = np.arange(observed.size, dtype=float)
        text = "Each observation, and where the fitted model would put it nine times in ten."
        series = (
            Series("replicated, 90%", "bars", order, high, low, colour=4),
            Series("observed", "points", order, observed, colour=1),
        )
        return Panel(key, f"Predictive check of {name}", text, "observation", name, series)
    return _counts(key, name, made, observed) if whole else _densities(key, name, made, observed)


def _calibration(key: str, name: str, made: np.ndarray, observed: np.ndarray) -> Panel:
    """Observed frequencies against predicted probabilities, in groups of like probability, with 90% intervals (Jeffreys)."""
    probability = made.mean(0)
    groups = int(np.clip(observed.size // 15, 2, 10))
    edges = np.unique(np.quantile(probability, np.linspace(0, 1, groups + 1)[1:-1]))
    group = np.searchsorted(edges, probability, side="right")
    kept = np.unique(group)
    size = np.array([(group == g).sum() for g in kept], float)
    ones = np.array([observed[group == g].sum() for g in kept])
    predicted = np.array([probability[group == g].mean() for g in kept])
    low = np.where(ones > 0, betaincinv(ones + 0.5, size - ones + 0.5, 0.05), 0.0)
    high = np.where(ones < size, betaincinv(ones + 0.5, size - ones + 0.5, 0.95), 1.0)
    ends = np.array([0.0, 1.0])
    series = (
        Series("as predicted", "line", ends, ends, colour=7),
        Series("90% interval", "bars", predicted, high, low, colour=4),
        Series("observed", "points", predicted, ones / size, colour=1),
    )
    text = (
        f"The {observed.size:,} observations in {len(kept)} groups of like probability. Where the probabilities are right, "
        "about nine intervals in ten meet the line."
    )
    title = f"Calibration of {name}"
    return Panel(key, title, text, "predicted probability", "observed frequency", series, view=(-0.03, 1.03), equal=True)


def _counts(key: str, name: str, made: np.ndarray, observed: np.ndarray) -> Panel:
    """How often each whole number occurs; neighbours are taken together where there are many."""
    first, last = int(min(observed.min(), np.quantile(made, 0.005))), int(max(observed.max(), np.quantile(made, 0.995)))
    width = next(w for e in range(20) for m in (1, 2, 5) if (w := m * 10**e) * _BARS > last - first)
    begin = first // width * width
    edges = np.arange(begin, last + width + 1, width)
    count = lambda x: np.histogram(x, edges - 0.5)[0].astype(float)
    low, high = np.quantile([count(row) for row in made[:500]], [0.05, 0.95], axis=0)
    middle = edges[:-1] + 0.5 * (width - 1)
    series = (
        Series("replicated, 90%", "bars", middle, high, low, colour=4),
        Series("observed", "points", middle, count(observed), colour=1),
    )
    text = "How often each value occurs" if width == 1 else f"How often values occur, {width:,} neighbours taken together"
    text += ", and how often in nine of ten data sets drawn from the fitted model."
    return Panel(key, f"Predictive check of {name}", text, name, "number of observations", series)


def _densities(key: str, name: str, made: np.ndarray, observed: np.ndarray) -> Panel:
    span = reach(observed, made.ravel())
    positive = bool(observed.min() >= 0.0 and made.min() >= 0.0)
    curve = lambda x: density(x[some(np.ones(x.size, bool), 5000)], span, positive=positive)
    grid = curve(observed)[0]
    curves = np.array([curve(row)[1] for row in made[:100]])
    low, high = np.quantile(curves, [0.05, 0.95], axis=0)
    series = (
        Series("replicated, 90%", "band", grid, high, low, colour=4),
        Series("replicated, median", "line", grid, np.median(curves, 0), colour=0),
        Series("observed", "line", *curve(observed), colour=1),
    )
    text = "Density of the data against densities of data sets drawn from the fitted model."
    return Panel(key, f"Predictive check of {name}", text, name, "density", series)


# ---- clusters --------------------------------------------------------------------------------------------


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


# ---- leave-one-out ---------------------------------------------------------------------------------------


def loo_in_words(fit: Any, grade: str) -> list[tuple[str, str]]:
    """Tell leave-one-out cross-validation as lines of a table: what, and what it says; or why it is not there.

    It rests on the fit's draws, whose grade says how far they can be trusted.
    """
    if fit.kept is not None:
        return [("not computed", "This fit was loaded without its model: yo.load(folder, model=model).loo() computes it.")]
    if fit.model.num_observations > _LEFT_OUT:
        many = f"{fit.model.num_observations:,} terms take long"
        return [("not computed", f"{many}, and a report is not to be waited for: fit.loo() computes it.")]
    try:
        found = fit.loo()
    except (ImportError, ValueError) as error:
        return [("not computed", str(error))]
    total, bad = found.khat_i.size, int(found.doubtful.sum())
    if not np.isfinite(found.elpd):
        trust = "The estimate is not finite: it says nothing about any observation."
    elif bad:
        trust = (
            f"k-hat is above 0.7 for {bad:,} of {total:,} observations: what is said of {'them' if bad > 1 else 'it'} "
            "rests on a few draws, and is not to be trusted."
        )
    else:
        trust = f"k-hat speaks against none of all {total:,} observations"
        trust += "." if grade in ("poor", "failed") else ": the estimate can be trusted."
    if grade in ("poor", "failed"):
        trust += f" All of it rests on draws that are graded {grade}, and is no better than they are."
    return [
        ("elpd", f"{found.elpd:,.2f} ± {found.se:.2f}: the log density expected of as many new observations, with its "
                 "standard error. Higher is better."),
        ("p_loo", f"{found.p_loo:.2f}: the effective number of parameters; the model has {fit.model.density.dim:,}."),
        ("k-hat", trust),
    ]  # fmt: skip
