"""The store of programs: what is compiled, what is not, and that nothing of the user's is touched."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import yoasovi as yo
from yoasovi.kernels import programs
from yoasovi.kernels.programs import Bound, Clock, Held, precision


def _doubled(factor, staying, x):
    return factor * (x + staying["a"])


def test_equal_parts_and_shapes_share_a_program_and_others_do_not():
    clock, held = Clock(), Held({"a": np.ones(3)})
    bound = Bound(_doubled, (2.0,), held, clock)
    np.testing.assert_allclose(bound(np.zeros(3)), 2.0)
    before = programs.num_programs()
    np.testing.assert_allclose(Bound(_doubled, (2.0,), Held({"a": np.full(3, 4.0)}), clock)(np.zeros(3)), 8.0)
    assert programs.num_programs() == before and clock.compiled == ["doubled"]
    Bound(_doubled, (3.0,), held, clock)(np.zeros(3))
    bound(np.zeros((2, 3)))
    assert programs.num_programs() == before + 2 and clock.compile > 0


def test_the_store_is_bounded(monkeypatch):
    monkeypatch.setattr(programs, "_MOST", programs.num_programs() + 2)
    for n in range(5):
        Bound(_doubled, (10.0 + n,), Held({"a": np.ones(1)}), Clock())(np.zeros(1))
    assert programs.num_programs() == programs._MOST


CENTRE = np.full(3, 2.0)


def log_p(params):
    return -0.5 * jnp.sum((params["x"] - CENTRE) ** 2)


@jax.jit
def inner(x):
    return -0.5 * jnp.sum((x - CENTRE) ** 2)


def test_a_fit_leaves_the_users_compiled_functions_and_precision_alone():
    """NumPy constants used to be confused between precisions, and all of JAX's caches to be cleared because of it."""
    assert not jax.config.jax_enable_x64
    mine, traces = jax.jit(log_p), []
    counted = jax.jit(lambda x: (traces.append(1), jnp.sum(x - CENTRE))[1])
    start = {"x": jnp.zeros(3)}
    assert mine(start).dtype == inner(start["x"]).dtype == jnp.float32
    counted(start["x"])
    for density in (log_p, lambda p: inner(p["x"]), log_p):
        fit = yo.fit(yo.Model.from_log_density(density, {"x": constraints.real}, {"x": (3,)}))
        np.testing.assert_allclose(fit.mean()["x"], 2.0, atol=0.1)
        fit.summary(), fit.sample(10)
    assert not jax.config.jax_enable_x64
    counted(start["x"]), mine(start)
    assert len(traces) == 1 and mine._cache_size() == 1 and inner._cache_size() == 1
    for function in (jax.grad(log_p), jax.jit(jax.grad(log_p)), jax.vmap(log_p)):
        made = function({"x": jnp.zeros((2, 3))} if function.__name__ == "vmap" else start)
        assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(made))
    assert jax.grad(inner)(start["x"]).dtype == jnp.float32


def test_constants_of_a_density_are_not_rounded_to_single_precision():
    third = np.full(2, 1.0 / 3.0)
    with precision():
        found = jax.jit(lambda x: x + third).lower(np.zeros(2)).compile()(np.zeros(2))
    assert found.dtype == jnp.float64 and float(found[0]) == 1.0 / 3.0


@pytest.mark.parametrize("kind", ["nearly Gaussian", "bent"])
def test_a_fit_compiles_few_programs_and_the_second_none(kind):
    r = np.random.default_rng(0)
    if kind == "nearly Gaussian":
        X = r.normal(size=(80, 3))
        model = yo.models.LogisticRegression(X, (r.random(80) < 1 / (1 + np.exp(-X[:, 0]))).astype(int))
    else:
        model = yo.models.HierarchicalNormal(np.array([28.0, 8, -3, 7]), sd=np.array([15.0, 10, 16, 11]))
    fit = yo.fit(model)
    assert set(fit.kernels.clock.compiled) <= {"gradients", "differences", "walk"}
    before = programs.num_programs()
    fit.sample(), fit.summary(), fit.diagnose(), fit.khat()
    assert programs.num_programs() - before <= 1  # the supports of the sites
    before = programs.num_programs()
    again = yo.fit(model, seed=1)
    again.summary()
    assert programs.num_programs() == before and again.seconds.compile == 0.0


def test_a_clock_tells_stages_and_what_is_compiled():
    told = []
    clock = Clock(watch=told.append)
    with clock.stage("work"):
        Bound(_doubled, (77.0,), Held({"a": np.ones(2)}), clock)(np.zeros(2))
    assert told == ["doubled"] and clock.stages["work"] >= clock.compile > 0


def test_the_same_model_with_other_data_of_the_same_shape_compiles_nothing():
    build = lambda seed: yo.Model(
        prior={"m": dist.Normal(0.0, 1.0)}, log_likelihood=likelihood, data=np.random.default_rng(seed).normal(size=20)
    )
    yo.fit(build(0))
    before = programs.num_programs()
    yo.fit(build(1))
    assert programs.num_programs() == before


def likelihood(params, y):
    return dist.Normal(params["m"], 1.0).log_prob(y)


def test_data_that_the_users_own_programs_hold_in_single_precision_enter_a_fit_as_they_are():
    """As after NUTS on the same NumPy arrays in the same process: JAX remembers them as 32-bit, integers too."""
    group, x = np.arange(60) % 6, np.linspace(-1.0, 1.0, 60)
    mine = jax.jit(lambda z: jnp.sum(z[group] * x))
    mine(jnp.zeros(6))
    model = yo.Model(
        prior={"z": dist.Normal(np.zeros(6), 1.0).to_event(1)}, data={"group": group, "x": x},
        log_likelihood=lambda p, d: -0.5 * (d["x"] - p["z"][d["group"]]) ** 2,
    )  # fmt: skip
    fit = yo.fit(model)
    assert all(leaf.dtype in (jnp.int64, jnp.float64) for leaf in fit.kernels.held.leaves)
    means = [10 / 11 * x[group == g].mean() for g in range(6)]
    np.testing.assert_allclose(fit.params.mean, means, atol=0.02)
    assert mine(jnp.ones(6)).dtype == jnp.float32 and mine._cache_size() == 1
