"""The loop: bits, refusals, rollbacks, counts, and stopping."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest

import yoasovi as yo
from yoasovi.acceptance import Metropolis, Naive, Step
from yoasovi.experiments import simulate
from yoasovi.kernels import programs as compiling
from yoasovi.methods import METHODS, method
from yoasovi.stopping import ParameterChange, Patience, StopReason
from yoasovi.tempering import Constant, Linear, Logarithmic, Warmup

ALL = list(METHODS)


@pytest.fixture(scope="module")
def mixture():
    return yo.models.GaussianMixture(simulate.mixture(2, 2)[:60], num_components=2, parameters="paper")


def same(a, b):
    equal = lambda x, y: np.array_equal(x, y, equal_nan=np.asarray(x).dtype.kind == "f")
    return all(equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@pytest.mark.parametrize("name", ["yoasovi", "yoasovi-step", "yoasovi-naive", "bbvi-js+", "qmcvi"])
def test_the_same_seed_gives_the_same_bits_for_any_chunk(conjugate, name):
    fits = [yo.fit(conjugate.model, name, seed=3, max_steps=60, chunk=chunk) for chunk in (1, 7, 100)]
    assert same(fits[0].params, fits[1].params) and same(fits[0].params, fits[2].params)
    assert fits[0].num_steps == fits[1].num_steps == fits[2].num_steps
    timeless = lambda fit: {k: v for k, v in fit.trace.items() if k != "elapsed"}
    assert same(timeless(fits[0]), timeless(fits[2]))
    assert (np.diff(fits[0].trace["elapsed"]) >= 0).all()
    assert not same(fits[0].params, yo.fit(conjugate.model, name, seed=4, max_steps=60).params)


@pytest.mark.parametrize("name", ALL)
def test_the_second_call_of_a_method_compiles_nothing(conjugate, name):
    first = yo.fit(conjugate.model, name, seed=1, max_steps=40)
    programs = compiling.num_programs()
    second = yo.fit(conjugate.model, name, seed=2, max_steps=40)
    assert compiling.num_programs() == programs and second.seconds.compile == 0.0
    assert np.isfinite(first.elbo.value)


@pytest.mark.parametrize("rule", ["yoasovi-naive", "yoasovi-metropolis"])
def test_a_refused_draw_costs_no_gradient_and_moves_no_bit(mixture, rule):
    settings = {"optimizer": "adam", "learning_rate": 0.01, "tempering": Constant(1e6), "patience": 30}
    short = yo.fit(mixture, rule, seed=5, max_steps=3, **settings)
    fit = yo.fit(mixture, rule, seed=5, **settings)
    refused = ~fit.trace["accepted"]
    assert refused[-30:].all() and fit.stop_reason == StopReason.CONVERGED
    assert fit.num_gradients == 0 and fit.num_values == fit.num_steps
    last = int(np.flatnonzero(fit.trace["accepted"])[-1]) + 1
    stopped = yo.fit(mixture, rule, seed=5, max_steps=last, **settings)
    assert same(stopped.params, fit.params)
    assert not same(short.params, fit.params) or last <= 3


def test_a_refused_draw_leaves_the_optimiser_alone(conjugate, x64):
    """The loop's state before and after a refused turn, bit by bit."""
    from yoasovi.drive import Program, start, turn
    from yoasovi.kernels.programs import Clock, as_arrays
    from yoasovi.start import cold_start

    chosen = method("yoasovi-naive", optimizer="adam", learning_rate=0.1, tempering=Constant(1e9))
    family, model = yo.MeanField(), conjugate.model
    program = Program(
        model.density, family, chosen.draws, chosen.gradient, chosen.acceptance, chosen.optimizer, chosen.stopping, 200
    )
    inputs = as_arrays(model.inputs)
    state = start(program, inputs, cold_start(model, family, Clock(), 0), 16.0)
    step = jax.jit(lambda s: turn(program, inputs, jax.random.key(1), jnp.asarray(10**6), s))
    seen = set()
    for _ in range(60):
        new, info = step(state)
        accepted = bool(info.accepted)
        seen.add(accepted)
        assert same((new.params, new.memory), (state.params, state.memory)) != accepted
        state = new
    assert seen == {True, False}


@pytest.mark.parametrize("restore", [True, False])
def test_an_undone_step_restores_the_optimiser_if_asked(conjugate, x64, restore):
    from yoasovi.drive import Program, start, turn
    from yoasovi.kernels.programs import Clock, as_arrays
    from yoasovi.start import cold_start

    chosen = method("yoasovi-step", learning_rate=0.5, tempering=Constant(1e6), restore_optimizer=restore)
    family, model = yo.MeanField(), conjugate.model
    program = Program(
        model.density, family, chosen.draws, chosen.gradient, chosen.acceptance, chosen.optimizer, chosen.stopping, 200
    )
    inputs = as_arrays(model.inputs)
    state = start(program, inputs, cold_start(model, family, Clock(), 0), 16.0)
    step = jax.jit(lambda s: turn(program, inputs, jax.random.key(1), jnp.asarray(10**6), s))
    undone = 0
    for _ in range(40):
        new, info = step(state)
        if not bool(info.accepted):
            undone += 1
            assert same(new.params, state.params)
            assert same(new.memory, state.memory) == restore
            assert same(new.yardstick, state.yardstick)
        state = new
    assert undone > 5


@pytest.mark.slow
def test_every_method_runs_on_the_papers_mixture(mixture):
    for name in ALL:
        if method(name).gradient.reparameterised and method(name).values_only is None:
            with pytest.raises(ValueError, match="needs a family with a differentiable draw"):
                yo.fit(mixture, name, max_steps=20)
        elif not method(name).gradient.reparameterised:
            fit = yo.fit(mixture, name, max_steps=20)
            assert np.isfinite(fit.elbo.value) and fit.num_steps <= 20


def test_counts_of_values_and_gradients_are_kept_apart(conjugate):
    assert yo.fit(conjugate.model, "advi", max_steps=30, draws=3).num_gradients == 90
    assert yo.fit(conjugate.model, "advi", max_steps=30).num_values == 0
    assert yo.fit(conjugate.model, "mcvi", max_steps=30, draws=4).num_values == 120
    stepped = yo.fit(conjugate.model, "yoasovi-step", max_steps=30)
    assert (stepped.num_gradients, stepped.num_values) == (30, 30)


def test_any_optax_transformation_works(conjugate):
    fit = yo.fit(conjugate.model, "advi", optimizer=optax.chain(optax.clip(1.0), optax.adam(0.05)), max_steps=1500)
    assert abs(fit.elbo.value - conjugate.evidence) < 0.7
    for name in ("constant", "adagrad", "adadelta", "adam", "rmsprop"):
        assert np.isfinite(yo.fit(conjugate.model, "advi", optimizer=name, max_steps=20).elbo.value)


def test_acceptance_probabilities_are_the_papers():
    for rule, want in ((Naive(Constant(1.5)), 1 - 1.5 * 0.1), (Metropolis(Constant(1.5)), np.exp(-1.5 * 0.1))):
        keys = jax.random.split(jax.random.key(0), 4000)
        control = rule.init(None, 1.0)
        said = jax.vmap(lambda k: rule.screen(k, control, jnp.asarray(-1650.0), jnp.asarray(-1500.0), 5))(keys)
        assert abs(float(said.mean()) - want) < 5 * np.sqrt(want * (1 - want) / 4000)
        assert bool(rule.screen(keys[0], control, jnp.asarray(-1400.0), jnp.asarray(-1500.0), 5))
        assert bool(rule.screen(keys[0], control, jnp.asarray(-1e9), jnp.asarray(jnp.nan), 1))  # the first draw
        assert not bool(rule.screen(keys[0], control, jnp.asarray(jnp.nan), jnp.asarray(-1500.0), 5))


def test_tempering_rules_are_their_formulas():
    assert float(Constant(2.0).strictness((), 7)) == 2.0
    assert float(Logarithmic(3.0).strictness((), jnp.asarray(5))) == pytest.approx(3 * np.log(5))
    ramp = Linear(0.1, 15.0, 100)
    assert [float(ramp.strictness((), t)) for t in (1, 100, 500)] == pytest.approx([0.1, 15.0, 15.0])
    assert float(Linear(1.0, 50.0, 50).strictness((), 23)) == pytest.approx(23.0)
    rule = Warmup(start=1.0, factor=2.0, block=4, share=0.25)
    memory = rule.init()
    for turned in (True, True, False, False, False, True, False, False, True, True, True, True):
        memory = rule.update(memory, jnp.asarray(turned))
    assert float(memory.strictness) == 2.0 and bool(memory.done)  # raised once, then calm, then kept


def test_stopping_rules_count_what_they_say():
    rule = Patience(2)
    memory, stops = rule.init(), []
    for missed in (True, False, True, True):
        memory, stop = rule.update(memory, jnp.asarray(missed), jnp.asarray(not missed), jnp.asarray(0.0))
        stops.append(bool(stop))
    assert stops == [False, False, False, True]
    assert bool(ParameterChange(1e-3).update((), False, jnp.asarray(True), jnp.asarray(1e-4))[1])
    assert "max_steps" in StopReason.MAX_STEPS.sentence


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"method": "yosovi"}, "did you mean 'yoasovi'"),
        ({"method": "yoasovi-naive", "patience": 0}, "`patience` of `Patience` must be a positive integer; got 0"),
        ({"method": "yoasovi-naive", "tempering": (lambda: Constant(-1.0))}, "`value` of `Constant`"),
        ({"method": "mcvi", "draws": 0}, "`size` of `MonteCarlo`"),
        ({"method": "advi", "learning_rate": -1.0}, "`learning_rate` of `fit`"),
        ({"method": "advi", "patience": 3}, "advi has no setting patience"),
        ({"method": "advi", "optimizer": "adamm"}, "`optimizer` of `fit` must be one of"),
        ({"family": "fullrank"}, "`family` of `fit` must be auto"),
        ({"restarts": 0}, "`restarts` of `fit`"),
        ({"max_steps": -5}, "`max_steps` of `fit`"),
        ({"seed": "a"}, "`seed` of `fit`"),
        ({"nonfinite": "ignore"}, "`nonfinite` of `fit`"),
    ],
)
def test_bad_arguments_are_named_before_anything_is_compiled(conjugate, settings, message):
    programs = compiling.num_programs()
    with pytest.raises(ValueError, match="(?i)" + message):
        if callable(settings.get("tempering")):
            settings = {**settings, "tempering": settings["tempering"]()}
        yo.fit(conjugate.model, **settings)
    assert compiling.num_programs() == programs


def normal_likelihood(params, data):
    return dist.Normal(params["m"], 1.0).log_prob(data)


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: yo.Model(prior={}, log_likelihood=normal_likelihood), "`prior` of `Model`"),
        (lambda: yo.Model(prior={"m": 3}, log_likelihood=normal_likelihood), r"prior\['m'\]` of `Model`"),
        (lambda: yo.Model(prior={"m": dist.Normal()}, log_likelihood=5), "`log_likelihood` of `Model`"),
        (lambda: _model(jnp.array([1.0, jnp.nan])), "`data` of `Model` must be finite"),
        (lambda: _model(jnp.zeros(0)), "`data` of `Model` must be non-empty"),
        (lambda: _model(jnp.ones(3), lambda p, y: normal_likelihood(p, y).sum()), "one value per observation"),
        (lambda: _model({"x": jnp.ones(3), "y": jnp.ones(4)}, lambda p, d: d["x"] + d["y"]), "`log_likelihood` of `Model`"),
        (lambda: yo.Model.external(lambda x: 0.0, 0), "`dim` of `Model.external`"),
    ],
)
def test_bad_models_are_refused_where_they_are_built(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def _model(data, fn=normal_likelihood):
    return yo.Model(prior={"m": dist.Normal(0.0, 1.0)}, log_likelihood=fn, data=data)


def test_naive_keeps_lucky_draws_and_does_not_optimise_the_elbo():
    """At the author's settings the run reports far more than its parameters are worth."""
    y = simulate.mixture(2, 2)
    model = yo.models.GaussianMixture(y, num_components=2, parameters="paper")
    fits = [yo.fit(model, "yoasovi-naive", seed=s, max_steps=500) for s in range(8)]
    reported = np.mean([f.reported_elbo for f in fits])
    fresh = np.mean([f.elbo.value for f in fits])
    starts = np.mean([yo.fit(model, "yoasovi-naive", seed=s, max_steps=1, learning_rate=1e-30).elbo.value for s in range(8)])
    assert reported > -4_500
    assert reported - fresh > 1_000
    assert fresh < starts + 150 and starts < -5_000
    assert model.optimum() == pytest.approx(-1790.0, abs=0.5)


@pytest.mark.parametrize("p, k, within", [(2, 2, 10), (2, 3, 15), (3, 4, 30)])
def test_one_draw_with_rao_blackwell_and_baselines_comes_close_to_coordinate_ascent(p, k, within):
    model = yo.models.GaussianMixture(simulate.mixture(p, k), num_components=k)
    fit = yo.fit(model, "bbvi-rb", baseline=0.9, seed=1)
    assert fit.num_steps == 3_000 and fit.num_values == 3_000
    assert model.optimum() - fit.elbo.value < within


def test_step_acceptance_is_a_setting_of_its_own():
    assert Step(Constant(1.0)).restores_optimizer and not Step(Constant(1.0), restore_optimizer=False).restores_optimizer


def test_numpy_constants_of_a_density_work_before_and_after_a_fit_in_float32():
    """JAX confuses the precisions of NumPy constants between traces; a fit must not break the user's own code."""
    from numpyro.distributions import constraints

    centre = np.full(3, 2.0)
    log_p = lambda p: -0.5 * jnp.sum((p["x"] - centre) ** 2)
    start = {"x": jnp.zeros(3)}
    assert jax.jit(log_p)(start).dtype == jnp.float32
    fit = yo.fit(yo.Model.from_log_density(log_p, {"x": constraints.real}, {"x": (3,)}))
    np.testing.assert_allclose(fit.mean()["x"], 2.0, atol=0.1)
    assert jax.jit(jax.grad(log_p))(start)["x"].dtype == jnp.float32
    assert not jax.config.jax_enable_x64
