"""Fits that mend themselves: funnels by other forms of the model, lesser modes by better ones, and what is said of it."""

import json
import os
import signal
import subprocess
import sys
from functools import cache

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import yoasovi as yo
from yoasovi.answer import mend
from yoasovi.answer.result import Fit
from yoasovi.kernels.programs import Bound

EFFECTS, ERRORS = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


def schools(errors, effects=None):
    mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", 8):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, errors), obs=effects)


def many_schools(errors, effects=None):
    mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", 40):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, errors), obs=effects)


@pytest.fixture(scope="module")
def mended():
    return yo.fit(schools, ERRORS, effects=EFFECTS)


def test_a_funnel_is_mended_by_another_form_in_the_users_own_parameters(mended):
    assert [note.kept for note in mended.mended] == [True]
    note = mended.mended[0]
    assert "tau" in note.found and note.tried == "theta non-centred" and note.gained == pytest.approx(1.1, abs=0.3)
    assert mended.num_gradients > note.num_gradients > 0
    draws = mended.sample(4000)
    assert list(draws) == ["mu", "tau", "theta"] and draws["theta"].shape == (4000, 8)
    # Of a long run of NUTS on the non-centred model.
    assert draws["tau"].mean() == pytest.approx(3.6, abs=0.32) and draws["tau"].std() == pytest.approx(3.2, rel=0.1)
    assert mended.diagnose().grade == "good" and mended.summary().startswith("Mended: the scale of theta")


def test_a_funnel_of_many_groups_is_mended_though_none_of_them_shows_it(monkeypatch):
    monkeypatch.setattr(mend, "funnel_of", lambda *_: None)
    rng = np.random.default_rng(3)
    errors = rng.uniform(8, 18, 40)
    fit = yo.fit(many_schools, errors, effects=5 + 3 * rng.normal(size=40) + errors * rng.normal(size=40))
    assert (
        fit.mended[0].kept and fit.mended[0].found.startswith("weights of q's draws are worth") and fit.family.groups == 40
    )
    # Of NUTS on the non-centred model; q of the centred one has 5.4.
    assert fit.mean()["tau"] == pytest.approx(4.14, abs=0.4) and fit.sd()["tau"] == pytest.approx(2.68, rel=0.1)


def test_what_was_mended_is_saved_and_can_be_refused(mended, tmp_path):
    mended.save(tmp_path / "fit")
    assert yo.load(tmp_path / "fit").mended == mended.mended
    assert json.loads((tmp_path / "fit" / "fit.json").read_text())["mended"][0][1] == "theta non-centred"
    plain = yo.fit(mended.model if not mended.model.centred else schools, *(ERRORS, EFFECTS), mend=False)
    assert plain.mended == () and plain.elbo.value < mended.elbo.value - 0.5
    with pytest.raises(ValueError, match="`mend` of `fit` must be True or False; got 1"):
        yo.fit(schools, ERRORS, EFFECTS, mend=1)


def two_modes(share, d=2):
    """Unit Gaussians at distance 8."""
    away = np.zeros(d)
    away[0] = 8.0

    def log_p(p):
        near, far = -0.5 * jnp.sum(p["x"] ** 2), -0.5 * jnp.sum((p["x"] - away) ** 2)
        return jnp.logaddexp(np.log(share) + near, np.log(1 - share) + far)

    return yo.Model.from_log_density(log_p, {"x": constraints.real}, {"x": (d,)})


def test_two_modes_become_a_mixture_and_one_lesser_mode_gives_way(monkeypatch):
    model = two_modes(0.8)
    single, judged = [], Fit.judged
    monkeypatch.setattr(Fit, "judged", lambda self, *key: single.append(not self.parts) or judged(self, *key))
    both = yo.fit(model, seed=1)
    assert not any(single)  # what climbs saw is fitted at once, without a verdict on a fit that will not stay
    weights = sorted(part.weight for part in both.parts)
    assert weights == pytest.approx([0.2, 0.8], abs=0.05) and both.diagnose().grade == "good"
    assert both.sample(4000)["x"][:, 0].mean() == pytest.approx(1.6, abs=0.3)
    assert both.mended[0].kept and "mixture of 2 fits" in both.summary().splitlines()[0]
    again = yo.fit(model, seed=1)
    assert np.array_equal(again.sample(50)["x"], both.sample(50)["x"])  # same seed, same bits


def test_other_methods_and_nearly_gaussian_fits_stay_as_they_are():
    model = two_modes(0.8)
    assert yo.fit(model, "advi", max_steps=200).mended == ()
    rng = np.random.default_rng(0)
    plain = yo.Model(
        prior={"m": dist.Normal(0.0, 1.0)}, data={"y": rng.normal(size=20)},
        log_likelihood=lambda p, d: dist.Normal(p["m"], 1.0).log_prob(d["y"]),
    )  # fmt: skip
    one, other = yo.fit(plain), yo.fit(plain, mend=False)
    assert one.mended == () and one.num_gradients == other.num_gradients and one.num_values == other.num_values


# ---- a fit that ends in the middle of being mended -----------------------------------------------------------

CASES = {
    "modes": cache(lambda: two_modes(0.7)),
    "funnel": cache(lambda: yo.from_numpyro(schools, ERRORS, effects=EFFECTS)),
}


def fitted(case, **options):
    return yo.fit(CASES[case](), seed=3, **options)


class Crash(Exception):
    pass


def crash_at(nth, how):
    """Do `how` at the nth call of a compiled program; give the count of calls."""
    count, plain = [0], Bound.__call__

    def counted(self, *args):
        count[0] += 1
        if count[0] == nth:
            how()
        return plain(self, *args)

    Bound.__call__ = counted
    return count


def calls(case, **options):
    """Fit, and count the calls."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bound, "__call__", Bound.__call__)  # and back again
        count = crash_at(0, None)
        return fitted(case, **options), count[0]


def moments(case, many):
    """Fit, and give that many calls spread over its mending."""
    whole, last = calls(case)
    _, first = calls(case, mend=False)
    assert last > first + many
    return whole, np.linspace(first + 1, last - 1, many + 2)[1:-1].astype(int)


def same_answer(a, b):
    counts = lambda fit: (fit.num_values, fit.num_gradients, fit.elbo, fit.mended, fit.converged)
    draws = [fit.sample(50) for fit in (a, b)]
    return counts(a) == counts(b) and all(np.array_equal(draws[0][k], draws[1][k]) for k in draws[0])


@pytest.mark.parametrize("case", CASES)
def test_a_crash_while_mending_resumes_to_the_same_bits(case, tmp_path, monkeypatch):
    def crash():
        raise Crash

    whole, places = moments(case, 2 if case == "modes" else 1)
    for nth in places:
        with monkeypatch.context() as patch, pytest.raises(Crash):
            patch.setattr(Bound, "__call__", Bound.__call__)
            crash_at(nth, crash)
            fitted(case, checkpoint=tmp_path / str(nth))
        assert same_answer(fitted(case, checkpoint=tmp_path / str(nth), resume=True), whole)


@pytest.mark.parametrize("case", CASES)
def test_ctrl_c_while_mending_gives_the_fit_as_it_was(case, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    _, (place,) = moments(case, 1)
    with monkeypatch.context() as patch, pytest.warns(UserWarning, match="Interrupted while mending"):
        patch.setattr(Bound, "__call__", Bound.__call__)
        crash_at(place, interrupt)
        fit = fitted(case)
    plain = fitted(case, mend=False)
    assert fit.mended == () and fit.elbo == plain.elbo and fit.num_gradients == plain.num_gradients
    fit.sample(10)
    assert {"mend", "sample"} <= set(fit.seconds.stages)  # what is waited for later is still counted


# Forks a child for every line; it fits with a checkpoint, and is killed at the nth call.
KILLED = """
import importlib.util, json, os, signal, sys, warnings
spec = importlib.util.spec_from_file_location("mending", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
warnings.simplefilter("ignore")
for line in sys.stdin:
    case, nth, folder = json.loads(line)
    child = os.fork()
    if child == 0:
        module.crash_at(nth, lambda: os.kill(os.getpid(), signal.SIGKILL))
        module.fitted(case, checkpoint=folder)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.exhaustive
def test_a_fit_killed_while_mending_resumes_to_the_same_bits(tmp_path):
    cached = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **cached})
    child = subprocess.Popen([sys.executable, "-c", KILLED, __file__], **pipes)
    try:
        for case, many in (("modes", 13), ("funnel", 12)):
            whole, places = moments(case, many)
            for nth in places.tolist():
                folder = str(tmp_path / f"{case}{nth}")
                child.stdin.write(json.dumps([case, nth, folder]) + "\n")
                child.stdin.flush()
                assert int(child.stdout.readline()) == -signal.SIGKILL
                assert same_answer(fitted(case, checkpoint=folder, resume=True), whole), (case, nth)
    finally:
        child.kill()
        child.wait()
