"""A fit mended where the posterior has other modes: the better mode in its place, or a mixture of those that have mass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from yoasovi.answer.result import Fit, Part, Seconds
from yoasovi.families import Mixture, Share
from yoasovi.fitting import fit as fit_again, fresh_elbos
from yoasovi.kernels.looks import PartKernels
from yoasovi.model import Model, Params
from yoasovi.randomness import Purpose, open_uniform, stream
from yoasovi.stopping import StopReason
from yoasovi.verdict.findings import Thresholds
from yoasovi.verdict.labels import Relabelling
from yoasovi.verdict.looks import Search

_ROUNDS = 2  # of looking for modes: from a better one others may be seen
_MOST = 4  # modes that are fitted in a round
_BEHIND = 10.0  # nats below the best, by Laplace's method, from which a mode is not tried
_LEAST = 0.01  # of the posterior, that makes a mode part of the answer
_SAME = 2.0  # nats between two q (KL), below which they describe the same mode
_BLOCK, _BLOCKS, _SURE = 1000, 8, 0.01  # draws of each q by which modes are weighed, until the errors are small


def mend_modes(
    fit: Fit, most: int | None = None, seen: Search | None = None, limits: Mapping[str, Any] = MappingProxyType({})
) -> Fit | None:
    """Give a better answer where climbs found other modes; None where the fit stays as it is.

    Each promising mode gets a fit that begins there, and all are weighed against each other by importance sampling. If one
    holds nearly everything, that fit is the answer; modes of 1% and more make a mixture. What that cost is
    in the counts of the answer, or of the fit that stays; no other round begins once it is `most` evaluations. The first
    round begins with what was `seen`, or with what the verdict on the fit sees. `limits` hold for all fits.
    """
    answer, fits, tried = fit, [fit], [fit]
    values = gradients = 0
    for _ in range(_ROUNDS):
        looked_at: Any = seen or answer.judged()
        places = promising(seen or looked_at.search, answer.elbo.value)
        seen = None
        spent = sum(f.num_values + f.num_gradients for f in tried[1:]) + values + gradients
        if not places or (most is not None and spent >= most):
            break
        more = [_from(fit, place, limits) for place in places]
        tried += more
        fits, looked = _distinct([*fits, *more])
        weights = weigh(fits)
        values += looked_at.num_values + looked + weights.num_values
        gradients += looked_at.num_gradients
        answer = _answer(fits, weights)
        _charge(answer, tried, values, gradients)
    if len(tried) == 1 or answer.params is not fit.params:
        return None if answer is fit else answer
    fit.num_values, fit.num_gradients = answer.num_values, answer.num_gradients
    fit.timed(answer.seconds)
    return None


def promising(search: Search | None, elbo: float) -> list[np.ndarray]:
    """Choose the modes that may have mass, elsewhere than q, and are not far below the best."""
    if search is None:
        return []
    best = max(m.log_mass for m in (search.own, *search.others))
    apart = [m for m in search.elsewhere(Thresholds().barrier, elbo) if m.log_mass > best - _BEHIND]
    return [m.theta for m in sorted(apart, key=lambda m: -m.log_mass)[:_MOST]]


@dataclass(frozen=True)
class _Place:
    """A start at one point."""

    at: Params

    def __call__(self, key: Any) -> Params:
        raise NotImplementedError("the point is known on the unconstrained scale only")

    def free(self, key: Any) -> Params:
        """Give the unconstrained values of all sites."""
        return self.at


def _from(fit: Fit, theta: np.ndarray, limits: Mapping[str, Any]) -> Fit:
    """Fit again, beginning at a point."""
    model: Model = replace(fit.model, start=_Place(fit.model.density.split(theta)))
    found = fit_again(model, method=fit.method, family=fit.family, seed=fit.seed, progress=False, mend=False, **limits)
    if found.stop_reason == StopReason.INTERRUPTED:
        raise KeyboardInterrupt
    found.model, found.family_reason, found.asked = fit.model, fit.family_reason, fit.asked
    return found


# ---- which of them, and how much ---------------------------------------------------------------------------


class Weights(NamedTuple):
    """Shares of the posterior that several q describe, with standard errors, and the values of log p they took."""

    shares: np.ndarray
    errors: np.ndarray
    num_values: int


def _distinct(fits: list[Fit]) -> tuple[list[Fit], int]:
    """Keep the best fit of each mode, the best first, one of those that only swap labels; also the values it took."""
    kept: list[tuple[Fit, Relabelling]] = []
    for one in sorted(fits, key=lambda f: -f.elbo.value):
        mean, frame = (x[0] for x in one.family.frame(one.lane))
        same = (_apart(one, q) <= _SAME or labels.swapped(q.params.mean, mean) for q, labels in kept)
        if np.isfinite(one.elbo.value) and not any(same):
            kept.append((one, Relabelling(one.model, one.kernels, frame, stream(one.seed, Purpose.LABELS, 1))))
    return [one for one, _ in kept], sum(labels.num_values for _, labels in kept)


def _apart(a: Fit, b: Fit) -> float:
    """Give the distance of two q: KL, the smaller of both ways."""
    theta = [_draws(f, stream(f.seed, Purpose.SHARES), 200) for f in (a, b)]
    log_q = [[_log_q(q, x) for q in (a, b)] for x in theta]
    return float(min(np.mean(log_q[0][0] - log_q[0][1]), np.mean(log_q[1][1] - log_q[1][0])))


def weigh(fits: list[Fit]) -> Weights:
    """Weigh the modes that fits describe.

    Draws come from every q, weighted by p / mean_j q_j (the balance heuristic), and a draw counts for each part by its
    share w_k q_k / sum_j w_j q_j. The weights w are those that reproduce themselves.
    """
    first, many = fits[0], len(fits)
    log_p, log_q = np.empty(0), np.empty((many, 0))
    for block in range(_BLOCKS):
        theta = np.concatenate([_draws(f, stream(f.seed, Purpose.SHARES, k, block), _BLOCK) for k, f in enumerate(fits)])
        log_p = np.concatenate([log_p, first.kernels.heights(theta)])
        log_q = np.concatenate([log_q, np.stack([_log_q(f, theta) for f in fits])], 1)
        ratio = np.where(np.isfinite(log_p), log_p, -np.inf) - logsumexp(log_q, axis=0)
        weights = np.exp(ratio - logsumexp(ratio))
        shares = np.full(many, 1.0 / many)
        for _ in range(100):
            each = shares[:, None] * np.exp(log_q - log_q.max(0))
            each /= each.sum(0)
            shares = each @ weights
        errors = np.sqrt(((each - shares[:, None]) ** 2) @ weights**2)
        if errors.max() < _SURE:
            break
    return Weights(shares, errors, log_p.size)


def _draws(fit: Fit, rng: np.random.Generator, n: int) -> np.ndarray:
    size = fit.family.noise_size(fit.model.density)
    return fit.family.place(fit.lane, fit.family.noise(open_uniform(rng, (1, n, size))))[0]


def _log_q(fit: Fit, theta: np.ndarray) -> np.ndarray:
    found = fit.family.log_q(fit.lane, theta[None])[0]
    return found if found.ndim == 1 else found.sum(-1)


# ---- the answer --------------------------------------------------------------------------------------------


def _answer(fits: list[Fit], weights: Weights) -> Fit:
    """Give the fit that has nearly all of the posterior, or a mixture of those that share it."""
    order = [k for k in np.argsort(-weights.shares) if weights.shares[k] >= _LEAST]
    whole = weights.shares[order].sum()
    parts = [Part(float(weights.shares[k] / whole), float(weights.errors[k]), fits[k]) for k in order]
    return mixture_of(parts) if len(parts) > 1 else replace(parts[0].fit).looking_through(parts[0].fit.kernels)


def mixture_of(parts: list[Part]) -> Fit:
    """Make one fit of several, the heaviest first: each describes its share of the posterior."""
    best = parts[0].fit
    family = Mixture(best.family)
    params = family.together(np.array([part.weight for part in parts]), [part.fit.params for part in parts])
    own = []
    for k, part in enumerate(parts):
        share = Share(family, params, k)
        one = replace(part.fit, share=share, _pools={}, _verdicts={}, _told=set()).looking_through(
            PartKernels(part.fit.kernels, share)
        )
        own.append(part._replace(fit=_with_elbo(one)))
    ended = [part.fit for part in parts if not part.fit.converged] or [best]
    answer = replace(
        best, family=family, family_reason="a fit for each mode that has mass", params=params, parts=tuple(own),
        converged=ended[0].converged, stop_reason=ended[0].stop_reason, stop_detail=ended[0].stop_detail,
        _pools={}, _verdicts={}, _told=set(),
    )  # fmt: skip
    return _with_elbo(answer)


def _with_elbo(fit: Fit) -> Fit:
    """Look at log p - log q on fresh draws."""
    (fit.elbo,), (fit.log_ratio,) = fresh_elbos(fit.kernels, fit.family, fit.lane, fit.seed, 1)
    fit.restart_elbos = [fit.elbo]
    return fit


def _charge(answer: Fit, tried: list[Fit], values: int, gradients: int) -> None:
    """Count all that was tried, and the looks beside it, as cost of the answer."""
    answer.num_values = sum(f.num_values for f in tried) + values
    answer.num_gradients = sum(f.num_gradients for f in tried) + gradients
    stages = {k: sum(f.seconds.stages.get(k, 0.0) for f in tried) for f in tried for k in f.seconds.stages}
    answer.seconds = Seconds(sum(f.seconds.compile for f in tried), sum(f.seconds.run for f in tried), stages)
