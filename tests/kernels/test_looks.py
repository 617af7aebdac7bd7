"""Looks at log p: the same numbers whatever the block, the lanes and the family."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import yoasovi as yo
from yoasovi.families import FullRank, LowRank, MeanField
from yoasovi.kernels import kernels_of, looks
from yoasovi.kernels.programs import Clock, precision

FAMILIES = [MeanField(), FullRank(), LowRank(2)]


def started(family, dim, lanes, seed=0):
    rng = np.random.default_rng(seed)
    return family.init(rng.normal(size=(lanes, dim)), np.exp(0.3 * rng.normal(size=(lanes, dim)) - 1.0), rng)


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
def test_values_scores_and_pairs_are_log_p_minus_log_q(conjugate, family):
    kernels = kernels_of(conjugate.model, family, Clock(), lanes=3)
    q, old = started(family, 2, 3), started(family, 2, 3, seed=1)
    noise = np.random.default_rng(2).standard_normal((3, 45, family.noise_size(conjugate.model.density)))
    theta = family.place(q, noise)
    with precision():
        inputs = conjugate.model.inputs
        log_p = lambda x: conjugate.model.density.free_terms(inputs, x).total()
        value, slope = jax.vmap(jax.vmap(jax.value_and_grad(log_p)))(theta)
    log_q = family.log_q(q, theta)
    log_q = log_q.sum(-1) if log_q.ndim == 3 else log_q
    np.testing.assert_allclose(kernels.values(q, noise), np.asarray(value) - log_q, rtol=1e-9, atol=1e-9)
    seen = kernels.scores(q, noise)
    np.testing.assert_allclose(seen.ratio, np.asarray(value) - log_q, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(seen.white, family.white(q, noise, np.asarray(slope)), rtol=1e-9, atol=1e-9)
    pairs = kernels.pairs(q, old, noise)
    np.testing.assert_allclose(pairs.change, pairs.new - pairs.old, atol=1e-9)
    np.testing.assert_allclose(pairs.old, kernels.values(old, noise), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("family", FAMILIES, ids=repr)
def test_a_score_is_the_derivative_along_the_noise(conjugate, family, x64):
    """Sticking the landing in q's own units: d/deps of log p - log q(theta) with q held fixed, for square factors."""
    if isinstance(family, LowRank):
        pytest.skip("its noise has more coordinates than theta")
    q = jax.tree.map(jnp.asarray, started(family, 2, 1))
    eps = jnp.array([[[0.3, -0.7]]])

    def objective(e):
        theta = family.place(q, e)
        value = conjugate.model.density.free_terms(conjugate.model.inputs, theta[0, 0]).total()
        return value - jnp.sum(family.log_q(q, theta))

    kernels = kernels_of(conjugate.model, family, Clock())
    white = kernels.scores(jax.tree.map(np.asarray, q), np.asarray(eps)).white
    np.testing.assert_allclose(white, jax.grad(objective)(eps), rtol=1e-8)


def test_blocks_and_lanes_change_no_bit(conjugate, monkeypatch):
    family = FullRank()
    noise = np.random.default_rng(0).standard_normal((4, 70, 2))
    q = started(family, 2, 4)
    found = []
    for block, lanes in ((32, 1), (32, 4), (8, 4)):
        monkeypatch.setattr(looks, "BLOCK", block)
        found.append(kernels_of(conjugate.model, family, Clock(), lanes).values(q, noise))
    for other in found[1:]:
        np.testing.assert_allclose(found[0], other, rtol=1e-13)


def test_a_large_look_goes_in_small_blocks_and_one_point_alone():
    big = yo.models.LinearRegression(np.ones((300_000, 2)), np.arange(300_000.0), autoscale=False)
    kernels = kernels_of(big, MeanField(), Clock())
    assert kernels.density.width >= 300_000 and kernels.block * kernels.density.width <= 2**22
    assert not kernels.cheap and kernels._single
    value, gradient = kernels.point(np.zeros((1, kernels.dim)))
    assert value.shape == (1,) and gradient.shape == (1, kernels.dim)
    small = yo.models.LinearRegression(np.ones((30, 2)), np.arange(30.0), autoscale=False)
    assert kernels_of(small, MeanField(), Clock()).cheap


def test_sums_are_right_beyond_single_precision():
    """In single precision 10^8 and 10^8 + 1 are one number: what rounding leaves of a sum must travel beside it."""
    model = yo.Model(
        prior={"m": dist.Normal(0.0, 1.0)}, log_likelihood=lambda p, y: y + jnp.array([0.0, 4.0]) * p["m"],
        data=np.array([1e8, 0.0]),
    )  # fmt: skip
    family = MeanField()
    new, old = (family.init(np.full((1, 1), m), np.full((1, 1), 1e-9), None) for m in (0.5, 0.25))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("yoasovi.kernels.programs._WIDE_ON", ())
        pairs = kernels_of(model, family, Clock()).pairs(new, old, np.zeros((1, 4, 1)))
    np.testing.assert_allclose(pairs.change, 1.0 + 0.5 * (0.25**2 - 0.5**2), atol=1e-4)
    np.testing.assert_allclose(pairs.new - pairs.old, pairs.change, atol=1e-6)


def test_draws_on_their_own_supports_need_no_program_where_supports_are_all_of_the_line():
    plain = yo.Model(prior={"a": dist.Normal(0.0, 1.0), "b": dist.Normal(np.zeros((2, 3)), 1.0).to_event(2)},
                     log_likelihood=lambda p, d: d * p["a"], data=np.ones(2))  # fmt: skip
    kernels = kernels_of(plain, FullRank(), Clock())
    theta = np.arange(14.0).reshape(2, 7)
    draws = kernels.constrain(theta)
    assert draws["a"].shape == (2,) and draws["b"].shape == (2, 2, 3) and kernels.clock.compiled == []
