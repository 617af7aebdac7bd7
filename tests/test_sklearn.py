"""The scikit-learn door: its conventions, by its own checks; pipelines and searches; answers in the data's own units.

A fit compiles for each number of columns. The checks on three columns run by default; all of them, with
`pytest -m exhaustive`.
"""

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator

from yoasovi.sklearn import (
    BayesianGaussianMixture,
    BayesianLinearRegression,
    BayesianLogisticRegression,
)

ESTIMATORS = [BayesianLinearRegression(), BayesianLogisticRegression(), BayesianGaussianMixture()]
# They fit data of other than three columns or of more than 64 rows: one more program each to compile.
OTHER_SHAPES = {
    "check_estimators_overwrite_params", "check_estimators_fit_returns_self", "check_readonly_memmap_input",
    "check_n_features_in_after_fitting", "check_positive_only_tag_during_fit", "check_estimators_dtypes",
    "check_dtype_object", "check_classifiers_one_label_sample_weights", "check_classifiers_classes",
    "check_classifiers_train", "check_non_transformer_estimators_n_iter", "check_decision_proba_consistency",
    "check_fit2d_1feature", "check_fit_idempotent", "check_fit_check_is_fitted", "check_n_features_in",
    "check_regressors_train", "check_regressors_no_decision_function", "check_regressors_int",
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda x: type(x).__name__)
def test_scikit_learns_checks_on_three_columns_pass(estimator):
    done = 0
    for instance, check in estimator_checks_generator(estimator):
        name = getattr(check, "func", check).__name__
        if name not in OTHER_SHAPES and not name.startswith("check_array_api"):
            check(instance)
            done += 1
    assert done > 25


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda x: type(x).__name__)
def test_all_of_scikit_learns_checks_pass(estimator):
    check_estimator(estimator, on_skip=None)


@pytest.fixture(scope="module")
def line():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3)) * [1.0, 100.0, 0.01] + [0.0, 5.0, 1.0]
    return X, 2.0 + X @ [1.0, -0.02, 30.0] + 0.5 * rng.normal(size=60)


def test_regression_gives_least_squares_and_intervals_in_the_datas_own_units(line):
    X, y = line
    found = BayesianLinearRegression(random_state=0).fit(X, y)
    whole = np.column_stack([np.ones(60), X])
    exact, rest = np.linalg.lstsq(whole, y)[:2]
    noise = np.sqrt(rest[0] / 56)
    covariance = noise**2 * np.linalg.inv(whole.T @ whole)
    sd = np.sqrt(np.diag(covariance))
    assert np.all(np.abs(np.r_[found.intercept_, found.coef_] - exact) < 0.2 * sd)  # the prior pulls a little
    np.testing.assert_allclose(np.sqrt(np.diag(found.covariance_)), sd, rtol=0.15)
    mean, spread = found.predict(X, return_std=True)
    np.testing.assert_allclose(mean, found.predict(X))
    np.testing.assert_allclose(spread, np.sqrt(noise**2 + np.sum(whole @ covariance * whole, 1)), rtol=0.15)
    assert found.converged_ and found.n_iter_ > 0 and np.isfinite(found.lower_bounds_).all()
    units = BayesianLinearRegression(random_state=0).fit(X * 1e3, y * 1e-2)
    np.testing.assert_allclose(units.coef_, found.coef_ * 1e-5, rtol=1e-6)
    assert units.lower_bound_ == pytest.approx(found.lower_bound_ + 60 * np.log(1e2), abs=1e-6)


def test_classifier_works_in_a_pipeline_and_a_search(line):
    X, y = line
    label = np.where(y > np.median(y), "high", "low")
    pipe = make_pipeline(StandardScaler(), BayesianLogisticRegression(random_state=0))
    search = GridSearchCV(pipe, {"bayesianlogisticregression__prior_scale": np.array([0.1, 2.5])}, cv=3).fit(X, label)
    assert search.best_score_ > 0.8
    best = search.best_estimator_
    proba, sd = best[-1].predict_proba(best[0].transform(X), return_std=True)
    np.testing.assert_allclose(proba.sum(1), 1.0)
    assert np.all((sd > 0) & (sd < 0.5))
    np.testing.assert_array_equal(best.predict(X), np.where(proba[:, 0] > 0.5, "high", "low"))
    with pytest.raises(ValueError, match="Only binary classification is supported"):
        BayesianLogisticRegression().fit(X, np.arange(60) % 3)


def test_mixture_finds_its_components_and_says_when_it_did_not_converge():
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(100.0, 1.0, 40), rng.normal(110.0, 2.0, 80)])[:, None]
    found = BayesianGaussianMixture(n_components=2, random_state=0).fit(X)
    order = np.argsort(found.means_[:, 0])
    np.testing.assert_allclose(found.means_[order, 0], [X[:40].mean(), X[40:].mean()], atol=0.5)
    np.testing.assert_allclose(found.weights_[order], [1 / 3, 2 / 3], atol=0.05)
    assert found.covariances_.shape == (2, 1, 1)
    np.testing.assert_allclose(found.predict_proba(X).sum(1), 1.0)
    assert np.mean(found.predict(X) == order[np.repeat([0, 1], [40, 80])]) > 0.97
    rows, labels = found.sample(5000)
    assert found.score(rows) == pytest.approx(found.score(X), abs=0.15)
    assert rows.shape == (5000, 1) and set(labels) == {0, 1}
    with pytest.warns(ConvergenceWarning, match="out of steps after 8; raise `max_iter`"):
        short = BayesianGaussianMixture(n_components=2, random_state=0, max_iter=8).fit(X)
    assert not short.converged_ and short.n_iter_ == 8
    again = short.set_params(warm_start=True, max_iter=None).fit(X)
    assert again.converged_ and again.lower_bound_ == pytest.approx(found.lower_bound_, abs=0.5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_components": 0}, "`n_components` of `BayesianGaussianMixture` must be a positive integer; got 0"),
        ({"covariance_type": "tied"}, "`covariance_type` .* must be 'full' or 'diag'; got 'tied'"),
        ({"n_components": 9}, "n_samples >= n_components"),
        ({"max_iter": 0}, "`max_iter` .* must be a positive integer; got 0"),
        ({"tol": -1.0}, "`tol` .* must be a positive finite number; got -1.0"),
    ],
)
def test_bad_settings_are_refused_by_name_when_fitting(settings, message):
    with pytest.raises(ValueError, match=message):
        BayesianGaussianMixture(**settings).fit(np.arange(16.0).reshape(8, 2))
