"""Random numbers have a purpose each, and no two purposes share a draw."""

import itertools

import numpy as np
import pytest

import yoasovi as yo
from yoasovi.randomness import Purpose, mirrored, open_uniform, stream


def test_no_two_purposes_seeds_or_places_share_a_draw():
    """64-bit words: among 200,000 of them two equal ones have a chance of 1 in 10^9."""
    places = [(), (0,), (1,), (0, 0), (0, 1), (1, 0)]
    words = [
        stream(seed, purpose, *place).integers(0, 2**64, 200, np.uint64)
        for seed, purpose, place in itertools.product((0, 1, 2, -1, 2**40), Purpose, places)
    ]
    flat = np.concatenate(words)
    assert len(np.unique(flat)) == len(flat)


def test_a_stream_depends_on_its_name_alone():
    first = stream(7, Purpose.WINDOW, 3).standard_normal(5)
    stream(7, Purpose.JUDGE, 3).standard_normal(1000)
    np.testing.assert_array_equal(first, stream(7, Purpose.WINDOW, 3).standard_normal(5))


def test_purposes_have_numbers_of_their_own():
    assert len({int(p) for p in Purpose}) == len(Purpose)


def test_mirrored_noise_comes_in_pairs_and_uniform_noise_stays_open_in_single_precision():
    eps = mirrored(np.random.default_rng(0), 7, 3)
    assert eps.shape == (7, 3) and (eps[1:6:2] == -eps[0:5:2]).all()

    class Edges:
        def random(self, shape):
            return np.array([0.0, 1.0 - 2.0**-53])

    u = open_uniform(Edges(), (2,)).astype(np.float32)
    assert (u > 0).all() and (u < 1).all()


@pytest.mark.parametrize("method", ["yoasovi", "advi", "yoasovi-step", "mcvi"])
def test_a_whole_fit_asks_for_every_stream_once(conjugate, method, monkeypatch):
    """Fit, samples and verdict: a stream that is asked for twice would give the same draws to two uses."""
    yo.fit(conjugate.model, method, max_steps=2).diagnose()  # all modules are there: a later one would keep the spy
    asked = []

    def spied(seed, purpose, *place):
        asked.append((int(seed), int(purpose), place))
        return stream(seed, purpose, *place)

    import sys

    for name, module in list(sys.modules.items()):
        if name.startswith("yoasovi.") and getattr(module, "stream", None) is stream:
            monkeypatch.setattr(module, "stream", spied)
    fit = yo.fit(conjugate.model, method, seed=5, max_steps=300)
    fit.sample(100, seed=5, corrected=False)
    fit.sample(100, seed=5, corrected=True)
    fit.diagnose()
    fit.loo(200, seed=6)  # of corrected draws it takes those that `sample` gives
    assert len(asked) > 8
    twice = {x for x in asked if asked.count(x) > 1}
    assert not twice, [(Purpose(p).name, place) for _, p, place in twice]
