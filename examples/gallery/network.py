"""A Bayesian network: a curve, and where it is not known

A small neural network with priors on its weights, fitted to points with a gap between them. Its weights mean nothing
by themselves, and their posterior has many modes, most of them copies of each other with units swapped: the fit is told
not to look for them. What is asked for is the curve, with intervals for new points. Simulated, so that the truth is
known. Where there were no points intervals hardly widen here: Gaussian approximations around one mode are known to be too
sure there (Foong, Li, Hernandez-Lobato and Turner 2019). Do not rely on them between points or beyond.
"""

import numpy as np
from matplotlib.figure import Figure

import yoasovi as yo


def curve(x):
    return np.sin(1.5 * x) + 0.3 * x


def main(small=False):
    rng = np.random.default_rng(0)
    n = 60 if small else 200
    x = np.concatenate([rng.uniform(-3, -0.5, n // 2), rng.uniform(1.0, 3, n - n // 2)])
    y = curve(x) + 0.2 * rng.normal(size=n)
    fit = yo.fit(yo.models.NeuralNetwork(x[:, None], y, hidden=(5,)), seed=0, mend=False)
    inside = np.concatenate([np.linspace(-2.9, -0.6, 100), np.linspace(1.1, 2.9, 100)])
    grid = np.linspace(-3.5, 3.5, 150)
    new = fit.predict(np.concatenate([inside, grid])[:, None], n=500)
    where, draws = new[:, :200], new[:, 200:]
    low, high = np.quantile(where, [0.05, 0.95], axis=0)
    seen = curve(inside) + 0.2 * np.random.default_rng(1).normal(size=200)
    covered = float(np.mean((low < seen) & (seen < high)))
    line = np.polyval(np.polyfit(x, y, 1), inside)
    error = lambda z: float(np.sqrt(np.mean((z - curve(inside)) ** 2)))
    wider = lambda places: draws.std(0)[places].mean() / where.std(0).mean()
    gap, beyond = wider((grid > -0.1) & (grid < 0.6)), wider(np.abs(grid) > 3.3)
    print(f"error {error(where.mean(0)):.2f}, of a straight line {error(line):.2f}")
    print(f"{covered:.0%} of new points lie inside 90% intervals")
    print(f"in the gap intervals are {gap:.2f} times as wide, beyond the points {beyond:.2f} times")
    assert error(where.mean(0)) < 0.5 * error(line)
    assert 0.75 < covered < 0.99

    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.fill_between(grid, *np.quantile(draws, [0.05, 0.95], axis=0), color="#0072B2", alpha=0.25, lw=0, label="90%")
    axes.plot(grid, draws.mean(0), color="#0072B2", label="mean")
    axes.plot(grid, curve(grid), "--", color="black", lw=1, label="truth")
    axes.plot(x, y, ".", color="#D55E00", ms=3)
    axes.legend(fontsize=8)
    return figure


if __name__ == "__main__":
    main()
