"""Bayesian estimators where scikit-learn's own would stand: in a pipeline, in a search, with honest intervals.

The regression's posterior is compared with a closed form: given the noise, coefficients are Gaussian.
"""

import numpy as np
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from yoasovi.sklearn import BayesianLinearRegression, BayesianLogisticRegression


def simulate(seed=0, n=120):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2)) * [1.0, 50.0]  # columns in very different units
    line = 3.0 + X @ [2.0, -0.02]
    return X, line + rng.normal(size=n), (rng.logistic(size=n) < line - 3.0).astype(int)


def exact(X, y, noise, prior_scale=2.5):
    """Mean and sd of the coefficients in the data's units; priors are on standardised ones."""
    Z, scale = (X - X.mean(0)) / X.std(0), y.std() / X.std(0)
    t, s = (y - y.mean()) / y.std(), noise / y.std()
    covariance = np.linalg.inv(Z.T @ Z / s**2 + np.eye(2) / prior_scale**2)
    return scale * (covariance @ Z.T @ t / s**2), scale * np.sqrt(np.diag(covariance))


def main():
    X, y, label = simulate()

    regression = BayesianLinearRegression(random_state=0).fit(X, y)
    mean, sd = exact(X, y, regression.noise_)
    print(f"coefficients {regression.coef_}, exactly {mean} ± {sd}; noise {regression.noise_:.3f}")
    assert regression.converged_
    assert np.all(np.abs(regression.coef_ - mean) < 0.1 * sd)
    X_new, y_new, _ = simulate(seed=1, n=2000)
    centre, spread = regression.predict(X_new, return_std=True)
    covered = np.mean(np.abs(y_new - centre) < 1.645 * spread)
    print(f"{covered:.1%} of new observations lie inside their 90% interval")
    assert 0.87 < covered < 0.93

    classifier = make_pipeline(StandardScaler(), BayesianLogisticRegression(random_state=0))
    search = GridSearchCV(classifier, {"bayesianlogisticregression__prior_scale": [0.1, 2.5]}, scoring="neg_log_loss", cv=3)
    search.fit(X, label)
    print(f"best prior scale {search.best_params_}, log loss {-search.best_score_:.3f}")
    assert search.score(X, label) > -0.6  # a coin has -0.69


if __name__ == "__main__":
    main()
