"""More ordinary models, of a kind that the first limits of the verdict were not set on.

They showed rules that were wrong (constants of Cholesky factors, weights that were believed too readily, funnels whose tails
the draws have), which were changed then: what they say of the verdict since is no longer of models that nobody had seen.

`MODELS` as in `ordinary.py`: name to (function that gives model and arguments, options of fit, location-scale sites that the
reference run of NUTS non-centres).
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

SAMPLE = numpyro.sample


def normal(name, scale=1.0, size=None):
    return SAMPLE(name, dist.Normal(0, scale) if size is None else dist.Normal(0, scale).expand([size]))


def probit():
    rng = np.random.default_rng(101)
    X = rng.normal(size=(80, 3))
    y = (0.3 + X @ [1.0, -0.7, 0.2] + rng.normal(size=80) > 0).astype(int)

    def model(X, y=None):
        SAMPLE("y", dist.Bernoulli(jax.scipy.stats.norm.cdf(normal("a", 2.0) + X @ normal("b", 2.0, 3))), obs=y)

    return model, (X, y)


def quadratic():
    """A curve in raw units whose terms are strongly correlated."""
    rng = np.random.default_rng(102)
    year = rng.uniform(0, 30, 40)
    y = 50 + 3 * year - 0.05 * year**2 + rng.normal(0, 4, 40)

    def model(year, y=None):
        a, b, c = normal("a", 100.0), normal("b", 10.0), normal("c", 1.0)
        SAMPLE("y", dist.Normal(a + b * year + c * year**2, SAMPLE("sigma", dist.HalfNormal(20.0))), obs=y)

    return model, (year, y)


def heteroscedastic():
    rng = np.random.default_rng(103)
    x = rng.uniform(-2, 2, 90)
    y = 1 + x + np.exp(-0.5 + 0.6 * x) * rng.normal(size=90)

    def model(x, y=None):
        SAMPLE(
            "y",
            dist.Normal(normal("a", 5.0) + normal("b", 5.0) * x, jnp.exp(normal("c", 2.0) + normal("d", 2.0) * x)),
            obs=y,
        )

    return model, (x, y)


def gamma_regression():
    rng = np.random.default_rng(104)
    X = rng.normal(size=(100, 2))
    y = rng.gamma(2.0, np.exp(1 + X @ [0.4, -0.3]) / 2.0)

    def model(X, y=None):
        shape, mean = SAMPLE("shape", dist.Exponential(0.5)), jnp.exp(normal("a", 3.0) + X @ normal("b", 1.0, 2))
        SAMPLE("y", dist.Gamma(shape, shape / mean), obs=y)

    return model, (X, y)


def beta_regression():
    rng = np.random.default_rng(105)
    x = rng.normal(size=70)
    mean = 1 / (1 + np.exp(-(-0.5 + 0.8 * x)))
    y = np.clip(rng.beta(12 * mean, 12 * (1 - mean)), 1e-4, 1 - 1e-4)

    def model(x, y=None):
        mean, size = jax.nn.sigmoid(normal("a", 2.0) + normal("b", 2.0) * x), SAMPLE("size", dist.Gamma(2.0, 0.1))
        SAMPLE("y", dist.Beta(mean * size, (1 - mean) * size), obs=y)

    return model, (x, y)


def three_classes():
    """Multinomial logistic regression, the last class as the reference."""
    rng = np.random.default_rng(106)
    X = rng.normal(size=(120, 3))
    logits = X @ rng.normal(size=(3, 3)) + [0.5, 0.0, 0.0]
    y = np.argmax(logits + rng.gumbel(size=logits.shape), 1)

    def model(X, y=None):
        a, b = normal("a", 2.0, 2), SAMPLE("b", dist.Normal(0, 2).expand([3, 2]))
        SAMPLE("y", dist.Categorical(logits=jnp.pad(a + X @ b, ((0, 0), (0, 1)))), obs=y)

    return model, (X, y)


def dose_response():
    """A sigmoid Emax curve: four parameters of different size, of which two are hardly known."""
    rng = np.random.default_rng(107)
    dose = np.repeat([0.0, 5, 10, 25, 50, 100], 6)
    y = 2 + 12 * dose / (30 + dose) + rng.normal(0, 2, dose.size)

    def model(dose, y=None):
        base, top = normal("base", 10.0), SAMPLE("top", dist.HalfNormal(30.0))
        half, sigma = SAMPLE("half", dist.LogNormal(3.0, 1.0)), SAMPLE("sigma", dist.HalfNormal(5.0))
        SAMPLE("y", dist.Normal(base + top * dose / (half + dose), sigma), obs=y)

    return model, (dose, y)


def enzyme():
    """Michaelis and Menten in raw units."""
    rng = np.random.default_rng(108)
    s = np.repeat([0.02, 0.06, 0.11, 0.22, 0.56, 1.1], 2)
    y = 210 * s / (0.06 + s) + rng.normal(0, 10, 12)

    def model(s, y=None):
        top, half = SAMPLE("top", dist.LogNormal(5.0, 1.0)), SAMPLE("half", dist.LogNormal(-2.0, 1.5))
        SAMPLE("y", dist.Normal(top * s / (half + s), SAMPLE("sigma", dist.Exponential(0.1))), obs=y)

    return model, (s, y)


def random_slopes():
    """Intercepts and slopes of 15 groups, correlated (LKJ), centred."""
    rng = np.random.default_rng(109)
    group = np.repeat(np.arange(15), 8)
    x = rng.normal(size=group.size)
    effects = rng.multivariate_normal([1.0, 0.5], [[0.64, 0.2], [0.2, 0.25]], 15)
    y = effects[group, 0] + effects[group, 1] * x + rng.normal(0, 0.7, group.size)

    def model(group, x, y=None):
        mean, tau = normal("mean", 3.0, 2), SAMPLE("tau", dist.HalfNormal(1.5).expand([2]))
        root = tau[:, None] * SAMPLE("corr", dist.LKJCholesky(2, 2.0))
        with numpyro.plate("groups", 15):
            effects = SAMPLE("effects", dist.MultivariateNormal(mean, scale_tril=root))
        SAMPLE("y", dist.Normal(effects[group, 0] + effects[group, 1] * x, SAMPLE("sigma", dist.HalfNormal(1.5))), obs=y)

    return model, (group, x, y)


def crossed():
    """Subjects crossed with items, both with effects of their own, centred at nought."""
    rng = np.random.default_rng(110)
    subject, item = (a.ravel() for a in np.meshgrid(np.arange(12), np.arange(8)))
    y = 3 + rng.normal(0, 0.7, 12)[subject] + rng.normal(0, 0.5, 8)[item] + rng.normal(size=96)

    def model(subject, item, y=None):
        mu, between, among = (
            normal("mu", 5.0),
            SAMPLE("between", dist.HalfNormal(1.0)),
            SAMPLE("among", dist.HalfNormal(1.0)),
        )
        with numpyro.plate("subjects", 12):
            u = SAMPLE("u", dist.Normal(0, between))
        with numpyro.plate("items", 8):
            w = SAMPLE("w", dist.Normal(0, among))
        SAMPLE("y", dist.Normal(mu + u[subject] + w[item], SAMPLE("sigma", dist.HalfNormal(2.0))), obs=y)

    return model, (subject, item, y)


def counts_by_group():
    """Poisson counts with an intercept per group, centred: 25 groups of two."""
    rng = np.random.default_rng(111)
    group = np.repeat(np.arange(25), 2)
    y = rng.poisson(np.exp(rng.normal(1.0, 0.6, 25)[group]))

    def model(group, y=None):
        mu, tau = normal("mu", 2.0), SAMPLE("tau", dist.HalfCauchy(1.0))
        with numpyro.plate("groups", 25):
            a = SAMPLE("a", dist.Normal(mu, tau))
        SAMPLE("y", dist.Poisson(jnp.exp(a[group])), obs=y)

    return model, (group, y)


def tumours():
    """Shares of 30 experiments around a beta law with unknown size, latent shares kept."""
    rng = np.random.default_rng(112)
    trials = rng.integers(10, 50, 30)
    y = rng.binomial(trials, rng.beta(3, 12, 30))

    def model(trials, y=None):
        mean, size = SAMPLE("mean", dist.Beta(1, 1)), SAMPLE("size", dist.LogNormal(3.0, 1.0))
        with numpyro.plate("experiments", len(trials)):
            share = SAMPLE("share", dist.Beta(mean * size, (1 - mean) * size))
            SAMPLE("y", dist.Binomial(trials, share), obs=y)

    return model, (trials, y)


def local_level():
    """A random walk seen through noise, 40 times, by its innovations."""
    rng = np.random.default_rng(113)
    y = 5 + np.cumsum(0.3 * rng.normal(size=40)) + 0.5 * rng.normal(size=40)

    def model(y):
        step, noise = SAMPLE("step", dist.HalfNormal(1.0)), SAMPLE("noise", dist.HalfNormal(1.0))
        level = normal("start", 10.0) + step * jnp.cumsum(normal("z", 1.0, len(y)))
        SAMPLE("y", dist.Normal(level, noise), obs=y)

    return model, (y,)


def smooth_curve():
    """A regression on 14 bumps whose heights walk at random: a centred walk with unknown step."""
    rng = np.random.default_rng(114)
    x = np.sort(rng.uniform(0, 1, 60))
    B = np.exp(-0.5 * ((x[:, None] - np.linspace(0, 1, 14)) / 0.07) ** 2)
    y = np.sin(6 * x) + 0.3 * rng.normal(size=60)

    def model(B, y=None):
        tau = SAMPLE("tau", dist.HalfNormal(1.0))
        w = SAMPLE("w", dist.GaussianRandomWalk(tau, 14))
        SAMPLE("y", dist.Normal(B @ w, SAMPLE("sigma", dist.HalfNormal(1.0))), obs=y)

    return model, (B, y)


def process_classes():
    """Classes from a latent Gaussian process at 18 places, hyperparameters unknown."""
    rng = np.random.default_rng(115)
    x = np.linspace(-2, 2, 18)
    y = (np.sin(2 * x) + 0.5 * rng.normal(size=18) > 0).astype(int)

    def model(x, y=None):
        length, size = SAMPLE("length", dist.LogNormal(0.0, 0.5)), SAMPLE("size", dist.HalfNormal(3.0))
        near = size**2 * jnp.exp(-0.5 * (x[:, None] - x) ** 2 / length**2) + 1e-4 * jnp.eye(18)
        SAMPLE("y", dist.Bernoulli(logits=jnp.linalg.cholesky(near) @ normal("z", 1.0, 18)), obs=y)

    return model, (x, y)


def three_components():
    """Three normal components whose means are in order, labels summed out."""
    rng = np.random.default_rng(116)
    y = np.concatenate([rng.normal(-3, 0.7, 40), rng.normal(0, 0.7, 50), rng.normal(2.5, 0.7, 30)])

    def model(y):
        shares = SAMPLE("shares", dist.Dirichlet(jnp.full(3, 2.0)))
        free = dist.Normal(0, 3).expand([3]).to_event(1)
        means = SAMPLE("means", dist.TransformedDistribution(free, dist.transforms.OrderedTransform()))
        parts = dist.Normal(means, SAMPLE("sigma", dist.HalfNormal(1.5)))
        SAMPLE("y", dist.MixtureSameFamily(dist.Categorical(probs=shares), parts), obs=y)

    return model, (y,)


def change_point():
    """A rate that changes at an unknown time, the time itself summed out."""
    rng = np.random.default_rng(117)
    y = rng.poisson(np.where(np.arange(50) < 31, 3.0, 1.2))

    def model(y):
        rates = SAMPLE("rates", dist.Exponential(0.5).expand([2]))
        by_rate = jnp.cumsum(dist.Poisson(rates[:, None]).log_prob(y), 1)
        numpyro.factor("y", jax.nn.logsumexp(by_rate[0, :-1] + by_rate[1, -1] - by_rate[1, :-1]))

    return model, (y,)


def errors_in_x():
    """A line whose 25 predictors are seen with error."""
    rng = np.random.default_rng(118)
    true = rng.normal(2, 1, 25)
    x, y = true + 0.4 * rng.normal(size=25), 1 + 1.5 * true + 0.5 * rng.normal(size=25)

    def model(x, y):
        a, b, sigma = normal("a", 5.0), normal("b", 3.0), SAMPLE("sigma", dist.HalfNormal(1.0))
        mu, tau = normal("mu", 5.0), SAMPLE("tau", dist.HalfNormal(2.0))
        with numpyro.plate("rows", len(x)):
            true = SAMPLE("true", dist.Normal(mu, tau))
            SAMPLE("x", dist.Normal(true, 0.4), obs=x)
            SAMPLE("y", dist.Normal(a + b * true, sigma), obs=y)

    return model, (x, y)


def one_factor():
    """One factor behind five measures of 40 persons, the first loading positive."""
    rng = np.random.default_rng(119)
    y = rng.normal(size=(40, 1)) * [1.0, 0.8, 0.6, -0.5, 0.9] + 0.6 * rng.normal(size=(40, 5))

    def model(y):
        first, rest = SAMPLE("first", dist.HalfNormal(1.0)), normal("rest", 1.0, 4)
        sigma = SAMPLE("sigma", dist.HalfNormal(1.0).expand([5]))
        loadings = jnp.concatenate([first[None], rest])
        SAMPLE("y", dist.Normal(normal("factor", 1.0, 40)[:, None] * loadings, sigma), obs=y)

    return model, (y,)


def paired_matches():
    """Bradley and Terry: ten teams, strengths around nought with unknown spread."""
    rng = np.random.default_rng(120)
    strength = rng.normal(0, 1, 10)
    one, two = rng.integers(0, 10, 90), rng.integers(0, 10, 90)
    one, two = one[one != two], two[one != two]
    won = (rng.uniform(size=one.size) < 1 / (1 + np.exp(strength[two] - strength[one]))).astype(int)

    def model(one, two, won=None):
        s = SAMPLE("spread", dist.HalfNormal(1.5)) * normal("z", 1.0, 10)
        SAMPLE("won", dist.Bernoulli(logits=s[one] - s[two]), obs=won)

    return model, (one, two, won)


def covariance():
    """Mean and covariance of three correlated measures."""
    rng = np.random.default_rng(121)
    y = rng.multivariate_normal([1, 2, 3], [[1.0, 0.6, 0.2], [0.6, 2.0, -0.3], [0.2, -0.3, 0.5]], 40)

    def model(y):
        mean, sd = normal("mean", 5.0, 3), SAMPLE("sd", dist.HalfNormal(2.0).expand([3]))
        root = sd[:, None] * SAMPLE("corr", dist.LKJCholesky(3, 1.0))
        SAMPLE("y", dist.MultivariateNormal(mean, scale_tril=root), obs=y)

    return model, (y,)


def lasso():
    """Ten predictors under Laplace priors with unknown scale, most of them idle."""
    rng = np.random.default_rng(122)
    X = rng.normal(size=(50, 10))
    y = X[:, 0] - 0.5 * X[:, 1] + 0.8 * rng.normal(size=50)

    def model(X, y=None):
        scale = SAMPLE("scale", dist.HalfNormal(1.0))
        b = SAMPLE("b", dist.Laplace(0, 1).expand([10]))
        SAMPLE("y", dist.Normal(X @ b * scale, SAMPLE("sigma", dist.HalfNormal(1.5))), obs=y)

    return model, (X, y)


def two_decays():
    """The sum of two exponential decays, the slower one first."""
    rng = np.random.default_rng(123)
    t = np.linspace(0.1, 8, 40)
    y = 3 * np.exp(-0.3 * t) + 4 * np.exp(-1.5 * t) + 0.15 * rng.normal(size=40)

    def model(t, y=None):
        size, slow = SAMPLE("size", dist.LogNormal(1.0, 1.0).expand([2])), SAMPLE("slow", dist.LogNormal(-1.0, 1.0))
        fast, sigma = slow + SAMPLE("more", dist.LogNormal(0.0, 1.0)), SAMPLE("sigma", dist.HalfNormal(0.5))
        SAMPLE("y", dist.Normal(size[0] * jnp.exp(-slow * t) + size[1] * jnp.exp(-fast * t), sigma), obs=y)

    return model, (t, y)


def wide_schools():
    """Twelve studies whose true effects have heavy tails, centred."""
    rng = np.random.default_rng(124)
    errors = rng.uniform(0.1, 0.5, 12)
    y = 0.5 + 0.3 * rng.standard_t(3, 12) + errors * rng.normal(size=12)

    def model(errors, y=None):
        mu, tau = normal("mu", 1.0), SAMPLE("tau", dist.HalfNormal(0.5))
        with numpyro.plate("studies", 12):
            theta = SAMPLE("theta", dist.StudentT(4.0, mu, tau))
            SAMPLE("y", dist.Normal(theta, errors), obs=y)

    return model, (errors, y)


def frailty():
    """Exponential survival with a gamma frailty per clinic, a third of times censored."""
    rng = np.random.default_rng(125)
    clinic = np.repeat(np.arange(10), 9)
    x = rng.normal(size=90)
    t = rng.exponential(1 / (0.3 * rng.gamma(3, 1 / 3, 10)[clinic] * np.exp(0.5 * x)))
    end = rng.uniform(1, 8, 90)

    def model(clinic, x, t, seen):
        base, b, shape = (
            SAMPLE("base", dist.LogNormal(-1.0, 1.0)),
            normal("b", 1.0),
            SAMPLE("shape", dist.LogNormal(1.0, 0.7)),
        )
        with numpyro.plate("clinics", 10):
            frail = SAMPLE("frail", dist.Gamma(shape, shape))
        rate = base * frail[clinic] * jnp.exp(b * x)
        numpyro.factor("times", jnp.where(seen, jnp.log(rate), 0.0) - rate * t)

    return model, (clinic, x, np.minimum(t, end), t < end)


def epidemic():
    """A discrete SIR curve seen by Poisson counts: three parameters, bent."""
    rng = np.random.default_rng(126)

    def curve(beta, gamma, start):
        def day(state, _):
            s, i = state
            new = s * (1 - jnp.exp(-beta * i))
            return (s - new, i * jnp.exp(-gamma) + new), new

        return jax.lax.scan(day, (1.0 - start, start), None, length=40)[1]

    y = rng.poisson(500 * np.asarray(curve(0.5, 0.2, 0.004)))

    def model(y):
        beta, gamma = SAMPLE("beta", dist.LogNormal(-1.0, 0.7)), SAMPLE("gamma", dist.LogNormal(-1.5, 0.7))
        start = SAMPLE("start", dist.Beta(1.0, 100.0))
        SAMPLE("y", dist.Poisson(500 * curve(beta, gamma, start) + 1e-6), obs=y)

    return model, (y,)


MODELS = {
    "probit": (probit, {}, ()),
    "quadratic, raw units": (quadratic, {}, ()),
    "quadratic, mean-field": (quadratic, {"family": "mean_field"}, ()),
    "heteroscedastic": (heteroscedastic, {}, ()),
    "gamma regression": (gamma_regression, {}, ()),
    "beta regression": (beta_regression, {}, ()),
    "three classes": (three_classes, {}, ()),
    "dose response": (dose_response, {}, ()),
    "enzyme, raw units": (enzyme, {}, ()),
    "random slopes, LKJ": (random_slopes, {}, ()),
    "crossed effects": (crossed, {}, ("u", "w")),
    "crossed effects, mean-field": (crossed, {"family": "mean_field"}, ("u", "w")),
    "counts by group": (counts_by_group, {}, ("a",)),
    "tumours, latent shares": (tumours, {}, ()),
    "local level": (local_level, {}, ()),
    "smooth curve, random walk": (smooth_curve, {}, ()),
    "classes from a process": (process_classes, {}, ()),
    "three components": (three_components, {}, ()),
    "change point, summed out": (change_point, {}, ()),
    "errors in x": (errors_in_x, {}, ()),
    "one factor": (one_factor, {}, ()),
    "paired matches": (paired_matches, {}, ()),
    "covariance, LKJ": (covariance, {}, ()),
    "lasso": (lasso, {}, ()),
    "two decays": (two_decays, {}, ()),
    "studies with heavy tails": (wide_schools, {}, ()),
    "frailty": (frailty, {}, ()),
    "epidemic": (epidemic, {}, ()),
    "three classes, ADVI cut short": (three_classes, {"method": "advi", "max_steps": 300}, ()),
    "random slopes, ADVI": (random_slopes, {"method": "advi", "max_steps": 2000}, ()),
    "one factor, mean-field": (one_factor, {"family": "mean_field"}, ()),
    "paired matches, the paper's method": (paired_matches, {"method": "yoasovi-naive"}, ()),
    "gamma regression, Metropolis": (gamma_regression, {"method": "yoasovi-metropolis"}, ()),
}
