"""What the model says of data, given the fit: posterior predictive draws, and each observation's log likelihood."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from yoasovi.errors import absent, check, first_line, positive_integer
from yoasovi.kernels.programs import Bound, Clock, Held
from yoasovi.model import HostDensity, WholeDensity
from yoasovi.randomness import Purpose, open_uniform, stream

_BLOCK = 250  # draws per compiled call


def predict(fit: Any, data: Any = None, n: int = 1000, seed: int = 0, corrected: bool | None = None) -> Any:
    """Draw new observations: for each of `n` draws of the parameters, one data set.

    Parameters
    ----------
    data
        None: where the model's own data are. Otherwise what takes its place: for regressions and networks X, a frame or
        dict with the model's columns by name (indicators included), or {"X": ...} (and "exposure" for Poisson); for
        hierarchical models the labels of groups, or {"group": ..., "sd": ...}; for a mixture anything as long as the
        draws should be; for a NumPyro model its arguments by name, without the observed ones; for a PyMC model its
        `pm.Data` by name (None: what they hold now, after a `pm.set_data` too).
    n, seed, corrected
        As in `Fit.sample`.

    Returns
    -------
    Array (n, N), or a dict of arrays by site for models with named observations (NumPyro, PyMC).
    """
    positive_integer("n", "predict", n)
    rule = fit.model.predictive
    if rule is None:
        raise ValueError(
            f"`predict` needs `predictive` of `Model`, a function of (key, params, data); {fit.model.name} has none."
        )
    data = None if isinstance(data, dict) and not data else data
    check(data is not None or fit.model.stream is None, "data", "predict", "given where the model's own are streamed", data)
    by_name, read = getattr(rule, "with_arguments", None), getattr(rule, "read", None)
    if by_name is None or (data is None and callable(rule)):
        at = fit.model.data if data is None else data if read is None else read(data, fit.model.data)
        draws = fit.sample(n, seed, corrected)
        try:
            return in_blocks(rule, at, draws, seed)
        except KeyError as error:
            raise ValueError(f"`predictive` of `Model` asks for {absent(error, draws, at)}") from error
    check(data is None or isinstance(data, dict), "data", "predict", "a dict of the model's arguments or data", data)
    return by_name(seed, fit.sample(n, seed, corrected), data or {})


def replicate(model: Any, draws: Mapping[str, np.ndarray], seed: int) -> Any:
    """Draw the data of the fit anew, one data set per draw of the parameters."""
    if callable(model.predictive):
        return in_blocks(model.predictive, model.data, draws, seed)
    return model.predictive.with_arguments(seed, draws, model.predictive.fitted)  # PyMC's, whose data may have changed


def replicate_if_drawn(model: Any, draws: Mapping[str, np.ndarray], seed: int) -> Any:
    """Do the same; where a law cannot be drawn from give nothing, and warn."""
    try:
        return replicate(model, draws, seed)
    except NotImplementedError as error:
        warnings.warn(f"Data drawn from the fitted model are left out. {first_line(error)}", stacklevel=2)
        return {}


def recovered(model: Any, draws: dict[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    """Add to draws the latents that the model has summed out, if there are any."""
    if model.recovered is None:
        return draws
    on_host = getattr(model.recovered, "with_draws", None)  # PyMC's
    if on_host is not None:
        return {**draws, **on_host(seed, draws)}
    sites = {s.name: draws[s.name] for s in model.density.sites}
    return {**draws, **in_blocks(model.recovered, model.data, sites, seed, Purpose.RECOVERY)}


def in_blocks(
    rule: Any, data: Any, draws: Mapping[str, np.ndarray], seed: int, purpose: Purpose = Purpose.PREDICTION
) -> Any:
    """Draw by a rule of (key, params, data), compiled, one data set per draw of the parameters."""
    n = len(next(iter(draws.values())))
    keys = stream(seed, purpose).integers(0, 2**32, size=(n, 2), dtype=np.uint32)
    program = Bound(_predicted, (rule,), Held(data), Clock())
    blocks = []
    for i in range(0, n, _BLOCK):
        some = jax.tree.map(lambda x, i=i: _padded(x[i : i + _BLOCK]), (dict(draws), keys))
        blocks.append(program(*some))
    return jax.tree.map(lambda *x: np.concatenate([np.asarray(b) for b in x])[:n], *blocks)


def pointwise(fit: Any, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Give log p(y_i | theta), shape (n, N), and log p - log q, shape (n,), at the draws that `sample` gives.

    Corrected draws, and those of a refined fit (n at most), stand for the posterior itself: there is nothing left to weigh,
    and the second is zero.
    """
    positive_integer("n", "loo", n)
    model, local = fit.model, fit.model.density.local_sites
    fn = model.log_marginal or model.log_likelihood
    by_row = model.recovered is None or (model.labels is not None and bool(model.labels.blocks))
    whole = isinstance(fn, WholeDensity | HostDensity) or not by_row
    if model.stream is not None:
        raise ValueError(f"`loo` needs all the data in memory; those of {model.name} are streamed.")
    if whole or (local and model.log_marginal is None):
        raise ValueError(f"`loo` needs a likelihood by observation; {model.name} has none (give `log_marginal` of `Model`).")
    if fit.refined is not None or fit.worth_correcting:
        theta = fit.draws(n if fit.refined is None else min(n, fit.refined.size), seed, None)[1]
        ratio = np.zeros(len(theta))
    else:
        noise = fit.family.noise(open_uniform(stream(seed, Purpose.LOO), (n, fit.family.noise_size(model.density))))
        ratio = fit.kernels.values(fit.lane, noise[None])[0]
        placed = hasattr(fit.family, "place")  # a product of other laws has no one vector of parameters
        theta = fit.family.place(fit.lane, noise[None])[0] if placed else fit.kernels.draws(fit.params, noise)
    each = _by_observation(fit, fn, theta)
    sound = np.isfinite(ratio) & np.isfinite(each).all(1)
    return each[sound], ratio[sound]


def _by_observation(fit: Any, fn: Any, theta: Any) -> np.ndarray:
    names = {s.name for s in fit.model.density.sites}
    return fit.kernels.whole.each(fn, {k: v for k, v in fit.kernels.constrain(theta).items() if k in names})


def _padded(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x, np.repeat(x[-1:], _BLOCK - len(x), 0)])


def _predicted(rule, data, draws, keys):
    draw = lambda x: rule(jax.random.wrap_key_data(x[1]), x[0], data)
    return jax.lax.map(draw, (draws, keys), batch_size=50)
