"""Looks at log p beyond the draws that q was fitted to: its scores at q, where q hardly goes, and where else it peaks.

q's own draws cannot tell what q never sees. Three looks can: scores say what a Gaussian of this family misses right where
q is; heavy-tailed proposals around q say how much of the posterior lies outside; climbs from scattered starts find other
modes, whose mass a Laplace approximation estimates. Every evaluation of log p is counted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpyro.distributions import ImproperUniform
from scipy.special import chdtri, gammaln, logsumexp, ndtri

from yoasovi.climb import climb
from yoasovi.randomness import Purpose, mirrored, stream
from yoasovi.verdict.diagnostics import Estimate
from yoasovi.verdict.labels import Relabelling
from yoasovi.verdict.landscape import FULL_UP_TO, Landscape, Mode
from yoasovi.windows import judge
from yoasovi.windows.state import COLD_TRUST

CHAINS, _CHAIN_GRADIENTS = 128, 40_000
# Nats: of log p from q's mean to a mode, and of a mode's mass beyond the ELBO, where q is not around it.
_BELOW, _MORE = 6.0, 3.0
_FAR = 4  # of them are climbed from
_OF_THE_PRIOR = 64  # draws for each that is climbed from
_NUMBERS = 2**23  # of noise in one array
_OUTSIDE = 1e-4  # q's own probability of what is called outside q


class Effort(NamedTuple):
    """How much a verdict may look: as much as it likes where looks are cheap, no more than the fit did elsewhere."""

    pairs: int  # of mirrored scores
    draws: int  # from heavy-tailed proposals
    starts: int  # of climbs
    hessian: bool  # d more gradients for the mass of a mode
    chains: int  # short Markov chains from the answer's draws, where weights cannot tell
    chain_gradients: int

    @classmethod
    def of(cls, fit: Any, draws: int | None, starts: int | None) -> Effort:
        """Choose by the cost of one look, and by what the fit itself took."""
        dim = fit.model.density.dim
        pairs = 256 if dim <= 128 else min(2 * dim, 1024, max(_NUMBERS // (2 * dim), 16))
        most = int(np.clip(_NUMBERS // dim, 200, 4000))  # draws
        if fit.kernels.cheap:
            can = fit.model.differentiable
            # Without a prior to begin at, climbs find a far mode less often.
            many = 48 if any(isinstance(law, ImproperUniform) for law in fit.model.prior.values()) else 16
            return cls(pairs, draws or most, many if starts is None else starts, True, CHAINS * can, _CHAIN_GRADIENTS)
        spent = fit.num_gradients + fit.num_values // 3  # in gradients
        return cls(
            int(np.clip(spent // 16, 16, pairs)), draws or int(np.clip(spent, 200, most)),
            int(np.clip(spent // 100, 2, 16)) if starts is None else starts, dim <= spent // 8, 0, 0,
        )  # fmt: skip


class ScoreLook(NamedTuple):
    """Scores of mirrored draws in q's own units; all zero where q is the posterior."""

    eps: np.ndarray  # (n, d); rows 2k and 2k + 1 are mirrored
    white: np.ndarray  # (n, d)
    gain: Estimate  # of the step that the scores propose, on paired fresh draws: the distance still to gain
    num_values: int
    num_gradients: int


class Wide(NamedTuple):
    """Draws from a mixture of q and heavy-tailed laws around it, weighted towards the posterior."""

    eps: np.ndarray  # (n, D) in q's own units
    weights: np.ndarray  # (n,), they sum to one
    log_evidence: Estimate
    outside: Estimate  # share of the posterior where q has a probability of 1e-4
    far: np.ndarray  # (few, D), the heaviest draws there
    num_values: int


class Search(NamedTuple):
    """What climbs from scattered starts found."""

    own: Mode
    others: tuple[Mode, ...]  # distinct from `own` and from each other, largest mass first
    relabelled: int  # more of them, which only swap labels of `own` or of others
    climbs: int
    height: float  # log p at q's mean
    num_values: int
    num_gradients: int

    @property
    def lost(self) -> bool:
        """Whether q's mean is far below the maximum next to it."""
        return self.own.log_p > self.height + _BELOW

    def elsewhere(self, barrier: float, elbo: float) -> list[Mode]:
        """Choose the modes behind a valley, or much higher and of more mass than q reaches: the one next to q too."""
        above = lambda m: not m.guessed and m.log_p > self.height + _BELOW and m.log_mass > elbo + _MORE
        return [m for m in (self.own, *self.others) if m.barrier > barrier or above(m)]


def scores(fit: Any, pairs: int, seed: int = 0) -> ScoreLook:
    """Take scores at mirrored draws from q, and measure what the step they propose would gain."""
    dim, family, kernels, lane = fit.model.density.dim, fit.family, fit.kernels, fit.lane
    size = family.noise_size(fit.model.density)
    eps = mirrored(stream(seed, Purpose.VERDICT_SCORES), 2 * pairs, size)[None]
    white = kernels.scores(lane, eps).white
    one = np.ones(1)
    with np.errstate(all="ignore"):
        full = family.lines_last() or (dim <= FULL_UP_TO and 2 * pairs > 2 * dim)
        there = family.propose(lane, eps, white, full, one, COLD_TRUST * one).params
    tally, rng = judge.empty(np.zeros(1)), stream(seed, Purpose.VERDICT_JUDGE)
    while tally.drawn[0] < pairs and not judge.sure(tally, 6.0)[0]:
        tally = judge.add(tally, *kernels.pairs(there, lane, rng.standard_normal((1, judge.BLOCK, size))))
    gain = judge.gained(tally)
    eps, white = eps[0, :, :dim], white[0]
    sound = np.isfinite(white).all(1)
    sound = np.repeat(sound[0::2] & sound[1::2], 2)
    gained = Estimate(float(gain.mean[0]), float(gain.se[0]))
    return ScoreLook(eps[sound], white[sound], gained, 2 * int(gain.pairs[0]), 2 * pairs)


def wide(fit: Any, axes: np.ndarray | None = None, n: int = 4000, seed: int = 0) -> Wide:
    """Importance-sample from half q, a quarter multivariate t and a quarter q with one axis replaced by a t.

    `axes` are orthonormal columns, the coordinate axes if None. Weights are those of the mixture: bounded where q has
    no tails (Hesterberg 1995).
    """
    dim = fit.family.noise_size(fit.model.density)
    rng = stream(seed, Purpose.VERDICT_WIDE)
    eps = rng.normal(size=(n, dim))
    radial, single = slice(n // 2, 3 * n // 4), slice(3 * n // 4, n)
    eps[radial] *= _T_SCALE * np.sqrt(_T_DF / rng.chisquare(_T_DF, size=(3 * n // 4 - n // 2, 1)))
    along = eps if axes is None else eps @ axes
    rows, which = np.arange(n)[single], rng.integers(dim, size=n - 3 * n // 4)
    heavy = 2.0 * rng.standard_t(_AXIS_DF, size=rows.size)
    change = heavy - along[rows, which]
    if axes is None:
        eps[rows, which] = heavy
    else:
        eps[rows] += change[:, None] * axes[:, which].T
    along = eps if axes is None else eps @ axes
    log_ratio = fit.kernels.values(fit.lane, eps[None])[0]
    log_ratio = np.where(np.isfinite(log_ratio), log_ratio, -np.inf)
    log_law = logsumexp([np.full(n, np.log(0.5)), np.log(0.25) + _radial(eps), np.log(0.25) + _axiswise(along)], axis=0)
    log_weight = log_ratio - log_law
    top = log_weight.max()
    raw = np.exp(log_weight - top)
    mean, se = raw.mean(), raw.std(ddof=1) / np.sqrt(n)
    weights = raw / raw.sum()
    away = outside(eps, axes)
    share = float(weights @ away)
    heaviest = eps[np.argsort(-weights * away)[: min(_FAR, int(away.sum()))]]
    error = float(np.sqrt(np.sum(weights**2 * (away - share) ** 2)))
    evidence = Estimate(float(np.log(mean) + top), float(se / mean))
    return Wide(eps, weights, evidence, Estimate(share, error), heaviest, n)


def outside(eps: np.ndarray, axes: np.ndarray | None) -> np.ndarray:
    """Tell which draws lie where q has a probability of 1e-4: far from its mean, or far along one axis."""
    dim, along = eps.shape[1], eps if axes is None else eps @ axes
    far = (eps**2).sum(1) > chdtri(dim, _OUTSIDE / 2)
    return far | (np.abs(along).max(1) > -ndtri(_OUTSIDE / (4 * dim)))


_T_DF, _T_SCALE, _AXIS_DF = 3.0, 1.5, 2.0


def _radial(eps: np.ndarray) -> np.ndarray:
    """Log density of the multivariate t over that of N(0, I)."""
    d, df, scale = eps.shape[1], _T_DF, _T_SCALE
    square = (eps**2).sum(1)
    constant = gammaln((df + d) / 2) - gammaln(df / 2) - 0.5 * d * np.log(df * np.pi) - d * np.log(scale)
    return constant - 0.5 * (df + d) * np.log1p(square / (df * scale**2)) + 0.5 * square + 0.5 * d * np.log(2 * np.pi)


def _axiswise(along: np.ndarray) -> np.ndarray:
    """Log density of q with one axis, any of them, replaced by a t of scale 2; over that of N(0, I)."""
    df, x = _AXIS_DF, along / 2.0
    constant = gammaln((df + 1) / 2) - gammaln(df / 2) - 0.5 * np.log(df * np.pi) - np.log(2.0)
    each = constant - 0.5 * (df + 1) * np.log1p(x**2 / df) + 0.5 * along**2 + 0.5 * np.log(2 * np.pi)
    return logsumexp(each, axis=1) - np.log(along.shape[1])


def search(fit: Any, effort: Effort, budget: int = 60, seed: int = 0, far: np.ndarray | None = None) -> Search:
    """Climb log p from q's mean, draws of a much wider q, prior draws and places `far` out; give the modes found."""
    mean, frame = (x[0] for x in fit.family.frame(fit.lane))
    landscape = Landscape(fit.kernels.point, mean, frame)
    begins, values = _starts(fit, landscape, effort.starts, seed)
    if far is not None:
        begins = np.concatenate([begins, landscape.into(fit.family.place(fit.lane, far[None])[0])])
    found = climb(landscape.look, begins, budget, enough=0.01)
    landscape.gradients += int(found.gradients.sum())
    ends: list[int] = []
    for i, top in enumerate(found.top):
        if not any(np.sqrt(np.mean((top - found.top[j]) ** 2)) < 0.5 for j in ends):
            ends.append(i)
    own = landscape.mode(found.top[0], effort.hessian)
    # Where log p has no maximum every climb ends elsewhere: the highest few are enough to see it.
    highest = sorted(ends[1:], key=lambda i: found.height[i])[-6:]
    rest = sorted((landscape.mode(found.top[i], effort.hessian) for i in highest), key=lambda m: -m.log_mass)
    rest = [m for m in rest if np.isfinite(m.log_mass)]
    labels = Relabelling(fit.model, fit.kernels.whole, frame, stream(seed, Purpose.LABELS))
    known, others = [own.theta, *_other_parts(fit)], []
    for mode in rest:
        if any(labels.swapped(place, mode.theta) for place in known):
            continue
        known.append(mode.theta)
        others.append(mode._replace(barrier=landscape.barrier(own, mode)))
    values += labels.num_values
    (height,), _ = landscape.at(np.zeros((1, mean.size)))
    return Search(own, tuple(others), len(rest) - len(others), len(begins), float(height), values, landscape.gradients)


def _other_parts(fit: Any) -> list[np.ndarray]:
    """Give where the other parts of a mixture are, if the fit is a part of one."""
    return [] if fit.share is None else list(np.delete(fit.share.params.parts.mean, fit.share.index, 0))


def _starts(fit: Any, landscape: Landscape, count: int, seed: int) -> tuple[np.ndarray, int]:
    """Half from q widened by 3 to 100, half from the prior (or q widened again, where the prior is improper).

    Of the latter, half are those of many prior draws that say most of the data. Also the values of log p that it took.
    """
    rng, dim = stream(seed, Purpose.VERDICT_SEARCH), landscape.mean.size
    scale = np.exp(rng.uniform(np.log(3.0), np.log(100.0), size=(count, 1)))
    begins = rng.normal(size=(count, dim)) * scale
    half, best = count // 2, count // 4
    many = _OF_THE_PRIOR * best
    prior = _prior_draws(fit.model, half - best + many, seed)
    known = np.isfinite(prior)
    prior = np.where(known, prior, landscape.mean)
    spent = 0
    if known.all() and many:
        heights = fit.kernels.heights(prior[half - best :])
        order = np.argsort(np.where(np.isfinite(heights), -heights, np.inf), kind="stable")
        prior, spent = np.concatenate([prior[: half - best], prior[half - best :][order[:best]]]), many
    inside = np.clip(landscape.into(prior[:half]), -1e3, 1e3)
    begins[:half] = np.where(known[:half], inside, begins[:half])
    return np.concatenate([np.zeros((1, dim)), begins]), spent


def _prior_draws(model: Any, n: int, seed: int) -> np.ndarray:
    """Draw from the prior, or from a normal law with its middle and scale; unconstrained, NaN where it is improper."""
    from yoasovi.start import middle, prior_rows

    parts = []
    rng = stream(seed, Purpose.PRIOR)
    for i, site in enumerate(model.density.sites):
        size = int(np.prod(site.free_shape))
        found = middle(model.prior[site.name])
        noise = rng.normal(size=(n, size))
        if found is None:
            rows = prior_rows(model.prior[site.name], n, seed, i)
            parts.append(np.full((n, size), np.nan) if rows is None else rows.reshape(n, size))
            continue
        centre, scale = (np.ravel(np.broadcast_to(np.asarray(x, float), site.free_shape)) for x in found)
        parts.append(centre + scale * noise)
    return np.concatenate(parts, 1)
