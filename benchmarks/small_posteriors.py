"""The default method on small posteriors: ELBO on fresh draws, what it took, and indifference to the first step length.

    python benchmarks/small_posteriors.py [--seeds 10] [--out benchmarks/results]

Logistic regression needs scikit-learn's breast cancer data (pip install "yoasovi[bench]").
"""

import argparse
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from sklearn.datasets import load_breast_cancer

import yoasovi as yo
from yoasovi.experiments import simulate


def mixture():
    """Means of three bivariate clusters, labels summed out: 6 parameters."""
    y = simulate.mixture(2, 3)
    return yo.models.GaussianMixture(y, num_components=3, assignments="marginal")


def logistic():
    """Breast cancer, standardised, standard normal priors: 31 parameters."""
    data = load_breast_cancer()
    X = np.column_stack([np.ones(len(data.target)), (data.data - data.data.mean(0)) / data.data.std(0)])
    return yo.Model(
        prior={"w": dist.Normal(jnp.zeros(31), 1.0).to_event(1)},
        log_likelihood=lambda p, d: dist.Bernoulli(logits=d["X"] @ p["w"]).log_prob(d["y"]),
        data={"X": X, "y": data.target},
        name="logistic",
    )


def groups(count=100, size=10):
    """A hundred groups of ten with a common slope, centred: 104 parameters."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(count, size))
    y = rng.normal(1, 0.7, size=(count, 1)) + 0.5 * x + rng.normal(size=(count, size))

    def log_density(p):
        prior = dist.Normal(0, 10).log_prob(p["mu"]) + dist.Normal(0, 1).log_prob(p["slope"])
        prior += dist.Normal(0, 1).log_prob(p["log_tau"]) + dist.Normal(0, 1).log_prob(p["log_s"])
        prior += dist.Normal(p["mu"], jnp.exp(p["log_tau"])).log_prob(p["a"]).sum()
        return prior + dist.Normal(p["a"][:, None] + p["slope"] * x, jnp.exp(p["log_s"])).log_prob(y).sum()

    real = dist.constraints.real
    return yo.Model.from_log_density(
        log_density, dict.fromkeys(("mu", "log_tau", "slope", "log_s", "a"), real), {"a": (count,)}, name="groups"
    )


ROWS = [(build, family) for build in (mixture, logistic, groups) for family in ("mean_field", "full_rank")]


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--seeds", type=int, default=10)
    args.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = args.parse_args()
    lines = [
        "| posterior | family | ELBO, worst .. best | gradients, median (max) | values, median (max) "
        "| step 0.03 / 0.1 / 0.3 |",
        "|---|---|---|---|---|---|",
    ]
    for build, family in ROWS:
        model = build()
        fits = [yo.fit(model, family=family, seed=s, progress=False) for s in range(args.seeds)]
        steps = [yo.fit(model, family=family, seed=0, step=r, progress=False).elbo.value for r in (0.03, 0.1, 0.3)]
        seen = sorted(f.elbo.value for f in fits)
        gradients, values = [f.num_gradients for f in fits], [f.num_values for f in fits]
        lines.append(
            f"| {build.__name__} ({model.density.dim}) | {family} "
            f"| {seen[0]:.2f} .. {seen[-1]:.2f} ± {fits[0].elbo.se:.2f} "
            f"| {np.median(gradients):,.0f} ({max(gradients):,}) "
            f"| {np.median(values):,.0f} ({max(values):,}) | {' / '.join(f'{e:.2f}' for e in steps)} |"
        )
        print(lines[-1], flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    head = f"`python benchmarks/small_posteriors.py --seeds {args.seeds}`, yoasovi {yo.__version__}\n\n"
    (args.out / "small_posteriors.md").write_text(head + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
