"""Priors that the data speak against, and those that are missed: directions in which nothing holds the parameters."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpyro.distributions as dist
from scipy.special import ndtri

from yoasovi.families.base import Gaussian
from yoasovi.start import middle

_SURE = 0.001  # chance of a false alarm, over all parameters, where the prior is right
_PULL = 0.25  # posterior sds that the prior must move a parameter by to be worth a word
# Share of the prior's variance that the data count as taking away, at least: where the posterior is not normal, or q has not
# converged, it can be as wide as the prior, and a mean one prior sd away is no conflict then.
_LEAST_LEARNED = 0.25
# Distance along q's longest axis, relative to the parameters' size, and nats by which log p falls on it where nothing holds.
_FAR, _HARDLY = 1e9, 1.0
_LARGEST = 1e150  # number that can be squared
_NORMAL = (dist.Normal, dist.LogNormal, dist.MultivariateNormal)  # normal on the scale that q lives on


class Expected(NamedTuple):
    """The parameter that is farthest from where its prior would let one expect it; of those in conflict with it, if any."""

    parameter: str
    away: float  # sds between the answer and where this prior would let one expect it
    limit: float  # beyond what chance allows
    conflict: bool  # it is farther, and owes something to the prior
    sentence: str


def endless(fit: Any) -> list[str]:
    """Name the parameters along q's longest axis, if log p is as high a billion times their size away: nothing holds them.

    Three values of log p.
    """
    mean, frame = (np.clip(np.nan_to_num(x), -_LARGEST, _LARGEST) for x in fit.family.frame(fit.params))
    axis = np.eye(len(mean))[np.argmax(frame)] if frame.ndim == 1 else np.linalg.svd(frame / np.abs(frame).max())[0][:, 0]
    away = min(_FAR * max(1.0, np.abs(mean).max()), _LARGEST) * axis
    near, *far = fit.kernels.heights(np.stack([mean, mean + away, mean - away]))
    if not any(np.isfinite(h) and h > near - _HARDLY for h in far):
        return []
    share = np.abs(axis) / np.abs(axis).max()
    return [fit.model.free_names[j] for j in sorted(np.argsort(-share)[:3]) if share[j] > 0.1]


def expected(fit: Any, least: float = 3.0) -> Expected | None:
    """See how far parameters are from where their priors would let one expect them; None without a prior that can tell.

    Where the prior N(c, s^2) is right, the posterior mean m varies about c with variance s^2 - v, v the posterior's variance
    (exactly so for normal models, whatever the other parameters). A conflict is z = (m - c)/sqrt(s^2 - v) beyond `least` and
    what chance allows, where the prior also moves the answer: by (m - c) v/(s^2 - v), against the posterior's own sd (Box
    1980; Evans and Moshonov 2006). Looked at are normal, lognormal and half-normal priors; laws with heavier tails give way
    by themselves. All is read off q: log p is not evaluated.
    """
    if not isinstance(fit.family, Gaussian) or fit.kept is not None:
        return None
    mean, frame = fit.family.frame(fit.params)
    variance = np.sum(frame**2, -1) if frame.ndim == 2 else frame**2
    split = fit.model.density.split
    free, means, variances = split(np.array(fit.model.free_names)), split(mean), split(variance)
    limit = max(least, -float(ndtri(_SURE / len(mean))))
    found = []
    for site, law in fit.model.prior.items():
        law = _plain(law)
        seen = _as_normal(law, np.ravel(means[site]), np.ravel(variances[site]))
        if seen is None:
            continue
        left = np.maximum(seen.scale**2 - seen.variance, _LEAST_LEARNED * seen.scale**2)
        z = np.abs(seen.mean - seen.centre) / np.sqrt(left)
        pull = np.abs(seen.mean - seen.centre) * np.sqrt(seen.variance) / left
        against = (z > limit) & (pull > _PULL)
        j = int(np.argmax(np.where(against, z, 0.0) if against.any() else z))
        name = str(np.ravel(free[site])[j])
        said = _told(name, law, _Seen(*(x[j] for x in seen)), z[j]) if against[j] else _fine(name, z[j] > limit)
        found.append(Expected(name, float(z[j]), limit, bool(against[j]), said))
    return max(found, key=lambda x: (x.conflict, x.away)) if found else None


class _Seen(NamedTuple):
    """A normal prior, and q's mean and variance on the scale where the prior is normal."""

    centre: Any
    scale: Any
    mean: Any
    variance: Any


def _plain(law: Any) -> Any:
    while isinstance(law, dist.ExpandedDistribution | dist.Independent | dist.MaskedDistribution):
        law = law.base_dist
    return law


def _as_normal(law: Any, mean: np.ndarray, variance: np.ndarray) -> _Seen | None:
    wide = lambda x: np.broadcast_to(np.ravel(np.asarray(x, float)), mean.shape)
    if isinstance(law, _NORMAL):
        centre, scale = middle(law)  # type: ignore[misc]
        return _Seen(wide(centre), wide(scale), mean, variance)
    if isinstance(law, dist.HalfNormal):  # q is normal in the logarithm
        at = np.exp(mean + variance / 2.0)
        return _Seen(wide(0.0), wide(law.scale), at, at**2 * np.expm1(variance))
    return None


def _told(name: str, law: Any, seen: _Seen, z: float) -> str:
    what = f"log {name}" if isinstance(law, dist.LogNormal) else name
    prior = f"HalfNormal({seen.scale:.4g})" if isinstance(law, dist.HalfNormal) else f"{seen.centre:.4g} ± {seen.scale:.4g}"
    answer = f"{seen.mean:.4g} ± {np.sqrt(seen.variance):.2g}"
    told = f"The data speak against the prior of {what}, {prior}: the answer, {answer}, is more than {int(z)} sds from where"
    return f"{told} this prior would let one expect it, and owes much to the prior."


def _fine(name: str, far: bool) -> str:
    if far:
        return f"{name} is far from where its prior would let one expect it, and the data overrule that prior."
    return "Parameters are where their priors would let one expect them."
