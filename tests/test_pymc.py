"""The PyMC door: PyMC's own log density, names, dims and coords; what cannot be fitted is refused by name."""

import os
import pickle
import sys
import warnings

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.distributions import biject_to, constraints

import yoasovi as yo
from yoasovi.answer.predictive import recovered
from yoasovi.files.identity import of_model
from yoasovi.kernels.programs import precision
from yoasovi.model.centring import may_be_centred

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pm = pytest.importorskip("pymc")
import pytensor
import pytensor.tensor as pt

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")

EFFECT, ERROR = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
COUNTY = np.repeat(np.arange(6), 10)
TWO_GROUPS = np.concatenate([RNG.normal(-2, 0.7, 60), RNG.normal(2, 1, 90)])


def schools():
    with pm.Model(coords={"school": list("ABCDEFGH")}) as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        theta = pm.Normal("theta", mu, tau, dims="school")
        pm.Normal("y", theta, ERROR, observed=EFFECT, dims="school")
    return model


def logistic():
    with pm.Model(coords={"x": ["a", "b", "c"], "row": np.arange(60)}) as model:
        x = pm.Data("X", X, dims=("row", "x"))
        b = pm.Normal("b", 0, 2, dims="x")
        pm.Bernoulli("y", logit_p=pm.Normal("a", 0, 2) + pm.math.dot(x, b), observed=(X[:, 0] > 0).astype(int), dims="row")
    return model


def radon():
    with pm.Model(coords={"county": np.arange(6)}) as model:
        mu, sd = pm.Normal("mu", 0, 3), pm.HalfNormal("sd", 1)
        a = pm.Deterministic("a", mu + sd * pm.Normal("z", 0, 1, dims="county"), dims="county")
        pm.Normal("radon", a[COUNTY] + pm.Normal("b") * X[:, 0], pm.Exponential("sigma", 1), observed=X[:, 1])
    return model


def mixture():
    with pm.Model() as model:
        mu = pm.Normal("mu", 0, 3, shape=2, transform=pm.distributions.transforms.ordered, initval=[-1, 1])
        parts = pm.Normal.dist(mu, pm.HalfNormal("sd", 2, shape=2))
        pm.Mixture("y", w=pm.Dirichlet("w", np.ones(2)), comp_dists=parts, observed=TWO_GROUPS)
    return model


def supports():
    with pm.Model() as model:
        x = pm.Uniform("x", 1, 5)
        pm.Uniform("moves", 0, x)
        pm.Beta("beta", 2, 2)
        pm.TruncatedNormal("low", 0, 1, lower=0.5)
        pm.TruncatedNormal("both", 0, 1, lower=-1, upper=2)
        pm.InverseGamma("inverse", 3, 1)
        pm.LKJCholeskyCov("chol", n=3, eta=2, sd_dist=pm.Exponential.dist(1.0))
        pm.Dirichlet("rows", np.ones((2, 3)))
        pm.ZeroSumNormal("zero", shape=4)
        pm.VonMises("angle", 0, 2)
        pm.HalfFlat("flat")
        pm.GaussianRandomWalk("walk", mu=0, sigma=0.3, init_dist=pm.Normal.dist(0, 1), steps=4)
        pm.Potential("pull", -(x**2))
    return model


def cut():
    with pm.Model() as model:
        law = pm.Normal.dist(pm.Normal("mu", 0, 2), pm.HalfNormal("sd", 2))
        pm.Censored("censored", law, lower=-1, upper=1, observed=np.clip(X[:, 0], -1, 1))
        pm.Truncated("truncated", law, lower=-4, upper=4, observed=X[:, 1])
    return model


def moving():
    with pm.Model() as model:
        pm.Uniform("u", 0, pm.Uniform("x", 1, 5))
    return model


def missing():
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("x"), 1, observed=np.ma.masked_invalid([1.0, np.nan, 2.0]))
    return model


@pytest.mark.parametrize("make", [schools, logistic, radon, mixture, supports, missing, cut])
def test_log_density_is_pymcs_own(make):
    theirs = make()
    ours, log_p = yo.from_pymc(theirs), theirs.compile_logp(mode="FAST_COMPILE")
    values = [x.name for x in theirs.value_vars]
    total = jax.jit(lambda inputs, flat: ours.density.free_terms(inputs, flat).total())
    for seed in range(3):
        flat = 0.7 * np.random.default_rng(seed).normal(size=ours.density.dim)
        with precision():
            found = float(total(ours.inputs, jnp.asarray(flat)))
        parts = [np.asarray(ours.density.split(flat)[site.name]) for site in ours.density.sites]
        assert found == pytest.approx(float(log_p(dict(zip(values, parts, strict=True)))), rel=1e-7)


@pytest.mark.parametrize("make", [schools, mixture, supports])
def test_places_on_the_host_are_those_of_the_programs(make):
    model = yo.from_pymc(make())
    key = jax.random.key(1)
    free, point = model.start.free(key), model.start(key)
    with precision():
        flat = jnp.concatenate([jnp.ravel(free[site.name]) for site in model.density.sites])
        found, _ = jax.jit(model.density.constrain)(model.inputs, flat)
        for name, x in point.items():
            np.testing.assert_allclose(found[name], x, rtol=1e-10, atol=1e-12)
            back = biject_to(model.prior[name].support).inv(np.asarray(x))
            np.testing.assert_allclose(back, free[name], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("make", [schools, logistic, radon, mixture, supports, missing, moving])
def test_nothing_is_compiled_to_make_a_model(make, monkeypatch):
    theirs = make()

    def refuse(*_, **__):
        raise AssertionError("compiled")

    monkeypatch.setattr("pytensor.compile.function.types.FunctionMaker.__init__", refuse)
    monkeypatch.setattr("jax._src.compiler.compile_or_get_cached", refuse)
    model = yo.from_pymc(theirs)
    assert all(np.isfinite(x).all() for x in model.start.free(jax.random.key(0)).values())


def test_supports_that_numpyro_has_are_its_own():
    found = {k: law.support.base_constraint for k, law in yo.from_pymc(supports()).prior.items()}
    assert found["flat"] is constraints.positive and found["beta"] is constraints.unit_interval
    assert type(found["low"]) is type(constraints.greater_than(0.0)) and found["low"].lower_bound == 0.5
    assert (found["both"].lower_bound, found["both"].upper_bound) == (-1.0, 2.0)
    assert found["zero"].event_dim == 1  # PyMC's own way there


def test_a_start_drawn_from_the_prior_leaves_the_models_generators_alone():
    with pm.Model() as model:
        x = pm.Normal("x", 0, 100, shape=3, initval="prior")
    state = x.owner.inputs[0].get_value().bit_generator.state
    once, again = yo.from_pymc(model), yo.from_pymc(model)
    assert np.array_equal(once.start.begin.point[0], again.start.begin.point[0])
    assert len(set(once.start.begin.point[0])) == 3
    assert x.owner.inputs[0].get_value().bit_generator.state == state


def test_models_that_only_pymc_can_begin_are_left_to_it():
    with pm.Model() as loop:  # a loop in its log density, and a start drawn from the prior
        pm.AR("x", rho=[0.5], sigma=1.0, init_dist=pm.Normal.dist(0, 1), shape=5, initval="prior")
        pm.Normal("s", pytensor.scan(lambda x: x**2, sequences=[loop["x"]], return_updates=False).sum(), 1, observed=1.0)
    model, log_p = yo.from_pymc(loop), loop.compile_logp(mode="FAST_COMPILE")
    flat = np.linspace(-1, 1, 5)
    with precision():
        found = float(jax.jit(model.density.free_terms)(model.inputs, jnp.asarray(flat)).total())
    assert found == pytest.approx(float(log_p({"x": flat})), rel=1e-7)
    assert np.isfinite(model.start(jax.random.key(0))["x"]).all()


def test_constants_that_shapes_or_indices_are_made_of_are_part_of_the_program():
    with pm.Model() as model:
        many = pm.Data("many", np.arange(20))
        x = pm.Normal("x", shape=3)
        pm.Normal("y", x[pt.nonzero(many < 3)[0]], 1, observed=np.zeros(3))
        pm.Deterministic("cut", x[: many[2]])
    ours = yo.from_pymc(model)
    assert ours.data is None and ours.num_observations == 3 + 3


def test_each_observation_has_its_own_term_at_values_on_their_own_scale():
    model = yo.from_pymc(schools())
    theta = np.linspace(-5, 5, 8)
    with precision():
        terms = np.asarray(model.log_marginal({"mu": 0.0, "tau": 2.0, "theta": theta}, model.data))
    expected = -0.5 * ((EFFECT - theta) / ERROR) ** 2 - np.log(ERROR * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(terms, expected, rtol=1e-12)
    assert model.num_observations == 8 + 8 + 2  # then the terms of the free variables


def test_large_constants_are_data_and_the_program_does_not_hold_them():
    model = yo.from_pymc(radon())
    assert sorted(np.shape(x) for x in model.data.values()) == [(60,)] * 3
    assert "radon" in model.data


@pytest.fixture(scope="module")
def fitted():
    return yo.fit(mixture(), seed=0)


def test_mixture_goes_straight_into_fit_and_comes_out_on_its_own_scale(fitted):
    assert fitted.converged
    draws = fitted.sample(2000)
    assert set(draws) == {"mu", "sd", "w"}
    np.testing.assert_allclose(draws["w"].sum(1), 1.0)
    assert (draws["mu"][:, 0] < draws["mu"][:, 1]).all() and (draws["sd"] > 0).all()
    np.testing.assert_allclose(draws["mu"].mean(0), [TWO_GROUPS[:60].mean(), TWO_GROUPS[60:].mean()], atol=0.3)
    np.testing.assert_allclose(draws["w"].mean(0), [0.4, 0.6], atol=0.08)


def test_labelled_output_of_a_mixture_has_each_observation_once(fitted):
    pytest.importorskip("arviz_base")
    tree = fitted.to_datatree(200)
    assert tree.log_likelihood["y"].shape == (1, 200, 150)
    np.testing.assert_array_equal(tree.observed_data["y"], TWO_GROUPS)


def test_dims_coords_and_data_are_kept():
    labels = yo.from_pymc(logistic()).labels
    assert labels.dims["b"] == ("x",) and labels.dims["y"] == ("row",)
    assert list(labels.coords["x"]) == ["a", "b", "c"]
    assert labels.blocks == {"y": (60,)}
    np.testing.assert_array_equal(labels.constant["X"], X)


def test_deterministics_imputed_values_and_moving_supports_are_in_the_samples():
    for make, sites, names in (
        (radon, {"mu", "sd", "z", "b", "sigma"}, {"a"}),
        (missing, {"x", "y_unobserved"}, {"y"}),
        (moving, {"x", "u_interval__"}, {"u"}),
    ):
        model = yo.from_pymc(make())
        assert set(model.prior) == sites
        with precision():
            point = model.start(jax.random.key(0))
            shown = model.deterministics(point, model.data)
        assert set(shown) == names
    assert 0 < float(shown["u"]) < float(point["x"])


# ---- prediction ------------------------------------------------------------------------------------------


def line():
    """Known noise and a flat enough prior: y at x is N(least squares, sqrt(1 + x' (X'X + I/100)^-1 x))."""
    with pm.Model(coords={"x": ["a", "b", "c"], "row": [f"r{i}" for i in range(60)]}) as model:
        x = pm.Data("X", X, dims=("row", "x"))
        b = pm.Normal("b", 0, 10, dims="x")
        latent = pm.Normal("latent", x[0, 0], 0.1)  # its law rests on the data
        pm.Normal("y", x @ b, 1.0, observed=X @ [1.0, -2.0, 0.0] + np.sin(np.arange(60)), dims="row")
        pm.Normal("z", latent, 0.01, observed=3.0 + X[0, 0])
    return model


def exact(at):
    covariance = np.linalg.inv(X.T @ X + np.eye(3) / 100)
    mean = at @ covariance @ X.T @ (X @ [1.0, -2.0, 0.0] + np.sin(np.arange(60)))
    return mean, np.sqrt(1 + np.einsum("ij,jk,ik->i", at, covariance, at))


@pytest.fixture(scope="module")
def straight():
    theirs = line()
    return theirs, yo.fit(theirs, seed=0)


def test_predictions_have_the_mean_and_spread_of_the_closed_form(straight):
    _, fit = straight
    made = fit.predict(n=4000)
    assert set(made) == {"y", "z"} and made["y"].shape == (4000, 60)
    mean, sd = exact(X)
    assert np.all(np.abs(made["y"].mean(0) - mean) < 4.5 * sd / np.sqrt(4000))  # 60 tests: false alarms below 1 in 2,000
    np.testing.assert_allclose(made["y"].std(0), sd, rtol=0.06)
    # A latent whose law rests on unchanged data is that of the posterior, not drawn anew.
    assert made["z"].mean() == pytest.approx(X[0, 0] + 3.0 * 100 / 101, abs=0.02)
    once, again, other = fit.predict(n=10), fit.predict(n=10), fit.predict(n=10, seed=1)
    assert np.array_equal(once["y"], again["y"]) and not np.array_equal(once["y"], other["y"])


def test_predictions_at_new_data_by_set_data_or_by_name(straight):
    theirs, fit = straight
    new = np.array([[1.0, 0, 0], [0, 3, 0]])
    made = fit.predict({"X": new}, n=2000)
    assert theirs["X"].get_value().shape == (60, 3) and theirs.coords["row"][0] == "r0"  # as they were
    mean, sd = exact(new)
    np.testing.assert_allclose(made["y"].mean(0), mean, atol=4.5 * sd.max() / np.sqrt(2000))
    assert made["z"].mean() == pytest.approx(new[0, 0], abs=0.02)  # here the latent is drawn anew
    with theirs:
        pm.set_data({"X": new}, coords={"row": ["p", "q"]})
    try:
        np.testing.assert_array_equal(fit.predict(n=2000)["y"], made["y"])
        assert fit.to_datatree(20).posterior_predictive["y"].shape == (1, 20, 60)  # at the data of the fit
        assert theirs.coords["row"] == ("p", "q")
    finally:
        with theirs:
            pm.set_data({"X": X}, coords={"row": [f"r{i}" for i in range(60)]})
    with pytest.raises(ValueError, match=r"`data` of `predict` must be named after `pm.Data` .* \(X\); got \['x'\]"):
        fit.predict({"x": new})


@pytest.mark.parametrize("observed_as_data", [False, True])
def test_an_observed_variable_without_dims_follows_new_data(observed_as_data):
    with pm.Model() as plain:
        x = pm.Data("x", X[:, 0])
        y = pm.Data("seen", X[:, 1]) if observed_as_data else X[:, 1]
        pm.Normal("y", x * pm.Normal("b"), 0.01, observed=y)
        pm.Normal("same", 0.0, 1.0, observed=X[:, 1])  # nothing to follow
    predictive = yo.from_pymc(plain).predictive
    for new in ([1.0, 2.0], [3.0]):  # one row must not be spread over the old rows
        made = predictive.with_arguments(0, {"b": np.full(50, 2.0)}, {"x": new})
        np.testing.assert_allclose(made["y"].mean(0), 2.0 * np.array(new), atol=0.01)
        assert made["same"].shape == (50, 60) and plain["x"].get_value().shape == (60,)
    with plain:
        pm.set_data({"x": [1.0, 2.0, 3.0]})
    assert predictive.with_arguments(0, {"b": np.zeros(5)}, {})["y"].shape == (5, 3)


def test_labelled_output_has_replicated_data_with_dims_and_coords(straight):
    pytest.importorskip("arviz_base")
    from yoasovi.report import checks

    tree = straight[1].to_datatree(50)
    found = tree.posterior_predictive["y"]
    assert found.dims == ("chain", "draw", "row") and found.coords["row"].values[1] == "r1"
    np.testing.assert_array_equal(found.values[0], straight[1].predict(n=50)["y"])
    assert checks.predictive_charts(straight[1], 60)[0].series[-1].name == "observed"


def test_prediction_says_what_is_missing(straight, tmp_path, fitted):
    straight[1].save(tmp_path / "fit")
    with pytest.raises(ValueError, match=r"`predictive` of the model is needed.*yo\.load"):
        yo.load(tmp_path / "fit").predict()
    again = yo.load(tmp_path / "fit", model=yo.from_pymc(straight[0]))
    np.testing.assert_array_equal(again.predict(n=10)["y"], straight[1].predict(n=10)["y"])
    assert fitted.predict(n=20)["y"].shape == (20, 150)
    with pm.Model() as two:
        pm.Normal("y", pm.Data("X", X)[:, 0] * pm.Normal("b") + pm.Data("w", X[:, 0]), 1.0, observed=X[:, 1])
    with pytest.raises(ValueError, match=r"cannot be drawn from at these data \(X \(3, 3\), w \(60,\)\).*shape=x\.shape"):
        yo.from_pymc(two).predictive.with_arguments(0, {"b": np.zeros(2)}, {"X": X[:3]})
    with pm.Model() as blind:
        pm.Normal("b")
    with pytest.raises(ValueError, match="no observed variable: it has nothing to predict"):
        yo.from_pymc(blind).predictive.with_arguments(0, {"b": np.zeros(2)}, {})


def test_what_cannot_be_drawn_is_said_in_one_line_and_left_out_of_labelled_output_and_reports():
    pytest.importorskip("arviz_base")
    from yoasovi.report import checks

    with pm.Model() as model:
        logp = lambda value, m: -0.5 * (value - m) ** 2
        pm.CustomDist("y", pm.Normal("m", 0, 5), logp=logp, observed=X[:, 0])
    fit = yo.fit(model)
    with pytest.raises(NotImplementedError, match=r"^The PyMC model cannot be drawn from: .*random.*\.$") as caught:
        fit.predict(n=5)
    assert "\n" not in str(caught.value)
    with pytest.warns(UserWarning, match="Data drawn from the fitted model are left out. The PyMC model cannot be drawn"):
        tree = fit.to_datatree(20)
    assert "posterior_predictive" not in tree.children and tree.log_likelihood["y"].shape == (1, 20, 60)
    with pytest.warns(UserWarning, match="are left out"):
        assert checks.predictive_charts(fit) == []


def test_a_model_goes_to_another_process_without_what_was_compiled():
    model = yo.from_pymc(schools())
    start = {k: np.asarray(v) for k, v in model.start(jax.random.key(0)).items()}
    with precision():
        want, known = model.log_likelihood(start, model.data), of_model(model)
    again = pickle.loads(cloudpickle.dumps(model))
    assert "fn" not in again.log_likelihood.graph.__dict__
    with precision():
        found = again.log_likelihood(start, again.data)
        assert found.dtype == jnp.float64 and of_model(again) == known
    np.testing.assert_array_equal(found, want)


def test_transforms_of_pymcs_own_go_to_another_process_too():
    model = yo.from_pymc(mixture())
    warp = next(x.warp for x in model.start.sites if x.warp is not None)
    free = np.zeros(warp.free_shape) + 0.3
    with precision():
        want = warp.forward(free)[0]
        np.testing.assert_allclose(warp.backward(want)[0], free)
        again = pickle.loads(cloudpickle.dumps(warp))
        assert not {"forward", "backward"} & set(again.__dict__)
        np.testing.assert_array_equal(again.forward(free)[0], want)


def test_priors_that_depend_on_nothing_are_not_said_to_have_another_form():
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu", 0, 5), pm.HalfNormal("s", 5), observed=X[:, 0])
    assert not may_be_centred(yo.from_pymc(model), ("s", "mu"))
    assert may_be_centred(yo.from_pymc(schools()), ("tau", "theta[A]"))


def test_importing_the_backend_changes_no_setting_of_the_process():
    before = jax.config.read("jax_enable_x64"), os.environ.get("XLA_FLAGS"), len(jax.devices())
    yo.from_pymc(schools())
    assert (jax.config.read("jax_enable_x64"), os.environ.get("XLA_FLAGS"), len(jax.devices())) == before


def test_starts_differ_and_are_finite_where_the_support_is_narrow():
    with pm.Model() as narrow:
        pm.Normal("x", initval=0.05)
        pm.Potential("box", pm.math.log(0.01 - narrow["x"] ** 2))
    start = yo.from_pymc(narrow).start
    points = [float(start(jax.random.key(i))["x"]) for i in range(5)]
    assert len(set(points)) == 5
    assert all(abs(x) < 0.1 for x in points)


BAD = {
    "no free variable": (lambda: pm.Normal("y", observed=[1.0]), "no free variable"),
    "NaN parameter": (lambda: pm.Normal("y", pm.Normal("x", np.nan, 1), observed=[1.0]), "'x' .* initial value is nan"),
    "impossible parameter": (lambda: pm.Normal("x", 0, -1), "Variable 'x' .* log probability is -inf"),
    "NaN covariate": (lambda: pm.Normal("y", pm.Normal("x") * np.nan, observed=[1.0]), "Variable 'y' .* is nan"),
    "observation outside": (lambda: pm.Exponential("y", pm.HalfNormal("x"), observed=[-1.0]), "Variable 'y' .* is -inf"),
    "start outside": (lambda: pm.HalfNormal("x", initval=-1.0), "Variable 'x' .* initial value is nan.* `initval`"),
    "potential": (lambda: pm.Potential("p", pm.math.log(pm.Normal("x") - 5)), "Variable 'p' .* is nan"),
    "discrete": (lambda: (pm.Bernoulli("z", 0.5), pm.Poisson("k", 3)), "'z', 'k' .*pymc-extras cannot sum"),
    "minibatch": (lambda: pm.Normal("y", pm.Normal("x"), observed=pm.Minibatch(X[:, 0], batch_size=9)), "`pm.Minibatch`"),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD)
def test_bad_models_are_refused_by_name(make, message):
    with pm.Model() as model:
        make()
    with pytest.raises(ValueError, match=message):
        yo.from_pymc(model)


def zero_inflated():
    with pm.Model(coords={"row": range(5)}) as model:
        gate, rate = pm.Beta("gate", 2, 2), pm.Gamma("rate", 2, 1)
        zero = pm.Bernoulli("zero", gate, dims="row")
        pm.Poisson("y", pm.math.switch(zero, 1e-4, rate), observed=[0, 0, 3, 1, 4], dims="row")
    return model


def test_discrete_variables_are_summed_out_and_drawn_again():
    pytest.importorskip("pymc_extras")
    model, params = yo.from_pymc(zero_inflated()), {"gate": np.array(0.3), "rate": np.array(1.2)}
    assert set(model.prior) == {"gate", "rate"}
    y, poisson = np.array([0, 0, 3, 1, 4]), lambda rate: np.exp(-rate) * rate**y / np.array([1, 1, 6, 1, 24])
    each = 0.7 * poisson(1.2) + 0.3 * poisson(1e-4)
    with precision():
        np.testing.assert_allclose(model.log_marginal(params, model.data), np.log(each), rtol=1e-6)
    draws = recovered(model, {k: np.full(3000, v) for k, v in params.items()}, seed=0)
    np.testing.assert_allclose(draws["zero"].mean(0), 0.3 * poisson(1e-4) / each, atol=0.04)
    assert model.labels.dims["zero"] == ("row",) and draws["zero"].dtype.kind == "i"


def test_several_discrete_variables_are_drawn_jointly():
    pytest.importorskip("pymc_extras")
    with pm.Model() as pm_model:
        level = pm.Normal("level", 0, 1)
        a, b = pm.Bernoulli("a", 0.5), pm.Categorical("b", [0.5, 0.25, 0.25])
        pm.Normal("y", level + a + b, 0.1, observed=2.0)
    draws = recovered(yo.from_pymc(pm_model), {"level": np.zeros(500)}, seed=0)
    assert np.all(draws["a"] + draws["b"] == 2)  # given level, y tells their sum and nothing else
    np.testing.assert_allclose(draws["a"].mean(), 0.5, atol=0.1)


def test_without_pymc_extras_discrete_variables_are_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "pymc_extras", None)
    with pytest.raises(ValueError, match=r"'zero' of the PyMC model: discrete.*pip install pymc-extras"):
        yo.from_pymc(zero_inflated())


def test_operations_that_jax_does_not_have_are_named():
    with pm.Model() as model:
        pm.Potential("p", pt.as_tensor(np.eye(2)).sum() * pt.gammal(pm.HalfNormal("x") + 1.0, 2.0))
    with pytest.raises(ValueError, match=r"^The PyMC model cannot be compiled to JAX: .*gammal"):
        yo.from_pymc(model)


def test_anything_but_a_model_is_refused():
    with pytest.raises(ValueError, match="`model` of `from_pymc` must be a PyMC model; got 3"):
        yo.from_pymc(3)
