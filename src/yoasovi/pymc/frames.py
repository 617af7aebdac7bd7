"""Free variables of location and scale that depend on other free variables: those that can be non-centred."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from yoasovi.model import Frame
from yoasovi.pymc.sites import FreeVariable

if TYPE_CHECKING:
    from yoasovi.pymc.terms import Graph


class Framed(NamedTuple):
    """A free variable, and graphs of the location and scale of its law."""

    name: str
    loc: Any
    scale: Any
    joint: bool


@dataclass(frozen=True, eq=False)
class GraphFrames:
    """The free variables that can be non-centred: see `yoasovi.model.centring.Frames`."""

    graphs: Mapping[str, Graph]  # of location and scale, those first that others depend on
    joint: frozenset[str]

    @property
    def names(self) -> tuple[str, ...]:
        """Their names."""
        return tuple(self.graphs)

    def visit(self, names: Iterable[str], params: Mapping[str, Any], data: Any, put: Callable[[str, Frame], Any]) -> None:
        """Go through these variables in their order."""
        chosen, known = set(names), dict(params)
        for name in self.names:
            if name in chosen:
                loc, scale = self.graphs[name](known, data)
                known[name] = put(name, Frame(loc, scale, name in self.joint))


def framed(model: Any, sites: tuple[FreeVariable, ...]) -> list[Framed]:
    """Find them, those first that others depend on."""
    from pytensor.graph.traversal import ancestors

    free, found = set(model.free_RVs), []
    for site in sites:
        made = _framed(site, model.rvs_to_transforms[site.rv])
        above = free.intersection(ancestors([made.loc, made.scale])) if made else ()
        if made and above:
            found.append((len(above), made))  # what depends on a variable depends on all that the variable does
    return [made for _, made in sorted(found, key=lambda x: x[0])]


def _framed(site: FreeVariable, transform: Any) -> Framed | None:
    import pytensor.tensor.random.basic as random
    from pymc.logprob.transforms import LogTransform
    from pytensor.tensor.linalg import cholesky

    op = site.rv.owner.op
    plain = (random.NormalRV, random.StudentTRV, random.CauchyRV, random.LaplaceRV, random.LogisticRV, random.GumbelRV)
    free = transform is None
    if (isinstance(op, plain) and free) or (isinstance(op, random.LogNormalRV) and type(transform) is LogTransform):
        return Framed(site.name, *_last_two(site.rv), False)
    if isinstance(op, random.MvNormalRV) and free:
        mean, covariance = _last_two(site.rv)
        return Framed(site.name, mean, cholesky(covariance), True)
    return None


def _last_two(rv: Any) -> tuple[Any, Any]:
    """Give location and scale, which the law's own parameters end with."""
    *_, loc, scale = rv.owner.op.dist_params(rv.owner)
    return loc, scale
