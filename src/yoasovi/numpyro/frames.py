"""Sites of location and scale that depend on other sites: those that can be non-centred."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpyro.distributions as dist
from numpyro.handlers import substitute

from yoasovi.model import Frame, Model
from yoasovi.numpyro.laws import is_masked, layers
from yoasovi.numpyro.replay import LogBatch, LogTerms, Replay

_LOCATION_SCALE = (dist.Normal, dist.StudentT, dist.Cauchy, dist.Laplace, dist.Logistic, dist.Gumbel)


def frame_of(law: dist.Distribution) -> Frame | None:
    """Give location and scale of a law, on the unconstrained scale; None if it has none, or may be masked."""
    inner: Any = [*layers(law)][-1]
    if isinstance(inner, dist.TransformedDistribution) and [*map(type, inner.transforms)] == [dist.transforms.ExpTransform]:
        inner = [*layers(inner.base_dist)][-1]  # its logarithm is the unconstrained site
    if is_masked(law):
        return None
    if type(inner) in _LOCATION_SCALE:
        shapes = [inner.df] if isinstance(inner, dist.StudentT) else []
        return Frame(inner.loc, inner.scale, type(inner)(*shapes, 0.0, 1.0))
    if type(inner) is dist.MultivariateNormal:
        return Frame(inner.loc, inner.scale_tril, dist.Normal(0.0, 1.0), joint=True)
    return None


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

    def without(self, model: Model, names: Iterable[str]) -> Model:
        """Give the model with log p of these sites left out."""
        replay = replace(self.replay, settled=self.replay.settled.union(names))
        batches: Any = model.subsampled
        if batches is not None:
            batches = LogBatch(replace(replay, fn=batches.replay.fn))
        return replace(model, log_likelihood=LogTerms(replay), subsampled=batches)
