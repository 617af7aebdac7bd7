"""Gaussian mixtures: labels latent or summed out, covariances known or learned; and coordinate ascent's exact answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import logsumexp

from yoasovi.errors import check, positive_integer, positive_number
from yoasovi.families.base import LOG_2PI
from yoasovi.families.factorised import Factorised, Law, PaperCategorical, PaperNormal
from yoasovi.kernels.programs import precision
from yoasovi.model import Model, Params
from yoasovi.model.sums import SummedRows
from yoasovi.models.arrays import broadcast, numbers, one_of, positive
from yoasovi.models.mixture_sums import Form, Quadratics, can_sum, log_sums

_FACTORS = {
    "paper": (PaperNormal(), PaperCategorical()),
    "free": (Law(dist.Normal), Law(dist.CategoricalLogits)),
}
# The factor that a site's parameters belong to, told by their names.
_FACTOR_OF: dict[frozenset[str], Any] = {
    frozenset({"mean", "variance"}): PaperNormal(),
    frozenset({"loc", "scale"}): Law(dist.Normal),
    frozenset({"probs"}): PaperCategorical(),
    frozenset({"logits"}): Law(dist.CategoricalLogits),
}
_CORRELATION = 2.0  # LKJ concentration of learned correlations: above 1 keeps them off the edge
_BLOCK = 10**7  # label probabilities coordinate ascent holds at a time


def GaussianMixture(
    y: Any,
    num_components: int = 3,
    covariance: str = "known",
    assignments: str = "latent",
    weights: str = "equal",
    *,
    prior_mean: Any = 0.0,
    prior_scale: Any = 1.0,
    noise_covariance: Any = 1.0,
    concentration: float = 1.0,
    parameters: str = "free",
) -> Model:
    """Gaussian mixture of (N, p) or (N,) data: y_i | z_i = k ~ N(mu_k, Sigma_k), mu_k ~ N(prior_mean, diag prior_scale^2).

    Parameters
    ----------
    covariance
        "known": `noise_covariance`, a variance, p variances or a (p, p) matrix. "diagonal" and "full" learn `sd` (K, p),
        LogNormal(log sqrt(diagonal of noise_covariance), 1) a priori; "full" also LKJ(2) correlations (`corr_factor`).
        "spherical": one `sd` for all columns, (K, 1). "tied": `sd` (1, p) and correlations that all components share.
    assignments
        "latent": a discrete label `z` per observation. "marginal": labels summed out, all sites continuous.
    weights
        "equal" or "learned", Dirichlet(concentration).
    parameters
        Of the factorised q with latent labels: "free" (unconstrained) or "paper" (raw and clipped, Dayta 2024).
    """
    owner = "GaussianMixture"
    one_of("covariance", owner, covariance, "known", "diagonal", "full", "spherical", "tied")
    one_of("assignments", owner, assignments, "latent", "marginal")
    one_of("weights", owner, weights, "equal", "learned")
    one_of("parameters", owner, parameters, "free", "paper")
    positive_number("concentration", owner, concentration)
    known = Conjugate.checked(owner, y, num_components, prior_mean, prior_scale, noise_covariance)
    (k, p), latent, learned = (num_components, known.y.shape[1]), assignments == "latent", weights == "learned"
    correlated, shared = covariance in ("full", "tied") and p > 1, covariance == "tied"
    if latent and (correlated or shared):
        why = "q has no factor for correlations" if correlated else "all labels share one covariance"
        raise ValueError(f"`covariance` of `{owner}` {covariance!r} needs assignments='marginal': {why}.")
    sd = np.sqrt(np.diag(known.noise))
    sd = np.sqrt(np.mean(sd**2, keepdims=True)) if covariance == "spherical" else sd
    sds = np.tile(sd, (1 if shared else k, 1))
    prior = {"mu": _rows(dist.Normal, known.mean, np.sqrt(known.variance), k)}
    if covariance != "known":
        prior["sd"] = _rows(dist.LogNormal, np.log(sd), np.ones_like(sd), len(sds))
    if correlated:
        prior["corr_factor"] = dist.LKJCholesky(p, np.full(len(sds), _CORRELATION))
    if learned:
        prior["weights"] = dist.Dirichlet(np.full(k, float(concentration)))
    component = Component(covariance == "known", known.whitener if covariance == "known" else ())
    summed = LabelsSummedOut(component)
    start = RandomRows(known.y, k, None if covariance == "known" else sds)
    if not latent:
        return Model(
            prior=prior, log_likelihood=summed, data=known.y, name="gaussian mixture", start=start,
            predictive=MixtureDraw(component),
        )  # fmt: skip
    closed = covariance == "known" and not learned
    return Model(
        prior=prior, log_likelihood=LabelsGiven(component), data=known.y, name="gaussian mixture", start=start,
        local={"z": LabelLaw() if learned else dist.Categorical(np.full(k, 1.0 / k))}, log_marginal=summed,
        default_family=Factorised(tuple(zip(("mu", "z"), _FACTORS[parameters], strict=True))),
        exact_elbo=known.exact_elbo if closed else None, optimum=known.optimum if closed else None,
        predictive=MixtureDraw(component),
    )  # fmt: skip


@dataclass(frozen=True)
class Component:
    """log N(y | mu, Sigma); for a known Sigma, `whitener` is W with W'W = Sigma^-1, or its diagonal."""

    known: bool
    whitener: tuple[Any, ...] = ()

    def __call__(self, y: jax.Array, params: Params) -> jax.Array:
        """Give the log density; y and the parameters broadcast, their last axis is p."""
        off = y - params["mu"]
        if self.known:
            whitener = np.asarray(self.whitener)
            white = off * jnp.asarray(whitener) if whitener.ndim == 1 else off @ jnp.asarray(whitener.T)
            volume = -np.sum(np.log(whitener if whitener.ndim == 1 else np.diag(whitener)))
        else:
            sd = params["sd"]
            white, volume = off / sd, jnp.sum(jnp.log(sd), -1) * (off.shape[-1] // sd.shape[-1])
        if "corr_factor" in params:
            factor = params["corr_factor"]
            inverse = solve_triangular(factor, jnp.broadcast_to(jnp.eye(factor.shape[-1]), factor.shape), lower=True)
            white = jnp.einsum("...ij,...j->...i", inverse, white)
            volume = volume + jnp.sum(jnp.log(jnp.diagonal(factor, axis1=-2, axis2=-1)), -1)
        return -0.5 * jnp.sum(white**2, -1) - volume - 0.5 * y.shape[-1] * LOG_2PI

    def quadratics(self, params: Params) -> tuple[Form, Quadratics]:
        """Give the logarithms of all weighted densities at S points as quadratics in y."""
        mean = params["mu"]
        points, k, p = mean.shape
        if self.known:
            whitener = np.asarray(self.whitener)
            square = np.diag(whitener) if whitener.ndim == 1 else whitener
            factor = jnp.broadcast_to(jnp.asarray(square, mean.dtype), (points, k, p, p))
        else:
            factor = jnp.eye(p, dtype=mean.dtype) / params["sd"][..., None]
        if "corr_factor" in params:
            root = params["corr_factor"]
            eye = jnp.broadcast_to(jnp.eye(p, dtype=mean.dtype), root.shape)
            factor = solve_triangular(root, eye, lower=True) / params["sd"][..., None, :]
        factor = jnp.broadcast_to(factor, (points, k, p, p))
        volume = jnp.sum(jnp.log(jnp.diagonal(factor, axis1=-2, axis2=-1)), -1)
        weight = jnp.log(params["weights"]) if "weights" in params else -np.log(k)
        diagonal = np.ndim(self.whitener) == 1 if self.known else "corr_factor" not in params
        return Form(diagonal, not self.known), Quadratics(weight + volume - 0.5 * p * LOG_2PI, mean, factor)


@dataclass(frozen=True)
class LabelsGiven:
    """log N(y_i | mu_z, Sigma_z), z the label of i; shape (N,)."""

    component: Component

    def __call__(self, params: Params, data: jax.Array) -> jax.Array:
        """Give the log density of each observation under its own component."""
        return self.component(data, {k: params[k][params["z"]] for k in ("mu", "sd") if k in params})


@dataclass(frozen=True)
class LabelsSummedOut(SummedRows):
    """log sum_k weight_k N(y_i | mu_k, Sigma_k); shape (N,)."""

    component: Component

    def __call__(self, params: Params, data: jax.Array) -> jax.Array:
        """Give the log density of each observation under the mixture."""
        each = self.component(data[:, None, :], {k: params[k][None] for k in ("mu", "sd", "corr_factor") if k in params})
        if "weights" in params:
            return logsumexp(each + jnp.log(params["weights"])[None], axis=-1)
        return logsumexp(each, axis=-1) - np.log(each.shape[-1])

    def totals(self, params: Params, data: jax.Array) -> jax.Array | None:
        """Give the sum over all observations at S points, (S, 2); None where there are too many columns for that."""
        form, q = self.component.quadratics(params)
        return log_sums(form, q, data) if can_sum(form, data.shape[1]) else None


def responsibilities(component: Component, params: Params, y: np.ndarray) -> np.ndarray:
    """Give the probability of each component for each observation at given parameters, shape (N, K)."""
    with precision():
        own: Params = {k: jnp.asarray(params[k])[None] for k in ("mu", "sd", "corr_factor") if k in params}
        each = component(jnp.asarray(y)[:, None, :], own)
        logits = np.asarray(each) + (np.log(params["weights"]) if "weights" in params else 0.0)
    return np.exp(_log_softmax(logits))


@dataclass(frozen=True)
class MixtureDraw:
    """Draws as many new observations as there are data, each with a label of its own."""

    component: Component

    def __call__(self, key: jax.Array, params: Params, data: jax.Array) -> jax.Array:
        """Give new observations, shape (N, p)."""
        k_label, k_noise = jax.random.split(key)
        mu = params["mu"]
        weights = params.get("weights", jnp.full(len(mu), 1.0 / len(mu)))
        z = jax.random.categorical(k_label, jnp.log(weights), shape=(len(data),))
        white = jax.random.normal(k_noise, (len(data), mu.shape[-1]), mu.dtype)
        if not self.component.known:
            own = lambda x: jnp.broadcast_to(x, (len(mu), *x.shape[1:]))[z]
            if "corr_factor" in params:
                white = jnp.einsum("nij,nj->ni", own(params["corr_factor"]), white)
            return mu[z] + own(params["sd"]) * white
        whitener = np.asarray(self.component.whitener)
        return mu[z] + (white / whitener if whitener.ndim == 1 else white @ jnp.asarray(np.linalg.inv(whitener).T))

    def read(self, given: Any, fitted: Any) -> np.ndarray:
        """Take an array whose rows are only counted: a mixture has nothing to predict from."""
        return numbers("data", "predict", given, 1, 2)


@jax.tree_util.register_static
@dataclass(frozen=True)
class LabelLaw:
    """The law of a label, given the weights."""

    def __call__(self, params: Params) -> dist.Distribution:
        """Give Categorical(weights), the same for every observation."""
        return dist.CategoricalLogits(jnp.log(params["weights"]))


@dataclass(frozen=True, eq=False)
class RandomRows:
    """Start the means at random rows of the data, learned standard deviations at their prior's centre."""

    y: np.ndarray
    num_components: int
    sd: np.ndarray | None = None

    def __call__(self, key: jax.Array) -> Params:
        """Give the point where the means of q begin."""
        return self.from_words(np.asarray(jax.random.key_data(key)))

    def from_words(self, words: np.ndarray) -> Params:
        """Give the same from the words of a key; NumPy chooses, since jax.random.choice would sort all N."""
        rng = np.random.default_rng(words.ravel())
        return self._at(rng.choice(len(self.y), self.num_components, replace=False))

    def many(self, words: np.ndarray, count: int) -> Params:
        """Give `count` such points, stacked; the first few are the same however many there are."""
        rows = np.random.default_rng(words.ravel()).random((count, self.num_components))
        for k in range(self.num_components):  # one of the rows not yet chosen: past each of those, in ascending order
            rows[:, k] = np.floor(rows[:, k] * (len(self.y) - k))
            for chosen in np.sort(rows[:, :k], 1).T:
                rows[:, k] += rows[:, k] >= chosen
        return self._at(rows.astype(int))

    def _at(self, rows: np.ndarray) -> Params:
        point = {"mu": self.y[rows]}
        if self.sd is not None:
            point["sd"] = np.broadcast_to(self.sd, (*rows.shape[:-1], *self.sd.shape))
        return point


class Cavi(NamedTuple):
    """Coordinate ascent's best answer, and what became of every start."""

    elbo: float
    means: np.ndarray  # (K, p)
    variances: np.ndarray  # (K, p)
    probs: np.ndarray  # (N, K)
    sweeps: int
    all_elbos: np.ndarray  # (starts,)
    trace: np.ndarray  # (sweeps,), the best start's ELBO before each sweep


def cavi(
    y: Any,
    num_components: int,
    *,
    starts: int = 20,
    sweeps: int = 2000,
    seed: int = 0,
    prior_mean: Any = 0.0,
    prior_scale: Any = 1.0,
    noise_covariance: Any = 1.0,
    tolerance: float = 1e-10,
) -> Cavi:
    """Coordinate ascent on the ELBO of the mixture with latent labels, known covariance and equal weights.

    q = prod_k N(mu_k | m_k, diag s2_k) prod_i Categorical(z_i | phi_i). Each start takes random rows as means and sweeps
    until the ELBO gains less than `tolerance` of its size, at most `sweeps` times; the best of `starts` is returned
    (Blei, Kucukelbir, McAuliffe 2017, section 3).
    """
    known = Conjugate.checked("cavi", y, num_components, prior_mean, prior_scale, noise_covariance)
    for name, value in (("starts", starts), ("sweeps", sweeps)):
        positive_integer(name, "cavi", value)
    positive_number("tolerance", "cavi", tolerance)
    rng = np.random.default_rng(seed)
    rows = np.stack([rng.choice(len(known.y), num_components, replace=False) for _ in range(starts)])
    size = max(1, _BLOCK // (len(known.y) * num_components))
    parts = [_ascend(known, known.y[rows[i : i + size]].astype(float), sweeps, tolerance) for i in range(0, starts, size)]
    elbos = np.concatenate([trace[-1] for *_, trace in parts])
    best = int(np.argmax(elbos))
    m, s2, trace = (x[..., best % size] if x.ndim == 2 else x[best % size] for x in parts[best // size])
    probs = np.exp(_log_softmax(known.expected(m, s2)))
    return Cavi(float(elbos[best]), m, s2, probs, len(trace), elbos, trace)


@dataclass(frozen=True, eq=False)
class Conjugate:
    """The mixture with latent labels, known covariance and equal weights: its ELBO has a closed form."""

    y: np.ndarray  # (N, p)
    num_components: int
    mean: np.ndarray  # (p,) of mu_k
    variance: np.ndarray  # (p,) of mu_k
    noise: np.ndarray  # (p, p), of y given its label

    @classmethod
    def checked(
        cls, owner: str, y: Any, num_components: Any, prior_mean: Any, prior_scale: Any, noise_covariance: Any
    ) -> Conjugate:
        """Check every argument on behalf of `owner`."""
        y = numbers("y", owner, y, 1, 2)
        y = y[:, None] if y.ndim == 1 else y
        positive_integer("num_components", owner, num_components)
        limit = f"at most the number of observations ({len(y)})"
        check(num_components <= len(y), "num_components", owner, limit, num_components)
        p = y.shape[1]
        mean = broadcast("prior_mean", owner, numbers("prior_mean", owner, prior_mean, 0, 1).astype(float), (p,))
        scale = positive("prior_scale", owner, prior_scale, (p,)).astype(float)
        return cls(y, num_components, mean, scale**2, _covariance(owner, noise_covariance, p))

    @cached_property
    def noise_precision(self) -> np.ndarray:
        """The inverse of the noise covariance."""
        return np.linalg.inv(self.noise)

    @property
    def whitener(self) -> tuple[Any, ...]:
        """W with W'W = noise^-1, as nested tuples; only its diagonal where the noise is diagonal."""
        if np.array_equal(self.noise, np.diag(np.diag(self.noise))):
            return tuple((1.0 / np.sqrt(np.diag(self.noise))).tolist())
        return tuple(map(tuple, np.linalg.inv(np.linalg.cholesky(self.noise)).tolist()))

    @cached_property
    def moments(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The data's mean c, P (y_i - c) and (y_i - c)' P (y_i - c): squares expand without loss around c."""
        centre = self.y.mean(0, dtype=float)
        scored = (self.y - centre) @ self.noise_precision
        return centre, scored, np.sum(scored * (self.y - centre), -1)

    def expected(self, m: Any, s2: Any, xp: Any = np) -> Any:
        """E over mu of log p(y_i, z_i = k | mu), shape (..., N, K)."""
        centre, scored, square = self.moments
        m = m - centre
        inner = xp.sum((m @ self.noise_precision) * m + xp.asarray(np.diag(self.noise_precision)) * s2, -1)
        far = square[:, None] - 2.0 * scored @ xp.swapaxes(m, -1, -2) + inner[..., None, :]
        volume = np.linalg.slogdet(self.noise)[1] + len(self.mean) * LOG_2PI
        return -0.5 * (far + volume) - np.log(self.num_components)

    def divergence(self, m: Any, s2: Any, xp: Any = np) -> Any:
        """KL(q(mu) || prior), shape (...)."""
        terms = ((m - self.mean) ** 2 + s2) / self.variance - 1.0 + xp.log(self.variance / s2)
        return 0.5 * xp.sum(terms, (-1, -2))

    def exact_elbo(self, params: Any) -> Any:
        """Give the ELBO of a factorised q, raw or unconstrained; None for other families."""
        if not isinstance(params, dict) or set(params) != {"mu", "z"}:
            return None
        normal, categorical = (_FACTOR_OF.get(frozenset(params[site])) for site in ("mu", "z"))
        if normal is None or categorical is None:
            return None
        with precision():
            q = normal.law({k: jnp.asarray(v) for k, v in params["mu"].items()})
            probs = categorical.law({k: jnp.asarray(v) for k, v in params["z"].items()}).probs
            m, s2 = q.loc, q.scale**2
            log_probs = jnp.log(jnp.where(probs > 0, probs, 1.0))  # 0 log 0 = 0
            labelled = jnp.sum(probs * (self.expected(m, s2, jnp) - log_probs), (-1, -2))
            return labelled - self.divergence(m, s2, jnp)

    @cached_property
    def best(self) -> Cavi:
        """Coordinate ascent's best of 20 starts."""
        scale = np.sqrt(self.variance)
        return cavi(self.y, self.num_components, prior_mean=self.mean, prior_scale=scale, noise_covariance=self.noise)

    def optimum(self) -> float:
        """Give the highest ELBO known of a factorised q."""
        return self.best.elbo


def _ascend(known: Conjugate, m: np.ndarray, sweeps: int, tolerance: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sweep all starts at once from means (S, K, p); each ELBO of the trace has phi at its best for that m and s2."""
    centre, scored, _ = known.moments
    s2 = np.broadcast_to(known.variance, m.shape)
    trace = []
    for sweep in range(sweeps):
        logits = known.expected(m, s2)
        log_probs = _log_softmax(logits)
        # With phi = softmax(logits), E[log p - log q] over a label is log sum exp(logits) = logits - log phi, for any k.
        trace.append(np.sum(logits[..., 0] - log_probs[..., 0], -1) - known.divergence(m, s2))
        calm = sweep > 0 and np.all(trace[-1] - trace[-2] < tolerance * np.abs(trace[-1]))
        if calm or sweep == sweeps - 1:
            break
        phi = np.exp(log_probs)
        curvature = np.diag(1.0 / known.variance) + phi.sum(-2)[..., None, None] * known.noise_precision
        pull = (known.mean - centre) / known.variance + np.swapaxes(phi, -1, -2) @ scored
        m = centre + np.linalg.solve(curvature, pull[..., None])[..., 0]
        s2 = 1.0 / np.diagonal(curvature, axis1=-2, axis2=-1)
    return m, s2, np.stack(trace)


def _log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.sum(np.exp(x), -1, keepdims=True))


def _rows(law: type, loc: np.ndarray, scale: np.ndarray, k: int) -> dist.Distribution:
    """Give each of k rows the same law."""
    return law(np.tile(loc, (k, 1)), np.tile(scale, (k, 1))).to_event(2)


def _covariance(owner: str, value: Any, p: int) -> np.ndarray:
    """Take a variance, p variances or a (p, p) matrix as a matrix."""
    array = numbers("noise_covariance", owner, value, 0, 1, 2).astype(float)
    rule = f"a variance, {p} variances or a symmetric positive definite ({p}, {p}) matrix"
    if array.ndim < 2:
        check(array.ndim == 0 or array.shape == (p,), "noise_covariance", owner, rule, f"shape {array.shape}")
        array = np.diag(np.broadcast_to(array, (p,)))
    check(array.shape == (p, p), "noise_covariance", owner, rule, f"shape {array.shape}")
    check(np.allclose(array, array.T) and np.linalg.eigvalsh(array)[0] > 0, "noise_covariance", owner, rule, value)
    return array
