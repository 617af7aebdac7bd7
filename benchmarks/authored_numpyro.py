"""Models as authors of NumPyro programs write them, with simulated data: functions that give `(model, args, kwargs)`."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.experimental.ode import odeint
from numpyro.contrib.control_flow import scan
from numpyro.infer.reparam import LocScaleReparam
from scipy.interpolate import BSpline


def local_level():
    """State space: a random walk seen through noise, innovations by `scan`."""
    rng = np.random.default_rng(101)
    y = np.cumsum(0.3 * rng.normal(size=60)) + 0.5 * rng.normal(size=60)

    def model(y):
        drift, noise = numpyro.sample("drift", dist.HalfNormal(1.0)), numpyro.sample("noise", dist.HalfNormal(1.0))
        first = numpyro.sample("first", dist.Normal(0.0, 2.0))

        def step(level, y_t):
            level = level + drift * numpyro.sample("innovation", dist.Normal(0.0, 1.0))
            numpyro.sample("y", dist.Normal(level, noise), obs=y_t)
            return level, level

        scan(step, first, y)

    return model, (y,), {}


def seasonal():
    """State space: trend and season of period 4 with autoregressive errors."""
    rng = np.random.default_rng(102)
    t = np.arange(80)
    season = np.array([1.0, -0.5, 0.2, -0.7])
    y = 0.03 * t + season[t % 4] + 0.4 * rng.normal(size=80)

    def model(t, y):
        slope, level = numpyro.sample("slope", dist.Normal(0, 0.5)), numpyro.sample("level", dist.Normal(0, 2))
        season = numpyro.sample("season", dist.Normal(0, 1).expand([3]))
        season = jnp.append(season, -season.sum())
        phi, sigma = numpyro.sample("phi", dist.Uniform(-1, 1)), numpyro.sample("sigma", dist.HalfNormal(1))
        mean = level + slope * t + season[t % 4]
        error = y - mean
        numpyro.sample("y0", dist.Normal(mean[0], sigma), obs=y[0])
        numpyro.sample("y", dist.Normal(mean[1:] + phi * error[:-1], sigma), obs=y[1:])

    return model, (t, y), {}


def stochastic_volatility():
    """Returns whose log volatility walks at random, with heavy tails."""
    rng = np.random.default_rng(103)
    h = np.cumsum(0.15 * rng.normal(size=80)) - 1.0
    r = np.exp(h) * rng.standard_t(8, size=80)

    def model(r):
        step = numpyro.sample("sigma", dist.Exponential(10.0))
        s = numpyro.sample("s", dist.GaussianRandomWalk(scale=step, num_steps=len(r)))
        nu = numpyro.sample("nu", dist.Exponential(0.1))
        numpyro.sample("r", dist.StudentT(df=nu, loc=0.0, scale=jnp.exp(s)), obs=r)

    return model, (r,), {}


def hidden_markov():
    """Two states that persist, with Gaussian emissions; states summed out by enumeration."""
    rng = np.random.default_rng(104)
    z = [0]
    for _ in range(119):
        z.append(z[-1] if rng.random() < 0.9 else 1 - z[-1])
    y = np.array([-1.0, 1.5])[z] + 0.7 * rng.normal(size=120)

    def model(y):
        stay = numpyro.sample("stay", dist.Beta(8.0, 2.0).expand([2]).to_event(1))
        low = numpyro.sample("low", dist.Normal(-1.0, 1.0))
        gap = numpyro.sample("gap", dist.HalfNormal(3.0))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
        means = jnp.stack([low, low + gap])
        moves = jnp.stack([jnp.stack([stay[0], 1 - stay[0]]), jnp.stack([1 - stay[1], stay[1]])])

        def step(before, y_t):
            state = numpyro.sample("state", dist.Categorical(moves[before]), infer={"enumerate": "parallel"})
            numpyro.sample("y", dist.Normal(means[state], sigma), obs=y_t)
            return state, None

        scan(step, 0, y)

    return model, (y,), {}


def dawid_skene():
    """Five raters, three classes, forty items; true classes summed out, named by a prior that trusts the raters."""
    rng = np.random.default_rng(105)
    items, raters, classes = 40, 5, 3
    truth = rng.choice(classes, p=[0.5, 0.3, 0.2], size=items)
    skill = 0.7 * np.eye(classes) + 0.1
    skill /= skill.sum(1, keepdims=True)
    votes = np.array([[rng.choice(classes, p=skill[c]) for _ in range(raters)] for c in truth])

    def model(votes):
        items, raters = votes.shape
        with numpyro.plate("rater", raters, dim=-2), numpyro.plate("class", 3):
            beta = numpyro.sample("beta", dist.Dirichlet(1.0 + 4.0 * jnp.eye(3)))
        pi = numpyro.sample("pi", dist.Dirichlet(jnp.ones(3)))
        with numpyro.plate("item", items, dim=-2):
            c = numpyro.sample("c", dist.Categorical(pi), infer={"enumerate": "parallel"})
            with numpyro.plate("position", raters):
                numpyro.sample("y", dist.Categorical(beta[jnp.arange(raters), c]), obs=votes)

    return model, (votes,), {}


def capture_recapture():
    """Cormack-Jolly-Seber: who is alive between captures is summed out in a scan with an integer carry."""
    rng = np.random.default_rng(106)
    people, times = 60, 6
    seen = np.zeros((people, times), int)
    for i in range(people):
        alive = True
        seen[i, 0] = 1
        for t in range(1, times):
            alive = alive and rng.random() < 0.75
            seen[i, t] = alive and rng.random() < 0.6

    def model(seen):
        people, _ = seen.shape
        phi, rho = numpyro.sample("phi", dist.Uniform(0.0, 1.0)), numpyro.sample("rho", dist.Uniform(0.0, 1.0))

        def step(carry, y):
            before, z = carry
            with numpyro.plate("animals", people, dim=-1), numpyro.handlers.mask(mask=before):
                alive = dist.Bernoulli(dist.util.clamp_probs(phi * z))
                z = numpyro.sample("z", alive, infer={"enumerate": "parallel"})
                numpyro.sample("y", dist.Bernoulli(dist.util.clamp_probs(rho * z)), obs=y)
            return (before | y.astype(bool), z), None

        z = jnp.ones(people, dtype=jnp.int32)
        scan(step, (seen[:, 0].astype(bool), z), jnp.swapaxes(seen[:, 1:], 0, 1))

    return model, (seen,), {}


def two_parameter_irt():
    """Items of unknown difficulty and discrimination, answered by people of unknown ability."""
    rng = np.random.default_rng(107)
    people, items = 60, 12
    theta, a, b = rng.normal(size=people), rng.lognormal(0, 0.4, items), rng.normal(size=items)
    y = (rng.random((people, items)) < 1 / (1 + np.exp(-a * (theta[:, None] - b)))).astype(int)

    def model(y):
        with numpyro.plate("people", y.shape[0]):
            theta = numpyro.sample("theta", dist.Normal(0, 1))
        with numpyro.plate("items", y.shape[1]):
            a, b = numpyro.sample("a", dist.LogNormal(0, 0.5)), numpyro.sample("b", dist.Normal(0, 1.5))
        numpyro.sample("y", dist.Bernoulli(logits=a * (theta[:, None] - b)), obs=y)

    return model, (y,), {}


def horseshoe():
    """Sparse regression: 20 predictors, 3 of them count."""
    rng = np.random.default_rng(108)
    X = rng.normal(size=(80, 20))
    y = X[:, 0] * 2 - X[:, 1] * 1.5 + X[:, 2] + 0.8 * rng.normal(size=80)

    def model(X, y):
        tau = numpyro.sample("tau", dist.HalfCauchy(0.1))
        with numpyro.plate("predictors", X.shape[1]):
            lam, z = numpyro.sample("lam", dist.HalfCauchy(1.0)), numpyro.sample("z", dist.Normal(0, 1))
        beta = numpyro.deterministic("beta", z * lam * tau)
        sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
        numpyro.sample("y", dist.Normal(X @ beta, sigma), obs=y)

    # Not lam: half-Cauchy, and z may be small, its posterior falls off like lam^-3 and has no variance.
    return model, (X, y), {"compare": ("tau", "z", "beta", "sigma")}


def bym2():
    """Counts of areas on a grid: spatial and plain effects mixed (Riebler et al. 2016)."""
    rng = np.random.default_rng(109)
    side = 6
    at = np.arange(side * side).reshape(side, side)
    edges = [*zip(at[:, :-1].ravel(), at[:, 1:].ravel(), strict=True), *zip(at[:-1].ravel(), at[1:].ravel(), strict=True)]
    one, two = map(np.array, zip(*edges, strict=True))
    smooth = np.sin(np.linspace(0, 3, side))[:, None] + np.cos(np.linspace(0, 3, side))
    expected = rng.uniform(5, 20, side * side)
    y = rng.poisson(expected * np.exp(0.3 * smooth.ravel() + 0.1 * rng.normal(size=side * side)))
    laplacian = np.zeros((side * side,) * 2)
    np.add.at(laplacian, (one, two), -1.0)
    laplacian += laplacian.T
    laplacian -= np.diag(laplacian.sum(1))
    scaling = np.exp(np.mean(np.log(np.diag(np.linalg.pinv(laplacian)))))

    def model(y, expected, one, two):
        n = len(y)
        alpha, sigma = numpyro.sample("alpha", dist.Normal(0, 1)), numpyro.sample("sigma", dist.HalfNormal(1))
        rho = numpyro.sample("rho", dist.Beta(0.5, 0.5))
        theta = numpyro.sample("theta", dist.Normal(0, 1).expand([n]))
        phi = numpyro.sample("phi", dist.ImproperUniform(dist.constraints.real, (), (n,)))
        numpyro.factor("icar", -0.5 * jnp.sum((phi[one] - phi[two]) ** 2))
        numpyro.factor("sum to zero", dist.Normal(0, 0.001 * n).log_prob(phi.sum()))
        effect = sigma * (jnp.sqrt(1 - rho) * theta + jnp.sqrt(rho / scaling) * phi)
        numpyro.sample("y", dist.Poisson(expected * jnp.exp(alpha + effect)), obs=y)

    return model, (y, expected, one, two), {}


def ordinal():
    """Five ordered answers."""
    rng = np.random.default_rng(110)
    X = rng.normal(size=(150, 3))
    y = np.digitize(X @ np.array([1.0, -0.7, 0.0]) + rng.logistic(size=150), [-2, -0.5, 0.7, 2])

    def model(X, y):
        beta = numpyro.sample("beta", dist.Normal(0, 1).expand([X.shape[1]]))
        cuts = numpyro.sample(
            "cuts", dist.TransformedDistribution(dist.Normal(0, 3).expand([4]), dist.transforms.OrderedTransform())
        )
        numpyro.sample("y", dist.OrderedLogistic(X @ beta, cuts), obs=y)

    return model, (X, y), {}


def zero_inflated():
    """Fish caught by visitors, some of whom did not fish: that is summed out by enumeration."""
    rng = np.random.default_rng(111)
    x = rng.normal(size=100)
    y = rng.poisson(np.exp(0.8 + 0.5 * x)) * (rng.random(100) < 0.65)

    def model(x, y):
        fished = numpyro.sample("fished", dist.Beta(2, 2))
        a, b = numpyro.sample("a", dist.Normal(0, 2)), numpyro.sample("b", dist.Normal(0, 1))
        with numpyro.plate("visitors", len(y)):
            z = numpyro.sample("z", dist.Bernoulli(fished), infer={"enumerate": "parallel"})
            rate = jnp.where(z == 1, jnp.exp(a + b * x), 1e-6)
            numpyro.sample("y", dist.Poisson(rate), obs=y)

    return model, (x, y), {}


def gaussian_process():
    """Regression with unknown kernel, the function itself integrated out."""
    rng = np.random.default_rng(112)
    x = np.sort(rng.uniform(-3, 3, 40))
    y = np.sin(2 * x) + 0.3 * rng.normal(size=40)

    def model(x, y):
        variance, noise = numpyro.sample("variance", dist.LogNormal(0, 2)), numpyro.sample("noise", dist.LogNormal(0, 2))
        length = numpyro.sample("length", dist.LogNormal(0, 1))
        gap = (x[:, None] - x) / length
        cov = variance * jnp.exp(-0.5 * gap**2) + (noise + 1e-6) * jnp.eye(len(x))
        numpyro.sample("y", dist.MultivariateNormal(0.0, covariance_matrix=cov), obs=y)

    return model, (x, y), {}


def latent_process():
    """Counts whose log rate is a Gaussian process, by its Cholesky factor."""
    rng = np.random.default_rng(113)
    x = np.linspace(-2, 2, 25)
    y = rng.poisson(np.exp(1.0 + np.sin(2 * x)))

    def model(x, y):
        length, scale = numpyro.sample("length", dist.InverseGamma(5, 5)), numpyro.sample("scale", dist.HalfNormal(1))
        level = numpyro.sample("level", dist.Normal(0, 1))
        z = numpyro.sample("z", dist.Normal(0, 1).expand([len(x)]))
        gap = (x[:, None] - x) / length
        root = jnp.linalg.cholesky(jnp.exp(-0.5 * gap**2) + 1e-6 * jnp.eye(len(x)))
        f = numpyro.deterministic("f", level + scale * root @ z)
        numpyro.sample("y", dist.Poisson(jnp.exp(f)), obs=y)

    return model, (x, y), {}


def predator_prey():
    """Lotka-Volterra equations for hares and lynx, log-normal noise."""
    rng = np.random.default_rng(114)

    def dz_dt(z, t, theta):
        u, v = z[0], z[1]
        alpha, beta, gamma, delta = theta[..., 0], theta[..., 1], theta[..., 2], theta[..., 3]
        return jnp.stack([(alpha - beta * v) * u, (-gamma + delta * u) * v])

    years = jnp.arange(20.0)
    z = odeint(dz_dt, jnp.array([30.0, 5.0]), years, jnp.array([0.55, 0.028, 0.8, 0.024]), rtol=1e-6, atol=1e-5)
    y = np.asarray(z) * np.exp(0.2 * rng.normal(size=(20, 2)))

    def model(n, y):
        start = numpyro.sample("z_init", dist.LogNormal(jnp.log(10), 1).expand([2]))
        loc, scale = jnp.array([1.0, 0.05, 1.0, 0.05]), jnp.array([0.2, 0.01, 0.2, 0.01])
        theta = numpyro.sample("theta", dist.TruncatedNormal(low=0.0, loc=loc, scale=scale))
        z = odeint(dz_dt, start, jnp.arange(float(n)), theta, rtol=1e-6, atol=1e-5, mxstep=1000)
        sigma = numpyro.sample("sigma", dist.LogNormal(-1, 1).expand([2]))
        numpyro.sample("y", dist.LogNormal(jnp.log(z), sigma), obs=y)

    return model, (20, y), {}


def varying_slopes():
    """Cafes with correlated intercepts and slopes: LKJ, centred as books print it."""
    rng = np.random.default_rng(115)
    cafes, visits = 20, 10
    L = np.linalg.cholesky(np.array([[1.0, -0.35], [-0.35, 0.25]]))
    ab = np.array([3.5, -1.0]) + rng.normal(size=(cafes, 2)) @ L.T
    cafe, afternoon = np.repeat(np.arange(cafes), visits), np.tile([0, 1], cafes * visits // 2)
    wait = ab[cafe, 0] + ab[cafe, 1] * afternoon + 0.5 * rng.normal(size=cafe.size)

    def model(cafe, afternoon, wait):
        a, b = numpyro.sample("a", dist.Normal(5, 2)), numpyro.sample("b", dist.Normal(-1, 0.5))
        sigma_cafe = numpyro.sample("sigma_cafe", dist.Exponential(1).expand([2]))
        sigma = numpyro.sample("sigma", dist.Exponential(1))
        L_rho = numpyro.sample("L_rho", dist.LKJCholesky(2, concentration=2.0))
        with numpyro.plate("cafe", 20):
            ab = numpyro.sample("ab", dist.MultivariateNormal(jnp.stack([a, b]), scale_tril=sigma_cafe[:, None] * L_rho))
        numpyro.sample("wait", dist.Normal(ab[cafe, 0] + ab[cafe, 1] * afternoon, sigma), obs=wait)

    return model, (cafe, afternoon, wait), {}


def splines():
    """A smooth curve by B-splines whose coefficients walk at random."""
    rng = np.random.default_rng(116)
    x = np.sort(rng.uniform(0, 1, 100))
    y = np.sin(6 * x) * x + 0.15 * rng.normal(size=100)
    knots = np.r_[[0.0] * 3, np.linspace(0, 1, 10), [1.0] * 3]
    basis = BSpline.design_matrix(np.clip(x, 0, 1 - 1e-9), knots, 3).toarray()

    def model(basis, y):
        tau, sigma = numpyro.sample("tau", dist.HalfNormal(1)), numpyro.sample("sigma", dist.HalfNormal(1))
        first = numpyro.sample("first", dist.Normal(0, 2))
        steps = numpyro.sample("steps", dist.Normal(0, 1).expand([basis.shape[1] - 1]))
        weights = jnp.concatenate([first[None], first + tau * jnp.cumsum(steps)])
        numpyro.sample("y", dist.Normal(basis @ weights, sigma), obs=y)

    return model, (basis, y), {}


def neural_network():
    """A small Bayesian network, as in NumPyro's own example; only its predictions can be compared."""
    rng = np.random.default_rng(117)
    x = np.linspace(-1, 1, 50)
    X = np.stack([x**i for i in range(3)], 1)
    y = (X @ np.array([0.2, 0.8, -0.5]))[:, None] + 0.1 * rng.normal(size=(50, 1))
    y = (y - y.mean()) / y.std()

    def model(X, y):
        w1 = numpyro.sample("w1", dist.Normal(jnp.zeros((3, 4)), 1.0))
        w2 = numpyro.sample("w2", dist.Normal(jnp.zeros((4, 1)), 1.0))
        precision = numpyro.sample("precision", dist.Gamma(3.0, 1.0))
        f = numpyro.deterministic("f", jnp.tanh(X @ w1) @ w2)
        with numpyro.plate("data", X.shape[0]):
            numpyro.sample("y", dist.Normal(f, 1 / jnp.sqrt(precision)).to_event(1), obs=y)

    return model, (X, y), {"compare": ("f", "precision")}


def missing_data():
    """Survival on a ship: ages that are missing are imputed by title."""
    rng = np.random.default_rng(118)
    n = 120
    title, sex = rng.integers(0, 3, n), rng.integers(0, 2, n)
    age = np.array([-0.5, 0.2, 0.8])[title] + 0.6 * rng.normal(size=n)
    died = (rng.random(n) < 1 / (1 + np.exp(-(-0.3 + 1.5 * sex + 0.8 * age)))).astype(int)
    age = np.where(rng.random(n) < 0.2, np.nan, age)

    def model(age, title, sex, died):
        mu = numpyro.sample("age_mu", dist.Normal(0, 1).expand([3]))
        spread = numpyro.sample("age_sigma", dist.HalfNormal(1))
        gone = np.isnan(age).nonzero()[0]
        imputed = numpyro.sample("age_missing", dist.Normal(mu[title[gone]], spread).mask(False))
        full = jnp.asarray(age).at[gone].set(imputed)
        numpyro.sample("age", dist.Normal(mu[title], spread), obs=full)
        a, b = numpyro.sample("a", dist.Normal(0, 1)), numpyro.sample("b", dist.Normal(0, 1).expand([2]))
        numpyro.sample("died", dist.Bernoulli(logits=a + b[0] * sex + b[1] * full), obs=died)

    return model, (age, title, sex, died), {}


def censored():
    """Times to failure, some still running when the study ended."""
    rng = np.random.default_rng(119)
    x = rng.normal(size=90)
    t = rng.weibull(1.4, 90) * np.exp(1.0 - 0.5 * x)
    done, t = t < 4.0, np.minimum(t, 4.0)

    def model(x, t, done):
        a, b = numpyro.sample("a", dist.Normal(0, 2)), numpyro.sample("b", dist.Normal(0, 1))
        k = numpyro.sample("k", dist.Gamma(2.0, 1.0))
        law = dist.Weibull(jnp.exp(a + b * x), k)
        with numpyro.handlers.mask(mask=done):
            numpyro.sample("t", law, obs=t)
        numpyro.factor("running", jnp.where(done, 0.0, jnp.log1p(-law.cdf(t))).sum())

    return model, (x, t, done), {}


def baseball():
    """Batting averages of 18 players, partially pooled, with NumPyro's own reparameterisation."""
    hits = np.array([18, 17, 16, 15, 14, 14, 13, 12, 11, 11, 10, 10, 10, 10, 10, 9, 8, 7])

    def model(hits):
        loc, scale = numpyro.sample("loc", dist.Normal(-1, 1)), numpyro.sample("scale", dist.HalfCauchy(1))
        with numpyro.plate("players", 18), numpyro.handlers.reparam(config={"alpha": LocScaleReparam(0)}):
            alpha = numpyro.sample("alpha", dist.Normal(loc, scale))
            numpyro.sample("hits", dist.Binomial(45, logits=alpha), obs=hits)

    return model, (hits,), {}


def clusters():
    """A mixture of three Gaussians in one dimension, means ordered."""
    rng = np.random.default_rng(120)
    y = np.concatenate([rng.normal(m, 0.5, n) for m, n in ((-2, 40), (0.5, 60), (3, 30))])

    def model(y):
        w = numpyro.sample("w", dist.Dirichlet(jnp.ones(3)))
        mu = numpyro.sample(
            "mu", dist.TransformedDistribution(dist.Normal(0, 3).expand([3]), dist.transforms.OrderedTransform())
        )
        sigma = numpyro.sample("sigma", dist.HalfNormal(1).expand([3]))
        numpyro.sample("y", dist.MixtureSameFamily(dist.Categorical(w), dist.Normal(mu, sigma)), obs=y)

    return model, (y,), {}


MODELS = {
    "local level": local_level, "trend and season": seasonal, "stochastic volatility": stochastic_volatility,
    "hidden Markov": hidden_markov, "Dawid-Skene": dawid_skene, "capture-recapture": capture_recapture,
    "two-parameter IRT": two_parameter_irt, "horseshoe": horseshoe, "BYM2": bym2, "ordinal": ordinal,
    "zero-inflated": zero_inflated, "Gaussian process": gaussian_process, "latent process": latent_process,
    "predator and prey": predator_prey, "varying slopes": varying_slopes, "splines": splines,
    "neural network": neural_network, "missing data": missing_data, "censored": censored, "baseball": baseball,
    "clusters": clusters,
}  # fmt: skip
