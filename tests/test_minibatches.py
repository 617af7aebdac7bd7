"""Minibatches: plates of a NumPyro model that take a subsample, and rows of the data by `batch_size`."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import yoasovi as yo
from conftest import Conjugate
from yoasovi.climb import climb_by_part
from yoasovi.files.checkpoint import Store
from yoasovi.kernels.looks import JaxKernels
from yoasovi.kernels.programs import as_arrays, precision
from yoasovi.model.minibatch import Anchor, Batch, in_batches as by_rows, random_rows, small_part
from yoasovi.numpyro import from_numpyro

known = Conjugate(n=3000, d=3)


def regression(X, y, batch=None, by_index=True):
    w = numpyro.sample("w", dist.Normal(jnp.zeros(X.shape[1]), 1.0).to_event(1))
    with numpyro.plate("rows", len(y), subsample_size=batch) as index:
        if by_index:
            X, y = X[index], y[index]
        else:
            X, y = numpyro.subsample(X, event_dim=1), numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Normal(X @ w, 1.0), obs=y)


@pytest.fixture(scope="module")
def model():
    return from_numpyro(regression, known.X, known.y, batch=50)


def in_batches(model):
    """As the loop sees it."""
    inputs = jax.tree.map(jnp.asarray, as_arrays(model.inputs))
    return model.density._replace(subsampled=model.subsampled), inputs


def anchored(density, inputs, flat):
    return Anchor(flat, *jax.jit(jax.value_and_grad(lambda x: density.whole_likelihood(inputs, x)))(flat))


@pytest.mark.parametrize("by_index", [True, False], ids=["by index", "by numpyro.subsample"])
def test_the_density_of_minibatches_is_on_average_that_of_all_the_data(by_index):
    # 7 rows in batches of 3: stretches of the plate are not equally long. False alarms: 4 z-values, 1 in 8,000.
    model = from_numpyro(regression, known.X[:7], known.y[:7], batch=3, by_index=by_index)
    with precision():
        density, inputs = in_batches(model)
        anchor, flat = anchored(density, inputs, jnp.full(3, 0.2)), jnp.array([0.5, -1.0, 2.0])

        @jax.jit
        def look(key):
            log_p = lambda x, anchor: density.free_terms(inputs, x, Batch(key, anchor)).total()
            return log_p(flat, None), log_p(flat, anchor), jax.grad(log_p)(flat, anchor)[0]

        whole = jax.jit(jax.value_and_grad(lambda x: model.density.free_terms(inputs, x).total()))(flat)
        found = jax.vmap(look)(jax.random.split(jax.random.key(0), 20_000))
    for draws, truth in zip(found, (whole[0], whole[0], whole[1][0]), strict=True):
        assert draws.std() > 0
        assert abs(draws.mean() - truth) < 4 * draws.std() / np.sqrt(len(draws))


def test_the_anchor_takes_most_of_the_noise_off(model):
    with precision():
        density, inputs = in_batches(model)
        anchor = anchored(density, inputs, jnp.asarray(known.mean))
        near = jnp.asarray(known.mean + np.linalg.cholesky(known.covariance) @ np.ones(3))
        look = lambda key, anchor: density.free_terms(inputs, near, Batch(key, anchor)).total()
        keys = jax.random.split(jax.random.key(0), 500)
        plain, taken_off = (jax.jit(jax.vmap(lambda k, a=a: look(k, a)))(keys).std() for a in (None, anchor))
    assert taken_off < 1 < 50 * taken_off < plain


def test_a_mirrored_pair_shares_its_minibatch_and_both_sides_of_a_judgement_do(model, monkeypatch):
    looked, compared = [], []

    def look(self, points, rows):
        if rows is not None:
            looked.append((points, rows.keys))
        return plain_look(self, points, rows)

    def compare(self, new, old, rows):
        compared.append(rows)
        return plain_compare(self, new, old, rows)

    plain_look, plain_compare = JaxKernels.look, JaxKernels.compare
    monkeypatch.setattr(JaxKernels, "look", look)
    monkeypatch.setattr(JaxKernels, "compare", compare)
    yo.fit(model, seed=0, max_steps=40)
    points, keys = looked[0]
    pairs = keys.reshape(-1, 2, 2)
    assert (pairs[:, 0] == pairs[:, 1]).all() and len(np.unique(pairs[:, 0], axis=0)) == len(pairs)
    middle = points.reshape(-1, 2, 3).mean(1)
    np.testing.assert_allclose(middle, np.broadcast_to(middle[0], middle.shape), atol=1e-9)
    assert any(rows is not None for rows in compared) and any(rows is None for rows in compared)  # windows; start and ELBO


def test_a_fit_by_minibatches_lands_on_the_posterior_and_reports_all_the_data(model):
    fit = yo.fit(model, seed=0)
    sd = np.sqrt(np.diag(known.covariance))
    factor = np.asarray(fit.family.factor(fit.params))
    assert fit.converged
    assert np.all(np.abs(fit.params.mean - known.mean) < 0.1 * sd)
    np.testing.assert_allclose(np.sqrt(np.diag(factor @ factor.T)), sd, rtol=0.1)
    assert abs(fit.elbo.value - known.elbo(fit.params.mean, factor)) < 5 * fit.elbo.se + 1e-6
    assert known.evidence - fit.elbo.value < 0.1
    assert fit.log_ratio.std() < 1  # a minibatch's would be tens of nats
    assert fit.num_gradients + fit.num_values < 3000


class Crash(Exception):
    pass


def test_the_bits_do_not_depend_on_a_crash_and_another_batch_size_is_refused(model, tmp_path, monkeypatch):
    whole, written = yo.fit(model, seed=1), []

    def write(store, *args):
        if len(written) == 1:
            raise Crash
        written.append(original(store, *args))

    original = Store.write
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(Store, "write", write)
        yo.fit(model, seed=1, checkpoint=yo.Checkpoint(tmp_path, steps=1))
    with pytest.raises(ValueError, match="likelihood differs"):
        yo.fit(from_numpyro(regression, known.X, known.y, batch=60), seed=1, checkpoint=tmp_path, resume=True)
    resumed = yo.fit(model, seed=1, checkpoint=tmp_path, resume=True)
    assert jax.tree.all(jax.tree.map(np.array_equal, whole.params, resumed.params))
    assert (whole.num_gradients, whole.num_values) == (resumed.num_gradients, resumed.num_values)


@pytest.mark.parametrize("method", ["advi", "yoasovi-step", "bbvi-rb"])
def test_methods_that_judge_single_steps_take_minibatches_too(model, method):
    fit = yo.fit(model, method, seed=0, max_steps=300)
    assert fit.num_steps == 300
    assert np.isfinite(fit.elbo.value)


def hidden(y, batch=None, by_index=True):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("rows", len(y), subsample_size=batch) as index:
        part = y[index] if by_index else numpyro.subsample(y, event_dim=0)
        z = numpyro.sample("z", dist.Normal(mu, 1.0))
        numpyro.sample("y", dist.Normal(z, 1.0), obs=part)


def labelled(y, batch=None):
    z = numpyro.sample("z", dist.Bernoulli(0.5))
    with numpyro.plate("rows", len(y), subsample_size=batch):
        numpyro.sample("y", dist.Normal(z, 1.0), obs=numpyro.subsample(y, event_dim=0))


def mixed(y, batch=None):
    with numpyro.plate("rows", len(y), subsample_size=batch):
        part = numpyro.subsample(y, event_dim=0)
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        z = numpyro.sample("z", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(x + 3.0 * z, 1.0), obs=part)


def by_groups(y, group, batch=None):
    mu, tau = numpyro.sample("mu", dist.Normal(0.0, 5.0)), numpyro.sample("tau", dist.HalfNormal(2.0))
    with numpyro.plate("groups", 40):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
    with numpyro.plate("rows", len(y), subsample_size=batch):
        part, which = numpyro.subsample(y, event_dim=0), numpyro.subsample(group, event_dim=0)
        numpyro.sample("y", dist.Normal(theta[which], 1.0), obs=part)


def test_rows_in_minibatches_go_with_a_family_of_groups():
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(40), 50)
    y = rng.normal(rng.normal(2.0, 1.0, 40)[group], 1.0)
    model, whole = from_numpyro(by_groups, y, group, batch=200), from_numpyro(by_groups, y, group)
    assert model.subsampled is not None
    fits = [yo.fit(m, seed=0, mend=False) for m in (model, whole)]
    assert [fit.family.name for fit in fits] == ["arrow", "arrow"] and fits[0].converged
    (a, b), (sd, _) = [fit.mean() for fit in fits], [fit.sd() for fit in fits]
    assert all(np.abs(a[k] - b[k]).max() < 0.3 * np.min(sd[k]) for k in b)


@pytest.mark.parametrize("by_index", [True, False], ids=["by index", "by numpyro.subsample"])
def test_a_plate_with_latent_sites_inside_has_minibatches_of_groups_if_there_are_many(by_index):
    y = jnp.arange(6.0)
    model = from_numpyro(hidden, y, batch=2, by_index=by_index)
    whole = from_numpyro(hidden, y, by_index=by_index)
    assert model.subsampled is None and model.batch_groups == 2
    if by_index:
        with pytest.warns(UserWarning, match="in full: latent sites are inside, and q is full_rank"):
            yo.fit(model, max_steps=20, mend=False)
    assert model.num_observations == whole.num_observations
    with precision():
        flat, inputs = jnp.linspace(-1.0, 1.0, 7), as_arrays(model.inputs)
        terms = [m.density.free_terms(inputs, flat).total() for m in (model, whole)]
    np.testing.assert_allclose(*terms, rtol=1e-9)


def test_discrete_sites_and_factorised_families_are_evaluated_in_full_with_a_warning(model):
    with pytest.warns(UserWarning, match="since latent site 'z' is discrete"):
        assert from_numpyro(labelled, jnp.arange(6.0), batch=2).subsampled is None
    with pytest.warns(UserWarning, match="since latent site 'z' is discrete"):  # whatever stands before it
        assert from_numpyro(mixed, jnp.arange(6.0), batch=2).batch_groups is None
    with pytest.warns(UserWarning, match="evaluated in full: minibatches are for Gaussian families"):
        assert yo.fit(model, family=yo.Factorised(), seed=0, max_steps=50).num_gradients == 0


# ---- rows of the data, by `batch_size` ---------------------------------------------------------------------


def linear(log_likelihood=lambda p, d: dist.Normal(d["X"] @ p["w"], 1.0).log_prob(d["y"]), n=3000, **more):
    prior = {"w": dist.Normal(jnp.zeros(3), 1.0).to_event(1)}
    return yo.Model(prior=prior, log_likelihood=log_likelihood, data={"X": known.X[:n], "y": known.y[:n], **more})


def test_every_row_is_as_likely_as_any_other():
    # 10 rows in batches of 4: expected 8,000 each of 20,000 batches. False alarms: 10 z-values, 1 in 3,000.
    rows = jax.vmap(lambda k: random_rows(k, 10, 4))(jax.random.split(jax.random.key(0), 20_000))
    assert all(len(np.unique(x)) == 4 for x in np.asarray(rows[:500]))
    counts = np.bincount(np.asarray(rows).ravel(), minlength=10)
    assert np.all(np.abs(counts - 8000) < 4 * np.sqrt(20_000 * 0.4 * 0.6))
    again = jax.vmap(lambda k: random_rows(k, 10, 4, salt=1))(jax.random.split(jax.random.key(0), 500))
    assert not np.array_equal(np.sort(rows[:500], 1), np.sort(again, 1))  # plates of different names differ


def test_batch_size_fits_a_model_by_rows_of_its_data(tmp_path, monkeypatch):
    looked, plain = [], JaxKernels.look
    monkeypatch.setattr(JaxKernels, "look", lambda self, x, rows: looked.append(rows) or plain(self, x, rows))
    fit = yo.fit(model := linear(), batch_size=50, seed=0)
    sd, factor = np.sqrt(np.diag(known.covariance)), np.asarray(fit.family.factor(fit.params))
    assert fit.converged and sum(rows is not None for rows in looked) > 1
    assert np.all(np.abs(fit.params.mean - known.mean) < 0.1 * sd)
    np.testing.assert_allclose(np.sqrt(np.diag(factor @ factor.T)), sd, rtol=0.1)
    assert abs(fit.elbo.value - known.elbo(fit.params.mean, factor)) < 5 * fit.elbo.se + 1e-6
    assert fit.asked["batch_size"] == "50" and fit.model.subsampled is None
    fit.save(tmp_path / "saved")
    assert yo.load(tmp_path / "saved", model=model).elbo == fit.elbo


def test_a_batch_of_all_rows_is_no_minibatch_and_other_arrays_stay_whole():
    likelihood = lambda p, d: dist.Normal(d["X"] @ (p["w"] * d["unit"]), 1.0).log_prob(d["y"])
    model = by_rows(linear(likelihood, unit=np.ones(3)), 20)
    assert by_rows(linear(), 3000).subsampled is None
    assert model.subsampled(jax.random.key(0), {"w": jnp.zeros(3)}, model.data).shape == (20,)
    assert model.batch_density.width == 60 < model.density.width


WHOLE = {
    "means over rows": lambda p, d: dist.Normal((d["X"] - d["X"].mean(0)) @ p["w"], 1.0).log_prob(d["y"]),
    "rows before": lambda p, d: dist.Normal(jnp.cumsum(d["X"] @ p["w"]), 1.0).log_prob(d["y"]),
    "all rows at hand": lambda p, d: dist.Normal(known.X @ p["w"], 1.0).log_prob(d["y"]),
    "more values than rows": lambda p, d: jnp.tile(d["X"] @ p["w"], 2),
}


@pytest.mark.parametrize("likelihood", WHOLE.values(), ids=WHOLE)
def test_a_likelihood_that_takes_more_than_its_row_is_refused(likelihood):
    with pytest.raises(ValueError, match="must be None for this model: its likelihood is not one value per row"):
        yo.fit(linear(likelihood), batch_size=50)


@pytest.mark.parametrize("size, said", [
    (5000, "`batch_size` of `fit` must be at most the number of observations, 3,000; got 5,000."),
    (0, "`batch_size` of `fit` must be a positive integer; got 0."),
])  # fmt: skip
def test_a_batch_that_cannot_be_is_refused(size, said):
    with pytest.raises(ValueError) as error:
        yo.fit(linear(), batch_size=size)
    assert str(error.value) == said


def lengthy(y, n):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("rows", n):
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def test_models_without_rows_or_with_batches_of_their_own_are_refused(model):
    with pytest.raises(ValueError, match="it takes minibatches of its own"):
        yo.fit(model, batch_size=10)
    with pytest.raises(ValueError, match="not one value per row"):
        yo.fit(yo.Model.external(lambda x: -0.5 * float(x @ x), 2), batch_size=1)
    with pytest.raises(ValueError, match="latent variable per observation"):
        yo.fit(yo.models.GaussianMixture(np.arange(20.0), num_components=2), batch_size=5)
    with pytest.raises(ValueError, match=r"numpyro.plate\(..., subsample_size=\)"):
        yo.fit(lengthy, known.y, 3000, batch_size=10)  # its plate stays as long as the data were
    assert by_rows(from_numpyro(regression, known.X, known.y), 10).subsampled is not None


def test_a_climb_by_a_part_of_the_rows_ends_at_the_top_of_all_of_them_after_a_few_looks():
    rng = np.random.default_rng(0)
    curvature = np.diag([1.0, 30.0, 1000.0])
    whole_top, part_top = np.array([1.0, -2.0, 0.5]), np.array([1.3, -1.9, 0.52])
    wrong = curvature @ (np.eye(3) + 0.1 * np.diag(rng.normal(size=3)))
    looked = []

    def parabola(top, bend, seen=None):
        def look(x):
            if seen is not None:
                seen.append(len(x))
            away = x - top
            return -0.5 * np.einsum("ni,ij,nj->n", away, bend, away), -away @ bend

        return look

    found = climb_by_part(parabola(part_top, wrong), parabola(whole_top, curvature, looked), np.zeros((1, 3)), 100, 60.0)
    assert -0.05 < found.height[0] <= 0
    assert found.gradients[0] == sum(looked) <= 4


def test_a_small_part_is_a_small_share_of_the_rows_scaled_to_all_of_them():
    part = small_part(by_rows(linear(), 5))
    assert part is None  # 200 rows per parameter would be a fifth of them
    likelihood = lambda p, y: -jnp.ones_like(y) * p["m"]
    big = yo.Model(prior={"m": dist.Normal(0.0, 1.0)}, log_likelihood=likelihood, data=np.ones(8000))
    part = small_part(by_rows(big, 10))
    assert part.num_observations == 200 and part.subsampled is None
    assert float(jnp.sum(part.log_likelihood({"m": 1.0}, part.data))) == pytest.approx(-8000.0)
