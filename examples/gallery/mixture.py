"""A mixture with latent labels, fitted by values of log p alone

Points of three groups; which one a point belongs to is a discrete latent of its own. No gradient goes through a label:
the fit looks at values of log p under every label. For this model coordinate ascent has updates in closed form, and its
best of 20 starts is the highest ELBO that the approximation can have: the fit, which knows nothing of that, must come
within half a nat of it, and put nearly all points where they came from.
"""

from itertools import permutations

import numpy as np
from matplotlib.figure import Figure

import yoasovi as yo


def main(small=False):
    n = 150 if small else 600
    rng = np.random.default_rng(0)
    centres = np.array([[-2.5, 0.0], [2.5, 0.0], [0.0, 3.5]])
    label = rng.integers(3, size=n)
    y = centres[label] + rng.normal(size=(n, 2))
    model = yo.models.GaussianMixture(y, num_components=3, prior_scale=3.0)
    fit = yo.fit(model, seed=0, restarts=4)
    draws = fit.sample(500)
    share = np.stack([(draws["z"] == k).mean(0) for k in range(3)])
    found = share.argmax(0)
    right = max(np.mean(np.array(order)[found] == label) for order in permutations(range(3)))
    best = model.optimum()
    print(f"ELBO {fit.elbo.value:.2f}, of at most {best:.2f}; {fit.num_values:,} values of log p, no gradients")
    print(f"{right:.0%} of the points are given to the group they came from")
    assert best - fit.elbo.value < 0.5
    assert right > 0.9

    figure = Figure(figsize=(5, 4), layout="constrained")
    axes = figure.subplots()
    colours = np.array([[0.0, 0.45, 0.70], [0.84, 0.37, 0.0], [0.0, 0.62, 0.45]])
    axes.scatter(*y.T, c=share.T @ colours, s=12)
    for k in range(3):
        axes.plot(*draws["mu"][:200, k].T, ".", color="black", ms=1)
    axes.set(title="points by the probability of their group; draws of the centres", xlabel="x", ylabel="y", aspect="equal")
    axes.title.set_fontsize(9)
    return figure


if __name__ == "__main__":
    main()
