"""Laws in words: what a prior is, as one would write it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpyro.distributions import (
    Distribution,
    ExpandedDistribution,
    ImproperUniform,
    Independent,
    MaskedDistribution,
    TransformedDistribution,
)

_LONGEST = 6  # entries of a vector that are written out


def in_words(law: Distribution, place: tuple[int, ...] = ()) -> str:
    """Write a law as in code, Normal(loc=0, scale=2.5); parameters whose values are not known yet are dots.

    With `place`, an index into an array of independent numbers, the law of that number.
    """
    if isinstance(law, Independent | ExpandedDistribution):
        return in_words(law.base_dist, place)
    if isinstance(law, MaskedDistribution):
        return f"{in_words(law.base_dist, place)}, masked"
    if isinstance(law, ImproperUniform):
        return "improper uniform"
    own = vars(law)
    parts = [f"{k}={_number(own[k], place)}" for k in law.arg_constraints if own.get(k) is not None]
    if type(law) is TransformedDistribution:
        parts = [in_words(law.base_dist, place), *(type(t).__name__ for t in law.transforms)]
    elif "base_dist" in own and not isinstance(law, TransformedDistribution):  # a truncated law
        parts.insert(0, in_words(law.base_dist, place))
    name = type(law).__name__.removesuffix("Probs").removesuffix("Logits")
    return f"{name}({', '.join(parts)})"


def is_of_numbers(law: Distribution) -> bool:
    """Tell whether a law is that of independent numbers, each of which has a law of its own."""
    while isinstance(law, Independent | ExpandedDistribution | MaskedDistribution):
        law = law.base_dist
    return not law.event_shape


def _number(x: Any, place: tuple[int, ...]) -> str:
    try:
        x = np.asarray(x, float)
    except Exception:  # of a law that was only traced, shapes are known and numbers are not
        return "…"
    if place:  # an axis of length one is repeated
        x = x[tuple(i if n > 1 else 0 for n, i in zip(x.shape, place[len(place) - x.ndim :], strict=True))]
    if not x.size or (x == x.flat[0]).all():
        return f"{x.flat[0]:.4g}" if x.size else "[]"
    if x.ndim > 1:
        return f"an array of {' × '.join(map(str, x.shape))}"
    if x.size <= _LONGEST:
        return f"[{', '.join(f'{v:.4g}' for v in x)}]"
    return f"{x.min():.4g} to {x.max():.4g}"
