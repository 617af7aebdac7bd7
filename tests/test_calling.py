"""What is given to `fit` beside a model, and what it says of names that are not there; how models and fits are shown."""

import numpy as np
import numpyro
import numpyro.distributions as dist
import pymc as pm
import pytest
from numpyro.distributions import constraints

import yoasovi as yo
from yoasovi.calling import sort_out
from yoasovi.fitting import _OWN

X = np.linspace(-1.0, 1.0, 30)
Y = 2.0 * X + 0.1


def line(x, y=None, scale=1.0):
    a = numpyro.sample("a", dist.Normal(0, 5))
    numpyro.sample("y", dist.Normal(a * x, scale), obs=y)


def sorted_out(model, *args, method="yoasovi", family="auto", **settings):
    return sort_out(model, args, method, family, settings, _OWN)


def test_a_model_function_goes_into_fit_with_its_arguments():
    apart = yo.fit(yo.from_numpyro(line, X, y=Y, scale=0.5), seed=3, progress=False)
    for args, more in (((X, Y, 0.5), {}), ((X,), {"y": Y, "scale": 0.5}), ((), {"x": X, "y": Y, "scale": 0.5})):
        fit = yo.fit(line, *args, seed=3, progress=False, **more)
        assert fit.seed == 3 and fit.elbo == apart.elbo
    assert yo.fit(line, X, Y, method="advi", family="mean_field", learning_rate=0.1, max_steps=50).method.name == "advi"


def test_arguments_are_told_from_methods_families_and_settings():
    found = sorted_out(line, X, scale=2.0, momentum=0.5)
    assert found.args[0] is X and found.kwargs == {"scale": 2.0} and found.settings == {"momentum": 0.5}
    found = sorted_out(line, "advi", "full_rank", x=X)
    assert (found.method, found.family, found.args) == ("advi", "full_rank", ()) and found.kwargs["x"] is X
    found = sorted_out(lambda x, **rest: None, X, extra=1, clip=2.0)
    assert found.kwargs == {"extra": 1} and found.settings == {"clip": 2.0}
    assert sorted_out(lambda seed, y: None, 3, y=Y).args == (3,)  # by place there is no doubt


def test_what_could_be_meant_for_both_is_refused():
    for fn, settings in ((lambda x, seed: None, {}), (lambda x, learning_rate=1: None, {"learning_rate": 0.1})):
        with pytest.raises(ValueError, match=r"(seed|learning_rate) may be meant for .*yo\.from_numpyro\(model, x, y\)"):
            sorted_out(fn, X, method="advi", **settings)
    with pytest.raises(ValueError, match=r"write method='advi', or yo\.fit\(yo\.from_numpyro\(model, x, y\), 'advi'\)"):
        sorted_out(line, "advi", X, Y)
    with pytest.raises(ValueError, match=r"`method` of `fit` must be given once; got 'advi' and 'qmcvi'"):
        sorted_out(line, "advi", method="qmcvi")
    with pytest.raises(ValueError, match=r"Y of `fit` must be an argument of the model \(x, y, scale\) or a setting"):
        sorted_out(line, X, Y=Y)


def test_a_model_that_is_made_takes_no_arguments():
    with pm.Model() as theirs:
        pm.Normal("a")
    for model in (yo.from_numpyro(line, X, Y), theirs):
        for args, more in (((X, Y), {}), ((), {"y": Y}), ((3,), {})):
            with pytest.raises(ValueError, match=r"takes no arguments.*yo\.from_numpyro\(model, x, y\)"):
                yo.fit(model, *args, **more)


# ---- names that are not there ------------------------------------------------------------------------------


def simple(**fields):
    prior = {"alpha": dist.Normal(0, 1), "beta": dist.Normal(0, 1)}
    usual = lambda p, d: dist.Normal(p["alpha"] + p["beta"] * d["x"], 1).log_prob(d["y"])
    return yo.Model(**{"prior": prior, "data": {"x": X, "y": Y}, "log_likelihood": usual, **fields})


def test_a_mistyped_site_names_the_sites_there_are():
    there = "there are the sites alpha, beta and the data x, y"
    with pytest.raises(ValueError, match=f"`log_likelihood` of `Model` asks for 'aplha'.*{there}. Did you mean 'alpha'"):
        simple(log_likelihood=lambda p, d: p["aplha"] * d["x"])
    with pytest.raises(ValueError, match=r"`start` of `Model` must .* the sites \(alpha, beta\); got \['aplha'\]"):
        yo.fit(simple(start=lambda key: {"aplha": 0.0}), progress=False)
    fit = yo.fit(simple(predictive=lambda key, p, d: p["Beta"] * d["x"]), progress=False)
    with pytest.raises(ValueError, match=f"`predictive` of `Model` asks for 'Beta'.*{there}. Did you mean 'beta'"):
        fit.predict()
    with pytest.raises(ValueError, match=r"names \['b'\]; `supports` has a\."):
        yo.Model.from_log_density(lambda p: p["a"], {"a": constraints.real}, {"b": (2,)})


def test_a_start_from_the_prior_leaves_out_sites_whose_support_moves():
    def shifting(y):
        top = numpyro.sample("top", dist.HalfNormal(5.0))
        low = numpyro.sample("low", dist.Uniform(0, top))
        with numpyro.plate("n", len(y)):
            z = numpyro.sample("z", dist.Bernoulli(0.5))
            numpyro.sample("y", dist.Normal(low + z, 1.0), obs=y)

    assert yo.fit(shifting, Y, max_steps=20, progress=False).num_steps > 0


# ---- in a notebook -----------------------------------------------------------------------------------------


def test_models_and_fits_are_shown_in_a_few_words():
    model = yo.models.LinearRegression(np.column_stack([X, X**2]), Y)
    assert repr(model) == "Model(linear regression, 4 parameters: intercept_at_means, coefficients (2,), noise)"
    assert "2 parameters, 30 latents of observations: mu (2, 1), z (30,)" in repr(yo.models.GaussianMixture(Y, 2))
    network = yo.models.NeuralNetwork(X[:, None], Y, (2, 2, 2, 2, 2))
    assert repr(network).endswith(", ...)") and len(repr(network)) < 200


def test_tables_for_notebooks_escape_every_name():
    evil = "<script>alert(1)</script>"
    model = yo.Model(prior={evil: dist.Normal(0, 1)}, log_likelihood=lambda p, d: p[evil][None], name=evil)
    fit = yo.fit(model, "advi", max_steps=20, progress=False)
    for shown in (model._repr_html_(), fit._repr_html_()):
        assert evil not in shown and "&lt;script&gt;" in shown and shown.startswith("<table>")
    assert "<td>Normal</td>" in model._repr_html_()
    assert "fit.diagnose()" in fit._repr_html_() and fit.verdict is None  # showing it computes nothing
