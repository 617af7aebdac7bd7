"""Reports, plots, predictions and progress: what a user looks at; the HTML in a real browser where there is one."""

import io
import json
import re
import sys
import time
import types
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from typer.testing import CliRunner

import chromium
import yoasovi as yo
from yoasovi.cli import app, commands
from yoasovi.cli.runs import Row
from yoasovi.methods import method
from yoasovi.report import checks, content, html
from yoasovi.run import progress
from yoasovi.run.progress import Progress
from yoasovi.stopping import StopReason
from yoasovi.turns import TurnRow

EVIL = "<script>alert(1)</script>"
X = np.random.default_rng(0).normal(size=(60, 2))
Y = X @ np.array([1.0, -0.5]) + np.random.default_rng(1).normal(size=60)


@pytest.fixture(scope="module")
def fit():
    """A small regression whose model and parameters carry names that must not be believed."""
    model = yo.Model(
        prior={f"</script><b>{EVIL}": dist.Normal(np.zeros(2), 5.0).to_event(1), "$x^2 & 'y'": dist.HalfNormal(2.0)},
        log_likelihood=lambda p, d: dist.Normal(d["X"] @ p[f"</script><b>{EVIL}"], p["$x^2 & 'y'"]).log_prob(d["y"]),
        predictive=lambda k, p, d: dist.Normal(d["X"] @ p[f"</script><b>{EVIL}"], p["$x^2 & 'y'"]).sample(k),
        data={"X": X, "y": Y}, name=EVIL,
    )  # fmt: skip
    return yo.fit(model, progress=False)


@pytest.fixture(scope="module")
def page(fit, tmp_path_factory):
    return fit.report(tmp_path_factory.mktemp("report") / "one.html")


@pytest.fixture(scope="module")
def browser():
    if chromium.PATH is None:
        pytest.skip("no Chromium: apt-get install chromium")
    found = chromium.Browser()
    yield found
    found.close()


# ---- the file --------------------------------------------------------------------------------------------


def test_a_report_is_one_small_file_with_the_verdict_first(page, fit):
    text = page.read_text()
    assert page.stat().st_size < 500_000
    verdict = f'class="verdict {fit.diagnose().grade}"'
    parts = (verdict, ">Evidence<", ">The run<", ">The posterior<", ">Settings<", ">Run it again<", ">Versions<")
    order = [text.index(x) for x in parts]
    assert order == sorted(order)
    assert not re.search(r'(src|href)="(?!data:|#)', text)
    for word in (f"seed={fit.seed}", jax.__version__, yo.__version__, "Pareto k-hat", "MC error"):
        assert word in text


def test_names_from_users_are_escaped_everywhere(page):
    text = page.read_text()
    assert EVIL not in text and "<b>" not in text
    assert text.count("<script") == 2 and text.count("</script>") == 2  # the numbers and the code
    charts = json.loads(re.search(r'id="charts">(.*?)</script>', text, re.S)[1])
    assert any(EVIL in c["x_label"] for c in charts.values())
    assert html._json({"a": "</script><!--\u2028"}) == '{"a":"\\u003c/script\\u003e\\u003c!--\\u2028"}'


def test_several_fits_stand_side_by_side(fit, tmp_path):
    cut = dict(stop_reason=StopReason.MAX_STEPS, num_steps=20, _verdicts={})
    other = replace(fit, method=replace(fit.method, name="another"), **cut)
    spent = fit.num_values
    text = html.write([fit, other], tmp_path / "two.html", "a comparison").read_text()
    assert fit.num_values == spent and f">{spent:,}<" in text  # looking is not part of the cost
    assert 'class="verdict failed"' in text and text.count('class="verdict') == text.count("<details>") == 2
    with pytest.raises(ValueError, match=r"`path` of `report` must be a file name that ends in .html"):
        fit.report(tmp_path / "report.pdf")
    with pytest.raises(ValueError, match=r"`path` of `report` must be in a folder that exists; got .*nowhere"):
        fit.report(tmp_path / "nowhere" / "report.html")


def test_thinning_keeps_the_ends_and_the_extremes():
    x = np.arange(100_000.0)
    y = np.random.default_rng(0).normal(size=x.size)
    y[[777, 55_555]] = [50.0, -50.0]
    few_x, few_y = content.thin(x, y)
    assert few_x.size <= content.MOST + 2 and (few_x[0], few_x[-1]) == (0, 99_999)
    assert few_y.max() == 50.0 and few_y.min() == -50.0 and (np.diff(few_x) > 0).all()


def test_a_density_of_positive_draws_stays_positive_and_sums_to_one():
    x = np.random.default_rng(0).exponential(size=4000)
    grid, values = content.density(x, (-1.0, 12.0))
    assert grid[0] == 0.0 and values[0] > 0.7 and np.trapezoid(values, grid) == pytest.approx(1.0, abs=0.03)


# ---- in a browser ----------------------------------------------------------------------------------------


def test_the_report_works_offline_in_chromium(browser, page):
    browser.screen(1440, 5000)
    browser.open(page)
    browser.run("new Promise(r => setTimeout(r, 300))")
    assert browser.complaints() == [] and browser.requests() == []
    count = lambda what: browser.run(f"document.querySelectorAll('{what}').length")
    assert count("figure:not([hidden])") == count(".chart svg") > 5
    assert browser.run("document.querySelector('h1').textContent") == EVIL
    assert browser.run("document.querySelectorAll('h1').length === 1 && !document.querySelector('b')")
    assert browser.run("[...document.querySelectorAll('.chart')].every(c => c.getAttribute('aria-label').length > 20)")


def test_a_series_can_be_hidden_a_chart_zoomed_and_read_by_keyboard(browser, page):
    browser.screen(1440, 5000)
    browser.open(page)
    browser.run("new Promise(r => setTimeout(r, 300))")
    paths = "document.querySelectorAll('#elbo g[data-series]').length"
    before = browser.run(paths)
    browser.run("document.querySelector('#elbo .bar button').click()")
    assert browser.run(paths) == before - 1
    assert browser.run("document.querySelector('#elbo .bar button').getAttribute('aria-pressed')") == "false"
    browser.run("document.querySelector('#elbo .bar button').click()")
    assert browser.run(paths) == before
    corners = "const b = document.querySelector('#elbo svg').getBoundingClientRect()"
    box = browser.run(f"(() => {{ {corners}; return [b.x, b.y, b.width, b.height]; }})()")
    ticks = "[...document.querySelectorAll('#elbo .chart text')].map(t => t.textContent).join()"
    whole = browser.run(ticks)
    at = lambda kind, fx, fy: browser.ask(
        "Input.dispatchMouseEvent", type=kind, x=box[0] + fx * box[2], y=box[1] + fy * box[3], button="left",
        buttons=0 if kind == "mouseReleased" else 1, clickCount=1,
    )  # fmt: skip
    at("mousePressed", 0.4, 0.3)
    at("mouseMoved", 0.7, 0.6)
    at("mouseReleased", 0.7, 0.6)
    assert browser.run(ticks) != whole
    browser.run("document.querySelector('#elbo .chart').focus()")
    for key in ("0", "ArrowRight"):
        browser.ask("Input.dispatchKeyEvent", type="keyDown", key=key)
    assert browser.run(ticks) == whole
    assert "·" in browser.run("document.querySelector('#elbo .tip:not([hidden])').textContent")
    browser.run("document.querySelectorAll('.tabs button')[1].click()")
    assert browser.run("document.querySelector('#elbo').hidden && document.querySelectorAll('#elbo-seconds svg').length > 0")


@pytest.mark.parametrize("width", [320, 390, 1440])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_report_fits_any_screen_in_light_and_dark(browser, page, width, dark):
    browser.screen(width, 800, dark, mobile=width < 500)
    browser.open(page)
    assert browser.run("document.documentElement.scrollWidth") <= width
    shade = browser.run("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).map(Number)")
    assert (max(shade) < 60) is dark


@pytest.mark.parametrize("width", [390, 1440])
def test_the_page_keeps_still_while_charts_are_drawn(browser, page, width):
    browser.screen(width, 300, mobile=width < 500)
    browser.open(page)
    state = "[document.documentElement.scrollHeight, document.querySelectorAll('.chart svg').length]"
    height, drawn = browser.run(state)
    show = "(f, i) => setTimeout(() => f.scrollIntoView({behavior: 'instant'}), 40 * i)"
    browser.run(f"(() => {{ document.querySelectorAll('figure').forEach({show}); }})()")
    browser.run("new Promise(r => setTimeout(r, 1500))")
    after, all_drawn = browser.run(state)
    assert after == height and all_drawn > drawn
    off = "s => Math.abs(s.clientHeight - s.parentElement.clientHeight) > 1"
    assert not browser.run(f"[...document.querySelectorAll('.chart svg')].some({off})")


def test_text_has_enough_contrast(browser, page):
    script = """(() => {
      const part = (x) => (x / 255 <= 0.03928 ? x / 255 / 12.92 : ((x / 255 + 0.055) / 1.055) ** 2.4);
      const numbers = (c) => c.match(/[\\d.]+/g).map(part);
      const light = (c) => { const v = numbers(c); return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
      const back = (e) => {
        for (; e; e = e.parentElement) {
          const c = getComputedStyle(e).backgroundColor;
          if (!/, 0\\)$|transparent/.test(c)) return c;
        }
        return "rgb(255,255,255)";
      };
      let least = 99;
      for (const e of document.querySelectorAll("p, th, td, h1, h2, h3, dt, dd, button, figcaption, .mark")) {
        const a = light(getComputedStyle(e).color), b = light(back(e));
        least = Math.min(least, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05));
      }
      return least;
    })()"""
    for dark in (False, True):
        browser.screen(1440, 800, dark)
        browser.open(page)
        assert browser.run(script) >= 4.5  # WCAG AA


def test_a_long_fit_with_many_parameters_stays_small_and_opens_fast(browser, tmp_path):
    model = yo.Model.from_log_density(lambda p: -0.5 * jnp.sum((p["x"] - 1.0) ** 2), {"x": constraints.real}, {"x": (1000,)})
    fit = yo.fit(model, "advi", family="mean_field", max_steps=2_000, progress=False, learning_rate=0.01)
    fit.trace = {k: np.repeat(v, 50) for k, v in fit.trace.items()}  # as of 100,000 steps
    assert len(fit.trace["elbo"]) == 100_000
    path = fit.report(tmp_path / "big.html")
    assert path.stat().st_size < 6_000_000
    browser.screen(1440, 900)
    assert browser.open(path) < 3.0
    assert browser.complaints() == [] and browser.run("document.querySelectorAll('table tbody tr').length") > 1000
    look = "const b = document.querySelector('input[type=search]'); b.value = 'x[99'; b.dispatchEvent(new Event('input'))"
    browser.run(f"(() => {{ {look}; }})()")
    assert browser.run("[...document.querySelectorAll('#parameters tbody tr')].filter(r => !r.hidden).length") == 11


# ---- plots -----------------------------------------------------------------------------------------------


def test_every_kind_of_plot_can_be_drawn(fit):
    figure = fit.plot()
    assert len(figure.axes) >= 8
    figure.savefig(io.BytesIO(), format="png", dpi=40)  # also typesets the names
    for kind, count in (("elbo", 2), ("forest", 1), ("marginals", 3), ("pairs", 3), ("weights", 1), ("predictive", 1)):
        assert len(fit.plot(kind).axes) == count
    with pytest.raises(ValueError, match="`kind` of `plot` must be one of all, elbo"):
        fit.plot("pie")
    with pytest.raises(ValueError, match="nothing to show for kind 'clusters'"):
        fit.plot("clusters")


def test_a_mixture_shows_its_clusters():
    rng = np.random.default_rng(0)
    y = np.concatenate([rng.normal(size=(30, 2)) - 4, rng.normal(size=(30, 2)) + 4])
    fit = yo.fit(yo.models.GaussianMixture(y, 2), max_steps=400, progress=False)
    chart = checks.cluster_chart(fit)
    sizes = [s.x.size for s in chart.series]
    assert len(sizes) == 3 and sum(sizes[:2]) == 60 and sizes[2] == 2
    assert fit.predict(n=20).shape == (20, 60, 2)
    assert "not looked for" in fit.diagnose().evidence["modes"].sentence


# ---- prediction ------------------------------------------------------------------------------------------


def test_predictions_of_a_fit_have_the_spread_of_the_data(fit):
    made = fit.predict(n=1000)
    assert made.shape == (1000, 60)
    inside = (np.quantile(made, 0.05, 0) < Y) & (np.quantile(made, 0.95, 0) > Y)
    assert 0.75 < inside.mean() <= 1.0
    new = fit.predict({"X": np.array([[10.0, 0.0]])}, n=500)
    assert new.shape == (500, 1) and 7.0 < new.mean() < 13.0
    once, again, other = fit.predict(n=10), fit.predict(n=10), fit.predict(n=10, seed=1)
    assert np.array_equal(once, again) and not np.array_equal(once, other)


def test_every_built_in_model_predicts():
    rng = np.random.default_rng(0)
    y, count = rng.normal(size=60), rng.poisson(2.0, size=60)
    b = {"intercept_at_means": 0.5 + X.mean(0)[0], "coefficients": jnp.array([1.0, 0.0])}
    mu, group = jnp.array([[0.0, 0.0], [9.0, 9.0]]), np.arange(60) % 3
    schools = {"mu": 1.0, "tau": 2.0, "offset": jnp.array([0.0, 1.0, 2.0]), "sigma": 0.1}
    cases = [
        (yo.models.LinearRegression(X, y), {**b, "noise": jnp.array(0.1)}, 0.5 + X[:, 0]),
        (yo.models.LogisticRegression(X, count > 2), b, 1 / (1 + np.exp(-0.5 - X[:, 0]))),
        (yo.models.PoissonRegression(X, count, exposure=2.0), b, 2 * np.exp(0.5 + X[:, 0])),
        (yo.models.HierarchicalNormal(y, group), schools, 1.0 + 2.0 * group),
        (yo.models.GaussianMixture(X, 2, assignments="marginal"), {"mu": mu}, np.full((60, 2), 4.5)),
    ]
    for model, params, mean in cases:
        keys = jax.random.split(jax.random.key(0), 4000)
        made = np.asarray(jax.vmap(lambda k, m=model, p=params: m.predictive(k, p, m.data))(keys), float)
        error = made.std(0) / np.sqrt(4000)
        assert made.shape == (4000, *mean.shape), model.name
        assert (np.abs(made.mean(0) - mean) < 5 * error + 1e-3).all(), model.name  # 5 se, 60 observations: 1 in 30,000
    network = yo.models.NeuralNetwork(X, y, hidden=(3,))
    params = {s.name: jnp.ones(s.shape) for s in network.density.sites}
    assert network.predictive(jax.random.key(0), params, network.data).shape == (60,)


def test_a_numpyro_model_predicts_at_its_own_and_at_new_arguments():
    def line(x, y=None):
        a = numpyro.sample("a", dist.Normal(0, 5))
        with numpyro.plate("n", len(x)):
            numpyro.sample("y", dist.Normal(a * x, 0.5), obs=y)

    fit = yo.fit(yo.from_numpyro(line, X[:, 0], y=2.0 * X[:, 0]), "advi", learning_rate=0.03, max_steps=3000, progress=False)
    made = fit.predict(n=300)
    assert made["y"].shape == (300, 60) and abs(np.mean(made["y"] - 2.0 * X[:, 0])) < 0.1
    new = fit.predict({"x": np.array([1.0, 3.0]), "y": None}, n=200)
    assert new["y"].shape == (200, 2) and abs(new["y"][:, 1].mean() - 6.0) < 0.5
    assert checks.predictive_charts(fit, 60)[0].series[-1].name == "observed"
    with pytest.raises(ValueError, match="`data` of `predict` must be named after arguments of the model"):
        fit.predict({"z": 1})


def test_a_model_without_a_predictive_says_what_is_missing(fit):
    bare = replace(fit, model=replace(fit.model, predictive=None))
    with pytest.raises(ValueError, match="`predict` needs `predictive` of `Model`"):
        bare.predict()


# ---- progress and the command line -----------------------------------------------------------------------


class Counts:
    step, values, gradients = np.array([320]), np.array([100]), np.array([320])


def test_progress_tells_what_is_known_and_is_silent_without_a_terminal(capsys):
    row = lambda **x: TurnRow(*(np.array([x.get(k, [0.0, 0.0, 0.0])]) for k in TurnRow._fields))
    fates = dict(accepted=[True, False, False], rolled_back=[False, True, False])
    info = row(window=[16, 16, 0], elbo=[-5.0, -4.25, 0.0], step_size=[0.5, 0.1, 0.0], **fates)
    shown = Progress(True, method("advi"), 1000)
    shown.said(Counts, info, 2.0)
    more = type("More", (), {"step": np.array([640]), "values": np.array([100]), "gradients": np.array([640])})
    said = shown.said(more, info, 3.0)
    for words in ("step 640", "ELBO -4.25", "✓↶", "step size 0.1", "320 evaluations/s", "s left"):
        assert words in said
    assert "left" not in Progress(True, method("yoasovi"), 1000).said(Counts, info, 2.0)  # it stops by itself
    quiet = Progress(None, method("advi"), 1000)
    with quiet as show:
        show(Counts, info)
    assert quiet.line is None and capsys.readouterr() == ("", "")


def test_seconds_account_for_all_that_was_waited_for_each_stage_once(fit, tmp_path):
    ask, model = yo.fit, replace(fit.model, name="again", data={"X": X[:30], "y": Y[:30]})
    begin = time.perf_counter()
    found = ask(model, progress=False)
    assert sum(found.seconds.stages.values()) == pytest.approx(found.seconds.total, rel=0.05)
    assert set(found.seconds.stages) == {"model", "start", "windows", "elbo", "mend"}
    found.dic()  # samples
    found.sample(500)
    path = found.report(tmp_path / "timed.html")  # diagnoses
    wall = time.perf_counter() - begin
    more = {"sample", "dic", "verdict", "report", "loo"}
    assert set(found.seconds.stages) == {"model", "start", "windows", "elbo", "mend"} | more
    assert sum(found.seconds.stages.values()) == pytest.approx(wall, rel=0.05)
    assert min(found.seconds.stages.values()) > 0
    assert re.search(r"[\d.]+ in all: model [\d.]+, start [\d.]+, windows [\d.]+, .*went into compiling", path.read_text())
    found.save(tmp_path / "kept")
    assert yo.load(tmp_path / "kept").seconds == found.seconds


class Handle:
    def __init__(self):
        self.shown = []

    def update(self, data, raw):
        assert raw
        self.shown.append(data["text/plain"])


@pytest.fixture
def notebook(monkeypatch):
    """What a notebook's kernel looks like from inside."""
    handle = Handle()

    def display(data, raw, display_id):
        handle.update(data, raw)
        return handle

    shell = types.SimpleNamespace(kernel=object())
    fake = types.ModuleType("IPython")
    fake.get_ipython, fake.display = lambda: shell, types.ModuleType("IPython.display")
    fake.display.display = display
    monkeypatch.setitem(sys.modules, "IPython", fake)
    monkeypatch.setitem(sys.modules, "IPython.display", fake.display)
    return handle.shown


def fresh_model(scale):
    """One whose programs nobody has compiled yet."""
    return yo.Model.from_log_density(lambda p: -0.5 * jnp.sum(p["x"] ** 2) / scale, {"x": constraints.real}, {"x": (2,)})


def test_progress_in_a_notebook_begins_before_compiling_says_what_is_compiled_and_is_gone_at_the_end(notebook, monkeypatch):
    monkeypatch.setattr(progress, "_EVERY", 0.0)
    yo.fit(fresh_model(2.0))
    assert notebook[0] == "yoasovi" and notebook[1] == "yoasovi  starting" and notebook[-1] == ""
    compiling = [line for line in notebook if "compiling" in line]
    assert compiling[0] == "yoasovi  compiling log p and its gradient" and "yoasovi  compiling log p" in compiling
    assert any("ELBO" in line for line in notebook)
    del notebook[:]
    yo.fit(fresh_model(3.0), progress=False)
    assert notebook == []


def test_progress_in_a_terminal_begins_before_compiling_and_says_what_is_compiled(monkeypatch):
    screen = io.StringIO()
    screen.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    shown = Progress(None, method("yoasovi"), 1000)
    with shown:
        begun = "starting" in screen.getvalue()
        for program in ("gradients", "walk", "some_new_one"):
            shown.compiling(program)
    text = screen.getvalue()
    words = ("starting", "compiling log p and its gradient", "compiling windows of steps", "compiling some new one")
    assert begun and [w for w in words if w in text] == list(words)
    assert text.endswith(("\x1b[2K", "\x1b[?25h"))  # the line is gone, the cursor is back


def test_the_command_line_writes_reports(fit, tmp_path, monkeypatch):
    cut = replace(fit, stop_reason=StopReason.MAX_STEPS, num_steps=20, _verdicts={})
    made = {"yoasovi": fit, "advi": replace(cut, method=replace(fit.method, name="advi"))}
    monkeypatch.setattr(commands, "run_seeds", lambda model, name, *_: Row(name, [made[name]], [None]))
    monkeypatch.setattr(commands, "run", lambda model, name, *_: made[name])
    path = tmp_path / "compared.html"
    result = CliRunner().invoke(app, ["compare", "linear", "--methods", "yoasovi,advi", "--report", str(path)])
    assert result.exit_code == 0, result.output
    assert f"Report: {path}" in result.output and "advi: failed. More steps" in result.output
    assert path.read_text().count("<details>") == 2 and f"--report {path.name}" in path.read_text()
    result = CliRunner().invoke(app, ["fit", "linear", "--method", "advi", "--json", "--verdict"])
    verdict = json.loads(result.stdout)["verdict"]
    assert verdict["grade"] == "failed" and verdict["evidence"]["stopped"]["grade"] == "failed"
    assert "FAILED: More steps" in CliRunner().invoke(app, ["fit", "linear", "--method", "advi"]).output


def test_the_report_of_a_saved_fit_is_written_from_its_folder(fit, tmp_path):
    assert CliRunner().invoke(app, ["report", str(tmp_path / "nowhere")]).exit_code == 2
    fit.diagnose()
    fit.save(tmp_path / "run")
    out = tmp_path / "saved.html"
    result = CliRunner().invoke(app, ["report", str(tmp_path / "run"), "--out", str(out)])
    assert result.exit_code == 0 and f"Report: {out}" in result.output and out.is_file()
