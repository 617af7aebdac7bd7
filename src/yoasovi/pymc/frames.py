"""Free variables of location and scale that depend on other free variables: those that can be non-centred."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpyro.distributions as dist

from yoasovi.pymc.sites import FreeVariable


class Framed(NamedTuple):
    """A free variable whose law has a location and a scale."""

    name: str
    law: type  # NumPyro's, of the variable or of its logarithm; one coordinate of a joint law
    parts: list[Any]  # graphs of its parameters, location and scale last
    joint: bool


def framed(model: Any, sites: tuple[FreeVariable, ...]) -> tuple[Framed, ...]:
    """Find them, those first that others depend on."""
    from pytensor.graph.traversal import ancestors

    free, found = set(model.free_RVs), []
    for site in sites:
        made = _framed(site, model.rvs_to_transforms[site.rv])
        if made is not None and (above := free.intersection(ancestors(made.parts[-2:]))):
            found.append((len(above), made))  # what depends on a variable depends on all that the variable does
    return tuple(made for _, made in sorted(found, key=lambda x: x[0]))


def _framed(site: FreeVariable, transform: Any) -> Framed | None:
    import pytensor.tensor.random.basic as random
    from pymc.logprob.transforms import LogTransform
    from pytensor.tensor.linalg import cholesky

    node = site.rv.owner
    laws: dict[Any, type] = {
        random.NormalRV: dist.Normal, random.StudentTRV: dist.StudentT, random.CauchyRV: dist.Cauchy,
        random.LaplaceRV: dist.Laplace, random.LogisticRV: dist.Logistic, random.GumbelRV: dist.Gumbel,
        random.MvNormalRV: dist.Normal, random.LogNormalRV: dist.Normal,
    }  # fmt: skip
    law = laws.get(type(node.op))
    if law is None or type(transform) is not (LogTransform if isinstance(node.op, random.LogNormalRV) else type(None)):
        return None
    *parts, scale = node.op.dist_params(node)
    joint = isinstance(node.op, random.MvNormalRV)
    return Framed(site.name, law, [*parts, cholesky(scale) if joint else scale], joint)
