"""Where YOASOVI stops by itself on two models its rule was not tuned on, and what SVI has by then and in the end."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal

from yoasovi.numpyro import YOASOVI

STEPS, RATES = 10_000, (0.1, 0.01, 0.001)
rng = np.random.default_rng(5)
KEY = jax.random.key(1)


def poisson(x, count):
    a = numpyro.sample("a", dist.Normal(0, 3))
    b = numpyro.sample("b", dist.Normal(0, 2).expand([5]).to_event(1))
    with numpyro.plate("n", len(count)):
        numpyro.sample("y", dist.Poisson(jnp.exp(a + x @ b)), obs=count)


def slopes(g, t, y):
    m = numpyro.sample("m", dist.Normal(0, 3).expand([2]).to_event(1))
    s = numpyro.sample("s", dist.HalfNormal(2).expand([2]).to_event(1))
    e = numpyro.sample("e", dist.HalfNormal(2))
    with numpyro.plate("j", 12):
        a, b = numpyro.sample("a", dist.Normal(m[0], s[0])), numpyro.sample("b", dist.Normal(m[1], s[1]))
    with numpyro.plate("n", len(y)):
        numpyro.sample("y", dist.Normal(a[g] + b[g] * t, e), obs=y)


def problems():
    x = rng.normal(size=(300, 5))
    count = rng.poisson(np.exp(0.5 + x @ [0.4, -0.3, 0.2, 0, 0.1])).astype(np.float32)
    g, t = np.repeat(np.arange(12), 15), rng.normal(size=180).astype(np.float32)
    y = 1 + 0.8 * rng.normal(size=12)[g] + (0.5 + 0.3 * rng.normal(size=12)[g]) * t + 0.7 * rng.normal(size=180)
    return {"poisson": (poisson, (x.astype(np.float32), count)), "slopes": (slopes, (g, t, y.astype(np.float32)))}


def main():
    print("| model, guide | rate | YOASOVI stops after | its loss | SVI, as many steps | SVI, 10,000 steps |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, (model, args) in problems().items():
        for make in (AutoNormal, AutoMultivariateNormal):
            guide, loss = make(model), Trace_ELBO()
            SVI(model, guide, numpyro.optim.Adam(0.1), loss).init(jax.random.key(0), *args)  # all begin at the same place

            def run(kind, rate, steps, rest=(model, guide, loss, args)):
                model, guide, loss, args = rest
                return kind(model, guide, numpyro.optim.Adam(rate), loss).run(KEY, steps, *args, progress_bar=False)

            def fresh(params, rest=(model, guide, *args)):
                one = lambda key: Trace_ELBO(1000).loss(key, params, *rest)
                return jax.lax.map(one, jax.random.split(jax.random.key(9), 20)).mean()

            fresh = jax.jit(fresh)
            for rate in RATES:
                found = run(YOASOVI, rate, STEPS)
                taken = len(found.losses)
                others = [fresh(run(SVI, rate, steps).params) for steps in (taken, STEPS)]
                ends = " | ".join(f"{x:.3f}" for x in (fresh(found.params), *others))
                print(f"| {name}, {make.__name__} | {rate} | {taken:,} | {ends} |", flush=True)


if __name__ == "__main__":
    main()
