"""What a report shows of a fit, and whether it is true: charts that suit the data, words, names, a rerun that runs."""

import io
import json
import re
import shlex
import sys
from dataclasses import replace
from html import unescape
from itertools import pairwise

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from typer.testing import CliRunner

import chromium
import yoasovi as yo
from yoasovi.answer.summary import Mended
from yoasovi.cli import app
from yoasovi.cli.models import find_model
from yoasovi.model import Labels
from yoasovi.model.words import in_words
from yoasovi.report import checks, content, facts, posterior, tables
from yoasovi.report.plots import KINDS
from yoasovi.verdict.findings import Finding, Verdict


@pytest.fixture(scope="module")
def schools():
    return yo.fit(find_model("eight-schools"), progress=False)


@pytest.fixture(scope="module")
def logistic():
    return yo.fit(find_model("logistic"), progress=False)


@pytest.fixture(scope="module")
def page(schools, tmp_path_factory):
    return schools.report(tmp_path_factory.mktemp("report") / "schools.html")


@pytest.fixture(scope="module")
def browser():
    if chromium.PATH is None:
        pytest.skip("no Chromium: apt-get install chromium")
    found = chromium.Browser()
    yield found
    found.close()


def code_of(path):
    return unescape(re.search(r'<pre id="code">(.*?)</pre>', path.read_text(), re.S)[1])


# ---- the run ---------------------------------------------------------------------------------------------


def test_a_refused_step_as_low_as_no_axis_shows_does_not_end_the_line_of_a_chart(schools):
    trace = {k: v.copy() for k, v in schools.trace.items()}
    trace["elbo"][len(trace["elbo"]) // 2] = -8e247
    for chart in content.elbo_charts([replace(schools, trace=trace)], ["yoasovi"]):
        assert all(np.abs(s.y).max() < 1e12 for s in chart.series)
        line = next(s for s in chart.series if s.kind == "line")
        assert len(line.x) >= len(trace["elbo"]) - 1
    lost = replace(schools, trace=trace, elbo=schools.elbo._replace(value=float("nan")))
    assert len(next(s for s in content.elbo_charts([lost], ["yoasovi"])[0].series if s.kind == "line").x) > 1


# ---- charts that suit the data ---------------------------------------------------------------------------


def test_binary_outcomes_get_a_calibration_plot(logistic):
    (chart,) = checks.predictive_charts(logistic, 500)
    assert chart.title.startswith("Calibration") and chart.x_label == "predicted probability"
    line, bars, points = chart.series
    assert np.array_equal(line.x, line.y) and bars.kind == "bars"
    assert ((bars.low <= points.y) & (points.y <= bars.y)).all() and len(points.x) == 10
    y = logistic.model.data["y"]
    assert (points.y * 20).sum() == pytest.approx(y.sum(), abs=1.0)  # ten groups of about twenty: nobody is left out
    meets = ((bars.low <= bars.x) & (bars.x <= bars.y)).mean()
    assert meets >= 0.6  # a true model: 90% in the long run; 5 of 10 or fewer has a chance of 1 in 600


def test_probabilities_that_are_wrong_miss_the_line():
    rng = np.random.default_rng(0)
    p = rng.uniform(0.02, 0.98, 2000)
    observed = (rng.uniform(size=2000) < 0.5).astype(float)
    chart = checks._calibration("c", "y", (rng.uniform(size=(400, 2000)) < p).astype(float), observed)
    bars = chart.series[1]
    assert ((bars.low <= bars.x) & (bars.x <= bars.y)).mean() < 0.4


def test_counts_are_shown_by_value_and_measurements_by_density():
    rng = np.random.default_rng(0)
    few, many = rng.poisson(2.0, 100).astype(float), rng.poisson(500.0, 100).astype(float)
    for observed, mean, width in ((few, 2.0, 1), (many, 500.0, 5)):
        chart = checks._predictive("p", "y", rng.poisson(mean, (200, 100)).astype(float), observed)
        bars, points = chart.series
        assert bars.kind == "bars" and chart.y_label == "number of observations"
        assert points.y.sum() == 100 and np.diff(points.x).min() == width
        assert ((bars.low <= points.y) & (points.y <= bars.y)).mean() > 0.7
    shown = checks._predictive("p", "y", rng.normal(size=(200, 100)), rng.normal(size=100))
    assert shown.y_label == "density" and [s.kind for s in shown.series] == ["band", "line", "line"]


def test_replicated_densities_share_one_grid_though_some_are_all_positive():
    rng = np.random.default_rng(0)
    made = rng.normal(2.0, 1.0, size=(60, 50))
    assert 0 < (made.min(1) >= 0).sum() < 60
    band, _, line = checks._densities("p", "y", made, np.abs(made[0])).series
    assert np.array_equal(band.x, line.x) and line.x[0] < 0


def test_each_column_and_each_observed_variable_has_a_chart_of_its_own():
    rng = np.random.default_rng(0)
    seen = {"a": rng.normal(size=50), "b": rng.normal(size=(50, 2))}
    made = {"a": rng.normal(size=(40, 50)), "b": rng.normal(size=(40, 50, 2))}
    assert [(name, new.shape, old.shape) for name, new, old in checks._columns(seen, made)] == [
        (name, (40, 50), (50,)) for name in ("a", "b, column 0", "b, column 1")
    ]


# ---- axes ------------------------------------------------------------------------------------------------


def lead(x):
    """First digit of a number that has one digit."""
    return round(x / 10.0 ** np.floor(np.log10(x) + 1e-9), 6)


@pytest.mark.parametrize("ends", [(0.31, 0.48), (1.0, 1.6), (0.02, 3e4), (1e-9, 1e9), (2.5, 4.5), (1.0, 1.0)])
def test_log_axes_tick_at_one_two_and_five(ends):
    low, high = content.log_limits(*ends)
    ticks = content.log_ticks(low, high)
    assert low <= ends[0] and high >= ends[1] and 2 <= len(ticks) <= 7
    assert {lead(t) for t in ticks} <= {1.0, 2.0, 5.0}


@pytest.mark.parametrize("width", [390, 1440])
def test_log_axes_of_a_report_tick_at_one_two_and_five(browser, page, width):
    browser.screen(width, 30_000, mobile=width < 500)
    browser.open(page)
    browser.run("new Promise(r => setTimeout(r, 400))")
    script = "[...document.querySelectorAll('#%s .chart text[text-anchor=end]')].map(t => t.textContent)"
    for key in ("step", "temperature", "weights"):
        ticks = [float(t.replace(",", "")) for t in browser.run(script % key)]
        assert len(ticks) >= 2 and {lead(t) for t in ticks} <= {1.0, 2.0, 5.0}, (key, ticks)


# ---- the posterior ---------------------------------------------------------------------------------------


def test_a_forest_puts_sites_of_like_scale_on_one_axis_and_others_on_another():
    rng = np.random.default_rng(0)
    own = np.concatenate([rng.normal(size=(500, 1)), rng.normal(1.0, 2.0, (500, 3)), rng.normal(0, 1000.0, (500, 1))], 1)
    names, site = ["a", "b[x]", "b[y]", "b[z]", "big"], ["a", "b", "b", "b", "big"]
    first, second = posterior.forest_charts(posterior.ShownDraws(names, own, None, site, {"a": 1, "b": 3, "big": 1}))
    assert [(r.label, r.heading) for r in first.rows] == [
        ("a", False), ("b", True), ("[x]", False), ("[y]", False), ("[z]", False)
    ]  # fmt: skip
    assert [r.label for r in second.rows] == ["big"]
    wide, narrow, middle = first.series
    assert list(middle.y) == [4, 2, 1, 0]  # none for the heading
    assert (wide.low < narrow.low).all() and (narrow.low < middle.x).all() and (middle.x < narrow.x).all()
    assert wide.low[0] == pytest.approx(np.quantile(own[:, 0], 0.05))


def test_a_long_vector_is_cut_in_the_forest_and_the_caption_says_so():
    own = np.random.default_rng(0).normal(size=(200, 90))
    found = posterior.ShownDraws([f"x[{i}]" for i in range(90)], own, None, ["x"] * 90, {"x": 90})
    chart, caterpillar = posterior.forest_charts(found)
    assert "90" in caterpillar.caption
    assert len(chart.rows) == 41 and "the first 40 of 90 entries of x" in chart.caption


def test_names_of_entries_are_those_of_the_model(logistic, tmp_path):
    names = Labels(dims={"coefficients": ("predictor",)}, coords={"predictor": ["age", "dose", "sex", "site"]})
    logistic = replace(logistic, model=replace(logistic.model, labels=names))
    text = logistic.report(tmp_path / "named.html").read_text()
    charts = json.loads(re.search(r'id="charts">(.*?)</script>', text, re.S)[1])
    assert '<th scope="row" class="">coefficients[dose]</th>' in text and "coefficients[1]" not in text
    assert ["[dose]", False] in charts["forest-0"]["rows"]


def test_a_simplex_is_named_by_place_as_it_is_longer_than_its_coordinates():
    model = yo.Model(
        prior={"w": dist.Dirichlet(np.ones(3))}, data=np.array([3.0, 1.0, 2.0]),
        log_likelihood=lambda p, y: y * jnp.log(p["w"]),
    )  # fmt: skip
    found = posterior.draws(yo.fit(model, progress=False), 200)
    assert found.names == ["w[0]", "w[1]", "w[2]"] and found.own.shape == (200, 3)


def test_deterministic_sites_have_a_table_of_their_own(schools, page):
    found = posterior.draws(schools)
    assert set(found.site) == {"mu", "tau", "offset"} and found.derived.names == [f"theta[{i}]" for i in range(8)]
    draws = schools.sample(4000)
    assert np.allclose(draws["theta"], draws["mu"][:, None] + draws["tau"][:, None] * draws["offset"])
    part = page.read_text().split(">Derived quantities<")[1]
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", part[part.index(">theta[0]<") :])[:5]
    column = draws["theta"][:, 0]
    shown = [column.mean(), column.std(), *np.quantile(column, [0.05, 0.5, 0.95])]
    assert [float(x) for x in cells] == pytest.approx(shown, rel=1e-3)


def test_theta_of_the_samples_does_not_change_the_dic(schools):
    bare = replace(schools, model=replace(schools.model, deterministics=None))
    assert schools.dic() == pytest.approx(bare.dic())


# ---- words -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("law", "said"),
    [
        (dist.Normal(0.0, 2.5), "Normal(loc=0, scale=2.5)"),
        (dist.Normal(np.zeros(4), np.full(4, 2.5)).to_event(1), "Normal(loc=0, scale=2.5)"),
        (dist.Normal(0, 1).expand([3]).to_event(1), "Normal(loc=0, scale=1)"),
        (dist.Normal(np.array([0.0, 1.0]), 1.0), "Normal(loc=[0, 1], scale=1)"),
        (dist.Normal(np.arange(9.0), 1.0), "Normal(loc=0 to 8, scale=1)"),
        (dist.LogNormal(0.0, 1.0), "LogNormal(loc=0, scale=1)"),
        (dist.TruncatedNormal(0, 1, low=0), "LeftTruncatedDistribution(Normal(loc=0, scale=1), low=0)"),
        (dist.Normal(0, 1).mask(False), "Normal(loc=0, scale=1), masked"),
        (dist.Categorical(np.full(4, 0.25)), "Categorical(probs=0.25)"),
        (dist.ImproperUniform(constraints.real, (), (3,)), "improper uniform"),
    ],
)
def test_laws_in_words(law, said):
    assert in_words(law) == said


def test_the_report_shows_the_priors(page):
    text = re.sub("<[^>]+>", "", page.read_text())
    for words in ("HalfCauchy(scale=5)", "Normal(loc=0, scale=5)", "Normal(loc=0, scale=1)"):
        assert words in text


def test_priors_that_are_among_the_likelihoods_terms_are_told_as_their_library_knows_them():
    def centred(y=None):
        mu = numpyro.sample("mu", dist.Normal(0, 5))
        theta = numpyro.sample("theta", dist.Normal(mu, 2.0).expand([3]))
        top = numpyro.sample("top", dist.Uniform(0, jnp.exp(mu)))
        numpyro.sample("y", dist.Normal(theta, 1.0 + top), obs=y)

    said = {site: law for site, _, law in facts.priors(yo.from_numpyro(centred, np.ones(3)))}
    assert said["mu"] == "Normal(loc=0, scale=5)"
    assert said["theta"] == "Normal(loc=…, scale=2), which depends on other sites"
    assert said["top_base"].startswith("top without its bounds (top is Uniform(low=0, high=…)")
    whole = yo.Model.from_log_density(lambda p: -jnp.sum(p["x"] ** 2), {"x": constraints.real})
    assert facts.priors(whole) == [("x", "1", "part of the log density that was given")]


def test_pymc_tells_its_priors():
    pm = pytest.importorskip("pymc")
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu", 0, 5), pm.HalfCauchy("tau", 5), observed=[1.0, 2.0])
    said = {site: law for site, _, law in facts.priors(yo.from_pymc(model))}
    assert said == {"mu": "Normal(0, 5)", "tau": "HalfCauchy(5)"}


def test_loo_is_told_in_words_or_it_is_said_why_not(logistic, monkeypatch):
    found = logistic.loo()
    said = dict(checks.loo_in_words(logistic, "good"))
    assert f"{found.elpd:,.2f} ± {found.se:.2f}" in said["elpd"] and said["p_loo"].startswith(f"{found.p_loo:.2f}:")
    bad = int((found.khat_i > 0.7).sum())
    assert (f"for {bad} of 200" if bad else "all 200") in said["k-hat"]
    whole = yo.Model.from_log_density(lambda p: -jnp.sum(p["x"] ** 2), {"x": constraints.real})
    ((head, why),) = checks.loo_in_words(yo.fit(whole, progress=False), "good")
    assert head == "not computed" and "needs a likelihood by observation" in why
    monkeypatch.setattr(checks, "_LEFT_OUT", 100)
    assert "fit.loo() computes it" in dict(checks.loo_in_words(logistic, "good"))["not computed"]
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "arviz_stats.base", None)
    said = dict(checks.loo_in_words(logistic, "good"))["not computed"]
    assert 'pip install -e ".[arviz]" in a clone, pip install "yoasovi[arviz]" of a release' in said


def test_loo_of_a_bad_fit_is_not_said_to_be_trusted(logistic, monkeypatch):
    found = logistic.loo()
    fine = found._replace(khat_i=np.zeros(200))
    monkeypatch.setattr(type(logistic), "loo", lambda self: fine)
    assert "can be trusted" in dict(checks.loo_in_words(logistic, "usable"))["k-hat"]
    for grade in ("poor", "failed"):
        said = dict(checks.loo_in_words(logistic, grade))["k-hat"]
        assert "can be trusted" not in said and f"rests on draws that are graded {grade}" in said
    monkeypatch.setattr(type(logistic), "loo", lambda self: fine._replace(elpd=float("nan")))
    said = dict(checks.loo_in_words(logistic, "good"))["k-hat"]
    assert "trusted" not in said and "not finite" in said


# ---- findings --------------------------------------------------------------------------------------------

FOUND = (
    Finding("finite", 0.0, 0.0, "good", "log p is finite everywhere.", "log p finite", 0.001, "fine"),
    Finding("khat", 0.812, 0.0634, "poor", "k-hat is <high>.", "Pareto k-hat", 0.7, "against"),
    Finding("modes", np.nan, 0.0, "usable", "Not looked for.", "other modes", np.nan, "cannot tell"),
)


@pytest.fixture
def verdict():
    return Verdict("poor", {f.name: f for f in FOUND}, "Do something else with a longer sentence of advice.", 10, 20)


def test_findings_are_a_table_with_marks_and_the_gravest_first(verdict):
    text = tables.evidence(verdict)
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", text)[1:]]
    plain = [[re.sub(r"<[^>]+>", "", cell) for cell in row] for row in rows]
    assert plain == [
        ["✗", "Pareto k-hat", "0.81 ± 0.063", "0.70", "k-hat is &lt;high&gt;."],
        ["?", "other modes", "–", "", "Not looked for."],
        ["✓", "log p finite", "0", "0.001", "log p is finite everywhere."],
    ]
    assert 'aria-label="cannot tell"' in text


def test_the_signs_of_findings_are_told_as_they_are_meant(verdict):
    assert "✗ q is off there; it lowers the grade only where the draws you get are off too" in tables.evidence(verdict)
    assert "limit none" in tables.evidence(verdict)  # a finding without a limit: a phone shows no empty one


def test_what_was_mended_stands_under_the_grade(schools, tmp_path):
    notes = (Mended("k-hat is 0.9 <b>", "a full covariance", True, 1.5, 100, 200), Mended("x", "y", False, 0.0, 1, 2))
    path = replace(schools, mended=notes).report(tmp_path / "mended.html")
    top = path.read_text().partition('<main id="content">')[0]
    assert "Mended: k-hat is 0.9 &lt;b&gt;; a full covariance gained 1.50 nats (200 gradients, 100 values)." in top
    assert "Tried in vain: x; y is not better" in top


def test_findings_are_saved_with_what_the_table_needs(verdict):
    again = Verdict.from_json(json.loads(json.dumps(verdict.as_json())))
    assert str(again.evidence) == str(dict(verdict.evidence))


@pytest.mark.parametrize("width", [320, 390, 1440])
def test_verdicts_and_findings_wrap_at_words(browser, schools, verdict, tmp_path, width):
    path = replace(schools, _verdicts={(None, None, None, ()): verdict}).report(tmp_path / "wrapped.html")
    browser.screen(width, 900, mobile=width < 500)
    browser.open(path)
    script = """(() => {
      const broken = [], range = document.createRange();
      const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
      while (walk.nextNode()) {
        const node = walk.currentNode;
        if (!node.parentElement.closest(".verdict, .findings")) continue;
        for (const word of node.textContent.matchAll(/\\S+/g)) {
          range.setStart(node, word.index); range.setEnd(node, word.index + word[0].length);
          const lines = new Set([...range.getClientRects()].map((r) => Math.round(r.top)));
          if (lines.size > 1) broken.push(word[0]);
        }
      }
      return broken;
    })()"""
    assert browser.run(script) == [] and browser.run("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("width", [320, 390])
def test_numbers_of_a_prior_are_not_broken_and_no_limit_is_shown_where_there_is_none(browser, tmp_path, width):
    rate = dist.Exponential(0.01299)
    model = yo.Model(
        prior={"standard_deviation": rate, "x": dist.TruncatedNormal(1234.5, 0.12345, low=-0.98765)},
        log_likelihood=lambda p, y: dist.Normal(p["x"], p["standard_deviation"]).log_prob(y),
        data=np.ones(9),
    )
    path = yo.fit(model, progress=False, mend=False).report(tmp_path / "laws.html")
    browser.screen(width, 900, mobile=True)
    browser.open(path)
    script = """(() => {
      const numbers = [...document.querySelectorAll(".whole")];
      return [numbers.length, numbers.filter((n) => n.getClientRects().length > 1).length,
              [...document.querySelectorAll(".findings td.limit")].filter((c) => c.offsetHeight && !c.textContent).length,
              document.documentElement.scrollWidth <= innerWidth];
    })()"""
    count, broken, empty, fits = browser.run(script)
    assert count >= 3 and broken == empty == 0 and fits


def test_cells_of_the_top_stay_in_one_line_on_a_wide_screen(browser, page):
    browser.screen(1200, 900)
    browser.open(page)
    script = """(() => {
      const all = [...document.querySelectorAll(".figures dd")];
      all.at(-1).innerHTML = "12.34 <small>+ 16.5 compiling</small>";
      return Math.max(...all.map((d) => d.offsetHeight));
    })()"""
    assert browser.run(script) < 40


def test_bars_do_not_touch_the_edge_of_a_chart(browser, tmp_path):
    counts = yo.fit(find_model("poisson"), progress=False).report(tmp_path / "counts.html")
    browser.screen(390, 30_000, mobile=True)
    browser.open(counts)
    browser.run("new Promise(r => setTimeout(r, 400))")
    script = """(() => {
      const svg = document.querySelector("#predictive svg"), clip = svg.querySelector("clipPath rect");
      const right = Number(clip.getAttribute("x")) + Number(clip.getAttribute("width"));
      const bars = [...svg.querySelectorAll("[data-series='replicated, 90%'] line")];
      return right - Math.max(...bars.map((b) => Number(b.getAttribute("x1"))));
    })()"""
    assert browser.run(script) > 6  # they are six wide, with round ends


# ---- nothing is cut off ----------------------------------------------------------------------------------


def test_tables_and_code_need_no_scrolling_sideways_on_a_phone(browser, page):
    browser.screen(390, 900, mobile=True)
    browser.open(page)
    script = "[...document.querySelectorAll('.scroll, pre')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
    assert browser.run(script) == 0


@pytest.mark.parametrize("width", [390, 1440])
def test_no_two_labels_of_a_chart_overlap(browser, page, width):
    browser.screen(width, 30_000, mobile=width < 500)
    browser.open(page)
    browser.run("new Promise(r => setTimeout(r, 400))")
    script = """[...document.querySelectorAll(".chart svg")].flatMap((svg) => {
      const texts = [...svg.querySelectorAll("text")].map((t) => [t.textContent, t.getBoundingClientRect()]), found = [];
      texts.forEach(([a, p], i) => texts.slice(i + 1).forEach(([b, q]) => {
        if (p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 3 && q.top < p.bottom - 3) found.push([a, b]);
      }));
      return found;
    })"""
    assert browser.run(script) == []


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in ("all", "clusters")])
def test_each_plot_alone_is_large_enough_has_labels_and_no_overlapping_ticks(schools, kind):
    figure = schools.plot(kind)
    width, height = figure.get_size_inches()
    assert width >= 6 and height >= (2.5 if kind == "forest" else 3.5)
    figure.savefig(io.BytesIO(), format="png", dpi=100)
    for ax in figure.axes:
        assert ax.get_xlabel() and (ax.get_ylabel() or kind == "forest") and ax.get_title(loc="left")
        for axis, side in ((ax.xaxis, "x"), (ax.yaxis, "y")):
            low, high = sorted(axis.get_view_interval())
            pairs = zip(axis.get_majorticklocs(), axis.get_ticklabels(), strict=True)
            boxes = [t.get_window_extent() for at, t in pairs if low <= at <= high and t.get_text()]
            boxes.sort(key=lambda b: getattr(b, f"{side}0"))
            apart = [getattr(b, f"{side}0") - getattr(a, f"{side}1") for a, b in pairwise(boxes)]
            assert len(boxes) >= 2 and min(apart) > 0, (kind, ax.get_title(loc="left"), side)


# ---- run it again ----------------------------------------------------------------------------------------


def test_the_command_in_a_report_of_the_command_line_runs_and_gives_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = "fit linear --method advi --seed 3 --max-steps 200 --set learning_rate=0.02 --report one.html --json --save kept"
    first = CliRunner().invoke(app, asked.split())
    assert first.exit_code == 0, first.output
    command = code_of(tmp_path / "one.html")
    assert "--save" not in command and "--json" not in command  # a second run into the same folder would be refused
    (tmp_path / "one.html").unlink()
    again = CliRunner().invoke(app, [*shlex.split(command)[1:], "--json"])
    assert again.exit_code == 0, again.output
    assert (tmp_path / "one.html").is_file() and shlex.split(command)[0] == "yoasovi"
    assert json.loads(again.stdout)["elbo"] == json.loads(first.stdout)["elbo"]


def test_the_command_of_a_comparison_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = ["compare", "linear", "--methods", "advi", "--max-steps", "90", "--family", "mean_field", "--report", "two.html"]
    assert CliRunner().invoke(app, asked).exit_code == 0
    command = shlex.split(code_of(tmp_path / "two.html"))
    assert command[:3] == ["yoasovi", "compare", "linear"] and set(command[1:]) == set(asked)
    (tmp_path / "two.html").unlink()
    assert CliRunner().invoke(app, command[1:]).exit_code == 0 and (tmp_path / "two.html").is_file()


def test_the_lines_in_a_report_made_in_python_run_once_the_model_is_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = find_model("linear")
    fit = yo.fit(model, "advi", family="mean_field", seed=5, max_steps=300, learning_rate=0.05, progress=False)
    path = fit.report(tmp_path / "again.html")
    text = unescape(path.read_text())
    assert "<code>model</code>: the model, made in Python of code and data that are not in this file" in text
    names = {"model": model}
    exec(code_of(path), names)
    assert names["fit"].elbo == fit.elbo and names["fit"].num_steps == 300
    fit.save(tmp_path / "kept")
    assert yo.load(tmp_path / "kept").asked == fit.asked


def test_numbers_of_numpy_are_repeated_as_plain_ones(tmp_path):
    model = find_model("linear")
    fit = yo.fit(model, max_steps=np.int64(50), restarts=np.int64(2), seed=np.int64(3), progress=False, mend=False)
    again = facts.again([fit], tmp_path / "r.html")
    assert "max_steps=50" in again.code and "restarts=2" in again.code and [name for name, _ in again.needs] == ["model"]


def test_an_object_that_was_given_to_fit_is_asked_for(schools, tmp_path):
    method = yo.methods.method("advi", learning_rate=0.02)
    fit = yo.fit(schools.model, method, max_steps=50, progress=False)
    found = facts.again([fit], tmp_path / "a.html")
    assert [name for name, _ in found.needs] == ["model", "method"]
    names = {"model": fit.model, "method": method, "yo": yo}
    exec(found.code.replace("fit.report('a.html')", ""), names)
    assert names["fit"].elbo == fit.elbo
    two = facts.again([fit, replace(schools, asked=None)], tmp_path / "a.html")
    assert [name for name, _ in two.needs] == ["model", "method", "options"] and "yo.fit(model, method," in two.code
