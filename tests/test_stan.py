"""Stan programs: the posterior of a NumPyro twin, draws with Stan's names and shapes, mistakes told in a line.

Those that compile a program, all the same one, run with `pytest -m exhaustive`.
"""

import json
import pickle
import shutil
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from stan_twins import SLOPES, all_twins, slopes
from typer.testing import CliRunner

import yoasovi as yo
from yoasovi.cli.commands import app
from yoasovi.stan import building
from yoasovi.stan.inputs import data_line, read_data, read_program, syntax_line
from yoasovi.stan.layout import blocks, free_sizes

needs_stanc = pytest.mark.skipif(find_spec("httpstan") is None, reason="httpstan is not installed")
no_compiler = find_spec("httpstan") is None or not any(map(shutil.which, ("g++", "clang++", "c++")))


def needs_compiler(test):
    """Half a minute of g++ before the first of them, whatever is asked of its optimiser: Stan's headers are long."""
    skipped = pytest.mark.skipif(no_compiler, reason="httpstan is not installed, or there is no C++ compiler")
    return pytest.mark.exhaustive(skipped(test))


DATA = next(t.data for t in all_twins() if t.program == SLOPES)


@pytest.fixture
def model(stan_folder):
    return yo.from_stan(SLOPES, DATA)


@pytest.fixture(scope="module")
def twin():
    return yo.from_numpyro(slopes, **DATA)


@pytest.fixture(scope="module")
def fits():
    return {}


@pytest.fixture
def fit(model, fits):
    """One fit for all tests."""
    if not fits:
        fits["stan"] = yo.fit(model, seed=0, mend=False)
    return fits["stan"]


# ---- the program -------------------------------------------------------------------------------------------


@needs_compiler
def test_log_p_and_the_elbo_are_those_of_the_numpyro_twin(model, twin, fit):
    other = yo.fit(twin, seed=0, mend=False)
    rng = np.random.default_rng(0)
    points = fit.params.mean + rng.normal(size=(20, model.density.dim))
    value, gradient = other.kernels.look(points, None)
    mine, slope = model.log_likelihood.gradients(points)
    np.testing.assert_allclose(mine, value, rtol=1e-9)
    np.testing.assert_allclose(slope, gradient, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(model.log_likelihood.values(points), mine, rtol=1e-12)
    noise = rng.normal(size=(1, 4000, model.density.dim))
    elbos = [f.kernels.values(f.lane, noise).mean() for f in (fit, other)]
    assert fit.converged and fit.num_gradients > 0 and fit.family.name == other.family.name
    assert abs(elbos[0] - elbos[1]) < 0.05


@needs_compiler
def test_draws_have_stans_names_and_shapes_and_hang_together(fit):
    draws = fit.sample(300)
    shapes = {"beta": (2,), "tau": (2,), "L": (2, 2), "z": (2, 12), "sigma": (), "line": (12, 2), "correlation": (),
              "log_lik": (96,), "y_rep": (96,)}  # fmt: skip
    assert {k: v.shape[1:] for k, v in draws.items()} == shapes
    np.testing.assert_allclose(draws["L"] @ np.swapaxes(draws["L"], 1, 2)[:, :, :1], draws["L"][:, :, :1])  # first column
    scaled = draws["tau"][:, :, None] * draws["L"]
    np.testing.assert_allclose(draws["line"], draws["beta"][:, None] + np.swapaxes(scaled @ draws["z"], 1, 2), rtol=1e-10)
    np.testing.assert_allclose(draws["correlation"], draws["L"][:, 1, 0])
    mean = draws["line"][:, DATA["person"] - 1, 0] + draws["line"][:, DATA["person"] - 1, 1] * DATA["day"]
    white = (draws["y_rep"] - mean) / draws["sigma"][:, None]  # new noise in every draw, and the same when asked again
    assert abs(white.mean()) < 0.03 and abs(white.std() - 1) < 0.03 and abs(np.corrcoef(white[0], white[1])[0, 1]) < 0.5
    np.testing.assert_array_equal(fit.sample(300)["y_rep"], draws["y_rep"])
    shown = {line.split()[0] for line in fit.summary().splitlines() if line.strip()}
    assert {"beta[0]", "line[9,1]"} <= shown and "line[11,1]" not in shown  # twenty rows of a long site


@needs_compiler
def test_answers_do_not_depend_on_threads_and_any_thread_may_ask(model, fit, monkeypatch):
    points = np.tile(fit.params.mean, (4000, 1)) + np.random.default_rng(1).normal(size=(4000, model.density.dim))
    density, found = model.log_likelihood, []
    ask = lambda: found.append((*density.gradients(points), density.program.outward(points)["y_rep"]))
    monkeypatch.setenv("STAN_NUM_THREADS", "1")
    ask()
    monkeypatch.setenv("STAN_NUM_THREADS", "3")
    other = Thread(target=ask)
    other.start()
    other.join()
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


@needs_compiler
def test_a_point_that_stan_refuses_is_nan_and_the_reason_is_told(stan_folder):
    model = yo.from_stan(SLOPES, {**DATA, "y": np.append(DATA["y"][1:], np.inf), "day": np.append(DATA["day"][1:], np.nan)})
    assert np.isnan(model.log_likelihood.values(np.zeros((2, model.density.dim)))).all()
    with pytest.raises(FloatingPointError, match=r"Stan says: .*parameter\[96\] is nan.*\(in 'slopes.stan', line 25"):
        yo.fit(model, nonfinite="raise")


@needs_compiler
def test_a_fit_is_saved_loaded_and_pickled_and_a_run_resumed(model, fit, tmp_path, stan_folder):
    fit.save(tmp_path / "saved")
    again = yo.load(tmp_path / "saved", model=yo.from_stan(SLOPES, DATA))
    np.testing.assert_array_equal(again.sample(10)["line"], fit.sample(10)["line"])
    assert yo.load(tmp_path / "saved").mean()["line"].shape == (12, 2)
    copied = pickle.loads(pickle.dumps(fit))
    np.testing.assert_array_equal(copied.sample(10)["line"], fit.sample(10)["line"])
    yo.fit(model, seed=0, mend=False, max_steps=20, checkpoint=tmp_path / "run")
    resumed = yo.fit(yo.from_stan(SLOPES, DATA), seed=0, mend=False, checkpoint=tmp_path / "run", resume=True)
    assert resumed.converged and abs(resumed.elbo.value - fit.elbo.value) < 0.5
    other = yo.from_stan(SLOPES, {**DATA, "y": DATA["y"] + 1.0})
    with pytest.raises(ValueError, match="likelihood differs"):
        yo.fit(other, seed=0, checkpoint=tmp_path / "run", resume=True)
    with pytest.raises(ValueError, match="`refine` needs a density written in JAX; that of slopes"):
        fit.refine()


@needs_compiler
def test_the_command_line_fits_a_program_to_a_json_file(stan_folder, tmp_path):
    path = tmp_path / "data.json"
    path.write_text(read_data(DATA))
    result = CliRunner().invoke(app, ["fit", str(SLOPES), "--data", str(path), "--json", "--no-mend"])
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["converged"] and {"beta[0]", "line[11,1]", "correlation"} <= set(found["posterior"])
    path.write_text(json.dumps({**json.loads(path.read_text()), "day": [0.5]}))
    result = CliRunner().invoke(app, ["fit", str(SLOPES), "--data", str(path)])
    assert result.exit_code == 2 and result.stderr.count("\n") == 1
    assert "`data['day']` of `from_stan` must be of shape (96) (in 'slopes.stan', line 6" in result.stderr
    assert "got shape (1)" in result.stderr
    for option in (["--target", "y"], []):
        wrong = CliRunner().invoke(app, ["fit", str(SLOPES), "--data", "data.csv", *option])
        assert wrong.exit_code == 2 and ("--target names a column" if option else "must be a JSON file") in wrong.stderr


# ---- mistakes ----------------------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({k: v for k, v in DATA.items() if k != "y"}, r"must have 'y', .*'slopes.stan', line 7, .*; got N, J, person, day"),
        ({**DATA, "N": 96.5}, "`data\\['N'\\]` of `from_stan` must be whole numbers"),
        ({**DATA, "J": -1}, "refused by Stan: J is -1, but must be greater than or equal to 1"),
        (None, "must have 'N', .*; got nothing"),
    ],
)  # fmt: skip
def test_data_that_the_program_cannot_use_are_told_in_one_line(stan_folder, data, said):
    with pytest.raises(ValueError, match=said) as caught:
        yo.from_stan(SLOPES, data)
    assert "\n" not in str(caught.value)


@needs_stanc
@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("parameters { real m; }\nmodel {\n  m ~ normal(0 1);\n}", r"Syntax error .* line 3, .*: `m ~ normal\(0 1\);`"),
        ("parameters { real m; }\nmodel { m ~ normal(0, s); }", "Semantic error .* line 2, .*Identifier 's' not in scope"),
    ],
)  # fmt: skip
def test_a_program_with_a_mistake_is_refused_with_stans_own_line(program, said):
    with pytest.raises(ValueError, match=said) as caught:
        yo.from_stan(program)
    assert "\n" not in str(caught.value)


@needs_stanc
def test_a_missing_compiler_and_missing_libraries_are_told_in_a_line(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(FileNotFoundError, match=r"needs a C\+\+ compiler, and CXX=no-such-compiler is not on the PATH"):
        yo.from_stan("parameters { real mu; } model { mu ~ normal(0, 1); }")
    monkeypatch.setattr(building, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r'pip install "yoasovi\[stan\]"'):
        yo.from_stan("parameters { real mu; } model { mu ~ normal(0, 1); }")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("no_such.stan", {}), "there is no file no_such.stan"),
        (("regression", {}), "`program` of `from_stan` must be a path that ends in .stan, or .*; got 'regression'"),
        ((SLOPES, "no_such.json"), "`data` of `from_stan`: there is no file no_such.json"),
        ((SLOPES, 3), "`data` of `from_stan` must be a dict, or the path of a JSON file; got 3"),
        ((SLOPES, {"y": "abc"}), "`data\\['y'\\]` of `from_stan` must be a number or an array of numbers"),
        ((SLOPES, {"y": [[1, 2], [3]]}), "`data\\['y'\\]` of `from_stan` must be a number or an array of numbers"),
    ],
)
def test_arguments_that_are_no_program_or_no_data_are_refused(arguments, said):
    with pytest.raises(ValueError, match=said):
        read_program(arguments[0])
        read_data(arguments[1])


# ---- what Stan says, and how it counts ---------------------------------------------------------------------


def test_arrays_are_read_off_names_column_by_column():
    names = ["mu", "L.1.1", "L.2.1", "L.1.2", "L.2.2", "L.1.3", "L.2.3", "pair:1.1", "pair:1.2", "z.real", "z.imag"]
    found = blocks(names)
    assert {k: v.shape for k, v in found.items()} == {"mu": (), "L": (2, 3), "pair:1": (2,), "z.real": (), "z.imag": ()}
    rows = np.arange(22.0).reshape(2, 11)
    np.testing.assert_array_equal(found["L"].of(rows)[0], [[1, 3, 5], [2, 4, 6]])
    np.testing.assert_array_equal(found["pair:1"].of(rows)[1], [18, 19])
    np.testing.assert_array_equal(found["z.imag"].of(rows), [10, 21])
    free = ["mu", "w.1", "w.2", "B.1.1", "B.2.1"]
    assert free_sizes(free, ["mu", "w.1", "w.2", "w.3", "B.1.1", "B.2.1"]) == {"mu": (), "w": (2,), "B": (2,)}


def test_data_become_json_that_stan_reads():
    given = {"N": np.int64(2), "flag": True, "x": np.array([1.0, 2.5]), "k": np.array([1.0, 2.0]), "M": np.zeros((2, 1))}
    assert json.loads(read_data(given)) == {"N": 2, "flag": 1, "x": [1.0, 2.5], "k": [1, 2], "M": [[0], [0]]}
    assert read_data({"k": [1.0]}) == '{"k": [1]}' and "NaN" in read_data({"x": [np.nan, 1.5]})


def test_other_complaints_of_stan_are_passed_on_without_its_own_names(tmp_path):
    source = read_program("model {}")
    said = "Exception: stan_program_namespace::stan_program: N is -1, but must be positive (in 'program.stan', line 1)"
    assert data_line(said, source, "{}") == (
        "`data` of `from_stan` is refused by Stan: N is -1, but must be positive (in 'program', line 1)."
    )
    assert syntax_line("stanc broke", source) == "`program` of `from_stan` is no Stan program. stanc broke:"


@needs_stanc
def test_the_same_program_under_another_name_and_elsewhere_is_not_compiled_again(tmp_path):
    (moved := tmp_path / "other.stan").write_text(SLOPES.read_text())
    stanc = Path(find_spec("httpstan").origin).with_name("stanc")
    assert building._translated(read_program(moved), stanc) == building._translated(read_program(SLOPES), stanc)
