"""Which fits are corrected towards the posterior, and by which pool of weighted draws."""

from __future__ import annotations

from typing import Any

import numpy as np

from yoasovi.answer.conditional import conditional_pool, in_groups
from yoasovi.answer.correction import KERNELS_UP_TO, WARPED_UP_TO, Pool, pool
from yoasovi.answer.long_pool import LONG, LongPool, long_pool
from yoasovi.families import Arrow, Gaussian
from yoasovi.randomness import Purpose, stream
from yoasovi.verdict.diagnostics import effective_size, importance_weights

# Independent draws that a corrected sample is worth at least: where looks are cheap, and where they are not.
_WORTH, _WORTH_LITTLE = 2000, 500
_WORTH_LONG = 2000  # of draws too long to be kept
# In many dimensions: the share of their number that q's draws must be worth to be corrected; that from which it is tried,
# and that the draws which come out have to be worth too; and as how many independent ones.
_CARRY, _TRY, _LEAST = 0.1, 0.02, 400
# Of a hierarchy: share of their number that q's draws are worth, from which groups need not be drawn one by one; and that
# draws made so must be worth, for nothing else to be tried.
_EVEN, _HOPE = 0.5, 0.1
_WIDER = 2.0  # than usual, of draws that others are compared with


def carry(fit: Any) -> bool:
    """Say whether importance correction can carry: q has few dimensions, or weights of its draws are not too uneven.

    How uneven, a thousand draws tell roughly; in between it is tried, where that costs little.
    """
    if not isinstance(fit.family, Gaussian) or not fit.model.differentiable:
        return False
    share = _share(fit)
    if _noise_size(fit) <= KERNELS_UP_TO or share > _CARRY:
        return True
    if fit.kept is not None or not fit.kernels.cheap:
        return False
    if in_groups(fit, fit) is None and (share < _TRY or _axes(fit) is None):
        return False
    tried = gathered(fit, 1)
    return tried.effective_size > max(_LEAST, _TRY * len(tried.weights))


def gathered(fit: Any, n: int) -> Pool | LongPool:
    """Give the pool that n draws come from; a fit keeps those it has."""
    noise_size = _noise_size(fit)
    size = _WORTH_LONG if noise_size > LONG else max(_WORTH if fit.kernels.cheap else _WORTH_LITTLE, n // 2)
    known = fit._pools
    if size not in known:
        groups = in_groups(fit, fit) if noise_size <= LONG and _share(fit) < _EVEN else None
        first = None if groups is None else conditional_pool(groups, size, stream(fit.seed, Purpose.CORRECTION, 0, 1))
        if first is not None and first.effective_size > _HOPE * len(first.weights):
            known[size] = first
        else:
            other = _as_a_whole(fit, size)
            worth = lambda pool: pool.effective_size / len(pool.weights)
            known[size] = first if first is not None and worth(first) > worth(other) else other
    return known[size]


def anew(fit: Any, size: int, bill: Any, seed: int) -> Pool | None:
    """Gather other draws than a fit's own, from wider laws, where those were gathered group by group; counted in `bill`.

    None where they were not, or where those that come out are worth too little.
    """
    known = fit.pool(size)
    groups = in_groups(fit, bill) if isinstance(known, Pool) and known.by_groups else None
    if groups is None:
        return None
    found = conditional_pool(groups, size, stream(seed, Purpose.VERDICT_GROUPS), _WIDER)
    return found if found.effective_size > max(_LEAST, _HOPE * len(found.weights)) else None


def _as_a_whole(fit: Any, size: int) -> Pool | LongPool:
    """Gather draws of all parameters together."""

    def log_ratio(eps: np.ndarray) -> np.ndarray:
        fit.num_values += len(eps)
        return fit.kernels.values(fit.lane, eps[None])[0]

    noise_size = _noise_size(fit)
    # Of a large hierarchy the globals alone want wider draws.
    if noise_size > LONG or (isinstance(fit.family, Arrow) and noise_size > WARPED_UP_TO):
        return long_pool(log_ratio, noise_size, size, fit.seed, fit.family.hub(noise_size))
    rng, growth = stream(fit.seed, Purpose.CORRECTION), 2 if fit.kernels.cheap else 1
    return pool(log_ratio, noise_size, size, rng, _axes(fit), growth)


def _share(fit: Any) -> float:
    """Give the share of their number that q's own draws are worth, as far as those behind the ELBO tell."""
    weights = importance_weights(fit.log_ratio)
    return effective_size(weights) / max(len(weights), 1)


def _noise_size(fit: Any) -> int:
    return fit.family.noise_size(fit.model.density)


def _axes(fit: Any) -> np.ndarray | None:
    """Give what turns q's noise into parameters in units of their sds under q, where noise is one number for each."""
    frame, dim = fit.family.frame(fit.lane)[1][0], fit.model.density.dim
    if _noise_size(fit) != dim or dim > WARPED_UP_TO:
        return None
    if isinstance(fit.family, Arrow):
        frame = (fit.family.place(fit.lane, np.eye(dim)[None])[0] - fit.params.mean).T
    return np.eye(len(frame)) if frame.ndim == 1 else frame / np.linalg.norm(frame, axis=1, keepdims=True)
