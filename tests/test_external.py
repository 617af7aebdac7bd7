"""Any Python function as a model: called with NumPy vectors, and its errors come out as they are."""

import traceback

import numpy as np
import numpyro.distributions as dist
import pytest
from typer.testing import CliRunner

import yoasovi as yo
from yoasovi.acceptance import Step
from yoasovi.cli.commands import app
from yoasovi.draws import MonteCarlo
from yoasovi.gradients import Overdispersed
from yoasovi.methods import METHODS, Method, method
from yoasovi.optimizers import Optax
from yoasovi.stopping import Patience
from yoasovi.tempering import Constant


class OutOfReach(Exception):
    """A user's own kind of error."""


def far(x):
    if x[0] > 0.5:
        raise OutOfReach("the solver gave up")
    return -0.5 * np.sum(x**2)


def far_rows(x):
    if (x[:, 0] > 0.5).any():
        raise OutOfReach("the solver gave up")
    return -0.5 * np.sum(x**2, 1)


def test_a_batched_function_gets_rows_of_draws_and_gives_the_same_fit():
    shapes = []

    def rows(x):
        shapes.append(x.shape)
        return -0.5 * np.sum((x - 1.0) ** 2, 1)

    many = yo.fit(yo.Model.external(rows, 3, batched=True))
    one = yo.fit(yo.Model.external(lambda x: -0.5 * np.sum((x - 1.0) ** 2), 3))
    assert {s[1] for s in shapes} == {3}
    assert sum(s[0] for s in shapes) == many.num_values + len(many.log_ratio)
    # A window is one call, and so are the draws behind the ELBO.
    assert len(shapes) <= len(many.trace["step"]) + 5 and max(s[0] for s in shapes) >= 64
    np.testing.assert_allclose(many.params.mean, one.params.mean, rtol=1e-12)


@pytest.mark.parametrize(("fn", "batched"), [(far, False), (far_rows, True)], ids=["by draw", "by rows"])
def test_error_in_the_function_comes_out_as_it_is_with_the_draw_that_caused_it(fn, batched):
    model = yo.Model.external(fn, 2, batched=batched)
    for seed in range(2):  # the second fit fails by its own draw, not by what was left of the first
        with pytest.raises(OutOfReach, match="the solver gave up") as caught:
            yo.fit(model, seed=seed)
        (note,) = caught.value.__notes__
        assert "`fn` of `Model.external`" in note
        assert float(note.split("[")[1].split()[0]) > 0.5
        assert fn.__name__ in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]


@pytest.mark.parametrize(
    ("fn", "batched", "message"),
    [
        (lambda x: x, False, r"returning shape \(\); got shape \(2,\)"),
        (lambda x: None, False, "returning numbers; got None"),
        (lambda x: np.zeros((len(x), 2)), True, r"returning shape \(1,\); got shape \(1, 2\)"),
    ],
)
def test_function_that_returns_anything_but_a_number_is_refused(fn, batched, message):
    host = yo.Model.external(fn, 2, batched=batched).log_likelihood
    with pytest.raises(ValueError, match="`fn` of `Model.external` must be a function " + message):
        host.values(np.zeros((1, 2)))


@pytest.mark.parametrize(
    ("fn", "batched"),
    [(lambda x: (-0.5 * x @ x, -x), False), (lambda x: (-0.5 * np.sum(x**2, 1), -x), True)],
    ids=["by draw", "by rows"],
)
def test_a_gradient_that_was_not_announced_is_told_how_to_be(fn, batched):
    host = yo.Model.external(fn, 2, batched=batched).log_likelihood
    with pytest.raises(ValueError, match=r"`fn` of `Model.external` .* log p alone; pass gradient=True for"):
        host.values(np.zeros((2, 2)))


def test_a_list_of_two_values_is_no_gradient():
    host = yo.Model.external(lambda x: [-1.0, -2.0], 3, batched=True).log_likelihood
    np.testing.assert_array_equal(host.values(np.zeros((2, 3))), [-1.0, -2.0])


# ---- with a gradient of its own --------------------------------------------------------------------------

CENTRE, FACTOR = np.array([1.0, -2.0, 300.0]), np.array([[1.0, 0, 0], [0.8, 0.5, 0], [-20.0, 5.0, 40.0]])
INVERSE = np.linalg.inv(FACTOR @ FACTOR.T)


def correlated(x):
    pull = INVERSE @ (x - CENTRE)
    return -0.5 * (x - CENTRE) @ pull, -pull


def in_jax(params):
    away = params["x"] - CENTRE
    return -0.5 * away @ INVERSE @ away


def test_a_function_with_its_gradient_reaches_the_answer_of_the_same_density_in_jax():
    supports, shapes = {"x": dist.constraints.real}, {"x": (3,)}
    jax_fit = yo.fit(yo.Model.from_log_density(in_jax, supports, shapes), seed=1)
    fit = yo.fit(yo.Model.external(correlated, 3, gradient=True), seed=1)
    assert fit.family.name == jax_fit.family.name == "full_rank" and fit.converged and fit.num_gradients > 0
    np.testing.assert_allclose(fit.params.mean, CENTRE, rtol=1e-6)
    for a, b in zip(fit.params, jax_fit.params, strict=True):  # the same seed draws the same numbers
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)
    assert (fit.num_steps, fit.num_gradients) == (jax_fit.num_steps, jax_fit.num_gradients)


def test_rows_of_a_function_with_its_gradient_give_the_same_fit():
    def rows(x):
        found = [correlated(row) for row in x]
        return np.array([v for v, _ in found]), np.array([g for _, g in found])

    calls = {"one": (correlated, {}), "many": (rows, {"batched": True}), "by its older name": (rows, {"vectorized": True})}
    fits = {k: yo.fit(yo.Model.external(fn, 3, gradient=True, **how), seed=1) for k, (fn, how) in calls.items()}
    assert fits["many"].converged and fits["many"].num_gradients == fits["one"].num_gradients > 0
    for name in ("many", "by its older name"):
        for a, b in zip(fits["one"].params, fits[name].params, strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_function_with_its_gradient_has_means_a_verdict_a_file_and_no_nuts(tmp_path):
    scales = lambda params, data: {"size": np.exp(params["x"][0])}
    model = yo.Model.external(correlated, 3, gradient=True, deterministics=scales, name="mine")
    fit = yo.fit(model, seed=1)
    assert fit.diagnose().grade == "good" and "x[2]" in fit.summary()
    np.testing.assert_allclose(fit.mean()["x"], CENTRE, atol=0.1 * np.sqrt(np.diag(FACTOR @ FACTOR.T)).max())
    draws = fit.sample(50)
    np.testing.assert_allclose(draws["size"], np.exp(draws["x"][:, 0]))
    fit.save(tmp_path / "fit")
    np.testing.assert_array_equal(yo.load(tmp_path / "fit", model=model).sample(50)["x"], draws["x"])
    with pytest.raises(ValueError, match="`refine` needs a density written in JAX; that of mine"):
        fit.refine()
    with pytest.raises(ValueError, match="`dic` needs a likelihood apart from the prior"):
        fit.dic()


def test_a_density_in_one_piece_has_no_dic():
    fit = yo.fit(yo.Model.from_log_density(in_jax, {"x": dist.constraints.real}, {"x": (3,)}, name="whole"))
    with pytest.raises(
        ValueError, match="`dic` needs a likelihood apart from the prior; the density of whole gives the sum"
    ):
        fit.dic()


@pytest.mark.parametrize("name", ["gradient", "batched", "vectorized"])
def test_what_is_neither_true_nor_false_is_refused(name):
    with pytest.raises(ValueError, match=f"`{name}` of `Model.external` must be True or False; got 'yes'"):
        yo.Model.external(hill, 2, **{name: "yes"})


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda x: -0.5 * np.sum(x**2), r"returning \(value, gradient\)"),
        (lambda x: (-0.5 * np.sum(x**2), -x[:1]), r"returning gradient shape \(2,\); got shape \(1,\)"),
        (lambda x: (-0.5 * np.sum(x**2), "steep"), "returning gradient numbers"),
    ],
)
def test_a_gradient_that_is_none_is_refused(fn, message):
    with pytest.raises(ValueError, match="`fn` of `Model.external` must be a function " + message):
        yo.fit(yo.Model.external(fn, 2, gradient=True))


# ---- methods ---------------------------------------------------------------------------------------------


def hill(x):
    return -0.5 * np.sum((x - 2.0) ** 2)


def test_methods_that_differentiate_through_the_draw_are_refused_in_a_sentence():
    given = yo.Model.external(lambda x: (hill(x), 2.0 - x), 2, gradient=True)
    for name in ("advi", "yoasovi-step"):
        with pytest.raises(
            ValueError, match=f"`method` {name} needs a model that can be differentiated; use one of yoasovi"
        ):
            yo.fit(yo.Model.external(hill, 2), name)
        with pytest.raises(
            ValueError, match=rf"`method` {name} needs log p in JAX \(the gradient of an external .* yoasovi"
        ):
            yo.fit(given, name)
    with pytest.raises(ValueError, match=r"`family` of `fit` must be a Gaussian for `Model\.external`"):
        yo.fit(given, family=yo.Factorised())


@pytest.mark.parametrize("name", [n for n in METHODS if n == "yoasovi" or not method(n).gradient.reparameterised])
def test_every_other_method_calls_the_function_once_per_value(name):
    calls = []

    def log_p(x):
        calls.append(x.copy())
        return hill(x)

    fit = yo.fit(yo.Model.external(log_p, 2), name, max_steps=40)
    assert len(calls) == fit.num_values + len(fit.log_ratio)  # the ELBO of the answer is on fresh draws
    assert np.isfinite(fit.elbo.value) and fit.num_gradients == 0


CHAINS = {
    "naive": method("yoasovi-naive", patience=20, optimizer="adam", learning_rate=0.05),
    "looks again": Method("mine", MonteCarlo(3), Overdispersed(1.3), Step(Constant(2.0)), Optax("adam"), Patience(9), 100),
}


@pytest.mark.parametrize("name", CHAINS)
def test_chains_of_a_function_are_those_of_the_same_density_in_jax(name):
    supports, shapes = {"x": dist.constraints.real}, {"x": (2,)}
    jax_model = yo.Model.from_log_density(lambda p: -0.5 * ((p["x"] - 2.0) ** 2).sum(), supports, shapes)
    options = {"seed": 4, "restarts": 3, "max_steps": 100}
    host, jax_fit = (yo.fit(m, CHAINS[name], **options) for m in (yo.Model.external(hill, 2), jax_model))
    assert host.num_values < (4 if name == "looks again" else 1) * 300  # some restart ended long before another
    assert host.stop_reason == jax_fit.stop_reason
    assert (host.num_steps, host.num_values) == (jax_fit.num_steps, jax_fit.num_values)
    for a, b in zip(host.params, jax_fit.params, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10)


def test_command_line_shows_the_error_and_its_draw_in_one_line(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(
        "import yoasovi as yo\n\ndef log_p(x):\n    raise KeyError('no such table')\n\nmodel = yo.Model.external(log_p, 2)\n"
    )
    result = CliRunner().invoke(app, ["fit", f"{path}:model", "--quiet"])
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert "KeyError: 'no such table'" in result.stderr
    assert "at x = [" in result.stderr
