"""The default method on values of log p alone: gaps to known optima, values spent. python benchmarks/score_path.py [seeds]

The paper's mixtures and the FCPS sets against coordinate ascent (best of 20), one start each; a black-box logistic
regression against its mean-field optimum, variable selection against enumeration; and mixtures whose log p is no quadratic
against the best of all fits. About five minutes on two cores with the default ten seeds.
"""

import itertools
import sys
import time

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import yoasovi as yo
from yoasovi.experiments import figure2, simulate


def logistic(n=200, d=5, seed=0):
    """Give log p as a NumPy function of (d,) or (S, d), and d."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    x[:, 0], x[:, 2] = 1.0, 0.7 * x[:, 1] + 0.7 * x[:, 2]
    sign = np.where(rng.random(n) < 1 / (1 + np.exp(-x @ rng.normal(size=d))), 1.0, -1.0)

    def log_p(b):
        prior = -0.5 * np.sum(b**2, -1) / 9.0 - d * np.log(3.0) - 0.5 * d * np.log(2 * np.pi)
        return prior - np.logaddexp(0.0, -(b @ x.T) * sign).sum(-1)

    return log_p, d


def gaussian_elbo(log_p, mean, log_scale, draws=200_000):
    e = np.random.default_rng(5).normal(size=(draws // 2, len(mean)))
    e = np.concatenate([e, -e])
    f = log_p(mean + np.exp(log_scale) * e) + 0.5 * np.sum(e**2, 1) + np.sum(log_scale) + 0.5 * len(mean) * np.log(2 * np.pi)
    return f.mean()


def gaussian_optimum(log_p, d, sweeps=50, draws=50_000):
    """Mean-field optimum by damped Newton steps of the same regression at many draws."""
    rng, mean, log_scale = np.random.default_rng(3), np.zeros(d), np.full(d, -1.0)
    for t in range(sweeps):
        e = rng.normal(size=(draws, d))
        f = log_p(mean + np.exp(log_scale) * e) + 0.5 * np.sum(e**2, 1)
        found = np.linalg.lstsq(np.concatenate([np.ones((draws, 1)), e, e**2 - 1], 1), f, rcond=None)[0]
        precision, rho = np.clip(1 - 2 * found[d + 1 :], 0.1, 10), 0.5 if t < sweeps // 2 else 0.2
        mean = mean + rho * np.exp(log_scale) * found[1 : d + 1] / precision
        log_scale = log_scale - 0.5 * rho * np.log(precision)
    return gaussian_elbo(log_p, mean, log_scale)


def selection(d=6, n=40, seed=0):
    """Which of d variables belong in a linear regression: log evidence of all 2^d answers."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d))
    x[:, 1] = 0.8 * x[:, 0] + 0.6 * x[:, 1]
    y = x @ np.array([1.0, 0, 0.3, 0, -0.35, 0])[:d] + rng.normal(size=n)
    cube = np.array(list(itertools.product([0, 1], repeat=d)))
    roots = [np.linalg.cholesky(np.eye(n) + (x * g) @ x.T) for g in cube]
    return cube, np.array([dist.MultivariateNormal(0.0, scale_tril=jnp.asarray(r)).log_prob(y) for r in roots], float)


def selection_model(cube, evidence):
    place = jnp.asarray(2 ** np.arange(cube.shape[1])[::-1])
    return yo.Model(
        prior={"included": dist.Bernoulli(jnp.full(cube.shape[1], 0.3)).to_event(1)}, data=evidence, name="selection",
        log_likelihood=lambda p, evidence: evidence[jnp.sum(p["included"] * place)][None],
    )  # fmt: skip


def bernoulli_elbo(cube, evidence, logits):
    log_q = np.sum(cube * logits - np.logaddexp(0, logits), 1)
    log_p = evidence + np.sum(np.where(cube, np.log(0.3), np.log(0.7)), 1)
    return np.sum(np.exp(log_q) * (log_p - log_q))


def bernoulli_optimum(cube, evidence, starts=20, sweeps=100):
    log_p, best = evidence + np.sum(np.where(cube, np.log(0.3), np.log(0.7)), 1), -np.inf
    for s in range(starts):
        logits = np.random.default_rng(s).normal(size=cube.shape[1])
        for _, j in itertools.product(range(sweeps), range(len(logits))):
            each = np.where(cube, -np.logaddexp(0, -logits), -np.logaddexp(0, logits))
            rest = np.exp(np.sum(np.delete(each, j, 1), 1))
            logits[j] = np.sum(rest * log_p * (2 * cube[:, j] - 1))
        best = max(best, bernoulli_elbo(cube, evidence, logits))
    return best


def bent():
    """Mixtures with log p that is no quadratic of their parameters, by name."""
    counts = np.random.default_rng(0).poisson(np.array([2.0, 10.0, 30.0])[np.random.default_rng(1).integers(3, size=300)])
    poisson = yo.Model(
        prior={"rate": dist.LogNormal(jnp.full(3, 2.0), 1.5).to_event(1), "w": dist.Dirichlet(jnp.ones(3))}, data=counts,
        local={"z": lambda p: dist.CategoricalLogits(jnp.log(p["w"]))},
        log_likelihood=lambda p, y: dist.Poisson(p["rate"][p["z"]]).log_prob(y),
    )  # fmt: skip
    hepta = yo.models.GaussianMixture(figure2.points("Hepta").y, 7, covariance="diagonal", **figure2.priors("Hepta"))
    wide = yo.models.GaussianMixture(simulate.mixture(3, 4), 4, covariance="diagonal")
    return {"Poisson mixture, weights": poisson, "mixture 3,4, scales": wide, "Hepta, scales": hepta}


def row(name, gaps, fits, seconds, allowed):
    values = [f.num_values for f in fits]
    good, stopped = sum(g < allowed for g in gaps), sum(f.converged for f in fits)
    print(f"{name:<26}{np.median(gaps):>9.3f}{max(gaps):>9.3f}{f'{good} of {len(gaps)} < {allowed:g}':>17}"
          f"{int(np.median(values)):>9,}{max(values):>9,}{stopped:>9}{seconds:>9.0f}", flush=True)  # fmt: skip


def main(seeds=10):
    print(f"{'':<26}{'gap':>9}{'worst':>9}{'':>17}{'values':>9}{'most':>9}{'stopped':>9}{'seconds':>9}")
    exact = {f"mixture {p},{k}": yo.models.GaussianMixture(simulate.mixture(p, k), k) for p, k in ((2, 2), (2, 3), (3, 4))}
    exact |= {name: figure2.mixture(name, "free") for name in figure2.SETS}
    for name, model in exact.items():
        begin, fits = time.time(), [yo.fit(model, seed=s) for s in range(seeds)]
        row(name, [model.optimum() - float(model.exact_elbo(f.params)) for f in fits], fits, time.time() - begin, 1)
    begin, (log_p, d) = time.time(), logistic()
    fits, best = [yo.fit(yo.Model.external(log_p, d), seed=s) for s in range(seeds)], gaussian_optimum(log_p, d)
    gaps = [best - gaussian_elbo(log_p, np.asarray(f.params.mean), np.asarray(f.params.log_scale)) for f in fits]
    row("external logistic d=5", gaps, fits, time.time() - begin, 0.05)
    begin, (cube, evidence) = time.time(), selection()
    model, best = selection_model(cube, evidence), bernoulli_optimum(cube, evidence)
    fits = [yo.fit(model, seed=s) for s in range(seeds)]
    gaps = [best - bernoulli_elbo(cube, evidence, np.asarray(f.params["included"]["logits"])) for f in fits]
    row("variable selection d=6", gaps, fits, time.time() - begin, 0.1)
    for name, model in bent().items():
        begin, fits = time.time(), [yo.fit(model, seed=s) for s in range(seeds)]
        best = max(f.elbo.value for f in fits)
        row(name, [best - f.elbo.value for f in fits], fits, time.time() - begin, 1)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
