"""Other modes: found, fitted, weighed, and put together; labels that are swapped are no modes."""

import pickle
import warnings
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import yoasovi as yo
from yoasovi.answer import modes
from yoasovi.answer.modes import mend_modes
from yoasovi.families import FullRank, LowRank, MeanField, Mixture, Share
from yoasovi.randomness import stream
from yoasovi.verdict import looks


def gaussians(share, dim, gap=8.0):
    """Two unit Gaussians."""
    centre = np.zeros(dim)
    centre[0] = gap

    def log_p(p):
        near, far = -0.5 * jnp.sum(p["x"] ** 2), -0.5 * jnp.sum((p["x"] - centre) ** 2)
        return jnp.logaddexp(np.log(share) + near, np.log(1 - share) + far)

    return yo.Model.from_log_density(log_p, {"x": constraints.real}, {"x": (dim,)})


def quick(model, seed=0):
    return yo.fit(model, seed=seed, progress=False, mend=False)


@pytest.fixture(scope="module")
def both():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mend_modes(quick(gaussians(0.8, 2)))


@pytest.mark.parametrize("dim", [2, 10])
def test_two_modes_make_a_mixture_with_the_right_weights(dim):
    fit = quick(gaussians(0.8, dim), seed=1)
    mended = mend_modes(fit)
    assert [p.weight for p in mended.parts] == pytest.approx([0.8, 0.2], abs=0.03)
    assert abs(mended.elbo.value - 0.5 * dim * np.log(2 * np.pi)) < 0.02  # the evidence itself
    assert mended.diagnose().grade == "good"
    assert mended.mean()["x"][0] == pytest.approx(1.6, abs=0.2)
    assert mended.num_gradients > fit.num_gradients + fit.diagnose().num_gradients


def test_the_better_mode_takes_the_place_of_a_lesser_one():
    model = gaussians(1e-6, 2)  # q begins near the first mode, which has next to nothing
    fit = quick(model)
    mended = mend_modes(fit)
    assert abs(fit.params.mean[0]) < 0.2
    assert not mended.parts and mended.mean()["x"][0] == pytest.approx(8.0, abs=0.2)
    assert mended.diagnose().grade == "good" and mended.model is model


def test_a_fit_without_other_modes_stays():
    fit = quick(yo.Model.from_log_density(lambda p: -0.5 * jnp.sum(p["x"] ** 2), {"x": constraints.real}, {"x": (2,)}))
    assert mend_modes(fit) is None


def test_the_same_seed_mends_to_the_same_bits(both):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = mend_modes(quick(gaussians(0.8, 2)))
    assert again.elbo == both.elbo and [p.weight for p in again.parts] == [p.weight for p in both.parts]
    assert (again.sample(100)["x"] == both.sample(100)["x"]).all()


def test_a_mixture_says_what_it_is(both):
    said = both.summary()
    assert "a mixture of 2 modes: 80" in said and "mixture of full_rank" in said
    draws = both.sample(1000, seed=3)["x"][:, 0]
    assert np.mean(draws > 4) == pytest.approx(both.parts[1].weight, abs=0.002)  # as even as numbers allow
    assert both.effective_size(1000) == pytest.approx(1000)


def test_a_mixture_is_saved_and_read(both, tmp_path):
    both.diagnose()
    both.save(tmp_path / "fit")
    alone, whole = yo.load(tmp_path / "fit"), yo.load(tmp_path / "fit", model=both.model)
    np.testing.assert_array_equal(whole.sample(50)["x"], both.sample(50)["x"])
    np.testing.assert_array_equal(alone.mean()["x"], both.mean()["x"])
    assert [p.weight for p in alone.parts] == [p.weight for p in both.parts]
    assert alone.verdict.grade == "good" and "2 modes" in alone.summary()
    assert whole.parts[0].fit.diagnose().grade == "good"  # against its own share only
    copied = pickle.loads(pickle.dumps(whole.params))
    assert copied.log_weights.shape == (2,)


def test_a_mixture_is_reported_and_labelled(both, tmp_path):
    tree = both.to_datatree(200)
    found = tree.sample_stats["log_p"].values - tree.sample_stats["log_q"].values
    np.testing.assert_allclose(found, np.log(2 * np.pi), atol=0.05)  # q is the posterior
    assert "a mixture of 2 modes" in both.report(tmp_path / "report.html").read_text()


def test_predictions_come_from_all_modes():
    """The sign of a parameter cannot be known, and one sign is more likely beforehand."""

    def log_likelihood(p, y):
        return dist.Normal(jnp.abs(p["x"]), 0.5).log_prob(y)

    prior = dist.Normal(0.2, 4.0)
    model = yo.Model(
        prior={"x": prior}, log_likelihood=log_likelihood, data=jnp.array([5.0, 5.5]),
        predictive=lambda key, p, y: p["x"] + 0.1 * dist.Normal(0, 1).sample(key, (2,)),
    )  # fmt: skip
    mended = mend_modes(quick(model))
    odds = float(jnp.exp(prior.log_prob(5.2) - prior.log_prob(-5.2)))
    assert mended.parts[0].weight == pytest.approx(odds / (1 + odds), abs=0.03)
    new = np.asarray(mended.predict(n=2000))
    assert np.mean(new > 0) == pytest.approx(mended.parts[0].weight, abs=0.01)
    assert mended.loo(500).elpd < 0
    one = mended.parts[0].fit  # describes a share of the posterior; the likelihood is that of the whole model
    assert one.loo(200).elpd < 0 and one.dic(200) > 0


def two_components(prior_of_means):
    rng = np.random.default_rng(0)
    y = np.concatenate([rng.normal(-2, 0.6, 40), rng.normal(2, 1.2, 80)])

    def log_likelihood(p, y):
        each = dist.Normal(p["mu"], p["sd"]).log_prob(y[:, None]) + jnp.log(p["w"])
        return jnp.logaddexp(each[:, 0], each[:, 1])

    prior = {"mu": prior_of_means, "sd": dist.LogNormal(np.zeros(2), 0.5).to_event(1), "w": dist.Dirichlet(np.ones(2))}
    return yo.Model(prior=prior, log_likelihood=log_likelihood, data=y)


def test_modes_that_swap_labels_count_once():
    fit = quick(two_components(dist.Normal(np.zeros(2), 5.0).to_event(1)))
    verdict = fit.diagnose()
    assert verdict.search.relabelled and "only swap labels" in verdict.evidence["modes"].sentence
    assert verdict.evidence["modes"].grade == "good"
    assert mend_modes(fit) is None


def test_of_fits_that_swap_labels_one_is_kept():
    """Begun in either order, both fits are right, and only one is needed."""
    model = two_components(dist.Normal(np.zeros(2), 5.0).to_event(1))
    ends = [quick(replace(model, start=lambda key, mu=mu: {"mu": jnp.array(mu)})) for mu in ([-2.0, 2.0], [2.0, -2.0])]
    assert ends[0].params.mean[0] * ends[1].params.mean[0] < 0
    kept, looked = modes._distinct(ends)
    assert len(kept) == 1 and looked > 0


def test_modes_that_labels_do_not_explain_are_modes():
    """Priors that differ by component: the same swap changes log p, and both orders have mass."""
    fit = quick(two_components(dist.Normal(np.array([-1.0, 1.0]), 5.0).to_event(1)))
    with pytest.warns(UserWarning, match="poor fit"):
        verdict = fit.diagnose()
    assert not verdict.search.relabelled and verdict.evidence["modes"].grade == "poor"
    mended = mend_modes(fit)
    odds = np.exp((3.0**2 + 3.0**2 - 1.0 - 1.0) / (2 * 25))  # of the means, near -2 and 2, under the prior
    assert max(p.weight for p in mended.parts) == pytest.approx(odds / (1 + odds), abs=0.05)


def test_the_search_begins_where_the_prior_says_most_of_the_data():
    """One of many frequencies explains the data; the way there is through narrow valleys."""
    t = np.linspace(0, 10, 60)
    y = np.sin(5.3 * t) + np.random.default_rng(1).normal(0, 0.3, 60)

    def log_likelihood(p, d):
        return dist.Normal(jnp.sin(p["w"] * d["t"]), 0.3).log_prob(d["y"])

    model = yo.Model(
        prior={"w": dist.TruncatedNormal(4.0, 3.0, low=0.0)}, log_likelihood=log_likelihood, data={"t": t, "y": y}
    )
    found = []
    for seed in range(4):
        fit = quick(model, seed)
        search = looks.search(fit, looks.Effort.of(fit, None, None), seed=seed)
        best = max([search.own, *search.others], key=lambda m: m.log_p)
        found.append(float(np.exp(best.theta[0])))
        assert search.num_values >= 256
    np.testing.assert_allclose(found, 5.3, atol=0.1)


@pytest.mark.parametrize("part", [MeanField(), FullRank(), LowRank(2)], ids=lambda f: f.name)
def test_shares_of_all_parts_sum_to_one_and_their_slopes_are_right(part):
    rng = np.random.default_rng(0)
    family = Mixture(part)
    each = [part.init(rng.normal(size=3), np.exp(rng.normal(size=3)), stream(k, 1)) for k in range(3)]
    params = family.together(np.array([0.5, 0.3, 0.2]), each)
    shares = [Share(family, params, k) for k in range(3)]
    x, step = rng.normal(size=(5, 3)), 1e-6
    np.testing.assert_allclose(sum(np.exp(s.log_value(x)) for s in shares), 1.0)
    for share in shares:
        numeric = [(share.log_value(x + step * e) - share.log_value(x - step * e)) / (2 * step) for e in np.eye(3)]
        np.testing.assert_allclose(share.slope(x), np.array(numeric).T, atol=1e-6)
