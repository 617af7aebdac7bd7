"""Scores of earlier windows: on the same line, weighed by how often today's q would draw them, dropped in time."""

import numpy as np
import pytest

from yoasovi.families import FullRank, MeanField
from yoasovi.windows import old_scores


def mirrored(rng, pairs, dim):
    half = rng.normal(size=(1, pairs, dim))
    return np.stack([half, -half], 2).reshape(1, 2 * pairs, dim)


def q_of(family, mean, scale):
    mean = np.asarray(mean, float)[None]
    return family.init(mean, np.asarray(scale, float)[None], np.random.default_rng(0))


def kept_window(family, q, noise, slope, room=40, turn=0):
    """Keep a window drawn from q, of a log density with the given gradient."""
    theta = family.place(q, noise)
    past = old_scores.empty(1, room, theta.shape[-1])
    return old_scores.with_draws(past, theta, slope(theta), -family.minus_log_q(q, noise), np.array([turn]))


def weighed(family, q, past):
    behind = family.behind(q, past.theta)
    return behind, old_scores.weights(past, -family.minus_log_q(q, behind))


@pytest.mark.parametrize("family", [MeanField(), FullRank()], ids=lambda f: f.name)
def test_the_noise_behind_draws_is_what_they_were_made_of(family):
    rng = np.random.default_rng(0)
    q, noise = q_of(family, [1.0, -2.0, 0.5], [0.1, 3.0, 1.0]), mirrored(rng, 5, 3)
    np.testing.assert_allclose(family.behind(q, family.place(q, noise)), noise, atol=1e-12)


@pytest.mark.parametrize("family", [MeanField(), FullRank()], ids=lambda f: f.name)
def test_old_draws_of_a_gaussian_posterior_lie_on_the_line_of_today(family):
    """With a few fresh draws, too few for a line of their own, the step is the exact one: to the posterior's mean."""
    rng = np.random.default_rng(1)
    precision, mean = np.array([[2.0, 0.6, 0.0], [0.6, 1.0, 0.2], [0.0, 0.2, 1.5]]), np.array([0.3, -0.2, 0.1])
    slope = lambda theta: (mean - theta) @ precision
    before, today = q_of(family, [0.0, 0.0, 0.0], [0.7, 1.0, 0.8]), q_of(family, [0.1, -0.1, 0.05], [0.75, 0.95, 0.82])
    past = old_scores.filled(kept_window(family, before, mirrored(rng, 12, 3), slope))
    behind, weight = weighed(family, today, past)
    assert (weight > 0).all()
    noise = mirrored(rng, 2, 3)
    both = lambda a, b: np.concatenate([a, b], 1)
    white = both(family.white(today, behind, past.gradient), family.white(today, noise, slope(family.place(today, noise))))
    one = np.ones(1)
    found = family.propose(today, both(behind, noise), white, True, one, 1e4 * one, both(weight, np.ones((1, 4))))
    np.testing.assert_allclose(found.params.mean[0], mean, atol=1e-6)
    assert found.noise[0] < 1e-8


def test_a_weight_is_how_much_more_often_todays_q_draws_a_place():
    family, rng = MeanField(), np.random.default_rng(2)
    before, today = q_of(family, [0.0], [1.0]), q_of(family, [0.1], [1.05])
    past = kept_window(family, before, mirrored(rng, 2000, 1), np.zeros_like, room=4000)
    _, weight = weighed(family, today, past)
    averages = [(weight[0] * f(past.theta[0, :, 0])).sum() / weight.sum() for f in (lambda x: x, lambda x: x**2)]
    np.testing.assert_allclose(averages, [0.1, 1.05**2 + 0.01], atol=0.03)


@pytest.mark.parametrize("mean, scale", [([3.0], [1.0]), ([0.0], [0.1]), ([0.0], [10.0])], ids=["far", "narrow", "wide"])
def test_windows_of_a_q_that_was_elsewhere_are_not_used(mean, scale):
    family = MeanField()
    past = kept_window(family, q_of(family, mean, scale), mirrored(np.random.default_rng(3), 20, 1), np.zeros_like)
    assert not weighed(family, q_of(family, [0.0], [1.0]), past)[1].any()


def test_the_oldest_draws_make_room_and_pairs_stay_together():
    family, rng = MeanField(), np.random.default_rng(4)
    q = q_of(family, [0.0, 0.0], [1.0, 1.0])
    past = kept_window(family, q, mirrored(rng, 3, 2), np.zeros_like, room=10)
    assert old_scores.filled(past).theta.shape[1] == 6
    noise = mirrored(rng, 4, 2)[:, :7]  # a window that was cut between the two of a pair
    past = old_scores.with_draws(past, noise, noise, np.zeros((1, 7)), np.array([1]))
    assert past.turn[0].tolist() == [0] * 4 + [1] * 6
    np.testing.assert_allclose(past.theta[0, 0::2], -past.theta[0, 1::2])


def test_draws_that_are_not_finite_have_no_weight():
    family, rng = MeanField(), np.random.default_rng(5)
    q, noise = q_of(family, [0.0], [1.0]), mirrored(rng, 10, 1)
    noise[0, 3] = np.nan
    past = kept_window(family, q, noise, np.zeros_like, room=20)
    weight = weighed(family, q, past)[1]
    assert weight[0, 3] == 0 and (np.delete(weight[0], 3) > 0).all()
