"""The default method: lines, windows, and what used to go wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import yoasovi as yo
from yoasovi.acceptance import Journey
from yoasovi.answer import correction
from yoasovi.families.base import FullRank, MeanField
from yoasovi.gradients import Problem
from yoasovi.start import climb
from yoasovi.windows import score_line as curvature
from yoasovi.windows.rule import Window, paired_gain


def density(fn, dim):
    return yo.Model.from_log_density(fn, {"x": constraints.real}, {"x": (dim,)})


class GaussianTarget:
    """A Gaussian log density, normalised, so that the best ELBO is exactly zero."""

    def __init__(self, mean, covariance):
        self.mean, self.precision = np.asarray(mean), np.linalg.inv(covariance)
        self.constant = 0.5 * np.linalg.slogdet(self.precision)[1] - 0.5 * len(mean) * np.log(2 * np.pi)
        self.model = density(self.log_density, len(mean))

    def log_density(self, params):
        gap = params["x"] - self.mean
        return -0.5 * gap @ self.precision @ gap + self.constant


def correlated(dim, seed=0, spread=2.0):
    """Raw units over 2 * `spread` orders of magnitude, strong correlations."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(dim, dim)) / np.sqrt(dim) + 0.3 * np.eye(dim)
    scale = 10 ** rng.uniform(-spread, spread, size=dim)
    return scale * rng.normal(size=dim), scale[:, None] * (root @ root.T + 0.05 * np.eye(dim)) * scale


def mirrored(rng, pairs, dim):
    half = rng.normal(size=(pairs, dim))
    return jnp.asarray(np.stack([half, -half], 1).reshape(2 * pairs, dim))


def test_a_line_through_the_scores_is_exact_for_a_gaussian(x64):
    rng = np.random.default_rng(1)
    slope, intercept = rng.normal(size=(4, 4)), rng.normal(size=4)
    slope = slope + slope.T
    eps = mirrored(rng, 6, 4)
    white = intercept + eps @ slope.T
    fitted = curvature.line(eps, white, len(eps))
    np.testing.assert_allclose(fitted.intercept, intercept, rtol=1e-6)
    np.testing.assert_allclose(fitted.slope, slope, rtol=1e-6, atol=1e-6)
    assert float(fitted.noise) < 1e-8


def test_a_line_through_pure_noise_proposes_nothing_much(x64):
    rng = np.random.default_rng(2)
    eps, white = mirrored(rng, 30, 5), jnp.asarray(rng.normal(size=(60, 5)))
    fitted = curvature.line(eps, white, 60)
    scales = curvature.line_of_scales(eps, white, 60)
    assert float(fitted.signal) < 3 * float(fitted.noise) and float(scales.signal) < 3 * float(scales.noise)
    step = curvature.newton(fitted, 1.0, 16.0)
    assert float(jnp.abs(step.shift).max()) < 0.5


def test_rows_beyond_the_count_and_pairs_that_are_not_finite_are_left_out(x64):
    rng = np.random.default_rng(3)
    eps = mirrored(rng, 10, 3)
    white = 0.5 + 0.2 * eps
    broken = white.at[4].set(jnp.nan).at[16:].set(1e9)
    np.testing.assert_allclose(curvature.line(eps, broken, 16).intercept, 0.5, rtol=1e-6)
    np.testing.assert_allclose(curvature.line_of_scales(eps, broken, 16).slope, 0.2, rtol=1e-6)


def test_the_expected_gain_of_a_newton_step_is_the_gain_on_a_gaussian(x64):
    """Full length, on a quadratic target: expected equals the true change of the ELBO."""
    precision, mean = jnp.array([4.0, 0.5]), jnp.array([0.3, -1.0])
    fitted = curvature.Line(precision * mean, 1.0 - precision, jnp.asarray(0.0), jnp.asarray(0.0))
    step = curvature.newton(fitted, 1.0, 1e4)
    kl = 0.5 * jnp.sum(precision - 1 - jnp.log(precision) + precision * mean**2)
    np.testing.assert_allclose(step.expected, kl, rtol=1e-10)
    np.testing.assert_allclose(step.shift, mean, rtol=1e-10)


def test_paired_gain_is_unbiased_and_much_less_noisy_than_unpaired(conjugate, x64):
    family = MeanField()
    problem = Problem(conjugate.model.density, family, conjugate.model.inputs)
    old = family.init(jnp.asarray(conjugate.mean), jnp.full(2, 0.3), jax.random.key(0))
    new = family.init(jnp.asarray(conjugate.mean) + 0.02, jnp.full(2, 0.31), jax.random.key(0))
    gain = paired_gain(jax.random.key(1), problem, new, old, 3200, surely=jnp.inf)
    elbo = lambda q: conjugate.elbo(q.mean, jnp.diag(jnp.exp(q.log_scale)))
    exact = elbo(new) - elbo(old)
    assert abs(gain.mean - exact) < 5 * gain.se
    single = jax.vmap(lambda u: problem.elbo(new, u))(jax.random.uniform(jax.random.key(2), (3200, 2), minval=1e-9))
    assert float(gain.se) * np.sqrt(3200) < 0.5 * float(single.std())


@pytest.mark.parametrize("bad", ["candidate", "incumbent", "both"])
def test_a_judgement_survives_draws_that_are_not_finite(bad, x64):
    def log_p(params):
        x = params["x"][0]
        return jnp.where(x > 2.0, jnp.nan, -0.5 * x**2)

    model, family = density(log_p, 1), MeanField()
    problem = Problem(model.density, family, model.inputs)
    inside = family.init(jnp.array([0.0]), jnp.array([0.5]), jax.random.key(0))
    outside = family.init(jnp.array([3.0]), jnp.array([0.5]), jax.random.key(0))
    pairs = {"candidate": (outside, inside), "incumbent": (inside, outside), "both": (outside, outside)}
    gain = paired_gain(jax.random.key(1), problem, *pairs[bad], 64)
    assert int(gain.nonfinite) > 0
    if bad == "candidate":
        assert gain.mean == -jnp.inf
    elif bad == "incumbent":
        assert gain.mean == jnp.inf
    else:
        assert gain.mean == 0 or not jnp.isfinite(gain.se)


def test_pymcs_long_open_complaint_is_answered_by_default():
    """x ~ N(0, 1), y ~ N(x, 0.5), y = 10: the mean is 8, and pm.fit() says 3.1 (pymc #6271)."""
    model = yo.Model(
        prior={"x": dist.Normal(0.0, 1.0)},
        log_likelihood=lambda p, y: dist.Normal(p["x"], 0.5).log_prob(y),
        data=jnp.array([10.0]),
    )
    fit = yo.fit(model)
    assert fit.converged and fit.num_gradients < 200
    assert abs(fit.mean()["x"] - 8.0) < 0.05 and abs(fit.sd()["x"] - 0.2**0.5) < 0.03


def test_a_conjugate_posterior_is_found_exactly(conjugate):
    fit = yo.fit(conjugate.model)
    assert fit.family == FullRank() and "full covariance" in fit.family_reason
    assert conjugate.evidence - fit.elbo.value < 0.01 + 3 * fit.elbo.se
    np.testing.assert_allclose(fit.params.mean, conjugate.mean, atol=0.03)


@pytest.mark.parametrize("seed", [0, 1])
def test_raw_units_and_strong_correlations_need_no_tuning(seed):
    target = GaussianTarget(*correlated(12, seed))
    fit = yo.fit(target.model, seed=seed)
    assert fit.converged and fit.elbo.value > -0.05 and fit.num_gradients < 600


def test_a_far_start_is_reached_by_the_warm_start():
    """Means a thousand posterior scales away."""
    target = GaussianTarget(1000.0 * np.ones(6), np.eye(6))
    fit = yo.fit(target.model)
    assert fit.converged and fit.elbo.value > -0.05 and fit.num_gradients < 400


def test_a_warm_start_into_a_degenerate_mode_is_undone():
    """Centred eight schools: log p has no maximum (tau -> 0), and climbing it must not ruin the fit."""
    model = yo.models.HierarchicalNormal(
        np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), sd=np.array([15.0, 10, 16, 11, 9, 11, 10, 18]), centered=True,
        prior_scale=5.0, tau_scale=5.0,
    )  # fmt: skip
    fit = yo.fit(model, max_steps=8_000)
    assert fit.elbo.value > -33.2


def test_a_climb_without_end_is_given_up_early():
    """Density that rises for ever (a hierarchy whose scale goes to zero) used to take all of the budget, for nothing."""

    def endless(x):  # along a ridge that bends, so that steps stay short
        bend = x[1] - np.sin(3.0 * x[0])
        return 10.0 * x[0] - 200.0 * bend**2, np.array([10.0 + 1200.0 * bend * np.cos(3.0 * x[0]), -400.0 * bend])

    endless_climb = climb(endless, np.zeros(2), 100, near=400.0)
    assert endless_climb.given_up and endless_climb.gradients < 50
    calm = climb(lambda x: (-0.5 * x @ x, -x), np.full(2, 3.0), 100, near=40.0)
    assert not calm.given_up and np.abs(calm.top).max() < 0.1


def test_a_loss_with_heavy_tails_is_undone(x64):
    """Its mean is smaller than twice its own error, which used to pass for undecided."""
    model = density(lambda p: -jnp.exp(jnp.abs(p["x"])).sum(), 1)
    problem = Problem(model.density, MeanField(), model.inputs)
    narrow, wide = (problem.family.init(jnp.zeros(1), jnp.full(1, s), None) for s in (0.5, 40.0))
    rule = Window()
    control = rule.init(problem, jnp.asarray(16.0))
    journey = Journey(wide, wide, narrow, jnp.asarray(0.0), jnp.asarray(True), jnp.asarray(True), (jnp.asarray(1.0),) * 3)
    verdict = rule.judge(jax.random.key(0), control, problem, journey, jnp.asarray(0.0), jnp.asarray(1))
    assert verdict.gain > -2.0 * verdict.gain_se and verdict.rollback and not verdict.accept


def test_a_full_covariance_at_a_hundred_parameters_converges_from_a_cold_start():
    target = GaussianTarget(*correlated(100, 3, spread=1.0))
    fit = yo.fit(target.model)
    assert fit.converged and fit.elbo.value > -0.3 and fit.num_gradients < 3_000


def test_a_stiff_direction_does_not_throw_the_mean():
    """A Gaussian of condition 1e6, turned: lines and the axes' scales once fought over it for 10,000 gradients."""
    turned = np.linalg.qr(np.random.default_rng(0).normal(size=(25, 25)))[0]
    rows = turned * np.geomspace(1.0, 1e3, 25)[:, None]
    fit = yo.fit(density(lambda p: -0.5 * jnp.sum((rows @ (p["x"] - 1.0)) ** 2), 25))
    best = 12.5 * np.log(2 * np.pi) - np.log(np.geomspace(1.0, 1e3, 25)).sum()
    assert fit.converged and fit.elbo.value > best - 0.1 and fit.num_gradients < 2_000


def test_heavy_tails_do_not_bias_the_scales():
    """Student t with 5 degrees of freedom: the best Gaussian has a known scale, found by quadrature."""
    df = 5.0
    log_p = lambda p: jnp.sum(dist.StudentT(df, 0.0, 1.0).log_prob(p["x"]))
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    weights = weights / weights.sum()
    grid = np.linspace(0.7, 1.6, 400)
    values = [np.sum(weights * np.asarray(dist.StudentT(df, 0.0, 1.0).log_prob(s * nodes))) + np.log(s) for s in grid]
    best = grid[int(np.argmax(values))]
    model = density(log_p, 3)
    scales = [np.exp(yo.fit(model, family="mean_field", seed=seed).params.log_scale) for seed in range(6)]
    # One scale may be 10% off within the tolerance of 0.02 nats; over 18 of them (sd 0.04 each) a bias would show.
    np.testing.assert_allclose(np.mean(scales), best, rtol=0.05)


@pytest.mark.slow
def test_the_first_length_of_steps_does_not_matter():
    y, sd = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    model = yo.models.HierarchicalNormal(y, sd=sd)
    elbos = [yo.fit(model, seed=2, step=step, max_steps=8_000).elbo.value for step in (0.03, 0.1, 0.3)]
    assert max(elbos) - min(elbos) < 0.2


@pytest.mark.slow
def test_low_rank_finds_the_correlations_that_mean_field_misses():
    rng = np.random.default_rng(4)
    loading = 2.0 * rng.normal(size=(60, 2))
    target = GaussianTarget(np.zeros(60), np.eye(60) + loading @ loading.T)
    mean_field = yo.fit(target.model, family="mean_field", max_steps=6_000)
    low_rank = yo.fit(target.model, family=yo.LowRank(4), max_steps=12_000)
    assert mean_field.elbo.value < -1.0
    assert low_rank.elbo.value > -0.3


def test_constrained_parameters_come_back_on_their_own_scale():
    y = jnp.asarray(np.random.default_rng(0).normal(2.0, 0.5, size=200))
    model = yo.Model(
        prior={
            "m": dist.Normal(0.0, 10.0),
            "s": dist.HalfNormal(2.0),
            "w": dist.Dirichlet(jnp.ones(3)),
            "u": dist.Uniform(2.0, 5.0),
        },
        log_likelihood=lambda p, y: dist.Normal(p["m"], p["s"]).log_prob(y) + 0.05 * jnp.log(p["w"][0]), data=y,
    )  # fmt: skip
    fit = yo.fit(model)
    draws = fit.sample(2000)
    assert (draws["s"] > 0).all() and np.allclose(draws["w"].sum(-1), 1.0)
    assert ((draws["u"] > 2) & (draws["u"] < 5)).all()
    assert abs(draws["m"].mean() - float(y.mean())) < 0.02 and abs(draws["s"].mean() - float(y.std())) < 0.02
    assert "s" in fit.summary() and "ELBO" in fit.summary()


def test_restarts_keep_the_best_of_several_modes():
    """Two modes, 3 nats apart: one start may miss the better, eight in one program do not."""
    def log_p(params):
        x = params["x"][0]
        return jnp.logaddexp(dist.Normal(-6.0, 0.5).log_prob(x) - 3.0, dist.Normal(6.0, 0.5).log_prob(x))

    fit = yo.fit(density(log_p, 1), restarts=8, seed=1)
    assert len(fit.restart_elbos) == 8 and fit.mean()["x"][0] > 5
    assert fit.elbo.value == max(e.value for e in fit.restart_elbos)


def test_a_density_that_is_nowhere_finite_ends_soon_with_a_sentence():
    fit = yo.fit(density(lambda p: jnp.nan * p["x"].sum(), 2), max_steps=20_000)
    assert not fit.converged and fit.stop_reason.name in ("NON_FINITE", "NO_STEP")
    assert fit.num_nonfinite > 0 and "finite" in str(fit.stop_reason)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(fit.params))


def test_nonfinite_raise_names_the_culprit():
    model = yo.Model(
        prior={"m": dist.Normal(0.0, 1.0)}, log_likelihood=lambda p, y: jnp.log(-jnp.abs(p["m"]) - y), data=jnp.ones(3)
    )
    with pytest.raises(FloatingPointError, match="the likelihood"):
        yo.fit(model, nonfinite="raise")


def test_importance_correction_recovers_a_skewed_posterior():
    """log of a gamma variable: a Gaussian cannot have its skew nor its variance, corrected draws do."""
    model = density(lambda p: jnp.sum(2.0 * p["x"] - jnp.exp(p["x"])), 2)
    fit = yo.fit(model)
    assert fit.worth_correcting
    before = fit.num_values
    corrected = fit.sample(8000)["x"]
    assert fit.num_values > before
    plain = fit.sample(8000, corrected=False)["x"]
    np.testing.assert_allclose(corrected.mean(0), 0.4228, atol=0.05)  # digamma(2)
    np.testing.assert_allclose(corrected.var(0), 0.6449, atol=0.09)  # trigamma(2)
    assert (plain.var(0) < 0.55).all()
    skew = lambda x: (((x - x.mean()) / x.std()) ** 3).mean()
    assert skew(corrected[:, 0]) < -0.45 and abs(skew(plain[:, 0])) < 0.2


def test_a_pool_from_the_posterior_itself_has_even_weights():
    rng = np.random.default_rng(0)
    gathered = correction.pool(lambda eps: np.zeros(len(eps)), 40, 500, rng)
    assert gathered.effective_size == pytest.approx(len(gathered.weights))
    assert gathered.resample(100, rng).shape == (100, 40)


@pytest.mark.parametrize("dim", [2, 50])
def test_a_pool_learns_a_shifted_and_skewed_direction(dim):
    """Along one direction the posterior is the logarithm of a gamma variable; elsewhere it is q."""
    axis = np.zeros(dim)
    axis[:2] = 0.6, 0.8

    def log_ratio(eps):
        s = eps @ axis
        return 2.0 * s - np.exp(s) + 0.5 * s**2

    gathered = correction.pool(log_ratio, dim, 2000, np.random.default_rng(1))
    along = gathered.eps @ axis
    mean = gathered.weights @ along
    assert abs(mean - 0.4228) < 0.06  # digamma(2)
    assert abs(gathered.weights @ (along - mean) ** 2 - 0.6449) < 0.1  # trigamma(2)


@pytest.mark.parametrize("name", ["tolerance", "step", "first", "pairs", "longest"])
def test_wrong_window_settings_name_the_argument(name):
    with pytest.raises(ValueError, match=f"`{name}` of `Window` must be"):
        Window(**{name: 0})
