"""Which regression predicts better? Leave-one-out by ArviZ, from the draws of two fits.

Noise is known here, so that means and leave-one-out scores have closed forms to compare with.
"""

import arviz_stats
import numpy as np
import numpyro
import numpyro.distributions as dist

import yoasovi as yo

NOISE = 0.5


def simulate(seed=0, n=60):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, n)
    return x, 1.0 + 0.5 * x - 0.4 * x**2 + NOISE * rng.normal(size=n)


def curve(X, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("row", len(y)):
        numpyro.sample("y", dist.Normal(X @ w, NOISE), obs=y)


def posterior(X, y):
    covariance = np.linalg.inv(X.T @ X / NOISE**2 + np.eye(X.shape[1]))
    return covariance @ X.T @ y / NOISE**2, covariance


def exact_loo(X, y):
    total = 0.0
    for i in range(len(y)):
        mean, covariance = posterior(np.delete(X, i, 0), np.delete(y, i))
        variance = NOISE**2 + X[i] @ covariance @ X[i]
        total -= 0.5 * ((y[i] - X[i] @ mean) ** 2 / variance + np.log(2 * np.pi * variance))
    return total


def main():
    x, y = simulate()
    scores = {}
    for name, degree in (("line", 1), ("parabola", 2)):
        X = np.vander(x, degree + 1, increasing=True)
        fit = yo.fit(yo.from_numpyro(curve, X, y), seed=0)
        tree = fit.to_datatree(4000)
        scores[name] = arviz_stats.loo_approximate_posterior(tree, tree.sample_stats["log_p"], tree.sample_stats["log_q"])
        mean, covariance = posterior(X, y)
        off = np.abs(tree.posterior["w"].mean(("chain", "draw")).values - mean) / np.sqrt(np.diag(covariance))
        print(f"{name}: elpd {scores[name].elpd:.2f} ± {scores[name].se:.2f}, exactly {exact_loo(X, y):.2f}")
        assert off.max() < 0.1
        assert abs(scores[name].elpd - exact_loo(X, y)) < 0.2
    assert scores["parabola"].elpd > scores["line"].elpd


if __name__ == "__main__":
    main()
