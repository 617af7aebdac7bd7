"""Correction group by group: exact where groups are Gaussian given the globals, right where a scale is hardly known."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.special import logsumexp

import yoasovi as yo
from yoasovi.answer import conditional
from yoasovi.randomness import Purpose, stream

GROUPS, ROWS = 40, 5
Y = np.random.default_rng(3).normal(np.random.default_rng(4).normal(1.0, 0.3, (GROUPS, 1)), 1.0, (GROUPS, ROWS))


def intercepts(y):
    mu, tau = numpyro.sample("mu", dist.Normal(0.0, 5.0)), numpyro.sample("tau", dist.HalfNormal(1.0))
    with numpyro.plate("groups", GROUPS):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal((mu + tau * z)[:, None], 1.0), obs=y)


def log_marginal(mu, log_tau):
    """Give log p of the globals on the unconstrained scale, groups' effects integrated out."""
    tau = np.exp(log_tau)
    inside = -0.5 * ((Y - Y.mean(1, keepdims=True)) ** 2).sum() - 0.5 * GROUPS * (ROWS - 1) * np.log(2 * np.pi)
    variance = tau[..., None] ** 2 + 1.0 / ROWS
    means = -0.5 * ((Y.mean(1) - mu[..., None]) ** 2 / variance + np.log(2 * np.pi * variance)).sum(-1)
    inside -= 0.5 * GROUPS * np.log(ROWS)
    prior = -0.5 * (mu / 5.0) ** 2 - np.log(5.0) - 0.5 * tau**2 + np.log(2.0) - np.log(2 * np.pi)
    return inside + means + prior + log_tau


@pytest.fixture(scope="module")
def fit():
    return yo.fit(yo.from_numpyro(intercepts, Y), family=yo.Arrow({"z": 0}), seed=0, mend=False, progress=False)


def test_where_groups_are_gaussian_given_the_globals_their_integral_has_no_noise(fit):
    rng = stream(0, Purpose.CORRECTION)
    hub = rng.normal(size=(30, 2)) * 2.0
    before = fit.num_gradients, fit.num_values
    ratio, own = conditional._drawn(fit, hub, rng)
    assert (fit.num_gradients - before[0], fit.num_values - before[1]) == (30 * 3, 30 * 2)
    assert own.shape == (30, 1, GROUPS)
    theta = fit.family.place(fit.lane, fit.family.join(hub, 0.0 * own)[None])[0]
    at = fit.family.split(theta).hub
    corner = fit.family.factors(fit.params).hub
    log_q = -0.5 * (hub**2).sum(1) - np.log(2 * np.pi) - np.log(np.diag(corner)).sum()
    np.testing.assert_allclose(ratio + log_q, log_marginal(at[:, 0], at[:, 1]), atol=2e-3)


def test_globals_and_groups_are_those_of_the_posterior(fit):
    mu, log_tau = np.meshgrid(np.linspace(0.2, 1.8, 200), np.linspace(-8.0, 1.0, 400), indexing="ij")
    heights = log_marginal(mu, log_tau)
    weights = np.exp(heights - logsumexp(heights))
    mean = lambda x: float((weights * x).sum())
    found = conditional.conditional_pool(fit, 2000, stream(1, Purpose.CORRECTION))
    assert found.effective_size > 1500 and found.weights.sum() == pytest.approx(1.0)
    draws = fit.kernels.constrain(fit.family.place(fit.lane, found.resample(20_000, np.random.default_rng(0))[None])[0])
    for name, right in (("mu", mu), ("tau", np.exp(log_tau))):
        centre, width = mean(right), np.sqrt(mean(right**2) - mean(right) ** 2)
        assert abs(draws[name].mean() - centre) < 0.1 * width and 0.92 < draws[name].std() / width < 1.08, name
    effect = draws["mu"] + draws["tau"] * draws["z"][:, 7]
    shrunk = (np.exp(2 * log_tau) * Y[7].mean() + mu / ROWS) / (np.exp(2 * log_tau) + 1.0 / ROWS)
    assert abs(effect.mean() - mean(shrunk)) < 0.1 * effect.std()


def test_it_is_taken_where_weights_of_q_are_not_even_and_only_for_groups(fit, monkeypatch):
    from yoasovi.answer import pools

    assert conditional.suits(fit)
    assert not conditional.suits(yo.fit(yo.from_numpyro(intercepts, Y), family="mean_field", max_steps=20, mend=False))
    for even, gradients in ((0.0, False), (1.1, True)):  # q's draws are even enough, or not
        monkeypatch.setattr(pools, "_EVEN", even)
        fit._pools.clear()
        before = fit.num_gradients
        assert fit.pool(4000).effective_size > 1000 and (fit.num_gradients > before) is gradients
    fit._pools.clear()


def test_locals_that_are_not_finite_do_no_harm():
    def edge(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.plate("groups", 30):
            z = numpyro.sample("z", dist.Normal(0.0, 1.0))
            numpyro.factor("wall", jnp.where(z > 2.5, -jnp.inf, 0.0))
            numpyro.sample("y", dist.Normal(mu + z, 1.0), obs=y)

    one = yo.fit(yo.from_numpyro(edge, np.zeros(30)), family=yo.Arrow({"z": 0}), seed=0, mend=False, progress=False)
    found = conditional.conditional_pool(one, 500, stream(0, Purpose.CORRECTION))
    assert np.isfinite(found.weights).all() and found.effective_size > 100
