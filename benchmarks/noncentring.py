"""Forms of hierarchical models: which is kept by its ELBO, and how far its answers are from exact ones.

    python benchmarks/noncentring.py [--seeds 5] [--out benchmarks/results]

Exact means and standard deviations come from quadrature over the scales; given these, all else is normal. Needs PyMC
(pip install "yoasovi[pymc]").
"""

import argparse
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pymc as pm

import yoasovi as yo
from yoasovi.model import reparameterisations

Y, SE = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
DRAWS = 8000


# ---- eight schools -----------------------------------------------------------------------------------------


def schools(y, se):
    mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5))
    theta = numpyro.sample("theta", dist.Normal(mu, tau).expand([len(y)]))
    numpyro.sample("y", dist.Normal(theta, se), obs=y)


def pymc_schools():
    with pm.Model() as model:
        mu, tau = pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5)
        theta = pm.Normal("theta", mu, tau, shape=len(Y))
        pm.Normal("y", theta, SE, observed=Y)
    return model


def exact_schools():
    tau = np.exp(np.linspace(-14, 8, 20_000))
    log_prior = -np.log1p((tau / 5) ** 2) + np.log(tau)  # on the logarithmic grid
    return _exact(Y, np.broadcast_to(SE**2, (len(tau), len(Y))), tau, log_prior, 5.0, {"tau": tau})


# ---- many observations in each group -----------------------------------------------------------------------

_RNG = np.random.default_rng(1)
GROUP = np.repeat(np.arange(20), 50)
ROWS = _RNG.normal(1.0, 1.0, 20)[GROUP] + _RNG.normal(size=len(GROUP))


def groups(y):
    mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfNormal(2))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2))
    with numpyro.plate("group", 20):
        a = numpyro.sample("a", dist.Normal(mu, tau))
    numpyro.sample("y", dist.Normal(a[GROUP], sigma), obs=y)


def pymc_groups():
    with pm.Model() as model:
        mu, tau, sigma = pm.Normal("mu", 0, 5), pm.HalfNormal("tau", 2), pm.HalfNormal("sigma", 2)
        a = pm.Normal("a", mu, tau, shape=20)
        pm.Normal("y", a[GROUP], sigma, observed=ROWS)
    return model


def exact_groups():
    means = np.array([ROWS[j == GROUP].mean() for j in range(20)])
    within = np.sum((ROWS - means[GROUP]) ** 2)
    tau, sigma = (x.ravel() for x in np.meshgrid(np.exp(np.linspace(-1, 1.2, 300)), np.exp(np.linspace(-0.2, 0.2, 200))))
    log_prior = -0.5 * (tau**2 + sigma**2) / 4 + np.log(tau) + np.log(sigma)
    log_prior += -0.5 * within / sigma**2 - (len(ROWS) - 20) * np.log(sigma)  # what group means do not say
    variances = np.broadcast_to(sigma[:, None] ** 2 / 50, (len(sigma), 20))
    found = _exact(means, variances, tau, log_prior, 5.0, {"tau": tau, "sigma": sigma})
    return {"a" if k == "theta" else k: v for k, v in found.items()}


def _exact(y, variances, tau, log_prior, prior_sd, grids):
    """Integrate a normal hierarchy: y_j ~ N(theta_j, variances), theta_j ~ N(mu, tau), mu ~ N(0, prior_sd)."""
    total = variances + tau[:, None] ** 2
    precision = prior_sd**-2 + np.sum(1 / total, 1)
    mu = np.sum(y / total, 1) / precision
    log = log_prior - 0.5 * (np.sum(np.log(total) + y**2 / total, 1) + np.log(precision) - mu**2 * precision)
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    shrink = tau[:, None] ** 2 / total
    theta = shrink * y + (1 - shrink) * mu[:, None]
    spread = tau[:, None] ** 2 * (1 - shrink) + (1 - shrink) ** 2 / precision[:, None]

    def moments(mean, variance=0.0):
        middle = weight @ mean
        return middle, np.sqrt(weight @ (variance + mean**2) - middle**2)

    return {"mu": moments(mu, 1 / precision), **{k: moments(x) for k, x in grids.items()}, "theta": moments(theta, spread)}


# ---- Neal's funnel -----------------------------------------------------------------------------------------


def funnel():
    v = numpyro.sample("v", dist.Normal(0, 3))
    numpyro.sample("x", dist.Normal(0, jnp.exp(v / 2)).expand([9]))


def pymc_funnel():
    with pm.Model() as model:
        v = pm.Normal("v", 0, 3)
        pm.Normal("x", 0, pm.math.exp(v / 2), shape=9)
    return model


def exact_funnel():
    """x has no sd that draws could show (its logarithm is as wide as v): log |x| = v/2 + log |normal| stands for it."""
    return {"v": (0.0, 3.0), "log |x|": (-0.6352, np.sqrt(9 / 4 + np.pi**2 / 8))}


CASES = {
    "eight schools": (exact_schools, {"NumPyro": lambda: yo.from_numpyro(schools, Y, SE), "PyMC": pymc_schools}),
    "Neal's funnel": (exact_funnel, {"NumPyro": lambda: yo.from_numpyro(funnel), "PyMC": pymc_funnel}),
    "20 groups of 50": (exact_groups, {"NumPyro": lambda: yo.from_numpyro(groups, ROWS), "PyMC": pymc_groups}),
}


def errors(fit, exact):
    """Give the largest error of a mean, in sds, and the largest relative error of an sd."""
    draws = fit.sample(DRAWS, seed=fit.seed)
    if "x" in draws:
        draws["log |x|"] = np.log(np.abs(draws["x"]))
    shift = max(np.max(np.abs(draws[k].mean(0) - mean) / sd) for k, (mean, sd) in exact.items())
    return float(shift), float(max(np.max(np.abs(draws[k].std(0) / sd - 1)) for k, (_, sd) in exact.items()))


def kept(elbos):
    """Choose a form: the first, unless another is better beyond doubt."""
    first = elbos[0]
    best = max(elbos, key=lambda x: x.value)
    return elbos.index(best) if best.value - first.value > 2 * np.hypot(best.se, first.se) else 0


def rows(seeds):
    for name, (make_exact, doors) in CASES.items():
        exact = make_exact()
        for door, make in doors.items():
            model = make() if door == "NumPyro" else yo.from_pymc(make())
            forms = [("as written", model), *reparameterisations(model)]
            fits = [[yo.fit(form, seed=seed, progress=False, mend=False) for _, form in forms] for seed in range(seeds)]
            chosen = [kept([fit.elbo for fit in row]) for row in fits]
            for i, (text, _) in enumerate(forms):
                column = [row[i] for row in fits]
                far = np.array([errors(fit, exact) for fit in column])
                elbos = [fit.elbo.value for fit in column]
                yield (
                    f"| {name} | {door} | {text} | {np.median(elbos):.2f} ({min(elbos):.2f} to {max(elbos):.2f}) "
                    f"| {chosen.count(i)} of {seeds} | {np.median(far[:, 0]):.3f} ({far[:, 0].max():.3f}) "
                    f"| {np.median(far[:, 1]):.1%} ({far[:, 1].max():.1%}) "
                    f"| {np.median([fit.num_gradients for fit in column]):,.0f} |"
                )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = parser.parse_args()
    lines = [
        "# Forms of hierarchical models", "",
        f"`python benchmarks/noncentring.py --seeds {args.seeds}`: default fits of each form. ELBO: median, range. Kept:",
        "the form with the highest ELBO, or the one as written where no other is better by two standard errors. Errors of",
        f"`fit.sample({DRAWS})` against quadrature are the largest over all parameters, of means in posterior sds, of sds",
        "relative; the worst seed is in brackets. For the funnel, log |x| stands for x, whose tails no sample shows.", "",
        "| posterior | door | form | ELBO | kept | means off by (sd) | sds off by | gradients |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for line in rows(args.seeds):
        print(line, flush=True)
        lines.append(line)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "noncentring.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
