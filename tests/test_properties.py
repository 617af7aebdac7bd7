"""Properties that hold for any data, seed and setting: no crash without a clear error, the same bits, and invariances.

Everything that varies is data, so that few programs are compiled; shapes and methods vary in small tables.
"""

import warnings
from dataclasses import replace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import given, settings, strategies as st

import yoasovi as yo
from yoasovi.kernels import programs as compiling

N, D = 20, 3
RNG = np.random.default_rng(11)
X, Y = RNG.normal(size=(N, D)), RNG.normal(size=N)
# The same examples each time: a failure can be seen again.
some = lambda count: settings(max_examples=count, deadline=None, derandomize=True, database=None)


def likelihood(params, data):
    return dist.Normal(data["X"] @ params["w"], 1.0).log_prob(data["y"]) + data["constant"] / N


def model(X=X, y=Y, unit=1.0, constant=0.0):
    """Regression whose coefficients are measured in `unit`, with a constant added to log p."""
    unit = np.broadcast_to(np.asarray(unit, float), (D,)).copy()
    return yo.Model(
        prior={"w": dist.Normal(np.zeros(D), 1.0 / unit).to_event(1)}, log_likelihood=likelihood,
        data={"X": X * unit, "y": y, "constant": np.asarray(constant)},
    )  # fmt: skip


def quiet(*args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return yo.fit(*args, **options)


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def finite(tree):
    return all(np.isfinite(x).all() for x in jax.tree.leaves(tree))


@pytest.fixture(scope="module")
def plain():
    return yo.fit(model(), seed=0)


def evidence(X, y):
    joint = np.eye(N) + X @ X.T
    return -0.5 * (y @ np.linalg.solve(joint, y) + np.linalg.slogdet(joint)[1] + N * np.log(2 * np.pi))


# ---- the default method ----------------------------------------------------------------------------------


@some(8)
@given(seed=st.integers(-(2**63), 2**63 - 1), wide=st.booleans(), dtype=st.sampled_from([np.float32, np.float64]))
def test_the_same_seed_gives_the_same_bits_in_any_precision_of_the_user(seed, wide, dtype):
    given = model(X.astype(dtype).astype(float), Y.astype(dtype).astype(float))
    narrow = replace(given, data={k: np.asarray(v, dtype) for k, v in given.data.items()})
    first = yo.fit(given, seed=seed)
    with jax.enable_x64(wide):
        second = yo.fit(narrow, seed=seed)
    assert same(first.params, second.params) and first.elbo == second.elbo and first.num_steps == second.num_steps
    assert first.elbo.value == pytest.approx(evidence(X.astype(dtype), Y.astype(dtype)), abs=0.1)


@some(8)
@given(constant=st.floats(-1e4, 1e4), seed=st.integers(0, 3))
def test_a_constant_added_to_log_p_changes_nothing_but_the_elbo(constant, seed):
    fit, shifted = yo.fit(model(), seed=seed), yo.fit(model(constant=constant), seed=seed)
    for a, b in zip(fit.params, shifted.params, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-7)
    assert shifted.elbo.value - constant == pytest.approx(fit.elbo.value, abs=1e-6)
    assert (fit.num_steps, fit.num_values) == (shifted.num_steps, shifted.num_values)


@some(6)
@given(order=st.permutations(range(D)), seed=st.integers(0, 3))
def test_parameters_may_come_in_any_order(order, seed):
    fit = yo.fit(model(X[:, order]), seed=seed)
    assert fit.converged and fit.elbo.value == pytest.approx(evidence(X, Y), abs=0.1)
    mean = np.linalg.solve(X.T @ X + np.eye(D), X.T @ Y)
    np.testing.assert_allclose(fit.params.mean, mean[list(order)], atol=0.05)


@some(12)
@given(powers=st.lists(st.floats(-3, 3), min_size=D, max_size=D), seed=st.integers(0, 3))
def test_the_unit_of_a_parameter_does_not_matter_within_noise(powers, seed):
    unit = 10.0 ** np.array(powers)
    fit = yo.fit(model(unit=unit), seed=seed)
    assert fit.converged and fit.elbo.value == pytest.approx(evidence(X, Y), abs=0.1)
    mean = np.linalg.solve(X.T @ X + np.eye(D), X.T @ Y)
    np.testing.assert_allclose(fit.params.mean * unit, mean, atol=0.05)


def test_names_do_not_matter(plain):
    renamed = yo.Model(
        prior={"a_name": dist.Normal(np.zeros(D), np.ones(D)).to_event(1)},
        log_likelihood=lambda p, d: likelihood({"w": p["a_name"]}, d), data=model().data,
    )  # fmt: skip
    assert same(yo.fit(renamed, seed=0).params, plain.params)


@some(15)
@given(
    power=st.floats(-150, 150), outlier=st.sampled_from([0.0, 1e3, -1e8, 1e300]), seed=st.integers(0, 2**31),
    rank=st.integers(0, D), steps=st.integers(1, 400),
)  # fmt: skip
def test_no_data_makes_a_fit_crash_or_gives_parameters_that_are_not_finite(power, outlier, seed, rank, steps):
    design = X.copy()
    design[:, rank:] = 0.0  # columns that say nothing
    y = Y * 10.0**power
    y[3] += outlier
    fit = quiet(model(design, y), seed=seed, max_steps=steps)
    assert finite(fit.params) and fit.num_steps <= steps
    assert fit.stop_reason.sentence and (fit.converged <= np.isfinite(fit.elbo.value))


@some(10)
@given(seed=st.integers(0, 2**31), powers=st.lists(st.floats(-2, 2), min_size=D, max_size=D))
def test_in_float32_any_seed_and_unit_gives_the_evidence_too(seed, powers):
    with mock.patch.object(compiling, "_WIDE_ON", ()):  # as on accelerators
        fit = yo.fit(model(unit=10.0 ** np.array(powers)), seed=seed)
        (slope,) = fit.kernels.point(fit.params.mean[None])[1]
    assert (slope == np.float32(slope)).all() and finite(fit.params)  # that is how log p was counted, but for its sum
    assert fit.converged and fit.elbo.value == pytest.approx(evidence(X, Y), abs=0.1)


def test_other_data_of_the_same_shapes_compile_nothing():
    yo.fit(model(X, unit=1.0), seed=8)
    programs = compiling.num_programs()
    yo.fit(model(X + 1.0, unit=3.0), seed=9)
    assert compiling.num_programs() == programs


# ---- shapes, methods, arguments --------------------------------------------------------------------------

SHAPES = {
    "a number": lambda: yo.Model.from_log_density(lambda p: -(p["x"] ** 2), {"x": dist.constraints.real}),
    "a simplex and a matrix": lambda: yo.Model(
        prior={"s": dist.Dirichlet(np.ones(3)), "m": dist.Normal(np.zeros((2, 3)), 1.0).to_event(2)},
        log_likelihood=lambda p, d: d * jnp.log(p["s"]) - jnp.sum(p["m"] ** 2, 0), data=np.ones(3),
    ),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_any_shape_and_seed_runs_and_repeats(shape):
    target = SHAPES[shape]()

    @some(4)
    @given(seed=st.integers(-(2**63), 2**63 - 1), steps=st.integers(1, 50))
    def check(seed, steps):
        fits = [quiet(target, "advi", seed=seed, max_steps=steps) for _ in range(2)]
        assert same(fits[0].params, fits[1].params) and finite(fits[0].params) and fits[0].num_steps == steps

    check()


anything = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5),
    st.lists(st.integers(), max_size=2),
)  # fmt: skip
ARGUMENTS = ("seed", "max_steps", "restarts", "nonfinite", "max_nonfinite", "family", "resume", "patience")


@some(60)
@given(name=st.sampled_from(ARGUMENTS), value=anything)
def test_an_argument_of_any_kind_works_or_is_refused_by_name(name, value):
    class Reached(Exception):
        pass

    def stop(*_, **__):
        raise Reached

    from yoasovi import fitting

    original, fitting._fit = fitting._fit, stop  # what is checked is what comes before
    try:
        with pytest.raises((Reached, ValueError)) as caught:
            yo.fit(model(), **{name: value})
    finally:
        fitting._fit = original
    if caught.type is not Reached:
        assert f"`{name}` of `" in str(caught.value) or "folder to resume from" in str(caught.value)
