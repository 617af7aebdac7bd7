"""The default method as users meet it: what used to go wrong, and no longer does."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import yoasovi as yo
from targets import GaussianTarget, correlated, density
from yoasovi.families import FullRank
from yoasovi.stopping import StopReason
from yoasovi.turns import RunState, windows


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


def test_the_first_length_of_steps_does_not_matter():
    y, sd = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    model = yo.models.HierarchicalNormal(y, sd=sd)
    elbos = [yo.fit(model, seed=2, step=step, max_steps=8_000).elbo.value for step in (0.03, 0.1, 0.3)]
    assert max(elbos) - min(elbos) < 0.2


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

    fit = yo.fit(density(log_p, 1), restarts=8, seed=1, mend=False)
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


def test_the_last_of_very_many_restarts_go_on_only_if_they_are_ahead():
    done, going = int(StopReason.CONVERGED), int(StopReason.RUNNING)
    reason, height = np.full(40, done), np.zeros(40)
    reason[:3], height[:3] = going, (-1.0, 1.0, np.nan)
    state = RunState(*[None] * len(RunState._fields))._replace(reason=reason, yardstick=height)
    found = windows._without_the_last_few(state).reason
    assert found[:3].tolist() == [StopReason.OVERTAKEN, going, StopReason.OVERTAKEN] and (found[3:] == done).all()
    fewer = state._replace(reason=reason[:20], yardstick=height[:20])
    more = state._replace(reason=np.where(np.arange(40) < 8, going, done))
    assert all((windows._without_the_last_few(x).reason == x.reason).all() for x in (fewer, more))
