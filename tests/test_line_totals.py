"""Regressions that sum themselves up over all rows, at several points at once: what their terms say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import yoasovi as yo
from yoasovi.families import MeanField
from yoasovi.kernels import kernels_of, programs

RNG = np.random.default_rng(0)
X = RNG.normal(size=(5000, 3))
MODELS = {
    "logistic": lambda: yo.models.LogisticRegression(X, (RNG.random(5000) < 0.4).astype(int)),
    "linear": lambda: yo.models.LinearRegression(X, RNG.normal(size=5000), intercept=False),
    "poisson": lambda: yo.models.PoissonRegression(X, RNG.poisson(2.0, 5000), exposure=1.5, autoscale=False),
}


@pytest.mark.parametrize("backend", ["cpu", "gpu"])
@pytest.mark.parametrize("name", MODELS)
def test_totals_and_slopes_are_those_of_the_terms(name, backend, monkeypatch):
    density = (model := MODELS[name]()).density
    with programs.precision():
        inputs = programs.as_arrays(model.inputs)
        x = jnp.asarray(0.3 * RNG.normal(size=(2, density.dim)))
        terms = jax.vmap(jax.value_and_grad(lambda x: density.free_terms(inputs, x).total()))(x)
        monkeypatch.setattr(jax, "default_backend", lambda: backend)  # the form that GPUs take, on this device
        found, back = jax.vjp(lambda x: density.totals(inputs, x), x)
        slope = back(jnp.array([[1.0, 0.0]] * 2))[0]
        monkeypatch.undo()
        (value, wanted), found, slope = jax.tree.map(np.asarray, (terms, found, slope))
    np.testing.assert_allclose(found.sum(1), value, rtol=1e-12)
    np.testing.assert_allclose(slope, wanted, rtol=1e-10, atol=1e-8)


def test_many_points_are_looked_at_together_where_rows_go_in_blocks():
    y = (RNG.random(5000) < 0.4).astype(int)
    model = yo.models.LogisticRegression(np.tile(X, (80, 1)), np.tile(y, 80))
    assert kernels_of(model, MeanField(), programs.Clock()).sizes[0] == 8
