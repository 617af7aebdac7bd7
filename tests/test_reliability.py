"""Nothing silently wrong: draws that are not finite, long runs, many fits."""

import gc
import os
import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import yoasovi as yo
from yoasovi.cli.models import find_model
from yoasovi.kernels import programs as compiling
from yoasovi.run.nonfinite import Nonfinite
from yoasovi.run.trace import MOST_ROWS, Trace
from yoasovi.stopping import StopReason
from yoasovi.turns import TurnRow


def same(a, b):
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y, equal_nan=np.asarray(x).dtype.kind == "f") for x, y in leaves)


# ---- not finite ------------------------------------------------------------------------------------------


def unlucky(params, share):
    """Say of a point, as good as at random but always the same, whether it is one of a share of all points."""
    words = [jax.lax.bitcast_convert_type(jnp.ravel(x), jnp.uint32).ravel() for x in jax.tree.leaves(params)]
    mix = lambda h, w: ((h ^ w) * jnp.uint32(16777619) ^ ((h ^ w) >> 15), None)
    found = jax.lax.scan(mix, jnp.uint32(2166136261), jnp.concatenate(words))[0]
    found = (found ^ (found >> 13)) * jnp.uint32(3266489917)
    return (found ^ (found >> 16)).astype(float) < share * 2.0**32


def breaking(model):
    """The model, with a log density that is NaN at a share of all points; the share is data, so nothing is recompiled."""
    whole = model.log_likelihood
    return replace(
        model, data={"whole": model.data, "share": np.array(0.0)}, deterministics=None,
        log_likelihood=lambda p, d: jnp.where(unlucky(p, d["share"]), jnp.nan, whole(p, d["whole"])),
    )  # fmt: skip


@pytest.mark.parametrize("name", ["linear", "logistic", "eight-schools"])
def test_a_model_that_is_nan_at_a_tenth_of_all_draws_lands_where_it_would_without(name):
    model = breaking(find_model(name))
    sound = yo.fit(model, seed=1)
    broken = replace(model, data={**model.data, "share": np.array(0.1)})
    for seed in range(3):
        fit = yo.fit(broken, seed=seed)
        assert fit.converged and fit.elbo.value > sound.elbo.value - 0.5
        looked = fit.num_values + fit.num_gradients
        assert 0.04 < fit.nonfinite.log_p / looked < 0.2 and fit.nonfinite.parameter == 0
        assert fit.num_nonfinite == sum(fit.nonfinite) and f"log p {fit.nonfinite.log_p:,}" in fit.summary()


def real(fn, d=2, **fields):
    return yo.Model.from_log_density(fn, {"x": dist.constraints.real}, {"x": (d,)}, **fields)


def test_a_model_that_is_nan_everywhere_ends_within_seconds_and_names_the_site():
    model = yo.Model(
        prior={"rate": dist.Exponential(1.0), "b": dist.Normal(0.0, 1.0)}, data=np.ones(3),
        log_likelihood=lambda p, y: jnp.log(-p["rate"] * y) + p["b"],
    )  # fmt: skip
    with pytest.warns(RuntimeWarning, match="200 draws in a row were refused"):
        fit = yo.fit(model, "advi")
    assert fit.stop_reason == StopReason.NON_FINITE and fit.seconds.run < 10 and fit.num_steps <= 450
    assert "the likelihood of observation [0, 1, 2] is nan" in fit.stop_detail and "rate = " in fit.stop_detail
    assert fit.stop_detail in fit.summary() and all(np.isfinite(x).all() for x in fit.params)
    with pytest.warns(RuntimeWarning, match="20 draws in a row"):
        assert yo.fit(model, "advi", max_nonfinite=20).num_steps == 20


def test_kinds_are_told_apart():
    flat = lambda p: -0.5 * jnp.sum(p["x"] ** 2)
    steep = jax.custom_jvp(lambda x: -0.5 * jnp.sum(x**2))
    steep.defjvp(lambda at, along: (steep(at[0]), jnp.nan * jnp.sum(along[0])))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        options = dict(method="advi", max_steps=30, max_nonfinite=10)
        gradient = yo.fit(real(lambda p: steep(p["x"])), **options)
        value = yo.fit(real(lambda p: jnp.log(p["x"][0]) + flat(p)), **options, seed=1)
        # A flat density lets q widen until its draws overflow; a slope at the end of the numbers leads out of them.
        draw = yo.fit(real(lambda p: 0.0 * jnp.sum(jnp.tanh(p["x"]))), **options, learning_rate=1e3)
        edge = real(lambda p: p["x"][0], 1, start=lambda key: {"x": jnp.full(1, 1.7e308)})
        parameter = yo.fit(edge, **options, learning_rate=1.7e308, optimizer="constant")
    assert gradient.nonfinite == Nonfinite(gradient=gradient.num_nonfinite) and gradient.num_nonfinite >= 10
    assert "the gradient of log p is not finite" in gradient.stop_detail and "along x" in gradient.stop_detail
    assert value.nonfinite.log_p == value.num_nonfinite > 0
    for fit in (gradient, value, draw, parameter):
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(fit.params))
    assert draw.nonfinite == Nonfinite(draw=10) and "the draw of x is not finite" in draw.stop_detail
    assert parameter.nonfinite == Nonfinite(parameter=10) and "a parameter of q was not finite" in parameter.stop_detail


def test_raise_names_the_site_and_shows_the_draw():
    law = lambda p: dist.Normal(p["m"], p["scale"])
    model = yo.Model(
        prior={"scale": dist.HalfNormal(1.0), "m": dist.Normal(0.0, 1.0)}, data=np.array([1.0, 2.0, 300.0]),
        log_likelihood=lambda p, y: jnp.where((y > 100) & (p["m"] > 0.3), jnp.inf, law(p).log_prob(y)),
    )  # fmt: skip
    with pytest.raises(FloatingPointError) as caught:
        yo.fit(model, "advi", nonfinite="raise", seed=2)
    text = str(caught.value)
    assert "the likelihood of observation 2 is inf" in text and "scale = " in text
    assert float(text.split("m = ")[1].split(",")[0].rstrip(".")) > 0.3


def test_a_start_outside_the_support_is_refused_by_name():
    model = yo.Model(
        prior={"s": dist.HalfNormal(1.0)}, log_likelihood=lambda p, y: dist.Normal(0.0, p["s"]).log_prob(y), data=np.ones(2),
        start=lambda key: {"s": jnp.asarray(-1.0)},
    )  # fmt: skip
    with pytest.raises(ValueError, match="`start` of `Model` must lie inside the support: 's'"):
        yo.fit(model, "advi")


# ---- long runs -------------------------------------------------------------------------------------------


def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads Linux's own accounts of memory")
def test_memory_stays_flat_over_a_million_steps():
    model = real(lambda p: -0.5 * jnp.sum(p["x"] ** 2), 1)
    yo.fit(model, "advi", max_steps=50_000)
    before = resident()
    fit = yo.fit(model, "advi", max_steps=1_000_000)
    grown = resident() - before
    assert fit.num_steps == 1_000_000 and grown < 30e6, f"{grown / 1e6:.0f} MB"
    rows = fit.trace["step"]
    assert MOST_ROWS / 2 <= len(rows) <= MOST_ROWS + 1 and rows[-1] == 1_000_000
    assert sum(v.nbytes for v in fit.trace.values()) < 3e6
    assert (np.diff(rows)[:-1] == 64).all()


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads Linux's own accounts of memory")
def test_two_hundred_fits_leave_no_memory_and_compile_nothing(conjugate):
    fit = lambda seed: yo.fit(conjugate.model, "advi", max_steps=20, seed=seed).mean(100)
    for seed in range(20):
        fit(seed)
    programs, before = compiling.num_programs(), resident()
    for seed in range(200):
        # Rebuilt from the same parts and other data of the same shapes, as a loop over data sets would.
        data = {"X": conjugate.X + seed, "y": conjugate.y}
        yo.fit(replace(conjugate.model, data=data), "advi", max_steps=20, seed=seed)
    assert compiling.num_programs() == programs
    assert resident() - before < 20e6


def test_the_trace_is_thinned_by_its_rule_whatever_the_chunks():
    total = 3 * MOST_ROWS + 7

    def filled(size):
        trace = Trace()
        for begin in range(0, total, size):
            steps = np.arange(begin + 1, min(begin + size, total) + 1)
            blank = np.zeros(size - len(steps), int)  # rows after the end
            column = np.concatenate([steps, blank])[None]
            info = TurnRow(*[column] * len(TurnRow._fields))
            trace.add(info, float(begin), float(begin + len(steps)))
        return trace

    a, b = filled(250), filled(7001)
    c = Trace.from_arrays(a.arrays())
    assert a.stride == b.stride == 4 and same(a.of(0)["step"], b.of(0)["step"]) and same(a.of(0), c.of(0))
    rows = a.of(0)["step"]
    assert rows[-1] == total and (rows[:-1] % 4 == 1).all() and len(rows) == -(-total // 4) + 1
