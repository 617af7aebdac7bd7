"""The rule on windows: the same decisions for lanes together and alone, under NumPy and jax.numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from yoasovi.families import FullRank, MeanField
from yoasovi.windows.judge import Gain
from yoasovi.windows.rule import Window, WindowControl
from yoasovi.windows.state import CLIMB, LINE, SCALES, STEPS, Forecast, Setting


@pytest.mark.parametrize("name", ["tolerance", "step", "first", "pairs", "longest"])
def test_wrong_window_settings_name_the_argument(name):
    with pytest.raises(ValueError, match=f"`{name}` of `Window` must be"):
        Window(**{name: 0})


def situations(rng, lanes):
    """Make up what a window may meet, wild things included."""
    pick = lambda *x: rng.choice(np.array(x), lanes)
    control = WindowControl(
        pick(SCALES, LINE, STEPS, CLIMB), 2 * rng.integers(8, 600, lanes), pick(0.01, 0.1, 0.3, 1.0, 1.5),
        pick(4.0, 16.0, 1e4), pick(0.1, 0.4, 6.4), rng.integers(0, 4, lanes), rng.integers(0, 70, lanes),
        rng.integers(0, 4, lanes), rng.integers(0, 2, lanes),
    )  # fmt: skip
    gains = [
        Gain(
            pick(0.0, 0.01, 0.1, 1.0, 30.0, -0.01, -1.0, -30.0, -np.inf, np.inf), pick(1e-12, 0.01, 0.3, 5.0, np.inf),
            rng.normal(size=lanes), rng.uniform(size=lanes), 32 * rng.integers(0, 20, lanes), np.zeros(lanes, int),
        )
        for _ in range(2)
    ]  # fmt: skip
    forecast = Forecast(*(pick(0.0, 0.001, 0.05, 1.0, 40.0) for _ in range(3)), rng.uniform(1.0, 8.0, lanes) * control.size)
    return control, *gains, forecast, rng.uniform(size=lanes) > 0.1, rng.normal(size=lanes), rng.uniform(0.01, 1.0, lanes)


SETTINGS = [Setting(5, FullRank()), Setting(40, MeanField()), Setting(90, MeanField()), Setting(7, FullRank(), True)]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_numpy_and_jax_decide_alike_and_lanes_do_not_touch_each_other(setting, x64):
    rule, lanes = Window(), 400
    control, gain, noise, forecast, sound, yardstick, luck = situations(np.random.default_rng(0), lanes)
    turn = np.arange(1, lanes + 1)
    with np.errstate(all="ignore"):
        together = rule.rule(setting, control, gain, noise, forecast, sound, yardstick, luck, turn)
        alone = [
            rule.rule(setting, *jax.tree.map(lambda x, i=i: x[i : i + 1],
                      (control, gain, noise, forecast, sound, yardstick, luck, turn)))
            for i in range(0, lanes, 7)
        ]  # fmt: skip
    under_jax = jax.jit(lambda *args: rule.rule(setting, *args))(
        *jax.tree.map(jnp.asarray, (control, gain, noise, forecast, sound, yardstick, luck, turn))
    )
    for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(under_jax), strict=True):
        np.testing.assert_allclose(np.asarray(a, float), np.asarray(b, float), rtol=1e-12)
    for i, one in zip(range(0, lanes, 7), alone, strict=True):
        for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(one), strict=True):
            np.testing.assert_array_equal(a[i], b[0])


def test_a_ruling_contradicts_itself_nowhere():
    rule, setting = Window(), Setting(5, FullRank())
    control, gain, noise, forecast, sound, yardstick, luck = situations(np.random.default_rng(1), 2000)
    with np.errstate(all="ignore"):
        found = rule.rule(setting, control, gain, noise, forecast, sound, yardstick, luck, np.arange(1, 2001))
    assert not (found.accept & found.rollback).any() and found.rollback[~sound].all()
    assert not (found.missed & found.progressed).any()
    assert (found.control.size % 2 == 0).all() and (found.control.size >= 2).all()
    assert (found.control.length > 0).all() and (found.control.length <= 1.5).all()
    assert found.missed.any() and found.settled.any() and (found.control.kind == STEPS).any()


def test_windows_begin_with_the_scales_and_with_steps_where_lines_do_not_pay():
    few, many = (Window().init(Setting(d, MeanField()), 3, 16.0) for d in (5, 1000))
    assert (few.kind == SCALES).all() and (many.kind == STEPS).all() and few.size.shape == (3,)


def test_a_climbed_start_begins_with_a_whole_line_where_that_is_short():
    kinds = lambda setting: Window().init(setting, 2, np.array([16.0, 1e4]))
    few = kinds(Setting(31, MeanField()))
    assert few.kind.tolist() == [SCALES, LINE] and few.size.tolist() == [16, 82]
    assert kinds(Setting(90, FullRank())).kind.tolist() == kinds(Setting(90, MeanField())).kind.tolist() == [SCALES, SCALES]


def after_line(setting, size, signal, noise, gain, se=0.01, old=0):
    """Rule on one line at full length that rests on so many draws of earlier windows too."""
    one = np.ones(1)
    control = Window().init(setting, 1, np.array([1e4]))._replace(size=np.full(1, size), windows=np.full(1, 9))
    seen = Gain(gain * one, se * one, 0 * one, one, 64 * one.astype(int), 0 * one.astype(int))
    forecast = Forecast(signal * one, signal * one, noise * one, (size + old) * one)
    return Window().rule(setting, control, seen, seen, forecast, one > 0, 0 * one, 0.5 * one, one)


def test_a_line_settles_by_what_its_step_leaves_and_creeps_no_further_along_a_bend():
    straight, funnel = Setting(31, MeanField()), Setting(10, FullRank())
    assert after_line(straight, 400, 0.06, 0.015, 0.01).settled.all()
    assert not after_line(straight, 400, 0.06, 0.03, 0.01).settled.any()
    assert not after_line(funnel, 400, 0.06, 0.015, 0.01).settled.any()  # 400 x 0.015: too bent for so few parameters
    batches = Setting(31, MeanField(), True)
    assert after_line(batches, 8 * 1312, 0.06, 0.015, 0.01).control.kind == LINE  # nearly there
    assert after_line(batches, 8 * 1312, 0.3, 0.1, 0.01).control.kind == STEPS
    assert after_line(funnel, 256, 0.2, 0.2, 0.2).control.kind == STEPS  # it gains, but bends


def test_a_line_that_gains_nothing_goes_on_with_more_draws_unless_the_posterior_bends():
    """A product's steps are noisy where parameters are correlated: its lines may be long."""
    product, full = Setting(31, MeanField()), Setting(31, FullRank())
    on, bent = (after_line(product, 512, 0.03, noise, 0.01).control for noise in (0.03, 0.07))
    assert (on.kind, on.size, on.failures) == (LINE, 768, 0) and (bent.kind, bent.size, bent.failures) == (LINE, 1024, 1)
    assert after_line(product, 1312, 0.03, 0.03, 0.01).control.kind == STEPS
    assert after_line(full, 512, 0.03, 0.03, 0.01).control.kind == STEPS


def test_a_line_that_rests_on_old_draws_too_settles_by_all_of_them_and_asks_for_fewer_new_ones():
    product = Setting(31, MeanField())
    assert not after_line(product, 82, 0.06, 0.015, 0.01).settled.any()
    assert after_line(product, 82, 0.06, 0.015, 0.01, old=400).settled.all()
    # Noise that is half too much asks for half as many draws again, be they old or new; at least for as many as now.
    sizes = [after_line(product, 300, 0.03, 0.03, 0.01, old=old).control.size[0] for old in (0, 600, 150)]
    assert sizes == [450, 450, 300]


def test_a_climb_is_tried_once_before_steps_unless_the_posterior_is_straight():
    rule, setting = Window(), Setting(5, FullRank())
    control = rule.init(setting, 3, 16.0)._replace(kind=np.full(3, LINE), failures=np.full(3, 1))
    control = rule.with_climb(control, np.zeros(3, bool))
    control = control._replace(climbs=np.array([1, 1, 0]))
    flat = Gain(np.zeros(3), np.full(3, 0.01), np.zeros(3), np.full(3, 0.5), np.full(3, 64), np.zeros(3, int))
    forecast = Forecast(np.zeros(3), np.array([5.0, 0.001, 5.0]), np.full(3, 1e-4), control.size)
    ruled = lambda control, gain: rule.rule(
        setting, control, gain, flat, forecast, np.ones(3, bool), np.zeros(3), np.full(3, 0.5), np.ones(3, int)
    )
    after = ruled(control, flat).control
    assert after.kind.tolist() == [CLIMB, STEPS, STEPS] and (after.climbs[0], after.size[0]) == (0, 8)
    climbing = after._replace(kind=np.full(3, CLIMB), windows=np.full(3, 7))
    better = ruled(climbing, flat._replace(mean=np.full(3, 9.0), wins=np.ones(3)))
    assert (better.control.kind == SCALES).all() and better.accept.all() and not better.settled.any()
    worse = ruled(climbing, flat._replace(mean=np.full(3, -9.0), wins=np.zeros(3)))
    assert (worse.control.kind == STEPS).all() and worse.rollback.all()
    first = rule.with_climb(rule.init(setting, 3, 16.0), np.ones(3, bool))
    refused = ruled(first, flat._replace(mean=np.full(3, -9.0), wins=np.zeros(3)))
    assert (first.kind == CLIMB).all() and (refused.control.kind == SCALES).all() and (refused.control.climbs == 0).all()
