"""Labelled output: what ArviZ reads, and the answers it then gives."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import yoasovi as yo

xarray = pytest.importorskip("xarray")
pytest.importorskip("arviz_base")


@pytest.fixture(scope="module")
def line():
    """A regression with known noise: its posterior is Gaussian, and leaving one out has a closed form."""
    rng = np.random.default_rng(0)
    X = np.column_stack([np.ones(30), rng.normal(size=30)])
    return X, X @ [1.0, 2.0] + rng.normal(size=30)


@pytest.fixture(scope="module")
def fit(line):
    X, y = line

    def model(X, y):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([2]).to_event(1))
        numpyro.deterministic("slope", w[1])
        with numpyro.plate("row", len(y)):
            numpyro.sample("y", dist.Normal(X @ w, 1.0), obs=y)

    return yo.fit(yo.from_numpyro(model, X, y), seed=0)


def exact_loo(X, y):
    total = 0.0
    for i in range(len(y)):
        rest = np.delete(np.arange(len(y)), i)
        covariance = np.linalg.inv(np.eye(2) + X[rest].T @ X[rest])
        mean, variance = X[i] @ covariance @ X[rest].T @ y[rest], 1.0 + X[i] @ covariance @ X[i]
        total += -0.5 * (y[i] - mean) ** 2 / variance - 0.5 * np.log(2 * np.pi * variance)
    return total


def test_groups_have_chain_and_draw_and_the_models_own_dims(fit, line):
    tree = fit.to_datatree()
    groups = {"posterior", "posterior_predictive", "log_likelihood", "sample_stats", "observed_data"}
    assert set(tree.children) == groups
    assert dict(tree.posterior.sizes) == {"chain": 1, "draw": 1000, "w_dim_0": 2}
    assert tree.log_likelihood["y"].dims == ("chain", "draw", "row")
    assert tree.observed_data["y"].dims == ("row",)
    np.testing.assert_array_equal(tree.posterior["slope"], tree.posterior["w"][..., 1])
    assert tree.attrs["inference_library"] == "yoasovi"
    assert tree.attrs["elbo"] == fit.elbo.value


def test_densities_and_likelihoods_belong_to_the_draws(fit, line):
    X, y = line
    tree = fit.to_datatree(corrected=False)
    w = tree.posterior["w"].values[0]
    each = -0.5 * (y - w @ X.T) ** 2 - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(tree.log_likelihood["y"].values[0], each, rtol=1e-9)
    prior = np.sum(-0.5 * w**2 - 0.5 * np.log(2 * np.pi), 1)
    np.testing.assert_allclose(tree.sample_stats["log_p"].values[0], prior + each.sum(1), rtol=1e-9)
    ratio = tree.sample_stats["log_p"] - tree.sample_stats["log_q"]  # q is the posterior: the evidence, at every draw
    np.testing.assert_allclose(ratio, fit.elbo.value, atol=0.1)


def test_corrected_draws_are_not_weighed_again(fit):
    tree = fit.to_datatree(corrected=True)
    assert "log_p" in tree.sample_stats and "log_q" not in tree.sample_stats  # what they are drawn from has no name
    assert tree.attrs["corrected"] == 1


def test_arviz_leaves_one_out_as_the_closed_form_does(fit, line):
    stats = pytest.importorskip("arviz_stats")
    tree = fit.to_datatree(corrected=False)
    found = stats.loo_approximate_posterior(tree, tree.sample_stats["log_p"], tree.sample_stats["log_q"])
    assert found.elpd == pytest.approx(exact_loo(*line), abs=0.3)  # 1,000 draws


def test_netcdf_gives_back_what_was_written(fit, tmp_path):
    pytest.importorskip("h5netcdf")
    tree = fit.to_datatree()
    tree.to_netcdf(tmp_path / "fit.nc", engine="h5netcdf")
    with xarray.open_datatree(tmp_path / "fit.nc", engine="h5netcdf") as back:
        xarray.testing.assert_equal(back.load(), tree)
        assert back.attrs["stop_reason"] == "converged"


def test_models_without_labels_say_what_can_be_guessed():
    data = {"x": np.arange(4.0), "y": np.ones(4)}
    likelihood = lambda p, d: dist.Normal(p["m"] * d["x"], 1.0).log_prob(d["y"])
    plain = yo.fit(yo.Model(prior={"m": dist.Normal(0, 1)}, log_likelihood=likelihood, data=data), "advi", max_steps=50)
    tree = plain.to_datatree(10)
    assert tree.log_likelihood["y"].shape == (1, 10, 4)
    assert list(tree.observed_data) == ["y"]
    assert list(tree.constant_data) == ["x"]
    whole = yo.Model.from_log_density(lambda p: -jnp.sum(p["m"] ** 2), {"m": dist.constraints.real})
    tree = yo.fit(whole, "advi", max_steps=50).to_datatree(10)
    assert set(tree.children) == {"posterior", "sample_stats"}


def test_local_latents_are_in_the_posterior_and_summed_out_of_the_likelihood():
    y = np.random.default_rng(0).normal(size=(30, 2))
    fit = yo.fit(yo.models.GaussianMixture(y, 2), "bbvi-rb", max_steps=20)
    tree = fit.to_datatree(10)
    assert tree.posterior["z"].shape == (1, 10, 30)
    assert tree.log_likelihood["y"].shape == (1, 10, 30)
