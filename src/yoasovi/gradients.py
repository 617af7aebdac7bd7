"""Estimators of the ELBO's gradient from the draws of one iteration."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from numpyro.distributions import Distribution

from yoasovi.errors import check, positive_number
from yoasovi.model.density import Density, Inputs, Terms, total
from yoasovi.model.minibatch import Batch
from yoasovi.windows.score_line import shrinkage


class Problem(NamedTuple):
    """A model seen through a family; lives inside a trace only."""

    density: Density
    family: Any
    inputs: Inputs

    def draws(self, params: Any, noise: Any) -> Any:
        """Turn rows of noise into draws of theta, (S, ...)."""
        return self.family.draw(self.density, params, noise)

    def terms(self, theta: Any, keys: Any = None) -> Terms:
        """Give the terms of log p at draws; with `keys`, of the minibatches that they name."""
        if keys is None:
            return jax.vmap(lambda x: self.family.terms(self.density, self.inputs, x))(theta)
        return jax.vmap(lambda x, key: self.density.free_terms(self.inputs, x, _batch(key)))(theta, keys)

    def slopes(self, theta: Any, keys: Any = None) -> Any:
        """Give log p and its gradient at flat unconstrained draws, (S,) and (S, d)."""

        def one(x: Any, *key: Any) -> Any:
            return jax.value_and_grad(lambda y: self.density.free_terms(self.inputs, y, *map(_batch, key)).total())(x)

        return jax.vmap(one)(theta, *(() if keys is None else (keys,)))

    def pieces(self, params: Any, theta: Any) -> Any:
        """Give log q at draws in its independent pieces, by site; they sum to log q."""
        return self.family.pieces(self.density, params, theta)

    def log_q(self, params: Any, theta: Any) -> Any:
        return jax.vmap(total)(self.pieces(params, theta))

    def elbo(self, params: Any, noise: Any, keys: Any = None) -> Any:
        """Give log p - log q at draws, (S,)."""
        theta = self.draws(params, noise)
        return jax.vmap(total)(self.terms(theta, keys)) - self.log_q(params, theta)


class Seen(NamedTuple):
    """What was seen of the draws of an iteration; leading axis S."""

    theta: Any  # the draws
    terms: Any  # None for pathwise estimators, as `pieces` is
    pieces: Any  # log q
    ratio: jax.Array  # density of q over that of the law drawn from; 1 unless overdispersed
    elbo: jax.Array  # (S,)
    gradient: Any = None  # of the mean ELBO draw, shaped as `params`; for pathwise estimators only
    steep: Any = None  # (S,) is the gradient of log p not finite at this draw? For pathwise estimators only


class Gradient(Protocol):
    """Draws in, direction of ascent out. `evaluate` costs what is counted; `direction` may reuse all it saw."""

    reparameterised: ClassVar[bool]

    def init(self, problem: Problem, params: Any) -> Any:
        """Give the memory to begin with (running baselines)."""
        ...

    def evaluate(self, problem: Problem, params: Any, noise: jax.Array, keys: jax.Array | None = None) -> Seen:
        """Draw and evaluate; `noise` is (S, k), `keys` (S, 2) name minibatches where there are any."""
        ...

    def direction(self, problem: Problem, params: Any, memory: Any, noise: jax.Array, seen: Seen) -> tuple[Any, Any]:
        """Give the direction of ascent, shaped as `params`, and the new memory."""
        ...


def look(problem: Problem, params: Any, noise: Any, keys: Any = None, drawn_from: Any = None) -> Seen:
    """Evaluate log p and log q at draws from q, or from `drawn_from` with importance ratios."""
    source = params if drawn_from is None else drawn_from
    theta = problem.draws(source, noise)
    return seen_at(problem, params, theta, problem.terms(theta, keys), source if drawn_from is not None else None)


def seen_at(problem: Problem, params: Any, theta: Any, terms: Any, drawn_from: Any = None) -> Seen:
    """Put together what was seen at draws whose terms of log p are known."""
    pieces = problem.pieces(params, theta)
    log_q = jax.vmap(total)(pieces)
    ratio = jnp.ones_like(log_q) if drawn_from is None else jnp.exp(log_q - problem.log_q(drawn_from, theta))
    return jax.lax.stop_gradient(Seen(theta, terms, pieces, ratio, jax.vmap(total)(terms) - log_q))


def score_direction(problem: Problem, params: Any, seen: Seen, weights: dict[str, jax.Array]) -> Any:
    """Differentiate mean over draws of sum over pieces of weight * log q."""

    def surrogate(params: Any) -> Any:
        pieces = problem.pieces(params, seen.theta)
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

    def __post_init__(self) -> None:
        _check_baseline(self)

    def weights(self, problem: Any, seen: Any) -> Any:
        """Weight every piece of log q by the whole ELBO draw."""
        return {k: (seen.ratio * seen.elbo).reshape(-1, *[1] * (p.ndim - 1)) for k, p in seen.pieces.items()}

    def init(self, problem: Any, params: Any) -> Any:
        return _start_baseline(self, problem, params)

    def evaluate(self, problem: Any, params: Any, noise: Any, keys: Any = None) -> Any:
        return look(problem, params, noise, keys)

    def direction(self, problem: Any, params: Any, memory: Any, noise: Any, seen: Any) -> Any:
        weights, memory = _centred(self, problem, memory, seen)
        return score_direction(problem, params, seen, weights), memory


@dataclass(frozen=True)
class RaoBlackwell:
    """Score gradient in which each piece of log q is multiplied only by the terms that depend on it.

    A local latent sees its own observation's terms; a global site sees its prior and the likelihood.
    """

    baseline: float | None = None
    reparameterised: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_baseline(self)

    def weights(self, problem: Any, seen: Any) -> Any:
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

    def init(self, problem: Any, params: Any) -> Any:
        return _start_baseline(self, problem, params)

    def evaluate(self, problem: Any, params: Any, noise: Any, keys: Any = None) -> Any:
        return look(problem, params, noise, keys)

    def direction(self, problem: Any, params: Any, memory: Any, noise: Any, seen: Any) -> Any:
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

    def __post_init__(self) -> None:
        known = ("code", "paper", "textbook")
        check(self.variant in known, "variant", "JamesStein", "code, paper or textbook", self.variant)

    def init(self, problem: Any, params: Any) -> Any:
        return ()

    def evaluate(self, problem: Any, params: Any, noise: Any, keys: Any = None) -> Any:
        return look(problem, params, noise, keys)

    def direction(self, problem: Any, params: Any, memory: Any, noise: Any, seen: Any) -> Any:
        back = ravel_pytree(params)[1]

        def one(theta: Any, elbo: Any) -> Any:
            alone = jax.tree.map(lambda x: x[None], theta)
            return ravel_pytree(jax.grad(lambda p: elbo * problem.log_q(p, alone)[0])(params))[0]

        draws = jax.vmap(one)(seen.theta, seen.elbo)
        return back(self.shrink(draws, problem.family.uniform(noise))), memory

    def shrink(self, draws: jax.Array, uniform: jax.Array) -> jax.Array:
        """Shrink the mean of (S, D) draws; `uniform` noise only chooses what the "code" variant resamples."""
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

    def __post_init__(self) -> None:
        positive_number("factor", "Overdispersed", self.factor)
        check(self.factor >= 1, "factor", "Overdispersed", "at least 1", self.factor)

    def init(self, problem: Any, params: Any) -> Any:
        return ()

    def drawn_from(self, problem: Any, params: Any) -> Any:
        """Give the parameters of the law that draws come from."""
        return problem.family.widen(params, self.factor)

    def evaluate(self, problem: Any, params: Any, noise: Any, keys: Any = None) -> Any:
        return look(problem, params, noise, keys, self.drawn_from(problem, params))

    def direction(self, problem: Any, params: Any, memory: Any, noise: Any, seen: Any) -> Any:
        return score_direction(problem, params, seen, Score().weights(problem, seen)), memory


class _Pathwise(ABC):
    """Estimators that differentiate through the draw: value and gradient come together, in `evaluate`."""

    reparameterised: ClassVar[bool] = True

    def init(self, problem: Any, params: Any) -> Any:
        return ()

    @abstractmethod
    def minus_log_q(self, problem: Problem, moving: Any, params: Any, noise: jax.Array, theta: jax.Array) -> jax.Array:
        """Give -log q at draws `theta` = place(moving, noise), (S,); `moving` has the value of `params`."""

    def evaluate(self, problem: Any, params: Any, noise: Any, keys: Any = None) -> Any:
        def place(moving: Any) -> Any:
            theta = problem.family.place(moving, noise)
            return theta, self.minus_log_q(problem, moving, params, noise, theta)

        (theta, minus), back = jax.vjp(place, params)
        value, slope = problem.slopes(theta, keys)
        share = jnp.full_like(minus, 1.0 / len(minus))
        (gradient,) = back((share[:, None] * slope, share))
        steep = ~jnp.isfinite(slope).all(-1)
        return Seen(theta, None, None, jnp.ones_like(minus), value + minus, gradient, steep)

    def direction(self, problem: Any, params: Any, memory: Any, noise: Any, seen: Any) -> Any:
        return seen.gradient, memory


@dataclass(frozen=True)
class Reparam(_Pathwise):
    """Pathwise gradient: differentiate log p - log q through the draw, q's parameters included."""

    def minus_log_q(self, problem: Any, moving: Any, params: Any, noise: Any, theta: Any) -> Any:
        return problem.family.minus_log_q(moving, noise)


@dataclass(frozen=True)
class StickingTheLanding(_Pathwise):
    """Pathwise gradient with q's own parameters held fixed in log q (Roeder, Wu, Duvenaud 2017).

    Its noise is exactly zero when q is the posterior.
    """

    def minus_log_q(self, problem: Any, moving: Any, params: Any, noise: Any, theta: Any) -> Any:
        return -problem.log_q(params, theta)


@dataclass(frozen=True)
class NaturalScore:
    """Sticking the landing in q's own units, one draw at a time: what `Natural` makes steps and lines of."""

    reparameterised: ClassVar[bool] = True


@dataclass(frozen=True)
class Values:
    """One value of log p per draw, and what it is to be regressed on: what `ValueLine` makes steps of.

    Local latents are drawn from (1 - spread) q + spread / K, so that every label is seen now and then, and are put
    right by one ratio per observation, at most 1 / (1 - spread).
    """

    spread: float = 0.1
    reparameterised: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check(0 <= self.spread < 1, "spread", "Values", "in [0, 1)", self.spread)


def _batch(key: Any) -> Batch:
    return Batch(jax.random.wrap_key_data(key))


def _check_baseline(part: Any) -> None:
    if part.baseline is not None:
        check(0 <= part.baseline < 1, "baseline", type(part).__name__, "in [0, 1) or None", part.baseline)


def _start_baseline(part: Any, problem: Any, params: Any) -> Any:
    if part.baseline is None:
        return ()
    noise = jax.ShapeDtypeStruct((1, problem.family.noise_size(problem.density)), jnp.result_type(float))
    shapes = jax.eval_shape(lambda u: part.weights(problem, look(problem, params, u)), noise)
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape[1:], x.dtype), shapes)
    return Baseline(zeros, jnp.zeros((), int))


def _centred(part: Any, problem: Any, memory: Any, seen: Any) -> Any:
    weights = part.weights(problem, seen)
    if part.baseline is None:
        return weights, memory
    centred = jax.tree.map(lambda w, b: w - b, weights, memory.weights)
    # The first iteration has nothing to subtract, so the first mean is taken whole.
    keep = jnp.where(memory.seen == 0, 0.0, part.baseline)
    means = jax.tree.map(lambda b, w: keep * b + (1 - keep) * jnp.mean(w, 0), memory.weights, weights)
    return centred, Baseline(means, memory.seen + 1)
