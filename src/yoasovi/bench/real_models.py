"""Posteriors of posteriordb as a NumPyro user would write them.

`FORMS` maps posteriordb's names to functions of the data (a dict of arrays, as the database has them) that give
`(model, args)`. All that have reference draws there are in it, and four more; sites have the names of the Stan programs'
parameters, and quantities that only the draws have (theta = mu + tau z) are deterministic sites.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.experimental.ode import odeint
from jax.nn import logsumexp
from numpyro.distributions import constraints

CAUCHY = dist.HalfCauchy(2.5)


def flat(*shape, support=constraints.real):
    return dist.ImproperUniform(support, (), shape)


def linear(response, *predictors, noise=None):
    """Regression on a constant and predictors, all priors flat but for `noise`, that of the residual sd."""

    def model(X, y):
        beta = numpyro.sample("beta", flat(X.shape[1]))
        sigma = numpyro.sample("sigma", flat(support=constraints.positive) if noise is None else noise)
        numpyro.sample("y", dist.Normal(X @ beta, sigma), obs=y)

    return model, (np.column_stack([np.ones(len(response)), *predictors]), response)


def crossed(response, a, b):
    """Regression on two predictors and their product."""
    return linear(response, a, b, a * b)


def standardised(x, sds=1):
    return (x - x.mean()) / (sds * x.std(ddof=1))


def kidscore_interaction(d):
    return linear(d["kid_score"], d["mom_hs"], d["mom_iq"], d["mom_hs"] * d["mom_iq"], noise=CAUCHY)


def kidscore_interaction_c(d):
    return crossed(d["kid_score"], *(d[k] - d[k].mean() for k in ("mom_hs", "mom_iq")))


def kidscore_interaction_z(d):
    return crossed(d["kid_score"], *(standardised(d[k], 2) for k in ("mom_hs", "mom_iq")))


def nes(d):
    ages = [(d["age_discrete"] == k).astype(float) for k in (2, 3, 4)]
    return linear(d["partyid7"], d["real_ideo"], d["race_adj"], *ages, d["educ1"], d["gender"], d["income"])


BUSH = ("diam1", "diam2", "canopy_height", "total_height", "density")


def logmesquite(*names):
    """Regression of log weight on logs of some sizes of the bushes and on their group."""

    def form(d):
        known = {k: np.log(d[k]) for k in BUSH} | {"group": d["group"]}
        area = known["diam1"] + known["diam2"]
        known |= {"area": area, "volume": area + known["canopy_height"], "shape": known["diam1"] - known["diam2"]}
        return linear(np.log(d["weight"]), *(known[k] for k in names))

    return form


def kilpisjarvi(d):
    def model(x, y):
        alpha = numpyro.sample("alpha", dist.Normal(d["pmualpha"], d["psalpha"]))
        beta = numpyro.sample("beta", dist.Normal(d["pmubeta"], d["psbeta"]))
        sigma = numpyro.sample("sigma", flat(support=constraints.positive))
        numpyro.sample("y", dist.Normal(alpha + beta * x, sigma), obs=y)

    return model, (d["x"], d["y"])


def blr(d):
    def model(X, y):
        beta = numpyro.sample("beta", dist.Normal(0, 10).expand([X.shape[1]]))
        sigma = numpyro.sample("sigma", dist.HalfNormal(10))
        numpyro.sample("y", dist.Normal(X @ beta, sigma), obs=y)

    return model, (d["X"], d["y"])


def diamonds(d):
    """Regression on 24 centred columns; the first column of X is the constant."""

    def model(X, y):
        b = numpyro.sample("b", dist.Normal(0, 1).expand([X.shape[1]]))
        level = numpyro.sample("Intercept", dist.StudentT(3, 8, 10))
        sigma = numpyro.sample("sigma", dist.LeftTruncatedDistribution(dist.StudentT(3, 0, 10), low=0.0))
        numpyro.sample("y", dist.Normal(level + X @ b, sigma), obs=y)

    return model, (d["X"][:, 1:] - d["X"][:, 1:].mean(0), d["Y"])


def wells(d):
    def model(X, y):
        alpha, beta = numpyro.sample("alpha", flat()), numpyro.sample("beta", flat(X.shape[1]))
        numpyro.sample("y", dist.Bernoulli(logits=alpha + X @ beta), obs=y)

    return model, (np.column_stack([d["dist"] / 100, d["arsenic"]]), d["switched"])


def eight_schools_centred(d):
    def model(sigma, y):
        mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5))
        theta = numpyro.sample("theta", dist.Normal(mu, tau).expand([len(sigma)]))
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)

    return model, (d["sigma"], d["y"])


def eight_schools_non_centred(d):
    def model(sigma, y):
        mu, tau = numpyro.sample("mu", dist.Normal(0, 5)), numpyro.sample("tau", dist.HalfCauchy(5))
        z = numpyro.sample("theta_trans", dist.Normal(0, 1).expand([len(sigma)]))
        theta = numpyro.deterministic("theta", mu + tau * z)
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)

    return model, (d["sigma"], d["y"])


def radon(d):
    def model(county, uranium, floor, y):
        spread, sigma = numpyro.sample("sigma_alpha", dist.HalfNormal(1)), numpyro.sample("sigma_y", dist.HalfNormal(1))
        mu = numpyro.sample("mu_alpha", dist.Normal(0, 10))
        beta = numpyro.sample("beta", dist.Normal(0, 10).expand([2]))
        raw = numpyro.sample("alpha_raw", dist.Normal(0, 1).expand([int(d["J"])]))
        alpha = numpyro.deterministic("alpha", mu + spread * raw)
        numpyro.sample("y", dist.Normal(alpha[county] + beta[0] * uranium + beta[1] * floor, sigma), obs=y)

    return model, (d["county_idx"] - 1, d["log_uppm"], d["floor_measure"], d["log_radon"])


def rats(d):
    def model(rat, x, y):
        levels, slopes = numpyro.sample("mu_alpha", dist.Normal(0, 100)), numpyro.sample("mu_beta", dist.Normal(0, 100))
        spreads = [numpyro.sample(f"sigma_{k}", flat(support=constraints.positive)) for k in ("alpha", "beta", "y")]
        alpha = numpyro.sample("alpha", dist.Normal(levels, spreads[0]).expand([int(d["N"])]))
        beta = numpyro.sample("beta", dist.Normal(slopes, spreads[1]).expand([int(d["N"])]))
        numpyro.sample("y", dist.Normal(alpha[rat] + beta[rat] * x, spreads[2]), obs=y)

    return model, (d["rat"] - 1, d["x"] - d["xbar"], d["y"])


def irt_2pl(d):
    def model(y):
        items, persons = y.shape
        of_theta, of_a, of_b = (numpyro.sample(f"sigma_{k}", dist.HalfCauchy(2)) for k in ("theta", "a", "b"))
        mu = numpyro.sample("mu_b", dist.Normal(0, 5))
        theta = numpyro.sample("theta", dist.Normal(0, of_theta).expand([persons]))
        a = numpyro.sample("a", dist.LogNormal(0, of_a).expand([items]))
        b = numpyro.sample("b", dist.Normal(mu, of_b).expand([items]))
        numpyro.sample("y", dist.Bernoulli(logits=a[:, None] * (theta - b[:, None])), obs=y)

    return model, (d["y"],)


def autoregression(d):
    order = int(d["K"])

    def model(past, y):
        alpha, beta = numpyro.sample("alpha", dist.Normal(0, 10)), numpyro.sample("beta", dist.Normal(0, 10).expand([order]))
        sigma = numpyro.sample("sigma", CAUCHY)
        numpyro.sample("y", dist.Normal(alpha + past @ beta, sigma), obs=y)

    past = np.column_stack([d["y"][order - k : -k] for k in range(1, order + 1)])
    return model, (past, d["y"][order:])


def arma(d):
    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0, 10))
        phi, theta = numpyro.sample("phi", dist.Normal(0, 2)), numpyro.sample("theta", dist.Normal(0, 2))
        sigma = numpyro.sample("sigma", CAUCHY)

        def step(error, pair):
            before, now = pair
            expected = mu + phi * before + theta * error
            return now - expected, expected

        first = mu + phi * mu
        rest = jax.lax.scan(step, y[0] - first, (y[:-1], y[1:]))[1]
        numpyro.sample("y", dist.Normal(jnp.concatenate([first[None], rest]), sigma), obs=y)

    return model, (d["y"],)


def garch(d):
    """Coefficients flat on the triangle alpha1 + beta1 < 1: alpha1 is Beta(1, 2), beta1 a uniform share of the rest."""

    def model(y):
        mu, alpha0 = numpyro.sample("mu", flat()), numpyro.sample("alpha0", flat(support=constraints.positive))
        alpha1, share = numpyro.sample("alpha1", dist.Beta(1, 2)), numpyro.sample("share", dist.Uniform(0, 1))
        beta1 = numpyro.deterministic("beta1", share * (1 - alpha1))

        def step(variance, before):
            variance = alpha0 + alpha1 * (before - mu) ** 2 + beta1 * variance
            return variance, variance

        first = jnp.asarray(d["sigma1"] ** 2, dtype=jnp.result_type(float))
        rest = jax.lax.scan(step, first, y[:-1])[1]
        numpyro.sample("y", dist.Normal(mu, jnp.sqrt(jnp.concatenate([first[None], rest]))), obs=y)

    return model, (d["y"],)


def mixture(d):
    def model(y):
        mu = numpyro.sample("mu", flat(2, support=constraints.ordered_vector))
        numpyro.factor("prior of mu", dist.Normal(0, 2).log_prob(mu).sum())
        sigma = numpyro.sample("sigma", dist.HalfNormal(2).expand([2]))
        theta = numpyro.sample("theta", dist.Beta(5, 5))
        shares = dist.Categorical(probs=jnp.stack([theta, 1 - theta]))
        numpyro.sample("y", dist.MixtureSameFamily(shares, dist.Normal(mu, sigma)), obs=y)

    return model, (d["y"],)


def squared_exponential(x, alpha, rho, diagonal):
    return alpha**2 * jnp.exp(-0.5 * ((x[:, None] - x) / rho) ** 2) + diagonal * jnp.eye(len(x))


def gp_regr(d):
    """The diagonal is sigma, not its square, as in the Stan program."""

    def model(x, y):
        rho, alpha = numpyro.sample("rho", dist.Gamma(25, 4)), numpyro.sample("alpha", dist.HalfNormal(2))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1))
        numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(len(x)), squared_exponential(x, alpha, rho, sigma)), obs=y)

    return model, (d["x"], d["y"])


def gp_pois_regr(d):
    def model(x, k):
        rho, alpha = numpyro.sample("rho", dist.Gamma(25, 4)), numpyro.sample("alpha", dist.HalfNormal(2))
        z = numpyro.sample("f_tilde", dist.Normal(0, 1).expand([len(x)]))
        f = numpyro.deterministic("f", jnp.linalg.cholesky(squared_exponential(x, alpha, rho, 1e-10)) @ z)
        numpyro.sample("k", dist.Poisson(jnp.exp(f)), obs=k)

    return model, (d["x"], d["k"])


def accel_gp(d):
    """Mean and log sd are Gaussian processes, each by the basis functions that the data have."""

    def process(name, basis, frequencies):
        sd = numpyro.sample(f"sdgp{name}", dist.LeftTruncatedDistribution(dist.StudentT(3, 0, 36), low=0.0))
        scale = numpyro.sample(f"lscale{name}", dist.InverseGamma(1.124909, 0.0177))
        z = numpyro.sample(f"zgp{name}", dist.Normal(0, 1).expand([basis.shape[1]]))
        root = sd * jnp.sqrt(jnp.sqrt(2 * jnp.pi) * scale) * jnp.exp(-0.25 * (scale * frequencies) ** 2)
        return basis @ (root * z)

    def model(of_mean, of_sd, y):
        mu = numpyro.sample("Intercept", dist.StudentT(3, -13, 36)) + process("_1", *of_mean)
        log_sd = numpyro.sample("Intercept_sigma", dist.StudentT(3, 0, 10)) + process("_sigma_1", *of_sd)
        numpyro.sample("y", dist.Normal(mu, jnp.exp(log_sd)), obs=y)

    both = ((d[f"Xgp{k}"], d[f"slambda{k}"][:, 0]) for k in ("_1", "_sigma_1"))
    return model, (*both, d["Y"])


def hidden_markov(transitions, emissions):
    """Log likelihood, states summed out; log emissions are (times, states), and the first state has no law of its own."""
    step = lambda before, now: (logsumexp(before[:, None] + jnp.log(transitions), 0) + now, None)
    return logsumexp(jax.lax.scan(step, emissions[0], emissions[1:])[0])


def ordered_pair(name, centres, support):
    """Two ordered numbers with a unit normal law about each centre."""
    pair = numpyro.sample(name, flat(2, support=support))
    numpyro.factor(f"prior of {name}", dist.Normal(jnp.array(centres), 1).log_prob(pair).sum())
    return pair


def hmm_example(d):
    def model(y):
        rows = [numpyro.sample(f"theta{k}", dist.Dirichlet(jnp.ones(2))) for k in (1, 2)]
        mu = ordered_pair("mu", (3.0, 10.0), constraints.positive_ordered_vector)
        numpyro.factor("y", hidden_markov(jnp.stack(rows), dist.Normal(mu, 1).log_prob(y[:, None])))

    return model, (d["y"],)


def hmm_drive(d):
    """Speeds and distances from the hoop: exponential, or normal where the data have sds for them."""
    normal = "tau" in d
    support = constraints.ordered_vector if normal else constraints.positive_ordered_vector

    def model(u, v):
        rows = [numpyro.sample(f"theta{k}", dist.Dirichlet(d["alpha"][k - 1])) for k in (1, 2)]
        phi, distance = (ordered_pair(k, (0.0, 3.0), support) for k in ("phi", "lambda"))
        laws = (
            (dist.Normal(phi, d["tau"]), dist.Normal(distance, d["rho"]))
            if normal
            else (dist.Exponential(phi), dist.Exponential(distance))
        )
        emissions = laws[0].log_prob(u[:, None]) + laws[1].log_prob(v[:, None])
        numpyro.factor("y", hidden_markov(jnp.stack(rows), emissions))

    return model, (d["u"], d["v"])


def lotka_volterra(d):
    def change(z, t, theta):
        prey, predator = z
        return jnp.stack([(theta[0] - theta[1] * predator) * prey, (theta[3] * prey - theta[2]) * predator])

    def model(times, y):
        centre, width = jnp.array([1, 0.05, 1, 0.05]), jnp.array([0.5, 0.05, 0.5, 0.05])
        theta = numpyro.sample("theta", dist.TruncatedNormal(centre, width, low=0.0))
        start = numpyro.sample("z_init", dist.LogNormal(jnp.log(10.0), 1).expand([2]))
        sigma = numpyro.sample("sigma", dist.LogNormal(-1, 1).expand([2]))
        z = odeint(change, start, times, theta, rtol=1e-6, atol=1e-5, mxstep=1000)
        numpyro.sample("y", dist.LogNormal(jnp.log(z), sigma), obs=y)

    return model, (np.concatenate([[0.0], d["ts"]]), np.vstack([d["y_init"], d["y"]]))


def one_comp(d):
    """Absorption at a rate, Michaelis-Menten elimination."""
    dose, volume = float(d["D"]), float(d["V"])

    def change(c, t, k_a, k_m, v_m):
        return jnp.exp(-k_a * t) * dose * k_a / volume - v_m / volume * c / (k_m + c)

    def model(times, y):
        k_a, k_m, v_m, sigma = (numpyro.sample(k, dist.HalfCauchy(1)) for k in ("k_a", "K_m", "V_m", "sigma"))
        c = odeint(change, jnp.zeros(()), times, k_a, k_m, v_m, rtol=1e-6, atol=1e-6, mxstep=1000)[1:]
        numpyro.sample("y", dist.LogNormal(jnp.log(c), sigma), obs=y)

    return model, (np.concatenate([[d["t0"]], d["times"]]), d["C_hat"])


FORMS = {
    "kidiq-kidscore_momhs": lambda d: linear(d["kid_score"], d["mom_hs"], noise=CAUCHY),
    "kidiq-kidscore_momiq": lambda d: linear(d["kid_score"], d["mom_iq"], noise=CAUCHY),
    "kidiq-kidscore_momhsiq": lambda d: linear(d["kid_score"], d["mom_hs"], d["mom_iq"], noise=CAUCHY),
    "kidiq-kidscore_interaction": kidscore_interaction,
    "kidiq_with_mom_work-kidscore_interaction_c": kidscore_interaction_c,
    "kidiq_with_mom_work-kidscore_interaction_c2": lambda d: crossed(d["kid_score"], d["mom_hs"] - 0.5, d["mom_iq"] - 100),
    "kidiq_with_mom_work-kidscore_interaction_z": kidscore_interaction_z,
    "kidiq_with_mom_work-kidscore_mom_work": lambda d: linear(d["kid_score"], *(d["mom_work"] == k for k in (2, 3, 4))),
    **{f"nes{year}-nes": nes for year in (1972, 1976, 1980, 1984, 1988, 1992, 1996, 2000)},
    "earnings-earn_height": lambda d: linear(d["earn"], d["height"]),
    "earnings-logearn_height": lambda d: linear(np.log(d["earn"]), d["height"]),
    "earnings-log10earn_height": lambda d: linear(np.log10(d["earn"]), d["height"]),
    "earnings-logearn_height_male": lambda d: linear(np.log(d["earn"]), d["height"], d["male"]),
    "earnings-logearn_logheight_male": lambda d: linear(np.log(d["earn"]), np.log(d["height"]), d["male"]),
    "earnings-logearn_interaction": lambda d: crossed(np.log(d["earn"]), d["height"], d["male"]),
    "earnings-logearn_interaction_z": lambda d: crossed(np.log(d["earn"]), standardised(d["height"]), d["male"]),
    "mesquite-mesquite": lambda d: linear(d["weight"], *(d[k] for k in (*BUSH, "group"))),
    "mesquite-logmesquite": logmesquite(*BUSH, "group"),
    "mesquite-logmesquite_logvolume": logmesquite("volume"),
    "mesquite-logmesquite_logva": logmesquite("volume", "area", "group"),
    "mesquite-logmesquite_logvas": logmesquite("volume", "area", "shape", "total_height", "density", "group"),
    "mesquite-logmesquite_logvash": logmesquite("volume", "area", "shape", "total_height", "group"),
    "kilpisjarvi_mod-kilpisjarvi": kilpisjarvi,
    "sblrc-blr": blr,
    "sblri-blr": blr,
    "diamonds-diamonds": diamonds,
    "wells_data-wells_dist100ars_model": wells,
    "eight_schools-eight_schools_centered": eight_schools_centred,
    "eight_schools-eight_schools_noncentered": eight_schools_non_centred,
    "radon_mn-radon_hierarchical_intercept_noncentered": radon,
    "rats_data-rats_model": rats,
    "irt_2pl-irt_2pl": irt_2pl,
    "arK-arK": autoregression,
    "arma-arma11": arma,
    "garch-garch11": garch,
    "low_dim_gauss_mix-low_dim_gauss_mix": mixture,
    "gp_pois_regr-gp_regr": gp_regr,
    "gp_pois_regr-gp_pois_regr": gp_pois_regr,
    "hmm_example-hmm_example": hmm_example,
    "bball_drive_event_0-hmm_drive_0": hmm_drive,
    "bball_drive_event_1-hmm_drive_1": hmm_drive,
    "hudson_lynx_hare-lotka_volterra": lotka_volterra,
    "one_comp_mm_elim_abs-one_comp_mm_elim_abs": one_comp,
    "mcycle_gp-accel_gp": accel_gp,
}
