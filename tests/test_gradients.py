"""Every estimator, draw by draw against the formula, and on average against the exact gradient.

Averages are compared by z-tests at |z| < 5: a false alarm once in 1.7 million per number compared.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import yoasovi as yo
from yoasovi.families import FullRank, FullRankParams, LowRank, MeanField, MeanFieldParams
from yoasovi.families.factorised import Factorised, Law, PaperCategorical, PaperNormal
from yoasovi.gradients import JamesStein, Overdispersed, Problem, RaoBlackwell, Reparam, Score, StickingTheLanding
from yoasovi.kernels import kernels_of
from yoasovi.kernels.programs import Clock
from yoasovi.randomness import open_uniform

pytestmark = pytest.mark.usefixtures("x64")

MEAN_FIELD = MeanFieldParams(jnp.array([0.3, -0.2]), jnp.array([-0.7, -0.4]))
FULL_RANK = FullRankParams(jnp.array([0.3, -0.2]), jnp.array([-0.7, -0.4]), jnp.array([[0.0, 0.0], [0.25, 0.0]]))
CASES = [(MeanField(), MEAN_FIELD), (FullRank(), FULL_RANK)]
ESTIMATORS = [Score(), RaoBlackwell(), Overdispersed(1.5), Reparam(), StickingTheLanding()]


def problem_of(conjugate, family):
    return Problem(conjugate.model.density, family, conjugate.model.inputs)


def estimate(estimator, problem, params, noise):
    """Give the direction of one iteration; noise is (S, k)."""

    def direction(params, noise):
        seen = estimator.evaluate(problem, params, noise)
        return estimator.direction(problem, params, estimator.init(problem, params), noise, seen)[0]

    return jax.jit(direction)(params, noise)


def as_float64(tree):
    return jax.tree.map(lambda x: jnp.asarray(np.asarray(x), float), tree)


NOISE = jnp.array([[0.8, -0.4]])


def one_draw(conjugate, family, params):
    problem, params = problem_of(conjugate, family), as_float64(params)
    noise = as_float64(NOISE)
    (theta,) = family.place(params, noise)
    slope = jax.grad(lambda x: problem.terms(x[None]).total())(theta)
    return problem, params, noise, noise[0], theta, slope


def test_one_draw_of_the_mean_field_score_is_the_formula(conjugate):
    problem, params, noise, eps, _, _ = one_draw(conjugate, MeanField(), MEAN_FIELD)
    elbo = problem.elbo(params, noise)[0]
    got = estimate(Score(), problem, params, noise)
    np.testing.assert_allclose(got.mean, elbo * eps / jnp.exp(params.log_scale), rtol=1e-10)
    np.testing.assert_allclose(got.log_scale, elbo * (eps**2 - 1), rtol=1e-10)


def test_one_draw_of_rao_blackwell_weighs_each_coordinate_by_its_own_terms(conjugate):
    problem, params, noise, eps, theta, _ = one_draw(conjugate, MeanField(), MEAN_FIELD)
    terms = problem.terms(theta[None])
    own = terms.prior["w"] + terms.likelihood.sum() - MeanField().log_q(params, theta[None])[0]
    got = estimate(RaoBlackwell(), problem, params, noise)
    np.testing.assert_allclose(got.mean, own * eps / jnp.exp(params.log_scale), rtol=1e-10)


def test_one_draw_of_the_pathwise_gradients_is_the_formula(conjugate):
    problem, params, noise, eps, _, slope = one_draw(conjugate, MeanField(), MEAN_FIELD)
    scale = jnp.exp(params.log_scale)
    reparam = estimate(Reparam(), problem, params, noise)
    np.testing.assert_allclose(reparam.mean, slope, rtol=1e-10)
    np.testing.assert_allclose(reparam.log_scale, slope * scale * eps + 1, rtol=1e-10)
    landing = estimate(StickingTheLanding(), problem, params, noise)
    np.testing.assert_allclose(landing.mean, slope + eps / scale, rtol=1e-10)
    np.testing.assert_allclose(landing.log_scale, (slope * scale + eps) * eps, rtol=1e-10)


def test_one_draw_of_the_full_rank_pathwise_gradients_is_the_formula(conjugate):
    family = FullRank()
    problem, params, noise, eps, _, slope = one_draw(conjugate, family, FULL_RANK)
    factor = family.factor(params)
    reparam = estimate(Reparam(), problem, params, noise)
    np.testing.assert_allclose(reparam.mean, slope, rtol=1e-10)
    np.testing.assert_allclose(reparam.lower[1, 0], slope[1] * eps[0], rtol=1e-10)
    np.testing.assert_allclose(reparam.log_diagonal, slope * jnp.diag(factor) * eps + 1, rtol=1e-10)
    landing = estimate(StickingTheLanding(), problem, params, noise)
    np.testing.assert_allclose(landing.mean, slope + jnp.linalg.solve(factor.T, eps), rtol=1e-10)


def test_one_draw_of_the_full_rank_score_is_the_formula(conjugate):
    family = FullRank()
    problem, params, noise, eps, _, _ = one_draw(conjugate, family, FULL_RANK)
    elbo = problem.elbo(params, noise)[0]
    got = estimate(Score(), problem, params, noise)
    np.testing.assert_allclose(got.mean, elbo * jnp.linalg.solve(family.factor(params).T, eps), rtol=1e-9)


def test_one_draw_of_the_overdispersed_score_carries_the_importance_ratio(conjugate):
    family = MeanField()
    problem, params = problem_of(conjugate, family), as_float64(MEAN_FIELD)
    noise = as_float64(NOISE)
    wide = params._replace(log_scale=params.log_scale + 0.5 * jnp.log(2.0))
    theta = family.place(wide, noise)
    log_q, log_r = problem.log_q(params, theta), problem.log_q(wide, theta)
    weight = jnp.exp(log_q - log_r) * (problem.terms(theta).total() - log_q)
    got = estimate(Overdispersed(2.0), problem, params, noise)
    np.testing.assert_allclose(got.mean, weight * (theta[0] - params.mean) / jnp.exp(2 * params.log_scale), rtol=1e-9)


@pytest.mark.parametrize("family, params", CASES, ids=["mean_field", "full_rank"])
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
def test_the_mean_of_many_draws_is_the_exact_gradient(conjugate, estimator, family, params):
    problem, params = problem_of(conjugate, family), as_float64(params)

    def exact(p):
        factor = family.factor(p) if isinstance(family, FullRank) else jnp.diag(jnp.exp(p.log_scale))
        return conjugate.elbo(p.mean, factor)

    want = np.concatenate([np.ravel(x) for x in jax.grad(exact)(params)])
    noise = jnp.asarray(np.random.default_rng(1).standard_normal((20_000, 1, 2)))
    draws = jax.jit(jax.vmap(lambda row: estimate(estimator, problem, params, row)))(noise)
    draws = np.concatenate([np.asarray(x).reshape(20_000, -1) for x in draws], 1)
    se = draws.std(0, ddof=1) / np.sqrt(len(draws))
    np.testing.assert_array_less(np.abs(draws.mean(0) - want), 5 * se + 1e-9)


@pytest.mark.parametrize("family", [FullRank(), MeanField(), LowRank(1)], ids=lambda f: f.name)
def test_log_q_agrees_with_the_noise_it_came_from(family):
    params = family.init(jnp.array([0.3, -0.2, 1.0]), jnp.array([0.5, 2.0, 1.5]), np.random.default_rng(0))
    if isinstance(family, LowRank):
        params = params._replace(loading=jnp.array([[0.5], [-1.0], [0.2]]))
    eps = jnp.array([[0.2, -1.0, 0.4, 0.9]])[:, : 3 + getattr(family, "rank", 0)]
    theta = family.place(params, eps)
    np.testing.assert_allclose(jnp.sum(family.log_q(params, theta)), -family.minus_log_q(params, eps)[0], rtol=1e-10)
    wide = family.widen(params, 4.0)
    np.testing.assert_allclose(family.place(wide, eps) - params.mean, 2 * (theta - params.mean), rtol=1e-10)


def test_low_rank_density_is_that_of_the_dense_gaussian():
    family = LowRank(2)
    params = family.init(jnp.zeros(3), jnp.array([0.5, 2.0, 1.5]), np.random.default_rng(0))
    params = params._replace(loading=jnp.array([[0.5, 0.1], [-1.0, 0.3], [0.2, 0.7]]))
    scale = jnp.diag(jnp.exp(params.log_scale))
    covariance = scale @ (jnp.eye(3) + params.loading @ params.loading.T) @ scale
    theta = jnp.array([0.4, -1.0, 0.2])
    want = dist.MultivariateNormal(params.mean, covariance).log_prob(theta)
    np.testing.assert_allclose(family.log_q(params, theta[None])[0], want, rtol=1e-10)


def test_sticking_the_landing_has_no_noise_at_a_gaussian_optimum(conjugate):
    family = FullRank()
    factor = np.linalg.cholesky(conjugate.covariance)
    params = FullRankParams(conjugate.mean, np.log(np.diag(factor)), np.tril(factor, -1))
    noise = np.random.default_rng(2).standard_normal((50, 2))
    # Step by step, in the parameters; and in q's own units, as windows have it.
    problem = problem_of(conjugate, family)
    draws = jax.vmap(lambda row: estimate(StickingTheLanding(), problem, as_float64(params), row[None]))(jnp.asarray(noise))
    lane = jax.tree.map(lambda x: x[None], params)
    white = kernels_of(conjugate.model, family, Clock()).scores(lane, noise[None]).white
    for seen in (*draws, white):
        assert float(np.abs(seen).max()) < 1e-5


@pytest.mark.parametrize("variant", ["code", "paper", "textbook"])
def test_james_stein_has_a_smaller_squared_error_than_the_mean_where_noise_rules(variant):
    rng = np.random.default_rng(3)
    truth = np.full(20, 0.05)
    mean_error, shrunk_error = 0.0, 0.0
    for _ in range(200):
        draws = jnp.asarray(truth + rng.normal(size=(30, 20)))
        shrunk = JamesStein(variant).shrink(draws, jnp.asarray(rng.uniform(size=30)))
        mean_error += float(((draws.mean(0) - truth) ** 2).sum())
        shrunk_error += float(((shrunk - truth) ** 2).sum())
    assert shrunk_error < 0.7 * mean_error


def test_james_stein_textbook_is_the_formula():
    draws = jnp.asarray(np.random.default_rng(0).normal(1.0, 1.0, size=(10, 5)))
    mean, variance = draws.mean(0), draws.var(0, ddof=1).mean()
    factor = max(0.0, 1 - 3 * variance / (10 * (mean**2).sum()))
    np.testing.assert_allclose(JamesStein("textbook").shrink(draws, jnp.zeros(3)), factor * mean, rtol=1e-12)


class Labels:
    """Two observations with a binary label each and one Gaussian global: small enough to enumerate."""

    def __init__(self):
        self.model = yo.Model(
            prior={"m": dist.Normal(0.0, 1.0)}, local={"z": dist.Categorical(probs=jnp.array([0.3, 0.7]))},
            log_likelihood=lambda p, y: dist.Normal(p["m"] + 2.0 * p["z"], 1.0).log_prob(y), data=jnp.array([0.5, 1.7]),
        )  # fmt: skip

    def elbo(self, params):
        """Exact: sum over labels, Gauss-Hermite over the global."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(30)
        loc, scale = params["m"]["loc"], jnp.exp(params["m"]["scale"])
        m = loc + scale * nodes
        weights = weights / weights.sum()
        log_phi = jax.nn.log_softmax(params["z"]["logits"], -1)
        per_label = jnp.stack([dist.Normal(m[:, None] + 2.0 * k, 1.0).log_prob(self.model.data) for k in (0, 1)], -1)
        inside = per_label + jnp.log(jnp.array([0.3, 0.7])) - log_phi
        expected = jnp.sum(weights[:, None, None] * jnp.exp(log_phi) * inside)
        entropy = jnp.log(scale) + 0.5 * jnp.log(2 * jnp.pi) + 0.5
        return expected + jnp.sum(weights * dist.Normal(0.0, 1.0).log_prob(m)) + entropy


@pytest.mark.parametrize("estimator", [Score(), RaoBlackwell(), Overdispersed(1.3)], ids=lambda e: type(e).__name__)
def test_with_discrete_latents_the_mean_is_the_enumerated_gradient(estimator):
    labels = Labels()
    family = Factorised({"m": Law(dist.Normal), "z": Law(dist.CategoricalLogits)})
    params = {
        "m": {"loc": jnp.asarray(0.2), "scale": jnp.asarray(-0.5)},
        "z": {"logits": jnp.array([[0.3, -0.2], [-0.5, 0.4]])},
    }
    problem = Problem(labels.model.density, family, labels.model.inputs)
    want = jax.jit(jax.grad(labels.elbo))(params)
    uniform = jnp.asarray(open_uniform(np.random.default_rng(5), (40_000, 1, 3)))
    draws = jax.jit(jax.vmap(lambda u: estimate(estimator, problem, params, u)))(uniform)

    def compare(got, exact):
        se = np.std(got, 0, ddof=1) / np.sqrt(len(got))
        np.testing.assert_array_less(np.abs(np.mean(got, 0) - exact), 5 * se + 1e-9)

    jax.tree.map(compare, draws, want)


def test_rao_blackwell_has_less_noise_than_the_plain_score_and_baselines_less_still():
    labels = Labels()
    family = Factorised({"m": Law(dist.Normal), "z": Law(dist.CategoricalLogits)})
    params = {"m": {"loc": jnp.asarray(0.2), "scale": jnp.asarray(-0.5)}, "z": {"logits": jnp.zeros((2, 2))}}
    problem = Problem(labels.model.density, family, labels.model.inputs)
    uniform = jnp.asarray(open_uniform(np.random.default_rng(6), (4000, 1, 3)))

    def noise(estimator, memory):
        def one(u):
            seen = estimator.evaluate(problem, params, u)
            return estimator.direction(problem, params, memory, u, seen)[0]["z"]["logits"]

        return float(jnp.var(jax.jit(jax.vmap(one))(uniform), 0).sum())

    warmed = RaoBlackwell(0.9)
    memory = warmed.init(problem, params)
    learn = lambda memory, u: (warmed.direction(problem, params, memory, u, warmed.evaluate(problem, params, u))[1], None)
    memory = jax.jit(lambda rows: jax.lax.scan(learn, memory, rows)[0])(uniform[:50])
    plain, blackwell, baseline = noise(Score(), ()), noise(RaoBlackwell(), ()), noise(warmed, memory)
    assert blackwell < 0.7 * plain
    assert baseline < 0.7 * blackwell


def test_the_papers_raw_scores_are_the_printed_ones():
    value, params = jnp.array([1.2]), {"mean": jnp.array([0.5]), "variance": jnp.array([2.0])}
    got = jax.grad(lambda p: PaperNormal().log_prob(p, value).sum())(params)
    np.testing.assert_allclose(got["mean"], 0.7 / 2.0, rtol=1e-12)
    np.testing.assert_allclose(got["variance"], -0.5 * (1 / 2.0 - 0.7**2 / 4.0), rtol=1e-12)
    probs = {"probs": jnp.array([[0.25, 0.75]])}
    got = jax.grad(lambda p: PaperCategorical().log_prob(p, jnp.array([1])).sum())(probs)
    np.testing.assert_allclose(got["probs"], [[0.0, 1 / 0.75]], rtol=1e-12)


def test_the_papers_clips_are_applied_after_a_step():
    assert float(PaperNormal().project({"mean": jnp.zeros(1), "variance": jnp.array([-3.0])})["variance"][0]) == 0.01
    probs = PaperCategorical().project({"probs": jnp.array([[-1.0, 1.0]])})["probs"]
    np.testing.assert_allclose(probs, [[0.01 / 1.01, 1.0 / 1.01]], rtol=1e-12)


@pytest.mark.parametrize("build", [lambda: Score(1.5), lambda: JamesStein("other"), lambda: Overdispersed(0.5)])
def test_wrong_settings_name_the_argument(build):
    with pytest.raises(ValueError, match=r"`\w+` of `\w+` must be"):
        build()
