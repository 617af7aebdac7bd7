"""Correction group by group: exact where groups are Gaussian given the globals, right where a scale is hardly known."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy.special import logsumexp
from scipy.stats import halfcauchy as half_cauchy, norm as normal, t as student_t

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
    ratio, own = conditional._drawn(conditional.in_groups(fit, fit), hub, rng, 0.0)
    assert (fit.num_gradients - before[0], fit.num_values - before[1]) == (30 * 3, 30 * 2)
    assert own.shape == (30, 1, GROUPS) and not conditional._bent(conditional.in_groups(fit, fit), hub, rng)
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
    found = conditional.conditional_pool(conditional.in_groups(fit, fit), 2000, stream(1, Purpose.CORRECTION))
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

    assert conditional.in_groups(fit, fit).family is fit.family
    product = yo.fit(yo.from_numpyro(intercepts, Y), family="mean_field", max_steps=20, mend=False)
    assert conditional.in_groups(product, product).family.groups == GROUPS  # found by looking, behind its back
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
    found = conditional.conditional_pool(conditional.in_groups(one, one), 500, stream(0, Purpose.CORRECTION))
    assert np.isfinite(found.weights).all() and found.effective_size > 100


EFFECTS, ERRORS = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


def schools(mu, log_tau, theta):
    """Eight schools, centred: log p of one point."""
    tau = jnp.exp(log_tau)
    prior = dist.Normal(0.0, 5.0).log_prob(mu) + dist.HalfCauchy(5.0).log_prob(tau) + log_tau
    return prior + dist.Normal(mu, tau).log_prob(theta).sum() + dist.Normal(theta, ERRORS).log_prob(EFFECTS).sum()


REAL = dist.constraints.real
SITES = {"mu": REAL, "log_tau": REAL, "theta": REAL}
PLAIN = [
    yo.Model.from_log_density(lambda p: schools(p["mu"], p["log_tau"], p["theta"]), SITES, {"theta": (8,)}, name="by site"),
    yo.Model.from_log_density(
        lambda p: schools(p["z"][0], p["z"][1], p["z"][2:]), {"z": REAL}, {"z": (10,)}, name="a vector"
    ),
]


@pytest.mark.parametrize("model", PLAIN, ids=lambda m: m.name)
def test_a_small_centred_hierarchy_is_corrected_by_groups_that_log_p_shows(model):
    """A plain density cannot be non-centred by itself, and its funnel bends; its groups are Gaussian."""
    fit = yo.fit(model, seed=0, progress=False)
    draws = fit.sample(4000)
    mu, log_tau, first = (draws[k] for k in SITES) if "mu" in draws else draws["z"].T[:3]
    first = first[:, 0] if first.ndim == 2 else first
    a, b = np.meshgrid(np.linspace(-15.0, 25.0, 400), np.linspace(-9.0, 5.0, 600), indexing="ij")
    tau = np.exp(b)[..., None]
    both = tau**2 + ERRORS**2
    heights = -0.5 * ((EFFECTS - a[..., None]) ** 2 / both + np.log(both)).sum(-1) - 0.5 * (a / 5.0) ** 2
    heights += b - np.log1p((np.exp(b) / 5.0) ** 2)
    weights = np.exp(heights - logsumexp(heights))
    shrunk, left = tau**2 / both, tau**2 * ERRORS**2 / both  # of effects: how far towards the data, and variances
    school = shrunk[..., 0] * EFFECTS[0] + (1.0 - shrunk[..., 0]) * a
    truth = {"mu": (mu, a, 0.0), "log_tau": (log_tau, b, 0.0), "theta[0]": (first, school, left[..., 0])}
    for name, (drawn, centre, inside) in truth.items():
        mean = (weights * centre).sum()
        sd = np.sqrt((weights * ((centre - mean) ** 2 + inside)).sum())
        assert abs(drawn.mean() - mean) < 0.1 * sd and 0.9 < drawn.std() / sd < 1.1, name
    assert fit.diagnose().grade in ("good", "usable")


def test_the_tails_of_a_funnel_are_reached_on_both_sides():
    law = lambda p: dist.Normal(0.0, 3.0).log_prob(p["v"]) + dist.Normal(0.0, jnp.exp(p["v"] / 2)).log_prob(p["x"]).sum()
    model = yo.Model.from_log_density(law, {"v": REAL, "x": REAL}, {"x": (9,)}, name="funnel")
    for seed in range(2):
        v = yo.fit(model, seed=seed, progress=False).sample(4000)["v"]
        assert abs(v.mean()) < 0.3 and 0.9 < v.std() / 3.0 < 1.1, (v.mean(), v.std())


def test_groups_are_looked_for_where_weights_are_uneven_and_only_there():
    rng = np.random.default_rng(0)
    even = yo.Model.from_log_density(lambda p: -0.5 * jnp.sum(p["z"] ** 2), {"z": REAL}, {"z": (10,)}, name="Gaussian")
    fit = yo.fit(even, seed=0, progress=False)
    before = fit.num_gradients
    fit.sample(100)
    assert fit.num_gradients == before
    mixed = rng.normal(size=(10, 10)) / 4  # every number with every other
    bent = yo.Model.from_log_density(
        lambda p: -0.5 * jnp.sum(p["z"] ** 2) - jnp.sum(jnp.cosh(p["z"] @ mixed)),
        {"z": REAL},
        {"z": (10,)},
        name="no groups",
    )
    fit = yo.fit(bent, seed=0, mend=False, progress=False)
    assert conditional.in_groups(fit, fit) is None


@pytest.mark.parametrize("dim, stretch", [(1, 1.0), (2, 2.0), (5, 1.0)])
def test_the_first_law_is_that_of_its_draws(dim, stretch):
    """Weights N(0, I) / law average to one over draws of the law, and give the moments of N(0, I)."""
    law, eps = conditional._around_q(dim, 200_000, np.random.default_rng(0), stretch)
    weights = np.exp(-law(eps))
    assert weights.mean() == pytest.approx(1.0, abs=0.02)
    np.testing.assert_allclose((weights[:, None] * eps**2).mean(0), 1.0, atol=0.04)
    np.testing.assert_allclose((weights[:, None] * eps).mean(0), 0.0, atol=0.02)
    assert np.abs(eps).max() > 20.0 * stretch


def test_noise_with_tails_has_the_density_that_it_says():
    noise, density = conditional._with_tails((200_000, 2, 1), 0.1, np.random.default_rng(0))
    weights = np.exp(-0.5 * (noise**2).sum((1, 2)) - density)
    assert weights.mean() == pytest.approx(1.0, abs=0.01) and np.abs(noise).max() > 10.0
    np.testing.assert_allclose((weights[:, None, None] * noise**2).mean(0), 1.0, atol=0.03)


def heavy_schools(p):
    """Eight schools, centred, whose effects have a t with four degrees of freedom: log p bends upwards in its tails."""
    mu, log_tau, theta = p["z"][0], p["z"][1], p["z"][2:]
    prior = dist.Normal(0.0, 5.0).log_prob(mu) + dist.HalfCauchy(5.0).log_prob(jnp.exp(log_tau)) + log_tau
    prior += dist.StudentT(4.0, mu, jnp.exp(log_tau)).log_prob(theta).sum()
    return prior + dist.Normal(theta, ERRORS).log_prob(EFFECTS).sum()


def test_locals_with_heavy_tails_are_integrated_out_without_bias_however_narrow_they_are():
    model = yo.Model.from_log_density(heavy_schools, {"z": REAL}, {"z": (10,)}, name="heavy")
    fit = yo.fit(model, seed=0, mend=False, progress=False)
    seen = conditional.in_groups(fit, fit)
    corner = seen.family.factors(seen.lane).hub[0]
    middle = seen.family.split(seen.lane.mean[0]).hub
    rng = np.random.default_rng(0)
    assert conditional._bent(seen, rng.normal(size=(20, 2)), rng)
    for log_tau in (-3.0, -1.0, 0.0, 1.0, 2.5):
        hub = np.linalg.solve(corner, np.array([4.4, log_tau]) - middle)
        ratio, _ = conditional._drawn(seen, np.repeat(hub[None], 2000, 0), rng, 0.05)
        found = ratio - 0.5 * (hub**2).sum() - np.log(2 * np.pi) - np.log(np.diag(corner)).sum()
        tau = np.exp(log_tau)
        x = np.unique(np.concatenate([4.4 + tau * np.sinh(np.linspace(-9, 9, 8001)), np.linspace(-80, 100, 4001)]))[:, None]
        inside = student_t(4, 4.4, tau).pdf(x) * normal(EFFECTS, ERRORS).pdf(x)
        exact = normal(0, 5).logpdf(4.4) + half_cauchy(0, 5).logpdf(tau) + log_tau
        exact += np.log(np.trapezoid(inside, x, axis=0)).sum()
        weights = np.exp(found - exact)
        assert weights.mean() == pytest.approx(1.0, abs=4 * weights.std() / 2000**0.5), log_tau
        assert weights.std() < 3.0, log_tau


def test_a_function_without_gradients_is_corrected_as_a_whole():
    fit = yo.fit(yo.Model.external(lambda x: float(-0.5 * np.sum(x**2 / (1.0 + 0.1 * x**2))), 6), seed=0, max_steps=400)
    assert conditional.in_groups(fit, fit) is None
    assert np.isfinite(fit.sample(50, corrected=True)["x"]).all()
