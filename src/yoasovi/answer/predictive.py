"""What the model says of data, given the fit: posterior predictive draws, and each observation's log likelihood."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from yoasovi.errors import check, positive_integer
from yoasovi.kernels.programs import Bound, Clock, Held
from yoasovi.model import HostDensity, WholeDensity
from yoasovi.randomness import Purpose, open_uniform, stream

_BLOCK = 250  # draws per compiled call


def predict(fit: Any, data: Any = None, n: int = 1000, seed: int = 0, corrected: bool | None = None) -> Any:
    """Draw new observations: for each of `n` draws of the parameters, one data set.

    Parameters
    ----------
    data
        None: where the model's own data are. Otherwise what takes its place: for regressions and networks {"X": ...}
        (and "log_exposure" for Poisson), an array or a frame with the model's columns by name, indicators included,
        for hierarchical models {"group": ..., "sd": ...}; for a NumPyro model its
        arguments by name, observed ones as None, as `numpyro.infer.Predictive` wants them; for a PyMC model its
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
    draws = fit.sample(n, seed, corrected)
    by_name = getattr(rule, "with_arguments", None)
    if by_name is None or (data is None and callable(rule)):
        return _in_blocks(rule, fit.model.data if data is None else _by_name(fit.model, data), draws, seed)
    check(data is None or isinstance(data, dict), "data", "predict", "a dict of the model's arguments or data", data)
    return by_name(seed, draws, data or {})


def _by_name(model: Any, data: Any) -> Any:
    """Put the columns of a frame or dict in the place of `X` in the order that the model has them in."""
    from yoasovi.models.columns import Words, columns_of, is_table

    if not isinstance(data, Mapping) or not is_table(data.get("X")):
        return data
    found = columns_of("predict", data["X"])
    known = [] if model.labels is None else [str(x) for x in model.labels.coords.get("predictor", ())]
    names = known or list(found)
    for name in names:
        ok = name in found and not isinstance(found[name], Words)
        check(ok, "X", "predict", f"columns of numbers {', '.join(names)}", f"no such {name!r}")
    return {**data, "X": np.column_stack([np.asarray(found[name], float) for name in names])}


def replicate(model: Any, draws: Mapping[str, np.ndarray], seed: int) -> Any:
    """Draw the data of the fit anew, one data set per draw of the parameters."""
    if callable(model.predictive):
        return _in_blocks(model.predictive, model.data, draws, seed)
    return model.predictive.with_arguments(seed, draws, model.predictive.fitted)  # PyMC's, whose data may have changed


def _in_blocks(rule: Any, data: Any, draws: Mapping[str, np.ndarray], seed: int) -> Any:
    n = len(next(iter(draws.values())))
    keys = stream(seed, Purpose.PREDICTION).integers(0, 2**32, size=(n, 2), dtype=np.uint32)
    program = Bound(_predicted, (rule,), Held(data), Clock())
    blocks = []
    for i in range(0, n, _BLOCK):
        some = jax.tree.map(lambda x, i=i: _padded(x[i : i + _BLOCK]), (dict(draws), keys))
        blocks.append(program(*some))
    return jax.tree.map(lambda *x: np.concatenate([np.asarray(b) for b in x])[:n], *blocks)


def pointwise(fit: Any, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Give log p(y_i | theta), shape (n, N), and log p - log q, shape (n,), at the same draws from q."""
    positive_integer("n", "loo", n)
    model, local = fit.model, fit.model.density.local_sites
    fn = model.log_marginal or model.log_likelihood
    if isinstance(fn, WholeDensity | HostDensity) or (local and model.log_marginal is None):
        raise ValueError(f"`loo` needs a likelihood by observation; {model.name} has none (give `log_marginal` of `Model`).")
    noise = fit.family.noise(open_uniform(stream(seed, Purpose.LOO), (n, fit.family.noise_size(model.density))))
    ratio = fit.kernels.values(fit.lane, noise[None])[0]
    theta = fit.kernels.draws(fit.params, noise) if local else fit.family.place(fit.lane, noise[None])[0]
    names = {s.name for s in model.density.sites}
    at = {k: v for k, v in fit.kernels.constrain(theta).items() if k in names}
    each = fit.kernels.each(fn, at)
    sound = np.isfinite(ratio) & np.isfinite(each).all(1)
    return each[sound], ratio[sound]


def _padded(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x, np.repeat(x[-1:], _BLOCK - len(x), 0)])


def _predicted(rule, data, draws, keys):
    draw = lambda x: rule(jax.random.wrap_key_data(x[1]), x[0], data)
    return jax.lax.map(draw, (draws, keys), batch_size=50)
