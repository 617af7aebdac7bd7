"""Groups that share a normal law: eight schools, and observations with a group each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints

from yoasovi.errors import check, positive_number
from yoasovi.model import Labels, Model, Params
from yoasovi.models.arrays import numbers, positive
from yoasovi.models.columns import Words, column


def HierarchicalNormal(
    y: Any,
    group: Any = None,
    sd: Any = None,
    centered: bool = False,
    *,
    prior_mean: float = 0.0,
    prior_scale: float = 5.0,
    tau_scale: float = 5.0,
    noise_scale: float = 5.0,
) -> Model:
    """Hierarchical normal model: y_i ~ N(theta_g(i), sd_i^2), theta_j ~ N(mu, tau^2).

    Parameters
    ----------
    y, group
        Shape (N,); the label of each observation's group, numbers or strings. None: a group each (eight schools).
    sd
        Known noise, one number or (N,); None learns one `sigma` ~ HalfNormal(noise_scale).
    centered
        True has sites mu, tau, theta; False has mu, tau, offset, with theta = mu + tau * offset (`group_means`).
    prior_mean, prior_scale, tau_scale
        mu ~ N(prior_mean, prior_scale^2), tau ~ HalfCauchy(tau_scale).
    """
    owner = "HierarchicalNormal"
    y = numbers("y", owner, y, 1)
    check(isinstance(centered, bool), "centered", owner, "True or False", centered)
    for name, value in (("prior_scale", prior_scale), ("tau_scale", tau_scale), ("noise_scale", noise_scale)):
        positive_number(name, owner, value)
    centre = float(numbers("prior_mean", owner, prior_mean, 0))
    if group is None and sd is None:
        raise ValueError(f"`sd` of `{owner}` must be given when `group` is not: one value per group cannot tell them apart.")
    index, names, share = _groups(owner, y, group)
    size = len(names)
    data = {"y": y, "group": index}
    prior = {"mu": dist.Normal(centre, float(prior_scale)), "tau": dist.HalfCauchy(float(tau_scale))}
    if sd is None:
        prior["sigma"] = dist.HalfNormal(float(noise_scale))
    else:
        data["sd"] = positive("sd", owner, sd, y.shape)
    if centered:
        data["share"] = share
        prior["theta"] = dist.ImproperUniform(constraints.real, (), (size,))
    else:
        prior["offset"] = dist.Normal(np.zeros(size), np.ones(size)).to_event(1)
    return Model(
        prior=prior, log_likelihood=GroupNormal(centered), data=data, name="hierarchical normal",
        log_marginal=GroupNormal(False) if centered else None, predictive=group_predictive,
        labels=None if group is None else Labels(
            dims=dict.fromkeys(("theta", "offset"), ("group",)), coords={"group": names}, observed={"y": y},
            constant={k: v for k, v in data.items() if k in ("group", "sd")}, blocks={"y": (-1,)},
        ),
    )  # fmt: skip


def group_means(draws: Mapping[str, Any]) -> np.ndarray:
    """Give theta, shape (S, J), from the draws of a fit, whichever way the model was written."""
    if "theta" in draws:
        return np.asarray(draws["theta"])
    return np.asarray(draws["mu"])[:, None] + np.asarray(draws["tau"])[:, None] * np.asarray(draws["offset"])


def group_predictive(key: jax.Array, params: Params, data: Any) -> jax.Array:
    """Draw y_i ~ N(theta_g(i), sd_i^2) from the groups that are there."""
    theta = params["theta"] if "theta" in params else params["mu"] + params["tau"] * params["offset"]
    return dist.Normal(theta[data["group"]], data["sd"] if "sd" in data else params["sigma"]).sample(key)


@dataclass(frozen=True)
class GroupNormal:
    """log N(y_i | theta_g(i), sd_i^2); `with_groups` adds log N(theta_j | mu, tau^2), shared out among j's observations.

    The law of theta depends on mu and tau, so it cannot stand among the priors. Shared out, it sums to what it is.
    """

    with_groups: bool

    def __call__(self, params: Params, data: Any) -> jax.Array:
        """Give one value per observation, shape (N,)."""
        theta = params["theta"] if "theta" in params else params["mu"] + params["tau"] * params["offset"]
        noise = data["sd"] if "sd" in data else params["sigma"]
        value = dist.Normal(theta[data["group"]], noise).log_prob(data["y"])
        if not self.with_groups:
            return value
        return value + data["share"] * dist.Normal(params["mu"], params["tau"]).log_prob(theta)[data["group"]]


def _groups(owner: str, y: np.ndarray, group: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Give each observation a group number from 0; also the groups' names, and its share of that group."""
    if group is None:
        return np.arange(y.size), np.arange(y.size), np.ones(y.size)
    found = group if isinstance(group, Words) else column("group", owner, group)
    codes = found.codes if isinstance(found, Words) else found
    check(codes.shape == y.shape, "group", owner, f"of the shape of `y`, {y.shape}", f"shape {codes.shape}")
    values, index, counts = np.unique(codes, return_inverse=True, return_counts=True)
    return index, np.array(found.levels)[values] if isinstance(found, Words) else values, 1.0 / counts[index]
