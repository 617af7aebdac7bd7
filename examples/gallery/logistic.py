"""Logistic regression, and whether its probabilities are what they say

569 breast tumours, five measurements of their cells each, benign or malignant (Wolberg, Street and Mangasarian 1993;
the data come with scikit-learn). The model is fitted to two thirds in the units they come in and asked about the rest.
A probability is calibrated if, of all tumours that are called malignant with 30%, about 30% are; the posterior's
average over coefficients is what keeps probabilities away from 0 and 1 where the data do not say so.
"""

import numpy as np
from matplotlib.figure import Figure
from sklearn.datasets import load_breast_cancer

import yoasovi as yo


def main(small=False):
    data = load_breast_cancer()
    X, malignant = data.data[:, :5], 1 - data.target
    names = [str(name) for name in data.feature_names[:5]]
    order = np.random.default_rng(0).permutation(len(X))
    train, test = order[:380], order[380:]
    frame = {name: X[train, j] for j, name in enumerate(names)}
    fit = yo.fit(yo.models.LogisticRegression(frame, malignant[train]), seed=0)
    draws = fit.sample(500 if small else 4000)
    logits = draws["intercept"][:, None] + draws["coefficients"] @ X[test].T
    probability = (1.0 / (1.0 + np.exp(-logits))).mean(0)
    loss = -np.mean(np.log(np.where(malignant[test] == 1, probability, 1 - probability)))
    base = malignant[train].mean()
    coin = -np.mean(np.log(np.where(malignant[test] == 1, base, 1 - base)))
    bins = np.digitize(probability, [0.1, 0.5, 0.9])
    called = np.array([probability[bins == k].mean() for k in range(4)])
    were = np.array([malignant[test][bins == k].mean() for k in range(4)])
    count = np.bincount(bins, minlength=4)
    right = np.mean((probability > 0.5) == malignant[test])
    print(f"{right:.0%} of {len(test)} new tumours called right; log loss {loss:.3f}, of the base rate alone {coin:.3f}")
    for p, q, n in zip(called, were, count, strict=True):
        print(f"called malignant with {p:.0%} on average: {q:.0%} of {n} were")
    assert loss < 0.5 * coin
    assert np.all(np.abs(called - were) < 3.0 * np.sqrt(called * (1 - called) / count) + 0.02)  # three standard errors

    figure = Figure(figsize=(4.5, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="#999999", lw=1)
    axes.errorbar(called, were, 2 * np.sqrt(called * (1 - called) / count), fmt="o", color="#0072B2", capsize=3)
    axes.set(xlabel="called malignant with probability", ylabel="share that was")
    return figure


if __name__ == "__main__":
    main()
