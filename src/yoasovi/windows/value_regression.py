"""A regression of a window's values on the features of a chart: the ELBO of q and its natural gradient, with their noise."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from yoasovi.families.charts import Chart

# Above this share of draws that are not finite, values say only where they are finite.
BLIND = 0.5
# With more features, products would ask for windows of more than 1,000 draws.
_MOST_FOR_PAIRS = 20


class Line(NamedTuple):
    """Coefficients of a window's values, with the variances of their errors."""

    slope: jax.Array  # (P,) on t
    slope_noise: jax.Array
    bend: jax.Array  # (P,) on t^2 - 1; zero where t is not the noise of a Normal
    bend_noise: jax.Array
    lost: jax.Array  # share of the draws that were not finite


def fit_line(there: Chart, features: jax.Array, values: jax.Array, count: jax.Array) -> tuple[Line, jax.Array, jax.Array]:
    """Least squares of the first `count` values on [1, t, t^2 - 1 of Normals, t_i t_j]; gives (line, elbo, its error).

    Products of features of independent parts have mean zero too; they only lower the residual, and join once there
    are four draws to a coefficient. Errors are those of the jackknife. Values that are not finite count as the lowest seen.
    """
    used = jnp.arange(len(values)) < count
    placed = used & jnp.isfinite(features).all(1)
    ok = placed & jnp.isfinite(values)
    good = jnp.maximum(ok.sum(), 1)
    t = jnp.where(placed[:, None], features, 0.0)
    lowest = jnp.min(jnp.where(ok, values, jnp.inf), initial=jnp.inf)
    middle = jnp.sum(jnp.where(ok, values, 0.0)) / good
    f = jnp.where(ok, values, jnp.where(used & jnp.isfinite(lowest), lowest, middle)) - middle
    bells = np.flatnonzero(there.normal)
    columns = [used[:, None] * jnp.ones(1), t, jnp.where(placed[:, None], t[:, bells] ** 2 - 1.0, 0.0)]
    i, j = pairs(there)
    if len(i):
        enough = count >= 4 * (1 + t.shape[1] + len(bells) + len(i))
        columns.append(t[:, i] * t[:, j] * enough)
    x = jnp.concatenate(columns, 1)
    inverse = jnp.linalg.inv(x.T @ x + jnp.diag(_ridge(there, count)))
    found = inverse @ (x.T @ f)
    weights = x @ inverse
    left = (f - x @ found) * used / jnp.clip(1.0 - jnp.sum(weights * x, 1), 0.1, 1.0)
    noise = jnp.sum((weights * left[:, None]) ** 2, 0)
    width = t.shape[1]
    spread = lambda v: jnp.zeros(width).at[bells].set(v[1 + width : 1 + width + len(bells)])
    lost = 1.0 - ok.sum() / jnp.maximum(used.sum(), 1)
    line = Line(found[1 : 1 + width], noise[1 : 1 + width], spread(found), spread(noise), lost)
    blind = _towards_finite(there, t, ok, lost)
    line = jax.tree.map(lambda a, b: jnp.where(lost > BLIND, a, b), blind, line)
    return line, jnp.where(ok.any(), found[0] + middle, -jnp.inf), jnp.sqrt(noise[0]) + 1e-12


def _towards_finite(there: Chart, t, ok, lost) -> Line:
    """Give the line that leads to where draws were finite: their mean and variance, or just narrower if there were none."""
    count = ok.sum()
    mean = jnp.sum(jnp.where(ok[:, None], t, 0.0), 0) / jnp.maximum(count, 1)
    square = jnp.sum(jnp.where(ok[:, None], (t - mean) ** 2, 0.0), 0) / jnp.maximum(count - 1, 1)
    precision = jnp.where(count > 2, 1.0 / jnp.maximum(square, 0.05), 4.0)
    none = jnp.zeros_like(mean)
    slope, bend = mean * precision, 0.5 - 0.5 * precision
    return Line(jnp.where(there.normal, slope, 0.0), none, jnp.where(there.normal, bend, 0.0), none, lost)


def pairs(there: Chart) -> tuple[np.ndarray, np.ndarray]:
    """Give the pairs of features that belong to independent parts of q, if they are few enough to be regressed on."""
    width = there.normal.size
    if width > _MOST_FOR_PAIRS:
        return np.zeros(0, int), np.zeros(0, int)
    i, j = np.triu_indices(width, 1)
    apart = there.element[i] != there.element[j]
    return i[apart], j[apart]


def _ridge(there: Chart, count):
    """Almost nothing for Normals; one draw's worth for other laws, so that a statistic never seen moves nothing."""
    i, j = pairs(there)
    plain = np.concatenate([[True], there.normal, np.ones(there.normal.sum(), bool), there.normal[i] & there.normal[j]])
    first = np.arange(plain.size) == 0
    return jnp.where(first, 1.0 * (count == 0), jnp.where(plain, 1e-6 * jnp.maximum(count, 1), 1.0))


def newton(there: Chart, line: Line, length: jax.Array, trust: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Give the shift along t and the change of the logarithm of Normal scales, shrunk by how far noise explains them.

    For a Normal the precision of the target in q's units is 1 - 2 bend, and its mean slope / (1 - 2 bend).
    """
    bells, blind = there.normal, line.lost > BLIND
    length, trust = jnp.where(blind, 1.0, length), jnp.where(blind, 100.0, trust)
    slope = jnp.where(
        bells, _shrunk(line.slope * bells, line.slope_noise * bells), _shrunk(line.slope * ~bells, line.slope_noise * ~bells)
    )
    bend = _shrunk(line.bend, line.bend_noise)
    precision = jnp.where(bells, jnp.maximum(1.0 - 2.0 * bend, 1.0 / trust), 1.0)
    far = jnp.where(bells, 1.5 * jnp.sqrt(trust), jnp.inf)
    # A steep target is believed for the mean, where that is the careful thing to do, but not at once for the scale.
    shift = jnp.clip(length * slope / precision, -far, far)
    return shift, -0.5 * length * jnp.log(jnp.minimum(precision, trust))


def promise(line: Line) -> jax.Array:
    """Give the gain a full step still promises, less what noise alone would promise."""
    precision = jnp.clip(1.0 - 2.0 * line.bend, 0.1, 10.0)
    gain = 0.5 * (line.slope**2 - line.slope_noise) / precision + line.bend**2 - line.bend_noise
    return jnp.maximum(jnp.sum(gain), 0.0)


def _shrunk(x, noise):
    """Positive-part James-Stein: 1 - sum of noise / sum of squares."""
    return x * jnp.maximum(0.0, 1.0 - jnp.sum(noise) / jnp.maximum(jnp.sum(x**2), jnp.finfo(x.dtype).tiny))
