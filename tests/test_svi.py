"""YOASOVI in the place of `numpyro.infer.SVI`."""

import inspect

import jax
import jax.example_libraries.optimizers as jax_optimizers
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax.flatten_util import ravel_pytree
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.infer import SVI, RenyiELBO, Trace_ELBO, TraceGraph_ELBO, TraceMeanField_ELBO
from numpyro.infer.autoguide import AutoDelta, AutoNormal
from numpyro.optim import _NumPyroOptim

from yoasovi.numpyro import YOASOVI
from yoasovi.numpyro.judging import selector
from yoasovi.numpyro.packing import packing

Y = jnp.array([2.1, 1.7, 2.9, 2.4, 1.9, 2.2])


def one_mean(y):
    mu = numpyro.sample("mu", dist.Normal(0, 10))
    with numpyro.plate("n", len(y)):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def evidence(y):
    cov = np.eye(len(y)) + 100.0
    return float(-0.5 * (y @ np.linalg.solve(cov, y) + np.linalg.slogdet(cov)[1] + len(y) * np.log(2 * np.pi)))


def fresh_loss(svi, params, *args, particles=4000):
    return float(Trace_ELBO(particles).loss(jax.random.key(99), params, svi.model, svi.guide, *args))


def run(optim, steps, model=one_mean, guide=None, loss=None, args=(Y,), **kwargs):
    svi = YOASOVI(model, guide or AutoNormal(model), optim, loss or Trace_ELBO())
    return svi, svi.run(jax.random.key(0), steps, *args, progress_bar=False, **kwargs)


# ---- the same shape -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["__init__", "init", "update", "stable_update", "evaluate", "get_params", "run"])
def test_signatures_are_svis_own(name):
    ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (YOASOVI, SVI))
    assert list(ours.parameters.values()) == list(theirs.parameters.values())


SCRIPT = """
import jax, jax.numpy as jnp, numpyro, numpyro.distributions as dist
from numpyro.infer import SVI, Predictive, Trace_ELBO
from numpyro.infer.autoguide import AutoMultivariateNormal

def model(x, y=None):
    w = numpyro.sample("w", dist.Normal(0, 3).expand([2]).to_event(1))
    s = numpyro.sample("s", dist.HalfNormal(2))
    with numpyro.plate("n", len(x)):
        numpyro.sample("y", dist.Normal(x @ w, s), obs=y)

x = jax.random.normal(jax.random.key(5), (30, 2))
y = x @ jnp.array([1.0, -2.0]) + 0.5
guide = AutoMultivariateNormal(model)
svi = SVI(model, guide, numpyro.optim.Adam(0.02), Trace_ELBO())
result = svi.run(jax.random.key(0), 100, x, y, progress_bar=False)
state, loss = svi.update(result.state, x, y)
results = (result, state, loss, svi.evaluate(state, x, y), svi.get_params(state))
draws = Predictive(model, guide=guide, params=result.params, num_samples=10)(jax.random.key(1), x)
"""


def described(tree):
    leaves, structure = jax.tree.flatten(tree)
    return structure, [(x.shape, x.dtype) for x in leaves]


def test_a_script_runs_with_only_the_import_changed():
    changed = SCRIPT.replace("import SVI, Predictive, Trace_ELBO", "import Predictive, Trace_ELBO")
    ours, theirs = {}, {}
    exec("from yoasovi.numpyro import YOASOVI as SVI\n" + changed, ours)
    exec(SCRIPT, theirs)
    a, b = ours["result"], theirs["result"]
    assert a._fields == b._fields and a.state._fields == b.state._fields
    for left, right in zip(ours["results"], theirs["results"], strict=True):
        assert described(left) == described(right)
    assert described(ours["draws"]) == described(theirs["draws"])


def test_the_progress_bar_changes_no_number(capsys):
    svi, quiet = run(numpyro.optim.Adam(0.05), 150)
    assert "avg. loss" not in capsys.readouterr().err
    shown = svi.run(jax.random.key(0), 150, Y, progress_bar=True)
    assert "avg. loss" in capsys.readouterr().err
    np.testing.assert_array_equal(quiet.losses, shown.losses)
    jax.tree.map(np.testing.assert_array_equal, quiet.params, shown.params)


# ---- what it does -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [1e-4, 0.3], ids=["far too short", "far too long"])
def test_the_learning_rate_hardly_matters_and_the_run_stops_by_itself(rate):
    svi, result = run(numpyro.optim.Adam(rate), 4000)
    assert len(result.losses) < 4000 and np.isfinite(result.losses).all()
    # The posterior is in the guide's family, so the best loss is minus the log evidence; Adam(1e-4) alone is 50 nats off.
    assert -evidence(np.asarray(Y)) - 0.01 < fresh_loss(svi, result.params, Y) < -evidence(np.asarray(Y)) + 0.1


def test_steps_that_explode_are_undone():
    begin = {"mu_auto_loc": jnp.array(2.0)}
    svi, result = run(optax.sgd(1e3), 200, init_params=begin)
    start = svi.get_params(svi.init(jax.random.key(0), Y, init_params=begin))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((result.params, result.state.optim_state)))
    assert fresh_loss(svi, result.params, Y) <= fresh_loss(svi, start, Y)


def test_a_run_can_be_continued():
    svi = YOASOVI(one_mean, AutoNormal(one_mean), numpyro.optim.Adam(0.02), Trace_ELBO())
    state = svi.init(jax.random.key(0), Y)
    state, _ = svi.update(state, Y)
    again = svi.run(jax.random.key(1), 300, Y, progress_bar=False, init_state=state)
    assert int(again.state.optim_state[0]) > 1
    assert fresh_loss(svi, again.params, Y) < fresh_loss(svi, svi.get_params(state), Y) - 5


def test_under_vmap_runs_have_their_full_length():
    svi = YOASOVI(one_mean, AutoNormal(one_mean), numpyro.optim.Adam(0.1), TraceMeanField_ELBO())
    found = jax.vmap(lambda key: svi.run(key, 90, Y, progress_bar=False))(jax.random.split(jax.random.key(0), 2))
    assert found.losses.shape == (2, 90) and np.isfinite(found.losses).all()
    assert found.params["mu_auto_loc"].shape == (2,)


def biased_coin(y):
    p = numpyro.sample("p", dist.Beta(1, 1))
    z = numpyro.sample("z", dist.Bernoulli(0.5))
    with numpyro.plate("n", len(y)):
        numpyro.sample("y", dist.Bernoulli(jnp.where(z == 1, p, 0.01)), obs=y)


def coin_guide(y):
    a = numpyro.param("a", 1.0, constraint=constraints.positive)
    b = numpyro.param("b", 1.0, constraint=constraints.positive)
    numpyro.sample("p", dist.Beta(a, b))
    numpyro.sample("z", dist.Bernoulli(numpyro.param("q", 0.5, constraint=constraints.unit_interval)))


def test_a_guide_of_ones_own_with_a_discrete_site():
    y = jnp.array([1.0] * 14 + [0.0] * 6)
    _, result = run(numpyro.optim.Adam(0.05), 1500, biased_coin, coin_guide, TraceGraph_ELBO(num_particles=4), (y,))
    a, b, q = (float(result.params[k]) for k in "abq")
    assert q > 0.95 and abs(a / (a + b) - 15 / 22) < 0.05  # Beta(15, 7), and surely not the coin that hardly falls on 1


def test_another_loss_in_forward_mode():
    loss = RenyiELBO(0.5, num_particles=4)
    svi, result = run(numpyro.optim.Adam(0.05), 400, loss=loss, forward_mode_differentiation=True)
    assert abs(fresh_loss(svi, result.params, Y) + evidence(np.asarray(Y))) < 0.3


def test_subsampled_plates_are_judged_on_common_batches():
    y = 3.0 + jax.random.normal(jax.random.key(3), (400,))

    def model(y, batch):
        mu = numpyro.sample("mu", dist.Normal(0, 10))
        with numpyro.plate("n", len(y), subsample_size=batch) as index:
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=y[index])

    _, result = run(numpyro.optim.Adam(0.1), 1500, model, AutoNormal(model), args=(y, 20))
    sd = (400 + 0.01) ** -0.5
    assert abs(float(result.params["mu_auto_loc"]) - float(y.sum() * sd**2)) < sd
    assert 0.6 < float(result.params["mu_auto_scale"]) / sd < 1.6


def test_a_scaled_loss_has_a_smaller_unit():
    scaled = handlers.scale(one_mean, scale=0.01)
    svi = YOASOVI(scaled, handlers.scale(AutoNormal(one_mean), scale=0.01), numpyro.optim.Adam(0.1), Trace_ELBO())
    state = svi.init(jax.random.key(0), Y)
    np.testing.assert_allclose(svi._unit(state, (Y,), {}), 0.01)


PLAIN = "Adam", "Adagrad", "ClippedAdam", "RMSProp", "RMSPropMomentum", "SGD"
OPTIMISERS = {
    **{k: getattr(numpyro.optim, k)(0.1) for k in PLAIN},
    "Momentum": numpyro.optim.Momentum(0.1, 0.9),
    "optax": numpyro.optim.optax_to_numpyro(optax.chain(optax.clip(1.0), optax.adamw(0.1))),
    "jax": _NumPyroOptim(lambda *args: args, *jax_optimizers.nesterov(0.1, 0.9)),
}


@pytest.mark.parametrize("optim", OPTIMISERS.values(), ids=OPTIMISERS)
def test_parameters_can_be_put_into_an_optimisers_state(optim):
    old, new = {"a": jnp.zeros(2), "b": jnp.ones(1)}, {"a": jnp.array([3.0, 4.0]), "b": jnp.array([5.0])}
    state = optim.update(jax.tree.map(jnp.ones_like, old), optim.init(old), value=1.0)
    changed = selector(optim, state)(state, new)
    jax.tree.map(np.testing.assert_array_equal, optim.get_params(changed), new)
    assert described(changed) == described(state) and int(changed[0]) == 1


@pytest.mark.parametrize("name", [*PLAIN, "Momentum"])
def test_packed_parameters_are_stepped_as_they_are_apart(name):
    optim, rng = OPTIMISERS[name], np.random.default_rng(0)
    params = {"a": jnp.asarray(rng.normal(size=(2, 3))), "b": jnp.asarray(rng.normal())}
    gradient = jax.tree.map(lambda x: 3.0 * x, params)
    apart = optim.update(gradient, optim.init(params), value=1.0)
    packed = packing(optim, apart)
    assert len(jax.tree.leaves(optim.get_params(packed.pack(apart)))) == 1
    long = optim.update(ravel_pytree(gradient)[0], packed.pack(apart), value=1.0)
    both = optim.update(gradient, apart, value=1.0), packed.unpack(long)
    assert jax.tree.structure(both[1]) == jax.tree.structure(apart)
    for x, y in zip(*map(jax.tree.leaves, both), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, packed.params(optim.get_params(packed.pack(apart))), optim.get_params(apart))


@pytest.mark.filterwarnings("error")
def test_a_guide_without_parameters_runs():
    def guide(y):
        numpyro.sample("mu", dist.Normal(2.0, 0.5))

    _, result = run(numpyro.optim.Adam(0.1), 10, guide=guide)
    assert result.params == {} and result.losses.shape == (10,) and np.isfinite(result.losses).all()


def test_what_cannot_be_judged_runs_as_svi_with_a_warning():
    with pytest.warns(UserWarning, match="cannot judge steps with this optimiser Minimize"):
        _, result = run(numpyro.optim.Minimize(), 1, guide=AutoDelta(one_mean))
    assert abs(float(result.params["mu_auto_loc"]) - float(Y.mean())) < 0.01


def test_a_loss_that_is_never_finite_is_reported():
    def nowhere():
        numpyro.factor("gone", jnp.nan * numpyro.sample("mu", dist.Normal(0, 1)))

    def guide():
        numpyro.sample("mu", dist.Normal(numpyro.param("centre", 0.0), 1.0))

    with pytest.warns(UserWarning, match="not finite for 500 steps"):
        _, result = run(numpyro.optim.Adam(0.1), 2000, nowhere, guide, args=(), stable_update=True)
    assert len(result.losses) < 2000 and np.isnan(result.losses).all()


def test_the_number_of_steps_must_be_positive():
    with pytest.raises(ValueError, match="`num_steps` of `run` must be a positive integer; got 0"):
        run(numpyro.optim.Adam(0.1), 0)
