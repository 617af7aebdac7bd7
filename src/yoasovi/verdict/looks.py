"""Looks at log p beyond the draws that q was fitted to: its scores at q, where q hardly goes, and where else it peaks.

q's own draws cannot tell what q never sees. Three looks can: scores say what a Gaussian of this family misses right where
q is; heavy-tailed proposals around q say how much of the posterior lies outside; climbs from scattered starts find other
modes, whose mass a Laplace approximation estimates. Every evaluation of log p is counted.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from numpyro.distributions import biject_to
from scipy.special import gammaln, logsumexp
from scipy.stats import chi2, norm

from yoasovi.acceptance import open_uniform
from yoasovi.answer.result import _ratio_at
from yoasovi.families.base import FullRank, LowRank
from yoasovi.gradients import Problem
from yoasovi.kernels.programs import Clock, as_arrays, call, precision
from yoasovi.start import climb
from yoasovi.verdict.diagnostics import Estimate
from yoasovi.windows.rule import paired_gain

FULL_UP_TO = 300  # parameters, for what costs d gradients or d^2 numbers
_BLOCK = 1000  # draws per compiled call, as in `result`
_FAR = 4  # of them are climbed from
_OUTSIDE = 1e-4  # q's own probability of what is called outside q


class Scores(NamedTuple):
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
    log_ratio: np.ndarray  # log p - log q at those that came from q itself
    log_evidence: Estimate
    outside: Estimate  # share of the posterior where q has a probability of 1e-4
    far: np.ndarray  # (few, D), the heaviest draws there
    num_values: int


class Mode(NamedTuple):
    """A maximum of log p."""

    x: np.ndarray  # in q's own units, q's mean at zero
    log_p: float
    log_mass: float  # by Laplace's method; -inf if it is no proper maximum
    distance: float  # from q's mean: root mean square over the coordinates
    barrier: float  # how far log p falls between q's own mode and this one


class Search(NamedTuple):
    """What climbs from scattered starts found."""

    own: Mode
    others: tuple[Mode, ...]  # distinct from `own` and from each other, largest mass first
    climbs: int
    num_values: int
    num_gradients: int


def scores(fit, seed: int = 0) -> Scores:
    """Take scores at mirrored draws from q, and measure what the step they propose would gain."""
    dim = fit.model.density.dim
    pairs = 256 if dim <= 128 else min(2 * dim, 1024)
    static, inputs = (fit.model.density, fit.family, pairs), as_arrays(fit.model.inputs)
    with precision():
        eps, white, gain = call(Clock(), _scores, static, inputs, fit.params, seed)
    eps, white = np.asarray(eps)[:, :dim], np.asarray(white)
    sound = np.isfinite(white).all(1)
    sound = np.repeat(sound[0::2] & sound[1::2], 2)
    gained = Estimate(float(gain.mean), float(gain.se))
    return Scores(eps[sound], white[sound], gained, 2 * int(gain.pairs), 2 * pairs)


def wide(fit, axes: np.ndarray | None = None, n: int = 4000, seed: int = 0) -> Wide:
    """Importance-sample from half q, a quarter multivariate t and a quarter q with one axis replaced by a t.

    `axes` are orthonormal columns, the coordinate axes if None. Weights are those of the mixture: bounded where q has
    no tails (Hesterberg 1995).
    """
    static, inputs = (fit.model.density, fit.family), as_arrays(fit.model.inputs)
    dim = fit.family.noise_size(fit.model.density)
    rng = np.random.default_rng([seed, 1])
    eps = rng.normal(size=(n, dim))
    radial, single = slice(n // 2, 3 * n // 4), slice(3 * n // 4, n)
    eps[radial] *= _T_SCALE * np.sqrt(_T_DF / rng.chisquare(_T_DF, size=(n // 4, 1)))
    along = eps if axes is None else eps @ axes
    rows, which = np.arange(n)[single], rng.integers(dim, size=n - 3 * n // 4)
    heavy = 2.0 * rng.standard_t(_AXIS_DF, size=rows.size)
    change = heavy - along[rows, which]
    if axes is None:
        eps[rows, which] = heavy
    else:
        eps[rows] += change[:, None] * axes[:, which].T
    along = eps if axes is None else eps @ axes
    with precision():
        blocks = [np.asarray(call(Clock(), _ratio_at, static, inputs, fit.params, _padded(eps[i : i + _BLOCK])))
                  for i in range(0, n, _BLOCK)]  # fmt: skip
    log_ratio = np.concatenate(blocks)[:n]
    log_ratio = np.where(np.isfinite(log_ratio), log_ratio, -np.inf)
    log_law = logsumexp([np.full(n, np.log(0.5)), np.log(0.25) + _radial(eps), np.log(0.25) + _axiswise(along)], axis=0)
    log_weight = log_ratio - log_law
    top = log_weight.max()
    raw = np.exp(log_weight - top)
    mean, se = raw.mean(), raw.std(ddof=1) / np.sqrt(n)
    weights = raw / raw.sum()
    away = (eps**2).sum(1) > chi2.isf(_OUTSIDE / 2, dim)
    away |= np.abs(along).max(1) > norm.isf(_OUTSIDE / (4 * dim))
    share = float(weights @ away)
    heaviest = eps[np.argsort(-weights * away)[: min(_FAR, int(away.sum()))]]
    error = float(np.sqrt(np.sum(weights**2 * (away - share) ** 2)))
    evidence = Estimate(float(np.log(mean) + top), float(se / mean))
    return Wide(eps, weights, log_ratio[: n // 2], evidence, Estimate(share, error), heaviest, n)


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


def search(fit, starts: int = 16, budget: int = 60, seed: int = 0, far: np.ndarray | None = None) -> Search:
    """Climb log p from q's mean, draws of a much wider q, prior draws and places `far` out; give the modes found."""
    density, inputs, clock = fit.model.density, as_arrays(fit.model.inputs), Clock()
    rng = np.random.default_rng([seed, 2])
    with precision():
        mean, frame = map(np.asarray, call(clock, _frame, (density, fit.family), fit.params))
        volume = np.log(np.diag(frame) if frame.ndim == 2 else frame).sum()
        # Flat, and put on the device once: taking distributions apart would cost more than most densities do.
        leaves, tree = jax.tree.flatten((inputs, mean, frame))
        leaves = [jnp.asarray(x) for x in leaves]
        landscape = Landscape(partial(call, clock, _height, (density, tree), leaves), float(volume))
        begins = _starts(fit, clock, mean, frame, starts, rng, seed)
        if far is not None and far.shape[1] == mean.size:
            begins += list(far)
        ends: list[np.ndarray] = []
        for begin in begins:
            top, spent, _ = climb(landscape.look, begin, budget, enough=0.01)
            landscape.gradients += spent
            if not any(np.sqrt(np.mean((top - x) ** 2)) < 0.5 for x in ends):
                ends.append(top)
        own = landscape.mode(ends[0])
        # Where log p has no maximum every climb ends elsewhere: the highest few are enough to see it.
        rest = sorted(map(landscape.mode, sorted(ends[1:], key=landscape.height)[-6:]), key=lambda m: -m.log_mass)
        others = [m._replace(barrier=landscape.barrier(own, m)) for m in rest if np.isfinite(m.log_mass)]
    return Search(own, tuple(others), len(begins), 0, landscape.gradients)


class Landscape:
    """log p in q's own units, with a count of its evaluations."""

    def __init__(self, look, volume: float):
        self.look = look  # x -> (log p, gradient)
        self.volume = volume  # logarithm of one unit of volume
        self.gradients = 0

    def at(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        self.gradients += 1
        height, gradient = self.look(x)
        return float(height), np.asarray(gradient)

    def height(self, x: np.ndarray) -> float:
        return self.at(x)[0]

    def mode(self, x: np.ndarray) -> Mode:
        """Take a closer look at where a climb ended: Laplace's estimate of the mass around it, in q's own units."""
        height, gradient = self.at(x)
        blank = Mode(x, height, -np.inf, float(np.sqrt(np.mean(x**2))), 0.0)
        if not np.isfinite(height):
            return blank
        unit = 0.5 * x.size * np.log(2 * np.pi) + self.volume
        if x.size > FULL_UP_TO:  # taken to be as wide as q
            return blank._replace(log_mass=height + unit)
        step = 1e-4
        columns = [(self.at(x + step * e)[1] - gradient) / step for e in np.eye(x.size)]
        curvature = -0.5 * (np.array(columns) + np.array(columns).T)
        if not np.isfinite(curvature).all():
            return blank
        values, vectors = np.linalg.eigh(curvature)
        if values[0] <= 1e-6 * values[-1]:  # a saddle, a ridge, or a climb that has no end
            return blank
        more = 0.5 * float(np.sum((vectors.T @ gradient) ** 2 / values))
        if more > 1.0 + 0.1 * x.size:  # the climb was cut on its way
            return blank
        mass = height + more + unit - 0.5 * np.log(values).sum()
        return blank._replace(log_mass=float(mass))

    def barrier(self, a: Mode, b: Mode) -> float:
        """Give how far log p falls on the straight way between two modes."""
        heights = np.array([self.height(x) for x in np.linspace(a.x, b.x, 25)[1:-1]])
        return min(a.log_p, b.log_p) - float(np.min(np.where(np.isfinite(heights), heights, -1e300)))


def _starts(fit, clock, mean, frame, count, rng, seed) -> list[np.ndarray]:
    """Half from q widened by 3 to 100, half from the prior (or q widened again, where the prior is improper)."""
    dim = mean.size
    scale = np.exp(rng.uniform(np.log(3.0), np.log(100.0), size=(count, 1)))
    begins = rng.normal(size=(count, dim)) * scale
    inputs = as_arrays(fit.model.inputs)
    prior = np.asarray(call(clock, _prior_draws, (fit.model.density, count // 2), inputs, seed)) - mean
    prior = np.linalg.solve(frame, prior.T).T if frame.ndim == 2 else prior / frame
    begins[: count // 2] = np.where(np.isfinite(prior), np.clip(prior, -1e3, 1e3), begins[: count // 2])
    return [np.zeros(dim), *begins]


def _padded(block: np.ndarray) -> np.ndarray:
    return np.concatenate([block, np.repeat(block[-1:], _BLOCK - len(block), 0)])


def _scores(density, family, pairs, inputs, params, seed):
    k_draw, k_judge = jax.random.split(jax.random.fold_in(jax.random.key(seed), 5))
    half = ndtri(open_uniform(k_draw, (pairs, family.noise_size(density))))
    eps = jnp.stack([half, -half], 1).reshape(2 * pairs, -1)
    log_p = lambda theta: density.free_terms(inputs, theta).total()
    score = lambda e: family.white(params, e, jax.grad(log_p)(family.place(params, e)))
    white = jax.lax.map(score, eps, batch_size=64)
    count = jnp.asarray(2 * pairs)
    full = jnp.asarray(density.dim <= FULL_UP_TO)
    there = family.propose(params, eps, white, count, full, jnp.asarray(1.0), jnp.asarray(16.0)).params
    gain = paired_gain(k_judge, Problem(density, family, inputs), there, params, 256, surely=6.0)
    return eps, white, gain


def _frame(density, family, params):
    """Give q's mean and a frame of its own units: a triangular factor, or one scale per coordinate."""
    mean = family.place(params, jnp.zeros(family.noise_size(density)))
    if isinstance(family, FullRank):
        return mean, family.factor(params)
    scale = jnp.exp(params.log_scale)
    if isinstance(family, LowRank):
        scale = scale * jnp.sqrt(1.0 + jnp.sum(params.loading**2, 1))
    return mean, scale


def _at(mean, frame, x):
    return mean + (frame @ x if frame.ndim == 2 else frame * x)


def _height(density, tree, leaves, x):
    inputs, mean, frame = jax.tree.unflatten(tree, leaves)
    return jax.value_and_grad(lambda y: density.free_terms(inputs, _at(mean, frame, y)).total())(x)


def _prior_draws(density, n, inputs, seed) -> Any:
    """Draw from the prior, flat and unconstrained; NaN where it is improper."""
    key, parts = jax.random.fold_in(jax.random.key(seed), 6), []
    for i, site in enumerate(density.sites):
        law = inputs.prior[site.name]
        try:
            draws = jax.vmap(biject_to(law.support).inv)(law.sample(jax.random.fold_in(key, i), (n,)))
        except NotImplementedError:  # an improper prior says nothing about where to look
            draws = jnp.full((n, *site.free_shape), jnp.nan)
        parts.append(draws.reshape(n, -1))
    return jnp.concatenate(parts, 1)
