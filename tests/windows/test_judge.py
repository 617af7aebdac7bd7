"""From paired draws to a decision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from targets import density
from yoasovi.families import MeanField
from yoasovi.kernels import kernels_of
from yoasovi.kernels.programs import Clock
from yoasovi.windows import judge


def tally_of(kernels, new, old, pairs, seed=1):
    rng, tally = np.random.default_rng(seed), judge.empty(np.zeros(1))
    for _ in range(pairs // judge.BLOCK):
        tally = judge.add(tally, *kernels.pairs(new, old, rng.standard_normal((1, judge.BLOCK, kernels.dim))))
    return tally


def test_a_paired_gain_is_unbiased_and_much_less_noisy_than_unpaired(conjugate):
    family = MeanField()
    kernels = kernels_of(conjugate.model, family, Clock())
    old = family.init(conjugate.mean[None], np.full((1, 2), 0.3), None)
    new = family.init(conjugate.mean[None] + 0.02, np.full((1, 2), 0.31), None)
    gain = judge.gained(tally_of(kernels, new, old, 3200))
    elbo = lambda q: conjugate.elbo(q.mean[0], jnp.diag(jnp.exp(q.log_scale[0])))
    assert abs(gain.mean[0] - float(elbo(new) - elbo(old))) < 5 * gain.se[0]
    single = kernels.values(new, np.random.default_rng(2).standard_normal((1, 3200, 2)))
    assert float(gain.se[0]) * np.sqrt(3200) < 0.5 * float(single.std())


@pytest.mark.parametrize("bad", ["candidate", "incumbent", "both"])
def test_a_judgement_survives_draws_that_are_not_finite(bad):
    def log_p(params):
        x = params["x"][0]
        return jnp.where(x > 2.0, jnp.nan, -0.5 * x**2)

    family = MeanField()
    kernels = kernels_of(density(log_p, 1), family, Clock())
    inside, outside = (family.init(np.array([[x]]), np.array([[0.5]]), None) for x in (0.0, 3.0))
    sides = {"candidate": (outside, inside), "incumbent": (inside, outside), "both": (outside, outside)}
    gain = judge.gained(tally_of(kernels, *sides[bad], 64))
    assert gain.nonfinite[0] > 0
    if bad == "both":
        assert gain.mean[0] == 0 or not np.isfinite(gain.se[0])
    else:
        assert gain.mean[0] == (-np.inf if bad == "candidate" else np.inf)


def test_a_loss_with_heavy_tails_is_undone():
    """Its mean is smaller than twice its own error, which used to pass for undecided."""
    family = MeanField()
    kernels = kernels_of(density(lambda p: -jnp.exp(jnp.abs(p["x"])).sum(), 1), family, Clock())
    narrow, wide = (family.init(np.zeros((1, 1)), np.full((1, 1), s), None) for s in (0.5, 40.0))
    gain = judge.gained(tally_of(kernels, wide, narrow, 64))
    found = judge.decide(gain, 2.0, 0.15, np.zeros(1), np.full(1, 0.5))
    assert gain.mean[0] > -2.0 * gain.se[0] and found.worse[0] and not found.accept[0]


numbers = st.floats(-1e3, 1e3, allow_subnormal=False)  # XLA flushes those to zero, NumPy does not


@settings(deadline=None, max_examples=200)
@given(
    mean=numbers,
    se=st.floats(0, 100, allow_subnormal=False),
    wins=st.floats(0, 1, allow_subnormal=False),
    pairs=st.integers(0, 1000),
    luck=st.floats(1e-6, 1.0),
    strictness=st.floats(0, 20, allow_subnormal=False),
)
def test_a_decision_is_never_two_things_at_once_and_the_same_under_numpy_and_jax(mean, se, wins, pairs, luck, strictness):
    gain = judge.Gain(*(np.array([x]) for x in (mean, se + 1e-12, 0.0, wins, pairs, 0)))
    found = judge.decide(gain, 2.0, 0.15, np.array([strictness]), np.array([luck]))
    assert not (found.better & found.worse) and not (found.worse & found.accept) and (found.accept | ~found.better)
    with jax.enable_x64(True):
        again = judge.decide(judge.Gain(*map(jnp.asarray, gain)), 2.0, 0.15, jnp.array([strictness]), jnp.array([luck]))
    assert [bool(x[0]) for x in again] == [bool(x[0]) for x in found]


def test_a_tally_of_blocks_is_that_of_all_pairs_at_once():
    rng = np.random.default_rng(0)
    change, new = rng.normal(size=(2, 3, 96))
    change[0, 5] = np.nan
    whole = judge.add(judge.empty(np.zeros(3)), change, new, new - change)
    parts = judge.empty(np.zeros(3))
    for i in range(0, 96, 32):
        parts = judge.add(parts, *(x[:, i : i + 32] for x in (change, new, new - change)))
    for a, b in zip(judge.gained(whole), judge.gained(parts), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9)


def test_a_sure_gain_needs_no_more_pairs():
    clear = judge.add(judge.empty(np.zeros(1)), np.full((1, 32), 3.0), np.zeros((1, 32)), np.zeros((1, 32)))
    noise = np.random.default_rng(0).normal(size=(1, 32))
    assert judge.sure(clear)[0] and not judge.sure(judge.add(judge.empty(np.zeros(1)), noise, noise, noise))[0]
