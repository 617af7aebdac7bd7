"""The limit of steps is that of the form of the method that suits the model."""

import numpy as np
import numpyro.distributions as dist

import yoasovi as yo
from yoasovi import drive


def test_a_values_only_fit_has_its_own_limit_of_steps(monkeypatch):
    limits = []
    plain = drive.drive

    def spied(turns, *args):
        limits.append(turns.limits.max_steps)
        return plain(turns, *args)

    monkeypatch.setattr("yoasovi.fitting.drive", spied)
    labels = yo.models.GaussianMixture(np.array([-2.0, -1.9, 2.0, 2.1]), 2)
    log_p = lambda p, y: -0.5 * (y - p["m"]) ** 2
    whole = yo.Model(prior={"m": dist.Normal(0.0, 1.0)}, log_likelihood=log_p, data=np.ones(3))
    yo.fit(labels, seed=0)
    yo.fit(whole, seed=0)
    yo.fit(whole, seed=0, max_steps=77)
    assert limits == [10_000, 100_000, 77]
