"""The NumPyro door against NumPyro itself."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.contrib.control_flow import scan
from numpyro.distributions import biject_to, constraints
from numpyro.infer.reparam import CircularReparam, LocScaleReparam, TransformReparam
from numpyro.infer.util import log_density, potential_energy

import yoasovi as yo
from yoasovi.kernels.programs import as_arrays, num_programs, precision
from yoasovi.numpyro import from_numpyro

Y = np.array([1.0, 2.0, 4.0])


def points(model, count=2):
    return [jax.random.normal(jax.random.key(k), (model.density.dim,)) for k in range(count)]


def log_p(model, flats):
    """At unconstrained points; compiled, as in a fit."""
    one = jax.jit(lambda inputs, flat: model.density.free_terms(inputs, flat).total())
    return [float(one(as_arrays(model.inputs), flat)) for flat in flats]


def log_p_at(model, params):
    """At constrained points, labels included."""
    return jax.jit(lambda inputs, params: model.density.terms(inputs, params).total())(as_arrays(model.inputs), params)


def assert_same_density_as_numpyro(model_fn, *args, **kwargs):
    """At unconstrained points, to 1e-5."""
    model = from_numpyro(model_fn, *args, **kwargs)
    moving = model.log_likelihood.replay.moving
    with precision():
        potential, flats = jax.jit(lambda z: potential_energy(model_fn, args, kwargs, z)), points(model)
        theirs = {v: k for k, v in moving.items()}
        zs = [{theirs.get(k, k): x for k, x in model.density.split(flat).items()} for flat in flats]
        np.testing.assert_allclose(log_p(model, flats), [-float(potential(z)) for z in zs], rtol=1e-5, atol=1e-5)
    return model


def groups(y=None):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("n", 3):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
        numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)


LAWS = {
    "HalfNormal": lambda: dist.HalfNormal(2.0),
    "Gamma": lambda: dist.Gamma(2.0, 3.0),
    "Beta": lambda: dist.Beta(2.0, 3.0),
    "Uniform": lambda: dist.Uniform(2.0, 5.0),
    "Dirichlet": lambda: dist.Dirichlet(jnp.array([1.0, 2.0, 3.0])),
    "a batch of Dirichlet": lambda: dist.Dirichlet(jnp.ones((2, 3))),
    "ordered Normal": lambda: dist.TransformedDistribution(
        dist.Normal(0, 1).expand([4]).to_event(1), dist.transforms.OrderedTransform()
    ),
    "improper ordered": lambda: dist.ImproperUniform(constraints.ordered_vector, (), (3,)),
    "LKJCholesky": lambda: dist.LKJCholesky(3, 2.0),
    "LogNormal": lambda: dist.LogNormal(0.5, 2.0),
    "TruncatedNormal": lambda: dist.TruncatedNormal(1.0, 2.0, low=0.5),
    "VonMises": lambda: dist.VonMises(0.3, 2.0),
    "Exponential": lambda: dist.Exponential(2.0),
    "InverseGamma": lambda: dist.InverseGamma(2.0, 3.0),
    "HalfCauchy": lambda: dist.HalfCauchy(2.0),
}


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_log_density_is_minus_numpyros_potential(law):
    def model_fn():
        x = numpyro.sample("x", law())
        numpyro.sample("y", dist.Normal(jnp.sum(x), 1.0), obs=Y)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPyro's advice on circular sites
        model = assert_same_density_as_numpyro(model_fn)
    assert model.num_observations == 3  # a fixed law is a prior, not a term of the likelihood


def test_a_law_that_depends_on_other_sites_is_part_of_the_likelihood():
    model = assert_same_density_as_numpyro(groups, y=Y)
    assert isinstance(model.prior["tau"], dist.HalfCauchy)
    assert isinstance(model.prior["theta"], dist.ImproperUniform)
    theta = {"mu": jnp.array(1.0), "tau": jnp.array(2.0), "theta": jnp.array([0.0, 1.0, 2.0])}
    each = dist.Normal(theta["theta"], 1.0).log_prob(Y)
    np.testing.assert_allclose(model.log_marginal(theta, model.data), each, rtol=1e-5)
    np.testing.assert_allclose(model.log_likelihood(theta, model.data)[:3], each, rtol=1e-5)


def moving_supports():
    x = numpyro.sample("x", dist.HalfNormal(1.0))
    y = numpyro.sample("y", dist.Uniform(0, x).expand([2]))
    z = numpyro.sample("z", dist.TruncatedNormal(0, 1, low=y))
    w = numpyro.sample("w", dist.ImproperUniform(constraints.greater_than(x), (), ()))
    numpyro.factor("pull", -(w**2) - jnp.sum(z**2))
    numpyro.deterministic("gap", w - x)


def test_supports_may_depend_on_other_sites():
    model = assert_same_density_as_numpyro(moving_supports)
    assert set(model.prior) == {"x", "y_base", "z_base", "w_base"}
    params = {k: jnp.full(law.shape(), 0.7) for k, law in model.prior.items()}
    x, own = params["x"], model.deterministics(params, model.data)
    assert set(own) == {"y", "z", "w", "gap"}
    np.testing.assert_allclose(own["y"], x * jax.nn.sigmoid(0.7) * jnp.ones(2), rtol=1e-6)
    assert (own["z"] > own["y"]).all() and own["w"] > x
    np.testing.assert_allclose(own["gap"], own["w"] - x, rtol=1e-6)


def test_sites_inside_scan_are_found():
    def walk(y):
        s = numpyro.sample("s", dist.HalfNormal(1.0))

        def step(last, t):
            z = numpyro.sample("z", dist.Normal(last, s))
            u = numpyro.sample("u", dist.Uniform(0, s))
            numpyro.sample("y", dist.Normal(z + u, 1.0), obs=y[t])
            return z, None

        scan(step, 0.0, jnp.arange(3))

    assert_same_density_as_numpyro(walk, jnp.asarray(Y))


def test_a_law_that_jax_cannot_take_apart_stays_in_the_model():
    class Bell(dist.Distribution):
        support = constraints.real

        def __init__(self, centre):
            self.centre = centre  # not declared to JAX: rebuilt from its leaves, it would be lost
            super().__init__()

        def log_prob(self, value):
            return -((value - self.centre) ** 2)

    def model_fn():
        a = numpyro.sample("a", dist.Normal(0, 1))
        numpyro.sample("b", Bell(a))
        numpyro.sample("c", Bell(2.0))

    assert_same_density_as_numpyro(model_fn)


@pytest.fixture
def compiled():
    """What JAX compiles from now on, one entry per program."""
    programs: list[str] = []
    listen = lambda event, *_, **__: programs.append(event) if "backend_compile" in event else None
    jax.monitoring.register_event_duration_secs_listener(listen)
    yield programs
    jax.monitoring.unregister_event_duration_listener(listen)


def test_no_operation_is_compiled_on_its_own(compiled):
    def model_fn(y, means):
        w = numpyro.sample("w", dist.Normal(means, 1.0).to_event(1))
        with numpyro.plate("n", 11):
            theta = numpyro.sample("theta", dist.Normal(0, jnp.exp(w[0])))
            numpyro.sample("y", dist.Normal(numpyro.deterministic("mean", theta + jnp.sum(w)), 1.0), obs=y)

    from_numpyro(model_fn, np.ones(11), np.zeros(11))
    assert not compiled
    from_numpyro(lambda: model_fn(np.ones(11), jnp.zeros(11) + 0.5))  # means that only JAX can know
    assert len(compiled) == 1


def test_the_law_of_a_hidden_function_may_depend_on_other_sites():
    def model_fn():
        pull = numpyro.sample("pull", dist.HalfNormal(1.0))
        for name, rate in (("x", pull), ("z", 2.0)):  # JAX does not see what `sde_fn` takes from around it
            sde_fn = lambda x, t, rate=rate: (-rate * x, 1.0)
            numpyro.sample(name, dist.EulerMaruyama(np.linspace(0, 1, 4), sde_fn, dist.Normal(0, 1)))

    model = assert_same_density_as_numpyro(model_fn)
    assert [type(model.prior[k]) for k in ("x", "z")] == [dist.ImproperUniform, dist.EulerMaruyama]


HANDLERS = {
    "condition": lambda: handlers.condition(groups, data={"y": Y, "mu": 1.0}),
    "reparam": lambda: handlers.reparam(handlers.condition(groups, data={"y": Y}), config={"theta": LocScaleReparam(0)}),
    "substitute": lambda: handlers.substitute(handlers.condition(groups, data={"y": Y}), data={"tau": 2.0}),
    "do": lambda: handlers.do(handlers.condition(groups, data={"y": Y}), data={"tau": 2.0}),
}


@pytest.mark.filterwarnings("ignore:init_to_uniform")  # NumPyro's own, on the site that is substituted
@pytest.mark.parametrize("handled", HANDLERS.values(), ids=HANDLERS)
def test_handlers_around_the_model_count(handled):
    assert_same_density_as_numpyro(handled())


@pytest.mark.parametrize("handler", [handlers.scale(scale=3.0), handlers.mask(mask=np.array([True, False, True]))])
def test_scale_and_mask_around_observations_count(handler):
    def model_fn(y):
        mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5))
        with handler:
            numpyro.sample("y", dist.Normal(mu, tau), obs=y)

    assert_same_density_as_numpyro(model_fn, Y)


def test_scale_around_a_constrained_site_leaves_the_jacobian_alone():
    model_fn = handlers.scale(groups, scale=3.0)
    model = from_numpyro(model_fn, y=Y)
    with precision():
        for flat in points(model):
            free = model.density.split(flat)
            params = {**free, "tau": jnp.exp(free["tau"])}
            want = log_density(model_fn, (), {"y": Y}, params)[0] + free["tau"]
            np.testing.assert_allclose(log_p(model, [flat]), [want], rtol=1e-9)


def test_masked_missing_values_are_not_missing():
    def model_fn(y):
        mu = numpyro.sample("mu", dist.Normal(0, 5))
        with handlers.mask(mask=~jnp.isnan(y)):
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    assert_same_density_as_numpyro(model_fn, np.array([1.0, np.nan, 2.0]))


def test_missing_values_can_be_latent():
    def model_fn(y, missing):
        mu = numpyro.sample("mu", dist.Normal(0, 5))
        own = numpyro.sample("own", dist.Normal(0, 1).expand([len(missing)]).mask(False))  # y's law is its prior
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=jnp.asarray(y).at[missing].set(own))

    model = assert_same_density_as_numpyro(model_fn, Y, np.array([1]))
    assert model.prior["own"].shape() == (1,)


def test_latents_that_a_mask_leaves_without_a_prior_are_refused():
    def partly(y, seen):
        mu = numpyro.sample("mu", dist.Normal(0, 5))
        with numpyro.plate("n", 3):
            numpyro.sample("y", dist.Normal(mu, 1.0), obs=y, obs_mask=seen)

    with pytest.raises(ValueError, match=r"Site 'y_unobserved' .* 2 value.* without a prior, and nothing else depends"):
        from_numpyro(partly, Y, np.array([True, False, True]))


@pytest.mark.parametrize(
    ("law", "y", "said"),
    [
        (dist.Poisson, np.array([1.0, -1.0, 1.5]), "2 .* Poisson law cannot give, such as -1.0"),
        (lambda x: dist.Gamma(x, 1.0), np.array([1.0, 2.0, -1.0]), "1 .* Gamma law cannot give, such as -1.0"),
        (lambda x: dist.Dirichlet(x * jnp.ones(2)), np.array([[0.5, 0.5], [0.4, 0.5], [0.1, 0.9]]), r"1 .*\[0.4, 0.5\]"),
        (lambda x: dist.Binomial(jnp.array([1, 2, 3]) + 1, x / (1 + x)), np.array([2, 2, 5]), "1 .* such as 5"),
    ],
    ids=["Poisson", "Gamma", "Dirichlet", "Binomial"],
)
def test_observations_that_cannot_be_are_refused_unless_they_are_masked(law, y, said):
    def model_fn(y, seen):
        x = numpyro.sample("x", dist.Gamma(2.0, 1.0))
        with numpyro.plate("n", 3), handlers.mask(mask=seen):
            numpyro.sample("y", law(x), obs=y)

    with pytest.raises(ValueError, match=f"Observed site 'y' of the NumPyro model has {said}"):
        from_numpyro(model_fn, y, np.ones(3, bool))
    seen = np.array([True, False, False]) if "Poisson" in said else ~np.isin(np.arange(3), [1 if y.ndim == 2 else 2])
    assert set(from_numpyro(model_fn, y, seen).prior) == {"x"}


def test_a_support_that_moves_with_a_latent_site_refuses_no_observation():
    def model_fn(y):
        numpyro.sample("y", dist.Uniform(0.0, numpyro.sample("top", dist.Gamma(2.0, 1.0))), obs=y)

    assert set(from_numpyro(model_fn, 100 * Y).prior) == {"top"}


@pytest.mark.parametrize("asks", [False, True], ids=["plain", "asks the column"])
def test_columns_of_a_table_are_arrays_unless_the_model_asks_for_more(asks):
    pandas = pytest.importorskip("pandas")

    def model_fn(x, y):
        slope = numpyro.sample("slope", dist.Normal(0, 1))
        x, y = (x.to_numpy(), y.to_numpy()) if asks else (x, y)
        numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)

    table = pandas.DataFrame({"x": 2 * Y, "y": Y}, index=[7, 8, 9])
    model = from_numpyro(model_fn, table.x, table.y)
    each = model.log_marginal({"slope": jnp.array(0.5)}, model.data)
    np.testing.assert_allclose(each, dist.Normal(Y, 1.0).log_prob(Y), rtol=1e-6)
    assert (model.data is None) == asks


def test_reparameterised_sites_come_back_under_their_own_names():
    def model_fn():
        x = numpyro.sample("x", dist.TransformedDistribution(dist.Normal(0, 1), dist.transforms.AffineTransform(3.0, 2.0)))
        numpyro.sample("angle", dist.VonMises(0.3, 2.0))
        numpyro.deterministic("twice", 2 * x)

    model_fn = handlers.reparam(model_fn, config={"x": TransformReparam(), "angle": CircularReparam()})
    model = assert_same_density_as_numpyro(model_fn)
    params = {k: jnp.full(law.shape(), 0.5) for k, law in model.prior.items()}
    extra = model.deterministics(params, model.data)
    assert set(extra) == {"x", "angle", "twice"}
    np.testing.assert_allclose([extra["x"], extra["twice"]], [4.0, 8.0])


# ---- a fit ------------------------------------------------------------------------------------------------

SCHOOLS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
SCHOOLS_SE = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def eight_schools(y, se):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("schools", len(y)):
        z = numpyro.sample("z", dist.Normal(0, 1))
        theta = numpyro.deterministic("theta", mu + tau * z)
        numpyro.sample("y", dist.Normal(theta, se), obs=y)


@pytest.fixture(scope="module")
def schools_fit():
    return yo.fit(from_numpyro(eight_schools, SCHOOLS, se=SCHOOLS_SE), progress=False)


@pytest.fixture(scope="module")
def schools_draws(schools_fit):
    return schools_fit.sample(4000)


def test_eight_schools_agree_with_long_nuts_runs(schools_fit, schools_draws):
    # posteriordb (stan-dev/posteriordb@28f8d3d6), eight_schools-eight_schools_noncentered: Stan, 10 chains, 10,000 draws.
    reference = {"mu": (4.41, 3.31), "tau": (3.60, 3.20), "theta": (6.15, 5.62)}
    assert schools_fit.converged
    for name, (mean, sd) in reference.items():
        ours = schools_draws[name][:, 0] if name == "theta" else schools_draws[name]
        assert abs(ours.mean() - mean) < 0.15 * sd, name
        assert ours.std() == pytest.approx(sd, rel=0.2), name


def test_deterministic_sites_are_among_the_draws(schools_draws):
    draws = schools_draws
    assert draws["theta"].shape == (4000, 8)
    np.testing.assert_allclose(draws["theta"], draws["mu"][:, None] + draws["tau"][:, None] * draws["z"], rtol=1e-6)


def test_fitting_the_same_model_again_compiles_nothing(schools_fit):
    before = num_programs()
    again = yo.fit(schools_fit.model, progress=False, seed=1)
    assert num_programs() == before and again.seconds.compile == 0


# ---- discrete sites ---------------------------------------------------------------------------------------


TWO = np.array([-2.1, -1.7, -2.4, -2.0, 1.8, 2.2, 2.5, 1.6])


def counted(y):
    rate, p = numpyro.sample("rate", dist.Gamma(2.0, 1.0)), numpyro.sample("p", dist.Beta(2.0, 2.0))
    s = numpyro.sample("s", dist.Uniform(0.1, 2.0))
    with numpyro.plate("n", len(y)):
        z = numpyro.sample("z", dist.Poisson(rate))
        numpyro.sample("y", dist.Normal(p * z, s), obs=y)


def test_discrete_sites_of_a_plate_are_local():
    model = from_numpyro(counted, TWO)
    assert set(model.prior) == {"rate", "p", "s_base"} and set(model.local) == {"z"}  # `Factorised` has no law for (0.1, 2)
    with precision():
        free = jnp.array(0.3)
        params = {"rate": jnp.array(1.5), "p": jnp.array(0.6), "s_base": free, "z": jnp.array([0, 1] * 4)}
        to_s = biject_to(constraints.interval(0.1, 2.0))
        own = {**params, "s": to_s(free)}
        want = log_density(counted, (TWO,), {}, own)[0] + to_s.log_abs_det_jacobian(free, own["s"])
        np.testing.assert_allclose(log_p_at(model, params), want, rtol=1e-9)
    assert model.log_marginal is None


def test_labels_of_a_mixture_are_found():
    def even_mixture(y):
        mu = numpyro.sample("mu", dist.Normal(0, 3).expand([2]))
        with numpyro.plate("n", len(y)):
            z = numpyro.sample("z", dist.Bernoulli(0.5))
            numpyro.sample("y", dist.Normal(mu[z], 0.5), obs=y)

    model = from_numpyro(even_mixture, TWO)
    for seed in range(4):
        z = yo.fit(model, seed=seed).sample(1000)["z"].mean(0)
        assert np.abs(z[:4].mean() - z[4:].mean()) > 0.9


def chain(y):
    p = numpyro.sample("p", dist.HalfNormal(1.0))
    first = numpyro.sample("first", dist.Bernoulli(logits=p))
    count = numpyro.sample("count", dist.Geometric(0.3))
    with numpyro.plate("n", 3):
        b = numpyro.sample("b", dist.Categorical(logits=jnp.stack([p, 1.0 * first])))
    numpyro.sample("y", dist.Normal(jnp.sum(b) + count, 1.0), obs=y)  # not in the plate, and depends on all of it


def test_other_discrete_sites_are_global():
    with pytest.warns(UserWarning, match="'first' of the NumPyro model cannot be summed out .*enumeration fails"):
        model = from_numpyro(chain, Y)  # its `jnp.stack` takes scalars alone
    assert not model.local and set(model.prior) == {"p", "first", "count", "b"}
    with precision():
        params = {"p": jnp.array(0.3), "first": jnp.array(1), "count": jnp.array(2), "b": jnp.array([0, 1, 1])}
        np.testing.assert_allclose(log_p_at(model, params), log_density(chain, (Y,), {}, params)[0], rtol=1e-9)
    assert {k for k, _ in yo.Factorised().complete(model).factors} == set(model.prior)


# ---- arguments --------------------------------------------------------------------------------------------


def test_arrays_are_data_and_other_arguments_part_of_the_program():
    def model_fn(x, y, degree, note=None):
        w = numpyro.sample("w", dist.Normal(0, 1).expand([degree]).to_event(1))
        numpyro.sample("y", dist.Normal(jnp.stack([x**i for i in range(degree)], -1) @ w, 1.0), obs=y)

    model = assert_same_density_as_numpyro(model_fn, Y, degree=2, y=2 * Y, note="text")
    assert sorted(v.tolist() for v in model.data.values()) == sorted([Y.tolist(), (2 * Y).tolist()])


def test_an_array_whose_values_shape_the_model_is_part_of_the_program():
    def model_fn(group, y):
        a = numpyro.sample("a", dist.Normal(0, 1).expand([int(group.max()) + 1]).to_event(1))
        numpyro.sample("y", dist.Normal(a[group], 1.0), obs=y)

    assert assert_same_density_as_numpyro(model_fn, np.array([0, 1, 1]), Y).data is None


def test_a_numpy_array_may_be_indexed_by_a_plate():
    def model_fn(x, y):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        with numpyro.plate("n", 3) as index:
            numpyro.sample("y", dist.Normal(mu * x[index], 1.0), obs=y[index])

    model = from_numpyro(model_fn, 2 * Y, y=Y)  # NumPyro's own samplers refuse it
    assert all(isinstance(x, np.ndarray) for x in (*model.data.values(), model.labels.observed["y"]))
    each = model.log_marginal({"mu": jnp.array(0.5)}, model.data)
    np.testing.assert_allclose(each, dist.Normal(Y, 1.0).log_prob(Y), rtol=1e-6)


def two_sites(law, y=None):
    def model_fn():
        x = numpyro.sample("x", law())
        numpyro.sample("y", dist.Normal(jnp.sum(x), 1.0), obs=Y if y is None else y)

    return model_fn


def one_batch():
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    with numpyro.plate("rows", 100, subsample_size=10):
        numpyro.sample("y", dist.Normal(mu, 1), obs=jnp.zeros(10))


def changing_shape():
    n = numpyro.sample("n", dist.DiscreteUniform(1, 1000))
    numpyro.sample("x", dist.Normal(0, 1).expand([int(n)]))


def branching():
    x = numpyro.sample("x", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(x, 1.0 if abs(x) < 100 else 2.0), obs=1.0)


def nan_covariate():
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(slope * np.array([1.0, np.nan, 2.0]), 1.0), obs=Y)


def loose():
    numpyro.sample("x", dist.ImproperUniform(constraints.positive, (), (2,)))
    numpyro.sample("y", dist.Normal(numpyro.sample("mu", dist.Normal(0, 1)), 1.0), obs=Y)


def shape_of_an_array(sizes=jnp.array([1, 2])):  # noqa: B008
    x = numpyro.sample("x", dist.Normal(0, 1).expand([int(jnp.max(sizes))]))
    numpyro.sample("y", dist.Normal(x, 1.0), obs=Y[:2])


def nan_below():
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.sample("x", dist.Normal(mu, np.nan))


BAD = {
    "not callable": (3, "`model_fn` of `from_numpyro` must be a NumPyro model function; got 3"),
    "arguments missing": (eight_schools, "missing a required argument: 'y'.*from_numpyro\\(eight_schools, ...\\)"),
    "nothing to infer": (lambda: numpyro.sample("y", dist.Normal(0, 1), obs=1.0), "no latent site"),
    "missing observation": (
        two_sites(lambda: dist.Normal(0, 1), np.array([1, np.nan])),
        "'y' .* 1 missing value.* latent site in their places",
    ),
    "NaN in a prior": (two_sites(lambda: dist.Normal(np.nan, 1)), "Site 'x' .* invalid loc parameter"),
    "NaN in a dependent law": (nan_below, "Site 'x' .* invalid scale parameter"),
    "NaN in a covariate": (nan_covariate, "Site 'y' .* NaN parameters"),
    "NaN inside a truncated law": (two_sites(lambda: dist.TruncatedNormal(np.nan, 1, low=0)), "Site 'x' .* NaN"),
    "impossible parameter": (two_sites(lambda: dist.Dirichlet(jnp.array([-0.5, 1.0]))), "Site 'x' .* concentration"),
    "improper discrete": (two_sites(lambda: dist.ImproperUniform(constraints.boolean, (), ())), "'x' .* is discrete"),
    "improper and free": (loose, "Site 'x' .* improper prior, and nothing else depends on it"),
    "Delta": (two_sites(lambda: dist.Delta(1.0)), "'x' .* Delta .* `numpyro.deterministic`"),
    "no support": (two_sites(lambda: dist.Levy(0.0, 1.0)), "'x' .* Levy law, whose support NumPyro does not know"),
    "shape from a value": (changing_shape, "Site 'x' .* changes with the values of other sites"),
    "branch on a value": (branching, "depends on the value of a latent site"),
    "shape from an array": (shape_of_an_array, "or of an array that JAX computes"),
    "one batch of a plate": (one_batch, r"Plate 'rows' \(10 of 100\) .* give it all the data"),
}


@pytest.mark.parametrize(("model_fn", "message"), BAD.values(), ids=BAD)
def test_bad_models_are_refused_by_name(model_fn, message):
    with pytest.raises(ValueError, match=f"(?s){message}"):
        from_numpyro(model_fn)
