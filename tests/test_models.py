"""The ready-made models: their densities by hand, their closed forms by Monte Carlo, and what they refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import yoasovi as yo
from yoasovi.experiments import simulate
from yoasovi.kernels import kernels_of
from yoasovi.kernels.programs import Clock, as_arrays, num_programs, precision
from yoasovi.models import (
    GaussianMixture,
    HierarchicalNormal,
    LinearRegression,
    LogisticRegression,
    NeuralNetwork,
    PoissonRegression,
)
from yoasovi.models.mixture import cavi
from yoasovi.randomness import open_uniform

RNG = np.random.default_rng(7)
X, NOISE = RNG.normal(size=(30, 3)), RNG.normal(size=30)
LINE = X @ [1.0, -2.0, 0.5] + 0.3 + NOISE
BINARY, COUNTS = (LINE > 0).astype(int), RNG.poisson(3.0, size=30)
POINTS = simulate.mixture(2, 3, n=60)
TILTED = [[1.0, 0.4], [0.4, 0.7]]
SCHOOLS = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
LABELS = np.array(list("aabbbcdd"))

# Each model once, small.
MODELS = {
    "mixture": lambda: GaussianMixture(POINTS, 3),
    "mixture, paper": lambda: GaussianMixture(POINTS, 3, parameters="paper"),
    "mixture, tilted": lambda: GaussianMixture(POINTS, 3, noise_covariance=TILTED, prior_mean=[1.0, 2.0], prior_scale=2.0),
    "mixture, weights": lambda: GaussianMixture(POINTS, 3, weights="learned"),
    "mixture, diagonal": lambda: GaussianMixture(POINTS, 3, "diagonal"),
    "mixture, summed": lambda: GaussianMixture(POINTS, 3, assignments="marginal"),
    "mixture, summed, diagonal": lambda: GaussianMixture(POINTS, 3, "diagonal", "marginal", "learned"),
    "mixture, summed, full": lambda: GaussianMixture(POINTS, 3, "full", "marginal", "learned"),
    "mixture, one column": lambda: GaussianMixture(POINTS[:, 0], 2, "full", "marginal"),
    "linear": lambda: LinearRegression(X, LINE),
    "linear, no intercept": lambda: LinearRegression(X, LINE, intercept=False, noise_prior="half_normal"),
    "logistic": lambda: LogisticRegression(X, BINARY),
    "poisson": lambda: PoissonRegression(X, COUNTS, exposure=np.full(30, 2.0)),
    "schools": lambda: HierarchicalNormal(SCHOOLS[0], sd=SCHOOLS[1]),
    "schools, centred": lambda: HierarchicalNormal(SCHOOLS[0], sd=SCHOOLS[1], centered=True),
    "groups": lambda: HierarchicalNormal(SCHOOLS[0], LABELS),
    "groups, centred": lambda: HierarchicalNormal(SCHOOLS[0], LABELS, centered=True),
    "network": lambda: NeuralNetwork(X, LINE, (4, 3)),
}


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]()


def evaluate(model, point):
    with precision():
        return jax.tree.map(np.asarray, jax.jit(model.density.terms)(as_arrays(model.inputs), as_arrays(point)))


def family_of(model):
    return model.default_family.complete(model)


def elbos(model, params, noise):
    """Give log p - log q at draws of the model's own family, (n,)."""
    lane = jax.tree.map(lambda x: np.asarray(x)[None], params)
    return kernels_of(model, family_of(model), Clock()).values(lane, noise[None])[0]


# ---- every model -----------------------------------------------------------------------------------------


def test_every_model_is_finite_with_a_finite_gradient_near_where_a_fit_begins(model):
    rng = np.random.default_rng(0)
    if model.local:
        family = family_of(model)
        with precision():
            params = family.init(model, model.start(jax.random.key(0)))
        assert np.isfinite(elbos(model, params, rng.uniform(size=(5, family.noise_size(model.density))))).all()
        return
    # Near the middle of the unconstrained scale.
    flat = 0.1 * rng.normal(size=(5, model.density.dim))
    value, gradient = kernels_of(model, yo.MeanField(), Clock()).point(flat)
    assert np.isfinite(value).all() and np.isfinite(gradient).all()


def test_a_model_built_again_has_an_equal_and_equally_hashed_density():
    for build in MODELS.values():
        first, second = build(), build()
        assert first.density == second.density and hash(first.density) == hash(second.density)
        shapes = [jax.tree.structure(m.inputs) for m in (first, second)]
        assert shapes[0] == shapes[1]


def test_a_model_built_again_with_other_data_compiles_nothing():
    build = lambda seed: LogisticRegression(np.random.default_rng(seed).normal(size=(20, 2)), np.arange(20) % 2)
    yo.fit(build(1), "advi", max_steps=20)
    before = num_programs()
    again = yo.fit(build(2), "advi", max_steps=20)
    assert num_programs() == before and again.seconds.compile == 0.0
    assert np.isfinite(again.elbo.value)


def test_labels_whose_law_depends_on_the_weights_compile_once():
    counts = []
    for seed in (1, 2):
        model = GaussianMixture(simulate.mixture(2, 2, 40, seed), 2, weights="learned")
        with precision():
            params = family_of(model).init(model, model.start(jax.random.key(seed)))
        size = family_of(model).noise_size(model.density)
        assert np.isfinite(elbos(model, params, open_uniform(np.random.default_rng(seed), (10, size)))).all()
        counts.append(num_programs())
    assert counts[0] == counts[1]


# ---- mixtures --------------------------------------------------------------------------------------------

MU = np.array([[0.5, -1.0], [2.0, 1.0], [-3.0, 0.2]])
SD = np.array([[0.5, 1.5], [1.0, 2.0], [0.3, 0.9]])
WEIGHTS = np.array([0.2, 0.5, 0.3])
CORR = np.stack([np.linalg.cholesky([[1.0, r], [r, 1.0]]) for r in (0.0, 0.6, -0.8)])


def by_scipy(covariances, weights):
    laws = [stats.multivariate_normal(m, c) for m, c in zip(MU, covariances, strict=True)]
    each = [np.log(w) + law.logpdf(POINTS) for law, w in zip(laws, weights, strict=True)]
    return np.array(each).T  # (N, K)


@pytest.mark.parametrize(
    "settings, extra, covariances, weights",
    [
        ({}, {}, [np.eye(2)] * 3, np.full(3, 1 / 3)),
        ({"noise_covariance": [0.5, 2.0]}, {}, [np.diag([0.5, 2.0])] * 3, np.full(3, 1 / 3)),
        ({"noise_covariance": TILTED, "weights": "learned"}, {"weights": WEIGHTS}, [np.array(TILTED)] * 3, WEIGHTS),
        ({"covariance": "diagonal"}, {"sd": SD}, [np.diag(s**2) for s in SD], np.full(3, 1 / 3)),
        (
            {"covariance": "full", "weights": "learned"},
            {"sd": SD, "corr_factor": CORR, "weights": WEIGHTS},
            [np.diag(s) @ c @ c.T @ np.diag(s) for s, c in zip(SD, CORR, strict=True)],
            WEIGHTS,
        ),
    ],
    ids=["unit", "diagonal noise", "tilted, weights", "learned diagonal", "learned full"],
)
def test_mixture_densities_equal_scipys(settings, extra, covariances, weights):
    want = by_scipy(covariances, weights)
    summed = evaluate(GaussianMixture(POINTS, 3, assignments="marginal", **settings), {"mu": MU, **extra})
    np.testing.assert_allclose(summed.likelihood, np.log(np.exp(want).sum(1)), rtol=1e-10)
    if settings.get("covariance") == "full":
        return
    z = np.arange(len(POINTS)) % 3
    model = GaussianMixture(POINTS, 3, **settings)
    given = evaluate(model, {"mu": MU, "z": z, **extra})
    np.testing.assert_allclose(given.likelihood + given.local["z"], want[np.arange(len(POINTS)), z], rtol=1e-10)
    with precision():
        np.testing.assert_allclose(model.log_marginal(as_arrays({"mu": MU, **extra}), POINTS), summed.likelihood, rtol=1e-12)


def test_mixture_priors_equal_scipys():
    terms = evaluate(
        GaussianMixture(
            POINTS, 3, "diagonal", "marginal", "learned", prior_mean=[1.0, -1.0], prior_scale=[2.0, 3.0],
            noise_covariance=4.0, concentration=2.0,
        ),
        {"mu": MU, "sd": SD, "weights": WEIGHTS},
    )  # fmt: skip
    np.testing.assert_allclose(terms.prior["mu"], stats.norm([1.0, -1.0], [2.0, 3.0]).logpdf(MU).sum())
    np.testing.assert_allclose(terms.prior["sd"], stats.lognorm(1.0, scale=2.0).logpdf(SD).sum())
    np.testing.assert_allclose(terms.prior["weights"], stats.dirichlet([2.0] * 3).logpdf(WEIGHTS))


def test_a_mixture_starts_at_distinct_rows_of_the_data_and_at_others_for_another_key():
    start = GaussianMixture(POINTS, 3).start
    with precision():
        one, other = (np.asarray(start(jax.random.key(s))["mu"]) for s in (0, 1))
    assert all((row == POINTS).all(1).any() for row in one)
    assert len(np.unique(one, axis=0)) == 3 and not np.array_equal(one, other)


def test_many_starts_at_once_are_distinct_rows_all_equally_likely_and_do_not_depend_on_their_number():
    start = GaussianMixture(np.arange(5.0)[:, None], 3).start
    rows = start.many(np.array([1, 2], np.uint32), 4000)["mu"][..., 0].astype(int)
    assert all(len(set(x)) == 3 for x in rows.tolist())
    counts = np.stack([np.bincount(rows[:, k], minlength=5) for k in range(3)])
    assert np.abs(counts - 800).max() < 5 * np.sqrt(4000 * 0.2 * 0.8)  # five standard errors
    np.testing.assert_array_equal(start.many(np.array([1, 2], np.uint32), 7)["mu"][..., 0], rows[:7])


def test_the_papers_start_has_unit_variances_and_even_labels():
    model = GaussianMixture(POINTS, 3, parameters="paper")
    params = family_of(model).init(model, model.start(jax.random.key(0)))
    assert (params["mu"]["variance"] == 1).all() and params["z"]["probs"].shape == (60, 3)
    np.testing.assert_allclose(params["z"]["probs"], 1 / 3, rtol=1e-6)


@pytest.mark.parametrize("name", ["mixture", "mixture, paper", "mixture, tilted"])
def test_the_closed_form_elbo_is_the_mean_of_draws(name):
    # z-test at |z| < 4.5: false alarm 7e-6 for each of three models, over any choice of seeds.
    model = MODELS[name]()
    family, rng = family_of(model), np.random.default_rng(3)
    with precision():
        params = family.init(model, model.start(jax.random.key(2)))
        if name == "mixture, paper":
            variance, probs = rng.gamma(2.0, 0.3, size=(3, 2)), rng.dirichlet([0.5] * 3, size=60)
            params = family.project({"mu": {**params["mu"], "variance": variance}, "z": {"probs": jnp.asarray(probs)}})
        else:
            params["mu"]["scale"] = jnp.asarray(rng.normal(-1.0, 0.5, size=(3, 2)))
            params["z"]["logits"] = jnp.asarray(rng.normal(0.0, 1.5, size=(60, 3)))
        draws = elbos(model, params, open_uniform(np.random.default_rng(4), (20_000, family.noise_size(model.density))))
        exact = float(jax.jit(model.exact_elbo)(params))
    gap = draws.mean() - exact
    assert abs(gap) < 4.5 * draws.std() / np.sqrt(draws.size)


def test_the_closed_form_knows_only_the_factorised_family():
    model = GaussianMixture(POINTS, 3)
    assert model.exact_elbo((np.zeros(3), np.zeros(3))) is None
    assert model.exact_elbo({"mu": {"rate": np.ones((3, 2))}, "z": {"probs": np.ones((60, 3)) / 3}}) is None


@pytest.mark.parametrize("weights, assignments", [("learned", "latent"), ("equal", "marginal")])
def test_models_without_a_closed_form_do_not_claim_one(weights, assignments):
    model = GaussianMixture(POINTS, 3, weights=weights, assignments=assignments)
    assert model.exact_elbo is None and model.optimum is None


# Optima of coordinate ascent, best of 20 starts in float32, computed apart from this code.
@pytest.mark.parametrize("p, k, optimum", [(2, 2, -1790), (2, 3, -1858), (3, 4, -2634)])
def test_coordinate_ascent_finds_the_known_optima_and_never_goes_down(p, k, optimum):
    y = simulate.mixture(p, k)
    best = cavi(y, k)
    assert abs(best.elbo - optimum) < 1.0
    assert best.elbo == best.all_elbos.max() and best.all_elbos.shape == (20,)
    assert best.trace.shape == (best.sweeps,) and best.trace[-1] == best.elbo
    assert np.diff(best.trace).min() > -1e-11 * abs(best.elbo)  # rounding of a sum of size |ELBO|
    model = GaussianMixture(y, k)
    there = {"mu": {"mean": best.means, "variance": best.variances}, "z": {"probs": best.probs}}
    with precision():
        np.testing.assert_allclose(float(jax.jit(model.exact_elbo)(there)), best.elbo, rtol=1e-12)
    assert model.optimum() == best.elbo


def test_coordinate_ascent_ends_where_the_closed_form_is_flat_with_any_prior_and_noise():
    settings = {"prior_mean": [1.0, 2.0], "prior_scale": 2.0, "noise_covariance": TILTED}
    best, model = cavi(POINTS, 3, tolerance=1e-14, **settings), GaussianMixture(POINTS, 3, **settings)
    with precision():
        params = {
            "mu": {"loc": jnp.asarray(best.means), "scale": jnp.asarray(0.5 * np.log(best.variances))},
            "z": {"logits": jnp.asarray(np.log(best.probs))},
        }
        value, slope = jax.jit(jax.value_and_grad(model.exact_elbo))(params)
    np.testing.assert_allclose(value, best.elbo, rtol=1e-12)
    assert max(np.abs(g).max() for g in jax.tree.leaves(slope)) < 1e-4


def test_coordinate_ascent_does_not_mind_data_far_from_zero():
    near, far = (cavi(POINTS + c, 3, starts=5, prior_mean=c) for c in (0.0, 1e6))
    np.testing.assert_allclose(far.elbo, near.elbo, rtol=1e-6)


def test_a_run_of_coordinate_ascent_in_blocks_is_the_same_run(monkeypatch):
    whole = cavi(POINTS, 3, starts=5)
    monkeypatch.setattr("yoasovi.models.mixture._BLOCK", 2 * POINTS.shape[0] * 3)
    blocks = cavi(POINTS, 3, starts=5)
    np.testing.assert_allclose(blocks.all_elbos, whole.all_elbos, rtol=1e-6)
    np.testing.assert_allclose(blocks.elbo, whole.elbo, rtol=1e-9)


def test_the_papers_naive_method_reports_a_lucky_draw_and_the_fit_says_so():
    y = simulate.mixture(2, 2)
    fit = yo.fit(GaussianMixture(y, 2, parameters="paper"), "yoasovi-naive", max_steps=500)
    before = num_programs()
    yo.fit(GaussianMixture(y + 1.0, 2, parameters="paper"), "yoasovi-naive", max_steps=20)
    assert num_programs() == before
    assert set(fit.params["mu"]) == {"mean", "variance"}
    assert fit.elbo.value + 1_000 < fit.reported_elbo < fit.model.optimum()


# ---- regressions -----------------------------------------------------------------------------------------

BETA = np.array([0.3, -0.7, 0.2])


def test_regression_densities_equal_scipys():
    eta = 0.4 + X @ BETA
    point = {"intercept_at_means": 0.4 + X.mean(0) @ BETA, "coefficients": BETA}
    linear = evaluate(LinearRegression(X, LINE), {**point, "noise": 1.3})
    np.testing.assert_allclose(linear.likelihood, stats.norm(eta, 1.3).logpdf(LINE))
    np.testing.assert_allclose(linear.prior["noise"], stats.expon(scale=LINE.std()).logpdf(1.3), rtol=1e-6)
    scales = 2.5 * LINE.std() / X.std(0)
    np.testing.assert_allclose(linear.prior["coefficients"], stats.norm(0, scales).logpdf(BETA).sum())
    at_means = stats.norm(LINE.mean(), 2.5 * LINE.std()).logpdf(point["intercept_at_means"])
    np.testing.assert_allclose(linear.prior["intercept_at_means"], at_means)
    old = LinearRegression(X, LINE, 10.0, noise_prior="half_cauchy", noise_scale=10.0, autoscale=False)
    own = evaluate(old, {"intercept": 0.4, "coefficients": BETA, "noise": 1.3})
    np.testing.assert_allclose(own.likelihood, linear.likelihood)
    np.testing.assert_allclose(own.prior["noise"], stats.halfcauchy(scale=10.0).logpdf(1.3), rtol=1e-6)
    np.testing.assert_allclose(own.prior["coefficients"], stats.norm(0, 10.0).logpdf(BETA).sum())
    logistic = evaluate(LogisticRegression(X, BINARY), point)
    np.testing.assert_allclose(logistic.likelihood, stats.bernoulli(1 / (1 + np.exp(-eta))).logpmf(BINARY))
    np.testing.assert_allclose(logistic.prior["coefficients"], stats.norm(0, 2.5 / X.std(0)).logpdf(BETA).sum())
    poisson = evaluate(PoissonRegression(X, COUNTS, exposure=2.0), point)
    np.testing.assert_allclose(poisson.likelihood, stats.poisson(2.0 * np.exp(eta)).logpmf(COUNTS))
    bare = evaluate(LogisticRegression(X, BINARY > 0, intercept=False), {"coefficients": BETA})
    assert set(bare.prior) == {"coefficients"}


def test_a_linear_regression_starts_at_the_scale_of_its_data():
    point = LinearRegression(X, 1000.0 + LINE).start(jax.random.key(0))
    assert float(point["intercept_at_means"]) == pytest.approx(1000.0, rel=0.01)
    assert set(point) == {"intercept_at_means", "noise"}


# ---- groups ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", [None, LABELS], ids=["a group each", "labels"])
def test_centred_and_offset_groups_are_the_same_model(labels):
    y, sd = SCHOOLS
    index = np.arange(8) if labels is None else np.unique(labels, return_inverse=True)[1]
    theta = np.linspace(-4.0, 10.0, index.max() + 1)
    shared = {"mu": 3.0, "tau": 2.0} | ({} if labels is None else {"sigma": 4.0})
    noise = sd if labels is None else 4.0
    build = lambda centered: HierarchicalNormal(y, labels, sd if labels is None else None, centered)
    centred = evaluate(build(True), {**shared, "theta": theta})
    offset = evaluate(build(False), {**shared, "offset": (theta - 3.0) / 2.0})
    np.testing.assert_allclose(offset.likelihood, stats.norm(theta[index], noise).logpdf(y))
    by_hand = stats.norm(theta[index], noise).logpdf(y).sum() + stats.norm(3.0, 2.0).logpdf(theta).sum()
    np.testing.assert_allclose(centred.likelihood.sum(), by_hand)
    # The change of variables theta = mu + tau * offset has Jacobian tau for each group.
    total = lambda terms: sum(x.sum() for x in jax.tree.leaves(terms))
    np.testing.assert_allclose(total(offset), total(centred) + theta.size * np.log(2.0))
    with precision():
        pure = build(True).log_marginal(as_arrays({**shared, "theta": theta}), as_arrays(build(True).data))
    np.testing.assert_allclose(pure, offset.likelihood)


# ---- network ---------------------------------------------------------------------------------------------


def test_the_network_is_the_one_that_was_measured():
    X, y = simulate.network()
    r = np.random.default_rng(42)
    np.testing.assert_array_equal(X, r.normal(size=(400, 10)))
    np.testing.assert_array_equal(y, np.sin(X[:, 0]) + 2 * X[:, 1] ** 2 - 1.5 * X[:, 2] + 0.5 * r.normal(size=400))
    model = NeuralNetwork(X, y)
    assert model.density.dim == 3152
    start = jax.jit(model.start)(jax.random.key(0))
    flat = np.concatenate([np.ravel(v) for v in start.values()])
    assert flat.size == 3151 and abs(flat.std() - 0.1) < 0.01 and abs(flat.mean()) < 0.01


def test_the_networks_density_equals_one_written_in_numpy():
    model, rng = NeuralNetwork(X, LINE, (4, 3)), np.random.default_rng(0)
    point = {s.name: rng.normal(size=s.shape) for s in model.density.sites} | {"noise": 1.7}
    leaky = lambda h: np.where(h > 0, h, 0.01 * h)
    h = leaky(X @ point["w0"] + point["b0"])
    h = leaky(h @ point["w1"] + point["b1"])
    terms = evaluate(model, point)
    np.testing.assert_allclose(terms.likelihood, stats.norm((h @ point["w2"] + point["b2"])[:, 0], 1.7).logpdf(LINE))
    np.testing.assert_allclose(terms.prior["noise"], -np.log(10.0), rtol=1e-6)
    np.testing.assert_allclose(terms.prior["w1"], stats.norm.logpdf(point["w1"]).sum())


# ---- refusals --------------------------------------------------------------------------------------------

HOLED = np.where(np.arange(30) == 4, np.nan, LINE)
REFUSED = [
    (lambda: GaussianMixture(POINTS[:5], 7), r"`num_components` .* must be at most the number of obs.* \(5\); got 7\."),
    (lambda: GaussianMixture(POINTS, 0), "`num_components` of `GaussianMixture` must be a positive integer"),
    (lambda: GaussianMixture(HOLED, 2), "`y` of `GaussianMixture` must be finite; got 1 NaN"),
    (lambda: GaussianMixture(np.empty((0, 2)), 1), "`y` of `GaussianMixture` must be non-empty"),
    (lambda: GaussianMixture(np.ones((2, 3, 4)), 1), "`y` of `GaussianMixture` must be 1-dimensional or 2-dimensional"),
    (lambda: GaussianMixture(["a", "b"], 1), "`y` of `GaussianMixture` must be an array of numbers"),
    (lambda: GaussianMixture([[1.0], [2.0, 3.0]], 1), "`y` of `GaussianMixture` must be an array"),
    (lambda: GaussianMixture(POINTS, 2, "round"), "`covariance` of `GaussianMixture` must be one of 'known'"),
    (lambda: GaussianMixture(POINTS, 2, assignments="hard"), "`assignments` of"),
    (lambda: GaussianMixture(POINTS, 2, weights="own"), "`weights` of"),
    (lambda: GaussianMixture(POINTS, 2, parameters="raw"), "`parameters` of"),
    (lambda: GaussianMixture(POINTS, 2, "full"), "needs assignments='marginal'"),
    (lambda: GaussianMixture(POINTS, 2, prior_scale=-1.0), "`prior_scale` of `GaussianMixture` must be positive"),
    (lambda: GaussianMixture(POINTS, 2, prior_mean=[1.0, 2.0, 3.0]), "`prior_mean` of .* must be a number or of shape"),
    (lambda: GaussianMixture(POINTS, 2, noise_covariance=[[1.0, 2.0], [2.0, 1.0]]), "symmetric positive definite"),
    (lambda: GaussianMixture(POINTS, 2, noise_covariance=np.eye(3)), "`noise_covariance` of"),
    (lambda: GaussianMixture(POINTS, 2, concentration=0.0), "`concentration` of"),
    (lambda: cavi(POINTS, 100), "`num_components` of `cavi` must be at most"),
    (lambda: cavi(POINTS, 2, starts=0), "`starts` of `cavi`"),
    (lambda: LinearRegression(X, HOLED), "`y` of `LinearRegression` must be finite"),
    (lambda: LinearRegression(X[:, 0], LINE), "`X` of `LinearRegression` must be 2-dimensional; got an array of shape"),
    (lambda: LinearRegression(X[:-1], LINE), r"`y` of .* must be as long as `X` has rows \(29\); got 30 values"),
    (lambda: LinearRegression(X, LINE, 0.0), "`prior_scale` of `LinearRegression` must be a positive finite number"),
    (lambda: LinearRegression(X, LINE, noise_prior="flat"), "`noise_prior` of .* must be one of 'exponential'"),
    (lambda: LogisticRegression(X, LINE), "`y` of `LogisticRegression` must be 0 or 1"),
    (lambda: LogisticRegression(X, 2 * BINARY - 1), "`y` of `LogisticRegression` must be 0 or 1"),
    (lambda: LogisticRegression(X, BINARY, intercept="no"), "`intercept` of `LogisticRegression`"),
    (lambda: PoissonRegression(X, COUNTS - 10), "`y` of `PoissonRegression` must be non-negative integers"),
    (lambda: PoissonRegression(X, COUNTS + 0.5), "`y` of `PoissonRegression` must be non-negative integers"),
    (lambda: PoissonRegression(X, COUNTS, exposure=0.0), "`exposure` of `PoissonRegression` must be positive"),
    (lambda: HierarchicalNormal(SCHOOLS[0]), "`sd` of `HierarchicalNormal` must be given"),
    (lambda: HierarchicalNormal(SCHOOLS[0], sd=SCHOOLS[1][:3]), "`sd` of `HierarchicalNormal` must be a number or of shape"),
    (lambda: HierarchicalNormal(SCHOOLS[0], group=[0, 1]), "`group` of `HierarchicalNormal` must be of the shape of `y`"),
    (lambda: HierarchicalNormal(SCHOOLS[0], sd=1.0, tau_scale=0.0), "`tau_scale` of `HierarchicalNormal`"),
    (lambda: NeuralNetwork(X, LINE, ()), "`hidden` of `NeuralNetwork` must be a non-empty tuple"),
    (lambda: NeuralNetwork(X, LINE, (5, 0)), "`hidden` of `NeuralNetwork` must be a positive integer"),
    (lambda: simulate.mixture(0, 2), "`p` of `mixture` must be a positive integer"),
]  # fmt: skip


@pytest.mark.parametrize("build, message", REFUSED)
def test_bad_arguments_are_refused_by_name(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_numbers_of_numpy_are_numbers_and_true_is_none():
    fit = yo.fit(
        LinearRegression(X, LINE, np.float32(2.5)), max_steps=np.int64(60), restarts=np.int64(2),
        tolerance=np.float32(0.02), progress=False, mend=False,
    )  # fmt: skip
    assert fit.num_steps <= 60 and len(fit.restart_elbos) == 2
    assert fit.sample(np.int64(10))["noise"].shape == (10,)
    for bad in (np.int64(0), np.float64(2.0), np.bool_(True), True):
        with pytest.raises(ValueError, match="`n` of `sample` must be a positive integer"):
            fit.sample(bad)
    for bad in (np.float32(0.0), np.float64(np.inf), np.float32(np.nan), True, np.bool_(True), "1"):
        with pytest.raises(ValueError, match="`prior_scale` of `LinearRegression` must be a positive finite number"):
            LinearRegression(X, LINE, bad)
