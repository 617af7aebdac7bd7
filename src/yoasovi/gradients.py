"""Estimators of the ELBO's gradient from the draws of one iteration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.special import ndtri
from numpyro.distributions import Distribution

from yoasovi.errors import check, positive_number
from yoasovi.model.model import Batch, Density, Inputs, Terms
from yoasovi.windows.score_line import shrinkage


class Problem(NamedTuple):
    """A model seen through a family; lives inside a trace only.

    Where there are minibatches, the last number of a row of noise names one. So whoever shares noise shares the
    minibatch too, and a mirrored pair does (see `as_key`).
    """

    density: Density
    family: Any
    inputs: Inputs
    anchor: Any = None  # of minibatches
    batch: Batch | None = None  # the one dealt; None is all the data

    @property
    def noise_size(self) -> int:
        """How many uniform numbers make one look: a draw, and a minibatch where there are any."""
        return self.family.noise_size(self.density) + (self.density.subsampled is not None)

    def dealt(self, uniform) -> tuple[jax.Array, Problem]:
        """Split a row of noise: the family's, and the problem on the minibatch that the rest names."""
        if self.density.subsampled is None:
            return uniform, self
        return uniform[:-1], self._replace(batch=Batch(as_key(uniform[-1]), self.anchor))

    def draw(self, params, uniform):
        return self.family.draw(self.density, params, self.dealt(uniform)[0])

    def terms(self, theta) -> Terms:
        if self.batch is None:
            return self.family.terms(self.density, self.inputs, theta)
        return self.density.free_terms(self.inputs, theta, self.batch)

    def pieces(self, params, theta):
        return self.family.pieces(self.density, params, theta)

    def log_q(self, params, theta):
        return total(self.pieces(params, theta))

    def look(self, params, uniform) -> tuple[Terms, jax.Array]:
        """Give the terms of log p, and log q, at one draw."""
        noise, dealt = self.dealt(uniform)
        theta, log_q = self.family.draw_with_log_q(self.density, params, noise)
        return dealt.terms(theta), log_q

    def elbo(self, params, uniform):
        """Give log p - log q at one draw."""
        terms, log_q = self.look(params, uniform)
        return terms.total() - log_q


class Seen(NamedTuple):
    """What was seen of the draws of an iteration; leading axis S."""

    theta: Any  # the draws; for pathwise estimators their gradients
    terms: Any
    pieces: Any  # log q
    ratio: jax.Array  # density of q over that of the law drawn from; 1 unless overdispersed
    elbo: jax.Array  # (S,)


class Gradient(Protocol):
    """Draws in, direction of ascent out. `evaluate` costs what is counted; `direction` may reuse all it saw."""

    reparameterised: ClassVar[bool]

    def init(self, problem: Problem, params: Any) -> Any:
        """Give the memory to begin with (running baselines)."""
        ...

    def evaluate(self, problem: Problem, params: Any, uniform: jax.Array) -> Seen:
        """Draw and evaluate; `uniform` is (S, noise_size)."""
        ...

    def direction(self, problem: Problem, params: Any, memory: Any, uniform: jax.Array, seen: Seen) -> tuple[Any, Any]:
        """Give the direction of ascent, shaped as `params`, and the new memory."""
        ...


def as_key(uniform: jax.Array) -> jax.Array:
    """Make a random key of the bits of a uniform number, the same for u and 1 - u.

    Between the two draws of a mirrored pair the noise of a shared minibatch cancels, and with it most of what could be
    mistaken for curvature; the mean over the pair becomes noisier by much less.
    """
    words = jax.lax.bitcast_convert_type(jnp.abs(uniform - 0.5), jnp.uint32)
    key = jax.random.key(0)
    for i in range(words.size):
        key = jax.random.fold_in(key, words.reshape(-1)[i])
    return key


def total(tree) -> jax.Array:
    """Sum all entries of all arrays."""
    return sum((jnp.sum(x) for x in jax.tree.leaves(tree)), jnp.asarray(0.0))


def look(problem: Problem, params, uniform, drawn_from=None) -> Seen:
    """Evaluate log p and log q at draws from q, or from `drawn_from` with importance ratios."""
    source = params if drawn_from is None else drawn_from

    def one(u):
        theta = problem.draw(source, u)
        terms, pieces = problem.dealt(u)[1].terms(theta), problem.pieces(params, theta)
        log_q = total(pieces)
        ratio = jnp.exp(log_q - problem.log_q(source, theta)) if drawn_from is not None else jnp.asarray(1.0)
        return Seen(theta, terms, pieces, ratio, terms.total() - log_q)

    return jax.lax.stop_gradient(jax.vmap(one)(uniform))


def score_direction(problem: Problem, params, seen: Seen, weights: dict[str, jax.Array]):
    """Differentiate mean over draws of sum over pieces of weight * log q."""

    def surrogate(params):
        pieces = jax.vmap(lambda theta: problem.pieces(params, theta))(seen.theta)
        return total({k: weights[k] * pieces[k] for k in pieces}) / len(seen.elbo)

    return jax.grad(surrogate)(params)


class Baseline(NamedTuple):
    """Running means of the weights, subtracted from the next ones: the mean stays, the variance falls."""

    weights: Any
    seen: jax.Array  # iterations


@dataclass(frozen=True)
class Score:
    """Score-function gradient (Ranganath, Gerrish, Blei 2014): mean of grad log q * (L - baseline).

    `baseline` is the share of the running mean kept at each step (0.9 is usual); None is the paper's form.
    """

    baseline: float | None = None
    reparameterised: ClassVar[bool] = False

    def __post_init__(self):
        _check_baseline(self)

    def weights(self, problem, seen):
        """Weight every piece of log q by the whole ELBO draw."""
        return {k: (seen.ratio * seen.elbo).reshape(-1, *[1] * (p.ndim - 1)) for k, p in seen.pieces.items()}

    def init(self, problem, params):
        return _start_baseline(self, problem, params)

    def evaluate(self, problem, params, uniform):
        return look(problem, params, uniform)

    def direction(self, problem, params, memory, uniform, seen):
        weights, memory = _centred(self, problem, memory, seen)
        return score_direction(problem, params, seen, weights), memory


@dataclass(frozen=True)
class RaoBlackwell:
    """Score gradient in which each piece of log q is multiplied only by the terms that depend on it.

    A local latent sees its own observation's terms; a global site sees its prior and the likelihood.
    """

    baseline: float | None = None
    reparameterised: ClassVar[bool] = False

    def __post_init__(self):
        _check_baseline(self)

    def weights(self, problem, seen):
        """Give each piece of log q its own Markov blanket's part of the ELBO draw."""
        terms, pieces = seen.terms, seen.pieces
        everywhere = jnp.sum(terms.likelihood, -1)
        for name, law in problem.inputs.local.items():
            if not isinstance(law, Distribution):  # the law of the latents depends on global parameters
                everywhere = everywhere + jnp.sum(terms.local[name], -1)
        out = {}
        for k, piece in pieces.items():
            if k in terms.local:
                out[k] = terms.local[k] + terms.likelihood - piece
            elif k in terms.prior:
                shared = (terms.prior[k] + everywhere).reshape(-1, *[1] * (piece.ndim - 1))
                out[k] = shared - piece
            else:
                out[k] = seen.elbo
        return out

    def init(self, problem, params):
        return _start_baseline(self, problem, params)

    def evaluate(self, problem, params, uniform):
        return look(problem, params, uniform)

    def direction(self, problem, params, memory, uniform, seen):
        weights, memory = _centred(self, problem, memory, seen)
        return score_direction(problem, params, seen, weights), memory


@dataclass(frozen=True)
class JamesStein:
    """Score gradient shrunk towards zero by the positive-part James-Stein factor (Dayta 2024).

    With g the mean over S draws of D coordinates and v the draws' sample variance, `variant` is

    - "code": max(0, 1 - (D - 4) v_j / |g|^2) per coordinate, v_j from S/3 draws resampled with replacement;
    - "paper": one factor max(0, 1 - (D - 3) v / |g|^2), v the mean of v_j;
    - "textbook": one factor max(0, 1 - (D - 2) v / (S |g|^2)).
    """

    variant: str = "code"
    reparameterised: ClassVar[bool] = False

    def __post_init__(self):
        known = ("code", "paper", "textbook")
        check(self.variant in known, "variant", "JamesStein", "code, paper or textbook", self.variant)

    def init(self, problem, params):
        return ()

    def evaluate(self, problem, params, uniform):
        return look(problem, params, uniform)

    def direction(self, problem, params, memory, uniform, seen):
        back = ravel_pytree(params)[1]

        def one(theta, elbo):
            return ravel_pytree(jax.grad(lambda p: elbo * problem.log_q(p, theta))(params))[0]

        draws = jax.vmap(one)(seen.theta, seen.elbo)
        return back(self.shrink(draws, uniform)), memory

    def shrink(self, draws: jax.Array, uniform: jax.Array) -> jax.Array:
        """Shrink the mean of (S, D) draws; `uniform` only seeds the resampling of the "code" variant."""
        (s, d), mean = draws.shape, jnp.mean(draws, 0)
        norm = jnp.sum(mean**2)
        if self.variant == "code":
            some = jnp.floor(jnp.ravel(uniform)[: max(2, s // 3)] * s).astype(int)
            return shrinkage(norm, max(d - 4, 0) * jnp.var(draws[some], 0, ddof=1)) * mean
        variance = jnp.mean(jnp.var(draws, 0, ddof=1))
        noise = (d - 3) * variance if self.variant == "paper" else (d - 2) * variance / s
        return shrinkage(norm, jnp.maximum(noise, 0.0)) * mean


@dataclass(frozen=True)
class Overdispersed:
    """Score gradient with draws from q^(1/factor) and importance ratios (Ruiz, Titsias, Blei 2016)."""

    factor: float = 1.5
    reparameterised: ClassVar[bool] = False

    def __post_init__(self):
        positive_number("factor", "Overdispersed", self.factor)
        check(self.factor >= 1, "factor", "Overdispersed", "at least 1", self.factor)

    def init(self, problem, params):
        return ()

    def evaluate(self, problem, params, uniform):
        return look(problem, params, uniform, problem.family.widen(params, self.factor))

    def direction(self, problem, params, memory, uniform, seen):
        return score_direction(problem, params, seen, Score().weights(problem, seen)), memory


class _Pathwise(ABC):
    """Estimators that differentiate through the draw: value and gradient come together, in `evaluate`."""

    reparameterised: ClassVar[bool] = True

    def init(self, problem, params):
        return ()

    @abstractmethod
    def one(self, problem: Problem, params: Any, eps: jax.Array) -> tuple[jax.Array, Any]:
        """Give the ELBO draw and its gradient for one row of standard normal noise."""

    def evaluate(self, problem, params, uniform):
        def one(u):
            noise, dealt = problem.dealt(u)
            return self.one(dealt, params, ndtri(noise))

        elbo, grads = jax.vmap(one)(uniform)
        return Seen(grads, None, None, jnp.ones_like(elbo), elbo)

    def direction(self, problem, params, memory, uniform, seen):
        return jax.tree.map(lambda g: jnp.mean(g, 0), seen.theta), memory


@dataclass(frozen=True)
class Reparam(_Pathwise):
    """Pathwise gradient: differentiate log p - log q through the draw, q's parameters included."""

    def one(self, problem, params, eps):
        family = problem.family
        return jax.value_and_grad(lambda p: problem.terms(family.place(p, eps)).total() + family.minus_log_q(p, eps))(params)


@dataclass(frozen=True)
class StickingTheLanding(_Pathwise):
    """Pathwise gradient with q's own parameters held fixed in log q (Roeder, Wu, Duvenaud 2017).

    Its noise is exactly zero when q is the posterior.
    """

    def one(self, problem, params, eps):
        family = problem.family

        def objective(p):
            theta = family.place(p, eps)
            return problem.terms(theta).total() - jnp.sum(family.log_q(params, theta))

        return jax.value_and_grad(objective)(params)


class Whitened(NamedTuple):
    """One draw's score in q's own units, and the noise it came from."""

    eps: jax.Array
    white: jax.Array


@dataclass(frozen=True)
class NaturalScore(_Pathwise):
    """Sticking the landing in q's own units: the raw material of natural steps, one draw at a time."""

    def one(self, problem, params, eps):
        family = problem.family
        value, grad = jax.value_and_grad(lambda x: problem.terms(x).total())(family.place(params, eps))
        return value + family.minus_log_q(params, eps), Whitened(eps, family.white(params, eps, grad))


def _check_baseline(part):
    if part.baseline is not None:
        check(0 <= part.baseline < 1, "baseline", type(part).__name__, "in [0, 1) or None", part.baseline)


def _start_baseline(part, problem, params):
    if part.baseline is None:
        return ()
    uniform = jax.ShapeDtypeStruct((1, problem.noise_size), jnp.result_type(float))
    shapes = jax.eval_shape(lambda u: part.weights(problem, look(problem, params, u)), uniform)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), shapes)
    return Baseline(zeros, jnp.zeros((), int))


def _centred(part, problem, memory, seen):
    weights = part.weights(problem, seen)
    if part.baseline is None:
        return weights, memory
    centred = jax.tree.map(lambda w, b: w - b, weights, memory.weights)
    # The first iteration has nothing to subtract, so the first mean is taken whole.
    keep = jnp.where(memory.seen == 0, 0.0, part.baseline)
    means = jax.tree.map(lambda b, w: keep * b + (1 - keep) * jnp.mean(w, 0), memory.weights, weights)
    return centred, Baseline(means, memory.seen + 1)
