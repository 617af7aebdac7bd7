"""Windows that look at every label: the surface they show, climbs and leaps on it."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import yoasovi as yo
from yoasovi.families.factorised import Factorised
from yoasovi.kernels import kernels_of
from yoasovi.kernels.programs import Clock
from yoasovi.turns import LabelTurns
from yoasovi.windows import label_surface
from yoasovi.windows.value_regression import Layout, fit_line
from yoasovi.windows.value_rule import ValueForecast, ValueWindow

CENTRES = np.array([[-6.0, 0.0], [6.0, 1.0], [0.0, 7.0]])


def clusters(**settings):
    rng = np.random.default_rng(0)
    y = CENTRES[np.arange(90) % 3] + 0.7 * rng.normal(size=(90, 2))
    return yo.models.GaussianMixture(y, 3, prior_scale=8.0, **settings)


def looked(model, start, draws=60):
    """Look at one window's labels from q at `start`."""
    family = model.default_family.complete(model)
    kernels = kernels_of(model, family, Clock())
    params = jax.tree.map(np.asarray, family.init(model, start))
    noise = np.random.default_rng(1).uniform(0.01, 0.99, (draws, family.noise_size(model.density)))
    sights, _ = kernels.every_label(params, noise)
    line, elbo, _ = fit_line(kernels.layout(), sights.features, label_surface.values_of(sights))
    return kernels, params, sights, label_surface.surface(kernels.layout(), sights, line), elbo


def test_a_quadratic_surface_is_exact_and_a_climb_ends_where_coordinate_ascent_does():
    model = clusters()
    kernels, params, _, ground, elbo = looked(model, {"mu": CENTRES + 1.0})
    assert ground.exact
    assert elbo == pytest.approx(float(model.exact_elbo(params)), rel=1e-6)
    aim, _ = label_surface.uphill(ground, elbo)
    there = kernels.place(params, aim.shift, aim.stretch, np.inf, aim.log_probs, np.inf, 1.0)
    assert float(model.exact_elbo(there)) == pytest.approx(model.optimum(), abs=0.01)
    assert elbo + aim.gain == pytest.approx(model.optimum(), abs=0.01)  # what was promised is there


def test_a_leap_leaves_a_hill_that_no_climb_leaves():
    """Two labels share one cluster, the third has two clusters."""
    model = clusters()
    _, _, _, ground, elbo = looked(model, {"mu": np.array([[-6.0, 0.5], [-6.0, -0.5], [3.0, 4.0]])})
    aim, top = label_surface.uphill(ground, elbo)
    assert elbo + aim.gain < model.optimum() - 100
    leap = label_surface.leap(ground, top, np.random.default_rng(0))
    assert elbo + aim.gain + leap.gain == pytest.approx(model.optimum(), abs=0.1)


def test_a_surface_that_is_not_exact_is_not_left_far():
    _, _, _, ground, elbo = looked(clusters(covariance="diagonal"), {"mu": CENTRES[::-1] + 3.0}, draws=200)
    assert not ground.exact
    aim, _ = label_surface.uphill(ground, elbo)
    assert np.abs(aim.shift).max() <= 2.0 and np.abs(aim.stretch).max() <= np.log(2.0) + 1e-9


def test_a_label_that_is_not_possible_gets_no_weight():
    _, _, sights, ground, _ = looked(clusters(), {"mu": CENTRES})
    each = sights.each.copy()
    each[3, 0, 0] = -np.inf
    again = label_surface.surface(ground.layout, sights._replace(each=each), ground.line)
    assert label_surface.best_labels(again)[0, 0] < -1e5
    assert np.isfinite(label_surface.best_labels(again)).all()


@pytest.mark.parametrize("seed", range(3))
def test_one_start_finds_the_best_of_coordinate_ascent_and_stops(seed):
    model = clusters()
    fit = yo.fit(model, seed=seed)
    assert fit.converged and float(model.exact_elbo(fit.params)) > model.optimum() - 1.0
    assert fit.num_values == 3 * fit.num_steps


def test_a_mixture_that_is_not_quadratic_is_fitted_and_stops():
    rng = np.random.default_rng(0)
    y = rng.poisson(np.array([2.0, 25.0])[np.arange(100) % 2])
    model = yo.Model(
        prior={"rate": dist.LogNormal(jnp.array([1.0, 3.0]), 1.0).to_event(1), "w": dist.Dirichlet(jnp.ones(2))}, data=y,
        local={"z": lambda p: dist.CategoricalLogits(jnp.log(p["w"]))},
        log_likelihood=lambda p, y: dist.Poisson(p["rate"][p["z"]]).log_prob(y),
    )  # fmt: skip
    fit = yo.fit(model)
    assert fit.converged and isinstance(fit.family, Factorised)
    np.testing.assert_allclose(np.sort(fit.mean()["rate"]), [y[::2].mean(), y[1::2].mean()], rtol=0.05)


def test_two_labels_of_an_observation_are_drawn_one_value_each():
    rng = np.random.default_rng(0)
    a, b = rng.integers(2, size=(2, 200))
    y = 4.0 * (2 * a - 1) + 1.5 * b + 0.7 * rng.normal(size=200)
    model = yo.Model(
        prior={"m": dist.Normal(3.0, 1.0)}, local={k: dist.Bernoulli(0.5) for k in "ab"}, data=y,
        log_likelihood=lambda p, y: dist.Normal(p["m"] * (2.0 * p["a"] - 1.0) + 1.5 * p["b"], 0.7).log_prob(y),
    )  # fmt: skip
    fit = yo.fit(model, max_steps=3000)
    assert fit.num_values == fit.num_steps
    assert np.array_equal(np.asarray(fit.params["a"]["logits"]) > 0, a)


def test_labels_are_looked_at_one_by_one_where_each_observation_has_one_with_few_values():
    layout = lambda labels: Layout(np.ones(2, bool), np.arange(2), labels, 10)
    assert LabelTurns.suit(layout({"z": 7}))
    assert not any(LabelTurns.suit(layout(x)) for x in ({}, {"z": 1000}, {"z": 2, "u": 2}))


def test_a_loss_does_not_hide_behind_an_error_that_the_incumbent_has_not():
    rule, layout = ValueWindow(), Layout(np.ones(2, bool), np.arange(2), {}, 1)
    one = np.ones(1)
    control = rule.init(layout, 1)._replace(se=0.1 * one)
    seen = lambda elbo, se: ValueForecast(elbo * one, se * one, one, 0 * one, 0 * one, control.size)
    judge = lambda *x: bool(rule.rule(layout, control, seen(*x), one > 0, 0 * one).accept[0])
    assert not judge(-1e9, 1e9)
    assert judge(-0.3, 0.2) and judge(3.0, 1e9)  # doubt alone is no loss
