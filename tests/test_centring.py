"""Non-centred forms of NumPyro and PyMC models: the same posterior, in the same parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.distributions import biject_to
from numpyro.infer.reparam import LocScaleReparam

import yoasovi as yo
from yoasovi.kernels.programs import as_arrays, precision
from yoasovi.model import noncentred, reparameterisations
from yoasovi.model.centring import may_be_centred
from yoasovi.model.minibatch import Anchor, Batch
from yoasovi.numpyro import from_numpyro
from yoasovi.start import places

pm = pytest.importorskip("pymc")

Y = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
SE = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


def schools(y, se):
    mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("school", len(y)):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, se), obs=y)
    numpyro.deterministic("largest", jnp.max(theta))


def pymc_schools(**options):
    with pm.Model(coords={"school": list("ABCDEFGH")}) as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        theta = pm.Normal("theta", mu, tau, dims="school", **options)
        pm.Normal("y", theta, SE, observed=Y, dims="school")
        pm.Deterministic("largest", pm.math.max(theta))
    return model


def events():
    tau = numpyro.sample("tau", dist.HalfNormal(2))
    where = numpyro.sample("where", dist.Normal(jnp.arange(3.0), 1).to_event(1))
    b = numpyro.sample("b", dist.Normal(where, tau).expand([2, 3]).to_event(2))
    numpyro.sample("y", dist.Normal(b, 1), obs=jnp.ones((2, 3)))


def pymc_events():
    with pm.Model() as model:
        tau = pm.HalfNormal("tau", 2)
        where = pm.Normal("where", np.arange(3.0), 1)
        b = pm.Normal("b", where, tau, shape=(2, 3))
        pm.Normal("y", b, 1, observed=np.ones((2, 3)))
    return model


def nested():
    top = numpyro.sample("top", dist.Normal(0, 3))
    wide = numpyro.sample("wide", dist.HalfNormal(2))
    with numpyro.plate("state", 2):
        state = numpyro.sample("state_mean", dist.StudentT(5, top, wide))
        narrow = numpyro.sample("narrow", dist.LogNormal(jnp.log(wide), 0.5))
    with numpyro.plate("county", 4):
        county = numpyro.sample("county_mean", dist.Normal(state[jnp.array([0, 0, 1, 1])], narrow[jnp.array([0, 0, 1, 1])]))
        numpyro.sample("y", dist.Normal(county, 1), obs=jnp.arange(4.0))


def pymc_nested():
    with pm.Model() as model:
        top, wide = pm.Normal("top", 0, 3), pm.HalfNormal("wide", 2)
        state = pm.StudentT("state_mean", nu=5, mu=top, sigma=wide, shape=2)
        narrow = pm.LogNormal("narrow", pm.math.log(wide), 0.5, shape=2)
        county = pm.Normal("county_mean", state[[0, 0, 1, 1]], narrow[[0, 0, 1, 1]], shape=4)
        pm.Normal("y", county, 1, observed=np.arange(4.0))
    return model


PLACES = np.linspace(0, 1, 4)
SQUARES = (PLACES[:, None] - PLACES) ** 2


def process():
    scale, length = numpyro.sample("scale", dist.HalfNormal(1)), numpyro.sample("length", dist.LogNormal(0, 1))
    kernel = scale**2 * jnp.exp(-0.5 * SQUARES / length**2) + 1e-4 * jnp.eye(4)
    f = numpyro.sample("f", dist.MultivariateNormal(jnp.zeros(4), covariance_matrix=kernel))
    numpyro.sample("y", dist.Normal(f, 0.5), obs=jnp.ones(4))


def pymc_process():
    with pm.Model() as model:
        scale, length = pm.HalfNormal("scale", 1), pm.LogNormal("length", 0, 1)
        kernel = scale**2 * pm.math.exp(-0.5 * SQUARES / length**2) + 1e-4 * np.eye(4)
        f = pm.MvNormal("f", np.zeros(4), kernel)
        pm.Normal("y", f, 0.5, observed=np.ones(4))
    return model


def families():
    loc, scale = numpyro.sample("loc", dist.Normal(0, 1)), numpyro.sample("scale", dist.HalfNormal(1))
    for law in (dist.Cauchy, dist.Laplace, dist.Logistic, dist.Gumbel):
        numpyro.sample(law.__name__, law(loc, scale))


def pymc_families():
    with pm.Model() as model:
        loc, scale = pm.Normal("loc", 0, 1), pm.HalfNormal("scale", 1)
        for law in (pm.Cauchy, pm.Laplace, pm.Logistic, pm.Gumbel):
            law(law.__name__, loc, scale)
    return model


TWINS = {
    "plate": (lambda: from_numpyro(schools, Y, se=SE), pymc_schools, ("theta",)),
    "events": (lambda: from_numpyro(events), pymc_events, ("b",)),
    "nested": (lambda: from_numpyro(nested), pymc_nested, ("state_mean", "narrow", "county_mean")),
    "joint": (lambda: from_numpyro(process), pymc_process, ("f",)),
    "families": (lambda: from_numpyro(families), pymc_families, ("Cauchy", "Laplace", "Logistic", "Gumbel")),
}


def log_p(model, flat):
    return float(jax.jit(lambda inputs, x: model.density.free_terms(inputs, x).total())(as_arrays(model.inputs), flat))


def outward(model, flat):
    """From the coordinates of a model to the unconstrained scale of its sites' own supports."""
    params = model.density.constrain(model.inputs, flat)[0]
    return jnp.concatenate([jnp.ravel(biject_to(model.prior[k].support).inv(v)) for k, v in params.items()])


@pytest.mark.parametrize("centred", [0.0, 0.5])
@pytest.mark.parametrize("name", TWINS)
def test_both_forms_have_the_same_density_but_for_the_jacobian(name, centred):
    make, twin, names = TWINS[name]
    model, again = make(), yo.from_pymc(twin())
    other, other_again = noncentred(model, centred=centred), noncentred(again, centred=centred)
    assert set(other.centred) == set(other_again.centred) == set(names)
    with precision():
        z = 0.7 * jax.random.normal(jax.random.key(1), (model.density.dim,))
        place = jax.jit(lambda x: outward(other, x))
        x, slopes = place(z), jax.jit(jax.jacfwd(place))(z)
        assert not np.allclose(x, z)
        np.testing.assert_allclose(log_p(other, z), log_p(model, x) + np.linalg.slogdet(slopes)[1], rtol=1e-9)
        np.testing.assert_allclose(log_p(other_again, z), log_p(other, z), rtol=1e-6)  # PyMC's float32 constants
        inward = jax.jit(lambda x: other.density.inward(other.inputs, model.density.split(x)))
        np.testing.assert_allclose(inward(x), z, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("centred", [0.0, 0.3])
def test_the_form_is_numpyros_own(centred):
    mine, twin = (noncentred(x, centred=centred) for x in (from_numpyro(schools, Y, se=SE), yo.from_pymc(pymc_schools())))
    theirs = from_numpyro(handlers.reparam(schools, config={"theta": LocScaleReparam(centred)}), Y, se=SE)
    assert [s.name for s in theirs.density.sites] == ["mu", "tau", "theta_decentered"]
    with precision():
        for log_tau in (0.5, -80.0):  # there theta is mu, to the last digit
            z = jax.random.normal(jax.random.key(0), (10,)).at[1].set(log_tau)
            np.testing.assert_allclose(log_p(mine, z), log_p(theirs, z), rtol=1e-9)
            np.testing.assert_allclose(log_p(twin, z), log_p(theirs, z), rtol=1e-6)


def walk():
    scale = numpyro.sample("scale", dist.HalfNormal(1))

    def step(x, _):
        x = numpyro.sample("x", dist.Normal(x, scale))
        return x, x

    scan(step, 0.0, jnp.arange(3))


def masked():
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    x = numpyro.sample("x", dist.Normal(jnp.zeros(2), scale).mask(jnp.array([True, False])))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=jnp.ones(2))


def fixed():
    a, b = numpyro.sample("a", dist.Normal(0, 1)), numpyro.sample("b", dist.Normal(1, 2).expand([2]))
    numpyro.sample("y", dist.Normal(a + b, 1), obs=jnp.ones(2))


def switched():
    z, scale = numpyro.sample("z", dist.Bernoulli(0.3)), numpyro.sample("scale", dist.HalfNormal(1))
    numpyro.sample("x", dist.Normal(z, scale))


def scaled():
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    with handlers.scale(scale=2.0):
        numpyro.sample("x", dist.Normal(0, scale))


@pytest.mark.parametrize("fn", [walk, masked, fixed, switched, scaled])
def test_nothing_to_non_centre(fn):
    model = from_numpyro(fn)
    assert noncentred(model) is None and reparameterisations(model) == []


def test_nothing_to_non_centre_in_pymc():
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("a"), 1, observed=[1.0])
    assert noncentred(yo.from_pymc(model)) is None


def test_a_non_centred_form_is_advised_only_where_there_may_be_one():
    centred = from_numpyro(schools, Y, SE)
    assert may_be_centred(centred, ("tau", "theta[3]")) and not may_be_centred(centred, ("mu", "tau"))
    assert not may_be_centred(noncentred(centred), ("tau", "theta[3]"))
    assert may_be_centred(yo.models.HierarchicalNormal(Y, sd=SE, centered=True), ("tau", "theta[3]"))
    for pair in (("tau", "offset[3]"), None):
        assert not may_be_centred(yo.models.HierarchicalNormal(Y, sd=SE), pair)


@pytest.fixture(scope="module")
def fits():
    made = {}
    for door, model in (("numpyro", from_numpyro(schools, Y, se=SE)), ("pymc", yo.from_pymc(pymc_schools()))):
        made[door] = yo.fit(model, mend=False), yo.fit(noncentred(model))
    return made


def exact_schools():
    """Means and standard deviations of tau and theta[0], by quadrature over tau; mu and theta are normal given it."""
    tau = np.exp(np.linspace(-12, 7, 4000))
    v = SE**2 + tau[:, None] ** 2
    precision_ = 1 / 25 + np.sum(1 / v, 1)
    mean = np.sum(Y / v, 1) / precision_
    log = -0.5 * (np.sum(np.log(v) + Y**2 / v, 1) + np.log(precision_) - mean**2 * precision_)
    weight = np.exp(log - log.max()) / (1 + (tau / 5) ** 2) * tau  # HalfCauchy, and the grid's own spacing
    weight /= weight.sum()
    shrink = tau**2 / v[:, 0]
    centre, spread = shrink * Y[0] + (1 - shrink) * mean, tau**2 * (1 - shrink) + (1 - shrink) ** 2 / precision_
    first = weight @ centre
    return {
        "tau": (weight @ tau, np.sqrt(weight @ tau**2 - (weight @ tau) ** 2)),
        "theta": (first, np.sqrt(weight @ (spread + centre**2) - first**2)),
    }


@pytest.mark.parametrize("door", ["numpyro", "pymc"])
def test_eight_schools_are_exact_after_non_centring(fits, door):
    centred, other = fits[door]
    gain = other.elbo.value - centred.elbo.value
    assert gain > 0.5 + 3 * np.hypot(other.elbo.se, centred.elbo.se)
    draws = other.sample(8000)
    for name, (mean, sd) in exact_schools().items():
        found = draws[name] if name == "tau" else draws[name][:, 0]
        assert abs(found.mean() - mean) < 0.12 * sd and abs(np.log(found.std() / sd)) < 0.12


@pytest.mark.parametrize("door", ["numpyro", "pymc"])
def test_answers_are_in_the_models_own_parameters(fits, door):
    centred, other = fits[door]
    draws, before = other.sample(300), centred.sample(300)
    assert {k: v.shape for k, v in draws.items()} == {k: v.shape for k, v in before.items()} and list(draws) == list(before)
    np.testing.assert_allclose(draws["largest"], draws["theta"].max(1), rtol=1e-6)
    assert other.model.names("theta", (8,))[7] in other.summary(verdict=False)
    assert other.predict(n=20)["y"].shape == (20, 8)
    assert abs(other.loo(500).elpd - centred.loo(500).elpd) < 1.0
    sizes = [{k: dict(group.sizes) for k, group in fit.to_datatree(50).children.items()} for fit in (other, centred)]
    assert sizes[0] == sizes[1] and "log_likelihood" in sizes[0]
    at = {k: draws[k][:3] for k in ("mu", "tau", "theta")}
    terms = other.kernels.each(other.model.log_marginal, at)
    np.testing.assert_allclose(terms, dist.Normal(at["theta"], SE).log_prob(Y), rtol=1e-5)


@pytest.mark.parametrize("door", ["numpyro", "pymc"])
def test_a_saved_fit_finds_its_form_again(fits, door, tmp_path):
    centred, other = fits[door]
    other.save(tmp_path / "a")
    bare = yo.load(tmp_path / "a")
    np.testing.assert_array_equal(bare.sample(4000)["theta"], other.sample(4000)["theta"])
    bare.save(tmp_path / "b")  # without the model
    for folder in ("a", "b"):
        whole = yo.load(tmp_path / folder, model=centred.model)
        assert whole.model.centred == {"theta": 0.0}
        np.testing.assert_allclose(whole.sample(50)["theta"], other.sample(50)["theta"], rtol=1e-6)
    centred.save(tmp_path / "c")
    assert yo.load(tmp_path / "c", model=other.model).model.centred == {}
    with pytest.raises(ValueError, match="not the one of the fit"):
        yo.load(tmp_path / "a", model=from_numpyro(fixed))


def test_a_run_cannot_go_on_in_another_form(tmp_path):
    model = from_numpyro(schools, Y, se=SE)
    yo.fit(model, checkpoint=tmp_path, max_steps=100)
    with pytest.raises(ValueError, match="non-centred sites"):
        yo.fit(noncentred(model), checkpoint=tmp_path, resume=True)


def test_a_fit_begins_where_pymc_says():
    model = yo.from_pymc(pymc_schools(initval=np.arange(8.0) + 40))
    begins = [places(x, 3, 1)[0][0] for x in (model, noncentred(model), noncentred(model, centred=0.5))]
    with precision():
        for form, flat in zip((noncentred(model), noncentred(model, centred=0.5)), begins[1:], strict=True):
            np.testing.assert_allclose(outward(form, flat), begins[0], rtol=1e-6)


def test_minibatches_see_the_same_sites():
    group = np.repeat(np.arange(4), 10)

    def grouped(y):
        tau = numpyro.sample("tau", dist.HalfNormal(1))
        a = numpyro.sample("a", dist.Normal(0, tau).expand([4]))
        with numpyro.plate("rows", 40, subsample_size=10) as rows:
            numpyro.sample("y", dist.Normal(a[jnp.asarray(group)[rows]], 1), obs=jnp.asarray(y)[rows])

    model = noncentred(from_numpyro(grouped, np.linspace(-1, 1, 40)))
    density = model.density._replace(subsampled=model.subsampled)
    with precision():
        inputs, z = as_arrays(model.inputs), jnp.array([0.3, -1.0, 0.0, 1.0, 2.0])
        whole, slope = jax.jit(jax.value_and_grad(lambda x: density.whole_likelihood(inputs, x)))(jnp.zeros(5))
        anchor = Anchor(jnp.zeros(5), whole, slope)
        one = lambda key: density.free_terms(inputs, z, Batch(key, anchor)).total()
        found = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), 1000)))
        assert found.std() > 0
        assert abs(found.mean() - log_p(model, z)) < 4 * found.std() / np.sqrt(1000)


def test_draws_come_in_the_order_of_the_sites():
    def funnel():
        v = numpyro.sample("v", dist.Normal(0, 3))
        numpyro.sample("a", dist.Normal(0, jnp.exp(v / 2)))

    for model in (from_numpyro(funnel), noncentred(from_numpyro(funnel))):
        assert list(yo.fit(model, max_steps=50).sample(5)) == ["v", "a"]


def test_forms_are_listed_with_the_funnels_site_first():
    model = from_numpyro(nested)
    found = reparameterisations(model, ("wide", "county_mean[2]"))
    assert [text for text, _ in found] == [
        "county_mean non-centred",
        "state_mean, narrow, county_mean non-centred",
        "state_mean, narrow, county_mean halfway centred",
    ]
    assert found[0][1].centred == {"county_mean": 0.0}
    assert reparameterisations(model, ("wide", "county_mean[2]"))[0][1] is found[0][1]  # so that nothing is compiled again
    assert [text for text, _ in reparameterisations(found[1][1])] == ["state_mean, narrow, county_mean halfway centred"]
    assert [text for text, _ in reparameterisations(from_numpyro(process))] == ["f non-centred"]
    names = found[0][1].free_names  # q's numbers, not the site's
    assert names[-1] == "county_mean[3] (non-centred)" and "wide" in names
    again = reparameterisations(noncentred(model, centred=0.25), ("wide", "county_mean[2] (0.25 centred)"))
    assert again[0][0] == "county_mean non-centred"


def test_wrong_arguments_are_refused_by_name():
    model = from_numpyro(schools, Y, se=SE)
    with pytest.raises(ValueError, match="`sites` of `noncentred` must be among those that can be non-centred \\(theta\\)"):
        noncentred(model, ["tau"])
    with pytest.raises(ValueError, match="`centred` of `noncentred`"):
        noncentred(model, centred=1.0)
    with pytest.raises(ValueError, match="`model` of `noncentred`"):
        noncentred(schools)
    with pytest.raises(ValueError, match="`family` of `fit` must be a Gaussian for a non-centred model"):
        yo.fit(noncentred(model), family=yo.Factorised())
