"""The command line, as a user meets it, and the README's commands."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import yoasovi as yo
from yoasovi import Model
from yoasovi.answer.result import Fit
from yoasovi.cli import app, commands, models
from yoasovi.cli.models import BUILT_INS, find_model
from yoasovi.cli.runs import Row
from yoasovi.cli.settings import parse_setting
from yoasovi.cli.tables import conclusions, number
from yoasovi.draws import Halton
from yoasovi.methods import METHODS
from yoasovi.tempering import Constant, Linear, Logarithmic, Warmup
from yoasovi.verdict.diagnostics import Estimate

ROOT = Path(__file__).parents[1]
QUICK = ["--method", "advi", "--max-steps", "300"]

MODELS = """
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import yoasovi as yo
from numpyro.handlers import reparam, seed, trace
from numpyro.infer.reparam import LocScaleReparam
from yoasovi.numpyro import from_numpyro

print("a model that talks")
y = jnp.array([1.0, 2.0, 4.0])
ready = yo.Model(prior={"m": dist.Normal(0, 1)}, log_likelihood=lambda p, y: dist.Normal(p["m"], 1).log_prob(y), data=y)

def plain():
    m = numpyro.sample("m", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(m, 1), obs=y)

def plated():
    with numpyro.plate("groups", 3):
        m = numpyro.sample("m", dist.Normal(0, 1))
        numpyro.sample("y", dist.Normal(m, 1), obs=y)

handled = reparam(plated, config={"m": LocScaleReparam(0.0)})

def returns_model():
    return ready

def returns_function():
    return plain

def returns_converted():
    return from_numpyro(plain)

def simulates_first():
    data = trace(seed(plain, 0)).get_trace()["y"]["value"]
    return from_numpyro(plain) if data.shape == (3,) else None

def needs(data):
    return ready

def returns_none():
    return None

def fails():
    return 1 / 0

def talks():
    numpyro.sample("y", dist.Normal(numpyro.sample("m", dist.Normal(0, 1)), 1), obs=y)
    print("traced")

density = yo.Model.from_log_density(lambda p: -0.5 * p["x"] ** 2, {"x": dist.constraints.real})
three = 3
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MODELS)
    return path


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.delenv("YOASOVI_TRACEBACK", raising=False)


def run(*args, code=0):
    result = CliRunner().invoke(app, [str(a) for a in args])
    assert result.exit_code == code, result.output
    return result


def shell(*args):
    return subprocess.run([sys.executable, "-m", "yoasovi.cli", *args], capture_output=True, text=True, timeout=300)


def begun(*args):
    """Begin a command that Ctrl-C reaches, even where these tests are a shell's background job, which it does not reach."""
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from yoasovi.cli import main; main()"
    return subprocess.Popen([sys.executable, "-c", code, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def refused(*args):
    """Run what must fail; give its one line."""
    result = run(*args, code=2)
    lines = result.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("yoasovi: "), result.stderr
    assert result.stdout == ""
    return lines[0]


# ---- lists -----------------------------------------------------------------------------------------------


def test_methods_has_one_line_for_each():
    lines = run("methods").stdout.splitlines()
    assert [line.split()[0] for line in lines if line.strip() and "─" not in line] == ["method", *METHODS]
    assert max(map(len, lines)) <= 120


def test_methods_with_a_name_lists_its_settings():
    text = run("methods", "qmcvi").stdout
    assert "learning_rate" in text and "Sobol" in text


def test_help_is_printed_without_jax():
    code = "import sys, yoasovi.cli; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=300).returncode == 0


def test_help_says_that_a_path_runs_code_and_names_the_built_ins():
    text = " ".join(run("fit", "--help").stdout.split())
    assert "path.py:name runs the code in that file" in text
    assert all(name in text for name in BUILT_INS)
    assert "compare" in run("--help").stdout
    assert "Usage" in run().stdout
    assert run("--version").stdout.startswith("yoasovi ")


def test_help_says_which_built_ins_are_simulated_and_compare_offers_no_stan_program():
    fit, compare = (" ".join(run(name, "--help").stdout.split()) for name in ("fit", "compare"))
    said = "linear, logistic, poisson, hierarchical and network on simulated data"
    assert said in fit and said in compare
    assert "path.stan" in fit and "path.stan" not in compare and "path.py:name runs the code in that file." in compare


# ---- fit -------------------------------------------------------------------------------------------------


def test_fit_in_a_pipe_prints_one_json_object_and_is_silent_on_stderr():
    result = shell("fit", "logistic", *QUICK, "--seed", "3", "--json")
    assert result.returncode == 0 and result.stderr == ""
    answer = json.loads(result.stdout)
    assert set(answer["elbo"]) == {"value", "se"} and answer["elbo"]["se"] > 0
    assert answer["converged"] is False and answer["stop_reason"] == "max_steps"
    assert answer["counts"]["steps"] == answer["counts"]["gradients"] == 300
    seconds = answer["seconds"]
    assert seconds["compile"] > 0 and seconds["run"] > 0
    fitting = sum(seconds["stages"][name] for name in ("model", "start", "windows", "elbo"))
    assert fitting == pytest.approx(seconds["compile"] + seconds["run"], rel=0.05)
    assert set(seconds["stages"]) == {"model", "start", "windows", "elbo", "sample", "dic"}
    assert (answer["model"], answer["method"], answer["seed"]) == ("logistic", "advi", 3)


def test_fit_prints_a_table_and_on_request_the_parameters():
    text = run("fit", "mixture-2-2", "--method", "yoasovi-metropolis", "--max-steps", 60, "--summary").stdout
    for word in ("factorised", "steps", "values", "gradients", "compile", "reported", "ELBO on fresh", "±", "DIC"):
        assert word in text
    assert "max_steps: Ran out of steps" in text and "mu[1,1]" in text


def test_the_table_is_printed_before_the_verdict_is_looked_for(monkeypatch, tmp_path):
    look, order = Fit.diagnose, []
    monkeypatch.setattr(commands, "print_rows", lambda *args: order.append("table"))
    monkeypatch.setattr(Fit, "diagnose", lambda self: order.append("verdict") or look(self))
    text = run("fit", "linear", "--report", tmp_path / "r.html").stdout
    assert order[:2] == ["table", "verdict"] and text.index("converged") < text.index("GOOD") < text.index("Report: ")
    order.clear()
    run("compare", "linear", "--methods", "yoasovi", "--report", tmp_path / "r.html")
    assert order[:2] == ["table", "verdict"]


def test_a_fit_may_be_saved_with_its_verdict_and_without_printing_it(tmp_path):
    text = run("fit", "linear", *QUICK, "--save", tmp_path / "d", "--no-verdict").stdout
    assert "max_steps" in text and not any(grade in text for grade in ("GOOD", "USABLE", "POOR", "FAILED"))
    # The table comes before draws are corrected.
    assert "Values are those of the fit; --json and a report count those too that weigh its draws" in text
    assert "verdict" in run("report", tmp_path / "d", "--out", tmp_path / "r.html").stdout or (tmp_path / "r.html").exists()


SLOW = """
import jax.numpy as jnp
import yoasovi as yo
from numpyro.distributions import constraints

def density(p):
    x = p["x"]
    for i in range(600):
        x = jnp.sin(x * (1 + 1e-3 * i)) + x[::-1] * 1e-3
    print("traced", flush=True)
    return -jnp.sum(x**2)

model = yo.Model.from_log_density(density, {"x": constraints.real}, {"x": (3,)})
"""


def test_ctrl_c_while_compiling_ends_within_two_seconds_with_a_line_and_exit_code_130(tmp_path, monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)  # seconds of compiling are wanted here
    path = tmp_path / "slow.py"
    path.write_text(SLOW)
    fit = begun("fit", f"{path}:model")
    for _ in range(2):  # its shapes are asked for first; then it is traced to be compiled, and that takes long
        assert fit.stderr.readline() == "traced\n"
    time.sleep(0.5)
    begin = time.monotonic()
    fit.send_signal(signal.SIGINT)
    out, err = fit.communicate(timeout=60)
    assert time.monotonic() - begin < 2 and fit.returncode == 130
    assert out == "" and err.removeprefix("traced\n") == "yoasovi: stopped while compiling; there is no result yet.\n"


ENDLESS = """
import time
import yoasovi as yo

def log_p(x):
    print("looked", flush=True)
    time.sleep(2e-4)
    return -0.5 * float(x @ x)

model = yo.Model.external(log_p, 3)
"""


def test_ctrl_c_in_a_window_ends_after_it_with_the_best_so_far_and_exit_code_130(tmp_path):
    path = tmp_path / "endless.py"
    path.write_text(ENDLESS)
    fit = begun("fit", f"{path}:model", "--method", "mcvi", "--set", "tolerance=1e-30", "--max-steps", "1000000", "--json")
    for _ in range(60):
        assert fit.stderr.readline() == "looked\n"
    fit.send_signal(signal.SIGINT)
    out, err = fit.communicate(timeout=60)
    assert fit.returncode == 130 and "yoasovi: ending after this window; Ctrl-C again stops at once.\n" in err
    assert "Traceback" not in err
    answer = json.loads(out)
    assert answer["stop_reason"] == "interrupted" and answer["counts"]["steps"] > 0 and answer["elbo"]["value"] > -10


def test_fit_takes_a_family_settings_and_restarts():
    args = ["--set", "learning-rate=0.05", "--set", "optimizer=rmsprop", "--set", "draws=2", "--restarts", 2, "--json"]
    answer = json.loads(run("fit", "logistic", *QUICK, *args, "--family", "mean_field").stdout)
    assert 1200 <= answer["counts"]["gradients"] < 1220  # of both restarts, and a few that look for groups
    assert answer["family"] == "mean_field"


def test_settings_are_read_as_literals_words_and_temperings():
    assert parse_setting("tempering", "log:2") == Logarithmic(2)
    assert parse_setting("tempering", "constant:1.5") == Constant(1.5)
    assert parse_setting("tempering", "linear:0.1:15:2500") == Linear(0.1, 15, 2500)
    assert parse_setting("tempering", "warmup") == Warmup()
    assert parse_setting("sequence", "halton") is Halton
    assert [parse_setting("x", t) for t in ("3", "1e-3", "None", "True", "adam")] == [3, 1e-3, None, True, "adam"]


@pytest.mark.parametrize("name", BUILT_INS)
def test_every_built_in_is_a_model(name):
    assert isinstance(find_model(name), Model)
    # The mixtures' labels are summed out where the method differentiates through its draws.
    same = find_model(name, "advi") is find_model(name, "mcvi")
    assert same != name.startswith("mixture")


# ---- compare ---------------------------------------------------------------------------------------------


def test_compare_runs_methods_that_need_gradients_with_the_labels_summed_out():
    text = run("compare", "mixture-2-2", "--methods", "yoasovi-metropolis,advi", "--max-steps", 60).stdout
    lines = text.splitlines()
    assert max(map(len, lines)) <= 120
    assert any(re.match(r" yoasovi-metropolis +60\* +60 +0 ", line) for line in lines)
    (advi,) = (line for line in lines if line.startswith(" advi"))
    assert re.match(r" advi +60\* +0 +60 ", advi) and "–" in advi  # no distance to an optimum that is not its own
    for word in ("a lucky one", "fresh draws", "coordinate ascent", "the paper's, raw and clipped, for yoasovi-metropolis",
                 "For advi the labels are summed out"):  # fmt: skip
        assert word in " ".join(text.split())


def test_compare_says_in_a_sentence_on_each_method_what_to_conclude():
    text = run("compare", "women", "--methods", "advi,yoasovi,yoasovi-metropolis", "--seed", 1).stdout
    assert max(map(len, text.splitlines())) <= 120
    said = re.search(r"^(advi: .*?)^(yoasovi: .*?)^(yoasovi-metropolis: .*)", text, re.DOTALL | re.MULTILINE)
    advi, own, paper = (" ".join(x.split()) for x in said.groups())
    assert own == "yoasovi: nearest to the posterior of these."
    nats = r": ([\d.,]+) nats further from the posterior than yoasovi when its steps ran out"
    assert float(re.search(nats, advi).group(1)) > 10 and advi.endswith(": do not use it.")
    assert re.search(nats + r", though it reports an ELBO of -[\d.,]+: do not use it\.$", paper)


def test_methods_that_are_as_good_are_said_to_be_and_other_bounds_are_not_compared(conjugate):
    fit = yo.fit(conjugate.model, mend=False)
    near = replace(fit, elbo=Estimate(fit.elbo.value - 0.05, fit.elbo.se))
    below = replace(fit, elbo=Estimate(fit.elbo.value - 0.5, fit.elbo.se))
    rows = [Row(name, [x], [None]) for name, x in {"yoasovi": fit, "advi": near, "mcvi": below}.items()]
    rows += [Row("qmcvi", reason="it cannot")]
    said = conclusions(rows)
    assert said[1] == "advi: as near to the posterior as yoasovi, as far as these draws can tell."
    assert said[2] == "mcvi: 0.50 nats further from the posterior than yoasovi: prefer yoasovi."
    assert len(said) == 3 and conclusions(rows[:1]) == []
    latent = yo.fit(find_model("mixture-2-2"), max_steps=32)
    assert len(conclusions([*rows[:2], Row("bbvi-rb", [latent], [None])])) == 2


def test_compare_in_a_narrow_terminal_gives_two_tables_that_fit(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    lines = run("compare", "mixture-2-2", "--methods", "bbvi-rb,yoasovi-metropolis", "--max-steps", 60).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith(" yoasovi-metropolis ") for line in lines) == 2
    assert not any("…" in line for line in lines)


def test_compare_over_seeds_gives_means_and_all_fits_as_json():
    # A setting goes to the methods that take it; advi does not take this one.
    args = ["compare", "logistic", "--methods", "advi,mcvi", "--seeds", 2, "--max-steps", 100, "--set", "tolerance=1e-9"]
    assert "draws ± SD" in run(*args).stdout
    answer = json.loads(run(*args, "--json").stdout)
    assert [(x["method"], x["seed"]) for x in answer["methods"]] == [("advi", 0), ("advi", 1), ("mcvi", 0), ("mcvi", 1)]
    assert answer["optimum"] is None


def test_a_method_that_cannot_run_is_a_row_and_an_object_with_the_reason(tmp_path):
    path = tmp_path / "outside.py"
    path.write_text("import yoasovi as yo\nmodel = yo.Model.external(lambda x: -0.5 * float(x @ x), 2)\n")
    line = run("compare", f"{path}:model", "--methods", "advi").stdout
    assert re.search(r"advi +cannot run: needs ", line)
    answer = json.loads(run("compare", f"{path}:model", "--methods", "advi", "--json").stdout)
    assert answer["methods"][0]["method"] == "advi" and "needs" in answer["methods"][0]["error"]


def test_the_optimum_of_a_mixture_is_that_of_its_latent_labels():
    args = ["--methods", "yoasovi-metropolis,advi", "--max-steps", 60, "--json"]
    answer = json.loads(run("compare", "mixture-2-2", *args).stdout)
    assert answer["optimum"] == pytest.approx(-1790.01, abs=0.01)
    latent, summed = (x["distance_to_optimum"] for x in answer["methods"])
    assert latent > 0 and summed is None


def test_numbers_are_short_whatever_their_size():
    assert [number(x) for x in (-2634.28, 0.071, -4.68e137, 123456.7)] == ["-2,634.3", "0.07", "-4.7e137", "123,457"]
    assert number(float("-inf")) == "-inf"


# ---- models of one's own ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["ready", "plain", "plated", "handled", "returns_model", "returns_function", "returns_converted", "simulates_first"],
)
def test_a_path_may_name_a_model_a_numpyro_function_or_a_function_returning_one(file, name):
    assert isinstance(find_model(f"{file}:{name}"), Model)


def test_what_a_model_file_prints_does_not_get_into_the_json(file):
    result = run("fit", f"{file}:talks", *QUICK, "--json")
    assert json.loads(result.stdout)["counts"]["steps"] == 300
    assert "a model that talks" in result.stderr and "traced" in result.stderr


def test_a_density_has_no_dic(file):
    assert json.loads(run("fit", f"{file}:density", *QUICK, "--json").stdout)["dic"] is None


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("absent", "has no 'absent'"),
        (
            "needs",
            "it needs arguments (data); write a function without arguments: the model itself, or one that returns it.",
        ),
        ("returns_none", "it returned None"),
        ("fails", "ZeroDivisionError: division by zero (line"),
        ("three", "is no model"),
    ],
)
def test_what_is_no_model_is_refused_in_one_line(file, name, says):
    # The file prints a line of its own when it is run.
    result = run("fit", f"{file}:{name}", code=2)
    spoken, line = result.stderr.splitlines()
    assert spoken == "a model that talks" and line.startswith("yoasovi: ") and says in line


def test_a_file_that_fails_to_import_is_named_with_its_error(tmp_path):
    for text, says in (
        ("x = 1\nimport nothing_of_this_name\n", "No module named 'nothing_of_this_name' (line 2)"),
        ("def f(:\n", "SyntaxError"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
    ):
        path = tmp_path / "broken.py"
        path.write_text(text)
        models._from_file.cache_clear()
        line = refused("fit", f"{path}:model")
        assert f"{path} failed to import: " in line and says in line
    assert "no file" in refused("fit", tmp_path / "absent.py:model")


# ---- mistakes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["fit"], "Missing argument 'MODEL'"),
        (["fti", "linear"], "No such command 'fti'"),
        (["fit", "lineer"], "no model 'lineer'"),
        (["fit", "lineer"], "Did you mean 'linear'?"),
        (["fit", "Eight-Schools"], "Did you mean 'eight-schools'?"),
        (["fit", "linear", "--method", "avdi"], "Did you mean 'advi'?"),
        (["fit", "linear", "--family", "round"], "`family` of `fit` must be auto,"),
        (["fit", "linear", "--max-steps", "0"], "`max_steps` of `fit` must be a positive integer; got 0."),
        (["fit", "linear", "--max-steps", "many"], "--max-steps"),
        (["fit", "linear", "--restarts", "0"], "`restarts`"),
        (["fit", "linear", "--batch-size", "10000000"], "`batch_size` of `fit` must be at most the number of observations"),
        (["fit", "linear", "--colour"], "No such option"),
        (["fit", "linear", "--set", "patience"], "NAME=VALUE"),
        (["fit", "linear", "--method", "advi", "--set", "patience=3"], "advi has no setting 'patience'"),
        (["fit", "linear", "--set", "tempering=log:0"], "--set tempering must look like"),
        (["fit", "linear", "--set", "tempering=cold"], "--set tempering must look like"),
        (["fit", "linear", "--method", "qmcvi", "--set", "sequence=primes"], "sobol or halton"),
        (["fit", "linear", "--method", "advi", "--set", "learning_rate=fast"], "yoasovi: "),
        (["methods", "avdi"], "Did you mean 'advi'?"),
        (["compare", "linear", "--methods", ","], "`methods` of `compare`"),
        (["compare", "linear", "--methods", "advi,nuts"], "no method 'nuts': it must be one of yoasovi"),
        (["compare", "linear", "--methods", "advi,bbvi"], "Did you mean 'bbvi-rb'?"),
        (["fit", "linear", "--resume"], "--resume needs --checkpoint DIR"),
        (["fit", "linear", "--prior-scale", "-1"], "--prior-scale must be a positive finite number; got -1.0."),
        (["fit", "readme.py"], "no model 'readme.py': add :name, as in readme.py:model"),
        (["compare", "linear", "--seeds", "0"], "`seeds` of `compare` must be a positive integer"),
    ],
)
def test_a_mistake_is_answered_in_one_line_with_exit_code_2(args, says):
    assert says in refused(*args)


def test_mistakes_about_a_data_file_name_the_options_that_mend_them(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text("age,height,sd\n25,1.8,0.0\n26,1.7,1.0\n31,1.9,1.0\n")
    cases = [
        (["women"], "--data does not go with women, which is a model of its own data"),
        (["eight-schools", "--target", "age"], "eight-schools needs the column with the groups, --group NAME, or that with"),
        (["eight-schools", "--target", "age", "--sd", "sd"], "--sd sd must be positive"),
        (["logistic", "--target", "age"], "--target age must be 0 or 1; got values [25. 26. 31.]"),
        (["poisson", "--target", "height"], "--target height must be non-negative integers"),
        (["mixture-3-4"], "the number of components of mixture-3-4 must be at most"),
    ]
    for args, says in cases:
        line = refused("fit", *args, "--data", path)
        assert says in line and "`" not in line.split("got")[0]


def test_a_file_whose_lines_end_in_a_carriage_return_alone_is_refused_in_plain_words(tmp_path):
    path = tmp_path / "old.csv"
    path.write_bytes(b"x,y\r1,2\r2,3\r")
    line = refused("fit", "linear", "--data", path)
    assert "line 1 has a carriage return in it, as if lines ended in one alone; save the file with line ends" in line
    assert "universal-newline" not in line


def test_what_cannot_be_written_is_refused_before_the_fit_in_the_words_of_the_command_line(monkeypatch, tmp_path, conjugate):
    monkeypatch.setattr(commands, "run", lambda *args: pytest.fail("the fit was run"))
    monkeypatch.setattr(commands, "run_seeds", lambda *args: pytest.fail("the fit was run"))
    yo.fit(conjugate.model, progress=False).save(tmp_path / "full")
    (tmp_path / "file").write_text("")
    cases = [
        (["fit", "linear", "--save", tmp_path / "full"], "full holds a fit already; choose another folder, or remove"),
        (["fit", "linear", "--save", tmp_path / "file"], "--save must be a folder;"),
        (["fit", "linear", "--report", tmp_path / "no" / "r.html"], "--report: there is no folder "),
        (["fit", "linear", "--report", tmp_path / "r.txt"], "--report must be a file that ends in .html; got "),
        (["compare", "linear", "--report", tmp_path / "no" / "r.html"], "--report: there is no folder "),
        (["report", tmp_path / "full", "--out", tmp_path / "no" / "r.html"], "--out: there is no folder "),
        (["report", tmp_path / "full", "--out", tmp_path / "r.html"], "has no verdict, with which a report begins:"),
    ]
    for args, says in cases:
        line = refused(*args)
        assert says in line and "overwrite" not in line and "yo." not in line
    assert sorted(x.name for x in tmp_path.iterdir()) == ["file", "full"]


def test_a_name_that_a_file_has_not_is_answered_with_the_nearest(tmp_path):
    (tmp_path / "mine.py").write_text("Schools = third = 1")
    assert "it has Schools, third. Did you mean 'Schools'?" in refused("fit", f"{tmp_path / 'mine.py'}:schols")


def test_a_mistake_in_a_shell_leaves_no_traceback():
    result = shell("fit", "nothing", "--set", "patience")  # refused before JAX is imported
    assert result.returncode == 2 and result.stdout == "" and len(result.stderr.splitlines()) == 1


def test_a_mistake_is_raised_where_the_traceback_is_asked_for(monkeypatch):
    monkeypatch.setenv("YOASOVI_TRACEBACK", "1")
    result = run("fit", "nothing", code=1)
    assert isinstance(result.exception, ValueError) and "no model 'nothing'" in str(result.exception)


# ---- the README ------------------------------------------------------------------------------------------


def test_the_readme_names_every_method_and_only_commands_that_exist():
    text = (ROOT / "README.md").read_text()
    assert all(f"`{name}`" in text for name in METHODS)
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"demo", "test", "check", "bench"} <= set(targets)
    assert set(re.findall(r"make (demo|test|check|bench|[a-z]+)\s+#", text)) <= set(targets)
    commands = run("--help").stdout
    assert all(f"  {name} " in commands for name in re.findall(r"^yoasovi (\w+)", text, re.MULTILINE))


def test_the_continuous_integration_runs_make_check():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK) and "make check" in script.read_text()
