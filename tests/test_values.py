"""The default method where there are no gradients: one value per iteration, regressed a window at a time."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import yoasovi as yo
from yoasovi.families import MeanField
from yoasovi.families.charts import chart
from yoasovi.families.factorised import Factorised, Law
from yoasovi.families.quantiles import inverse_cdf
from yoasovi.gradients import RaoBlackwell, Values
from yoasovi.kernels import kernels_of
from yoasovi.kernels.programs import Clock, precision
from yoasovi.methods import method
from yoasovi.windows.value_regression import fit_line


def mixture_data(p=2, k=2, n=500, seed=1):
    rng = np.random.default_rng(seed)
    return (2.5 * rng.normal(size=(k, p)))[rng.integers(k, size=n)] + rng.normal(size=(n, p))


@pytest.fixture(scope="module")
def mixture():
    return yo.models.GaussianMixture(mixture_data(), 2)


def test_mixture_is_fitted_to_within_a_nat_with_one_value_per_label_and_iteration(mixture):
    fit = yo.fit(mixture, seed=3, restarts=3, max_steps=10_000)
    assert isinstance(fit.method.gradient, Values)
    assert mixture.optimum() - fit.elbo.value < 1.0
    assert fit.num_steps <= 10_000 and fit.num_values <= 2 * 10_000 * len(fit.restart_elbos)
    assert fit.num_gradients == 0
    assert fit.converged
    assert abs(fit.reported_elbo - fit.elbo.value) < 1.0  # the intercept is an honest ELBO


def test_same_seed_gives_the_same_bits(mixture):
    one, again, other = (yo.fit(mixture, seed=seed, max_steps=400) for seed in (1, 1, 2))
    for a, b, c in zip(*(jax.tree.leaves(fit.params) for fit in (one, again, other)), strict=True):
        assert np.array_equal(a, b) and not np.array_equal(a, c)
    assert np.array_equal(one.trace["elbo"], again.trace["elbo"], equal_nan=True)


@pytest.mark.parametrize("max_steps", [1, 40, 130])
def test_a_window_cut_by_max_steps_does_no_harm(mixture, max_steps):
    begin = yo.fit(mixture, seed=0, max_steps=32)  # the first window stands where the fit begins
    fit = yo.fit(mixture, seed=0, max_steps=max_steps)
    assert fit.num_steps == max_steps and fit.num_values == 2 * max_steps  # of two labels
    assert fit.elbo.value >= begin.elbo.value


def test_variable_selection_agrees_with_enumeration():
    d, n, rng = 6, 40, np.random.default_rng(0)
    x = rng.normal(size=(n, d))
    y = x @ np.array([1.0, 0, 0.3, 0, -0.35, 0]) + rng.normal(size=n)
    cube = np.array(list(itertools.product([0, 1], repeat=d)))
    log_p = []
    for g in cube:
        c = np.eye(n) + (x * g) @ x.T
        log_p.append(-0.5 * np.linalg.slogdet(2 * np.pi * c)[1] - 0.5 * y @ np.linalg.solve(c, y))
    evidence = np.array(log_p)
    log_p = evidence + np.sum(np.where(cube, np.log(0.3), np.log(0.7)), 1)
    place = jnp.asarray(2 ** np.arange(d)[::-1])
    model = yo.Model(
        prior={"g": dist.Bernoulli(jnp.full(d, 0.3)).to_event(1)}, data=evidence,
        log_likelihood=lambda p, evidence: evidence[jnp.sum(p["g"] * place)][None],
    )  # fmt: skip
    fit = yo.fit(model)

    def elbo(logits):
        log_q = np.sum(cube * logits - np.logaddexp(0, logits), 1)
        return np.sum(np.exp(log_q) * (log_p - log_q))

    logits = np.asarray(fit.params["g"]["logits"])
    best = logits.copy()
    for _, j in itertools.product(range(100), range(d)):  # coordinate ascent from the answer: how much was left?
        each = np.where(cube, -np.logaddexp(0, -best), -np.logaddexp(0, best))
        best[j] = np.sum(np.exp(np.sum(np.delete(each, j, 1), 1)) * log_p * (2 * cube[:, j] - 1))
    assert elbo(best) - elbo(logits) < 0.15
    assert fit.converged
    assert fit.num_values == fit.num_steps


def test_external_model_is_never_differentiated_and_every_call_is_counted():
    calls = []

    def log_p(x):
        assert isinstance(x, np.ndarray)
        assert x.dtype == np.float64
        calls.append(1)
        return -0.5 * np.sum(((x - [300.0, -2.0]) / [100.0, 0.01]) ** 2)

    fit = yo.fit(yo.Model.external(log_p, 2), seed=0)
    assert fit.converged
    assert fit.num_gradients == 0
    assert len(calls) == fit.num_values + len(fit.log_ratio)  # the ELBO of the answer is on fresh draws
    # A Gaussian is found exactly: the regression has no residual.
    np.testing.assert_allclose(fit.params.mean, [300.0, -2.0], rtol=1e-3)
    np.testing.assert_allclose(np.exp(fit.params.log_scale), [100.0, 0.01], rtol=1e-3)


def test_draws_that_are_not_finite_lead_back_to_where_they_are():
    inside = lambda x: -np.inf if abs(x[0] - 1) > 0.2 else -0.5 * np.sum(((x - 1) / 0.02) ** 2)
    fit = yo.fit(
        yo.Model.external(inside, 2), seed=1
    )  # where the first window saw some that are; with half the seeds it does
    assert fit.num_nonfinite > 0
    assert abs(fit.elbo.value - np.log(2 * np.pi * 0.02**2)) < 0.1


def test_conjugate_posterior_of_a_gamma_rate_is_found():
    y = np.array([3.0, 5, 2, 4, 6, 1])
    model = yo.Model(prior={"r": dist.Gamma(2.0, 1.0)}, log_likelihood=lambda p, y: dist.Poisson(p["r"]).log_prob(y), data=y)
    fit = yo.fit(model, family=Factorised({"r": Law(dist.Gamma)}))
    found = {k: float(np.exp(v)) for k, v in fit.params["r"].items()}
    assert found["concentration"] == pytest.approx(2 + y.sum(), rel=0.05)
    assert found["rate"] == pytest.approx(1 + len(y), rel=0.05)


def test_a_line_is_told_where_values_are_not_finite_and_by_how_many():
    layout = kernels_of(yo.Model.external(lambda x: 0.0, 2), MeanField(), Clock()).layout()
    t = np.random.default_rng(1).standard_normal((60, 2))
    some, few = (np.where(t[:, 0] > edge, t[:, 0], np.nan) for edge in (-2.0, 0.8))
    for values, blind in ((some, False), (few, True)):
        line, elbo, _ = fit_line(layout, t, values)
        assert line.lost == pytest.approx(np.isnan(values).mean()) and (line.lost > 0.5) == blind and np.isfinite(elbo)
    # Most were lost: nothing is said but where the others are, to the right, in a narrow band.
    assert line.slope[0] > 1 and line.bend[0] < -1 and abs(line.slope[1]) < 1
    line, elbo, _ = fit_line(layout, t, np.full(60, np.nan))
    assert elbo == -np.inf and line.lost == 1 and (line.bend < -1).all() and not line.slope.any()  # narrower, where it is


@pytest.mark.parametrize("restarts", [1, 2])
def test_a_family_without_a_chart_is_fitted_by_score_steps(restarts):
    """Latents of their own Normals beside a mean that says nothing of them: the answer is known, N(y/2, 1/2) each."""
    y = np.array([2.0, -1.0, 0.5])
    model = yo.Model(
        prior={"mu": dist.Normal(0.0, 1.0)}, log_likelihood=lambda p, y: dist.Normal(p["t"], 1.0).log_prob(y),
        data=y, local={"t": dist.Normal(0.0, 1.0)},
    )  # fmt: skip
    fit = yo.fit(model, seed=2, restarts=restarts)
    assert isinstance(fit.method.gradient, RaoBlackwell) and fit.num_gradients == 0
    evidence = float(dist.Normal(0.0, np.sqrt(2.0)).log_prob(y).sum())
    assert evidence - 0.3 < fit.elbo.value < evidence + 3 * fit.elbo.se


def test_family_without_a_chart_falls_back_on_score_steps():
    model = yo.Model(
        prior={"mu": dist.Normal(0.0, 1.0)}, log_likelihood=lambda p, y: dist.Normal(p["t"], 1.0).log_prob(y),
        data=np.ones(5), local={"t": dist.Normal(0.0, 1.0)},
    )  # fmt: skip
    assert chart(model.density, Factorised().complete(model), model.inputs) is None
    assert isinstance(method("yoasovi").for_family(model, Factorised().complete(model)).gradient, RaoBlackwell)


LAWS = {
    "normal": (dist.Normal(jnp.zeros(2), 1.0).to_event(1), Law(dist.Normal)),
    "lognormal": (dist.LogNormal(jnp.zeros(2), 1.0).to_event(1), Law(dist.LogNormal)),
    "bernoulli": (dist.Bernoulli(jnp.full(2, 0.3)).to_event(1), Law(dist.BernoulliLogits)),
    "categorical": (dist.Categorical(jnp.ones((2, 3)) / 3).to_event(1), Law(dist.CategoricalLogits)),
    "poisson": (dist.Poisson(jnp.full(2, 3.0)).to_event(1), Law(dist.Poisson)),
    "exponential": (dist.Exponential(jnp.ones(2)).to_event(1), Law(dist.Exponential)),
    "gamma": (dist.Gamma(jnp.full(2, 2.0), 1.0).to_event(1), Law(dist.Gamma)),
    "beta": (dist.Beta(jnp.full(2, 2.0), 3.0).to_event(1), Law(dist.Beta)),
    "dirichlet": (dist.Dirichlet(jnp.ones((2, 3))).to_event(1), Law(dist.Dirichlet)),
}


@pytest.mark.parametrize("name", LAWS)
def test_features_have_mean_zero_and_variance_one(name):
    """4,000 draws: means off by 5 standard errors, variances by a quarter; a false alarm in 10,000 for all laws together."""
    prior, factor = LAWS[name]
    model = yo.Model(prior={"x": prior}, log_likelihood=lambda p, y: y, data=np.zeros(1))
    family = Factorised({"x": factor}).complete(model)
    with precision():
        there = chart(model.density, family, model.inputs)
        params = family.init(model, {})
        shape = model.density.sites[0].shape
        uniform = jax.random.uniform(jax.random.key(0), (4000, *shape), minval=1e-9, maxval=1 - 1e-9)
        draw = lambda u: there.features(params, {"x": inverse_cdf(factor.law(params["x"]), u)})
        t = np.asarray(jax.jit(jax.vmap(draw))(uniform))
    assert t.shape[1] == there.normal.size == there.element.size
    assert np.all(np.abs(t.mean(0)) < 5 / np.sqrt(4000))
    assert np.all(np.abs(t.var(0) - 1) < 0.25)


def test_regression_recovers_a_quadratic_exactly():
    layout = kernels_of(yo.Model.external(lambda x: 0.0, 3), MeanField(), Clock()).layout()
    t = np.random.default_rng(1).standard_normal((40, 3))
    f = -7.0 + t @ [1.0, -2.0, 0.5] + (t**2 - 1) @ [0.3, -0.4, 0.0]
    line, elbo, se = fit_line(layout, t, f)
    np.testing.assert_allclose(elbo, -7.0, atol=1e-4)
    np.testing.assert_allclose(line.slope, [1.0, -2.0, 0.5], atol=1e-4)
    np.testing.assert_allclose(line.bend, [0.3, -0.4, 0.0], atol=1e-4)
    assert se < 1e-4
