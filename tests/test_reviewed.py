"""What readers of the code found wrong: each of these failed before it was mended."""

import threading
import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import yoasovi as yo
from yoasovi.answer import mend
from yoasovi.fitting import fresh_elbos
from yoasovi.kernels import kernels_of, programs
from yoasovi.kernels.looks import Rows
from yoasovi.kernels.programs import Clock
from yoasovi.model.minibatch import in_batches
from yoasovi.verdict.given import GivenDraws
from yoasovi.verdict.landscape import FULL_UP_TO, Landscape


def flat(log_density, size):
    return yo.Model.from_log_density(lambda p: log_density(p["x"]), {"x": constraints.real}, {"x": (size,)})


def test_a_restart_whose_elbo_is_known_at_once_is_compared_with_those_that_take_more_draws():
    """Where looks are expensive draws end by error: the exact lane had left early, and the worse one won."""

    def two_places(x):  # a standard normal at -20; at 20 skewed, and less of it
        near, (a, b) = x[0] < 0, (x[0] + 20.0, x[0] - 20.0)
        if near:
            return -0.5 * (a**2 + x[1] ** 2), -np.array([a, x[1]])
        wide = np.exp(np.clip(b, -30, 30))
        value = -0.5 * b**2 - 0.5 * (x[1] / wide) ** 2 - b
        return value, np.array([(x[1] / wide) ** 2 - b - 1.0, -x[1] / wide**2])

    model = yo.Model.external(two_places, 2, gradient=True)
    family = yo.FullRank()
    params = family.init(np.array([[-20.0, 0.0], [19.0, 0.0]]), np.array([[1.0, 1.0], [1.0, 0.4]]), None)
    elbos, ratios = fresh_elbos(kernels_of(model, family, Clock()), family, params, 0, 2)
    assert elbos[0].se < 1e-6 and elbos[1].se > 0.01 and elbos[0].value > elbos[1].value
    assert len(ratios[0]) == max(map(len, ratios))


def test_a_fit_in_one_thread_and_other_peoples_programs_in_another_leave_each_other_alone():
    shared, broken, done = np.arange(3) * 1.0, [], threading.Event()

    def others():
        while not done.is_set():
            try:
                assert jax.jit(lambda x: x * shared)(jnp.ones(3, jnp.float32)).dtype == jnp.float32
            except Exception as problem:
                broken.append(problem)

    thread = threading.Thread(target=others)
    thread.start()
    try:
        for k in range(3):
            yo.fit(flat(lambda x, k=k: -0.5 * ((x - shared) ** 2).sum() * (1 + k), 3), progress=False, mend=False)
    finally:
        done.set()
        thread.join()
    assert not broken


def test_the_mass_of_a_mode_is_known_in_single_precision_far_from_zero(monkeypatch):
    monkeypatch.setattr(programs, "_WIDE_ON", ())
    model = flat(lambda x: -0.5 * ((x - 3_000.0) ** 2).sum(), 4)
    family = yo.MeanField()
    kernels = kernels_of(model, family, Clock())
    mode = Landscape(kernels.point, np.full(4, 3_000.0), np.ones(4)).mode(np.zeros(4))
    assert mode.log_mass == pytest.approx(2.0 * np.log(2.0 * np.pi), abs=0.2)


def test_a_climb_that_was_cut_on_its_way_is_no_mode_in_many_dimensions_either():
    size = FULL_UP_TO + 1
    climbing = Landscape(lambda x: (1e5 + 100.0 * x.sum(1), np.full_like(x, 100.0)), np.zeros(size), np.ones(size))
    assert climbing.mode(np.zeros(size)).log_mass == -np.inf


@pytest.mark.parametrize("seed", [0, 1])
def test_low_rank_goes_on_where_scales_are_right_and_loadings_are_not_learned(seed):
    covariance = np.full((20, 20), 0.1) + 0.9 * np.eye(20)
    precision = jnp.asarray(np.linalg.inv(covariance))
    constant = -10.0 * np.log(2 * np.pi) - 0.5 * np.linalg.slogdet(covariance)[1]
    fit = yo.fit(flat(lambda x: constant - 0.5 * x @ precision @ x, 20), family="low_rank", seed=seed, mend=False)
    assert fit.converged and fit.elbo.value > -0.1  # a product ends at -0.23


def test_draws_are_measured_in_the_noise_of_q_whatever_its_family():
    covariance = np.full((6, 6), 0.8) + 0.2 * np.eye(6)
    precision = jnp.asarray(np.linalg.inv(covariance))
    fit = yo.fit(flat(lambda x: -0.5 * x @ precision @ x - 0.02 * (x**4).sum(), 6), family="low_rank", progress=False)
    given = GivenDraws(fit)
    assert given.corrected
    assert np.array_equal(fit.family.place(fit.lane, given.eps[None])[0], given.theta)


def test_a_refined_fit_warns_though_the_fit_before_did():
    fit = yo.fit(flat(lambda x: -0.5 * (x**2).sum(), 2), progress=False)
    refined = fit.refine(ess=50, progress=False)
    assert refined._told is not fit._told


def test_fits_that_mend_another_keep_to_its_limits(monkeypatch):
    asked = []

    def noted(model, **settings):
        asked.append(settings)
        return fit_again(model, **settings)

    fit_again = mend.fit_again
    monkeypatch.setattr(mend, "fit_again", noted)
    monkeypatch.setattr("yoasovi.answer.modes.fit_again", noted)
    two = lambda x: jnp.logaddexp(-0.5 * ((x - 4.0) ** 2).sum(), -0.5 * ((x + 4.0) ** 2).sum())
    yo.fit(flat(two, 2), max_steps=9_000, nonfinite="raise", max_nonfinite=7, progress=False)
    assert asked and all((x["max_steps"], x["nonfinite"], x["max_nonfinite"]) == (9_000, "raise", 7) for x in asked)


def test_gains_of_minibatches_do_not_carry_the_rounding_of_a_large_log_density():
    """The same gains in single and in double precision, where log p is near -3 million."""
    rng, n = np.random.default_rng(0), 200_000
    X = rng.normal(size=(n, 3)).astype(np.float32)
    y = (X @ np.array([0.5, -1.0, 0.2]) + rng.normal(size=n)).astype(np.float32)
    model = yo.Model(
        prior={"b": dist.Normal(0.0, 1.0).expand([3]).to_event(1)}, data={"X": X, "y": y},
        log_likelihood=lambda p, d: 10.0 * dist.Normal(d["X"] @ p["b"], 1.0).log_prob(d["y"]),
    )  # fmt: skip
    at, family = np.array([[0.5, -1.0, 0.2]]), yo.MeanField()
    new, old = (at + rng.normal(size=(32, 3)) / np.sqrt(10.0 * n) for _ in range(2))
    words, gains = rng.integers(2**32, size=(1, 32, 2), dtype=np.uint32), []
    for wide in ((), ("cpu",)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(programs, "_WIDE_ON", wide)
            batches = in_batches(model, 500)
            kernels = kernels_of(batches, family, Clock(), 1, batches.batch_density)
            gains.append(kernels.compare(new, old, Rows(words, kernels.anchor(at)))[0])
    assert np.abs(gains[0] - gains[1]).max() < 0.05


@pytest.mark.parametrize("seed", [0, 1])
def test_a_posterior_that_nothing_holds_is_told_as_such(seed):
    ridge = yo.Model.from_log_density(lambda p: -0.5 * (p["a"] + p["b"]) ** 2, dict.fromkeys("ab", constraints.real))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = yo.fit(ridge, seed=seed, progress=False)
        verdict = fit.diagnose()
    assert verdict.grade == "failed" and "Give a and b a proper prior" in verdict.advice
    assert np.isfinite(fit.sample(10)["a"]).all()


def test_a_proper_posterior_is_not_called_endless_in_large_units():
    wide = flat(lambda x: dist.Cauchy(1e6, 1e6).log_prob(x).sum(), 2)
    fit = yo.fit(wide, progress=False, max_steps=40, mend=False)
    with pytest.warns(UserWarning):
        assert "proper prior" not in replace(fit, _verdicts={}).diagnose().advice


def test_loo_takes_terms_that_do_not_vary_as_they_are_and_refuses_a_single_one():
    from yoasovi.verdict.diagnostics import loo

    rng = np.random.default_rng(0)
    terms = -1.0 - 0.1 * rng.normal(size=(500, 6)) ** 2
    masked = np.concatenate([terms, np.zeros((500, 2)), np.full((500, 1), -2.0)], 1)
    some, all_of_them = loo(terms, np.zeros(500)), loo(masked, np.zeros(500))
    assert all_of_them.elpd == pytest.approx(some.elpd - 2.0) and all_of_them.p_loo == pytest.approx(some.p_loo)
    assert not all_of_them.doubtful[6:].any()
    with pytest.raises(ValueError, match="two observations or more"):
        loo(terms[:, :1], np.zeros(500))


def test_a_product_of_laws_without_local_sites_has_loo_and_no_dic_where_a_mean_says_nothing():
    y = np.random.default_rng(0).normal(1.0, 1.0, 20)
    model = yo.Model(
        prior={"mu": dist.Normal(0.0, 3.0), "z": dist.Bernoulli(0.3)}, data=y,
        log_likelihood=lambda p, y: dist.Normal(p["mu"] + p["z"], 1.0).log_prob(y),
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = yo.fit(model, max_steps=1_000, progress=False)
    assert -40.0 < fit.loo().elpd < -20.0
    with pytest.raises(ValueError, match="`dic` needs a mean of every parameter; z of"):
        fit.dic()
