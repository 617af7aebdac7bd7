"""The scikit-learn door: its conventions, by its own checks; pipelines and searches; answers in the data's own units.

A fit compiles for each number of columns. The checks on three columns run by default; all of them, with
`pytest -m exhaustive`.
"""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("sklearn")

from scipy.sparse import csr_matrix
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, PoissonRegressor
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator

from yoasovi.answer import correction
from yoasovi.fitting import fit
from yoasovi.sklearn import (
    BayesianGaussianMixture,
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegression,
)
from yoasovi.sklearn.mixture import sticks
from yoasovi.stopping import StopReason

ESTIMATORS = [
    BayesianLinearRegression(), BayesianLogisticRegression(), BayesianPoissonRegression(), BayesianGaussianMixture(),
]  # fmt: skip
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
def test_scikit_learns_checks_on_three_columns_pass(estimator, monkeypatch):
    monkeypatch.setattr(correction, "_ROUNDS", 1)  # about conventions: draws as good as can be take a second
    done = 0
    short = clone(estimator).set_params(max_iter=200)  # one check asks for 93 parameters of 15 rows, twice
    for instance, check in estimator_checks_generator(short):
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
    assert best[-1].coef_.shape == (1, 3) and best[-1].intercept_.shape == (1,)
    odds = best.decision_function(X)
    np.testing.assert_allclose(1.0 / (1.0 + np.exp(-odds)), proba[:, 1])


def test_three_classes_and_their_weights(line):
    X, y = line
    label = np.digitize(y, np.quantile(y, [0.2, 0.8]))
    plain = BayesianLogisticRegression(random_state=0).fit(X, label)
    assert plain.coef_.shape == (3, 3) and plain.intercept_.shape == (3,) and plain.covariance_.shape == (3, 4, 4)
    np.testing.assert_allclose(plain.coef_.sum(0), 0.0, atol=1e-9)
    proba, sd = plain.predict_proba(X, return_std=True)
    assert sd.shape == (60, 3) and plain.score(X, label) > 0.85
    np.testing.assert_allclose(np.exp(plain.decision_function(X)), proba)
    # The penalty that has its best point where the posterior is highest; the mean is near it.
    Z = (X - X.mean(0)) / X.std(0)
    exact = LogisticRegression(C=2.5**2, max_iter=5000).fit(Z, label)
    assert np.abs(exact.predict_proba(Z) - proba).max() < 0.1
    heavy = BayesianLogisticRegression(random_state=0, class_weight={0: 20.0}).fit(X, label)
    same = BayesianLogisticRegression(random_state=0).fit(X, label, sample_weight=np.where(label == 0, 20.0, 1.0))
    np.testing.assert_allclose(heavy.coef_, same.coef_)
    assert np.sum(heavy.predict_proba(X)[:, 0]) > np.sum(proba[:, 0]) + 1


def test_counts_and_weights_that_stand_for_repeated_rows(line):
    rng = np.random.default_rng(1)
    X = line[0]
    y = rng.poisson(np.exp(3.0 + 0.4 * (X[:, 0] - 20.0 * (X[:, 2] - 1.0))))
    found = BayesianPoissonRegression(random_state=0).fit(X, y)
    exact = PoissonRegressor(alpha=0.0, solver="newton-cholesky").fit(X, y)
    sd = np.sqrt(np.diag(found.covariance_))
    assert np.all(np.abs(np.r_[found.intercept_ - exact.intercept_, found.coef_ - exact.coef_]) < 0.2 * sd)
    assert found.score(X, y) == pytest.approx(exact.score(X, y), abs=0.01)
    times = rng.integers(0, 3, 60)
    again = np.repeat(np.arange(60), times)
    weighted = BayesianPoissonRegression(random_state=0).fit(X, y, sample_weight=times)
    repeated = BayesianPoissonRegression(random_state=0).fit(X[again], y[again])
    np.testing.assert_allclose(weighted.coef_, repeated.coef_, rtol=1e-6)
    assert weighted.lower_bound_ == pytest.approx(repeated.lower_bound_, abs=1e-6)
    with pytest.raises(ValueError, match="`y` of `BayesianPoissonRegression` must be non-negative; got -1"):
        BayesianPoissonRegression().fit(X, np.r_[-1, y[1:]])


def test_more_columns_than_rows_and_columns_that_add_up():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(10, 20))
    y = X @ rng.normal(size=20)
    assert BayesianLinearRegression(random_state=0).fit(X, y).score(X, y) > 0.98
    double = np.c_[X[:, :2], X[:, 0] + X[:, 1]]
    exact = double @ [1.0, 2.0, 3.0]
    assert BayesianLinearRegression(random_state=0).fit(double, exact).score(double, exact) > 0.999


def test_an_interrupted_fit_raises(line, monkeypatch):
    def stopped(*args, **kwargs):
        return replace(fit(*args, **kwargs), stop_reason=StopReason.INTERRUPTED)

    monkeypatch.setattr("yoasovi.sklearn.common.fit_model", stopped)
    with pytest.raises(KeyboardInterrupt):
        BayesianLinearRegression(random_state=0).fit(*line)


def test_mixture_finds_its_components_and_says_when_it_did_not_converge():
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(100.0, 1.0, 40), rng.normal(110.0, 2.0, 80)])[:, None]
    found = BayesianGaussianMixture(n_components=2, random_state=0).fit(X)
    order = np.argsort(found.means_[:, 0])
    np.testing.assert_allclose(found.means_[order, 0], [X[:40].mean(), X[40:].mean()], atol=0.5)
    np.testing.assert_allclose(found.weights_[order], [1 / 3, 2 / 3], atol=0.05)
    assert found.covariances_.shape == (2, 1, 1)
    np.testing.assert_allclose(found.precisions_, 1.0 / found.covariances_)
    np.testing.assert_allclose(found.precisions_cholesky_**2, found.precisions_)
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


@pytest.mark.parametrize("kind", ["tied", "spherical"])
def test_components_share_a_covariance_or_are_round_in_the_datas_own_units(kind):
    rng = np.random.default_rng(0)
    shape = {"tied": np.array([[2.0, 0.0], [12.0, 10.0]]), "spherical": 3.0 * np.eye(2)}[kind]  # columns of other sizes
    label = np.repeat([0, 1], [60, 60])
    X = rng.normal(size=(120, 2)) @ shape.T + np.array([[0.0, 0.0], [30.0, 60.0]])[label]
    found = BayesianGaussianMixture(n_components=2, covariance_type=kind, random_state=0).fit(X)
    off = X - np.stack([X[:60].mean(0), X[60:].mean(0)])[label]
    exact = off.T @ off / 120 if kind == "tied" else np.array([np.mean(off[label == k] ** 2) for k in (0, 1)])
    order = np.argsort(found.means_[:, 0])
    covariances = found.covariances_ if kind == "tied" else found.covariances_[order]
    np.testing.assert_allclose(covariances, exact, rtol=0.2)
    np.testing.assert_array_equal(found.predict(X), order[label])
    whole = found.precisions_ @ found.covariances_ if kind == "tied" else found.precisions_ * found.covariances_
    np.testing.assert_allclose(whole, np.eye(2) if kind == "tied" else 1.0, atol=1e-9)
    assert found.score(found.sample(4000)[0]) == pytest.approx(found.score(X), abs=0.15)
    again = found.set_params(warm_start=True).fit(X)
    assert again.lower_bound_ == pytest.approx(found.lower_bound_, abs=0.5)


def test_a_dirichlet_process_breaks_sticks():
    law, rng = sticks(4, 2.0), np.random.default_rng(0)
    w = rng.dirichlet(np.ones(4), 5)
    left = 1.0 - np.cumsum(w, 1)[:, :2]  # a Beta(1, a) share of what is left, three times, and its volume
    np.testing.assert_allclose(law.log_prob(w), np.log(2.0**3 * w[:, 3] / left.prod(1)), rtol=1e-3)  # in 32 bits
    X = np.concatenate([rng.normal(size=20), rng.normal(20.0, size=60)])[:, None]
    found = BayesianGaussianMixture(
        n_components=3, weight_concentration_prior_type="dirichlet_process", weight_concentration=0.01, random_state=0,
        covariance_type="spherical",
    ).fit(X)  # fmt: skip
    assert isinstance(found.result_.model.prior["weights"], type(law))
    np.testing.assert_allclose(np.sort(found.weights_), [0.0, 0.25, 0.75], atol=0.03)  # what is not needed is empty


def test_sparse_matrices_are_written_out(line):
    X, y = line
    for kind, target in ((BayesianLogisticRegression, y > np.median(y)), (BayesianPoissonRegression, np.abs(y).round())):
        dense, sparse = (kind(random_state=0).fit(x, target).predict(x) for x in (X, csr_matrix(X)))
        np.testing.assert_array_equal(sparse, dense)


def test_a_constant_is_predicted_exactly(line):
    X, _ = line
    np.testing.assert_allclose(BayesianLinearRegression(random_state=0).fit(X, np.full(len(X), 0.37)).predict(X), 0.37)


def test_reg_covar_is_added_to_variances_in_the_datas_own_units():
    X = 1e-3 * np.random.default_rng(0).normal(size=(60, 1))
    plain, wide = (BayesianGaussianMixture(random_state=0, reg_covar=x).fit(X) for x in (0.0, 1e-4))
    assert plain.covariances_[0, 0, 0] == pytest.approx(X.var(), rel=0.2)
    assert wide.draws_["covariances"].min() > 1e-4 and wide.score(X) < plain.score(X)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_components": 0}, "`n_components` of `BayesianGaussianMixture` must be a positive integer; got 0"),
        ({"covariance_type": "round"}, "`covariance_type` .* must be one of 'full', 'tied', .*; got 'round'"),
        ({"weight_concentration_prior_type": "none"}, "must be one of 'dirichlet_distribution', 'dirichlet_process'; got"),
        ({"reg_covar": -1.0}, "`reg_covar` of .* must be a non-negative finite number; got -1.0"),
        ({"n_components": 9}, "n_samples >= n_components"),
        ({"max_iter": 0}, "`max_iter` .* must be a positive integer; got 0"),
        ({"tol": -1.0}, "`tol` .* must be a positive finite number; got -1.0"),
    ],
)
def test_bad_settings_are_refused_by_name_when_fitting(settings, message):
    with pytest.raises(ValueError, match=message):
        BayesianGaussianMixture(**settings).fit(np.arange(16.0).reshape(8, 2))


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (BayesianLinearRegression(prior_scale=-1), "`prior_scale` of `BayesianLinearRegression` must be a positive finite"),
        (BayesianLinearRegression(prior_scale="a"), "`prior_scale` of `BayesianLinearRegression` must be .*; got 'a'"),
        (BayesianLinearRegression(noise_scale=0), "`noise_scale` of `BayesianLinearRegression` must be .*; got 0"),
        (BayesianLinearRegression(noise_floor=None), "`noise_floor` of `BayesianLinearRegression` must be .*; got None"),
        (BayesianLinearRegression(tol="x"), "`tol` of `BayesianLinearRegression` must be .*; got 'x'"),
        (BayesianPoissonRegression(prior_scale=-1), "`prior_scale` of `BayesianPoissonRegression` must be"),
        (BayesianLogisticRegression(prior_scale=-1), "`prior_scale` of `BayesianLogisticRegression` must be"),
        (BayesianGaussianMixture(mean_scale="a"), "`mean_scale` of `BayesianGaussianMixture` must be .*; got 'a'"),
        (BayesianGaussianMixture(reg_covar="a"), "`reg_covar` of `BayesianGaussianMixture` must be .*; got 'a'"),
    ],
)  # fmt: skip
def test_a_bad_number_is_refused_in_the_name_of_the_estimator(estimator, message):
    X, y = np.arange(16.0).reshape(8, 2), np.arange(8.0) % 2
    with pytest.raises(ValueError, match=message):
        estimator.fit(X, y)


def test_the_fit_behind_an_estimator_says_in_what_units_its_parameters_are(line):
    X, y = line
    fitted = BayesianLinearRegression(random_state=0, prior_scale=np.float32(2.5), max_iter=np.int64(200)).fit(X, y)
    said = (
        "Parameters are those of standardised columns and y; `coef_` and `intercept_` of the estimator are in the data's own"
    )
    assert said in fitted.result_.summary()
    mixture = BayesianGaussianMixture(n_components=np.int64(1), random_state=0).fit(X)
    assert "standardised columns; `means_` and `covariances_` of" in mixture.result_.summary()
