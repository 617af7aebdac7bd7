"""This library beside others: the same density for all, rows that say what happened, and a page that hides no win."""

import json
import signal
import subprocess

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.handlers import seed, trace

import yoasovi as yo
from yoasovi.bench import judged, page, peers, run, worker
from yoasovi.bench.peers import PEERS, FlatNormal
from yoasovi.bench.posteriors import POSTERIORS, Case
from yoasovi.bench.target import Scorer
from yoasovi.cli import app
from yoasovi.kernels.programs import precision

FORMS = [x for x in POSTERIORS if POSTERIORS[x].model in run._pymc_forms() and x != "groups-of-three"]


def known(y):
    x = numpyro.sample("x", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    numpyro.sample("y", dist.Normal(x.sum(), 1.0), obs=y)


# ---- posteriors ------------------------------------------------------------------------------------------


def test_posteriors_have_the_dimensions_that_the_table_says_and_span_2_to_3000():
    for name, posterior in POSTERIORS.items():
        case = Case(name)

        def latents(*args, case=case):
            sites = trace(seed(case.model, 0)).get_trace(*args).values()
            return [x["value"] for x in sites if x["type"] == "sample" and not x["is_observed"]]

        assert sum(x.size for x in jax.eval_shape(latents, *case.args)) == posterior.dim, name
    assert min(x.dim for x in POSTERIORS.values()) == 2 and max(x.dim for x in POSTERIORS.values()) > 3000
    assert len(POSTERIORS) >= 12


@pytest.mark.parametrize("name", FORMS)
def test_pymc_forms_have_the_same_log_density(name):
    from numpyro.infer.util import potential_energy
    from pytensor import function

    case = Case(name)
    model = case.pymc
    start = model.initial_point()
    flat = 0.3 * np.random.default_rng(0).normal(size=POSTERIORS[name].dim)
    ordering, i = {}, 0
    for value in model.value_vars:
        size = start[value.name].size
        ordering[value.name] = (value.name, slice(i, i + size))
        i += size
    theirs = np.empty_like(flat)
    theirs[peers.flat_order(ordering)] = flat
    log_p = function(model.value_vars, model.logp(), mode="FAST_COMPILE")
    point = [theirs[ordering[v.name][1]].reshape(start[v.name].shape) for v in model.value_vars]
    names = sorted(peers.plain(v.name) for v in model.value_vars)
    shapes = {peers.plain(v.name): start[v.name].shape for v in model.value_vars}
    ends = np.cumsum([int(np.prod(shapes[k])) for k in names])
    parts = dict(zip(names, np.split(flat, ends[:-1]), strict=True))
    with precision():
        sites = {k: jnp.asarray(parts[k].reshape(shapes[k])) for k in names}
        ours = -potential_energy(case.model, case.args, {}, sites)
    np.testing.assert_allclose(float(ours), float(log_p(*point)), rtol=1e-6)


# ---- what is said of answers -----------------------------------------------------------------------------


def test_the_elbo_of_the_exact_posterior_is_the_evidence_without_error():
    scorer = Scorer(known, (1.5,))
    cov = np.linalg.inv(np.eye(2) + 1.0)
    exact = FlatNormal.of(cov @ [1.5, 1.5], np.linalg.cholesky(cov))
    value, error = scorer.elbo(*exact.draw(200, 0))
    evidence = -0.5 * np.log(2 * np.pi * 3) - 1.5**2 / 6
    assert value == pytest.approx(evidence, abs=1e-9) and error < 1e-9
    marginal = FlatNormal.of(exact.mean, np.sqrt(np.diagonal(cov)))
    assert scorer.elbo(*marginal.draw(4000, 0))[0] < evidence - 0.05


def test_yoasovi_looks_at_the_same_log_density():
    case = Case("proportions")
    fit = yo.fit(yo.from_numpyro(case.model, *case.args), family="full_rank", mend=False, progress=False)
    draws, theta, _ = fit.draws(50, 0, False)
    flat = np.column_stack([np.log(draws["mean"] / (1 - draws["mean"])), np.log(draws["size"])])
    np.testing.assert_allclose(Scorer(case.model, case.args).heights(flat), fit.kernels.densities(fit.lane, theta)[0])


@pytest.mark.parametrize("guide", ["AutoNormal", "AutoMultivariateNormal"])
def test_the_normal_read_from_svi_has_the_quantiles_that_its_guide_says(guide, monkeypatch):
    from numpyro.infer import SVI

    monkeypatch.setattr(peers, "MARKS", (100, 400))
    monkeypatch.setattr(peers, "STEPS", 400)
    old, seen = SVI.get_params, []
    monkeypatch.setattr(SVI, "get_params", lambda self, state: seen.append((self.guide, old(self, state))) or seen[-1][1])
    found = peers.svi(Case("counts"), guide, 0.01)(0)
    normal = found.marks[-1].found
    sds = normal.root if guide == "AutoNormal" else np.linalg.norm(normal.root, axis=1)
    there, params = seen[-1]
    for z, p in ((0.0, 0.5), (1.0, 0.8413447)):
        said = there.quantiles(params, p)
        np.testing.assert_allclose(normal.mean + z * sds, np.append(said["a"], said["b"]), atol=1e-4)
    assert [x.steps for x in found.marks] == [100, 400] and 0 < found.marks[0].seconds < found.seconds


def test_blackjax_keeps_its_root_as_it_is_read_here():
    from blackjax.vi.fullrank_vi import generate_fullrank_logdensity

    params = np.array([0.2, -0.5, 0.1, 0.7, -1.1, 0.4])
    theta, log_q = FlatNormal.of([1.0, 2.0, 3.0], peers.lower_root(params, 3)).draw(5, 0)
    theirs = jax.vmap(generate_fullrank_logdensity(jnp.array([1.0, 2.0, 3.0]), jnp.array(params)))(jnp.asarray(theta))
    np.testing.assert_allclose(log_q, theirs, rtol=1e-4)


def test_a_row_is_made_in_a_fresh_process_and_a_failure_is_a_row():
    row = run.measure(
        run.Task("bench", "proportions", "yoasovi, full-rank", (0,), (("quick", True),)), 0, run._cores(1), 300
    )
    assert row["cold_s"] > row["warm_s"] > 0 and row["verdict"] and row["elbo_se"] < 0.1
    assert set(row["mean"]) == {"mean", "size"} and row["gradients"] > 0
    broken = run.measure(run.Task("bench", "proportions", "nobody", (0,), (("quick", True),)), 0, run._cores(1), 300)
    assert "nobody" in broken["error"]


def test_paper_methods_are_shown_by_their_own_draws(monkeypatch):
    asked = []
    monkeypatch.setattr(yo.Fit, "sample", lambda self, n, corrected=None: asked.append(corrected) or {})
    case = Case("proportions")
    for method in ("yoasovi", "qmcvi"):
        found = peers.ours(case, method, family="mean_field", max_steps=20)(0)
        found.sites(10)
        assert (found.verdict is None) == (method == "qmcvi")
    assert asked == [None, False]


# ---- rows beside each other ------------------------------------------------------------------------------


def made(method, family, elbo, cold, warm, mean=0.0, sd=1.0, marks=(), problem="schools"):
    return {
        "problem": problem, "method": method, "seed": 0, "family": family, "elbo": elbo, "elbo_se": 0.01, "cold_s": cold,
        "warm_s": warm, "values": 10, "gradients": 20, "marks": [list(x) for x in marks], "verdict": None, "note": "",
        "mean": {"x": [mean, 0.0]}, "sd": {"x": [sd, 1.0]},
    }  # fmt: skip


REFERENCE = {"schools": {"mean": {"x": [0.0, 0.0]}, "sd": {"x": [1.0, 1.0]}, "rhat": 1.0, "ess": 4000.0}}
ROWS = [
    made("yoasovi", "full_rank", -10.0, 3.0, 0.2, mean=0.05, sd=1.0),
    made("SVI AutoNormal, Adam 0.01", "mean_field", -12.0, 9.0, 0.5, marks=[(50, 8.0, 0.1, -20.0), (100, 8.1, 0.3, -12.5)]),
    made("SVI AutoMultivariateNormal, Adam 0.01", "full_rank", -10.4, 9.5, 0.9, marks=[(50, 9.0, 0.1, -10.8)]),
    made("NUTS", "draws", None, 2.0, 1.0, mean=0.01),
    {"problem": "schools", "method": "PyMC ADVI", "seed": 0, "error": "ValueError: no"},
]


def test_errors_are_in_sds_of_the_reference_and_quality_follows_from_them():
    wide = {"schools": {"mean": {"x": [0.0, 0.0]}, "sd": {"x": [1.0, 2.0]}}}
    row = judged.judged([made("a", "x", 0.0, 1, 1, mean=0.2, sd=2.0)], wide, POSTERIORS)[0]
    assert row["mean_error"] == 0.2 and (row["sd_low"], row["sd_high"], row["at_nuts"]) == (0.5, 2.0, False)
    assert [x["at_nuts"] for x in judged.judged(ROWS, REFERENCE, POSTERIORS)] == [True, True, True, True, None]
    off = judged.judged([made("a", "x", 0.0, 1, 1, mean=None)], REFERENCE, POSTERIORS)[0]
    assert off["mean_error"] is None and off["at_nuts"] is False


def test_time_to_a_nat_is_that_of_the_first_mark_near_the_best_of_the_family_else_of_the_end():
    rows = judged.judged(ROWS, REFERENCE, POSTERIORS)
    assert [(x["cold_to_nat"], x["warm_to_nat"]) for x in rows[:4]] == [(3.0, 0.2), (8.1, 0.3), (9.0, 0.1), (None, None)]
    race = judged.races(rows)[0]
    assert race.bar == -10.0 and race.setting == "SVI AutoMultivariateNormal, Adam 0.01"
    assert race.ratio(True) == pytest.approx(2.0) and race.ratio(False) == pytest.approx(1 / 3)


def test_a_mended_form_sets_no_bar_for_others_and_structure_counts_as_covariance():
    better = [made("yoasovi", "full_rank, mended", -3.0, 3.0, 0.2), *ROWS[1:3], made("a", "arrow", -10.3, 2.0, 0.3)]
    rows = judged.judged(better, REFERENCE, POSTERIORS)
    assert [x["best_elbo"] for x in rows] == [-10.3, -12.0, -10.3, -10.3] and rows[0]["warm_to_nat"] == 0.2
    assert judged.races(rows)[0].bar == -10.3


def test_wins_of_others_are_said():
    rows = judged.judged([*ROWS, made("PyMC fullrank ADVI", "full_rank", -7.0, 9.0, 3.0)], REFERENCE, POSTERIORS)
    said = "\n".join(judged.wins(rows, judged.races(rows)))
    assert "PyMC fullrank ADVI ends 3.0 nats higher than the default" in said
    assert "NUTS takes 2.0 s from a cold start, the default 3.0 s" in said
    failed = judged.judged([{"problem": "schools", "method": "yoasovi", "error": "late"}, *ROWS[1:]], REFERENCE, POSTERIORS)
    assert judged.wins(failed, judged.races(failed)) == ["schools: the default gave no answer: late."]
    slower = judged.judged(ROWS, REFERENCE, POSTERIORS)
    said = "\n".join(judged.wins(slower, judged.races(slower)))
    first = "schools: SVI AutoMultivariateNormal, Adam 0.01 is within a nat of the best normal q after 0.1 s (warm)"
    assert f"{first}, the default takes 0.2 s." in said and "(cold)" not in said
    alike = judged.judged([*ROWS, made("yoasovi, full-rank", "full_rank", -30.0, 3.0, 0.2)], REFERENCE, POSTERIORS)
    said = "\n".join(judged.wins(alike, judged.races(alike)))
    assert "is within a nat after 9 s (cold), `yoasovi, full-rank` never gets there." in said


# ---- the whole -------------------------------------------------------------------------------------------


@pytest.fixture
def without_blackjax(monkeypatch):
    there = run.find_spec
    monkeypatch.setattr(run, "find_spec", lambda name: None if name == "blackjax" else there(name))


def test_what_cannot_be_run_is_listed_with_the_reason(without_blackjax):
    plan = run.planned({x: POSTERIORS[x] for x in ("schools", "process", "areas")}, tuple(PEERS), 0, True)
    there = {(task.problem, task.method) for task in plan.tasks}
    assert not [x for x in there if x[1].startswith("BlackJAX")] and ("schools", "PyMC ADVI") in there
    assert ("process", "PyMC ADVI") not in there and ("areas", "SVI AutoMultivariateNormal, Adam 0.01") not in there
    said = " ".join(plan.left_out)
    assert "blackjax is not installed: BlackJAX meanfield_vi" in said
    assert "No PyMC form here, so no PyMC row: process." in said and "beyond 500 dimensions: areas." in said


def test_a_run_keeps_its_rows_and_writes_json_page_and_figure(tmp_path, monkeypatch, without_blackjax, capsys):
    calls = []

    def measure(task, seed, cores, limit, folder):
        calls.append(task.method)
        row = next((x for x in ROWS if x["method"] == task.method), REFERENCE["schools"])
        return {k: v for k, v in row.items() if k not in ("problem", "method", "seed")}

    monkeypatch.setattr(run, "measure", measure)
    out, names = tmp_path / "performance", [x["method"] for x in ROWS]
    words = [x for name in [*names, "BlackJAX pathfinder"] for x in ("--peer", name)]
    command = ["bench", "--posterior", "schools", *words, "--out", str(out), "-q"]
    app(command, standalone_mode=False)
    assert sorted(calls) == sorted([worker.REFERENCE, *names])
    found, text = json.loads((out / "bench.json").read_text()), (tmp_path / "performance.md").read_text()
    assert [x["method"] for x in found["rows"]] == names and found["command"].startswith("yoasovi bench --posterior schools")
    assert (out / "bench.svg").exists() and "](performance/bench.svg)" in text
    assert "NUTS takes 2.0 s from a cold start" in text and "Failed: schools, PyMC ADVI: ValueError: no" in text
    assert "| yoasovi | full rank | 3.0 | 0.2 | 10 | 20 | −10.00 ± 0.01 | 0.05 |" in text
    assert "blackjax is not installed" in text
    assert "any SVI, warm: within a nat sooner on 0 of 1 posteriors; where both get there, 1, in 2.00 times" in text
    assert "any SVI, cold: within a nat sooner on 1 of 1 posteriors" in text
    assert "PyMC ADVI" in capsys.readouterr().out
    app(command, standalone_mode=False)
    assert len(calls) == 1 + len(names)
    page.write(out)
    assert (tmp_path / "performance.md").read_text() == text


def test_rows_side_by_side_have_a_core_and_a_thread_each_and_alone_all(monkeypatch):
    seen = []

    def ran(command, env, **_):
        seen.append(
            (json.loads(command[-1])["core"], env.get("OMP_NUM_THREADS"), "multi_thread" in env.get("XLA_FLAGS", ""))
        )
        return subprocess.CompletedProcess(command, 0, '{"elbo": 1.0}', "")

    monkeypatch.setattr(run.subprocess, "run", ran)
    monkeypatch.setattr(run.os, "sched_getaffinity", lambda _: {4, 7}, raising=False)
    for name in ("OMP_NUM_THREADS", "XLA_FLAGS"):
        monkeypatch.delenv(name, raising=False)
    task = run.Task("bench", "schools", "NUTS", (0,), (("quick", True),))
    for jobs, free in ((2, 2), (1, 1)):
        cores = run._cores(jobs)
        for _ in range(2):
            assert run.measure(task, 0, cores, 9) == {"elbo": 1.0}
        assert cores.qsize() == free
    assert seen == [(4, "1", True), (7, "1", True), (None, None, False), (None, None, False)]


def test_a_row_that_is_stopped_with_the_run_is_no_row_and_one_that_is_late_says_so(monkeypatch):
    task, alone = run.Task("bench", "schools", "NUTS", (0,), (("quick", True),)), run._cores(1)
    monkeypatch.setattr(run.subprocess, "run", lambda c, **_: subprocess.CompletedProcess(c, -signal.SIGTERM, "", ""))
    with pytest.raises(KeyboardInterrupt):
        run.measure(task, 0, alone, 9)

    def late(command, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(run.subprocess, "run", late)
    assert run.measure(task, 0, alone, 90) == {"error": "not done within 90 seconds"}


def test_mistakes_are_answered_in_one_line_before_anything_is_run(tmp_path):
    for words, said in (
        (["--peer", "nuts"], "`peer` of `bench` must be one of .*Did you mean 'NUTS'"),
        (["--posterior", "school"], "Did you mean 'schools'"),
        (["--jobs", "0"], "`jobs` of `bench` must be a positive integer; got 0"),
        (["--jobs", "100000"], "`jobs` of `bench` must be 1, or up to the number of cores"),
        (["--page"], "`out` of `bench` must be a folder with a bench.json"),
    ):
        with pytest.raises(ValueError, match=said):
            app(["bench", *words, "--out", str(tmp_path / "x")], standalone_mode=False)
    assert not list(tmp_path.iterdir())


def test_the_list_names_every_posterior_and_method(capsys):
    app(["bench", "--list"], standalone_mode=False)
    said = capsys.readouterr().out
    assert all(f"  {name}" in said for name in [*POSTERIORS, *PEERS])


def test_who_never_gets_there_takes_forever_in_the_median_of_all():
    race = lambda ours, theirs: judged.Race("x", "default", -1.0, (ours, ours), (theirs, theirs), "SVI")
    found = [race(1.0, 2.0), race(1.0, None), race(None, 1.0), race(None, None)]
    assert judged.middle_of_all(found, True) == 0.5 and judged.middle_ratio(found, True)[2] == 1
