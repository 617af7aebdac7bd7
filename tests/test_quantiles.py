"""Inverse distribution functions against SciPy's.

Every seed is fixed. Statistical tests state the chance that a correct program fails them, over the choice
of a seed: Z = 5 standard errors is 6e-7 per number compared, P_VALUE is 1e-6 per sample.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats as st

from yoasovi.families.quantiles import inverse_cdf

Z = 5.0
P_VALUE = 1e-6

# On the grid of the float32 points, so that u and 1 - u are the same numbers in both precisions; the first
# and the last are the outermost that noise can have.
GRID = np.array([0, 1e-6, 1e-4, 3e-3, 0.07, 0.31, 0.5, 0.69, 0.93, 0.998, 1 - 1e-4, 1 - 1e-6, 1 - 2**-23])
GRID = (np.floor(GRID * 2**23) + 0.5) / 2**23

# Laws of ordinary concentrations, then those for which only float64 is accurate.
SHAPE, FAR_SHAPE = [0.05, 0.3, 1.0, 2.5, 40.0, 100.0], [1e-4, 1e-3, 1e3, 1e4, 1e5, 2e6]
ALPHA, FAR_ALPHA = [0.1, 0.2, 0.5, 1.0, 3.0, 30.0, 80.0], [1e-3, 1e-2, 5.0, 0.5, 1e5, 1e3]
BETA, FAR_BETA = [0.2, 0.1, 9.0, 1.0, 3.0, 2.0, 90.0], [1e-3, 5.0, 1e-2, 1e5, 1e5, 1.0]
SHAPES, ALPHAS, BETAS = (np.array(x) for x in (SHAPE + FAR_SHAPE, ALPHA + FAR_ALPHA, BETA + FAR_BETA))
DFS = np.array([0.7, 1.5, 4.0, 30.0])
RATES = np.array([0.02, 0.9, 3.7, 40.0, 900.0, 2e4])
PROBS = np.array([0.1, 0.0, 0.45, 0.3, 0.15])


class NegatedExponential:
    """The law of 1 - 3 X for a standard exponential X."""

    @staticmethod
    def ppf(u):
        return 1 + 3 * np.log(u)


def negated_exponential():
    return dist.TransformedDistribution(dist.Exponential(1.0), dist.transforms.AffineTransform(1.0, -3.0))


# The law; SciPy's; the size below which errors are absolute (0: never); elements for float32 (None: all).
CONTINUOUS = {
    "Normal": (lambda: dist.Normal(1.0, 2.0), st.norm(1, 2), 1, None),
    "LogNormal": (lambda: dist.LogNormal(0.3, 0.7), st.lognorm(0.7, scale=np.exp(0.3)), 0, None),
    "Exponential": (lambda: dist.Exponential(2.5), st.expon(scale=0.4), 0, None),
    "Uniform": (lambda: dist.Uniform(-1.0, 3.0), st.uniform(-1, 4), 1, None),
    "HalfNormal": (lambda: dist.HalfNormal(1.5), st.halfnorm(scale=1.5), 0, None),
    "HalfCauchy": (lambda: dist.HalfCauchy(1.5), st.halfcauchy(scale=1.5), 0, None),
    "Logistic": (lambda: dist.Logistic(1.0, 2.0), st.logistic(1, 2), 1, None),
    "truncated": (
        lambda: dist.TruncatedNormal(0.5, low=-1.0, high=2.0),
        st.truncnorm(-1.5, 1.5, 0.5),
        1,
        None,
    ),
    "decreasing transform": (negated_exponential, NegatedExponential, 1, None),
    "StudentT": (lambda: dist.StudentT(DFS, 1.0, 2.0), st.t(DFS, 1, 2), 1, None),
    "Gamma": (lambda: dist.Gamma(SHAPES, 2.0), st.gamma(SHAPES, scale=0.5), 0, len(SHAPE)),
    "Beta": (lambda: dist.Beta(ALPHAS, BETAS), st.beta(ALPHAS, BETAS), 0, len(ALPHA)),
}
DISCRETE = {
    "Bernoulli probs": (lambda: dist.Bernoulli(0.3), st.bernoulli(0.3)),
    "Bernoulli logits": (lambda: dist.Bernoulli(logits=1.2), st.bernoulli(1 / (1 + np.exp(-1.2)))),
    "Categorical probs": (lambda: dist.Categorical(PROBS), st.rv_discrete(values=(range(5), PROBS))),
    "Categorical logits": (
        lambda: dist.Categorical(logits=np.log(PROBS[2:])),
        st.rv_discrete(values=(range(3), PROBS[2:] / PROBS[2:].sum())),
    ),
    "DiscreteUniform": (lambda: dist.DiscreteUniform(-2, 4), st.randint(-2, 5)),
    "Poisson": (lambda: dist.Poisson(RATES), st.poisson(RATES)),
}


def quantiles(law, u):
    """Quantiles of every element of a batch at each u, shape (len(u), *batch); compiled, as in a fit."""
    wide = np.broadcast_to(u.reshape(-1, *[1] * len(law.batch_shape)), (u.size, *law.batch_shape))
    value = np.asarray(jax.jit(jax.vmap(lambda u: inverse_cdf(law, u)))(wide))
    assert np.all(np.isfinite(value) & np.asarray(law.support(value)))
    return value


@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_quantiles_lie_in_the_support_and_agree_with_scipy(name, dtype):
    make, reference, scale, ordinary = CONTINUOUS[name]
    law = make()
    value = quantiles(law, GRID.astype(dtype))
    assert value.dtype == dtype
    expected = reference.ppf(GRID.reshape(-1, *[1] * len(law.batch_shape)))
    if law.support is dist.constraints.unit_interval:  # The largest float inside stands for all beyond it.
        expected = np.minimum(expected, 1 - np.finfo(dtype).epsneg)
    if dtype == jnp.float32:  # The outermost points are in float32 only held to the support.
        value, expected = value[1:-1], expected[1:-1]
        if ordinary:
            value, expected = value[:, :ordinary], expected[:, :ordinary]
    tolerance = 1e-6 if dtype == jnp.float64 else 1e-4
    smallest = 0 if scale else 1.01 * np.finfo(dtype).tiny
    np.testing.assert_allclose(value, expected, rtol=tolerance, atol=tolerance * scale + smallest)


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_quantiles_agree_with_scipy_except_on_a_step(name, dtype):
    make, reference = DISCRETE[name]
    u = np.concatenate([GRID, np.random.default_rng(0).uniform(size=300)]).astype(dtype)
    value = quantiles(make(), u)
    assert value.dtype == np.dtype(jnp.result_type(int))
    u = u.astype(np.float64).reshape(-1, *[1] * (value.ndim - 1))
    expected = reference.ppf(u)
    # A rounding error in F moves the draw only where u is that close to a step.
    slack = 1e-9 if dtype == jnp.float64 else 1e-4
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
    u = np.concatenate([sums, np.nextafter(sums, 0), np.nextafter(sums, 1)])
    u = np.clip(u, jnp.finfo(dtype).tiny, 1 - jnp.finfo(dtype).epsneg).astype(dtype)
    assert np.all(probs[quantiles(dist.Categorical(probs), u)] > 0)


POINTS = ((np.random.default_rng(7).integers(2**23, size=(4000, 3)) + 0.5) / 2**23).astype(np.float32)


@jax.jit
def dirichlet(concentration, points):
    """One draw per row, through a batch of length one that is expanded over the rows."""
    return inverse_cdf(dist.Dirichlet(concentration[None]).expand(points.shape[:1]), points)


def test_dirichlet_draws_are_gamma_quantiles_divided_by_their_sum():
    concentration, points = np.array([0.3, 1.0, 4.0]), POINTS
    gammas = st.gamma(concentration).ppf(points)
    sample = dirichlet(concentration, points)
    np.testing.assert_allclose(sample, gammas / gammas.sum(-1, keepdims=True), rtol=1e-4, atol=1e-30)


def test_dirichlet_draws_have_the_right_moments_and_marginals():
    concentration = np.array([0.3, 1.0, 4.0])
    sample = np.asarray(dirichlet(concentration, POINTS), np.float64)
    total = concentration.sum()
    mean = concentration / total
    second = (np.diag(concentration) + np.outer(concentration, concentration)) / (total * (total + 1))
    products = sample[:, :, None] * sample[:, None, :]
    for found, expected in ((sample, mean), (products, second)):
        error = found.std(0, ddof=1) / np.sqrt(len(found))
        assert np.all(np.abs(found.mean(0) - expected) < Z * error)
    for column, shape in enumerate(concentration):
        assert st.kstest(sample[:, column], st.beta(shape, total - shape).cdf).pvalue > P_VALUE


def test_a_dirichlet_with_tiny_concentrations_stays_inside_the_simplex():
    value = np.asarray(dirichlet(np.full(3, 1e-3), POINTS))
    assert np.all((value > 0) & (value < 1))
    np.testing.assert_allclose(value.sum(-1), 1, rtol=1e-6)


def test_expanded_and_independent_laws_treat_every_element_alike(x64):
    rate = np.array([[0.5], [2.0], [9.0]])
    u = np.random.default_rng(0).uniform(size=(2, 3, 4))
    plain = dist.Exponential(rate)
    wide = plain.expand((2, 3, 4))
    for law in (wide, wide.to_event(2), plain.expand((3, 4)).expand((2, 3, 4)), wide.mask(False)):
        np.testing.assert_allclose(inverse_cdf(law, u), st.expon(scale=1 / rate).ppf(u), rtol=1e-6)
    probs = np.array([[0.2, 0.3, 0.5], [0.6, 0.3, 0.1], [0.1, 0.1, 0.8]])
    index = inverse_cdf(dist.Categorical(probs[:, None]).expand((2, 3, 4)).to_event(1), u)
    np.testing.assert_array_equal(index, (u[..., None] > probs[:, None].cumsum(-1)).sum(-1))


def test_quantiles_hold_when_implicit_rank_promotion_is_an_error():
    u = np.full((2, 3), 0.4)
    with jax.numpy_rank_promotion("raise"):
        for law in (
            dist.Gamma(jnp.ones(3), 2.0).expand((2, 3)),
            dist.Beta(jnp.ones(3), 2.0).expand((2, 3)),
            dist.StudentT(jnp.ones(3), 2.0).expand((2, 3)),
            dist.Dirichlet(jnp.ones(3)).expand((2,)),
            dist.LogNormal(jnp.ones(3), 2.0).expand((2, 3)).to_event(1),
            dist.Poisson(jnp.ones(3)).expand((2, 3)),
            dist.Categorical(jnp.full((3, 5), 0.2)).expand((2, 3)),
        ):
            assert jax.eval_shape(lambda u, law=law: inverse_cdf(law, u), u).shape == (2, 3)


def test_gamma_quantiles_carry_the_implicit_derivatives(x64):
    a, u = jnp.array([0.05, 0.7, 3.0, 50.0]), jnp.array([0.9, 0.2, 0.97, 0.5])
    along = jnp.array([1.0, 2.0, 3.0, 4.0])
    value, slope = jax.jit(lambda a, u: jax.jvp(lambda a, u: inverse_cdf(dist.Gamma(a), u), (a, u), (along, jnp.ones(4))))(
        a, u
    )
    by_shape = (st.gamma(a * (1 + 1e-5)).ppf(u) - st.gamma(a * (1 - 1e-5)).ppf(u)) / (2e-5 * np.asarray(a))
    np.testing.assert_allclose(slope, along * by_shape + 1 / st.gamma(a).pdf(value), rtol=1e-6)


def test_gradients_pass_by_discrete_draws_and_parameters_that_have_none():
    # Tracing is enough: a loop differentiated in reverse, or `betainc` in its parameters, raises there.
    for law in (dist.Poisson(4.0), dist.Bernoulli(0.3), dist.Beta(2.0, 3.0), dist.StudentT(3.0)):
        slope = jax.eval_shape(jax.grad(lambda u, law=law: u * inverse_cdf(law, u)), 0.5)
        assert slope.shape == ()


@pytest.mark.parametrize(
    ("law", "shape"),
    [
        (dist.MultivariateNormal(np.zeros(2), np.eye(2)), (2,)),
        (dist.FoldedDistribution(dist.Normal(0.0, 1.0)), ()),
        (dist.GammaPoisson(2.0, 1.0), ()),
        (dist.LKJCholesky(2), (2, 2)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_unsupported_law_is_named_with_what_is_supported(law, shape):
    with pytest.raises(TypeError, match=f"must be a NumPyro Bernoulli.*got {type(law).__name__}"):
        inverse_cdf(law, np.full(shape, 0.5))


def test_something_that_is_no_law_is_refused():
    with pytest.raises(TypeError, match=r"`distribution` of `inverse_cdf` must be .*got str"):
        inverse_cdf("normal", 0.5)


def test_points_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"`u` of `inverse_cdf` must have the shape .* \(3,\); got \(2,\)"):
        inverse_cdf(dist.Normal(np.zeros(3), 1.0), np.full(2, 0.5))
