"""The author's later experiments: Bayesian networks of three and four layers on a simulated regression."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from yoasovi.acceptance import Always
from yoasovi.answer.result import Fit
from yoasovi.draws import Sobol
from yoasovi.experiments import drawing, simulate
from yoasovi.experiments.files import Row, write_csv, write_json
from yoasovi.experiments.rows import Table, Task, finite, groups, number, plus_minus, spread, timed
from yoasovi.families import MeanField
from yoasovi.gradients import Reparam
from yoasovi.kernels.programs import Clock, call
from yoasovi.methods import Method, method as named
from yoasovi.model import Model
from yoasovi.models import NeuralNetwork
from yoasovi.optimizers import Optax
from yoasovi.stopping import MaxSteps
from yoasovi.tempering import Linear

PROBLEMS = {"3 layers": (50, 50), "4 layers": (50, 50, 30)}
ROWS, TRAINING, ITERATIONS = 500, 400, 2_500
TEN = "advi, 10 draws"
LONG = "advi, ten times as long"  # as many gradients as those with ten draws
METHODS = ("advi", TEN, LONG, "qmcvi", "yoasovi-step", "yoasovi")
FIGURES = ("iterations", "run_s", "cpu_s", "values", "gradients", "reported_elbo", "elbo", "rmse", "idle", "dic")
# The author's figures for three layers: test RMSE and seconds. What he calls QMCVI takes ten plain draws (erratum 11).
PUBLISHED = {"advi": ("ADVI", (1.395, 0.193), 16.3), "yoasovi-step": ("YOASOVI", (1.407, 0.156), 40.1),
             TEN: ("QMCVI", (1.178, 0.168), 174.7)}  # fmt: skip


@dataclass(frozen=True)
class NarrowStart(MeanField):
    """Mean-field q whose scales begin at e^-3, as the author's do; those of the library begin near the prior's."""

    log_scale: float = -3.0

    def init(self, mean, scale, rng):
        """Start at the given means."""
        return super().init(mean, np.full_like(scale, np.exp(self.log_scale)), rng)


def tasks(quick: bool, seeds: int) -> list[Task]:
    """Give what there is to run; a quick run has one network with small layers and a tenth of the iterations."""
    problems = {"3 layers": (10, 10)} if quick else PROBLEMS
    steps = ITERATIONS // 10 if quick else ITERATIONS
    return [
        Task("networks", problem, method, tuple(range(seeds)), (("hidden", hidden), ("steps", steps)))
        for problem, hidden in problems.items()
        for method in METHODS
    ]  # fmt: skip


@cache
def network(hidden: tuple[int, ...]) -> Model:
    """Give the model of the training rows."""
    X, y = simulate.network(ROWS)
    return NeuralNetwork(X[:TRAINING], y[:TRAINING], hidden)


def method(name: str, steps: int) -> str | Method:
    """Give a method at the author's settings: Adam 0.01, M from 0.1 to 15; `yoasovi` has none to give."""
    if name == "qmcvi":  # with gradients through the draw, as his others have
        return Method("qmcvi", Sobol(10), Reparam(), Always(), Optax("adam", 0.01), MaxSteps(), steps)
    if name == "yoasovi-step":
        # He runs all iterations: no patience.
        return named(name, tempering=Linear(0.1, 15.0, steps), patience=steps)
    return name if name == "yoasovi" else named("advi", draws=10 if name == TEN else 1)


def measure(task: Task, seed: int) -> Row:
    """Fit once, and predict the rows that were left out."""
    steps, ours = task.setting("steps"), task.method == "yoasovi"
    limit = None if ours and steps == ITERATIONS else steps * (10 if task.method == LONG else 1)
    family: Any = "auto" if ours else NarrowStart()
    model = network(tuple(task.setting("hidden")))
    found, known = timed(model, method(task.method, steps), family, seed=seed, max_steps=limit)
    return {**known, "rmse": finite(rmse(found)), "idle": finite(idle(found)), "dic": finite(found.dic())}


def rmse(found: Fit) -> float:
    """Give the root mean squared error of the posterior predictive mean, over 1,000 draws, on the test rows."""
    X, y = simulate.network(ROWS)
    draws = found.sample(1000, corrected=False)
    mean = call(Clock(), _predict, (found.model.log_likelihood,), draws, X[TRAINING:])
    return float(np.sqrt(np.mean((np.asarray(mean) - y[TRAINING:]) ** 2)))


def idle(found: Fit) -> float:
    """Give the share of weights whose mean and sd are those of their prior to within a tenth of its sd."""
    draws, prior = found.sample(1000, corrected=False), found.model.prior
    weights = [k for k in draws if np.ndim(draws[k]) > 2]
    off = lambda k: (
        np.maximum(np.abs(draws[k].mean(0) - prior[k].mean), np.abs(draws[k].std(0) - _sd(prior[k]))) / _sd(prior[k])
    )
    return float(np.mean(np.concatenate([np.ravel(off(k)) < 0.1 for k in weights])))


def _sd(law: Any) -> np.ndarray:
    return np.sqrt(law.variance)


def _predict(likelihood, draws, X):
    return jnp.mean(jax.lax.map(lambda params: likelihood.mean(params, X), draws, batch_size=50), 0)


# ---- what comes of it ------------------------------------------------------------------------------------


def report(rows: list[Row], out: Path, command: str) -> list[Table]:
    """Write the table as CSV, every row as JSON, a figure, and give the table for people."""
    write_csv(out / "networks.csv", summary(rows))
    write_json(out / "networks.json", command, rows)
    _draw(rows, out / "networks")
    return [table(rows)]


def summary(rows: list[Row]) -> list[Row]:
    """Give means and SDs over seeds, the author's figures beside them."""
    out = []
    for (problem, name), some in groups(rows).items():
        line: Row = {"problem": problem, "method": name, "seeds": len(some), "compile_s": max(r["compile_s"] for r in some)}
        for figure in FIGURES:
            line[figure], line[f"{figure}_sd"] = spread(some, figure)
        _, (mean, sd), seconds = _printed(problem, name)
        out.append(line | {"printed_rmse": mean, "printed_rmse_sd": sd, "printed_seconds": seconds})
    return out


def _printed(problem: str, name: str) -> tuple[str, tuple[float | None, float | None], float | None]:
    return PUBLISHED.get(name, ("", (None, None), None)) if problem == "3 layers" else ("", (None, None), None)


def table(rows: list[Row]) -> Table:
    """Give means and SDs for people."""
    cells, last = [], ""
    for (problem, name), some in groups(rows).items():
        label, (mean, sd), seconds = _printed(problem, name)
        printed = f"{label} {number(mean, 3)} ± {number(sd, 3)}, {number(seconds)} s" if label else "–"
        shape = "-".join(map(str, (*some[0]["settings"]["hidden"], 1)))
        cells.append((
            "" if problem == last else f"{problem} ({shape})", name, plus_minus(some, "iterations", 0),
            plus_minus(some, "gradients", 0), plus_minus(some, "run_s", 1), plus_minus(some, "cpu_s", 1),
            number(max(r["compile_s"] for r in some)), plus_minus(some, "elbo"), plus_minus(some, "rmse", 2),
            plus_minus(some, "idle", 2), plus_minus(some, "dic", 0), printed,
        ))  # fmt: skip
        last = problem
    head = ("network", "method", "iterations", "gradients", "run s", "CPU s", "compile s", "ELBO on fresh draws",
            "test RMSE", "at the prior", "DIC", "printed")  # fmt: skip
    title = "Bayesian networks: mean ± SD over seeds, one simulated data set (400 rows to learn from, 100 to test)"
    return Table(title, head, cells, wide=("iterations", "run s", "compile s", "at the prior", "DIC"))


def _draw(rows: list[Row], path: Path) -> None:
    by, problems = groups(rows), list(dict.fromkeys(row["problem"] for row in rows))
    figure, axes = drawing.panels(1, 2, height=2.6, sharey=True)
    for j, (problem, colour, marker) in enumerate(zip(problems, drawing.COLOURS, drawing.MARKERS, strict=False)):
        for axis, name in zip(axes, ("elbo", "rmse"), strict=True):
            known = [(i, r[name]) for i, m in enumerate(METHODS) for r in by[problem, m] if r[name] is not None]
            dots = [(x, i + 0.24 * j - 0.12) for i, x in known]
            axis.plot(*zip(*dots, strict=True), ls="", color=colour, marker=marker, ms=4, mfc="none", label=problem)
    for line in range(1, len(METHODS)):
        for axis in axes:
            axis.axhline(line - 0.5, color="0.85", lw=0.6, zorder=0)
    axes[0].set(xlabel="ELBO on fresh draws (nats)", title="fit (higher is better)")
    axes[0].set(yticks=range(len(METHODS)), yticklabels=METHODS, ylim=(len(METHODS) - 0.5, -0.5))
    axes[1].set(xlabel="test RMSE (units of y)", title="prediction (lower is better)")
    axes[1].axvline(0.5, color="0.4", lw=0.9, ls="--", label="noise in the data")
    handles, labels = axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    drawing.save(figure, path)
