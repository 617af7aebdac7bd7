"""Groups that share a normal law: eight schools, and observations with a group each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints

from yoasovi.errors import check, positive_number
from yoasovi.model import Labels, Model, Params
from yoasovi.models.arrays import by_name, numbers, positive
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
        True has sites mu, tau, theta; False has mu, tau, offset, and samples carry theta = mu + tau * offset.
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
    names, index, share = _groups(owner, y, group)
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
        log_marginal=GroupNormal(False) if centered else None, predictive=GroupDraw(names),
        deterministics=None if centered else group_mean,
        labels=None if group is None else Labels(
            dims=dict.fromkeys(("theta", "offset"), ("group",)), coords={"group": np.array(names)}, observed={"y": y},
            constant={k: v for k, v in data.items() if k in ("group", "sd")}, blocks={"y": (-1,)},
        ),
    )  # fmt: skip


def group_mean(params: Params, data: Any) -> Params:
    """Give theta, which the model that is not centred has no site for."""
    return {"theta": _theta(params)}


def _theta(params: Params) -> jax.Array:
    return params["mu"] + params["tau"] * params["offset"] if "offset" in params else params["theta"]


@dataclass(frozen=True)
class GroupDraw:
    """Draws y_i ~ N(theta_g(i), sd_i^2) from the groups that are there."""

    labels: tuple[Any, ...]

    def __call__(self, key: jax.Array, params: Params, data: Any) -> jax.Array:
        """Give new observations, shape (N,)."""
        theta = _theta(params)
        return dist.Normal(theta[data["group"]], data["sd"] if "sd" in data else params["sigma"]).sample(key)

    def read(self, given: Any, fitted: Any) -> dict[str, np.ndarray]:
        """Take the labels of groups, or a dict with them and their known noise, in place of the data of the fit."""
        given = by_name(given, "group", *(("sd",) if "sd" in fitted else ()))
        group = np.atleast_1d(np.asarray(given["group"]))
        places = {label: i for i, label in enumerate(self.labels)}
        unknown = [x for x in dict.fromkeys(group.tolist()) if x not in places]
        known = ", ".join(map(repr, self.labels[:12])) + (", ..." if len(self.labels) > 12 else "")
        check(not unknown, "data['group']", "predict", f"of groups in the fit ({known})", unknown)
        data = {"group": np.array([places[x] for x in group.tolist()])}
        if "sd" in fitted:
            sd = given.get("sd", fitted["sd"][0] if np.ptp(fitted["sd"]) == 0 else None)
            check(sd is not None, "data", "predict", "a dict with 'group' and 'sd', which differs by observation", [*given])
            data["sd"] = positive("data['sd']", "predict", sd, group.shape)
        return data


@dataclass(frozen=True)
class GroupNormal:
    """log N(y_i | theta_g(i), sd_i^2); `with_groups` adds log N(theta_j | mu, tau^2), shared out among j's observations.

    The law of theta depends on mu and tau, so it cannot stand among the priors. Shared out, it sums to what it is.
    """

    with_groups: bool

    def __call__(self, params: Params, data: Any) -> jax.Array:
        """Give one value per observation, shape (N,)."""
        theta = _theta(params)
        noise = data["sd"] if "sd" in data else params["sigma"]
        value = dist.Normal(theta[data["group"]], noise).log_prob(data["y"])
        if not self.with_groups:
            return value
        return value + data["share"] * dist.Normal(params["mu"], params["tau"]).log_prob(theta)[data["group"]]


def _groups(owner: str, y: np.ndarray, group: Any) -> tuple[tuple[Any, ...], np.ndarray, np.ndarray]:
    """Give the groups' names, each observation's group as a number from 0, and its share of that group."""
    if group is None:
        return tuple(range(y.size)), np.arange(y.size), np.ones(y.size)
    found = group if isinstance(group, Words) else column("group", owner, group)
    codes = found.codes if isinstance(found, Words) else found
    check(codes.shape == y.shape, "group", owner, f"of the shape of `y`, {y.shape}", f"shape {codes.shape}")
    values, index, counts = np.unique(codes, return_inverse=True, return_counts=True)
    names = [found.levels[v] for v in values] if isinstance(found, Words) else values.tolist()
    return tuple(names), index, 1.0 / counts[index]
