"""Which family q is to be of: as asked, or by the model's size, supports and groups."""

from __future__ import annotations

from typing import Any, NamedTuple

from yoasovi.errors import check
from yoasovi.families import Arrow, Factorised, FullRank, Gaussian, LowRank, MeanField
from yoasovi.grouping import FoundGroups, find_groups
from yoasovi.kernels import kernels_of
from yoasovi.kernels.programs import Clock
from yoasovi.methods import Method
from yoasovi.model import Model
from yoasovi.optimizers import Natural
from yoasovi.randomness import Purpose, stream
from yoasovi.start import places

PLAIN = {"mean_field": MeanField(), "full_rank": FullRank(), "low_rank": LowRank()}
FAMILIES = {**PLAIN, "arrow": Arrow()}  # this one has to know a model's sites
# From here on groups are looked for. Without any, up to here a full covariance pays for its O(d^2) steps and O(d^3) lines;
# above, low rank; above that, none.
GROUPS_FROM, FULL_RANK_UP_TO, LOW_RANK_UP_TO = 30, 300, 2000


class Choice(NamedTuple):
    """A family, why it was chosen, and how many gradients that took."""

    family: Any
    why: str
    gradients: int = 0


def choose_family(
    model: Model, method: Method, family: Any, clock: Clock | None = None, lanes: int = 1, seed: int = 0
) -> Choice:
    """Resolve a family and say why."""
    density = model.density
    discrete = [s.name for s in (*density.sites, *density.local_sites) if s.discrete or s in density.local_sites]
    why, found = "as asked", FoundGroups({}, 0)
    if family == "auto":
        if model.default_family is not None:
            family, why = model.default_family, "the model's own"
        elif discrete:
            family, why = Factorised(), f"the model has discrete or local latents: {', '.join(discrete)}"
        elif not isinstance(method.optimizer, Natural) or not model.differentiable:
            family, why = MeanField(), "the usual choice where steps are not natural ones"
        else:
            found = _groups(model, clock, lanes, seed) if density.dim >= GROUPS_FROM else found
            family, why = _by_size(model, found)
    elif isinstance(family, str):
        check(family in FAMILIES, "family", "fit", f"auto, {', '.join(FAMILIES)} or a family", family)
        family = FAMILIES[family]
    if isinstance(family, Factorised):
        if model.on_host:
            raise ValueError("`family` of `fit` must be a Gaussian for `Model.external`, whose x is real; use MeanField().")
        if model.centred:
            raise ValueError("`family` of `fit` must be a Gaussian for a non-centred model; use MeanField().")
        return Choice(family.complete(model), why)
    check(isinstance(family, Gaussian), "family", "fit", f"auto, {', '.join(FAMILIES)} or a family", family)
    if discrete:
        names = ", ".join(discrete)
        raise ValueError(f"`family` of `fit` is {family.name}, a Gaussian, but {names} cannot be; use Factorised().")
    if isinstance(family, Arrow):
        if not family.local and not found.local:
            found = _groups(model, clock, lanes, seed)
            if not found.local:
                raise ValueError(_NO_GROUPS)
        family = (family if family.local else Arrow(found.local)).complete(density)
    return Choice(family, why, found.gradients)


_NO_GROUPS = (
    "`family` of `fit` is arrow, but no groups were found that are independent given all other sites; name the axis along "
    "which they lie, by site: Arrow({'theta': 0})."
)


def _by_size(model: Model, found: FoundGroups) -> tuple[Any, str]:
    dim = model.density.dim
    if found.local:
        family = Arrow(found.local).complete(model.density)
        names, others = ", ".join(found.local), family.num_globals
        return family, f"{family.groups:,} groups ({names}), independent given {others} other parameters"
    if dim <= FULL_RANK_UP_TO:
        return FullRank(), f"{dim} parameters, few enough for a full covariance"
    if dim <= LOW_RANK_UP_TO:
        return LowRank(), f"{dim} parameters, too many for a full covariance"
    return MeanField(), f"{dim} parameters, too many for correlations"


def _groups(model: Model, clock: Clock | None, lanes: int, seed: int) -> FoundGroups:
    """Give the groups that the model names, or those that log p shows."""
    if model.groups or not model.differentiable:
        return FoundGroups(dict(model.groups), 0)
    at, scale = places(model, seed, 1)
    kernels = kernels_of(model, MeanField(), clock or Clock(), lanes)
    return find_groups(model, kernels, at[0], scale[0], stream(seed, Purpose.GROUPS))
