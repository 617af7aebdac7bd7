"""Lines through scores: exact for Gaussians, careful with noise, the same under NumPy and jax.numpy."""

import jax
import jax.numpy as jnp
import numpy as np

from yoasovi.families import FullRank, LowRank, MeanField
from yoasovi.windows import score_line


def mirrored(rng, pairs, dim):
    half = rng.normal(size=(pairs, dim))
    return np.stack([half, -half], 1).reshape(2 * pairs, dim)


def test_a_line_through_the_scores_is_exact_for_a_gaussian():
    rng = np.random.default_rng(1)
    slope, intercept = rng.normal(size=(4, 4)), rng.normal(size=4)
    slope = slope + slope.T
    eps = mirrored(rng, 6, 4)
    fitted = score_line.line(eps, intercept + eps @ slope.T)
    np.testing.assert_allclose(fitted.intercept, intercept, rtol=1e-6)
    np.testing.assert_allclose(fitted.slope, slope, rtol=1e-6, atol=1e-6)
    assert float(fitted.noise) < 1e-8


def test_a_line_through_pure_noise_proposes_nothing_much():
    rng = np.random.default_rng(2)
    eps, white = mirrored(rng, 30, 5), rng.normal(size=(60, 5))
    fitted, scales = score_line.line(eps, white), score_line.line_of_scales(eps, white)
    assert float(fitted.signal) < 3 * float(fitted.noise) and float(scales.signal) < 3 * float(scales.noise)
    step = score_line.newton(fitted, np.asarray(1.0), np.asarray(16.0))
    assert float(np.abs(step.shift).max()) < 0.5


def test_matched_draws_leave_a_product_of_gaussians_no_noise_from_what_bends_like_a_parabola():
    """Scores with parabolas across coordinates: their mean is exact, which is that of E[w]; random draws miss it."""
    rng, family, dim = np.random.default_rng(4), MeanField(), 6
    bend = rng.normal(size=(dim, dim, dim))
    scores = lambda eps: 0.3 + np.einsum("ni,ijk,nk->nj", eps, bend, eps)
    mean = 0.3 + np.einsum("iji->j", bend)
    half = rng.normal(size=(2, 9, dim))
    off = []
    for noise in (half, family.matched(half)):
        both = np.stack([noise, -noise], 2).reshape(2, 18, dim)
        off.append(max(np.abs(scores(x).mean(0) - mean).max() for x in both))
    assert off[0] > 0.5 and off[1] < 1e-10
    few = half[:, :dim]
    np.testing.assert_array_equal(family.matched(few), few)  # too few to match


def test_pairs_that_are_not_finite_are_left_out():
    rng = np.random.default_rng(3)
    eps = mirrored(rng, 10, 3)
    white = 0.5 + 0.2 * eps
    white[4] = np.nan
    white[17, 1] = np.inf
    np.testing.assert_allclose(score_line.line(eps, white).intercept, 0.5, rtol=1e-6)
    np.testing.assert_allclose(score_line.line_of_scales(eps, white).slope, 0.2, rtol=1e-6)


def test_a_last_row_without_its_mirror_image_is_left_out():
    """A window cut short by `max_steps` may end between the two; one of a single row proposes nothing."""
    eps = mirrored(np.random.default_rng(3), 6, 3)
    white = 0.5 + 0.2 * eps + 0.1 * eps**2
    for fit in (score_line.line, score_line.line_of_scales):
        for odd, even in zip(fit(eps[:11], white[:11]), fit(eps[:10], white[:10]), strict=True):
            np.testing.assert_array_equal(odd, even)
        assert not fit(eps[:1], white[:1]).intercept.any() and not fit(eps[:1], white[:1]).slope.any()


def test_the_expected_gain_of_a_newton_step_is_the_gain_on_a_gaussian():
    """Full length, on a quadratic target: expected equals the true change of the ELBO."""
    precision, mean, zero = np.array([4.0, 0.5]), np.array([0.3, -1.0]), np.asarray(0.0)
    fitted = score_line.ScoreLine(precision * mean, 1.0 - precision, zero, zero)
    step = score_line.newton(fitted, np.asarray(1.0), np.asarray(1e4))
    kl = 0.5 * np.sum(precision - 1 - np.log(precision) + precision * mean**2)
    np.testing.assert_allclose(step.expected, kl, rtol=1e-10)
    np.testing.assert_allclose(step.shift, mean, rtol=1e-10)


def test_scores_that_overflow_break_nothing():
    eps = mirrored(np.random.default_rng(0), 8, 3)
    with np.errstate(all="ignore"):
        fitted = score_line.line(eps, 1e200 * eps**3)
        score_line.newton(fitted, np.asarray(1.0), np.asarray(16.0))


def test_lanes_are_fitted_as_if_alone_and_numpy_and_jax_propose_alike(x64):
    """Every family, scales and full line, three lanes at once and one by one, in both array libraries."""
    rng = np.random.default_rng(4)
    for family in (MeanField(), FullRank(), LowRank(2)):
        size = 4 + 2 * isinstance(family, LowRank)
        params = family.init(rng.normal(size=(3, 4)), np.exp(rng.normal(size=(3, 4))), rng)
        eps = np.stack([mirrored(rng, 12, size) for _ in range(3)])
        white = rng.normal(size=(3, 24, 4)) + 0.3 * eps[..., :4] + 1.0
        length, trust = np.array([1.0, 0.5, 1.5]), np.array([16.0, 4.0, 1e4])
        for full in (False, True):
            together = family.propose(params, eps, white, full, length, trust)
            under_jax = family.propose(
                *jax.tree.map(jnp.asarray, (params, eps, white)), full, *map(jnp.asarray, (length, trust))
            )
            for lane in range(3):
                one = jax.tree.map(lambda x, lane=lane: x[lane : lane + 1], (params, eps, white))
                alone = family.propose(*one, full, length[lane : lane + 1], trust[lane : lane + 1])
                for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(together), strict=True):
                    np.testing.assert_allclose(a[0], b[lane], rtol=1e-9, atol=1e-12)
            for a, b in zip(jax.tree.leaves(under_jax), jax.tree.leaves(together), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)


def test_a_whole_line_finds_the_best_product_of_a_correlated_gaussian_in_one_step():
    """Means that hang together arrive at once, scales are those of the precision's diagonal, and the promise is kept."""
    rng = np.random.default_rng(5)
    root = rng.normal(size=(6, 6))
    precision, mean = root @ root.T + 0.1 * np.eye(6), rng.normal(size=6)
    params = MeanField().init(np.zeros(6), np.full(6, 0.5), rng)
    eps = mirrored(rng, 12, 6)
    white = MeanField().white(params, eps, (mean - MeanField().place(params, eps)) @ precision)
    found = MeanField().propose(params, eps, white, True, np.asarray(1.0), np.asarray(1e6))
    np.testing.assert_allclose(found.params.mean, mean, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found.params.log_scale, -0.5 * np.log(np.diag(precision)), rtol=1e-4, atol=1e-4)

    def elbo(q):
        return (
            q.log_scale.sum()
            - 0.5 * (q.mean - mean) @ precision @ (q.mean - mean)
            - 0.5 * np.exp(2 * q.log_scale) @ np.diag(precision)
        )

    np.testing.assert_allclose(found.expected, elbo(found.params) - elbo(params), rtol=1e-3)
    assert float(found.noise) < 1e-3
    scales = MeanField().propose(params, eps, white, False, np.asarray(1.0), np.asarray(1e6))
    assert elbo(scales.params) < elbo(found.params) - 1.0


def test_a_direction_too_flat_to_be_told_moves_no_mean_far_and_counts_as_noise():
    """Scores with noise about a line that is nearly flat in one direction: no wild step, no claim to be done."""
    rng = np.random.default_rng(6)
    axis = np.array([1.0, 1.0, 0.0, 0.0]) / 2**0.5
    slope = (1.0 - 1e-3) * np.outer(axis, axis)  # precision 0.001 along the axis
    eps = mirrored(rng, 10, 4)
    white = 0.05 * axis + eps @ slope + 0.3 * rng.normal(size=eps.shape)
    step, signal, noise = score_line.newton_of_product(eps, white, np.asarray(1.0), np.asarray(1e4))
    assert np.abs(step.shift).max() < 2.0  # and not 0.05 / 0.001
    assert float(signal + noise) > 0.1


def test_few_large_entries_are_kept_and_many_that_are_noise_are_not():
    """One factor for all entries would keep as much of the noise as of what is there."""
    rng, size = np.random.default_rng(3), 780
    true = np.where(np.arange(size) < 39, 2.0, 0.0)
    noise, variance = 0.3 * rng.normal(size=size), np.full(size, 0.09)
    seen = true + noise
    kept, left = score_line.sparse(seen, variance)
    factor = score_line.shrinkage((seen**2).sum(), variance.sum())
    wrong = lambda x: ((x - true) ** 2).sum()
    assert wrong(kept) < 0.3 * wrong(factor * seen) and 0.5 < left / wrong(kept) < 2.0
    nothing, _ = score_line.sparse(noise, variance)
    assert (nothing**2).sum() < 0.02 * (noise**2).sum()
    exact, _ = score_line.sparse(true, 1e-20 * variance)
    np.testing.assert_allclose(exact, true, atol=1e-8)
    under_jax = jax.jit(score_line.sparse)(jnp.asarray(seen), jnp.asarray(variance))
    np.testing.assert_allclose(under_jax[0], kept, atol=1e-3)
