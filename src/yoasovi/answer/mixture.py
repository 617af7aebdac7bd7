"""A fit in several parts, one per mode: its draws, and what they are worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from yoasovi.randomness import Purpose, stream


def draws(fit: Any, n: int, seed: int, corrected: bool | None) -> tuple[dict[str, np.ndarray], np.ndarray, bool]:
    """Draw from every part as often as its weight asks, each as it would by itself; see `Fit.draws`."""
    rng = stream(seed, Purpose.PARTS)
    ends = np.floor(np.cumsum([0.0, *(part.weight for part in fit.parts)]) * n + rng.uniform())
    ends[-1] = n + ends[0]
    counts = np.diff(ends).astype(int)
    order = rng.permutation(n)
    spent = sum(part.fit.num_values for part in fit.parts)
    found = [
        part.fit.draws(int(count), int(stream(seed, Purpose.PARTS, k).integers(2**63)), corrected)
        for k, (part, count) in enumerate(zip(fit.parts, counts, strict=True))
        if count
    ]
    fit.num_values += sum(part.fit.num_values for part in fit.parts) - spent
    join = lambda arrays: np.concatenate(list(arrays))[order]
    sites, thetas, mended = zip(*found, strict=True)
    return {k: join(x[k] for x in sites) for k in sites[0]}, join(thetas), any(mended)


def chains_of(fit: Any) -> list[Any]:
    """Give the chains that a refined fit rests on, those of each mode; none before."""
    found = [fit.refined, *(part.fit.refined for part in fit.parts)]
    return [chains for chains in found if chains is not None]


def effective_size(parts: Sequence[Any], n: int) -> float:
    """Independent draws that n are worth: parts are drawn from in proportion to their weights."""
    each = [part.fit.effective_size(max(round(n * part.weight), 1)) for part in parts]
    return float(1.0 / sum(part.weight**2 / size for part, size in zip(parts, each, strict=True)))


def in_words(parts: Sequence[Any]) -> str:
    """Name the modes and their weights."""
    each = ", ".join(f"{100 * part.weight:.1f}% ± {100 * part.error:.1f}" for part in parts)
    return f"a mixture of {len(parts)} modes: {each} of the posterior"
