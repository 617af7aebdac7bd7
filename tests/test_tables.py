"""Tables in the units they come in: frames, dicts and files, names that stay, and priors that follow the data."""

import json
import re
from dataclasses import replace

import numpy as np
import numpyro.distributions as dist
import pytest
from typer.testing import CliRunner

import yoasovi as yo
from yoasovi.cli import app
from yoasovi.models.columns import Words
from yoasovi.report import posterior
from yoasovi.verdict.prior import expected


def prior_conflict(fit):
    found = expected(fit)
    return found if found is not None and found.conflict else None


RNG = np.random.default_rng(0)
N = 120
AGE, BMI = RNG.normal(50, 12, N).round(1), RNG.normal(27, 4, N).round(1)
SEX, SMOKES = RNG.choice(["male", "female"], N), RNG.random(N) < 0.3
CHOL = 120 + 0.8 * AGE + 1.5 * BMI + 5 * (SEX == "male") + RNG.normal(0, 20, N)
TABLE = {"age": AGE, "bmi": BMI, "sex": SEX, "smokes": SMOKES, "chol": CHOL}
NAMES = ["age", "bmi", "sex[male]", "smokes"]
DESIGN = np.column_stack([AGE, BMI, SEX == "male", SMOKES]).astype(float)


def least_squares(X, y):
    """Estimates and standard errors of intercept and coefficients."""
    Z = np.column_stack([np.ones(len(X)), X])
    b, rest, *_ = np.linalg.lstsq(Z, y, rcond=None)
    return b, np.sqrt(np.diag(np.linalg.inv(Z.T @ Z)) * rest[0] / (len(y) - Z.shape[1]))


@pytest.fixture(scope="module")
def fit():
    return yo.fit(yo.models.LinearRegression(TABLE, "chol"), seed=0)


# ---- priors ----------------------------------------------------------------------------------------------


def test_a_regression_in_raw_units_agrees_with_least_squares(fit):
    """The priors are 2.5 sds wide, so that the posterior is the likelihood but for a few hundredths of a standard error."""
    want, error = least_squares(DESIGN, CHOL)
    mean, sd = fit.mean(), fit.sd()
    got = np.concatenate([[mean["intercept"]], mean["coefficients"]])
    assert (np.abs(got - want) < 0.2 * error).all()
    np.testing.assert_allclose(np.concatenate([[sd["intercept"]], sd["coefficients"]]), error, rtol=0.1)


@pytest.mark.parametrize(("unit", "of_y"), [(1e-5, 1e3), (1e4, 1e-3)])
def test_units_change_nothing_but_the_units(unit, of_y):
    X = DESIGN[:, :2]
    want, error = least_squares(X * unit, CHOL * of_y)
    found = yo.fit(yo.models.LinearRegression(X * unit, CHOL * of_y), seed=0).mean()
    assert (np.abs(found["coefficients"] - want[1:]) < 0.2 * error[1:]).all()
    assert abs(found["intercept"] - want[0]) < 0.2 * error[0]


def test_priors_follow_the_data_and_are_told_everywhere(fit, tmp_path):
    scale = 2.5 * CHOL.std()
    columns = zip(NAMES, DESIGN.T, strict=True)
    want = {f"coefficients[{k}]": f"Normal(loc=0, scale={scale / x.std():.4g})" for k, x in columns}
    want["intercept_at_means"] = f"Normal(loc={CHOL.mean():.4g}, scale={scale:.4g})"
    want["noise"] = f"Exponential(rate={1 / CHOL.std():.4g})"
    assert fit.model.priors == want
    text, page = fit.summary(), fit.report(tmp_path / "a.html").read_text()
    page = re.sub('<wbr>|<span class="whole">|</span>', "", page)  # where lines of a law may break
    for name, law in want.items():
        row = f'>{name}</th><td class="" data-head="size">1</td><td class="" data-head="prior">{law}</td>'
        assert f"{name} ~ {law}" in text and row in page
    narrow = yo.models.LinearRegression(TABLE, "chol", prior_scale=0.1)
    assert narrow.priors["intercept_at_means"] == f"Normal(loc={CHOL.mean():.4g}, scale={0.1 * CHOL.std():.4g})"


def test_a_logistic_and_a_poisson_regression_have_priors_in_units_of_their_columns():
    X, hits = np.column_stack([AGE * 1000, SMOKES]), (CHOL > 200).astype(int)
    spread = X.std(0)
    logistic = yo.models.LogisticRegression(X, hits).prior
    np.testing.assert_allclose(logistic["coefficients"].base_dist.scale, 2.5 / spread)
    assert (logistic["intercept_at_means"].loc, logistic["intercept_at_means"].scale) == (0.0, 2.5)
    poisson = yo.models.PoissonRegression(X, hits, exposure=1e6).prior
    np.testing.assert_allclose(poisson["coefficients"].base_dist.scale, 2.5 / spread)
    assert poisson["intercept_at_means"].loc == pytest.approx(np.log((hits.sum() + 0.5) / (1e6 * N)))
    bare = yo.models.LinearRegression(X, CHOL, intercept=False).prior["coefficients"].base_dist.scale
    np.testing.assert_allclose(bare, 2.5 * np.sqrt(np.mean(CHOL**2) / np.mean(X**2, 0)))


def test_constant_columns_work_with_a_warning_and_a_constant_target_is_refused():
    X = np.column_stack([AGE, np.full(N, 7.0), np.zeros(N)])
    with pytest.warns(UserWarning, match="column [12] is [07] in every row, as the intercept is") as warned:
        model = yo.models.LinearRegression(X, CHOL)
    assert len(warned) == 2
    np.testing.assert_allclose(model.prior["coefficients"].base_dist.scale[1:], 2.5 * CHOL.std() / np.array([7.0, 1.0]))
    found = yo.fit(model, seed=0)
    want, error = least_squares(X[:, :1], CHOL)
    assert abs(found.mean()["coefficients"][0] - want[1]) < 0.2 * error[1]
    with pytest.raises(ValueError, match=r"`y` of `LinearRegression` must be more than one value.*; got 3 in every row"):
        yo.models.LinearRegression(DESIGN, np.full(N, 3.0))


def test_new_predictors_are_in_their_own_units(fit):
    want, _ = least_squares(DESIGN, CHOL)
    new = DESIGN[:3] + np.array([10.0, 0.0, 0.0, 0.0])
    made = fit.predict({"X": new}, n=4000).mean(0)
    assert (np.abs(made - want[0] - new @ want[1:]) < 3.0).all()  # noise 20, 4,000 draws: 9 standard errors
    backwards = dict(reversed(list(zip(NAMES, new.T, strict=True))))
    for data in (new, backwards, {"X": backwards}, {**backwards, "chol": [None] * 3}):  # what else there is does not matter
        np.testing.assert_array_equal(fit.predict(data, n=5), fit.predict({"X": new}, n=5))
    for data in (TABLE, {"X": TABLE}):
        with pytest.raises(ValueError, match=r"`data` .* must be columns of numbers age, .*; got no such 'sex\[male\]'"):
            fit.predict(data, n=5)
    with pytest.raises(ValueError, match=r"`data` of `predict` must be columns of one length; got lengths \[2, 3\]"):
        fit.predict({**backwards, "age": [1.0, 2.0]}, n=5)


def test_a_fit_predicts_at_its_own_rows_as_at_the_same_ones_given_anew(fit):
    np.testing.assert_allclose(fit.predict(n=5), fit.predict(DESIGN, n=5), rtol=1e-4)


def test_exposures_come_by_name_beside_the_columns():
    model = yo.models.PoissonRegression({"age": AGE, "bmi": BMI}, (CHOL > 200).astype(int), exposure=2.0)
    read = lambda data: model.predictive.read(data, model.data)
    columns = {"bmi": BMI[:2], "age": AGE[:2]}
    for data in ({**columns, "exposure": [3.0, 4.0]}, {"X": columns, "exposure": [3.0, 4.0]}):
        np.testing.assert_allclose(np.exp(read(data)["log_exposure"]), [3.0, 4.0])
        np.testing.assert_array_equal(read(data)["X"], np.column_stack([AGE[:2], BMI[:2]]))


# ---- a prior that the data speak against -----------------------------------------------------------------


def test_a_strong_prior_on_an_intercept_far_away_is_a_conflict():
    old = dict(prior_scale=10.0, noise_prior="half_cauchy", noise_scale=10.0, autoscale=False)
    found = prior_conflict(yo.fit(yo.models.LinearRegression(DESIGN[:, :2], CHOL, **old), seed=0))
    assert found.parameter == "intercept" and found.away > 4
    assert "speak against the prior of intercept, 0 ± 10" in found.sentence


def test_a_conflict_with_a_prior_costs_a_grade_and_is_what_the_advice_is_about():
    verdict = normal(np.array([117.0]), dist.Normal(0.0, 10.0), 7.0).diagnose()
    finding = verdict.evidence["prior"]
    assert (verdict.grade, finding.grade, finding.state) == ("usable", "usable", "against") and finding.value > finding.limit
    assert "m is where its prior hardly goes" in verdict.advice


def test_where_no_prior_is_in_conflict_the_verdict_says_so_if_there_is_one_to_speak_of(fit):
    finding = fit.diagnose().evidence["prior"]
    assert finding.grade == "good" and finding.value < finding.limit
    overruled = normal(np.full(20, 5.0), dist.Normal(0.0, 1.0), 0.01).diagnose().evidence["prior"]
    assert overruled.grade == "good" and overruled.value > overruled.limit and "overrule" in overruled.sentence
    assert "prior" not in normal(np.array([117.0]), dist.Cauchy(0.0, 10.0), 7.0).diagnose().evidence


def test_priors_of_the_datas_own_scale_are_no_conflict(fit):
    assert prior_conflict(fit) is None


def likelihood(params, data):
    return dist.Normal(params["m"], data["noise"]).log_prob(data["y"])


def normal(data, prior, noise=1.0):
    model = yo.Model(prior={"m": prior}, log_likelihood=likelihood, data={"y": data, "noise": np.full(len(data), noise)})
    return yo.fit(model, seed=0)


def test_a_conflict_is_that_of_the_prior_predictive_where_all_is_normal():
    """One observation: z = (y - c) / sqrt(s^2 + noise^2), however little of it the posterior follows."""
    found = prior_conflict(normal(np.array([117.0]), dist.Normal(0.0, 10.0), 7.0))
    assert found.away == pytest.approx(117 / np.hypot(10, 7), rel=0.1)
    assert prior_conflict(normal(np.array([20.0]), dist.Normal(0.0, 10.0), 7.0)) is None
    strong = prior_conflict(
        normal(np.array([117.0]), dist.Normal(0.0, 1.0), 2.0)
    )  # four fifths of the prior's variance is left
    assert strong.away == pytest.approx(117 / np.hypot(1, 2), rel=0.2)


def test_data_that_overrule_a_prior_are_no_conflict_worth_a_word():
    assert prior_conflict(normal(np.full(20, 5.0), dist.Normal(0.0, 1.0), 0.01)) is None
    assert prior_conflict(normal(np.array([117.0]), dist.Cauchy(0.0, 10.0), 7.0)) is None  # it gives way by itself


def test_a_q_as_wide_as_its_prior_and_one_sd_away_is_no_conflict():
    fit = normal(np.array([0.0]), dist.Normal(0.0, 1.0))
    at = lambda mean: replace(fit, params=fit.family.init(np.array([mean]), np.array([1.2]), RNG))
    assert prior_conflict(at(1.5)) is None and prior_conflict(at(15.0)).parameter == "m"


def test_data_from_the_prior_itself_raise_no_alarm():
    rng = np.random.default_rng(3)
    for _ in range(20):
        assert prior_conflict(normal(rng.normal(rng.normal(5.0, 2.0), 1.0, size=3), dist.Normal(5.0, 2.0))) is None


# ---- frames, dicts and names -----------------------------------------------------------------------------


def frames():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    lists = {k: v.tolist() for k, v in TABLE.items()}
    return {"dict": TABLE, "lists": lists, "pandas": pandas.DataFrame(TABLE), "polars": polars.DataFrame(lists)}


@pytest.mark.parametrize("kind", ["dict", "lists", "pandas", "polars"])
def test_every_kind_of_table_gives_the_same_model(kind):
    frame = frames()[kind]
    model = yo.models.LinearRegression(frame, y="chol")
    assert model.names("coefficients", (4,)) == [f"coefficients[{x}]" for x in NAMES]
    np.testing.assert_array_equal(model.labels.constant["X"], DESIGN)
    np.testing.assert_array_equal(model.data["y"], CHOL)
    assert model.labels.notes == (
        "Column 'sex' is text; its coefficients compare 'male' with 'female'.",
        "Column 'smokes' is true or false; true counts 1, false 0.",
    )
    apart = {k: frame[k] for k in ("age", "bmi")}
    assert yo.models.LogisticRegression(apart, frame["smokes"]).names("coefficients", (2,))[1] == "coefficients[bmi]"
    died = yo.models.LogisticRegression(frame, y="sex")
    np.testing.assert_array_equal(died.data["y"], SEX == "male")
    assert died.labels.notes[0] == "Column 'sex': 'male' counts 1, 'female' 0."
    groups = yo.models.HierarchicalNormal(frame["chol"], frame["sex"])
    assert groups.names("offset", (2,)) == ["offset[female]", "offset[male]"]
    assert yo.models.GaussianMixture(apart, 2).data.shape == (N, 2)
    assert yo.models.NeuralNetwork(frame, "chol", hidden=(2,)).data["X"].shape == (N, 4)


def test_lists_without_names_have_numbers():
    model = yo.models.LinearRegression(DESIGN.tolist(), CHOL.tolist())
    assert model.names("coefficients", (4,))[0] == "coefficients[0]"


def test_the_order_of_a_pandas_category_is_kept():
    pandas = pytest.importorskip("pandas")
    dose = pandas.Categorical(np.resize(["low", "high", "none"], N), categories=["none", "low", "high", "huge"])
    model = yo.models.LinearRegression(pandas.DataFrame({"dose": dose, "y": CHOL}), y="y")
    assert model.names("coefficients", (2,)) == ["coefficients[dose[low]]", "coefficients[dose[high]]"]


def bad_frames():
    import pandas

    frame = pandas.DataFrame({"a": np.arange(5) ** 2, "y": np.arange(5.0)})
    twice = pandas.DataFrame(np.ones((3, 3)), columns=["a", "a", "y"])
    return [
        (
            frame.assign(a=[1, None, 2, 3, 4]),
            "column 'a' of the data of `LinearRegression` has 1 missing .* the first in row 2",
        ),
        (frame.assign(a=["x", None, "y", "x", "y"]), "column 'a' .* has 1 missing or infinite value"),
        (frame.assign(a=pandas.array([1, pandas.NA, 2, 3, 4], "Int64")), "column 'a' .* has 1 missing or infinite value"),
        (frame.assign(a=pandas.to_datetime(["2020-01-01"] * 5)), "column 'a' .* holds dates or times; give a number"),
        (frame.assign(a=["x", 1, 2, "y", "y"]), r"column 'a' .* mixes text with other values \(int\)"),
        (frame.assign(a=[[1], [2], [3], [4], [5]]), "column 'a' .* must be numbers or text; it holds list"),
        (frame.assign(a=[1j] * 5), "column 'a' .* must be numbers or text; it is complex128"),
        (
            frame.assign(patient_id=[5, 3, 9, 1, 7]),
            "column 'patient_id' looks like a name of the rows.*give `X` and `y` apart",
        ),
        (frame.assign(a=["1,5", "2,5", "1,5", "2,5", "9,1"]), "column 'a' holds numbers that cannot be read"),
        (twice, "have the column 'a' twice; give each column a name of its own"),
        (frame[["y"]], "`X` of `LinearRegression` must be a table with a column besides `y`"),
        (frame.rename(columns={"y": "z"}), "`y` of `LinearRegression` must be one of the columns a, z, or"),
    ]


def test_bad_frames_are_refused_by_the_name_of_the_column():
    pytest.importorskip("pandas")
    for frame, says in bad_frames():
        with pytest.raises(ValueError, match=says):
            yo.models.LinearRegression(frame, y="y")
    with pytest.raises(ValueError, match=r"`y` of `LinearRegression` must be \(N,\) values where `X` has no named columns"):
        yo.models.LinearRegression(DESIGN, "chol")
    with pytest.raises(ValueError, match="`X` of `LinearRegression` must be columns of one length"):
        yo.models.LinearRegression({"a": [1, 2], "b": [1, 2, 3], "y": [1, 2]}, "y")


def test_a_column_that_was_given_apart_is_kept_though_it_counts_the_rows():
    trend = {"week": np.arange(1, N + 1)}
    with pytest.raises(ValueError, match="column 'week' counts the rows, 1 to 120; leave 'week' out of the data"):
        yo.models.LinearRegression({**trend, "y": CHOL}, "y")
    assert yo.models.LinearRegression(trend, CHOL).names("coefficients", (1,)) == ["coefficients[week]"]


def test_names_stay_in_the_summary_the_plots_and_the_labelled_output_and_when_loaded(fit, tmp_path):
    pytest.importorskip("arviz_base")
    wanted = [f"coefficients[{x}]" for x in NAMES]
    shown = posterior.draws(fit).names
    charts = [chart.title for chart in posterior.marginal_charts([posterior.draws(fit)], ["q"])]
    fit.save(tmp_path / "fit")
    back = yo.load(tmp_path / "fit")
    for name in wanted:
        assert name in shown and name in charts and name in fit.summary() and name in back.summary()
    assert back.model.priors == fit.model.priors and "Column 'sex' is text" in back.summary()
    tree = fit.to_datatree(50)
    assert tree.posterior["coefficients"].coords["predictor"].values.tolist() == NAMES
    assert tree.constant_data["X"].sel(predictor="age").values.tolist() == AGE.tolist()


def test_names_do_not_compile_again():
    from yoasovi.kernels.programs import num_programs

    build = lambda names: yo.models.LogisticRegression(dict(zip(names, DESIGN.T[:2], strict=True)), SMOKES)
    yo.fit(build("ab"), "advi", max_steps=20)
    before = num_programs()
    yo.fit(build("cd"), "advi", max_steps=20)
    assert num_programs() == before


# ---- the command line ------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    lines = ["row,age,bmi,sex,smokes,country,chol"]
    for i in range(N):
        lines.append(f"{i + 1},{AGE[i]},{BMI[i]},{SEX[i]},{str(SMOKES[i]).upper()},NL,{CHOL[i]}")
    path = tmp_path / "patients.csv"
    path.write_text("\n".join(lines))
    return str(path)


def test_the_command_line_says_what_it_made_of_a_table_and_keeps_the_names(file):
    args = ["fit", "linear", "--data", file, "--target", "chol"]
    refused = CliRunner().invoke(app, args)
    assert (
        refused.exit_code == 2 and "column 'row' counts the rows, 1 to 120; leave it out with --drop row" in refused.stderr
    )
    result = CliRunner().invoke(app, [*args, "--drop", "row", "--json"])
    found = json.loads(result.stdout)
    want, error = least_squares(DESIGN, CHOL)
    for name, value, se in zip(["intercept", *(f"coefficients[{x}]" for x in NAMES)], want, error, strict=True):
        assert abs(found["posterior"][name]["mean"] - value) < 0.3 * se
    assert found["priors"]["coefficients[sex[male]]"].startswith("Normal(loc=0, scale=")
    assert found["notes"] == [
        "Column 'sex' is text; its coefficients compare 'male' with 'female'.",
        "Column 'smokes' is true or false; true counts 1, false 0.",
        "Column 'country' is 'NL' in every row and was left out.",
    ]
    plain = CliRunner().invoke(app, [*args, "--columns", "age,sex", "--summary", "--no-verdict", "--prior-scale", "1"])
    assert "Column 'sex' is text; its coefficients compare 'male' with 'female'." in plain.stdout
    assert f"coefficients[age] ~ Normal(loc=0, scale={CHOL.std() / AGE.std():.4g})" in " ".join(plain.stdout.split())
    assert "\ncoefficients[sex[male]]" in plain.stdout and "coefficients[0]" not in plain.stdout


def test_a_column_that_is_not_used_may_hold_anything(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a,b,y\n1,NA,1\n2,two,3\n4,,4\n")
    result = CliRunner().invoke(app, ["fit", "linear", "--data", str(path), "--columns", "a", "--json", "--max-steps", "50"])
    assert result.exit_code == 0 and "coefficients[a]" in json.loads(result.stdout)["posterior"]


def test_too_many_words_are_not_kept(tmp_path):
    from yoasovi.cli.reading import MOST_WORDS, read_columns

    path = tmp_path / "a.csv"
    path.write_text("who,y\n" + "".join(f"n{i},{i}\n" for i in range(MOST_WORDS + 500)))
    found = read_columns(path)["who"]
    assert isinstance(found, Words) and found.more and len(found.levels) == MOST_WORDS
