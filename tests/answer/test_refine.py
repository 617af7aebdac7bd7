"""NUTS in q's own coordinates: what it mends, what it says of itself, and where it is refused."""

import _thread
import json
import signal
import threading
from dataclasses import replace

import arviz_stats
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jax.scipy.special import gammaln
from numpyro.distributions import constraints
from scipy.special import digamma, polygamma
from scipy.stats import nbinom
from typer.testing import CliRunner

import yoasovi as yo
from yoasovi.answer import refine
from yoasovi.cli.commands import app
from yoasovi.cli.runs import as_json
from yoasovi.experiments import simulate
from yoasovi.families import FullRank, LowRank, MeanField
from yoasovi.run.progress import Rounds
from yoasovi.verdict import looks
from yoasovi.verdict.refined import refined_findings


def gamma_posterior():
    """Rates of two Poisson counts under Gamma priors: skewed on the log scale, and known in closed form."""
    y = np.array([0.0, 1.0])
    return yo.Model(
        prior={"rate": dist.Gamma(jnp.array([0.8, 1.0]), jnp.array([0.5, 0.5])).to_event(1)},
        log_likelihood=lambda p, y: dist.Poisson(p["rate"]).log_prob(y), data=y,
        predictive=lambda key, p, y: dist.Poisson(p["rate"]).sample(key),
    )  # fmt: skip


SHAPE, RATE = np.array([0.8, 2.0]), 1.5  # of the Gamma posteriors


@pytest.fixture(scope="module")
def fitted():
    return yo.fit(gamma_posterior(), family="full_rank", seed=1)


@pytest.fixture(scope="module")
def refined(fitted):
    return fitted.refine(seed=3, progress=False)


def test_chains_mend_what_no_gaussian_can_match(fitted, refined):
    """Moments of the Gamma posterior within four Monte Carlo errors, where those of q itself are not."""
    mean, sd, chains = SHAPE / RATE, np.sqrt(SHAPE) / RATE, refined.refined
    error = 4.0 * sd / np.sqrt(chains.ess)
    assert (np.abs(refined.mean()["rate"] - mean) < error).all()
    assert (np.abs(refined.sd()["rate"] / sd - 1.0) < 0.2).all()
    own = fitted.sample(4000, corrected=False)["rate"]
    assert (np.abs(own.mean(0) - mean) > error).any() or (np.abs(own.std(0) / sd - 1.0) > 0.2).any()


def test_it_ends_when_what_was_asked_for_is_reached(fitted, refined):
    chains = refined.refined
    assert chains.stopped == "met" and chains.worst_rhat < 1.03 and chains.least_ess >= chains.wanted.ess
    assert refined.num_gradients == fitted.num_gradients + chains.num_gradients
    assert chains.num_gradients > chains.stats["n_steps"].sum()  # warm-up counts
    assert fitted.refined is None and "refine" in refined.seconds.stages and "refine" not in fitted.seconds.stages
    assert refined.elbo == fitted.elbo


@pytest.mark.parametrize("dim", [1, 100])
def test_by_default_all_means_are_within_a_tenth_of_an_sd(dim):
    errors = np.random.default_rng(0).normal(size=(2000, dim)) / np.sqrt(refine.enough_draws(dim))
    assert 0.93 < (np.abs(errors).max(1) < 0.1).mean() < 0.97


def test_rhat_and_ess_are_those_of_arviz(refined):
    stats, theta = arviz_stats.base.array_stats, refined.refined.theta
    for j in range(2):
        assert refined.refined.rhat[j] == pytest.approx(stats.rhat(theta[..., j]), rel=1e-6)
        assert refined.refined.ess[j] == pytest.approx(stats.ess(theta[..., j], method="bulk"), rel=0.02)
        mcse = stats.mcse(theta[..., j], method="mean")
        assert refine.mean_error(theta)[j] == pytest.approx(mcse, rel=0.05)


def test_the_same_seed_gives_the_same_bits(fitted, refined):
    again, other = fitted.refine(seed=3, progress=False), fitted.refine(seed=4, progress=False)
    assert np.array_equal(again.refined.theta, refined.refined.theta)
    assert not np.array_equal(other.refined.theta[:, :10], refined.refined.theta[:, :10])


def test_samples_are_the_chains_own(fitted, refined):
    size = refined.refined.size
    whole = refined.sample(size)["rate"]
    assert np.allclose(np.log(whole), refined.refined.theta.reshape(size, 2))
    some, many = refined.sample(100, seed=5)["rate"], refined.sample(size + 500, seed=5)["rate"]
    assert len(np.unique(some[:, 0])) > 95  # none chosen twice, though a chain may stay where it is
    assert len(many) == size + 500 and np.isin(many[:, 0], whole[:, 0]).all() and np.isin(some[:, 0], whole[:, 0]).all()
    assert np.array_equal(refined.sample(50, corrected=False)["rate"], fitted.sample(50, corrected=False)["rate"])


def test_what_is_made_of_draws_is_made_of_the_chains(fitted, refined):
    counts = refined.predict(n=1000)
    assert counts.shape == (1000, 2) and np.allclose(counts.mean(0), SHAPE / RATE, atol=0.25)
    # Each count has its own rate, so that without it there is the prior's predictive law: negative binomial.
    exact = nbinom.logpmf([0, 1], [0.8, 1.0], 0.5 / 1.5).sum()
    assert refined.loo().elpd == pytest.approx(exact, abs=0.15)


def test_arviz_sees_chains_as_chains(refined):
    tree = refined.to_datatree()
    chains, draws = refined.refined.theta.shape[:2]
    assert tree["posterior"]["rate"].shape == (chains, draws, 2)
    assert np.allclose(np.log(tree["posterior"]["rate"].values), refined.refined.theta)
    assert tree["log_likelihood"]["y"].shape == (chains, draws, 2)
    assert {"lp", "diverging", "energy", "n_steps"} <= set(tree["sample_stats"].data_vars)
    assert tree["sample_stats"]["diverging"].dtype == bool
    theta, lp = refined.refined.theta[0, :3], tree["sample_stats"]["lp"].values[0, :3]
    assert np.allclose(lp, refined.kernels.look(theta, None)[0])


def test_summary_and_report_say_that_and_how_it_was_refined(refined, tmp_path):
    text = refined.summary(verdict=False)
    assert "refined by NUTS: 8 chains x" in text and "R-hat 1.0" in text and "MC error" in text
    assert f"{refined.refined.num_gradients:,} gradients" in text
    page = refined.report(tmp_path / "report.html").read_text()
    assert "draws of NUTS" in page and "refined by NUTS" in page and ".refine(chains=8" in page


def test_a_refined_fit_comes_back_from_its_folder(refined, tmp_path):
    refined.save(tmp_path / "fit")
    for model in (None, gamma_posterior()):
        back = yo.load(tmp_path / "fit", model=model)
        assert np.array_equal(back.refined.theta, refined.refined.theta) and back.refined.wanted == refined.refined.wanted
        assert back.summary(verdict=False) == refined.summary(verdict=False)
        assert np.array_equal(back.sample(200, seed=2)["rate"], refined.sample(200, seed=2)["rate"])
    header = json.loads((tmp_path / "fit" / "fit.json").read_text())
    header["refined"]["stopped"] = "never"
    (tmp_path / "fit" / "fit.json").write_text(json.dumps(header))
    with pytest.raises(ValueError, match="chains cannot be read: they stopped for an unknown reason"):
        yo.load(tmp_path / "fit")


def test_the_verdict_on_a_refined_fit_is_about_the_chains(fitted, refined):
    verdict = refined.diagnose()
    assert verdict.grade == "good" and list(verdict.evidence) == ["rhat", "ess", "divergences", "moved", "modes"]
    assert verdict.evidence["rhat"].value == refined.refined.worst_rhat
    assert verdict.evidence["ess"].value == refined.refined.least_ess
    stuck = replace(refined.refined, rhat=np.array([1.0, 1.3]), stats=refined.refined.stats)
    with pytest.warns(UserWarning, match=r"fit\.refine\(max_gradients=1_600_000\)"):
        assert replace(refined, refined=stuck, _verdicts={}).diagnose().grade == "poor"


def test_climbs_that_run_away_cost_a_refined_fit_nothing_where_its_chains_agree(fitted, refined, monkeypatch):
    search = looks.search

    def run_away(fit, *args, **options):
        found = search(fit, *args, **options)
        return found._replace(own=found.own._replace(distance=9.0, log_mass=fit.elbo.value - 50.0), others=())

    monkeypatch.setattr(looks, "search", run_away)
    again = replace(refined, _verdicts={})
    assert again.diagnose().grade == "good" and "ran away" in again.diagnose().evidence["modes"].sentence
    few = replace(refined, refined=replace(refined.refined, ess=np.array([250.0, 400.0])), _verdicts={})
    assert few.diagnose().grade == "usable" and few.diagnose().evidence["modes"].grade == "usable"


def test_a_budget_ends_it_and_the_answer_says_so(fitted):
    cut = fitted.refine(ess=10**6, max_gradients=12_000, progress=False)
    assert cut.refined.stopped == "budget" and cut.refined.num_gradients < 12_000 + 8 * 1024
    assert "its gradients were spent before R-hat below 1.03 and ESS 1e+06 were reached" in str(cut.refined)
    with pytest.raises(ValueError, match=r"`max_gradients` of `refine` must be more"):
        fitted.refine(max_gradients=40, progress=False)


def test_ctrl_c_gives_back_what_there_is(fitted, monkeypatch, request):
    rounds = []

    def pressed(self, said):
        rounds.append(said)
        if len(rounds) == 4:
            _thread.interrupt_main()

    monkeypatch.setattr(Rounds, "__call__", pressed)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    assert threading.current_thread() is threading.main_thread()
    ended = fitted.refine(ess=10**6, progress=False)
    assert ended.refined.stopped == "interrupted" and len(rounds) == 5 and "warming up" in rounds[0]
    assert "it was interrupted before" in str(ended.refined)


def test_the_cost_is_guessed_within_a_factor_of_three(fitted, refined):
    assert 1 / 3 < refine.expected_gradients(fitted) / refined.refined.num_gradients < 3


@pytest.mark.parametrize("family", [MeanField(), FullRank(), LowRank(2)], ids=lambda f: f.name)
def test_roots_have_the_covariance_of_q(family):
    rng = np.random.default_rng(0)
    params = family.init(rng.normal(size=4), rng.uniform(0.5, 2.0, size=4), rng)
    if family.name == "full_rank":
        params = params._replace(lower=np.tril(rng.normal(size=(4, 4)), -1))
    if family.name == "low_rank":
        params = params._replace(loading=rng.normal(size=(4, 2)))
    root, lane = family.root(params), type(params)(*(x[None] for x in params))
    eps = rng.normal(size=(5, 4))
    theta = root.place(eps)
    log_q = family.log_q(lane, theta[None])[0].reshape(5, -1).sum(1)
    assert np.ptp(log_q + 0.5 * (eps**2).sum(1)) < 1e-9  # q is a standard normal there
    jacobian = root.place(np.eye(4)) - root.mean
    assert np.allclose(root.pull(eps), eps @ jacobian.T)


def test_divergences_are_found_in_a_funnel():
    funnel = yo.Model.from_log_density(
        lambda p: dist.Normal(0.0, 3.0).log_prob(p["v"]) + dist.Normal(0.0, jnp.exp(p["v"] / 2)).log_prob(p["x"]).sum(),
        {"v": constraints.real, "x": constraints.real}, {"x": (3,)},
    )  # fmt: skip
    chains = (found := yo.fit(funnel).refine(chains=4, max_gradients=20_000, progress=False)).refined
    state = {f.name: f for f in refined_findings(found)}
    assert chains.num_divergent > 0 and f"{chains.num_divergent:,} divergence" in str(chains)
    assert chains.stopped == "budget" or state["divergences"].grade != "good"


def test_what_cannot_be_refined_is_refused_in_a_sentence(fitted, tmp_path):
    outside = yo.Model.external(lambda x: (-0.5 * float(x @ x), -x), 2, gradient=True)
    values = yo.Model(prior={"m": dist.Normal(0.0, 1.0)}, log_likelihood=lambda p, y: -0.5 * (y - p["m"]) ** 2,
                      data=np.ones(3), differentiable=False)  # fmt: skip
    mixture = yo.models.GaussianMixture(simulate.mixture(2, 3, n=30), num_components=3, assignments="latent")
    for model, why in ((outside, "written in JAX"), (values, "gradients of log p"), (mixture, "continuous parameters")):
        assert why in refine.refusal(model)
    with pytest.raises(ValueError, match="`refine` needs gradients of log p; model has values alone"):
        yo.fit(values, max_steps=20).refine()
    fitted.save(tmp_path / "fit")
    with pytest.raises(ValueError, match=r"`refine` needs the model: yo\.load"):
        yo.load(tmp_path / "fit").refine()
    for wrong in (dict(chains=1), dict(rhat=1.0), dict(ess=0), dict(max_gradients=0)):
        with pytest.raises(ValueError, match=f"`{next(iter(wrong))}` of `refine` must be"):
            fitted.refine(**wrong)


def test_the_command_line_refines(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "import numpy as np, numpyro.distributions as dist, yoasovi as yo\n"
        "log_p = lambda p, y: dist.Poisson(p['rate']).log_prob(y)\n"
        "model = yo.Model(prior={'rate': dist.Gamma(0.8, 0.5)}, log_likelihood=log_p, data=np.array([1.0]))\n"
        "outside = yo.Model.external(lambda x: -0.5 * float(x @ x), 2)\n"
    )
    result = CliRunner().invoke(app, ["fit", f"{path}:model", "--refine", "--json"])
    found = json.loads(result.stdout)["refined"]
    assert found["stopped"] == "met" and found["ess"] >= 400 and found["divergences"] >= 0
    refused = CliRunner().invoke(app, ["fit", f"{path}:outside", "--refine"])
    assert refused.exit_code != 0 and "`refine` needs a density written in JAX" in refused.output


# ---- a mixture of modes ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def two_modes():
    """Unit Gaussians at distance 8, the lesser one skewed in its second coordinate."""

    def log_p(p):
        x, y = p["x"]
        near = jnp.log(0.8) - 0.5 * (x**2 + y**2)
        far = jnp.log(0.2) - 0.5 * (x - 8.0) ** 2 + 2.0 * y - jnp.exp(y) - gammaln(2.0) + 0.5 * jnp.log(2 * jnp.pi)
        return jnp.logaddexp(near, far)

    fit = yo.fit(yo.Model.from_log_density(log_p, {"x": constraints.real}, {"x": (2,)}), seed=1)
    assert len(fit.parts) == 2
    return fit, fit.refine(ess=300, max_gradients=60_000, progress=False)


def test_each_mode_of_a_mixture_is_refined_and_keeps_its_weight(two_modes):
    fit, refined = two_modes
    assert [part.weight for part in refined.parts] == [part.weight for part in fit.parts]
    assert fit.parts[0].fit.refined is None and all(part.fit.refined.stopped == "met" for part in refined.parts)
    spent = sum(part.fit.refined.num_gradients for part in refined.parts)
    assert refined.num_gradients == fit.num_gradients + spent and refined.seconds.stages["refine"] > 0
    draws = refined.sample(4000)["x"]
    assert (draws[:, 0] > 4).mean() == pytest.approx(0.2, abs=0.05)
    far = draws[draws[:, 0] > 4, 1]  # the logarithm of a Gamma(2)
    assert far.mean() == pytest.approx(digamma(2.0), abs=0.15) and far.std() == pytest.approx(
        polygamma(1, 2.0) ** 0.5, rel=0.15
    )
    chains = np.concatenate([part.fit.refined.theta.reshape(-1, 2) for part in refined.parts])
    assert np.isin(draws[:, 0], chains[:, 0]).all()
    again = fit.refine(ess=300, max_gradients=60_000, progress=False)
    assert np.array_equal(again.sample(50)["x"], refined.sample(50)["x"])


def test_a_refined_mixture_says_so_and_is_saved(two_modes, tmp_path):
    _, refined = two_modes
    text = refined.summary(verdict=False)
    assert text.count("refined by NUTS: 8 chains x") == 2 and "a mixture of 2 modes" in text
    assert refined.diagnose().grade == "good" and "rhat" in refined.diagnose().evidence
    assert 300 < refined.effective_size(4000) < 4000
    said = as_json(refined, None, None)["refined"]["modes"]
    assert [one["stopped"] for one in said] == ["met", "met"]
    refined.save(tmp_path)
    there = yo.load(tmp_path, model=refined.model)
    assert np.array_equal(there.sample(50)["x"], refined.sample(50)["x"])
    assert ".refine(chains=8" in yo.load(tmp_path).report(tmp_path / "report.html").read_text()
