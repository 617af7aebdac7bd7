"""Starts: climbs side by side, priors' middles, and starts that are judged."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import biject_to, constraints

import yoasovi as yo
from yoasovi.climb import climb, climb_elbo
from yoasovi.randomness import mirrored
from yoasovi.start import middle, places
from yoasovi.windows.state import CLIMB


def endless(x):
    """Rise for ever along a ridge that bends, so that steps stay short."""
    bend = x[:, 1] - np.sin(3.0 * x[:, 0])
    slope = np.stack([10.0 + 1200.0 * bend * np.cos(3.0 * x[:, 0]), -400.0 * bend], 1)
    return 10.0 * x[:, 0] - 200.0 * bend**2, slope


def test_a_climb_without_end_is_given_up_early():
    """Density that rises for ever (a hierarchy whose scale goes to zero) used to take all of the budget, for nothing."""
    found = climb(endless, np.zeros((1, 2)), 100, near=400.0)
    assert found.given_up[0] and found.gradients[0] < 50
    calm = climb(lambda x: (-0.5 * (x**2).sum(1), -x), np.full((1, 2), 3.0), 100, near=40.0)
    assert not calm.given_up[0] and np.abs(calm.top).max() < 0.1


def test_climbs_side_by_side_end_where_they_would_alone():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(6, 6))
    precision = root @ root.T + np.eye(6)
    target = lambda x: (-0.5 * np.einsum("ni,ij,nj->n", x, precision, x) + np.cos(x).sum(1), -x @ precision - np.sin(x))
    starts = 5.0 * rng.normal(size=(7, 6))
    together = climb(target, starts, 60)
    for i, start in enumerate(starts):
        alone = climb(target, start[None], 60)
        np.testing.assert_allclose(alone.top[0], together.top[i], rtol=1e-9, atol=1e-9)
        assert alone.gradients[0] == together.gradients[i]


def test_a_climb_finds_a_rosenbrock_maximum():
    def hill(x):
        a, b = x[:, 0], x[:, 1]
        return -((1 - a) ** 2) - 100 * (b - a**2) ** 2, np.stack([2 * (1 - a) + 400 * a * (b - a**2), -200 * (b - a**2)], 1)

    found = climb(hill, np.array([[-1.2, 1.0]]), 200, enough=1e-9)
    np.testing.assert_allclose(found.top[0], 1.0, atol=1e-3)
    assert found.gradients[0] < 80


def test_looks_that_are_not_finite_are_counted_and_stepped_back_from():
    def cliff(x):
        value = np.where(x[:, 0] > 1.0, np.nan, -0.5 * (x[:, 0] - 0.9) ** 2 * 1e4)
        return value, -(x - 0.9) * 1e4

    found = climb(cliff, np.array([[-50.0]]), 100)
    assert abs(found.top[0, 0] - 0.9) < 0.05 and np.isfinite(found.height[0])
    nowhere = climb(lambda x: (np.full(len(x), np.nan), x), np.zeros((2, 3)), 50)
    assert nowhere.refused[0].sum() == 2 and (nowhere.height == -np.inf).all()


def test_a_climb_of_the_elbo_finds_means_and_scales_and_does_not_depend_on_its_neighbours():
    at, wide = np.array([300.0, -2.0, 0.01]), np.array([20.0, 1.0, 0.001])
    target = lambda x: (-0.5 * (((x - at) / wide) ** 2).sum(1), -(x - at) / wide**2)
    noise = mirrored(np.random.default_rng(0), 16, 3)
    noise /= np.sqrt((noise**2).mean(0))
    starts = np.random.default_rng(1).normal(size=(4, 3))
    together = climb_elbo(target, starts, np.full((4, 3), 0.4), noise, 200)
    mean, log_scale = np.split(together.top, 2, axis=1)
    np.testing.assert_allclose((mean - at) / wide, 0.0, atol=0.2)
    np.testing.assert_allclose(log_scale, np.broadcast_to(np.log(wide), log_scale.shape), atol=0.15)
    alone = climb_elbo(target, starts[2:3], np.full((1, 3), 0.4), noise, 200)
    np.testing.assert_allclose(alone.top[0], together.top[2], rtol=1e-9, atol=1e-9)
    assert alone.gradients[0] == together.gradients[2] and alone.gradients[0] % 16 == 0


def far_groups(group, y):
    """Give a centred hierarchy in raw units, whose log p has no maximum."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 1000.0))
    between, within = (
        numpyro.sample(name, dist.ImproperUniform(constraints.positive, (), ())) for name in ("between", "within")
    )
    level = numpyro.sample("level", dist.Normal(mean, between).expand([20]))
    numpyro.sample("y", dist.Normal(level[group], within), obs=y)


def far_growth(subject, age, y):
    """Give intercepts and slopes in raw units."""
    mean = numpyro.sample("mean", dist.Normal(np.zeros(2), 100.0).to_event(1))
    of_levels, of_slopes, within = (
        numpyro.sample(name, dist.ImproperUniform(constraints.positive, (), ())) for name in ("levels", "slopes", "within")
    )
    level = numpyro.sample("level", dist.Normal(mean[0], of_levels).expand([12]))
    slope = numpyro.sample("slope", dist.Normal(mean[1], of_slopes).expand([12]))
    numpyro.sample("y", dist.Normal(level[subject] + slope[subject] * age, within), obs=y)


def far_models():
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(20), 6)
    y = 500 + (40 * rng.normal(size=20))[group] + 25 * rng.normal(size=group.size)
    subject, age = np.repeat(np.arange(12), 5), np.tile([8.0, 15.0, 22.0, 29.0, 36.0], 12)
    weight = (110 + 12 * rng.normal(size=12))[subject] + (6.2 + 0.5 * rng.normal(size=12))[subject] * age
    return {
        "groups": yo.from_numpyro(far_groups, group, y),
        "growth": yo.from_numpyro(far_growth, subject, age, weight + 6 * rng.normal(size=age.size)),
    }


@pytest.mark.parametrize("name", ["groups", "growth"])
def test_a_centred_hierarchy_far_away_is_reached_from_every_seed(name):
    """Log p rises into the corner where a scale goes to zero: from there, steps took 100,000 gradients or failed."""
    model = far_models()[name]
    fits = [yo.fit(model, seed=seed, max_steps=20_000) for seed in range(3)]
    elbos = np.array([f.elbo.value for f in fits])
    assert all(f.converged for f in fits) and np.ptp(elbos) < 0.3
    assert any((f.trace["kind"] == CLIMB).any() for f in fits)
    draws = fits[0].sample(500)
    middle = {"groups": 500.0, "growth": 110.0}[name]
    assert abs(np.asarray(draws["level"]).mean() - middle) < 0.1 * middle


def test_the_gradients_of_a_climb_are_counted_and_a_seed_means_the_same_bits():
    model = far_models()["groups"]
    one, again = (yo.fit(model, seed=1, max_steps=400) for _ in range(2))
    climbs = one.trace["kind"] == CLIMB
    assert climbs.any() and one.num_gradients > one.num_steps + 8 * 20
    np.testing.assert_array_equal(one.params.mean, again.params.mean)


@pytest.mark.parametrize(
    "law",
    [
        dist.Normal(3.0, 2.0), dist.LogNormal(1.0, 0.5), dist.HalfNormal(4.0), dist.HalfCauchy(2.0), dist.Exponential(0.1),
        dist.Gamma(3.0, 0.5), dist.InverseGamma(4.0, 2.0), dist.Beta(2.0, 5.0), dist.Uniform(-3.0, 8.0),
        dist.StudentT(5.0, 1.0, 2.0), dist.Laplace(0.0, 3.0),
    ],
    ids=lambda law: type(law).__name__,
)  # fmt: skip
def test_the_middle_of_a_prior_is_where_its_draws_are(law):
    draws = np.asarray(biject_to(law.support).inv(law.sample(jax.random.key(0), (4000,))), float)
    centre, scale = middle(law)
    low, high = np.quantile(draws, [0.25, 0.75])
    assert low - 0.2 * (high - low) < centre < high + 0.2 * (high - low)
    assert 0.5 < scale / ((high - low) / 1.35) < 2.1


def test_lanes_begin_apart_and_the_first_near_the_middle():
    prior = {"x": dist.Normal(100.0, 10.0).expand([4]).to_event(1)}
    model = yo.Model(prior=prior, log_likelihood=lambda p, d: d, data=np.ones(2))
    begin, scale = places(model, 0, 5)
    assert np.abs(begin[0] - 100.0).max() < 1.0 and begin[1:].std() > 0.5 and (scale == 1.0).all()


@pytest.mark.parametrize("covariance", ["known", "full"])
def test_a_models_own_starts_are_those_of_fewer_lanes_too_and_on_the_unconstrained_scale(covariance):
    y = np.random.default_rng(0).normal(size=(40, 2))
    model = yo.models.GaussianMixture(y, 3, covariance=covariance, assignments="marginal", noise_covariance=4.0)
    many, few, one = (places(model, 3, lanes)[0] for lanes in (6, 2, 1))
    np.testing.assert_array_equal(many[:2], few)
    np.testing.assert_array_equal(many[:1], one)
    point = model.density.split(many)
    rows = point["mu"].reshape(-1, 2)
    assert all((row == y).all(1).any() for row in rows) and len(np.unique(many, axis=0)) == 6
    if covariance == "full":
        np.testing.assert_allclose(point["sd"].reshape(-1), np.full(36, np.log(2.0)), rtol=1e-6)


def test_starts_given_lane_by_lane_are_mapped_back_together():
    """A start of the user's own: a draw on a simplex and a positive number for every lane."""
    laws = {"share": dist.Dirichlet(np.ones(3)), "rate": dist.Gamma(2.0, 1.0)}
    draw = lambda key: {"share": laws["share"].sample(key), "rate": laws["rate"].sample(key)}
    model = yo.Model(prior=laws, log_likelihood=lambda p, d: d, data=np.ones(2), start=draw)
    many, one = places(model, 0, 4)[0], places(model, 0, 1)[0]
    np.testing.assert_allclose(many[:1], one, rtol=1e-12)
    point = model.density.split(many)
    back = np.asarray(biject_to(dist.constraints.simplex)(point["share"]))
    assert len(np.unique(many, axis=0)) == 4
    np.testing.assert_allclose(back.sum(-1), 1.0, rtol=1e-6)


def test_an_unknown_law_begins_at_the_origin():
    assert middle(dist.ImproperUniform(dist.constraints.real, (), ())) is None
    assert middle(dist.Dirichlet(np.ones(3))) is None


def test_the_last_of_many_climbs_end_where_they_are():
    """A climb that needs ten times as many looks as all others must not make them wait; two climbs are both finished."""

    def look(x):
        slow = np.where(x[:, :1] > 50.0, np.array([[1.0, 1e5]]), 1.0)  # those that began far off
        return -0.5 * (slow * np.cosh(np.clip(x, -700, 700) / 30.0)).sum(1), -slow * np.sinh(x / 30.0) / 60.0

    begin = np.ones((64, 2))
    begin[:4] = 400.0
    all_of_them, most = (climb(look, begin, 300, enough=1e-9, leave=share) for share in (0.0, 1 / 8))
    assert all_of_them.gradients[:4].min() > 2 * most.gradients[:4].max()
    np.testing.assert_array_equal(all_of_them.top[4:], most.top[4:])
    few = [climb(look, begin[3:5], 300, enough=1e-9, leave=share).gradients for share in (0.0, 1 / 8)]
    np.testing.assert_array_equal(*few)


@pytest.mark.parametrize("law", [dist.InverseGamma(0.001, 0.001), dist.Gamma(0.001, 0.001)], ids=["inverse", "gamma"])
def test_a_vague_gamma_prior_is_no_place_far_away(law):
    """The prior of a thousand BUGS programs, on a variance or a precision."""
    centre, scale = middle(law)
    assert abs(centre) < 1e-6 and 1.0 <= scale <= 10.0

    def model(y):
        sigma = numpyro.sample("v", law)
        numpyro.sample("y", dist.Normal(0.0, jax.numpy.sqrt(sigma)), obs=y)

    fit = yo.fit(yo.from_numpyro(model, np.array([0.5, -1.0, 2.0, 1.0, -0.3])), seed=0, mend=False)
    assert fit.converged and np.isfinite(fit.elbo.value)


def test_a_fit_begins_where_log_p_is_finite_though_the_middle_of_its_prior_is_not():
    log_p = lambda p: jax.numpy.where(p["x"] < 0.5, jax.numpy.nan, -0.5 * ((p["x"] - 2.0) / 0.1) ** 2)
    model = yo.Model.from_log_density(log_p, {"x": constraints.real}, {"x": ()})
    fit = yo.fit(model, seed=0, mend=False)
    assert fit.converged and abs(fit.mean()["x"] - 2.0) < 0.02


def test_the_steepest_slopes_are_climbed_without_a_warning():
    with np.errstate(all="raise"):
        found = climb(lambda x: (-1e200 * (x**2).sum(1), -2e200 * x), np.full((1, 2), 3.0), 40)
    assert np.abs(found.top).max() < 3.0


@pytest.mark.parametrize(
    "law", [dist.TruncatedDistribution(dist.StudentT(3, 0, 10), low=0.0), dist.FoldedDistribution(dist.Normal(0, 10))]
)
def test_half_of_a_law_is_a_prior_of_scales_also_where_numpyro_cannot_draw_from_it(law):
    """brms' own prior of scales: without TensorFlow Probability NumPyro has no draws of it."""
    centre, scale = middle(law)
    assert abs(centre - np.log(10.0)) < 1.0 and 0.5 < scale < 2.0
    assert middle(dist.TruncatedDistribution(dist.Normal(5.0, 1.0), low=0.0)) is None

    def model(y):
        s = numpyro.sample("s", law)
        numpyro.sample("y", dist.Normal(0.0, s), obs=y)

    y = 2.0 * np.random.default_rng(0).normal(size=50)
    fit = yo.fit(model, y, seed=0)  # mending looks at draws of the prior, where it can
    assert fit.converged and abs(fit.mean()["s"] - y.std()) < 0.3
    assert fit.diagnose().grade == "good"
