"""A change point: when coal mining became safer

Disasters in British coal mines with ten or more deaths, by year from 1851 to 1962 (Carlin, Gelfand and Smith 1992). At
some unknown year their rate changed. The year is discrete, and summing over it leaves a density with a gradient; what
the sum was made of gives the year back afterwards, draw by draw. Given the year both rates have Gamma posteriors, so
that everything about this model is known exactly, and compared.
"""

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from matplotlib.figure import Figure
from numpyro.distributions import constraints
from scipy.special import gammaln

import yoasovi as yo

COUNTS = np.array([
    4, 5, 4, 1, 0, 4, 3, 4, 0, 6, 3, 3, 4, 0, 2, 6, 3, 3, 5, 4, 5, 3, 1, 4, 4, 1, 5, 5, 3, 4, 2, 5, 2, 2, 3, 4, 2, 1, 3, 2,
    2, 1, 1, 1, 1, 3, 0, 0, 1, 0, 1, 1, 0, 0, 3, 1, 0, 3, 2, 2, 0, 1, 1, 1, 0, 1, 0, 1, 0, 0, 0, 2, 1, 0, 0, 0, 1, 1, 0, 2,
    3, 3, 1, 1, 2, 1, 1, 1, 1, 2, 4, 2, 0, 0, 0, 1, 4, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1,
])  # fmt: skip
YEARS = np.arange(1, len(COUNTS))  # the change comes after so many years
BEFORE, AFTER = np.cumsum(COUNTS)[:-1], COUNTS.sum() - np.cumsum(COUNTS)[:-1]


def by_year(early, late):
    """Give log p of the rates, each Exponential(1) a priori, together with each year of change; up to a constant."""
    log_p = BEFORE * jnp.log(early) - (YEARS + 1.0) * early
    return log_p + AFTER * jnp.log(late) - (len(COUNTS) - YEARS + 1.0) * late


def exact():
    """Means of the two rates, and the probabilities of all years."""
    log_p = gammaln(BEFORE + 1.0) - (BEFORE + 1) * np.log(YEARS + 1.0)
    log_p += gammaln(AFTER + 1.0) - (AFTER + 1) * np.log(len(COUNTS) - YEARS + 1.0)
    p = np.exp(log_p - log_p.max())
    p /= p.sum()
    return p @ ((BEFORE + 1) / (YEARS + 1.0)), p @ ((AFTER + 1) / (len(COUNTS) - YEARS + 1.0)), p


def main(small=False):
    supports = {"early": constraints.positive, "late": constraints.positive}
    model = yo.Model.from_log_density(lambda x: logsumexp(by_year(x["early"], x["late"])), supports)
    fit = yo.fit(model, seed=0)
    draws = fit.sample(1000 if small else 8000)
    each = np.asarray(by_year(draws["early"][:, None], draws["late"][:, None]))
    year = np.exp(each - each.max(1, keepdims=True))
    year = (year / year.sum(1, keepdims=True)).mean(0)
    early, late, p = exact()
    top = YEARS[year.argmax()] + 1850
    print(f"rates {draws['early'].mean():.2f} and {draws['late'].mean():.2f} a year, exactly {early:.2f} and {late:.2f}")
    print(f"the change most likely came after {top} ({year.max():.0%}; exactly {p.max():.0%})")
    assert abs(draws["early"].mean() - early) < 0.2 * draws["early"].std()
    assert abs(draws["late"].mean() - late) < 0.2 * draws["late"].std()
    assert np.abs(year - p).max() < 0.02

    figure = Figure(figsize=(7, 3), layout="constrained")
    axes = figure.subplots()
    axes.bar(np.arange(1851, 1963), COUNTS, color="#999999", width=0.8)
    axes.set(xlabel="year", ylabel="disasters")
    other = axes.twinx()
    other.plot(YEARS + 1850, year, color="#D55E00", label="probability of the year of change")
    other.set_ylim(0, None)
    other.legend(fontsize=8)
    return figure


if __name__ == "__main__":
    main()
