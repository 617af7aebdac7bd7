"""Laws that bend, and the tails that draws miss."""

import numpy as np
import pytest
from numpyro.distributions import Normal, constraints

import yoasovi as yo
from yoasovi.answer.correction import pool
from yoasovi.answer.warped import Warped
from yoasovi.verdict.neck import tails

SLOPE = 0.6


def funnel(eps, at=0):
    """log p - log q of a funnel in which one coordinate leads the scales of all others."""
    lead, rest = eps[:, at], np.delete(eps, at, 1)
    scale = np.exp(SLOPE * lead)[:, None]
    return (-0.5 * (rest / scale) ** 2 - SLOPE * lead[:, None] + 0.5 * rest**2).sum(1)


@pytest.fixture(scope="module")
def draws():
    """Exact draws of that funnel, the fourth coordinate leading."""
    rng = np.random.default_rng(0)
    eps = rng.normal(size=(20_000, 6))
    others = np.arange(6) != 3
    eps[:, others] *= np.exp(SLOPE * eps[:, 3:4])
    return eps


def test_a_law_that_bends_learns_a_funnel_and_knows_its_own_density(draws):
    rng = np.random.default_rng(1)
    law = Warped.of(draws, np.full(len(draws), 1.0 / len(draws)), np.eye(6), rng)
    assert law.order[0] == 3
    x = law.draw(20_000, rng)
    weights = np.exp(funnel(x, 3) - law(x))  # both relative to N(0, I)
    assert abs(weights.mean() - 1.0) < 0.05  # so that its density is that of its draws
    assert weights.sum() ** 2 / (weights**2).sum() > 0.5 * len(x)
    plain = np.exp(funnel(rng.normal(size=x.shape), 3))
    assert plain.sum() ** 2 / (plain**2).sum() < 0.1 * len(x)


def test_correction_follows_scales_that_depend_on_a_parameter():
    gathered = pool(lambda eps: funnel(eps, 3), 6, 2000, np.random.default_rng(2), np.eye(6), 2)
    sds = np.sqrt(gathered.weights @ gathered.eps**2)
    truth = np.where(np.arange(6) == 3, 1.0, np.exp(SLOPE**2))
    np.testing.assert_allclose(sds, truth, rtol=0.1)


def test_tails_that_draws_miss_are_told_and_those_of_a_gaussian_are_not():
    def log_p(p):
        return Normal(0.0, 2.0).log_prob(p["v"]) + Normal(0.0, np.e ** (p["v"] / 2)).log_prob(p["x"]).sum()

    model = yo.Model.from_log_density(log_p, {"v": constraints.real, "x": constraints.real}, {"x": (3,)})
    fit = yo.fit(model, mend=False, progress=False)
    rng = np.random.default_rng(3)
    v = 2.0 * rng.normal(size=4000)
    exact = np.c_[v, rng.normal(size=(4000, 3)) * np.exp(v / 2)[:, None]]
    assert tails(fit, 0, exact).missed < 0.01
    cut = exact[v > -2.0]  # without its neck, 16% of it
    assert 0.08 < tails(fit, 0, cut).missed < 0.25
