"""The named methods: wiring of parts, no mathematics."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from yoasovi.acceptance import Always, Metropolis, Naive, Step
from yoasovi.draws import Mirrored, MonteCarlo, Sobol
from yoasovi.errors import check, did_you_mean
from yoasovi.families.base import Gaussian
from yoasovi.gradients import JamesStein, NaturalScore, RaoBlackwell, Reparam, Score, Values
from yoasovi.kernels.programs import precision
from yoasovi.optimizers import Custom, Natural, Optax, ValueLine
from yoasovi.stopping import MaxSteps, ParameterChange, Patience
from yoasovi.tempering import Linear, Logarithmic, Tempering
from yoasovi.windows.rule import Window
from yoasovi.windows.value_rule import ValueWindow


@dataclass(frozen=True)
class Method:
    """A method of variational inference: one choice for every part of the loop."""

    name: str
    draws: Any
    gradient: Any
    acceptance: Any
    optimizer: Any
    stopping: Any
    max_steps: int
    values_only: Method | None = None  # what takes its place where there are no gradients

    def for_family(self, model: Any, family: Any) -> Method:
        """Give the form of the method that suits a model and a family, or say why there is none."""
        if self._suits(model, family):
            return self
        if self.values_only is not None:
            return self.values_only.for_family(model, family)
        fits = ", ".join(k for k, v in METHODS.items() if (m := v()).values_only or not m.gradient.reparameterised)
        what = "a family with a differentiable draw"
        if not model.differentiable:
            what = "a model that can be differentiated"
        elif model.on_host:
            what = "log p in JAX (the gradient of an external function serves yoasovi alone)"
        raise ValueError(f"`method` {self.name} needs {what}; use one of {fits}.")

    def __post_init__(self) -> None:
        for parts, reason in _TOGETHER.items():
            held = [isinstance(getattr(self, k), kind) for k, kind in zip(_PLACES, parts, strict=True)]
            if any(held) and not all(held):
                raise ValueError(f"`Method` {self.name!r} cannot be put together: {reason}.")
        if isinstance(self.acceptance, Window) and self.acceptance.lines and not isinstance(self.optimizer, Natural):
            other = f"use Window(lines=False) with {self.optimizer}"
            raise ValueError(f"`Method` {self.name!r}: lines go with Natural; {other}.")
        natural = isinstance(self.optimizer, Natural)
        if natural and not isinstance(self.acceptance, Window):
            raise ValueError(
                f"`Method` {self.name!r}: Natural steps are judged by windows, so `acceptance` must be Window(); got "
                f"{self.acceptance}. With {type(self.acceptance).__name__} use Optax('adam', 0.01)."
            )

    def _suits(self, model: Any, family: Any) -> bool:
        if self.gradient.reparameterised:
            in_reach = not model.on_host or isinstance(self.optimizer, Natural)
            return isinstance(family, Gaussian) and model.differentiable and in_reach
        if not isinstance(self.gradient, Values):
            return True
        return has_chart(model, family)


_PLACES = ("gradient", "optimizer")
# Parts that only go with each other, and why.
_TOGETHER: dict[tuple[type, type], str] = {
    (NaturalScore, Natural): "NaturalScore() gives what only Natural() can use, and Natural() uses nothing else",
    (Values, ValueLine): "Values() gives what only ValueLine() can use, and ValueLine() uses nothing else",
}


def has_chart(model: Any, family: Any) -> bool:
    """Say whether a family can be fitted to values alone."""
    from yoasovi.families.charts import chart

    if isinstance(family, Gaussian):
        return family.name == "mean_field"
    with precision():
        return chart(model.density, family, model.inputs) is not None


def mcvi(
    draws: int = 10,
    learning_rate: float = 0.01,
    optimizer: Any = "adam",
    tolerance: float = 1e-5,
    baseline: float | None = None,
) -> Method:
    """Score-function gradient averaged over S draws; stops on small relative parameter change."""
    gradient, rule = Score(baseline), ParameterChange(tolerance)
    return Method("mcvi", MonteCarlo(draws), gradient, Always(), _optimizer(optimizer, learning_rate), rule, 5_000)


def bbvi_rb(draws: int = 1, learning_rate: float = 0.03, optimizer: Any = "adam", baseline: float | None = None) -> Method:
    """Score gradient, Rao-Blackwellised: each parameter sees only the terms that depend on it."""
    gradient = RaoBlackwell(baseline)
    return Method("bbvi-rb", MonteCarlo(draws), gradient, Always(), _optimizer(optimizer, learning_rate), MaxSteps(), 3_000)


def bbvi_js(
    draws: int = 100,
    learning_rate: float = 1e-3,
    optimizer: Any = "constant",
    tolerance: float = 1e-5,
    variant: str = "code",
) -> Method:
    """Score gradient shrunk by the positive-part James-Stein factor; 100 draws in the paper."""
    gradient, rule = JamesStein(variant), ParameterChange(tolerance)
    return Method("bbvi-js+", MonteCarlo(draws), gradient, Always(), _optimizer(optimizer, learning_rate), rule, 500)


def advi(draws: int = 1, learning_rate: float = 0.01, optimizer: Any = "adam") -> Method:
    """Reparameterised gradient, Adam, a fixed number of steps."""
    return Method("advi", MonteCarlo(draws), Reparam(), Always(), _optimizer(optimizer, learning_rate), MaxSteps(), 10_000)


def qmcvi(
    draws: int = 10,
    learning_rate: float = 1e-6,
    optimizer: Any = "constant",
    tolerance: float = 1e-5,
    sequence: Callable[..., Any] = Sobol,
) -> Method:
    """Score gradient from 10 points of a Sobol (or Halton) sequence, randomised afresh each iteration."""
    rule = ParameterChange(tolerance)
    return Method("qmcvi", sequence(draws), Score(), Always(), _optimizer(optimizer, learning_rate), rule, 500)


def yoasovi_naive(
    tempering: Tempering = Logarithmic(3.0), patience: int = 100, learning_rate: float = 1e-6, optimizer: Any = "constant",
    scale: str = "elbo", centered: bool = False,
) -> Method:  # fmt: skip
    """The paper's Algorithm 1: one draw, accepted with probability 1 + M (L - L_ref)/|L_ref|."""
    rule = Naive(_tempering(tempering), scale, centered=centered)
    return _accepting_draws("yoasovi-naive", rule, patience, optimizer, learning_rate)


def yoasovi_metropolis(
    tempering: Tempering = Logarithmic(3.0), patience: int = 100, learning_rate: float = 1e-6, optimizer: Any = "constant",
    scale: str = "elbo", centered: bool = False,
) -> Method:  # fmt: skip
    """The paper's Algorithm 2: one draw, accepted with probability exp(M (L - L_ref)/|L_ref|)."""
    rule = Metropolis(_tempering(tempering), scale, centered=centered)
    return _accepting_draws("yoasovi-metropolis", rule, patience, optimizer, learning_rate)


def yoasovi_step(
    tempering: Tempering = Linear(0.1, 15.0, 2_500), patience: int = 100, learning_rate: float = 0.01,
    optimizer: Any = "adam", restore_optimizer: bool = True,
) -> Method:  # fmt: skip
    """The author's later form: a one-draw reparameterised step, kept or undone by a fresh draw."""
    rule = Step(_tempering(tempering), restore_optimizer)
    step = _optimizer(optimizer, learning_rate)
    return Method("yoasovi-step", MonteCarlo(1), Reparam(), rule, step, Patience(patience), 2_500)


def yoasovi(
    tolerance: float = 0.02, patience: int = 3, step: float = 0.1, momentum: float = 0.9, clip: float = 4.0,
    tempering: Tempering = Logarithmic(3.0),
) -> Method:  # fmt: skip
    """The default: one draw per iteration, natural steps, judged a window at a time on paired draws.

    Without gradients, windows of values are regressed instead; a family without a chart takes score steps by Adam.
    """
    rule, patient = Window(tolerance=tolerance, step=step, tempering=_tempering(tempering)), Patience(patience)
    stepwise, adam = replace(rule, lines=False, step=1.0), Optax("adam", 0.03)
    steps = Method("yoasovi", MonteCarlo(1), RaoBlackwell(0.9), stepwise, adam, patient, 10_000)
    values = Method("yoasovi", MonteCarlo(1), Values(), ValueWindow(), ValueLine(), patient, 10_000, steps)
    return Method("yoasovi", Mirrored(), NaturalScore(), rule, Natural(momentum, clip), patient, 100_000, values)


METHODS: dict[str, Callable[..., Method]] = {
    "yoasovi": yoasovi,
    "yoasovi-step": yoasovi_step,
    "yoasovi-metropolis": yoasovi_metropolis,
    "yoasovi-naive": yoasovi_naive,
    "advi": advi,
    "bbvi-rb": bbvi_rb,
    "bbvi-js+": bbvi_js,
    "qmcvi": qmcvi,
    "mcvi": mcvi,
}


def method(name: str | Method, **settings: Any) -> Method:
    """Look a method up by name and apply settings; a `Method` is returned as it is."""
    if isinstance(name, Method):
        if settings:
            raise ValueError(f"settings {sorted(settings)} go with a method's name; a `Method` already has its parts.")
        return name
    if name not in METHODS:
        hint = did_you_mean(str(name), METHODS)
        raise ValueError(f"`method` of `fit` must be one of {', '.join(METHODS)}; got {name!r}.{hint}")
    allowed = inspect.signature(METHODS[name]).parameters
    if unknown := sorted(set(settings) - set(allowed)):
        raise ValueError(f"{name} has no setting {', '.join(unknown)}; it takes {', '.join(allowed)}.")
    return METHODS[name](**settings)


def summaries() -> dict[str, str]:
    """One line on each method."""
    return {name: (inspect.getdoc(fn) or "").splitlines()[0] for name, fn in METHODS.items()}


def _accepting_draws(name: str, rule: Any, patience: int, optimizer: Any, learning_rate: float) -> Method:
    step = _optimizer(optimizer, learning_rate)
    return Method(name, MonteCarlo(1), Score(), rule, step, Patience(patience), 10_000)


def _optimizer(optimizer: Any, learning_rate: float) -> Any:
    if isinstance(optimizer, str):
        return Optax(optimizer, learning_rate)
    import optax  # slow to import, and natural steps do without

    known = isinstance(optimizer, optax.GradientTransformation)
    check(known, "optimizer", "fit", "a name or an optax transformation", optimizer)
    return Custom(optimizer)


def _tempering(rule: Any) -> Any:
    check(hasattr(rule, "strictness"), "tempering", "fit", "a rule such as Constant(1.5) or Logarithmic(3.0)", rule)
    return rule
