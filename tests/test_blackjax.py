"""The default method in BlackJAX's shape."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.base import VIAlgorithm
from blackjax.util import run_inference_algorithm

import yoasovi.blackjax
from yoasovi.blackjax import as_top_level_api

MEAN = jnp.array([1.0, -2.0, 30.0])
COV = jnp.array([[1.0, 0.8, 0.0], [0.8, 1.0, 0.0], [0.0, 0.0, 25.0]])
BEGIN = {"a": jnp.zeros(2), "b": jnp.zeros(())}


def log_density(position):
    off = jnp.append(position["a"], position["b"]) - MEAN
    return -0.5 * off @ jnp.linalg.solve(COV, off) - 0.5 * jnp.linalg.slogdet(2 * jnp.pi * COV)[1]


@pytest.fixture(scope="module")
def algorithm():
    return as_top_level_api(log_density)


@pytest.fixture(scope="module")
def found(algorithm):
    """Through BlackJAX's own loop."""
    return run_inference_algorithm(jax.random.key(0), algorithm, 25, initial_position=BEGIN)


def test_it_is_blackjax_own_tuple(algorithm):
    assert isinstance(algorithm, VIAlgorithm)


def test_a_gaussian_is_found_exactly(algorithm, found):
    state, _ = found
    np.testing.assert_allclose(state.mean["a"], MEAN[:2], atol=1e-3)
    np.testing.assert_allclose(state.mean["b"], MEAN[2], atol=1e-2)
    draws = algorithm.sample(jax.random.key(1), state, 20_000)
    assert draws["a"].shape == (20_000, 2) and draws["b"].shape == (20_000,)
    flat = np.column_stack([draws["a"], draws["b"]])
    scale = np.sqrt(np.diag(COV))
    np.testing.assert_allclose(np.cov(flat.T) / np.outer(scale, scale), COV / np.outer(scale, scale), atol=0.05)


def test_the_elbo_in_info_is_maximised(found):
    _, (_, info) = found
    elbo = np.asarray(info.elbo)
    assert elbo[-1] > elbo[0] and abs(elbo[-1]) < 0.01  # the density is normalised and in the family: the best is zero


def test_steps_after_convergence_change_nothing(found):
    _, (states, info) = found
    first = int(np.argmax(info.converged))
    assert info.converged[first:].all() and not info.converged[:first].any()
    rest = jax.tree.map(lambda x: np.asarray(x[first:]), states)
    jax.tree.map(lambda x: np.testing.assert_array_equal(x, np.broadcast_to(x[:1], x.shape)), rest)
    assert np.isnan(info.candidate_elbo[first + 1 :]).all() and np.isfinite(info.candidate_elbo[: first + 1]).all()


def test_a_state_keeps_its_shapes_and_types_in_either_precision(dtype):
    vi = as_top_level_api(log_density, "mean_field")
    state = vi.init(BEGIN)
    new = jax.eval_shape(vi.step, jax.random.key(0), state)[0]
    kinds = lambda tree: jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), tree)
    assert kinds(state) == kinds(new)
    assert {x.dtype for x in jax.tree.leaves(new) if jnp.issubdtype(x.dtype, jnp.floating)} == {dtype}


def test_it_begins_at_the_position(algorithm):
    state = algorithm.init({"a": jnp.array([3.0, 4.0]), "b": 5.0})
    draws = algorithm.sample(jax.random.key(0), state, 2000)
    np.testing.assert_allclose(draws["a"].mean(0), [3.0, 4.0], atol=0.05)  # seven standard errors
    np.testing.assert_allclose(draws["b"].std(), 0.3, rtol=0.15)


def test_it_needs_no_blackjax(monkeypatch):
    def missing(name, *args):
        raise ImportError(name)

    monkeypatch.setattr("yoasovi.extras.import_module", missing)
    assert isinstance(as_top_level_api(log_density), yoasovi.blackjax.VIAlgorithm)


BAD = {
    "density": ((3,), {}, "`logdensity_fn` of `as_top_level_api` must be callable; got 3"),
    "family": ((log_density, "wide"), {}, "`family` of `as_top_level_api` must be auto, mean_field"),
    "setting": ((log_density,), {"patience": 0}, "`patience` of `Patience` must be a positive integer; got 0"),
}


@pytest.mark.parametrize(("args", "settings", "message"), BAD.values(), ids=BAD)
def test_bad_arguments_are_named(args, settings, message):
    with pytest.raises(ValueError, match=message):
        as_top_level_api(*args, **settings)
