"""Every part, every check: one table."""

from dataclasses import fields, replace

import jax
import numpy as np
import optax
import pytest

import yoasovi as yo
from yoasovi import acceptance, draws, gradients, optimizers, stopping, tempering
from yoasovi.kernels import programs
from yoasovi.methods import METHODS, Method, method
from yoasovi.windows.rule import Window
from yoasovi.windows.value_rule import ValueWindow

ADAM = optimizers.Optax("adam", 0.01)
PARTS = {
    "acceptance": [
        acceptance.Always(), acceptance.Naive(), acceptance.Metropolis(scale="noise"), acceptance.Metropolis(centered=True),
        acceptance.Step(), acceptance.Step(restore_optimizer=False), Window(lines=False, step=1.0),
    ],
    "gradient": [
        gradients.Score(), gradients.Score(0.9), gradients.RaoBlackwell(0.9), gradients.JamesStein("code"),
        gradients.JamesStein("paper"), gradients.JamesStein("textbook"), gradients.Overdispersed(1.5), gradients.Reparam(),
        gradients.StickingTheLanding(),
    ],
    "optimizer": [
        *(optimizers.Optax(name, 0.01) for name in optimizers.NAMED),
        optimizers.Custom(optax.chain(optax.clip(1.0), optax.sgd(0.01))),
    ],
    "stopping": [stopping.Patience(3), stopping.ParameterChange(1e-3), stopping.MaxSteps()],
    "draws": [draws.MonteCarlo(3), draws.Antithetic(4), draws.Mirrored(), draws.Sobol(4), draws.Halton(3)],
    "tempering": [tempering.Constant(1.5), tempering.Logarithmic(3.0), tempering.Linear(0.1, 15.0, 50), tempering.Warmup()],
    "family": [yo.MeanField(), yo.FullRank(), yo.LowRank(2), yo.Factorised()],
}  # fmt: skip
ALL = [(kind, part) for kind, parts in PARTS.items() for part in parts]


def table(*kinds, but=()):
    rows = [(kind, part) for kind, part in ALL if (not kinds or kind in kinds) and part not in but]
    return pytest.mark.parametrize(("kind", "part"), rows, ids=lambda x: x if isinstance(x, str) else repr(x)[:40])


TABLE = table()


def made_with(kind, part):
    """Put a small method together around one part; give it and its family."""
    pieces = dict(name="test", draws=draws.MonteCarlo(2), gradient=gradients.Reparam(), acceptance=acceptance.Always(),
                  optimizer=ADAM, stopping=stopping.MaxSteps(), max_steps=30)  # fmt: skip
    family = yo.MeanField()
    if kind == "family":
        family = part
        pieces["gradient"] = gradients.Score(0.9)
    elif kind == "tempering":
        pieces["acceptance"] = acceptance.Metropolis(part)
        pieces["gradient"] = gradients.Score()
    else:
        pieces[kind] = part
    if isinstance(pieces["acceptance"], (acceptance.Naive, acceptance.Metropolis)):
        pieces["gradient"] = gradients.Score()
    return Method(**pieces), family


@TABLE
def test_a_part_works_in_a_fit_whose_second_run_compiles_nothing(kind, part, conjugate):
    chosen, family = made_with(kind, part)
    first = yo.fit(conjugate.model, chosen, family, seed=1)
    assert np.isfinite(first.elbo.value) and 0 < first.num_steps <= 30
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(first.params))
    before = programs.num_programs()
    rebuilt, family = made_with(kind, rebuild(part))
    second = yo.fit(conjugate.model, rebuilt, family, seed=2)
    assert programs.num_programs() == before and second.seconds.compile == 0.0


@table("acceptance", "gradient", "family", but=[gradients.JamesStein("paper"), gradients.JamesStein("textbook")])
def test_a_part_works_in_lanes(kind, part, conjugate):
    chosen, family = made_with(kind, part)
    together = yo.fit(conjugate.model, chosen, family, seed=3, restarts=2)
    assert len(together.restart_elbos) == 2 and all(np.isfinite(e.value) for e in together.restart_elbos)


@table("gradient", "draws", "family")
def test_a_part_works_in_single_precision(kind, part, conjugate, monkeypatch):
    monkeypatch.setattr(programs, "_WIDE_ON", ())
    chosen, family = made_with(kind, part)
    fit = yo.fit(conjugate.model, chosen, family, seed=4)
    assert np.isfinite(fit.elbo.value) and all(np.isfinite(x).all() for x in jax.tree.leaves(fit.params))


@TABLE
def test_a_part_is_a_frozen_set_of_plain_settings(kind, part):
    assert hash(part) == hash(rebuild(part)) and part == rebuild(part)
    for field in fields(part):
        with pytest.raises(AttributeError):
            setattr(part, field.name, None)


def rebuild(part):
    return replace(part)


def test_methods_that_cannot_be_put_together_are_refused_with_a_sentence():
    natural, score, window = optimizers.Natural(), gradients.NaturalScore(), Window()
    rest = (stopping.Patience(3), 100)
    one = draws.MonteCarlo(1)
    with pytest.raises(ValueError, match=r"Natural steps are judged by windows, so `acceptance` must be Window\(\)"):
        Method("m", one, score, acceptance.Always(), natural, *rest)
    with pytest.raises(ValueError, match=r"NaturalScore\(\) gives what only Natural\(\) can use"):
        Method("m", one, score, window, ADAM, *rest)
    with pytest.raises(ValueError, match=r"Values\(\) gives what only ValueLine\(\) can use"):
        Method("m", one, gradients.Values(), ValueWindow(), ADAM, *rest)
    with pytest.raises(ValueError, match="lines go with Natural"):
        Method("m", one, gradients.Reparam(), window, ADAM, *rest)


@pytest.mark.parametrize("name", METHODS)
def test_a_named_method_is_wiring_of_parts_that_compare_equal(name):
    assert method(name) == method(name) and hash(method(name)) == hash(method(name))
