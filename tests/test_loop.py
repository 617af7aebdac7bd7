"""The loop: bits, refusals, rollbacks, counts, and stopping."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest
from scipy.special import ndtri

import yoasovi as yo
from yoasovi import turns
from yoasovi.acceptance import Always, Metropolis, Naive, Step
from yoasovi.draws import Antithetic, Halton, Mirrored, MonteCarlo
from yoasovi.experiments import simulate
from yoasovi.fitting import turns_of
from yoasovi.gradients import NaturalScore, Overdispersed, RaoBlackwell, Reparam, Score, StickingTheLanding
from yoasovi.kernels import programs as compiling
from yoasovi.methods import METHODS, Method, method
from yoasovi.optimizers import Natural, Optax
from yoasovi.randomness import Purpose, open_uniform, stream
from yoasovi.start import cold_start
from yoasovi.stopping import MaxSteps, ParameterChange, Patience, StopReason
from yoasovi.tempering import Constant, Linear, Logarithmic, Warmup
from yoasovi.windows.rule import Window

ALL = list(METHODS)


@pytest.fixture(scope="module")
def mixture():
    return yo.models.GaussianMixture(simulate.mixture(2, 2)[:60], num_components=2, parameters="paper")


def same(a, b):
    equal = lambda x, y: np.array_equal(x, y, equal_nan=np.asarray(x).dtype.kind == "f")
    return all(equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def timeless(fit):
    return {k: v for k, v in fit.trace.items() if k != "elapsed"}


@pytest.mark.parametrize("name", ["yoasovi", "yoasovi-step", "yoasovi-naive", "bbvi-js+", "qmcvi"])
def test_the_same_seed_gives_the_same_bits(conjugate, name):
    fits = [yo.fit(conjugate.model, name, seed=3, max_steps=60) for _ in range(2)]
    assert same(fits[0].params, fits[1].params) and same(timeless(fits[0]), timeless(fits[1]))
    assert fits[0].num_steps == fits[1].num_steps
    assert (np.diff(fits[0].trace["elapsed"]) >= 0).all()
    assert not same(fits[0].params, yo.fit(conjugate.model, name, seed=4, max_steps=60).params)


@pytest.mark.parametrize("name", ["advi", "yoasovi-step", "yoasovi-naive", "qmcvi"])
def test_single_steps_do_not_depend_on_how_many_of_them_one_call_takes(conjugate, name, monkeypatch):
    """A step's noise comes from a stream of its own lane and block of steps, so a run cut short is the start of the run."""
    options = {"seed": 3, "max_steps": 100, **({"patience": 1000} if "yoasovi" in name else {})}
    whole = yo.fit(conjugate.model, name, **options)
    monkeypatch.setattr(turns.chains, "_TURNS", 32)
    pieces = yo.fit(conjugate.model, name, **options)
    assert same(whole.params, pieces.params) and same(timeless(whole), timeless(pieces))
    short = yo.fit(conjugate.model, name, **{**options, "max_steps": 41})
    begin = {k: v[: short.num_steps] for k, v in timeless(whole).items()}
    assert same(begin, timeless(short))


@pytest.mark.parametrize("name", ["advi", "yoasovi-step"])
def test_a_run_that_goes_on_with_more_steps_is_the_run_that_was_never_cut(conjugate, name, tmp_path):
    options = {"seed": 3, "restarts": 2}
    whole = yo.fit(conjugate.model, name, max_steps=150, **options)
    yo.fit(conjugate.model, name, max_steps=70, checkpoint=tmp_path / "run", **options)
    more = yo.fit(conjugate.model, name, max_steps=150, checkpoint=tmp_path / "run", resume=True, **options)
    assert same(whole.params, more.params) and more.num_steps == whole.num_steps


@pytest.mark.parametrize("name", ["advi", "yoasovi-naive", "qmcvi"])
def test_a_lane_sees_the_same_numbers_alone_and_among_others(conjugate, name):
    """The first of several starts where a single one does, so it ends where that ends; others look elsewhere."""
    limits = turns.Limits(3, 40, 200)

    def ends(lanes):
        made = turns_of(conjugate.model, method(name), yo.MeanField(), limits, compiling.Clock(), lanes)
        flat = np.zeros((lanes, 2))
        state = made.begin(yo.MeanField().init(flat, np.exp(flat), None), np.ones(lanes))
        return made.take(state)[0].params.mean

    one, three = ends(1), ends(3)
    np.testing.assert_allclose(three[0], one[0], rtol=1e-9)
    assert not np.allclose(three[1], three[0]) and not np.allclose(three[2], three[1])


def test_the_noise_of_a_chain_comes_from_named_streams(conjugate):
    """Draws, second looks and luck share no number, whatever else a fit asks for."""
    made = turns_of(conjugate.model, method("yoasovi-step"), yo.MeanField(), turns.Limits(7, 40, 200), compiling.Clock(), 2)
    noise = made.links._noise(np.array([0, 40]), 50)
    points = [MonteCarlo().points(stream(7, Purpose.CHAIN, lane, block), 32, 2) for lane, block in ((0, 0), (1, 1))]
    np.testing.assert_array_equal(noise.draws[0, :32], ndtri(points[0]))
    np.testing.assert_array_equal(noise.draws[1, :24], ndtri(points[1])[8:])  # that lane is at its 40th step
    fresh = open_uniform(stream(7, Purpose.CHAIN_JUDGE, 0, 0), (32, 1, 2))
    np.testing.assert_array_equal(noise.fresh[0, :32], ndtri(fresh))
    np.testing.assert_array_equal(noise.luck[0, :32], open_uniform(stream(7, Purpose.CHAIN_LUCK, 0, 0), (32, 2)))
    assert noise.keys is None and noise.fresh_keys is None  # there are no minibatches
    everything = np.concatenate([np.ravel(x) for x in noise if x is not None])
    assert len(np.unique(everything)) == everything.size


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


def single_turns(model, chosen, count):
    """Take turns of a chain one by one; give its states and what each turn had to tell."""
    family, limits = yo.MeanField(), turns.Limits(1, 10**6, 200)
    made = turns_of(model, chosen, family, limits, compiling.Clock(), 1)
    made.links.block, made.links.turns = 2, lambda lanes: 1
    states, rows = [made.begin(cold_start(model, family, 0).params, np.ones(1))], []
    for _ in range(count):
        state, row = made.take(states[-1])
        states.append(state)
        rows.append(row)
    return states, rows


def test_a_refused_draw_leaves_the_optimiser_alone(conjugate):
    """The loop's state before and after a refused turn, bit by bit."""
    chosen = method("yoasovi-naive", optimizer="adam", learning_rate=0.1, tempering=Constant(1e9))
    states, rows = single_turns(conjugate.model, chosen, 60)
    seen = set()
    for state, new, row in zip(states, states[1:], rows, strict=False):
        accepted = bool(row.accepted[0, 0])
        seen.add(accepted)
        assert same((new.params, new.memory), (state.params, state.memory)) != accepted
    assert seen == {True, False}


@pytest.mark.parametrize("restore", [True, False])
def test_an_undone_step_restores_the_optimiser_if_asked(conjugate, restore):
    chosen = method("yoasovi-step", learning_rate=0.5, tempering=Constant(1e6), restore_optimizer=restore)
    states, rows = single_turns(conjugate.model, chosen, 40)
    undone = 0
    for state, new, row in zip(states, states[1:], rows, strict=False):
        if not row.accepted[0, 0]:
            undone += 1
            assert same(new.params, state.params)
            assert same(new.memory, state.memory) == restore
            assert same(new.yardstick, state.yardstick)
    assert undone > 5


@pytest.mark.parametrize("name", ALL)
def test_every_method_runs_on_the_papers_mixture(mixture, name):
    if method(name).gradient.reparameterised and method(name).values_only is None:
        with pytest.raises(ValueError, match="needs a family with a differentiable draw"):
            yo.fit(mixture, name, max_steps=20, restarts=3)
        return
    fit = yo.fit(mixture, name, max_steps=20, restarts=3)
    assert np.isfinite(fit.elbo.value) and fit.num_steps <= 20 and len(fit.restart_elbos) == 3
    assert fit.elbo.value == max(e.value for e in fit.restart_elbos)


# Parts that no named method has, each put together with parts that have one.
UNUSUAL = {
    "overdispersed": (MonteCarlo(3), Overdispersed(1.2), Always(), MaxSteps()),
    "Halton": (Halton(4), Score(), Always(), MaxSteps()),
    "antithetic": (Antithetic(4), Reparam(), Always(), MaxSteps()),
    "mirrored": (Mirrored(), StickingTheLanding(), Always(), MaxSteps()),
    "warm-up": (MonteCarlo(1), Score(0.9), Metropolis(Warmup(), "noise", centered=True), Patience(600)),
    "steps by score": (MonteCarlo(1), Score(0.9), Step(Warmup()), Patience(600)),
    "windows": (MonteCarlo(2), Reparam(), Window(lines=False, step=1.0), Patience(3)),
    "windows to the end": (MonteCarlo(2), RaoBlackwell(0.9), Window(lines=False, step=1.0), MaxSteps()),
}


FAR = np.random.default_rng(0).normal([3.0, -3.0], 1.0, size=(8, 2))


def far_likelihood(params, y):
    return dist.Normal(params["m"], 1.0).to_event(1).log_prob(y)


@pytest.mark.parametrize("name", UNUSUAL)
def test_parts_that_no_named_method_has_work_together(name):
    far = yo.Model(prior={"m": dist.Normal(np.zeros(2), 1.0).to_event(1)}, log_likelihood=far_likelihood, data=FAR)
    draws, gradient, rule, stopping = UNUSUAL[name]
    chosen = Method(name, draws, gradient, rule, Optax("adam", 0.02), stopping, 600)
    begin = yo.fit(far, replace(chosen, max_steps=1), seed=1, restarts=2)
    fit = yo.fit(far, chosen, seed=1, restarts=2)
    assert fit.elbo.value > begin.elbo.value + 10 and np.isfinite(fit.reported_elbo)  # of 66 nats that there are
    spent = fit.num_gradients if gradient.reparameterised else fit.num_values
    assert spent >= draws.size * fit.num_steps and (fit.num_gradients > 0) == gradient.reparameterised
    assert len(fit.restart_elbos) == 2


@pytest.mark.parametrize("variant", ["code", "paper", "textbook"])
def test_every_form_of_james_stein_runs_on_the_papers_mixture(mixture, variant):
    fit = yo.fit(mixture, "bbvi-js+", variant=variant, max_steps=20)
    assert np.isfinite(fit.elbo.value) and fit.num_values == 100 * fit.num_steps


def test_natural_steps_are_not_to_be_had_one_by_one():
    natural = (Mirrored(), NaturalScore(), Always(), Natural(), MaxSteps(), 100)
    said = r"Natural steps are judged by windows, so `acceptance` must be Window\(\); got Always\(\)\. With Always use Optax"
    with pytest.raises(ValueError, match=said):
        Method("mine", *natural)


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
        control, unlucky = rule.init(), 1.0 - 2.0**-24
        screen = lambda luck, elbo, reference, t=5, rule=rule, control=control: rule.screen(
            luck, control, jnp.asarray(elbo), jnp.asarray(reference), t
        )
        said = screen(jnp.asarray(np.random.default_rng(0).random(4000)), -1650.0, -1500.0)
        assert abs(float(said.mean()) - want) < 5 * np.sqrt(want * (1 - want) / 4000)
        assert bool(screen(want - 1e-6, -1650.0, -1500.0)) and not bool(screen(want + 1e-6, -1650.0, -1500.0))
        assert bool(screen(unlucky, -1400.0, -1500.0))
        assert bool(screen(unlucky, -1e9, jnp.nan, 1))  # the first draw
        assert not bool(screen(0.0, jnp.nan, -1500.0))


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


@pytest.mark.parametrize("p, k, within", [(2, 2, 10), (3, 4, 30)])
def test_one_draw_with_rao_blackwell_and_baselines_comes_close_to_coordinate_ascent(p, k, within):
    model = yo.models.GaussianMixture(simulate.mixture(p, k), num_components=k)
    fit = yo.fit(model, "bbvi-rb", baseline=0.9, seed=0)
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
