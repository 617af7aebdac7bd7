"""The posterior as charts: densities, pairs, and a forest of intervals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from yoasovi.answer.mixture import chains_of
from yoasovi.report.content import AxisWord, Panel, Series, density, reach, some

_MARGINALS, _PAIRED, _DRAWS = 12, 4, 4000  # as many draws as the summary takes, so that the numbers are the same
_DERIVED = 200  # entries of one deterministic site that are shown: some have one per observation
_ROWS = 40  # entries of one site in a forest
_NUMBERS = 2**24  # of all draws, at most
_WIDEST = 25.0  # an axis is so many times as long as the shortest interval on it, at most


@dataclass(frozen=True)
class ShownDraws:
    """Draws of all scalar parameters: q's own, and better ones where there are: NUTS's, or importance-corrected."""

    names: list[str]
    own: np.ndarray  # (S, P)
    corrected: np.ndarray | None
    site: list[str]  # of each parameter
    sizes: dict[str, int]  # of each site: some are shown in part
    errors: np.ndarray | None = None  # of the means of the best ones
    kind: str = "draws from q"  # what the best ones are
    label: str = "corrected"  # of the better ones in charts
    derived: ShownDraws | None = None  # deterministic sites

    @property
    def best(self) -> np.ndarray:
        """Give the better draws where there are any."""
        return self.own if self.corrected is None else self.corrected


def draws(fit: Any, n: int = _DRAWS) -> ShownDraws:
    """Draw from q, and what `sample` gives where it is something better; latents of single observations are left out."""
    density = fit.model.density
    n = fit.plenty(min(n, max(_NUMBERS // density.dim, 200)))
    better = fit.refined is not None or fit.worth_correcting
    # A fit loaded without its model has the draws that were saved, as they are.
    best = fit.sample(n)
    own = fit.sample(n, corrected=False) if better and fit.kept is None else best
    by_chains = bool(chains_of(fit))
    kind = "draws from q" if not better else "draws of NUTS" if by_chains else "importance-corrected draws"
    sites = [s.name for s in density.sites]
    local = {s.name for s in density.local_sites}
    others = [k for k in own if k not in sites and k not in local]

    def shown(which: list[str], derived: ShownDraws | None = None) -> ShownDraws:
        names, site, flat = _columns(fit.model, best, which)
        mine = _columns(fit.model, own, which)[2]
        sizes = {k: int(np.prod(own[k].shape[1:])) for k in which}
        label = "NUTS" if by_chains else "corrected"
        corrected = None if own is best else flat
        return ShownDraws(names, mine, corrected, site, sizes, fit.mean_errors(flat), kind, label, derived)

    return shown([k for k in own if k in sites], shown(others) if others else None)


def _columns(model: Any, sample: dict[str, np.ndarray], sites: list[str]) -> tuple[list[str], list[str], np.ndarray]:
    """Give names, sites and draws of scalars; of a long deterministic site the first ones."""
    whole, names, site, columns = {s.name for s in model.density.sites}, [], [], []
    for name in sites:
        labels = model.names(name, sample[name].shape[1:])
        labels = labels if name in whole else labels[:_DERIVED]
        names += labels
        site += [name] * len(labels)
        columns.append(np.asarray(sample[name], float).reshape(len(sample[name]), -1)[:, : len(labels)])
    return names, site, np.concatenate(columns, 1)


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
            span = reach(column)
            if alone and found.corrected is not None:
                fixed = found.corrected[:, j]
                span = reach(column, fixed)
                curve = density(fixed, span)
                series.append(Series(found.label, "band", *curve, low=np.zeros_like(curve[1]), colour=4))
            series.append(Series("q" if alone else name, "line", *density(column, span), colour=i))
        low, high = np.quantile(founds[0].own[:, j], [0.05, 0.95])
        caption = f"90% of q lies in {low:.4g} to {high:.4g}." if alone else ""
        charts.append(Panel(f"marginal-{j}", label, caption, label, "density", tuple(series)))
    return charts


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
                    Series(found.label, "points", found.corrected[keep, i], found.corrected[keep, j], colour=1, faint=True)
                )
            names = found.names[i], found.names[j]
            charts.append(Panel(f"pair-{i}-{j}", f"{names[0]} and {names[1]}", "", *names, tuple(series)))
    return charts


# ---- the forest ------------------------------------------------------------------------------------------


class _Group(NamedTuple):
    """A site in a forest: its entries' labels, and their quantiles, shape (5, entries)."""

    site: str
    labels: list[str]
    ends: np.ndarray
    size: int  # entries of the site, shown or not

    @property
    def width(self) -> float:
        """The length of its typical 90% interval."""
        return float(np.median(self.ends[4] - self.ends[0]))


def forest_charts(found: ShownDraws) -> list[Panel]:
    """Intervals of all parameters and derived quantities; sites of comparable scale share an axis."""
    axes: list[list[_Group]] = []
    for group in [*_groups(found), *(_groups(found.derived) if found.derived is not None else ())]:
        axis = next((a for a in axes if _comparable([*a, group])), None)
        axes.append([group]) if axis is None else axis.append(group)
    titles = ["All parameters on one axis"] if len(axes) == 1 else [", ".join(g.site for g in a) for a in axes]
    forests = [_forest(f"forest-{i}", title, axis) for i, (title, axis) in enumerate(zip(titles, axes, strict=True))]
    return [*forests, *_caterpillars(found)]


def _caterpillars(found: ShownDraws) -> Iterable[Panel]:
    """All entries of sites that are too long for a forest, such as the effects of many groups, in order."""
    for site in dict.fromkeys(found.site):
        shown = np.flatnonzero(np.array(found.site) == site)
        if len(shown) <= _ROWS:
            continue
        low, middle, high = np.quantile(found.best[:, shown], [0.05, 0.5, 0.95], axis=0)
        order = np.argsort(middle)[some(np.isfinite(np.sort(middle)))]
        place = np.searchsorted(np.sort(middle), middle[order]) + 1.0
        series = (
            Series("90%", "band", place, high[order], low[order], colour=0, faint=True),
            Series("median", "line", place, middle[order], colour=1),
        )
        text = f"All {len(shown):,} entries in order of their medians, with the intervals that hold 90% of the draws."
        yield Panel(f"caterpillar-{site}", site, text, "rank", site, series)


def _groups(found: ShownDraws) -> Iterable[_Group]:
    for site in dict.fromkeys(found.site):
        shown = np.flatnonzero(np.array(found.site) == site)[:_ROWS]
        ends = np.quantile(found.best[:, shown], [0.05, 0.25, 0.5, 0.75, 0.95], axis=0)
        if np.isfinite(ends).all():
            yield _Group(site, [found.names[j] for j in shown], ends, found.sizes[site])


def _comparable(groups: list[_Group]) -> bool:
    """Say whether the shortest interval could still be seen on an axis that holds all of them."""
    length = max(g.ends[4].max() for g in groups) - min(g.ends[0].min() for g in groups)
    return bool(length <= _WIDEST * min(g.width for g in groups))


def _forest(key: str, title: str, groups: list[_Group]) -> Panel:
    rows: list[AxisWord] = []
    at: list[int] = []
    for group in groups:
        headed = len(group.labels) > 1
        rows += [AxisWord(group.site, heading=True)] if headed else []
        at += range(len(rows), len(rows) + len(group.labels))
        # Under the heading of its site an entry needs only what is in its brackets.
        rows += [AxisWord(label.removeprefix(group.site) if headed else label) for label in group.labels]
    y = len(rows) - 1.0 - np.array(at)
    ends = np.concatenate([g.ends for g in groups], 1)
    series = (
        Series("90%", "spans", ends[4], y, ends[0], colour=0, faint=True),
        Series("50%", "spans", ends[3], y, ends[1], colour=0),
        Series("median", "points", ends[2], y, colour=1),
    )
    cut = [f"the first {len(g.labels)} of {g.size:,} entries of {g.site}" for g in groups if len(g.labels) < g.size]
    text = "Median, and the intervals that hold 50% and 90% of the draws." + (f" Of these: {'; '.join(cut)}." if cut else "")
    return Panel(key, title, text, "value", "", series, view=(-0.7, len(rows) - 0.3), rows=tuple(rows))
