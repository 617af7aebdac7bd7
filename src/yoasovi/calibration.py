"""Simulation-based calibration: whether q covers the parameters that data were simulated from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from numpyro import validation_enabled
from numpyro.distributions import ImproperUniform, biject_to

from yoasovi.errors import check, positive_integer
from yoasovi.kernels.programs import Clock, call, precision
from yoasovi.model import Model
from yoasovi.randomness import Purpose, stream


@dataclass(frozen=True)
class Calibration:
    """P(theta < true theta) under q for each parameter and simulated data set; uniform if q is the posterior.

    `uniformity` and `symmetry` are p-values by parameter: of Kolmogorov and Smirnov's test against the uniform law, and of
    Wilcoxon's signed ranks about a half. An asymmetric histogram means a biased mean, a U-shaped one too narrow a q.
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
        A `Model` whose priors are all proper; or one from `from_numpyro`, whose function is then run to draw parameters.
    simulate
        Function of (key, params) giving data of the shapes of `model.data`. If None, the model's own `predictive`,
        where its data are a dict with `y` or one array, or where what a NumPyro model observes are arguments of it.
    draws, corrected
        Draws from each q, importance-corrected if asked for.
    workers, client
        Processes of this machine; or a `distributed.Client`, or its address, to run on a Dask cluster.
    **options
        Of `fit`.
    """
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
    return Calibration(names, p, *_tested(p), failed)


def _tested(p: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Test by column whether p-values are uniform, and whether they are symmetric about a half."""
    from scipy.stats import kstest, wilcoxon

    uniform = [kstest(column, "uniform").pvalue for column in p.T]
    symmetric = [wilcoxon(column - 0.5).pvalue if (column != 0.5).any() else 1.0 for column in p.T]
    return np.array(uniform), np.array(symmetric)


def _rank(
    model: Model, simulate: Callable[..., Any], seed: int, draws: int, corrected: bool, options: dict[str, Any], i: int
) -> tuple[np.ndarray, bool]:
    """Give where the i-th true parameters lie in q fitted to the data simulated from them; whether the fit converged."""
    from yoasovi.fitting import fit

    keys = stream(seed, Purpose.CALIBRATION, i).integers(0, 2**32, size=(2, 2), dtype=np.uint32)
    truth = _truth(model, keys[0])
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
    if _is_numpyro(model):
        return _simulation_by_numpyro(model)
    if rule is None or getattr(rule, "with_arguments", None) or (isinstance(data, dict) and "y" not in data):
        raise ValueError(_to_be_given(model, f"`calibrate` knows no way to draw the data of {model.name}"))

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


def _to_be_given(model: Model, why: str) -> str:
    kind = "a dict of the same keys" if isinstance(model.data, dict) else "the same"
    shapes = jax.tree.map(np.shape, model.data)
    return (
        f"`simulate` of `calibrate` must be given: {why}. It returns arrays of the shapes of the model's, {kind}: {shapes}."
    )


def _simulate(rule: Any, data: Any, params: Any, key: Any) -> Any:
    return rule(jax.random.wrap_key_data(key), params, data)


# ---- parameters --------------------------------------------------------------------------------------------


def _truth(model: Model, words: Any) -> Any:
    if not _is_numpyro(model):
        return call(Clock(), _prior_draw, (model.density,), model.inputs, words)
    settled = model.predictive.replay.settled  # type: ignore[union-attr]
    if none := [k for k in model.prior if k in settled and isinstance(model.prior[k], ImproperUniform)]:
        raise ValueError(_IMPROPER.format(none[0]))
    return call(Clock(), _prior_draw_by_numpyro, (model.predictive,), model.data, words)


_IMPROPER = "`model` of `calibrate` must have proper priors to draw from; that of {!r} is improper, or a part of log p."


def _prior_draw(density: Any, inputs: Any, words: Any) -> Any:
    key = jax.random.wrap_key_data(words)
    out = {}
    for j, site in enumerate(density.sites):
        try:
            out[site.name] = inputs.prior[site.name].sample(jax.random.fold_in(key, j))
        except NotImplementedError as error:
            raise ValueError(_IMPROPER.format(site.name)) from error
    return out


# ---- NumPyro -----------------------------------------------------------------------------------------------


def _is_numpyro(model: Model) -> bool:
    from yoasovi.numpyro.predictive import Predictive

    return isinstance(model.predictive, Predictive)


def _prior_draw_by_numpyro(rule: Any, data: Any, words: Any) -> Any:
    """Draw a NumPyro model's parameters by running its function; those whose support moves as the fit has them."""
    from numpyro.handlers import seed, substitute, trace

    from yoasovi.numpyro.laws import is_factor, is_one
    from yoasovi.numpyro.replay import Slot, in_single

    replay = rule.replay
    data = in_single(data) if replay.narrow else data
    args, kwargs = jax.tree.unflatten(replay.tree, [data[x.key] if isinstance(x, Slot) else x for x in replay.leaves])
    fn = seed(substitute(replay.fn, data=replay.held), jax.random.wrap_key_data(words))
    with validation_enabled(False):
        sites = trace(fn).get_trace(*args, **kwargs)
    for name, site in sites.items():
        if site["type"] == "sample" and (is_factor(site) or not is_one(site["scale"])):
            why = "is a factor" if is_factor(site) else "has a scale"
            raise ValueError(f"`model` of `calibrate` must be a law of parameters and data; {name!r} {why}.")
    free = lambda site: biject_to(site["fn"].support).inv(site["value"])
    known = {k: sites[k]["value"] for k in (*replay.latents, *replay.summed_names) if k not in replay.moving}
    return {**known, **{base: free(sites[name]) for name, base in replay.moving.items()}}


def _simulation_by_numpyro(model: Model) -> Callable[..., Any]:
    """Draw what a NumPyro model observes, where each observed site is one of its arguments and nothing else uses that."""
    rule: Any = model.predictive
    data: dict[str, Any] = model.data or {}
    if not data:
        raise ValueError(
            f"`model` of `calibrate` must have its data as arguments, from_numpyro(fn, y); {model.name} has none."
        )
    words = np.zeros(2, np.uint32)
    truth = _truth(model, words)
    seen = lambda at: {k: np.asarray(v) for k, v in call(Clock(), _observed, (rule,), at, truth).items()}
    drawn = lambda at: call(Clock(), _simulate, (rule,), at, truth, words)
    place, old = {}, seen(data)
    for site, value in old.items():
        of = [k for k, x in data.items() if np.array_equal(x, value) and k not in place]
        if len(of) != 1:
            raise ValueError(_to_be_given(model, f"what {model.name} observes as {site!r} is not one of its arguments"))
        place[of[0]] = site

    def put(made: Any) -> Any:
        return {**data, **{k: np.asarray(made[site], np.asarray(data[k]).dtype) for k, site in place.items()}}

    made = drawn(data)
    new = put(made)
    same = lambda a, b: all(np.array_equal(a[k], b[k]) for k in a)
    through = all(np.array_equal(seen(new)[site], new[k]) for k, site in place.items())
    if not through or not same(made, drawn(new)):
        raise ValueError(_to_be_given(model, f"{model.name} uses what it observes in other places too"))
    return lambda key, params: put(call(Clock(), _simulate, (rule,), data, params, jax.random.key_data(key)))


def _observed(rule: Any, data: Any, params: Any) -> Any:
    from yoasovi.numpyro.laws import is_observation

    return {k: s["value"] for k, s in rule.replay.sites(params, data).items() if is_observation(s)}
