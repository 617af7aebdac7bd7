"""The default method inside a loop of one's own: who was admitted to Berkeley in 1973 (Bickel, Hammel, O'Connell 1975).

A rate of admission for each of six departments, for men and for women, with flat priors: the posteriors are Beta.
"""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import beta

from yoasovi.blackjax import as_top_level_api

ADMITTED = {"men": np.array([512, 353, 120, 138, 53, 22]), "women": np.array([89, 17, 202, 131, 94, 24])}
REJECTED = {"men": np.array([313, 207, 205, 279, 138, 351]), "women": np.array([19, 8, 391, 244, 299, 317])}


def log_density(logit):
    """Of the rates' logits; one more of each outcome is the Jacobian."""
    terms = [
        (ADMITTED[k] + 1) * jax.nn.log_sigmoid(x) + (REJECTED[k] + 1) * jax.nn.log_sigmoid(-x) for k, x in logit.items()
    ]
    return sum(jnp.sum(x) for x in terms)


def main():
    vi = as_top_level_api(log_density)
    begin = vi.init({"men": jnp.zeros(6), "women": jnp.zeros(6)})
    keys = jax.random.split(jax.random.key(0), 30)
    state, info = jax.jit(lambda s: jax.lax.scan(lambda s, key: vi.step(key, s), s, keys))(begin)
    steps = int(np.argmax(info.converged)) + 1
    print(f"converged after {steps} windows, {int(info.num_gradients[-1])} gradients; ELBO {float(info.elbo[-1]):.2f}")
    rate = jax.tree.map(jax.nn.sigmoid, vi.sample(jax.random.key(1), state, 20_000))
    for who in rate:
        exact = beta(ADMITTED[who] + 1, REJECTED[who] + 1)
        off = np.abs(rate[who].mean(0) - exact.mean()) / exact.std()
        print(f"{who}: rates {np.asarray(rate[who].mean(0)).round(2)}, off by at most {off.max():.3f} posterior sd")
        assert (off < 0.1).all()
    lead = (rate["women"] > rate["men"]).mean(0)
    print(f"probability that women had the better rate, departments A to F: {np.asarray(lead).round(2)}")
    assert bool(info.converged[-1])


if __name__ == "__main__":
    main()
