"""Sites of location and scale that depend on other sites: those that can be non-centred."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpyro.distributions as dist
from numpyro.handlers import substitute

from yoasovi.model import Frame
from yoasovi.numpyro.laws import is_masked, layers
from yoasovi.numpyro.replay import Replay

_LOCATION_SCALE = (dist.Normal, dist.StudentT, dist.Cauchy, dist.Laplace, dist.Logistic, dist.Gumbel)


def frame_of(law: dist.Distribution) -> Frame | None:
    """Give location and scale of a law, on the unconstrained scale; None if it has none, or may be masked."""
    inner: Any = [*layers(law)][-1]
    if isinstance(inner, dist.TransformedDistribution) and [*map(type, inner.transforms)] == [dist.transforms.ExpTransform]:
        inner = [*layers(inner.base_dist)][-1]  # its logarithm is the unconstrained site
    if is_masked(law):
        return None
    if type(inner) in _LOCATION_SCALE:
        return Frame(inner.loc, inner.scale)
    return Frame(inner.loc, inner.scale_tril, joint=True) if type(inner) is dist.MultivariateNormal else None


@dataclass(frozen=True)
class SiteFrames:
    """The sites that can be non-centred: see `yoasovi.model.centring.Frames`."""

    replay: Replay
    names: tuple[str, ...]
    joint: frozenset[str]

    def visit(self, names: Iterable[str], params: Mapping[str, Any], data: Any, put: Callable[[str, Frame], Any]) -> None:
        """Run the model with these sites where `put` says."""
        chosen = set(names)
        source = self.replay.source({k: v for k, v in params.items() if k not in chosen}, data)

        def place(site):
            frame = frame_of(site["fn"]) if site["type"] == "sample" and site["name"] in chosen else None
            return None if frame is None else put(site["name"], frame)

        source._replace(fn=substitute(source.fn, substitute_fn=place)).sites()
