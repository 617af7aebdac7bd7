"""A NumPyro model function, fitted as it is: coaching for the SAT in eight schools (Rubin 1981).

Given the spread between schools all else is Gaussian, so one sum over a grid of it gives the posterior means.
"""

import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy.stats import halfcauchy

import yoasovi as yo

EFFECT = np.array([28.0, 8, -3, 7, -1, 1, 18, 12])
ERROR = np.array([15.0, 10, 16, 11, 9, 11, 10, 18])


def schools(effect, error):
    mu = numpyro.sample("mu", dist.Normal(0, 5))
    tau = numpyro.sample("tau", dist.HalfCauchy(5))
    with numpyro.plate("schools", len(effect)):
        z = numpyro.sample("z", dist.Normal(0, 1))
        theta = numpyro.deterministic("theta", mu + tau * z)
        numpyro.sample("effect", dist.Normal(theta, error), obs=effect)


def exact():
    """Posterior means and standard deviations of mu, tau and theta, by quadrature over tau."""
    tau = np.geomspace(1e-3, 1e3, 20_001)[:, None]
    weight = 1 / (ERROR**2 + tau**2)
    variance = 1 / (weight.sum(1) + 5.0**-2)
    mean = variance * (weight @ EFFECT)
    log_p = halfcauchy.logpdf(tau[:, 0], scale=5) + 0.5 * np.log(variance) + 0.5 * np.log(weight).sum(1)
    log_p += 0.5 * mean**2 / variance - 0.5 * weight @ EFFECT**2 + np.log(tau[:, 0])  # the grid is even in log tau
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    pull = 1 / (1 + (ERROR / tau) ** 2)  # of a school's own data
    theta = pull * EFFECT + (1 - pull) * mean[:, None]
    spread = pull * ERROR**2 + (1 - pull) ** 2 * variance[:, None]
    first = {"mu": p @ mean, "tau": p @ tau[:, 0], "theta": p @ theta}
    second = {"mu": p @ (mean**2 + variance), "tau": p @ tau[:, 0] ** 2, "theta": p @ (theta**2 + spread)}
    return first, {k: np.sqrt(second[k] - first[k] ** 2) for k in first}


def main():
    fit = yo.fit(yo.from_numpyro(schools, EFFECT, error=ERROR), seed=0, progress=False)
    print(fit.summary())
    mean, sd = exact()
    draws = fit.sample(20_000)
    for name in mean:
        off = np.abs(draws[name].mean(0) - mean[name]) / sd[name]
        print(f"{name}: means off by at most {off.max():.3f} posterior sd")
        assert (off < 0.1).all(), name


if __name__ == "__main__":
    main()
