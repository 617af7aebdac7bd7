"""Five Stan programs beside NumPyro models of the same posterior: log p, ELBO, means, and what each cost.

    python benchmarks/stan_twins.py [--seeds 3] [--only SUBSTRING]

Needs `pip install "yoasovi[stan]"` and a C++ compiler; every program is compiled once and then kept in the cache folder.
Twins have the same parameters in the same order under the same transforms, so that log p can be compared at the same
unconstrained points, and ELBOs of two fits on the same draws.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import lax
from numpyro.distributions import constraints

import yoasovi as yo

DRAWS = 20_000  # behind each ELBO and each mean
STEPS = 20  # a day, of the twin of the ODE
SLOPES = Path(__file__).parent.parent / "examples" / "slopes.stan"


@dataclass(frozen=True)
class Twins:
    """A Stan program with its data, and a NumPyro model with the same ones."""

    name: str
    program: str | Path
    numpyro: Callable
    data: dict[str, Any]


REGRESSION = """
data { int<lower=0> N; int<lower=1> P; matrix[N, P] X; vector[N] y; }
parameters { real alpha; vector[P] beta; real<lower=0> sigma; }
model {
  alpha ~ normal(0, 5);
  beta ~ normal(0, 2);
  sigma ~ exponential(1);
  y ~ normal(alpha + X * beta, sigma);
}
"""


def regression(N, P, X, y):
    alpha = numpyro.sample("alpha", dist.Normal(0, 5))
    beta = numpyro.sample("beta", dist.Normal(0, 2).expand([P]).to_event(1))
    sigma = numpyro.sample("sigma", dist.Exponential(1))
    numpyro.sample("y", dist.Normal(alpha + X @ beta, sigma), obs=y)


def slopes(N, J, person, day, y):
    beta = numpyro.sample("beta", dist.Normal(0, 5).expand([2]).to_event(1))
    tau = numpyro.sample("tau", dist.Exponential(1).expand([2]).to_event(1))
    L = numpyro.sample("L", dist.LKJCholesky(2, 2.0))
    z = numpyro.sample("z", dist.Normal(0, 1).expand([J, 2]).to_event(2))  # Stan's z is written by column
    sigma = numpyro.sample("sigma", dist.Exponential(1))
    line = numpyro.deterministic("line", beta + z @ (tau[:, None] * L).T)
    numpyro.sample("y", dist.Normal(line[person - 1, 0] + line[person - 1, 1] * day, sigma), obs=y)


MIXTURE = """
data { int<lower=0> N; int<lower=2> K; vector[N] y; }
parameters { simplex[K] w; ordered[K] mu; vector<lower=0>[K] sigma; }
model {
  w ~ dirichlet(rep_vector(2, K));
  mu ~ normal(0, 5);
  sigma ~ exponential(1);
  for (n in 1:N) {
    vector[K] lp = log(w);
    for (k in 1:K) lp[k] += normal_lpdf(y[n] | mu[k], sigma[k]);
    target += log_sum_exp(lp);
  }
}
"""


def mixture(N, K, y):
    w = numpyro.sample("w", dist.Dirichlet(2.0 * jnp.ones(K)))
    mu = numpyro.sample("mu", dist.ImproperUniform(constraints.ordered_vector, (), (K,)))
    numpyro.factor("mu's law", dist.Normal(0, 5).log_prob(mu).sum())
    sigma = numpyro.sample("sigma", dist.Exponential(1).expand([K]).to_event(1))
    numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(w), dist.Normal(mu, sigma)), obs=y)


SIR = """
functions {
  vector sir(real t, vector s, real beta, real gamma) {
    real new_cases = beta * s[1] * s[2];
    return [-new_cases, new_cases - gamma * s[2]]';
  }
}
data { int<lower=1> T; array[T] real day; array[T] int cases; real population; real first; }
parameters { real<lower=0> beta; real<lower=0> gamma; real<lower=0> spread; }
transformed parameters {
  array[T] vector[2] s = ode_rk45_tol(sir, [1 - first, first]', 0, day, 1e-8, 1e-10, 100000, beta, gamma);
  real R0 = beta / gamma;
}
model {
  beta ~ lognormal(0, 1);
  gamma ~ lognormal(-1, 1);
  spread ~ exponential(5);
  for (t in 1:T) cases[t] ~ neg_binomial_2(population * s[t, 2], 1 / spread);
}
"""


def sir(T, day, cases, population, first):
    beta = numpyro.sample("beta", dist.LogNormal(0, 1))
    gamma = numpyro.sample("gamma", dist.LogNormal(-1, 1))
    spread = numpyro.sample("spread", dist.Exponential(5))
    numpyro.deterministic("R0", beta / gamma)

    def slope(s):
        return jnp.stack([-beta * s[0] * s[1], beta * s[0] * s[1] - gamma * s[1]])

    def step(s, _):  # Runge-Kutta with steps of one size: JAX's adaptive solver took minutes under vmap
        h = 1 / STEPS
        k1 = slope(s)
        k2 = slope(s + h / 2 * k1)
        k3 = slope(s + h / 2 * k2)
        return s + h / 6 * (k1 + 2 * k2 + 2 * k3 + slope(s + h * k3)), None

    def next_day(s, _):
        s = lax.scan(step, s, None, length=STEPS)[0]
        return s, s

    s = numpyro.deterministic("s", lax.scan(next_day, jnp.stack([1 - first, first]), None, length=T)[1])
    numpyro.sample("cases", dist.NegativeBinomial2(population * s[:, 1], 1 / spread), obs=cases)


COUNTS = """
data { int<lower=0> N; vector[N] x; array[N] int<lower=0> y; int<lower=0> M; vector[M] x_new; }
parameters { real a; real b; }
model {
  a ~ normal(0, 2);
  b ~ normal(0, 2);
  y ~ poisson_log(a + b * x);
}
generated quantities {
  vector[M] rate = exp(a + b * x_new);
  array[M] int y_new = poisson_log_rng(a + b * x_new);
  vector[N] log_lik;
  for (n in 1:N) log_lik[n] = poisson_log_lpmf(y[n] | a + b * x[n]);
}
"""


def counts(N, x, y, M, x_new):
    a, b = numpyro.sample("a", dist.Normal(0, 2)), numpyro.sample("b", dist.Normal(0, 2))
    numpyro.deterministic("rate", jnp.exp(a + b * x_new))
    numpyro.sample("y", dist.Poisson(jnp.exp(a + b * x)), obs=y)


def all_twins() -> list[Twins]:
    """Simulate data for all."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(200, 5))
    y = 1.0 + X @ np.array([1.0, -0.5, 0.3, 0.0, 2.0]) + 0.7 * rng.normal(size=200)
    person, day = np.repeat(np.arange(12), 8), np.tile(np.linspace(-1, 1, 8), 12)
    line = np.array([2.0, -0.5]) + rng.normal(size=(12, 2)) @ np.linalg.cholesky([[1.0, 0.4], [0.4, 0.5]]).T
    seen = line[person, 0] + line[person, 1] * day + 0.3 * rng.normal(size=96)
    clusters = np.concatenate([rng.normal(-2, 0.7, 90), rng.normal(1, 0.5, 60), rng.normal(4, 1.0, 50)])
    days, s = np.arange(1.0, 15.0), np.array([1 - 3 / 763, 3 / 763])
    infected = []
    for _ in days:
        for _ in range(1000):  # steps of a thousandth of a day
            new = 1.8 * s[0] * s[1] / 1000
            s = s + np.array([-new, new - 0.5 * s[1] / 1000])
        infected.append(s[1])
    mean = 763 * np.array(infected)
    cases = rng.poisson(mean * rng.gamma(10, 0.1, 14))
    x = rng.normal(size=100)
    hits, new = rng.poisson(np.exp(0.5 + 0.8 * x)), np.linspace(-2, 2, 5)
    return [
        Twins("regression", REGRESSION, regression, {"N": 200, "P": 5, "X": X, "y": y}),
        Twins("hierarchy", SLOPES, slopes, {"N": 96, "J": 12, "person": person + 1, "day": day, "y": seen}),
        Twins("mixture", MIXTURE, mixture, {"N": 200, "K": 3, "y": clusters}),
        Twins("ODE", SIR, sir, {"T": 14, "day": days, "cases": cases, "population": 763.0, "first": 3 / 763}),
        Twins("generated quantities", COUNTS, counts, {"N": 100, "x": x, "y": hits, "M": 5, "x_new": new}),
    ]


@dataclass
class Side:
    """One of two fits."""

    fit: yo.Fit
    seconds: float

    def elbo(self, noise: np.ndarray) -> np.ndarray:
        return self.fit.kernels.values(self.fit.lane, noise[None])[0]


def timed(model: yo.Model, seed: int) -> Side:
    begin = time.process_time()
    fit = yo.fit(model, seed=seed, progress=False)
    fit.mean()
    return Side(fit, time.process_time() - begin)


def heights_apart(stan: yo.Model, twin: yo.Fit, seed: int = 0, n: int = 50) -> float:
    """Largest difference of log p at the same unconstrained points around the posterior."""
    eps = np.random.default_rng(seed).normal(size=(n, twin.model.density.dim))
    theta = twin.family.place(twin.lane, 2.0 * eps[None])[0]
    return float(np.abs(stan.log_likelihood.values(theta) - twin.kernels.heights(theta)).max())


def means_apart(stan: yo.Fit, twin: yo.Fit) -> tuple[float, str]:
    """Largest difference of posterior means, in sds, over all numbers that vary and that both have in the same shape."""
    a, b = stan.sample(DRAWS), twin.sample(DRAWS)
    off = {}
    for name in [k for k in b if k in a and a[k].shape == b[k].shape]:
        sd = b[name].std(0)
        off[name] = float(np.max(np.where(sd > 1e-9, np.abs(a[name].mean(0) - b[name].mean(0)) / np.maximum(sd, 1e-9), 0)))
    worst = max(off, key=off.__getitem__)
    return off[worst], worst


COLUMNS = (
    "program", "d", "seed", "log p apart", "ELBO, Stan", "ELBO, twin", "apart (nats)", "means apart (sds)", "grade, Stan",
    "grade, twin", "CPU s, Stan", "CPU s, twin",
)  # fmt: skip


def row(twins: Twins, seed: int) -> list[Any]:
    model = yo.from_stan(twins.program, twins.data)
    stan, twin = timed(model, seed), timed(yo.from_numpyro(twins.numpyro, **twins.data), seed)
    noise = np.random.default_rng(1000 + seed).normal(size=(DRAWS, model.density.dim))
    a, b = stan.elbo(noise), twin.elbo(noise)
    off, worst = means_apart(stan.fit, twin.fit)
    return [
        twins.name, model.density.dim, seed, f"{heights_apart(model, twin.fit):.1e}", f"{a.mean():.3f}", f"{b.mean():.3f}",
        f"{abs(a.mean() - b.mean()):.4f} ± {(a - b).std() / np.sqrt(DRAWS):.4f}", f"{off:.3f} ({worst})",
        stan.fit.judged().grade, twin.fit.judged().grade, f"{stan.seconds:.2f}", f"{twin.seconds:.2f}",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    try:
        for twins in all_twins():
            for seed in range(options.seeds) if options.only in twins.name else ():
                print(f"| {' | '.join(map(str, row(twins, seed)))} |", flush=True)
    except (ImportError, FileNotFoundError) as error:
        print(f"Left out: {error}")


if __name__ == "__main__":
    main()
