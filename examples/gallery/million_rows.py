"""A million rows, a thousand at a time

A regression on a million rows. The plate has a subsample size, so that the fit looks at a thousand rows at a time. The
start climbs on all of them, one gradient on all, now and then, takes most of the minibatches' noise off, and the ELBO at
the end is that of all rows. With the noise known the posterior is a Gaussian in closed form: every mean must be within a
third of its posterior sd, which is a few thousandths here.
"""

import numpy as np
import numpyro
import numpyro.distributions as dist
from matplotlib.figure import Figure

import yoasovi as yo

TRUTH = np.array([0.5, 1.0, -0.7, 0.3])


def rows(X, y, batch):
    w = numpyro.sample("w", dist.Normal(0, 10).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("rows", len(y), subsample_size=batch) as some:
        numpyro.sample("y", dist.Normal(X[some] @ w, 1.0), obs=y[some])


def main(small=False):
    n = 5_000 if small else 1_000_000
    rng = np.random.default_rng(0)
    X = np.column_stack([np.ones(n), rng.normal(size=(n, 3))])
    y = X @ TRUTH + rng.normal(size=n)
    fit = yo.fit(rows, X, y, 1000, seed=0)
    covariance = np.linalg.inv(X.T @ X + np.eye(4) / 100.0)
    mean, sd = covariance @ X.T @ y, np.sqrt(np.diag(covariance))
    w = fit.sample(2000)["w"]
    off, ratio = np.abs(w.mean(0) - mean) / sd, w.std(0) / sd
    print(f"{n:,} rows, {fit.num_steps:,} draws looked at a thousand each; {fit.seconds.run:.1f} s without compiling")
    print(f"means off by at most {off.max():.2f} posterior sd, sds {ratio.min():.2f} to {ratio.max():.2f} times exact ones")
    assert off.max() < 0.33
    assert ratio.min() > 0.8 and ratio.max() < 1.25

    figure = Figure(figsize=(7, 2.4), layout="constrained")
    for j, axes in enumerate(figure.subplots(1, 4)):
        grid = np.linspace(mean[j] - 4 * sd[j], mean[j] + 4 * sd[j], 100)
        axes.hist(w[:, j], 40, density=True, color="#0072B2", alpha=0.4)
        axes.plot(grid, np.exp(-0.5 * ((grid - mean[j]) / sd[j]) ** 2) / sd[j] / np.sqrt(2 * np.pi), color="black", lw=1)
        axes.set(title=f"w[{j}]", yticks=[])
        axes.tick_params(labelsize=7)
    return figure


if __name__ == "__main__":
    main()
