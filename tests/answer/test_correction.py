"""Importance correction: from q towards the posterior."""

import jax.numpy as jnp
import numpy as np
import pytest

import yoasovi as yo
from targets import density
from yoasovi.answer import correction


def test_importance_correction_recovers_a_skewed_posterior():
    """log of a gamma variable: a Gaussian cannot have its skew nor its variance, corrected draws do."""
    model = density(lambda p: jnp.sum(2.0 * p["x"] - jnp.exp(p["x"])), 2)
    fit = yo.fit(model)
    assert fit.worth_correcting
    before = fit.num_values
    corrected = fit.sample(8000)["x"]
    assert fit.num_values > before
    plain = fit.sample(8000, corrected=False)["x"]
    np.testing.assert_allclose(corrected.mean(0), 0.4228, atol=0.05)  # digamma(2)
    np.testing.assert_allclose(corrected.var(0), 0.6449, atol=0.09)  # trigamma(2)
    assert (plain.var(0) < 0.55).all()
    skew = lambda x: (((x - x.mean()) / x.std()) ** 3).mean()
    assert skew(corrected[:, 0]) < -0.45 and abs(skew(plain[:, 0])) < 0.2


def test_a_pool_from_the_posterior_itself_has_even_weights():
    rng = np.random.default_rng(0)
    gathered = correction.pool(lambda eps: np.zeros(len(eps)), 40, 500, rng)
    assert gathered.effective_size == pytest.approx(len(gathered.weights))
    assert gathered.resample(100, rng).shape == (100, 40)


@pytest.mark.parametrize("dim", [2, 50])
def test_a_pool_learns_a_shifted_and_skewed_direction(dim):
    """Along one direction the posterior is the logarithm of a gamma variable; elsewhere it is q."""
    axis = np.zeros(dim)
    axis[:2] = 0.6, 0.8

    def log_ratio(eps):
        s = eps @ axis
        return 2.0 * s - np.exp(s) + 0.5 * s**2

    gathered = correction.pool(log_ratio, dim, 2000, np.random.default_rng(1))
    along = gathered.eps @ axis
    mean = gathered.weights @ along
    assert abs(mean - 0.4228) < 0.06  # digamma(2)
    assert abs(gathered.weights @ (along - mean) ** 2 - 0.6449) < 0.1  # trigamma(2)
