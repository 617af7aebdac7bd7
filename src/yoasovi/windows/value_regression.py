"""A regression of a window's values on the features of a chart: the ELBO of q and its natural gradient, with their noise.

q stands still during a window. Its values f = log p - log q are regressed on features that have mean zero under q: the
intercept is the ELBO of q, with its standard error, and the coefficients are its natural gradient. What each label of a
local latent was worth is kept in tables, one row per observation. Arrays here are of one lane.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from yoasovi.arrays import space

# Above this share of draws that are not finite, values say only where they are finite.
BLIND = 0.5
# With more features, products would ask for windows of more than 1,000 draws.
_MOST_FOR_PAIRS = 20


class Layout(NamedTuple):
    """What a regression has to know of a chart."""

    normal: np.ndarray  # (P,) is this feature the noise of a Normal?
    element: np.ndarray  # (P,) which independent part of q it belongs to
    labels: dict[str, int]  # how many values each local site can take
    observations: int


class ValueSlopes(NamedTuple):
    """Coefficients of a window's values, with the variances of their errors."""

    slope: Any  # (P,) on t
    slope_noise: Any
    bend: Any  # (P,) on t^2 - 1; zero where t is not the noise of a Normal
    bend_noise: Any
    lost: Any  # share of the draws that were not finite


class LabelTable(NamedTuple):
    """What each label of a local site was worth, E[log p of its observation | label], and how often it was seen; (N, K)."""

    worth: Any
    seen: Any


class Memory(NamedTuple):
    """What is known of the incumbent."""

    line: ValueSlopes
    tables: dict[str, LabelTable]


class Sights(NamedTuple):
    """What the draws of a window show; leading axis n."""

    features: np.ndarray  # (n, P)
    shared: np.ndarray  # (n,) the part of log p - log q that belongs to no single observation
    each: np.ndarray  # (n, N) log p of each observation and its latents; empty where there are no local sites
    labels: dict[str, np.ndarray]  # (n, N) per local site
    log_probs: dict[str, np.ndarray]  # (N, K) of q
    wide: dict[str, np.ndarray]  # (N, K) of the law that labels were drawn from


def nothing_known(layout: Layout) -> Memory:
    """Give the memory to begin with."""
    none = np.zeros(layout.normal.size)
    empty = {k: np.zeros((layout.observations, size)) for k, size in layout.labels.items()}
    return Memory(ValueSlopes(none, none, none, none, np.asarray(0.0)), {k: LabelTable(x, x) for k, x in empty.items()})


def values_of(memory: Memory, sights: Sights) -> np.ndarray:
    """Give f at every draw; what earlier windows know of each label is a control variate, its mean under q is exact."""
    if not sights.labels:
        return sights.shared
    excess, expected, ratio = sights.each, 0.0, 1.0
    for n, (k, z) in enumerate(sights.labels.items()):
        log_probs = sights.log_probs[k]
        known = _known(memory.tables[k], log_probs, centred=n > 0)
        excess = excess - _picked(log_probs + known, z)
        expected = expected + np.sum(np.exp(log_probs) * known)
        # Labels are drawn from a wider law, and put right observation by observation.
        ratio = ratio * np.exp(_picked(log_probs, z) - _picked(sights.wide[k], z))
    return sights.shared + np.sum(ratio * excess, -1) + expected


def absorbed(memory: Memory, sights: Sights, recall: float) -> dict[str, LabelTable]:
    """Add a window's sightings to the tables, which remember `recall` earlier ones."""
    tables = {}
    for k, z in sights.labels.items():
        old = memory.tables[k]
        hits = [z == label for label in range(old.seen.shape[1])]
        counts = np.stack([hit.sum(0) for hit in hits], -1).astype(float)
        sums = np.stack([np.where(hit, sights.each, 0.0).sum(0) for hit in hits], -1)
        before = np.minimum(old.seen, recall)
        count, finite = before + counts, np.isfinite(sums)
        worth = (old.worth * before + np.where(finite, sums, 0.0)) / np.maximum(count, 1e-30)
        tables[k] = LabelTable(np.where(finite, worth, old.worth), np.where(finite, count, old.seen))
    return tables


def fit_line(layout: Layout, features: np.ndarray, values: np.ndarray) -> tuple[ValueSlopes, float, float]:
    """Least squares of the values on [1, t, t^2 - 1 of Normals, t_i t_j]; gives (line, elbo, its error).

    Products of features of independent parts have mean zero too; they only lower the residual, and join once there
    are four draws to a coefficient. Errors are those of the jackknife. Values that are not finite count as the lowest seen.
    """
    count, width = len(values), layout.normal.size
    placed = np.isfinite(features).all(1)
    ok = placed & np.isfinite(values)
    t = np.where(placed[:, None], features, 0.0)
    lowest, middle = (values[ok].min(), values[ok].mean()) if ok.any() else (0.0, 0.0)
    f = np.where(ok, values, lowest) - middle
    bells = np.flatnonzero(layout.normal)
    columns = [np.ones((count, 1)), t, np.where(placed[:, None], t[:, bells] ** 2 - 1.0, 0.0)]
    i, j = pairs(layout)
    if len(i) and count >= 4 * (1 + width + len(bells) + len(i)):
        columns.append(t[:, i] * t[:, j])
    else:
        i = j = np.zeros(0, int)
    x = np.concatenate(columns, 1)
    inverse = np.linalg.inv(x.T @ x + np.diag(_ridge(layout, count, i, j)))
    found = inverse @ (x.T @ f)
    weights = x @ inverse
    left = (f - x @ found) / np.clip(1.0 - np.sum(weights * x, 1), 0.1, 1.0)
    noise = np.sum((weights * left[:, None]) ** 2, 0)
    lost = 1.0 - ok.sum() / max(count, 1)
    if lost > BLIND:
        line = _towards_finite(layout, t, ok, lost)
    else:
        bend, bend_noise = np.zeros(width), np.zeros(width)
        bend[bells], bend_noise[bells] = found[1 + width :][: len(bells)], noise[1 + width :][: len(bells)]
        line = ValueSlopes(found[1 : 1 + width], noise[1 : 1 + width], bend, bend_noise, np.asarray(lost))
    return line, found[0] + middle if ok.any() else -np.inf, np.sqrt(noise[0]) + 1e-12


def _towards_finite(layout: Layout, t, ok, lost) -> ValueSlopes:
    """Give the line that leads to where draws were finite: their mean and variance, or just narrower if there were none."""
    count = ok.sum()
    mean = np.sum(np.where(ok[:, None], t, 0.0), 0) / max(count, 1)
    square = np.sum(np.where(ok[:, None], (t - mean) ** 2, 0.0), 0) / max(count - 1, 1)
    precision = np.where(count > 2, 1.0 / np.maximum(square, 0.05), 4.0)
    none, normal = np.zeros_like(mean), layout.normal
    return ValueSlopes(normal * mean * precision, none, normal * (0.5 - 0.5 * precision), none, np.asarray(lost))


def pairs(layout: Layout) -> tuple[np.ndarray, np.ndarray]:
    """Give the pairs of features that belong to independent parts of q, if they are few enough to be regressed on."""
    width = layout.normal.size
    if width > _MOST_FOR_PAIRS:
        return np.zeros(0, int), np.zeros(0, int)
    i, j = np.triu_indices(width, 1)
    apart = layout.element[i] != layout.element[j]
    return i[apart], j[apart]


def _ridge(layout: Layout, count: int, i: np.ndarray, j: np.ndarray) -> np.ndarray:
    """Almost nothing for Normals; one draw's worth for other laws, so that a statistic never seen moves nothing."""
    normal = layout.normal
    plain = np.concatenate([[True], normal, np.ones(normal.sum(), bool), normal[i] & normal[j]])
    ridge = np.where(plain, 1e-6 * max(count, 1), 1.0)
    ridge[0] = 0.0
    return ridge


def newton(layout: Layout, line: ValueSlopes, length: float, trust: float) -> tuple[np.ndarray, np.ndarray]:
    """Give the shift along t and the change of the logarithm of Normal scales, shrunk by how far noise explains them.

    For a Normal the precision of the target in q's units is 1 - 2 bend, and its mean slope / (1 - 2 bend).
    """
    bells = layout.normal
    length, trust = (1.0, 100.0) if line.lost > BLIND else (length, trust)
    slope = _shrunk(line.slope * bells, line.slope_noise * bells) + _shrunk(line.slope * ~bells, line.slope_noise * ~bells)
    bend = _shrunk(line.bend, line.bend_noise)
    precision = np.where(bells, np.maximum(1.0 - 2.0 * bend, 1.0 / trust), 1.0)
    far = np.where(bells, 1.5 * np.sqrt(trust), np.inf)
    # A steep target is believed for the mean, where that is the careful thing to do, but not at once for the scale.
    shift = np.clip(length * slope / precision, -far, far)
    return shift, -0.5 * length * np.log(np.minimum(precision, trust))


def promise(line: ValueSlopes) -> float:
    """Give the gain a full step still promises, less what noise alone would promise."""
    precision = np.clip(1.0 - 2.0 * line.bend, 0.1, 10.0)
    gain = 0.5 * (line.slope**2 - line.slope_noise) / precision + line.bend**2 - line.bend_noise
    return max(float(np.sum(gain)), 0.0)


def local_promise(tables: dict[str, LabelTable], log_probs: dict[str, np.ndarray]) -> float:
    """Give KL(q || softmax of the table), summed over observations whose labels were all seen."""
    found = 0.0
    for k, log_q in log_probs.items():
        worth = tables[k].worth
        target = worth - np.logaddexp.reduce(worth, -1, keepdims=True)
        gap = np.sum(np.exp(log_q) * (log_q - target), -1)
        found += float(np.sum(np.where((tables[k].seen > 0).all(-1), gap, 0.0)))
    return found


def pull(table: LabelTable, log_probs: Any) -> Any:
    """Give the natural gradient of the logits: worth - log q, centred; zero for labels never seen."""
    xp, seen = space(log_probs), table.seen > 0
    weight = xp.where(seen, xp.exp(log_probs), 0.0)
    towards = table.worth - log_probs
    mean = (weight * towards).sum(-1, keepdims=True) / xp.maximum(weight.sum(-1, keepdims=True), 1e-300)
    return xp.where(seen, towards - mean, 0.0)


def _known(table: LabelTable, log_probs: np.ndarray, centred: bool) -> np.ndarray:
    """Give what is known of log p - log q of each label; a label never seen is worth the mean of the others."""
    seen = table.seen > 0
    weight = np.where(seen, np.exp(log_probs), 0.0)
    mean = np.sum(weight * table.worth, -1, keepdims=True) / np.maximum(np.sum(weight, -1, keepdims=True), 1e-300)
    return np.where(seen, table.worth, mean) - (mean if centred else 0.0) - log_probs


def _picked(rows: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Give rows[i, z[n, i]], shape (n, N)."""
    return rows[np.arange(len(rows)), z]


def _shrunk(x: np.ndarray, noise: np.ndarray) -> np.ndarray:
    """Positive-part James-Stein: 1 - sum of noise / sum of squares."""
    return x * max(0.0, 1.0 - np.sum(noise) / max(np.sum(x**2), np.finfo(float).tiny))
