"""Simulation-based calibration: whether q covers the parameters that data were simulated from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np

from yoasovi.errors import check, positive_integer
from yoasovi.kernels.programs import Clock, call, precision
from yoasovi.model import Model
from yoasovi.randomness import Purpose, stream


@dataclass(frozen=True)
class Calibration:
    """P(theta < true theta) under q for each parameter and simulated data set; uniform if q is the posterior.

    `uniformity` and `symmetry` are p-values by parameter: of Kolmogorov and Smirnov's test against the uniform law, and of
    the same values against one minus them. An asymmetric histogram means a biased mean, a U-shaped one too narrow a q.
    """

    names: list[str]
    p_values: np.ndarray  # (n, parameters)
    uniformity: np.ndarray
    symmetry: np.ndarray
    num_failed: int  # fits that did not converge

    @property
    def bias(self) -> np.ndarray:
        """Mean of the p-values minus a half: above zero q lies too low, below zero too high."""
        return self.p_values.mean(0) - 0.5

    @property
    def spread(self) -> np.ndarray:
        """Standard deviation of the p-values over that of the uniform law: above one q is too narrow, below one too wide."""
        return self.p_values.std(0) * np.sqrt(12.0)

    def __str__(self) -> str:
        n, level = len(self.p_values), 0.01 / len(self.names)
        lines = [f"{n} simulated data sets; {self.num_failed} fits did not converge.",
                 f"{'':<20}{'bias':>9}{'spread':>9}{'uniform p':>12}{'symmetric p':>13}"]  # fmt: skip
        for j, name in enumerate(self.names):
            found = []
            if self.symmetry[j] < level:
                found.append("q lies too low" if self.bias[j] > 0 else "q lies too high")
            if self.uniformity[j] < level and abs(self.spread[j] - 1.0) > 0.1:
                found.append("q is too narrow" if self.spread[j] > 1 else "q is too wide")
            numbers = f"{self.bias[j]:>9.3f}{self.spread[j]:>9.2f}{self.uniformity[j]:>12.2g}{self.symmetry[j]:>13.2g}"
            lines.append(f"{name:<20}{numbers}  {', '.join(found)}".rstrip())
        return "\n".join(lines)


def calibrate(
    model: Model, simulate: Callable[..., Any] | None = None, n: int = 100, *, seed: int = 0, draws: int = 1000,
    corrected: bool = False, workers: int = 1, client: Any = None, **options: Any,
) -> Calibration:  # fmt: skip
    """Draw parameters from the prior, simulate data, fit, and see where the truth lies in q; `n` times (Yao et al. 2018).

    All fits of a process share one compiled program: only the data change.

    Parameters
    ----------
    model
        A `Model` whose priors are all proper.
    simulate
        Function of (key, params) giving data of the shapes of `model.data`. If None, the model's own `predictive`,
        where its data are a dict with `y` or one array.
    draws, corrected
        Draws from each q, importance-corrected if asked for.
    workers, client
        Processes of this machine; or a `distributed.Client`, or its address, to run on a Dask cluster.
    **options
        Of `fit`.
    """
    from scipy.stats import ks_2samp, kstest

    from yoasovi.fitting import as_model
    from yoasovi.scale.pool import Failure, each

    model = as_model(model)
    positive_integer("n", "calibrate", n)
    positive_integer("draws", "calibrate", draws)
    if model.density.local_sites or any(s.discrete for s in model.density.sites):
        raise ValueError(f"`model` of `calibrate` must have continuous parameters only; {model.name} has others.")
    simulate = simulate or _own_simulation(model)
    check(callable(simulate), "simulate", "calibrate", "a function of (key, params)", simulate)
    one = partial(_rank, model, simulate, seed, draws, corrected, {"progress": False, **options})
    found: list[Any] = [None] * n
    for place, result in each(one, range(n), workers, client, "calibrate"):
        if isinstance(result, Failure):
            raise ValueError(f"A fit of `calibrate` failed, to simulated data {place}: {result.error}")
        found[place] = result
    ranks, failed = [ranks for ranks, _ in found], sum(not converged for _, converged in found)
    names = [name for s in model.density.sites for name in model.names(s.name, s.shape)]
    p = np.stack(ranks)
    uniform = np.array([kstest(column, "uniform").pvalue for column in p.T])
    symmetric = np.array([ks_2samp(column, 1.0 - column).pvalue for column in p.T])
    return Calibration(names, p, uniform, symmetric, failed)


def _rank(
    model: Model, simulate: Callable[..., Any], seed: int, draws: int, corrected: bool, options: dict[str, Any], i: int
) -> tuple[np.ndarray, bool]:
    """Give where the i-th true parameters lie in q fitted to the data simulated from them; whether the fit converged."""
    from yoasovi.fitting import fit

    keys = stream(seed, Purpose.CALIBRATION, i).integers(0, 2**32, size=(2, 2), dtype=np.uint32)
    truth = call(Clock(), _prior_draw, (model.density,), model.inputs, keys[0])
    with precision():
        data = jax.tree.map(np.asarray, simulate(jax.random.wrap_key_data(keys[1]), truth))
    shapes, got = jax.tree.map(np.shape, model.data), jax.tree.map(np.shape, data)
    if got != shapes:
        raise ValueError(f"`simulate` of `calibrate` must give data of the shapes of the model's; got {got}, not {shapes}.")
    # A model's own start was made for its own data.
    answer = fit(replace(model, data=data, start=None, stream=None), seed=seed + i, **options)
    sample = answer.sample(draws, corrected=corrected)
    below = [np.ravel(np.mean(sample[s.name] < np.asarray(truth[s.name]), 0)) for s in model.density.sites]
    return np.concatenate(below), answer.converged


def _own_simulation(model: Model) -> Callable[..., Any]:
    rule, data = model.predictive, model.data
    if rule is None or getattr(rule, "with_arguments", None) or (isinstance(data, dict) and "y" not in data):
        raise ValueError(f"`simulate` of `calibrate` must be given: {model.name} has no way to simulate its own data.")

    def simulate(key: Any, params: Any) -> Any:
        made = call(Clock(), _simulate, (rule,), data, params, jax.random.key_data(key))
        if not isinstance(data, dict):
            return made
        new = {**data, "y": made}
        if "log_factorial" in data:  # what the Poisson likelihood keeps of y
            from scipy.special import gammaln

            new["log_factorial"] = gammaln(np.asarray(made, float) + 1.0)
        return new

    return simulate


def _simulate(rule: Any, data: Any, params: Any, key: Any) -> Any:
    return rule(jax.random.wrap_key_data(key), params, data)


def _prior_draw(density: Any, inputs: Any, words: Any) -> Any:
    key = jax.random.wrap_key_data(words)
    out = {}
    for j, site in enumerate(density.sites):
        try:
            out[site.name] = inputs.prior[site.name].sample(jax.random.fold_in(key, j))
        except NotImplementedError as error:
            raise ValueError(f"`model` of `calibrate` must have proper priors; {site.name!r} has none.") from error
    return out
