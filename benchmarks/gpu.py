"""One GPU near its limit: looks beside the time to read the data once, many draws beside one, sums in float32.

    python benchmarks/gpu.py [--rows 100000000]

What is measured needs a GPU; without one the script says so and ends. The table goes to results/gpu.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import lanes
import numpy as np

import yoasovi as yo
from yoasovi.families import FullRank
from yoasovi.kernels import kernels_of, looks
from yoasovi.kernels.programs import Clock

OUT = Path(__file__).parent / "results" / "gpu.md"
MEANS = np.array([[-2.0, -2.0], [2.0, -2.0], [-2.0, 2.0], [2.0, 2.0]], np.float32)


def milliseconds(fn: Callable, *args: Any, calls: int = 20, repeats: int = 9) -> float:
    """Give the time of one call on the device: many are sent before the first is waited for; median."""
    jax.block_until_ready(fn(*args))
    found = []
    for _ in range(repeats):
        begin = time.perf_counter()
        for _ in range(calls):
            answer = fn(*args)
        jax.block_until_ready(answer)
        found.append((time.perf_counter() - begin) / calls)
    return 1e3 * statistics.median(found)


def waited(fn: Callable, *args: Any) -> float:
    """Give the time of one call with all that the host does, milliseconds; median."""
    return milliseconds(lambda: jax.block_until_ready(fn(*args)), calls=1, repeats=31)


def exact(model: yo.Model, point: np.ndarray, parts: int) -> tuple[float, np.ndarray]:
    """Give log p and its gradient in float64, the rows a part at a time."""
    with jax.enable_x64(True):
        rows = model.density.num_observations
        prior = {k: jax.tree.map(lambda x: np.asarray(x, float), v) for k, v in model.inputs.prior.items()}
        inputs = model.inputs._replace(prior=prior, data=None)

        def part(x, data):
            return jnp.sum(model.log_likelihood(model.density.constrain(inputs, x)[0], data))

        def rest(x):
            terms = model.density.terms(inputs, model.density.constrain(inputs, x)[0], jnp.zeros(1))
            return terms.total()

        x = jnp.asarray(point, float)
        both, value, gradient = jax.jit(jax.value_and_grad(part)), *map(np.asarray, jax.value_and_grad(rest)(x))
        for some in np.array_split(np.arange(rows), parts):
            cut = lambda a, some=some: np.asarray(a[some[0] : some[-1] + 1], float) if len(np.atleast_1d(a)) == rows else a
            found = both(x, jax.tree.map(cut, model.data))
            value, gradient = value + float(found[0]), gradient + np.asarray(found[1])
        return float(value), gradient


def mixture(rows: int) -> list[str]:
    """Four components in two dimensions, labels summed out."""
    rng = np.random.default_rng(0)
    y = rng.standard_normal((rows, 2), np.float32) + MEANS[rng.integers(0, 4, rows, np.int8)]
    model = yo.models.GaussianMixture(y, 4, assignments="marginal")
    kernels = kernels_of(model, FullRank(), Clock())
    point = (MEANS + 0.1).reshape(1, -1)
    (data,) = [x for x in kernels.held.leaves if x.size == y.size]
    there = jnp.asarray(point)  # on the device already: sending a point takes as long as a look
    once = milliseconds(jax.jit(jnp.sum), data)
    value = milliseconds(kernels.bind(looks._totals, kernels.density, True), there)
    both = milliseconds(kernels._gradients, there)
    again = milliseconds(jax.jit(jnp.sum), data)
    host = waited(kernels._gradients, point)
    found, slope = kernels.point(point.astype(float))
    change = kernels.compare(point.astype(float) + 1e-4, point.astype(float), None)[0]
    (true, gradient), (moved, _) = exact(model, point[0], 20), exact(model, np.float32(point[0].astype(float) + 1e-4), 20)
    wrong = np.abs(slope[0] - gradient).max() / np.abs(gradient).max()
    return [
        f"## A mixture of four in two dimensions, labels summed out, N = {rows:,}",
        "",
        f"Times of the device, ms. A plain sum over the same data takes {once:.3f} (after all else: {again:.3f}).",
        "",
        "| | ms | over reading once | asked |",
        "|---|---|---|---|",
        f"| value | {value:.3f} | {value / once:.2f} | 1.6 |",
        f"| value and gradient | {both:.3f} | {both / once:.2f} | 3 |",
        f"| value and gradient, waited for by the host | {host:.3f} | {host / once:.2f} | |",
        "",
        f"Against float64: the value {found[0]:,.3f} is {abs(found[0] / true - 1):.1e} off (1e-6 is asked), which is "
        f"{abs(found[0] - true):.3f} nats; the",
        f"gradient {wrong:.1e} of its largest entry; the difference to a point 0.0001 away, {change[0]:,.3f} nats, "
        f"{abs(change[0] - (moved - true)):.4f} nats.",
    ]


def logistic(rows: int, columns: int = 20, draws: int = 32) -> list[str]:
    """Logistic regression: many draws beside one."""
    rng = np.random.default_rng(1)
    X, b = rng.standard_normal((rows, columns), np.float32), 0.3 * rng.standard_normal(columns, np.float32)
    y = (rng.random(rows, np.float32) < 1 / (1 + np.exp(-X @ b))).astype(np.float32)
    model = yo.models.LogisticRegression(X, y)
    kernels = kernels_of(model, FullRank(), Clock())
    points = np.concatenate([[0.0], b])[None] + 0.01 * rng.normal(size=(draws, columns + 1))
    data = max(kernels.held.leaves, key=lambda x: x.size)
    once, totals = milliseconds(jax.jit(jnp.sum), data), kernels.bind(looks._totals, kernels.density, True)
    times = {
        name: [milliseconds(program, jnp.asarray(points[:n], jnp.float32)) for n in (1, draws)]
        for name, program in (("value", totals), ("value and gradient", kernels._gradients))
    }
    found, slope = kernels.point(points)
    true, gradient = exact(model, np.float32(points[0]), 20)
    return [
        f"## Logistic regression, d = {columns}, N = {rows:,}: {draws} draws beside one",
        "",
        f"Times of the device, ms; blocks of {kernels.sizes[0]} draws. A plain sum over the predictors takes {once:.3f}.",
        "",
        f"| | one draw | {draws} draws | ratio | asked |",
        "|---|---|---|---|---|",
        *(f"| {k} | {a:.3f} | {b:.3f} | {b / a:.2f} | 4 |" for k, (a, b) in times.items()),
        "",
        f"Against float64: the value is {abs(found[0] / true - 1):.1e} off, the gradient "
        f"{np.abs(slope[0] - gradient).max() / np.abs(gradient).max():.1e} of its largest entry.",
    ]


def restarts(count: int = 1024, repeats: int = 7) -> list[str]:
    """Restarts of a small mixture."""
    one, many = (lanes.measure(n, False, repeats) for n in (1, count))
    stages = ", ".join(f"{k} {1e3 * v:.0f}" for k, v in many["stages"].items())
    spread = lambda x: f"{1e3 * x['seconds']:.0f} ({1e3 * min(x['all']):.0f} to {1e3 * max(x['all']):.0f})"
    return [
        f"## {count:,} restarts of a mixture of three, N = 500, beside one",
        "",
        f"Warm fits, ms: one {spread(one)}, {count:,} {spread(many)}: {many['seconds'] / one['seconds']:.1f} times as long",
        f"(5 is asked); medians and ranges of {repeats} seeds. By stage: {stages}.",
    ]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=10**8)
    args = parser.parse_args()
    if jax.default_backend() != "gpu":
        print("All sections of this benchmark need a GPU; JAX found none here.")
        return
    lines = [
        "# One GPU near its limit",
        "",
        f"`python benchmarks/gpu.py --rows {args.rows}`, {jax.devices()[0].device_kind}, jax {jax.__version__}, float32, "
        f"{date.today():%-d %B %Y}.",
    ]
    for section in (lambda: mixture(args.rows), lambda: logistic(args.rows // 10), restarts):
        lines += ["", *section()]
        print("\n".join(lines), flush=True)
        OUT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
