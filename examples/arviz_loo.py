"""Which covariate predicts better? Leave-one-out by ArviZ, from the draws of two fits.

Noise is known here, so that means and leave-one-out scores have closed forms to compare with. Both fits have the same
likelihood and shapes: the second compiles nothing.
"""

import arviz_stats
import numpy as np
import numpyro.distributions as dist

import yoasovi as yo

NOISE = 0.5


def simulate(seed=0, n=60):
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, n)
    return x, 1.0 + 0.2 * x - 0.4 * x**2 + NOISE * rng.normal(size=n)


def log_likelihood(params, data):
    return dist.Normal(data["X"] @ params["w"], NOISE).log_prob(data["y"])


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
    prior = {"w": dist.Normal(np.zeros(2), np.ones(2)).to_event(1)}
    for name, column in (("linear", x), ("quadratic", x**2)):
        X = np.column_stack([np.ones(len(x)), column])
        fit = yo.fit(yo.Model(prior=prior, log_likelihood=log_likelihood, data={"X": X, "y": y}), seed=0)
        tree = fit.to_datatree(4000)
        scores[name] = arviz_stats.loo_approximate_posterior(tree, tree.sample_stats["log_p"], tree.sample_stats["log_q"])
        mean, covariance = posterior(X, y)
        off = np.abs(tree.posterior["w"].mean(("chain", "draw")).values - mean) / np.sqrt(np.diag(covariance))
        print(f"{name}: elpd {scores[name].elpd:.2f} ± {scores[name].se:.2f}, exactly {exact_loo(X, y):.2f}")
        assert off.max() < 0.1
        assert abs(scores[name].elpd - exact_loo(X, y)) < 0.2
    assert scores["quadratic"].elpd > scores["linear"].elpd


if __name__ == "__main__":
    main()
