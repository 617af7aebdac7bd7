"""Base noise: points in the unit cube.

Every seed is fixed. Statistical tests state the chance that a correct program fails them, over the choice
of a seed: Z = 5 standard errors is 6e-7 per number compared, P_VALUE is 1e-6 per sample.
"""

import functools
import warnings
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats as st

from yoasovi import draws as module
from yoasovi.draws import Antithetic, Halton, Mirrored, MonteCarlo, Sobol
from yoasovi.randomness import Purpose, open_uniform, stream

Z = 5.0
P_VALUE = 1e-6
DIM = 3
ALL = [MonteCarlo(), Antithetic(6), Mirrored(), Sobol(), Halton()]
every_draws = pytest.mark.parametrize("draws", ALL, ids=repr)


def points_of(draws, seed, count=1, dim=DIM):
    """Points of some iterations, (count, size, dim)."""
    return draws.points(stream(seed, Purpose.CHAIN), count, dim)


@functools.cache
def over_iterations(draws, count=4000):
    """Points of many independent iterations, (count, size, DIM)."""
    step = 2 if isinstance(draws, Mirrored) else 1  # two of its iterations belong together
    return points_of(draws, 7, step * count)[::step]


# ---- every source of points x every check ----


@every_draws
def test_points_have_the_stated_shape_and_lie_inside_the_cube_in_either_precision(draws):
    points = points_of(draws, 0, 5)
    assert points.shape == (5, draws.size, DIM) and points.dtype == np.float64
    for seen in (points, points.astype(np.float32)):
        assert np.all((seen > 0) & (seen < 1))


@every_draws
def test_the_same_stream_repeats_its_bits_and_another_moves_every_coordinate(draws):
    first, again, other = (points_of(draws, seed, 4) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert np.all(first != other)


@every_draws
def test_iterations_have_points_of_their_own(draws):
    first, _, later = points_of(draws, 3, 3)
    assert np.all(first != later)


@every_draws
def test_a_rebuilt_part_is_equal_so_that_it_compiles_nothing_new(draws):
    assert replace(draws) == draws and hash(replace(draws)) == hash(draws)


@every_draws
def test_words_of_minibatches_are_shared_by_mirrored_points_alone(draws):
    words = draws.keys(stream(0, Purpose.ROWS), 4)
    assert words.shape == (4, draws.size, 2) and words.dtype == np.uint32
    rows = words.reshape(-1, 2)
    pairs = {"Antithetic": words[:, :3].reshape(-1, 2), "Mirrored": words[::2].reshape(-1, 2)}
    own = pairs.get(type(draws).__name__, rows)
    assert len(np.unique(own, axis=0)) == len(own) == len(np.unique(rows, axis=0))
    if isinstance(draws, Antithetic):
        np.testing.assert_array_equal(words[:, :3], words[:, 3:])
    if isinstance(draws, Mirrored):
        np.testing.assert_array_equal(words[::2], words[1::2])


@every_draws
def test_every_row_is_uniform_on_its_own(draws):
    # Rows of one iteration depend on each other, so each sample takes one number of each.
    for row, column in {(0, 0), (draws.size - 1, DIM - 1)}:
        assert st.kstest(over_iterations(draws)[:, row, column], "uniform").pvalue > P_VALUE


@every_draws
def test_averages_of_a_curved_function_are_unbiased(draws):
    averages = np.exp(over_iterations(draws).sum(-1)).mean(1)
    error = averages.std(ddof=1) / np.sqrt(len(averages))
    assert abs(averages.mean() - np.expm1(1) ** DIM) < Z * error


# ---- what each source promises ----


# Measured with 1000 iterations and two seeds: 12, 66 and 930 for Sobol, 4.2 and 13.7 for Halton. The variance of
# 4000 averages has a relative standard error of about 3 per cent, so these bounds are beyond Z of them.
@pytest.mark.parametrize(
    ("draws", "ratio"),
    [(Sobol(10), 6), (Sobol(16), 30), (Sobol(64), 300), (Halton(10), 2.5), (Halton(64), 8)],
    ids=repr,
)
def test_quasi_monte_carlo_has_far_smaller_variance_on_a_smooth_function(draws, ratio):
    monte_carlo = ((np.expm1(2) / 2) ** DIM - np.expm1(1) ** (2 * DIM)) / draws.size
    assert monte_carlo > ratio * np.exp(over_iterations(draws).sum(-1)).mean(1).var()


def test_the_second_half_of_antithetic_points_mirrors_the_first_exactly():
    (points,) = points_of(Antithetic(6), 0)
    np.testing.assert_array_equal(points[:3] + points[3:], np.ones((3, DIM)))


def test_every_second_mirrored_point_is_the_mirror_image_of_the_one_before_exactly():
    points = points_of(Mirrored(), 0, 8)
    np.testing.assert_array_equal(points[::2] + points[1::2], np.ones((4, 1, DIM)))
    assert len(np.unique(points[::2])) == 4 * DIM
    np.testing.assert_array_equal(points_of(Mirrored(), 0, 7), points[:7])


def test_shifted_sobol_points_still_have_one_point_in_each_slice():
    slices = np.sort(np.floor(over_iterations(Sobol(16)) * 16), axis=1)
    np.testing.assert_array_equal(slices, np.broadcast_to(np.arange(16)[:, None], slices.shape))


def test_shifted_halton_points_keep_their_distances_around_the_circle():
    first, other = points_of(Halton(), 0, 2)
    np.testing.assert_allclose((first - first[0]) % 1, (other - other[0]) % 1, atol=1e-9)


def test_sobol_points_are_computed_once_and_without_a_warning_at_any_size():
    module._sobol_words.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(3):
            points_of(Sobol(10), seed)
    info = module._sobol_words.cache_info()
    assert (info.misses, info.hits) == (1, 2)


def test_the_extreme_words_and_uniform_numbers_stay_inside_the_open_interval():
    class Extreme:
        def random(self, shape):
            return np.array([0.0, 1.0 - 2.0**-53])

    for ends in (module._open_unit(np.array([0, 2**32 - 1], np.uint32)), open_uniform(Extreme(), (2,))):
        assert 0 < ends[0] < 1e-6
        assert ends.sum() == 1
        for seen in (ends, 1 - ends):  # a mirror image too
            assert np.all((seen.astype(np.float32) > 0) & (seen.astype(np.float32) < 1))


@pytest.mark.parametrize("part", [MonteCarlo, Antithetic, Sobol, Halton])
@pytest.mark.parametrize("size", [0, -2, 2.0, True, "4", None])
def test_a_size_that_is_not_a_positive_integer_is_refused(part, size):
    with pytest.raises(ValueError, match=f"`size` of `{part.__name__}` must be a positive integer; got"):
        part(size)


def test_an_odd_antithetic_size_is_refused():
    with pytest.raises(ValueError, match=r"`size` of `Antithetic` must be even; got 3\."):
        Antithetic(3)


@every_draws
@pytest.mark.parametrize("dim", [0, 1.5])
def test_a_dimension_that_is_not_a_positive_integer_is_refused(draws, dim):
    with pytest.raises(ValueError, match=f"`dim` of `{type(draws).__name__}.points` must be a positive int"):
        points_of(draws, 0, dim=dim)


@pytest.mark.parametrize(("draws", "maximum"), [(Sobol(), 21201), (Halton(), 2000)], ids=repr)
def test_too_many_dimensions_are_refused_with_a_way_out(draws, maximum):
    with pytest.raises(ValueError, match=f"must be at most {maximum}.*use `MonteCarlo`; got {maximum + 1}"):
        points_of(draws, 0, dim=maximum + 1)
