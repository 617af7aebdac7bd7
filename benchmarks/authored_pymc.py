"""Models as authors of PyMC programs write them, with simulated data: functions that give a `pm.Model`."""

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from scipy.special import gammaln


def radon():
    """Varying intercepts and slopes by county, with coordinates."""
    rng = np.random.default_rng(201)
    county = np.repeat(np.arange(15), 8)
    floor = rng.integers(0, 2, county.size)
    y = 1.3 + 0.3 * rng.normal(size=15)[county] - 0.6 * floor + 0.7 * rng.normal(size=county.size)
    with pm.Model(coords={"county": [f"county {i}" for i in range(15)], "obs": np.arange(county.size)}) as model:
        mu_a, sigma_a = pm.Normal("mu_a", 0, 2), pm.Exponential("sigma_a", 1)
        mu_b, sigma_b = pm.Normal("mu_b", 0, 2), pm.Exponential("sigma_b", 1)
        a = pm.Normal("a", mu_a, sigma_a, dims="county")
        b = pm.Normal("b", mu_b, sigma_b, dims="county")
        sigma = pm.Exponential("sigma", 1)
        pm.Normal("y", a[county] + b[county] * floor, sigma, observed=y, dims="obs")
    return model


def accidents():
    """Sixty years of them."""
    years = np.arange(60)
    return years, np.random.default_rng(202).poisson(np.where(years < 25, 3.0, 1.0))


def disasters():
    """Coal mining accidents a year with a switch point: discrete, summed out where pymc-extras is there."""
    years, y = accidents()
    with pm.Model() as model:
        switch = pm.DiscreteUniform("switch", 0, 59)
        early, late = pm.Exponential("early", 1), pm.Exponential("late", 1)
        pm.Poisson("y", pm.math.switch(switch >= years, early, late), observed=y)
    return model


def disasters_exactly():
    """Means and sds of `disasters`: given the switch both rates have gamma laws."""
    years, y = accidents()
    before, events = years + 1.0, np.cumsum(y)
    counts = {"early": (events, before), "late": (events[-1] - events, 60.0 - before)}
    mass = sum(gammaln(k + 1.0) - (k + 1.0) * np.log(n + 1.0) for k, n in counts.values())
    weights = np.exp(mass - mass.max())
    weights /= weights.sum()
    mean, square = {"switch": weights @ years}, {"switch": weights @ years**2}
    for name, (k, n) in counts.items():
        mean[name] = weights @ ((k + 1.0) / (n + 1.0))
        square[name] = weights @ ((k + 1.0) * (k + 2.0) / (n + 1.0) ** 2)
    return {k: float(v) for k, v in mean.items()}, {k: float(np.sqrt(square[k] - mean[k] ** 2)) for k in mean}


def sneezes():
    """Counts more spread than Poisson, by alcohol and medicine."""
    rng = np.random.default_rng(203)
    alcohol, pill = rng.integers(0, 2, 160), rng.integers(0, 2, 160)
    y = rng.negative_binomial(3, 3 / (3 + np.exp(1.0 + 0.8 * alcohol - 0.6 * pill)))
    with pm.Model() as model:
        a = pm.Normal("a", 0, 2)
        b = pm.Normal("b", 0, 1, shape=3)
        alpha = pm.Exponential("alpha", 0.2)
        mu = pm.math.exp(a + b[0] * alcohol + b[1] * pill + b[2] * alcohol * pill)
        pm.NegativeBinomial("y", mu=mu, alpha=alpha, observed=y)
    return model


def rugby():
    """Attack and defence of six teams from scores of matches."""
    rng = np.random.default_rng(204)
    home, away = np.array([(i, j) for i in range(6) for j in range(6) if i != j]).T
    attack, defence = 0.3 * rng.normal(size=6), 0.3 * rng.normal(size=6)
    scored = rng.poisson(np.exp(3.0 + 0.2 + attack[home] - defence[away]))
    conceded = rng.poisson(np.exp(3.0 + attack[away] - defence[home]))
    with pm.Model(coords={"team": list("ABCDEF")}) as model:
        advantage, level = pm.Normal("home", 0, 1), pm.Normal("intercept", 3, 1)
        sd_att, sd_def = pm.HalfNormal("sd_att", 1), pm.HalfNormal("sd_def", 1)
        atts_star, defs_star = pm.Normal("atts_star", 0, sd_att, dims="team"), pm.Normal("defs_star", 0, sd_def, dims="team")
        atts = pm.Deterministic("atts", atts_star - pt.mean(atts_star), dims="team")
        defs = pm.Deterministic("defs", defs_star - pt.mean(defs_star), dims="team")
        pm.Poisson("scored", pm.math.exp(level + advantage + atts[home] - defs[away]), observed=scored)
        pm.Poisson("conceded", pm.math.exp(level + atts[away] - defs[home]), observed=conceded)
    return model


def marginal_process():
    """Gaussian process regression by `pm.gp.Marginal`."""
    rng = np.random.default_rng(205)
    x = np.sort(rng.uniform(0, 10, 40))[:, None]
    y = np.sin(x[:, 0]) + 0.3 * rng.normal(size=40)
    with pm.Model() as model:
        ell, eta = pm.Gamma("ell", 2, 1), pm.HalfNormal("eta", 2)
        gp = pm.gp.Marginal(cov_func=eta**2 * pm.gp.cov.Matern52(1, ell))
        gp.marginal_likelihood("y", X=x, y=y, sigma=pm.HalfNormal("sigma", 1))
    return model


MODELS = {
    "radon": radon, "switch point": disasters, "sneezes": sneezes, "rugby": rugby, "marginal process": marginal_process,
}  # fmt: skip
EXACT = {"switch point": disasters_exactly}  # long runs of PyMC's compound steps differ by 0.16 sd there
