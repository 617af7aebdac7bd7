"""Base noise and inverse distribution functions.

Every test has fixed seeds. Statistical tests state the chance that a correct program fails them, over
the choice of a seed: Z = 5 standard errors is 6e-7 per number compared, P_VALUE is 1e-6 per sample.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats as st

from yoasovi import draws as module
from yoasovi.draws import Antithetic, Halton, MonteCarlo, Sobol, inverse_cdf

Z = 5.0
P_VALUE = 1e-6
ALL = [MonteCarlo(), MonteCarlo(7), Antithetic(), Antithetic(6), Sobol(), Sobol(16), Halton(), Halton(16)]
every_draws = pytest.mark.parametrize("draws", ALL, ids=repr)


@pytest.fixture(params=[False, True], ids=["float32", "float64"])
def dtype(request):
    with jax.enable_x64(request.param):
        yield jnp.dtype(jnp.float64 if request.param else jnp.float32)


@pytest.fixture
def float64():
    with jax.enable_x64(True):
        yield


def over_keys(draws, dim, num_keys, seed=0):
    """Points for many independent keys, shape (num_keys, size, dim)."""
    keys = jax.random.split(jax.random.key(seed), num_keys)
    return np.asarray(jax.jit(jax.vmap(lambda key: draws.uniform(key, dim)))(keys))


# ---- every source of points x every check ----


@every_draws
def test_points_have_the_stated_shape_and_dtype_and_lie_inside_the_cube(draws, dtype):
    points = draws.uniform(jax.random.key(0), 5)
    assert points.shape == (draws.size, 5)
    assert points.dtype == dtype
    assert np.all((points > 0) & (points < 1))


@every_draws
def test_compiled_points_are_the_eager_ones_bit_for_bit(draws, dtype):
    key = jax.random.key(1)
    compiled = jax.jit(lambda key: draws.uniform(key, 3))(key)
    np.testing.assert_array_equal(compiled, draws.uniform(key, 3))


@every_draws
def test_mapping_over_keys_gives_each_key_its_own_points(draws, dtype):
    keys = jax.random.split(jax.random.key(2), 3)
    mapped = jax.vmap(lambda key: draws.uniform(key, 4))(keys)
    np.testing.assert_array_equal(mapped, np.stack([draws.uniform(key, 4) for key in keys]))


@every_draws
def test_the_same_key_repeats_its_bits_and_another_key_moves_every_coordinate(draws, dtype):
    first, again, other = (draws.uniform(jax.random.key(seed), 4) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert np.all(np.asarray(first) != np.asarray(other))


@every_draws
def test_a_rebuilt_part_and_a_new_key_compile_nothing_new(draws):
    traces = []

    def uniform(part, key):
        traces.append(part)
        return part.uniform(key, 3)

    compiled = jax.jit(uniform, static_argnums=0)
    for seed in range(3):
        compiled(type(draws)(draws.size), jax.random.key(seed))
    assert len(traces) == 1


@every_draws
def test_every_row_is_uniform_on_its_own(draws):
    # Rows of one key depend on each other, so each sample takes one number per key.
    points = over_keys(draws, 3, 2000)
    for row, column in {(0, 0), (draws.size - 1, 2)}:
        assert st.kstest(points[:, row, column], "uniform").pvalue > P_VALUE


@every_draws
def test_averages_of_a_curved_function_are_unbiased(draws):
    points = over_keys(draws, 3, 2000, seed=1)
    averages = np.exp(points.sum(-1)).mean(1).astype(np.float64)
    error = averages.std(ddof=1) / np.sqrt(len(averages))
    assert abs(averages.mean() - np.expm1(1) ** 3) < Z * error


# ---- what each source promises ----


@pytest.mark.parametrize("draws", [Sobol(10), Sobol(16), Sobol(64), Halton(10), Halton(64)], ids=repr)
def test_quasi_monte_carlo_has_far_smaller_variance_on_a_smooth_function(draws):
    def variance(part):
        return np.exp(over_keys(part, 3, 500).sum(-1)).mean(1).var()

    # Measured ratios: 11 and 25 to 30 with 10 and 16 points, 150 and more with 64. An estimate of a ratio
    # from 500 keys a side is within 30 per cent of the true one far beyond five standard errors.
    assert variance(MonteCarlo(draws.size)) > (50 if draws.size == 64 else 5) * variance(draws)


def test_the_second_half_of_antithetic_points_mirrors_the_first_exactly(dtype):
    points = np.asarray(Antithetic(6).uniform(jax.random.key(0), 4))
    np.testing.assert_array_equal(points[:3] + points[3:], np.ones((3, 4)))


def test_shifted_sobol_points_still_have_one_point_in_each_slice(dtype):
    points = np.asarray(Sobol(16).uniform(jax.random.key(5), 50))
    np.testing.assert_array_equal(np.sort(np.floor(points * 16), axis=0), np.repeat(np.arange(16)[:, None], 50, 1))


def test_shifted_halton_points_keep_their_distances_around_the_circle(float64):
    first, other = (np.asarray(Halton(9).uniform(jax.random.key(seed), 6)) for seed in (0, 1))
    np.testing.assert_allclose((first - first[0]) % 1, (other - other[0]) % 1, atol=1e-9)


def test_a_sobol_size_that_is_no_power_of_two_gives_no_warning():
    module._sobol_words.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Sobol(10).uniform(jax.random.key(0), 2).shape == (10, 2)


def test_base_points_are_computed_once_per_size_and_dimension():
    module._sobol_words.cache_clear()
    for seed in range(3):
        Sobol(12).uniform(jax.random.key(seed), 2)
    info = module._sobol_words.cache_info()
    assert (info.misses, info.hits) == (1, 2)


def test_the_extreme_words_stay_inside_the_open_interval(dtype):
    for word in (jnp.uint32, jnp.uint64) if dtype == jnp.float64 else (jnp.uint32,):
        ends = np.asarray(module._open_unit(jnp.array([0, jnp.iinfo(word).max], word)))
        assert 0 < ends[0] < 1e-6
        assert 1e-6 > 1 - ends[1] > 0
        assert ends.sum() == 1


@pytest.mark.parametrize("part", [MonteCarlo, Antithetic, Sobol, Halton])
@pytest.mark.parametrize("size", [0, -2, 2.0, True, "4", None])
def test_a_size_that_is_not_a_positive_integer_is_refused(part, size):
    with pytest.raises(ValueError, match=f"`size` of `{part.__name__}` must be a positive integer; got"):
        part(size)


def test_an_odd_antithetic_size_is_refused():
    with pytest.raises(ValueError, match="`size` of `Antithetic` must be even; got 3."):
        Antithetic(3)


@pytest.mark.parametrize("draws", [MonteCarlo(), Antithetic(), Sobol(), Halton()], ids=repr)
@pytest.mark.parametrize("dim", [0, 1.5])
def test_a_dimension_that_is_not_a_positive_integer_is_refused(draws, dim):
    with pytest.raises(ValueError, match=f"`dim` of `{type(draws).__name__}.uniform` must be a positive integer"):
        draws.uniform(jax.random.key(0), dim)


@pytest.mark.parametrize(("draws", "maximum"), [(Sobol(), 21201), (Halton(), 2000)])
def test_too_many_dimensions_are_refused_with_a_way_out(draws, maximum):
    with pytest.raises(ValueError, match=f"must be at most {maximum}.*use `MonteCarlo`; got {maximum + 1}"):
        draws.uniform(jax.random.key(0), maximum + 1)


# ---- inverse distribution functions ----

GRID = np.array([1e-6, 1e-4, 0.003, 0.07, 0.31, 0.5, 0.6875, 0.93, 0.998, 0.9999, 1 - 1e-6])
CONTINUOUS = {
    "Normal": (lambda: dist.Normal(1.0, 2.0), st.norm(1, 2)),
    "LogNormal": (lambda: dist.LogNormal(0.3, 0.7), st.lognorm(0.7, scale=np.exp(0.3))),
    "Exponential": (lambda: dist.Exponential(2.5), st.expon(scale=0.4)),
    "Uniform": (lambda: dist.Uniform(-1.0, 3.0), st.uniform(-1, 4)),
    "HalfNormal": (lambda: dist.HalfNormal(1.5), st.halfnorm(scale=1.5)),
    "HalfCauchy": (lambda: dist.HalfCauchy(1.5), st.halfcauchy(scale=1.5)),
    "Laplace": (lambda: dist.Laplace(1.0, 2.0), st.laplace(1, 2)),
    "Logistic": (lambda: dist.Logistic(1.0, 2.0), st.logistic(1, 2)),
    "truncated Normal": (lambda: dist.TruncatedNormal(0.5, 1.0, low=-1.0, high=2.0), st.truncnorm(-1.5, 1.5, 0.5)),
    "Gamma 0.05": (lambda: dist.Gamma(0.05, 2.0), st.gamma(0.05, scale=0.5)),
    "Gamma 0.7": (lambda: dist.Gamma(0.7, 2.0), st.gamma(0.7, scale=0.5)),
    "Gamma 1": (lambda: dist.Gamma(1.0, 2.0), st.gamma(1, scale=0.5)),
    "Gamma 40": (lambda: dist.Gamma(40.0, 2.0), st.gamma(40, scale=0.5)),
    "Gamma 1e3": (lambda: dist.Gamma(1e3, 2.0), st.gamma(1e3, scale=0.5)),
    "Gamma 1e5": (lambda: dist.Gamma(1e5, 2.0), st.gamma(1e5, scale=0.5)),
    "Chi2": (lambda: dist.Chi2(3.0), st.chi2(3)),
    "InverseGamma": (lambda: dist.InverseGamma(3.0, 2.0), st.invgamma(3, scale=2)),
    "Beta 0.1 0.2": (lambda: dist.Beta(0.1, 0.2), st.beta(0.1, 0.2)),
    "Beta 1 1": (lambda: dist.Beta(1.0, 1.0), st.beta(1, 1)),
    "Beta 0.5 9": (lambda: dist.Beta(0.5, 9.0), st.beta(0.5, 9)),
    "Beta 30 2": (lambda: dist.Beta(30.0, 2.0), st.beta(30, 2)),
    "Beta 80 90": (lambda: dist.Beta(80.0, 90.0), st.beta(80, 90)),
    "StudentT 1.5": (lambda: dist.StudentT(1.5, 1.0, 2.0), st.t(1.5, 1, 2)),
    "StudentT 30": (lambda: dist.StudentT(30.0, 1.0, 2.0), st.t(30, 1, 2)),
    "decreasing transform": (
        lambda: dist.TransformedDistribution(dist.Gamma(2.0, 1.0), dist.transforms.AffineTransform(1.0, -3.0)),
        None,
    ),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_quantiles_agree_with_scipy(name, dtype):
    law, reference = CONTINUOUS[name]
    u = GRID.astype(dtype)
    exact = u.astype(np.float64)
    expected = 1 - 3 * st.gamma(2).isf(exact) if reference is None else reference.ppf(exact)
    value = jax.jit(jax.vmap(lambda u: inverse_cdf(law(), u)))(u)
    assert value.dtype == dtype
    # Around a location the error is relative to the scale; near zero it is absolute only if that is its size.
    located = name.split()[0] in {"Normal", "Uniform", "Laplace", "Logistic", "truncated", "StudentT"}
    tolerance = 1e-6 if dtype == jnp.float64 else 1e-4
    if dtype == jnp.float32 and name in LOOSE_TAILS:  # NumPyro's own formula rounds the last of these.
        value, expected = value[2:-2], expected[2:-2]
    np.testing.assert_allclose(value, expected, rtol=tolerance, atol=tolerance if located else 0)


LOOSE_TAILS = {"truncated Normal", "Logistic", "Laplace"}


@pytest.mark.parametrize(("a", "b"), [(1e-3, 1e-3), (1e-2, 5.0), (5.0, 1e-2), (0.5, 1e5), (1e5, 1e5), (1e3, 1.0)])
def test_extreme_beta_quantiles_stay_accurate_in_float64(a, b, float64):
    value = inverse_cdf(dist.Beta(a, b).expand(GRID.shape), GRID)
    expected = np.clip(st.beta(a, b).ppf(GRID), np.finfo(float).tiny, 1 - np.finfo(float).epsneg)
    np.testing.assert_allclose(value, expected, rtol=1e-6)


@pytest.mark.parametrize("concentration", [1e-3, 1e-2, 1.0, 1e4, 2e6])
def test_extreme_gamma_quantiles_stay_accurate_in_float64(concentration, float64):
    value = inverse_cdf(dist.Gamma(concentration).expand(GRID.shape), GRID)
    expected = np.maximum(st.gamma(concentration).ppf(GRID), np.finfo(float).tiny)
    np.testing.assert_allclose(value, expected, rtol=1e-6)


PROBS = np.array([0.1, 0.0, 0.45, 0.3, 0.15])
DISCRETE = {
    "Bernoulli probs": (lambda: dist.Bernoulli(0.3), st.bernoulli(0.3)),
    "Bernoulli logits": (lambda: dist.Bernoulli(logits=1.2), st.bernoulli(1 / (1 + np.exp(-1.2)))),
    "Categorical probs": (lambda: dist.Categorical(PROBS), st.rv_discrete(values=(range(5), PROBS))),
    "Categorical logits": (
        lambda: dist.Categorical(logits=np.array([0.0, 1.0, -1.0])),
        st.rv_discrete(values=(range(3), np.exp([0.0, 1, -1]) / np.exp([0.0, 1, -1]).sum())),
    ),
    "DiscreteUniform": (lambda: dist.DiscreteUniform(-2, 4), st.randint(-2, 5)),
    "Poisson 0.02": (lambda: dist.Poisson(0.02), st.poisson(0.02)),
    "Poisson 3.7": (lambda: dist.Poisson(3.7), st.poisson(3.7)),
    "Poisson 900": (lambda: dist.Poisson(900.0), st.poisson(900)),
    "Poisson 2e4": (lambda: dist.Poisson(2e4), st.poisson(2e4)),
}


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_quantiles_agree_with_scipy_except_on_a_step(name, dtype):
    law, reference = DISCRETE[name]
    u = np.concatenate([GRID, np.random.default_rng(0).uniform(size=300)]).astype(dtype)
    value = np.asarray(jax.jit(jax.vmap(lambda u: inverse_cdf(law(), u)))(u))
    assert value.dtype == np.dtype(jnp.result_type(int))
    expected = reference.ppf(u.astype(np.float64))
    # A rounding error in F moves the draw only where u is that close to a step.
    slack = 1e-9 if dtype == jnp.float64 else 2e-5
    on_step = np.abs(reference.cdf(np.minimum(value, expected)) - u) < slack
    assert np.all((value == expected) | on_step)
    assert np.mean(value == expected) > 0.98


def test_a_category_of_probability_zero_is_never_drawn(dtype):
    # Many categories, so that partial sums are rounded; u runs through the sums themselves.
    probs = np.random.default_rng(0).uniform(size=200)
    probs[::3] = 0
    probs[-7:] = 0
    probs /= probs.sum()
    sums = np.cumsum(probs).astype(dtype)
    u = np.concatenate([sums, np.nextafter(sums, 0), np.nextafter(sums, 1), [1 - jnp.finfo(dtype).epsneg]])
    u = np.clip(u, jnp.finfo(dtype).tiny, 1 - jnp.finfo(dtype).epsneg).astype(dtype)
    value = inverse_cdf(dist.Categorical(probs).expand(u.shape), u)
    assert np.all(probs[np.asarray(value)] > 0)


def test_dirichlet_draws_have_the_right_moments_and_marginals():
    concentration = np.array([0.3, 1.0, 4.0])
    law = dist.Dirichlet(concentration)
    points = over_keys(MonteCarlo(), 3, 4000, seed=2)[:, 0]
    sample = np.asarray(jax.jit(jax.vmap(lambda u: inverse_cdf(law, u)))(points), np.float64)
    np.testing.assert_allclose(sample.sum(-1), 1, rtol=1e-5)
    total = concentration.sum()
    mean = concentration / total
    second = (np.diag(concentration) + np.outer(concentration, concentration)) / (total * (total + 1))
    products = sample[:, :, None] * sample[:, None, :]
    for found, expected in ((sample, mean), (products, second)):
        error = found.std(0, ddof=1) / np.sqrt(len(found))
        assert np.all(np.abs(found.mean(0) - expected) < Z * error)
    for column, shape in enumerate(concentration):
        assert st.kstest(sample[:, column], st.beta(shape, total - shape).cdf).pvalue > P_VALUE


def test_a_dirichlet_with_tiny_concentrations_stays_inside_the_simplex(dtype):
    law = dist.Dirichlet(jnp.full((50, 4), 1e-3))
    value = np.asarray(inverse_cdf(law, MonteCarlo(50).uniform(jax.random.key(0), 4)))
    assert np.all((value > 0) & (value < 1))
    np.testing.assert_allclose(value.sum(-1), 1, rtol=1e-6)


INSIDE = {
    **{name: law for name, (law, _) in CONTINUOUS.items()},
    **{name: law for name, (law, _) in DISCRETE.items()},
    "Gamma 1e-4": lambda: dist.Gamma(1e-4, 1.0),
    "Beta 1e-4 1e-4": lambda: dist.Beta(1e-4, 1e-4),
    "Cauchy": lambda: dist.Cauchy(0.0, 1.0),
    "Gumbel": lambda: dist.Gumbel(0.0, 1.0),
}


@pytest.mark.parametrize("name", INSIDE)
def test_the_outermost_points_give_finite_values_inside_the_support(name):
    law = INSIDE[name]()
    ends = jnp.array([2.0**-24, 1 - 2.0**-24])  # All that `uniform` can return at the ends in float32.
    value = jax.vmap(lambda u: inverse_cdf(law, u))(ends)
    assert np.all(np.isfinite(value))
    assert np.all(law.support(value))


def test_expanded_and_independent_laws_treat_every_element_alike(float64):
    rate = np.array([[0.5], [2.0], [9.0]])
    u = np.random.default_rng(0).uniform(size=(2, 3, 4))
    expected = st.gamma(rate, scale=1 / rate).ppf(u)
    plain = dist.Gamma(rate, rate)
    for law in (plain.expand((2, 3, 4)), plain.expand((2, 3, 4)).to_event(2), plain.expand((3, 4)).expand((2, 3, 4))):
        np.testing.assert_allclose(inverse_cdf(law, u), expected, rtol=1e-6)
    counts = inverse_cdf(dist.Poisson(rate).expand((2, 3, 4)).to_event(1), u)
    np.testing.assert_array_equal(counts, st.poisson(rate).ppf(u))
    masked = dist.Normal(0.0, 1.0).expand((2, 3, 4)).mask(False)
    np.testing.assert_allclose(inverse_cdf(masked, u), st.norm.ppf(u), rtol=1e-6)


def test_expanding_a_law_on_vectors_leaves_its_event_alone(float64):
    concentration = np.array([[0.5, 2.0, 3.0]])
    u = np.random.default_rng(0).uniform(size=(2, 4, 3))
    expanded = inverse_cdf(dist.Dirichlet(concentration).expand((2, 4)), u)
    one_by_one = [[inverse_cdf(dist.Dirichlet(concentration[0]), row) for row in block] for block in u]
    np.testing.assert_allclose(expanded, one_by_one, rtol=1e-12)
    probs = np.array([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1]])
    index = inverse_cdf(dist.Categorical(probs).expand((4, 2)), u[0, :, :2])
    np.testing.assert_array_equal(index, (u[0, :, :2, None] > probs.cumsum(-1)).sum(-1))


def test_quantiles_hold_when_implicit_rank_promotion_is_an_error(float64):
    u = np.full((2, 3), 0.4)
    with jax.numpy_rank_promotion("raise"):
        for law in (
            dist.Gamma(jnp.ones(3), 2.0).expand((2, 3)),
            dist.Beta(jnp.ones(3), 2.0).expand((2, 3)),
            dist.Dirichlet(jnp.ones(3)).expand((2,)),
            dist.LogNormal(jnp.ones(3), 2.0).expand((2, 3)).to_event(1),
            dist.Poisson(jnp.ones(3)).expand((2, 3)),
            dist.Categorical(jnp.full((3, 5), 0.2)).expand((2, 3)),
        ):
            assert inverse_cdf(law, u).shape == (2, 3)


def test_gamma_quantiles_carry_the_implicit_derivatives(float64):
    a, u = jnp.array([0.05, 0.7, 3.0, 50.0]), jnp.array([0.9, 0.2, 0.97, 0.5])
    value = inverse_cdf(dist.Gamma(a), u)
    by_shape = jax.grad(lambda a: inverse_cdf(dist.Gamma(a), u).sum())(a)
    np.testing.assert_allclose(by_shape, jax.lax.random_gamma_grad(a, value), rtol=1e-6)
    by_point = jax.grad(lambda u: inverse_cdf(dist.Gamma(a), u).sum())(u)
    np.testing.assert_allclose(by_point, 1 / st.gamma(a).pdf(value), rtol=1e-6)


def test_beta_quantiles_carry_the_derivative_in_the_point(float64):
    a, b, u = jnp.array([0.2, 3.0, 40.0]), jnp.array([0.7, 0.4, 9.0]), jnp.array([0.9, 0.2, 0.5])
    value = inverse_cdf(dist.Beta(a, b), u)
    by_point = jax.grad(lambda u: inverse_cdf(dist.Beta(a, b), u).sum())(u)
    np.testing.assert_allclose(by_point, 1 / st.beta(a, b).pdf(value), rtol=1e-6)


def test_a_gradient_passes_by_a_discrete_draw():
    slope = jax.grad(lambda rate: rate * inverse_cdf(dist.Poisson(rate), 0.5))(4.0)
    assert slope == st.poisson(4).ppf(0.5)


@pytest.mark.parametrize(
    ("law", "shape"),
    [
        (dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2)), (2,)),
        (dist.FoldedDistribution(dist.Normal(0.0, 1.0)), ()),
        (dist.GammaPoisson(2.0, 1.0), ()),
        (dist.LKJCholesky(2), (2, 2)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_unsupported_law_is_named_with_what_is_supported(law, shape):
    with pytest.raises(TypeError, match=f"must be a NumPyro Bernoulli.*got {type(law).__name__}"):
        inverse_cdf(law, jnp.full(shape, 0.5))


def test_something_that_is_no_law_is_refused():
    with pytest.raises(TypeError, match="`distribution` of `inverse_cdf` must be .*got str"):
        inverse_cdf("normal", 0.5)


def test_points_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"`u` of `inverse_cdf` must have the shape of the Normal, \(3,\); got \(2,\)"):
        inverse_cdf(dist.Normal(jnp.zeros(3), 1.0), jnp.full(2, 0.5))
