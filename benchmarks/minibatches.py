"""Fits by minibatches against fits that read all the data, from the same seeds.

    python benchmarks/minibatches.py [--seeds 5] [--out benchmarks/results]

The first table is of subsampled plates, the second of `batch_size=`.

An epoch is one reading of all rows. The start and the anchors read all of them; every other look of a fit by minibatches
reads its batch, and reads it twice: at the draw and at the anchor. The looks behind the reported ELBO are not counted.
"""

import argparse
import datetime
import platform
import warnings
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

import yoasovi as yo

LAWS = {
    "linear": lambda eta: dist.Normal(eta, 1.0),
    "logistic": lambda eta: dist.Bernoulli(logits=eta),
    "poisson": lambda eta: dist.Poisson(jnp.exp(eta)),
}
# (law, rows, parameters, rows in a batch)
ROWS = [
    ("logistic", 5_000, 5, 100),
    ("logistic", 20_000, 20, 200),
    ("linear", 20_000, 20, 100),
    ("linear", 10_000, 10, 500),
    ("poisson", 20_000, 10, 200),
]


def regression(law, X, y, batch=None):
    w = numpyro.sample("w", dist.Normal(jnp.zeros(X.shape[1]), 1.0).to_event(1))
    with numpyro.plate("rows", len(y), subsample_size=batch) as index:
        numpyro.sample("y", LAWS[law](X[index] @ w), obs=y[index])


def simulate(law, rows, dim):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows, dim)) / np.sqrt(dim)
    eta = X @ rng.normal(size=dim)
    draws = {
        "linear": lambda: eta + rng.normal(size=rows),
        "logistic": lambda: (rng.random(rows) < 1.0 / (1.0 + np.exp(-eta))).astype(int),
        "poisson": lambda: rng.poisson(np.exp(eta)),
    }
    return X, draws[law]()


def epochs(fit, share):
    """How often the fit read all rows; `share` is that of a batch."""
    whole = fit.num_gradients - fit.num_steps
    looks = fit.num_steps + fit.num_values
    return whole + (looks if share == 1.0 else 2.0 * share * looks)


class Measured(NamedTuple):
    """Medians over seeds, but for the ELBOs, which are all there, and the number that converged."""

    elbos: list[float]
    gradients: float
    epochs: float
    seconds: float
    converged: int


def measure(law, X, y, batch, seeds):
    model = yo.from_numpyro(regression, law, X, y, batch=batch)
    fits = [yo.fit(model, seed=s, progress=False) for s in range(seeds)]
    share = 1.0 if batch is None else batch / len(y)
    each = [(f.num_gradients, epochs(f, share), f.seconds.run) for f in fits]
    return Measured([f.elbo.value for f in fits], *np.median(each, 0), sum(f.converged for f in fits))


def plates(seeds):
    yield (
        "| law | rows | parameters | batch | ELBO behind, median (worst) | gradients / all data | epochs / all data "
        "| run s / all data | converged |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for law, rows, dim, batch in ROWS:
        X, y = simulate(law, rows, dim)
        whole, parts = (measure(law, X, y, size, seeds) for size in (None, batch))
        behind = np.subtract(whole.elbos, parts.elbos)
        yield (
            f"| {law} | {rows:,} | {dim} | {batch} | {np.median(behind):.3f} ({behind.max():.3f}) "
            f"| {parts.gradients:,.0f} / {whole.gradients:,.0f} | {parts.epochs:,.0f} / {whole.epochs:,.0f} "
            f"| {parts.seconds:.2f} / {whole.seconds:.2f} | {parts.converged} of {seeds} |"
        )


# ---- batch_size= -------------------------------------------------------------------------------------------

# (law, rows, parameters besides the intercept, rows in a batch)
LARGE = [("logistic", 1_000_000, 20, 1000), ("poisson", 300_000, 10, 1000), ("linear", 300_000, 20, 500)]
BUILT_IN = {
    "logistic": yo.models.LogisticRegression, "linear": yo.models.LinearRegression, "poisson": yo.models.PoissonRegression,
}  # fmt: skip


def spread(fit):
    return np.sqrt((np.asarray(fit.family.factor(fit.params)) ** 2).sum(-1))


def by_batch_size(seeds):
    yield (
        "| law | rows | coefficients | batch | means off by, sd, median (worst) | sds off by, median (worst) "
        "| run s / all data | with compiling, first fit | gradients of all data / all data |"
    )
    yield "|---|---|---|---|---|---|---|---|---|"
    for law, rows, dim, batch in LARGE:
        model = BUILT_IN[law](*simulate(law, rows, dim))
        each = []
        for seed in range(seeds):
            part, whole = (yo.fit(model, seed=seed, batch_size=b, progress=False, mend=False) for b in (batch, None))
            sd = spread(whole)
            off = np.abs((part.params.mean - whole.params.mean) / sd).max(), np.abs(spread(part) / sd - 1).max()
            first = (part.seconds.total, whole.seconds.total) if seed == 0 else (np.nan, np.nan)
            looks = part.num_gradients - part.num_steps, whole.num_gradients
            each.append((*off, part.seconds.run, whole.seconds.run, *first, *looks))
        middle, worst, first = np.median(each, 0), np.max(each, 0), each[0]
        yield (
            f"| {law} | {rows:,} | {dim} | {batch:,} | {middle[0]:.3f} ({worst[0]:.3f}) | {middle[1]:.1%} ({worst[1]:.1%}) "
            f"| {middle[2]:.1f} / {middle[3]:.1f} | {first[4]:.1f} / {first[5]:.1f} | {middle[6]:.0f} / {middle[7]:.0f} |"
        )


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--seeds", type=int, default=5)
    args.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = args.parse_args()
    said = f"`python benchmarks/minibatches.py --seeds {args.seeds}`"
    where = f"{datetime.date.today()}, yoasovi {yo.__version__}, JAX {jax.__version__}, {jax.default_backend()}, "
    lines = [f"{said}, {where}{platform.machine()}, {jax.device_count()} device(s); medians over seeds"]
    parts = {"Subsampled plates": plates(args.seeds), "`batch_size=`, built-in regressions": by_batch_size(args.seeds)}
    for title, table in parts.items():
        lines += ["", f"## {title}", ""]
        for line in table:
            print(line, flush=True)
            lines.append(line)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "minibatches.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
