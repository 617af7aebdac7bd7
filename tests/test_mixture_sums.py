"""A mixture that sums itself up over all rows: what its terms say, in either precision, by blocks or by tiles."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import yoasovi as yo
from yoasovi.kernels import programs
from yoasovi.models import mixture_sums as sums

RNG = np.random.default_rng(0)
SHAPED = np.array([[2.0, 0.5], [0.5, 1.0]])


@pytest.mark.parametrize("narrow", [False, True], ids=["float64", "float32"])
@pytest.mark.parametrize(
    "rows, settings",
    [(5000, {"noise_covariance": SHAPED, "weights": "learned"}), (40, {"covariance": "spherical"}),
     (40, {"covariance": "full", "weights": "learned"})],
)  # fmt: skip
def test_totals_and_slopes_are_those_of_the_terms(rows, settings, narrow, monkeypatch):
    monkeypatch.setattr(programs, "_WIDE_ON", () if narrow else ("cpu",))
    y = 2.0 * RNG.normal(size=(rows, 2))
    density = (model := yo.models.GaussianMixture(y, 3, assignments="marginal", **settings)).density
    with programs.precision():
        inputs = programs.as_arrays(model.inputs)
        x = jnp.asarray(RNG.normal(size=(2, density.dim)), float)
        terms = jax.jit(jax.vmap(jax.value_and_grad(lambda x: density.free_terms(inputs, x).total())))
        slopes = lambda x: jax.vjp(lambda x: density.totals(inputs, x), x)[1](jnp.array([[1.0, 0.0]] * 2))[0]
        whole = jax.jit(lambda x: (density.totals(inputs, x), slopes(x)))
        (value, slope), (found, turned) = jax.tree.map(np.asarray, (terms(x), whole(x)))
    near = 3e-6 if narrow else 1e-12
    assert found.dtype == turned.dtype == (np.float32 if narrow else np.float64)
    np.testing.assert_allclose(found.sum(1), value, rtol=near)
    np.testing.assert_allclose(turned, slope, rtol=near, atol=near * np.abs(slope).max())


def test_a_look_at_a_mixture_makes_nothing_as_long_as_the_data():
    y = np.zeros((20_000, 2))
    density = (model := yo.models.GaussianMixture(y, 4, assignments="marginal")).density
    look = lambda x: jax.vjp(lambda x: density.totals(model.inputs, x), x)[1](jnp.ones((1, 2)))
    found = jax.jit(look).lower(np.zeros((1, density.dim))).compile().memory_analysis()
    assert found.temp_size_in_bytes < y.nbytes


@pytest.mark.parametrize("diagonal, order", [(True, 1), (False, 2)])
def test_tiles_give_the_sums_of_blocks(diagonal, order, monkeypatch):
    """What a GPU runs, through Pallas' interpreter; full rounds and a last one that is not."""
    q = sums.Quadratics(*(jnp.asarray(RNG.normal(size=s), jnp.float32) for s in ((2, 3), (2, 3, 2), (2, 3, 2, 2))))
    q = q._replace(factor=q.factor * (np.eye(2) if diagonal else np.tri(2)).astype("f"))
    y, form = jnp.asarray(RNG.normal(size=(5303, 2)), jnp.float32), sums.Form(diagonal, order == 2)
    monkeypatch.setattr(sums, "_VALUE", sums.Tiling(8, 256, 4, 8))  # few programs, so that there are full rounds
    monkeypatch.setattr(sums, "_DERIVATIVES", sums.Tiling(4, 128, 4, 4))
    wanted = sums._row_sums(form, order, q, y)
    value, *rest = sums._by_tiles(form, order, q, y)
    (count,), first, second = ([x.sum(1) for x in part] for part in rest)
    np.testing.assert_allclose(value.sum((1, 2, 3)), wanted.value.sum(1), rtol=1e-6)
    (alone,) = sums._by_tiles(form, 0, q, y)
    np.testing.assert_allclose(alone.sum((1, 2, 3)), wanted.value.sum(1), rtol=1e-6)
    np.testing.assert_allclose(count, wanted.count, rtol=1e-5)
    np.testing.assert_allclose(np.stack(first, -1), wanted.first, rtol=1e-5, atol=1e-3)
    if order == 2:
        np.testing.assert_allclose(second[1], wanted.second[..., 0, 1], rtol=1e-5, atol=1e-3)
