"""Regressions that sum themselves up at many points on a GPU, through Pallas' interpreter: what their rows say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import yoasovi as yo
from yoasovi.models import line_sums, regression

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("kind", ["LinearRegression", "LogisticRegression", "PoissonRegression"])
@pytest.mark.parametrize("settings", [{}, {"autoscale": False}, {"intercept": False}], ids=str)
@pytest.mark.parametrize("rows", [1000, 1024])
def test_tiles_give_the_sums_of_rows(kind, settings, rows, monkeypatch):
    """Full rounds and a last one that is not, or full rounds alone."""
    monkeypatch.setattr(line_sums, "_PROGRAMS", 4)
    X, y = RNG.normal(size=(rows, 3)), RNG.integers(0, 2, rows).astype(float)
    model = getattr(yo.models, kind)(X, y, **settings)
    single = lambda tree: jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), tree)
    some = {k: RNG.uniform(0.5, 1.5, (5, *jnp.shape(v))) for k, v in _sites(model).items()}
    data, params = single(model.data), single(some)
    likelihood = model.log_likelihood
    both = lambda: jax.value_and_grad(lambda p: regression.line_totals(likelihood, p, data)[:, 0].sum())(params)
    wanted, wanted_slopes = both()
    alone = regression.line_totals(likelihood, params, data)
    monkeypatch.setattr(regression, "tiled", lambda *_: True)
    np.testing.assert_allclose(regression.line_totals(likelihood, params, data).sum(1), alone.sum(1), rtol=1e-6)
    found, slopes = both()
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert set(slopes) == set(params)
    for k, slope in wanted_slopes.items():
        np.testing.assert_allclose(slopes[k], slope, rtol=1e-5, atol=1e-4)


def test_a_gpu_can_compile_what_tiles_ask_for():
    """As far as without one: Triton's own language."""
    n, p, points = 2**18, 5, 8
    shape = lambda *s: jax.ShapeDtypeStruct(s, jnp.float32)
    sums = lambda X, b, a, y: line_sums.by_tiles(regression.bernoulli_terms, True, X, b, a, {}, {"y": y})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "default_backend", lambda: "gpu")
        traced = jax.jit(sums).trace(shape(n, p), shape(points, p), shape(points), shape(n))
        assert "triton" in traced.lower(lowering_platforms=("cuda",)).as_text()


def _sites(model):
    """One value of each of the model's sites."""
    params = model.density.constrain(model.inputs, np.zeros(model.density.dim))[0]
    return {k: v for k, v in params.items() if k in model.prior}
