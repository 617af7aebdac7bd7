"""Probabilities of discrete sites that are summed out and drawn again, beside closed forms averaged over NUTS's draws.

    python benchmarks/discrete_sites.py [--seeds 2] [--draws 20000] [--only NAME ...] [--kept out/discrete]

What is found for each model is kept as a file, and the table is of all that are kept.

NUTS (four chains of 1,000 + 2,000) gives the continuous parameters alone; at each of its draws the probabilities of the
discrete sites are worked out in NumPy by hand: forward and backward recursions for the hidden Markov chains, Bayes' rule
elsewhere. Ours are shares of `fit.sample(draws)`, whose own noise is at most `sqrt(p (1 - p) / draws)` each.
"""

import argparse
import sys
import warnings
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from authored import NUTS_OF, cpu
from authored_numpyro import capture_recapture, dawid_skene, hidden_markov, zero_inflated
from numpyro.diagnostics import split_gelman_rubin
from scipy import stats

_AGREE = 1.02  # R-hat of NUTS's chains, at most


def mixture():
    """Three Gaussians in their order, with their assignments written out.

    The first mean and the gaps have priors that say where they are: under `OrderedTransform` of wide normals NUTS's chains
    ended in several modes, with R-hats of 2 to 10, and were no reference.
    """
    rng = np.random.default_rng(120)
    y = np.concatenate([rng.normal(m, 0.7, n) for m, n in ((-2, 40), (0.5, 60), (3, 30))])

    def model(y):
        w = numpyro.sample("w", dist.Dirichlet(np.full(3, 5.0)))
        low = numpyro.sample("low", dist.Normal(-2.0, 1.0))
        gaps = numpyro.sample("gaps", dist.Gamma(5.0, 2.0).expand([2]).to_event(1))
        mu = numpyro.deterministic("mu", low + jnp.concatenate([jnp.zeros(1), jnp.cumsum(gaps)]))
        sigma = numpyro.sample("sigma", dist.HalfNormal(1).expand([3]).to_event(1))
        with numpyro.plate("points", len(y)):
            z = numpyro.sample("z", dist.Categorical(w), infer={"enumerate": "parallel"})
            numpyro.sample("y", dist.Normal(mu[z], sigma[z]), obs=y)

    return model, (y,), {}


# ---- closed forms, given draws of the continuous parameters: (draws, sites, values) --------------------------


def shares(log_p):
    """Normalise over the last axis."""
    p = np.exp(log_p - log_p.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def chain(first, moves, likelihood):
    """Forward and backward: (n, K), (n, K, K) and (n, T, K) to probabilities of states, (n, T, K)."""
    n, steps, states = likelihood.shape
    ahead, back = np.empty((n, steps, states)), np.ones((n, steps, states))
    for t in range(steps):
        into = first if t == 0 else np.einsum("ni,nij->nj", ahead[:, t - 1], moves)
        ahead[:, t] = into * likelihood[:, t]
        ahead[:, t] /= ahead[:, t].sum(1, keepdims=True)
    for t in range(steps - 2, -1, -1):
        back[:, t] = np.einsum("nij,nj->ni", moves, likelihood[:, t + 1] * back[:, t + 1])
        back[:, t] /= back[:, t].sum(1, keepdims=True)
    both = ahead * back
    return both / both.sum(2, keepdims=True)


def of_markov(draws, y):
    stay, sigma = draws["stay"], draws["sigma"][:, None, None]
    means = np.stack([draws["low"], draws["low"] + draws["gap"]], 1)[:, None]
    moves = np.stack([np.stack([stay[:, 0], 1 - stay[:, 0]], 1), np.stack([1 - stay[:, 1], stay[:, 1]], 1)], 1)
    return chain(moves[:, 0], moves, np.exp(-0.5 * ((y[:, None] - means) / sigma) ** 2))


def of_captures(draws, seen):
    """Alive (1) or not (0) at each time for each animal; the site is (times, animals). All are seen at first."""
    phi, rho = draws["phi"], draws["rho"]
    one, nought = np.ones_like(phi), np.zeros_like(phi)
    moves = np.stack([np.stack([one, nought], 1), np.stack([1 - phi, phi], 1)], 1)
    found = []
    for y in seen[:, 1:]:
        likelihood = np.stack([np.stack([one - v, rho if v else 1 - rho], 1) for v in y], 1)
        found.append(chain(moves[:, 1], moves, likelihood))
    return np.stack(found, 2)


def of_mixture(draws, y):
    log_p = stats.norm.logpdf(y[:, None], draws["mu"][:, None], draws["sigma"][:, None])
    return shares(log_p + np.log(draws["w"])[:, None])


def of_fishers(draws, x, y):
    rate, fished = np.exp(draws["a"][:, None] + draws["b"][:, None] * x), draws["fished"][:, None]
    logs = (np.log1p(-fished) + stats.poisson.logpmf(y, 1e-6), np.log(fished) + stats.poisson.logpmf(y, rate))
    return shares(np.stack(logs, -1))


def of_items(draws, votes):
    raters = np.arange(votes.shape[1])
    log_p = np.log(draws["beta"])[:, raters[None], :, votes].sum(1)  # by items, raters: (items, raters, n, classes)
    return shares(np.moveaxis(log_p, 0, 1) + np.log(draws["pi"])[:, None])


def of_years(draws, y):
    """A switch after each year, (n, 1, years): those up to it at the early rate."""
    early, late = (stats.poisson.logpmf(y, draws[k][:, None]) for k in ("early", "late"))
    after = late.sum(1, keepdims=True) - np.cumsum(late, 1)
    return shares(np.cumsum(early, 1) + after)[:, None]


def switch_point():
    from authored_pymc import disasters

    return disasters()


def counts(built):
    return (built.rvs_to_values[built["y"]].data,)


MODELS = {
    "hidden Markov": ("numpyro", hidden_markov, "state", of_markov),
    "capture-recapture": ("numpyro", capture_recapture, "z", of_captures),
    "mixture": ("numpyro", mixture, "z", of_mixture),
    "zero-inflated": ("numpyro", zero_inflated, "z", of_fishers),
    "Dawid-Skene": ("numpyro", dawid_skene, "c", of_items),
    "switch point": ("pymc", switch_point, "switch", of_years),
}


def compared(name, seeds, n):
    """Give rows of the table: for each seed the largest and the mean difference of a probability."""
    import yoasovi as yo

    door, build, site, by_hand = MODELS[name]
    built = build()
    begin = cpu()
    numpyro.enable_x64()
    chains = NUTS_OF[door](built, 1000, 2000, 0.8)
    numpyro.enable_x64(False)  # ours chooses by itself
    worst = max(float(np.max(split_gelman_rubin(np.asarray(v, float)))) for v in chains.values())
    if worst > _AGREE:
        raise RuntimeError(f"NUTS is no reference for {name}: its R-hat is {worst:.3f}.")
    flat = {k: np.asarray(v, float).reshape(-1, *np.shape(v)[2:]) for k, v in chains.items()}
    nuts, data = cpu() - begin, built[1] if door == "numpyro" else counts(built)
    exact = by_hand(flat, *map(np.asarray, data)).mean(0)
    for seed in range(seeds):
        begin = cpu()
        fit = yo.fit(yo.from_numpyro(built[0], *built[1]) if door == "numpyro" else built, seed=seed, progress=False)
        drawn = np.asarray(fit.sample(n)[site]).reshape(n, *exact.shape[:-1])
        ours = (drawn[..., None] == np.arange(exact.shape[-1])).mean(0)
        apart = np.abs(ours - exact)
        labels = np.abs((ours - exact) @ np.arange(exact.shape[-1]))
        yield name, seed, exact.shape, apart.max(), apart.mean(), labels.max(), cpu() - begin, nuts


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--seeds", type=int, default=2)
    args.add_argument("--draws", type=int, default=20_000)
    args.add_argument("--only", nargs="*")
    args.add_argument("--kept", type=Path, default=Path("out/discrete"))
    args.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    args = args.parse_args()
    warnings.simplefilter("ignore")
    args.kept.mkdir(parents=True, exist_ok=True)
    for name in args.only or MODELS:
        found = [line(*row) for row in compared(name, args.seeds, args.draws)]
        (args.kept / f"{name}.md").write_text("\n".join(found))
        print("\n".join(found), file=sys.stderr, flush=True)
    head = (
        f"`python benchmarks/discrete_sites.py --seeds {args.seeds} --draws {args.draws}`: shares of values among our draws,"
    )
    lines = [
        f"{head} beside closed forms averaged over NUTS's draws.", "",
        "| model | seed | probabilities | largest difference | mean difference | of mean labels | CPU s | NUTS |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
        *((args.kept / f"{name}.md").read_text() for name in MODELS if (args.kept / f"{name}.md").exists()),
    ]  # fmt: skip
    (args.out / "discrete_sites.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def line(name, seed, shape, most, mean, labels, ours, nuts):
    sizes = " x ".join(map(str, shape))
    return f"| {name} | {seed} | {sizes} | {most:.4f} | {mean:.4f} | {labels:.4f} | {ours:.1f} | {nuts:.1f} |"


if __name__ == "__main__":
    main()
