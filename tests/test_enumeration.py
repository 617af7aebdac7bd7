"""Discrete sites of NumPyro models: summed out as NumPyro does it, and drawn again given the rest."""

import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from jax.scipy.special import logsumexp
from numpyro.contrib.control_flow import scan
from numpyro.handlers import substitute
from numpyro.infer.util import log_density

import yoasovi as yo
from yoasovi.answer.predictive import recovered
from yoasovi.files.identity import of_model
from yoasovi.kernels.programs import as_arrays, precision
from yoasovi.numpyro import from_numpyro

Y = np.array([-2.1, -1.7, -0.2, 0.3, 1.8, 2.2])
COUNTS = np.array([0, 0, 3, 1, 0, 4, 2, 0, 5, 2, 0, 3])


def zero_inflated(x, y=None):
    rate, gate = numpyro.sample("rate", dist.Gamma(2.0, 1.0)), numpyro.sample("gate", dist.Beta(2.0, 2.0))
    with numpyro.plate("n", len(x)):
        zero = numpyro.sample("zero", dist.Bernoulli(gate))
        mean = numpyro.deterministic("mean", jnp.where(zero == 1, 1e-4, rate * x))
        numpyro.sample("y", dist.Poisson(mean), obs=y)


def two_levels(y):
    loc, v = numpyro.sample("loc", dist.Normal(0.0, 2.0)), numpyro.sample("v", dist.Beta(2.0, 5.0))
    with numpyro.plate("groups", y.shape[0], dim=-2):
        z = numpyro.sample("z", dist.Categorical(jnp.array([0.3, 0.7])), infer={"enumerate": "parallel"})
        with numpyro.plate("members", y.shape[1], dim=-1):
            odd = numpyro.sample("odd", dist.Bernoulli(v))
            numpyro.sample("y", dist.Normal(loc * (2.0 * z - 1.0), 0.5 + odd), obs=y)


def states(y, dtype=None):
    stay, loc = numpyro.sample("stay", dist.Beta(2.0, 2.0)), numpyro.sample("loc", dist.Normal(0.0, 1.0))

    def step(x, y):
        with numpyro.plate("series", y.shape[0]):
            x = numpyro.sample("x", dist.Bernoulli(jnp.where(x == 1, stay, 1 - stay)), infer={"enumerate": "parallel"})
            numpyro.sample("y", dist.Normal(loc * (2.0 * x - 1.0), 1.0), obs=y)
        return x, None

    scan(step, jnp.zeros(y.shape[1], dtype or int), y)


def total(model, params):
    with precision():
        return jax.jit(lambda inputs: model.density.terms(inputs, params).total())(as_arrays(model.inputs))


def log_joint(fn, args, params, discrete):
    with precision():
        one = jax.jit(jax.vmap(lambda z: log_density(fn, args, {}, {**params, **z})[0]))
        return np.asarray(one(discrete))


def drawn(model, params, n=4000):
    return recovered(model, {k: np.repeat(np.asarray(v, float)[None], n, 0) for k, v in params.items()}, seed=0)


def all_values(**shapes):
    """All values of binary sites together, by site."""
    sizes = [int(np.prod(shape)) for shape in shapes.values()]
    table = np.array([*itertools.product([0, 1], repeat=sum(sizes))])
    parts = np.split(table, np.cumsum(sizes)[:-1], 1)
    return {k: x.reshape(-1, *shape) for x, (k, shape) in zip(parts, shapes.items(), strict=True)}


def assert_drawn_jointly(model, fn, args, params, **shapes):
    """log p sums over all combinations of values, and each is drawn as often as it is probable, to four standard errors."""
    table = all_values(**shapes)
    log_p = log_joint(fn, args, params, table)
    np.testing.assert_allclose(total(model, params), logsumexp(log_p), rtol=1e-6)
    p = np.exp(log_p - logsumexp(log_p))
    flat = lambda x: np.concatenate([x[k].reshape(len(x[k]), -1) for k in shapes], 1)
    found = drawn(model, params)
    powers = 2 ** np.arange(flat(table).shape[1])
    seen = np.bincount(flat(found) @ powers, minlength=len(p))[flat(table) @ powers] / len(flat(found))
    assert np.all(np.abs(seen - p) < 4 * np.sqrt(p * (1 - p) / len(flat(found))) + 2e-3)
    return found


@pytest.fixture(scope="module")
def zero_fit():
    return yo.fit(zero_inflated, np.ones(12), COUNTS, progress=False)


def test_sites_of_a_plate_are_summed_out_by_observation(zero_fit):
    model = zero_fit.model
    assert set(model.prior) == {"rate", "gate"} and not model.local
    params = {"rate": jnp.array(2.5), "gate": jnp.array(0.3)}
    with precision():
        each = jax.jit(model.log_marginal)(params, as_arrays(model.inputs).data)
        both = jnp.log(jnp.array([[0.7], [0.3]])) + dist.Poisson(jnp.array([[2.5], [1e-4]])).log_prob(COUNTS)
        np.testing.assert_allclose(each, logsumexp(both, 0), rtol=1e-6)


def test_the_fit_is_good_and_its_draws_have_the_discrete_sites(zero_fit):
    assert zero_fit.num_gradients > 0 and zero_fit.diagnose().grade == "good"
    draws = zero_fit.sample(2000)
    g, r = draws["gate"], draws["rate"]
    want = np.mean(g / (g + (1 - g) * np.exp(-r)))  # p(zero | y = 0)
    assert draws["zero"].dtype.kind == "i" and draws["zero"][:, COUNTS > 1].max() == 0
    np.testing.assert_allclose(draws["zero"][:, COUNTS == 0].mean(0), want, atol=0.05)
    # A deterministic site that depends on them goes with them.
    np.testing.assert_allclose(draws["mean"], np.where(draws["zero"] == 1, 1e-4, r[:, None]), rtol=1e-6)
    np.testing.assert_array_equal(zero_fit.sample(2000)["zero"], draws["zero"])


def test_predictions_loo_and_labelled_output_know_them(zero_fit):
    again = zero_fit.predict(n=500)["y"]
    assert (again[:, COUNTS > 0].mean(), again[:, COUNTS == 0].mean()) > (2.0, 0.0) and again.shape == (500, 12)
    new = zero_fit.predict({"x": np.full(3, 2.0)}, n=2000)["y"]  # observations with zeros of their own
    draws = zero_fit.sample(2000)
    none = draws["gate"] + (1 - draws["gate"]) * np.exp(-2 * draws["rate"])
    np.testing.assert_allclose((new == 0).mean(), none.mean(), atol=0.03)
    assert -30 < zero_fit.loo(500).elpd < -15
    tree = zero_fit.to_datatree(100)
    assert tree["posterior"]["zero"].dims == ("chain", "draw", "n") and tree["log_likelihood"]["y"].shape == (1, 100, 12)
    assert "zero[3]" in zero_fit.summary()


def test_a_saved_fit_has_them_with_and_without_its_model(zero_fit, tmp_path):
    zero_fit.save(tmp_path)
    alone, whole = yo.load(tmp_path), yo.load(tmp_path, model=from_numpyro(zero_inflated, np.ones(12), COUNTS))
    assert alone.sample(50)["zero"].shape == (50, 12)
    np.testing.assert_array_equal(whole.sample(50)["zero"], zero_fit.sample(50)["zero"])


def test_sites_of_nested_plates_are_drawn_jointly():
    y = np.array([[1.2, 0.4], [-2.0, 0.1]])
    model = from_numpyro(two_levels, y)
    assert model.labels.blocks == {"y_by_groups": (2,)}
    assert_drawn_jointly(model, two_levels, (y,), {"loc": 1.0, "v": 0.3}, z=(2, 1), odd=(2, 2))


def test_states_of_a_scan_are_drawn_jointly():
    y = np.array([[0.5, -0.3], [1.2, 0.8], [-0.4, 0.9]])
    model = from_numpyro(states, y)
    assert_drawn_jointly(model, states, (y,), {"stay": 0.8, "loc": 0.7}, x=(3, 2))


def test_a_loop_that_keeps_32_bits_runs_in_single_precision():
    y = np.array([[0.5, -0.3], [1.2, 0.8]])
    with pytest.warns(UserWarning, match="run in your own precision, float32"):
        model = from_numpyro(states, y, jnp.int32)
    same, params = from_numpyro(states, y), {"stay": jnp.array(0.8), "loc": jnp.array(0.7)}
    totals = total(model, params), total(same, params)
    np.testing.assert_allclose(*totals, rtol=1e-6)
    assert np.abs(np.subtract(*totals)) > 0  # the one is rounded to single precision
    assert drawn(model, {"stay": 0.8, "loc": 0.7}, 10)["x"].shape == (10, 2, 2)


def outside(y):
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    with numpyro.plate("n", 3):
        b = numpyro.sample("b", dist.Bernoulli(p))
    numpyro.sample("y", dist.Normal(jnp.sum(b), 1.0), obs=y)


def uncounted(y):
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    b = numpyro.sample("b", dist.DiscreteUniform(2, 4))
    numpyro.sample("y", dist.Normal(p * b, 1.0), obs=y)


def bare(y):
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    b = numpyro.sample("b", dist.Bernoulli(p).expand([3]))
    numpyro.sample("y", dist.Normal(jnp.sum(b), 1.0), obs=y)


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (outside, "'y', outside of its plate, depends on it"),
        (uncounted, r"values are not 0, 1, 2, .*1 \+ Categorical"),
        (bare, "is in no plate"),
    ],
)
def test_what_numpyro_would_sum_wrongly_is_fitted_by_values(fn, why):
    with pytest.warns(UserWarning, match=f"'b' of the NumPyro model cannot be summed out .*{why}"):
        model = from_numpyro(fn, np.float64(1.3))
    assert "b" in model.prior and model.recovered is None


def test_values_that_do_not_count_from_zero_are_refused_with_a_way_out():
    with pytest.warns(UserWarning, match="fitted by values alone"):
        model = from_numpyro(uncounted, np.float64(1.3))
    with pytest.raises(ValueError, match=r"no law for discrete site 'b' with support .* as in 1 \+ Categorical"):
        yo.fit(model)

    def counted(y):
        p = numpyro.sample("p", dist.Beta(1.0, 1.0))
        b = 2 + numpyro.sample("b", dist.Categorical(np.ones(3) / 3))
        numpyro.sample("y", dist.Normal(p * b, 1.0), obs=y)

    assert set(from_numpyro(counted, np.float64(1.3)).prior) == {"p"}  # what it says can be done


def test_infinitely_many_values_stay_and_others_are_summed_out():
    def both(y):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
        count = numpyro.sample("count", dist.Poisson(rate))
        sign = numpyro.sample("sign", dist.Bernoulli(0.3))
        numpyro.sample("y", dist.Normal(count * (2.0 * sign - 1.0), 1.0), obs=y)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = from_numpyro(both, np.float64(1.3))
    assert set(model.prior) == {"rate", "count"}
    params = {"rate": jnp.array(1.5), "count": jnp.array(2)}
    want = logsumexp(log_joint(both, (np.float64(1.3),), params, {"sign": np.array([0, 1])}))
    np.testing.assert_allclose(total(model, params), want, rtol=1e-6)


def test_parameters_without_a_prior_are_refused():
    def model_fn(y):
        scale = numpyro.param("scale", 2.0)
        numpyro.sample("y", dist.Normal(numpyro.sample("m", dist.Normal(0.0, 1.0)), scale), obs=y)

    with pytest.raises(ValueError, match=r"parameters without a prior, 'scale'.*handlers.substitute"):
        from_numpyro(model_fn, Y)
    assert set(from_numpyro(substitute(model_fn, {"scale": 1.5}), Y).prior) == {"m"}


def test_weights_of_a_module_are_refused_unless_they_have_priors():
    flax = pytest.importorskip("flax.linen")
    from numpyro.contrib.module import flax_module, random_flax_module

    def net(y, make):
        numpyro.sample("y", dist.Normal(make()(jnp.ones((6, 1)))[:, 0], numpyro.sample("s", dist.HalfNormal(1.0))), obs=y)

    with pytest.raises(ValueError, match=r"without a prior, 'net\$params'.*random_flax_module"):
        from_numpyro(net, Y, lambda: flax_module("net", flax.Dense(1), input_shape=(1,)))
    some = lambda prior: lambda: random_flax_module("net", flax.Dense(1), prior, input_shape=(1,))
    with pytest.raises(ValueError, match=r"without a prior, 'net\$params'"):
        from_numpyro(net, Y, some({"kernel": dist.Normal()}))
    assert set(from_numpyro(net, Y, some(dist.Normal())).prior) == {"net/kernel", "net/bias", "s"}


def test_what_a_scan_is_known_by_does_not_depend_on_the_order_of_a_set(monkeypatch):
    def known_by(slope):
        def walk(y):
            scale = numpyro.sample("scale", dist.HalfNormal(1.0))

            def step(x, y):
                x = numpyro.sample("x", dist.Normal(slope * x, scale))
                numpyro.sample("y", dist.StudentT(4.0, x, 0.5), obs=y)
                return x, None

            scan(step, 0.0 * scale, y)

        model = from_numpyro(walk, Y)
        with precision():
            return of_model(model)["likelihood"]

    fields = dist.Distribution.gather_pytree_data_fields.__func__
    seen = []
    for backwards in (False, True):  # NumPyro's own order is that of a set, another one in every process
        ordered = classmethod(lambda cls, b=backwards: tuple(sorted(fields(cls), reverse=b)))
        monkeypatch.setattr(dist.Distribution, "gather_pytree_data_fields", ordered)
        seen.append(known_by(0.5))
    assert seen[0] == seen[1] != known_by(0.6)
