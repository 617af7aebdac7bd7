"""Predictions: what was observed in the fit is drawn anew, at its own data or at others, whose shapes they follow."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers

import yoasovi as yo

X = np.linspace(-2.0, 2.0, 60)
Y = 2.0 * X + 1.0
NEW = np.array([1.0, 3.0])
AT_NEW = np.array([3.0, 7.0])
DRAWS = {"a": np.ones(300), "b": np.full(300, 2.0), "s": np.full(300, 0.1)}  # a posterior that knows the line
SURE = 5 * 0.1 / np.sqrt(300)  # five standard errors of a mean of 300 draws with sd 0.1


def parameters():
    wide = dist.Normal(0, 5)
    return numpyro.sample("a", wide), numpyro.sample("b", wide), numpyro.sample("s", dist.HalfNormal(1.0))


def draw(fn, *args, data, draws=DRAWS, **kwargs):
    return yo.from_numpyro(fn, *args, **kwargs).predictive.with_arguments(0, draws, data)


def line(x, y=None):
    a, b, s = parameters()
    with numpyro.plate("n", x.shape[0]):
        numpyro.sample("y", dist.Normal(a + b * x, s), obs=y)


def sized_by_y(x, y):
    a, b, s = parameters()
    with numpyro.plate("n", y.shape[0]):
        numpyro.sample("y", dist.Normal(a + b * x, s), obs=y)


def only_if_observed(x, y=None):
    a, b, s = parameters()
    if y is not None:
        numpyro.sample("y", dist.Normal(a + b * x, s), obs=y)


def in_numpy(x, y):
    a, b, s = parameters()
    numpyro.sample("y", dist.Normal(a + b * x, s), obs=np.log(np.exp(y)))


def masked(x, y, mask):
    a, b, s = parameters()
    with numpyro.plate("n", x.shape[0]), handlers.mask(mask=mask):
        numpyro.sample("y", dist.Normal(a + b * x, s), obs=y)


def subsampled(x, y=None):
    a, b, s = parameters()
    with numpyro.plate("n", x.shape[0], subsample_size=20) as rows:
        numpyro.sample("y", dist.Normal(a + b * x[rows], s), obs=None if y is None else y[rows])


def in_a_dict(data):
    a, b, s = parameters()
    with numpyro.plate("n", len(data["y"])):
        numpyro.sample("y", dist.Normal(a + b * data["x"], s), obs=data["y"])


def by_keyword(x, **others):
    a, b, s = parameters()
    numpyro.sample("y", dist.Normal(a + b * x, s), obs=others["y"])


CASES = {
    "positional": (line, (X, Y), {}, {"x": NEW}),
    "keyword": (line, (X,), {"y": Y}, {"x": NEW}),
    "as a list": (line, (X, Y), {}, {"x": [1.0, 3.0]}),
    "y given too": (line, (X, Y), {}, {"x": NEW, "y": np.array([50.0, 60.0])}),
    "y given as None": (line, (X, Y), {}, {"x": NEW, "y": None}),
    "sized by y": (sized_by_y, (X, Y), {}, {"x": NEW}),
    "only if observed": (only_if_observed, (X, Y), {}, {"x": NEW}),
    "in NumPy": (in_numpy, (X, Y), {}, {"x": NEW}),
    "masked": (masked, (X, Y, X < 1), {}, {"x": NEW}),
    "subsampled": (subsampled, (X, Y), {}, {"x": NEW}),
    "in a dict": (in_a_dict, ({"x": X, "y": Y},), {}, {"data": {"x": NEW}}),
    "by keyword": (by_keyword, (X,), {"y": Y}, {"x": NEW}),
    "conditioned": (handlers.condition(line, {"y": Y}), (X,), {}, {"x": NEW}),
}


@pytest.mark.parametrize("name", CASES)
def test_what_was_observed_is_drawn_at_new_arguments(name):
    fn, args, kwargs, data = CASES[name]
    made = draw(fn, *args, data=data, **kwargs)
    assert set(made) == {"y"} and made["y"].shape == (300, 2)
    np.testing.assert_allclose(made["y"].mean(0), AT_NEW, atol=SURE)
    np.testing.assert_allclose(made["y"].std(0), 0.1, rtol=0.25)


def test_a_fit_predicts_at_its_own_and_at_new_arguments():
    noisy = Y + np.random.default_rng(0).normal(size=60)
    fit = yo.fit(yo.from_numpyro(line, X, noisy), progress=False)
    own = fit.predict(n=500)["y"]
    assert own.shape == (500, 60) and 0.7 < (own - own.mean(0)).std() < 1.4
    assert np.array_equal(own, fit.predict({}, n=500)["y"])
    for new in (NEW, NEW[:1], X):  # one row too, and as many as there were
        made = fit.predict({"x": new}, n=500)["y"]
        assert made.shape == (500, len(new)) and np.all(made.std(0) > 0.5)
        assert abs(np.mean(made - (2.0 * new + 1.0))) < 0.6


def pair(x, y, z):
    a, b, s = parameters()
    with numpyro.plate("n", x.shape[0]):
        first = numpyro.sample("y", dist.Normal(a + b * x, s), obs=y)
        numpyro.sample("z", dist.Normal(10.0 * first, 0.01), obs=z)


def test_an_observation_that_another_depends_on_is_drawn_unless_it_is_given():
    made = draw(pair, X, Y, 10.0 * Y, data={"x": NEW})
    np.testing.assert_allclose(made["z"], 10.0 * made["y"], atol=0.06)
    given = draw(pair, X, Y, 10.0 * Y, data={"x": NEW, "y": np.array([5.0, 6.0])})
    np.testing.assert_allclose(given["y"].mean(0), AT_NEW, atol=SURE)
    np.testing.assert_allclose(given["z"].mean(0), [50.0, 60.0], atol=0.01)


def test_a_value_that_a_handler_fixed_stays_fixed():
    fixed = handlers.condition(line, {"y": Y, "s": 0.5})
    made = draw(fixed, X, data={"x": NEW}, draws={k: DRAWS[k] for k in "ab"})
    np.testing.assert_allclose(made["y"].std(0), 0.5, rtol=0.25)


def test_a_law_without_a_plate_is_drawn_as_often_as_it_was_observed():
    def same(y):
        a, _, s = parameters()
        numpyro.sample("y", dist.Normal(a, s), obs=y)

    model = yo.from_numpyro(same, Y)
    assert yo.fit(model, "advi", max_steps=20, progress=False).predict(n=10)["y"].shape == (10, 60)
    assert draw(same, Y, data={"y": Y[:7]})["y"].shape == (300, 7)


def test_a_latent_that_changes_its_shape_is_drawn_from_its_law():
    def shifted(x, y=None):
        a, b, s = parameters()
        with numpyro.plate("n", len(x)):
            e = numpyro.sample("e", dist.Normal(4.0, 0.01))
            numpyro.sample("y", dist.Normal(numpyro.deterministic("mu", a + b * x) + e, s), obs=y)

    made = draw(shifted, X, Y, data={"x": NEW}, draws={**DRAWS, "e": np.zeros((300, 60))})
    assert set(made) == {"e", "mu", "y"}
    np.testing.assert_allclose(made["mu"], np.broadcast_to(AT_NEW, (300, 2)))
    np.testing.assert_allclose(made["y"].mean(0), AT_NEW + 4.0, atol=2 * SURE)


def test_factors_are_not_predictions():
    def weighed(x, y=None):
        numpyro.factor("penalty", -jnp.sum(x**2))
        line(x, y)

    assert set(draw(weighed, X, Y, data={"x": NEW})) == {"y"}


def test_arguments_that_must_follow_and_do_not_are_named():
    def two(x, w, y=None):
        a, b, s = parameters()
        numpyro.sample("y", dist.Normal(a + b * x + w, s), obs=y)

    with pytest.raises(ValueError, match=r"cannot be run with the `data` of `predict`: .* as in the fit: w \(60,\)\."):
        draw(two, X, X, Y, data={"x": NEW})
    with pytest.raises(ValueError, match=r"`data` of `predict` must be named after arguments of the model \(x, w, y\)"):
        draw(two, X, X, Y, data={"z": NEW})
    with pytest.raises(ValueError, match=r"`data\['data'\]` of `predict` must be a dict with keys among x, y; got \['X'\]"):
        draw(in_a_dict, {"x": X, "y": Y}, data={"data": {"X": NEW}})


# ---- built-in models -------------------------------------------------------------------------------------

ROWS = np.column_stack([X, X**2])


def read(model, data):
    return model.predictive.read(data, model.data)


def test_built_in_regressions_predict_at_a_matrix():
    fit = yo.fit(yo.models.LinearRegression(ROWS, Y), progress=False)
    new = np.array([[1.0, 1.0], [3.0, 9.0]])
    made = fit.predict(new, n=200)
    np.testing.assert_allclose(made.mean(0), AT_NEW, atol=0.1)
    np.testing.assert_array_equal(made, fit.predict({"X": new, "y": None}, n=200))
    for data, said in (({"x": new}, "keys among 'X'; got"), ({"y": Y}, "a dict with 'X'"), (new[:, :1], r"shape \(N, 2\)")):
        with pytest.raises(ValueError, match=said):
            fit.predict(data)


@pytest.mark.parametrize("make", ["LogisticRegression", "PoissonRegression", "NeuralNetwork"])
def test_other_models_of_rows_take_a_matrix_too(make):
    model = getattr(yo.models, make)(ROWS, np.arange(60) % 2)
    np.testing.assert_array_equal(read(model, ROWS[:3])["X"], ROWS[:3])
    with pytest.raises(ValueError, match=r"`data\['X'\]` of `predict` must be of shape \(N, 2\)"):
        read(model, ROWS[:, :1])


def test_exposures_and_known_noise_are_those_of_the_new_rows():
    poisson = yo.models.PoissonRegression(ROWS, np.arange(60) % 2, exposure=5.0)
    np.testing.assert_array_equal(read(poisson, ROWS[:2])["log_exposure"], [0.0, 0.0])
    np.testing.assert_allclose(read(poisson, {"X": ROWS[:2], "exposure": 2.0})["log_exposure"], np.log([2.0, 2.0]))
    one = yo.models.HierarchicalNormal(Y, np.arange(60) % 3, sd=0.5)
    np.testing.assert_array_equal(read(one, [2, 0])["sd"], [0.5, 0.5])
    many = yo.models.HierarchicalNormal(Y[:3], sd=[1.0, 2.0, 3.0])
    np.testing.assert_array_equal(read(many, {"group": [2, 0], "sd": [4.0, 5.0]})["sd"], [4.0, 5.0])
    with pytest.raises(ValueError, match="`data` of `predict` must be a dict with 'group' and 'sd'"):
        read(many, [2, 0])


def test_groups_are_called_as_the_user_calls_them():
    for labels, some in ((["x", "y", "z"], ["z", "x"]), ([10, 20, 30], [30, 10])):
        model = yo.models.HierarchicalNormal(Y, np.array(labels)[np.arange(60) % 3])
        np.testing.assert_array_equal(read(model, some)["group"], [2, 0])
        np.testing.assert_array_equal(read(model, {"group": some})["group"], [2, 0])
        with pytest.raises(ValueError, match=r"`data\['group'\]` of `predict` must be of groups in the fit .* got \['q'\]"):
            read(model, ["q"])


def test_a_mixture_gives_as_many_draws_as_rows_are_asked_for():
    fit = yo.fit(yo.models.GaussianMixture(ROWS, 2), max_steps=50, progress=False)
    assert fit.predict(np.zeros(5), n=20).shape == (20, 5, 2)
    with pytest.raises(ValueError, match="`data` of `predict` must be 1-dimensional or 2-dimensional"):
        fit.predict(5)
