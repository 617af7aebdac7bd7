"""A fit in a page of text."""

from __future__ import annotations

from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np

from yoasovi.answer import mixture
from yoasovi.answer.averages import columns
from yoasovi.model.labels import told

_MOST_ROWS = 60  # of the table
_OF_A_SITE = 20  # where there are more


class Mended(NamedTuple):
    """What was found wrong with a fit, what was tried, whether it was kept, and the nats of ELBO and the cost of it."""

    found: str
    tried: str
    kept: bool
    gained: float
    num_values: int
    num_gradients: int

    def __str__(self):
        cost = f"{self.num_gradients:,} gradients, {self.num_values:,} values"
        if self.kept:
            return f"Mended: {self.found}; {self.tried} gained {self.gained:.2f} nats ({cost})."
        return f"Tried in vain: {self.found}; {self.tried} is not better ({cost})."


def summary(fit: Any, verdict: bool) -> str:
    """Give what was mended, the verdict, what is known of the fit, and a table; see `Fit.summary`."""
    lines = [
        *map(str, fit.mended),
        *([str(fit.diagnose())] if verdict and (fit.kept is None or fit.verdict is not None) else []),
        f"{fit.model.name}: {fit.method.name}, {fit.family.name} ({fit.family_reason})",
        *([mixture.in_words(fit.parts)] if fit.parts else []),
        f"ELBO {fit.elbo} on fresh draws; {fit.stop_reason} {fit.stop_detail}".rstrip(),
        f"{fit.num_steps:,} steps, {fit.num_gradients:,} gradients, {fit.num_values:,} values, "
        f"{fit.seconds.compile:.1f} s compiling, {fit.seconds.run:.2f} s running",
    ]
    if fit.num_nonfinite:
        lines.append(f"{fit.num_nonfinite:,} draws were not finite and were refused: {fit.nonfinite}")
    lines += map(str, mixture.chains_of(fit))
    lines += told(fit.model)
    return "\n".join([*lines, *table(fit)])


def table(fit: Any) -> list[str]:
    """Give the lines of the table of means, standard deviations and quantiles."""
    local = {s.name for s in fit.model.density.local_sites}
    each = [
        list(zip(islice(fit.model.names(name, shape), x.shape[1]), x.T, fit.mean_errors(x), strict=True))
        for name, (shape, x) in columns(fit, fit.plenty(4000), _MOST_ROWS + 1).items()
        if name not in local
    ]
    more = sum(map(len, each)) > _MOST_ROWS
    # Of long sites only the first numbers, so that others are seen too.
    rows = list(chain.from_iterable(x[:_OF_A_SITE] if more else x for x in each))
    wide = max(20, *(len(label) + 2 for label, *_ in rows))
    lines = [f"{'':<{wide}}{'mean':>12}{'sd':>12}{'5%':>12}{'95%':>12}{'MC error':>12}"]
    for label, x, error in rows[:_MOST_ROWS]:
        numbers = "".join(f"{v:>12.4g}" for v in (x.mean(), x.std(), *np.quantile(x, [0.05, 0.95])))
        lines.append(f"{label:<{wide}}{numbers}{error:>12.2g}")
    return [*lines, "..."] if more else lines
