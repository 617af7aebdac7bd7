"""The paper run again: rows that survive an interruption, data, figures, evidence, and mistakes answered in one line."""

import csv
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from yoasovi.cli import app
from yoasovi.experiments import errata, fcps, figure1, figure2, files, networks, page, rows, table1
from yoasovi.experiments.rows import Task

ROOT = Path(__file__).parents[1]


# ---- rows ------------------------------------------------------------------------------------------------


def square(task, seed):
    return {"elbo": float(seed**2), "by": os.getpid()}


class Counted:
    """Counts its calls, and is interrupted at one of them."""

    def __init__(self, stop_at=None):
        self.calls, self.stop_at = [], stop_at

    def __call__(self, task, seed):
        if len(self.calls) == self.stop_at:
            raise KeyboardInterrupt
        self.calls.append((task.method, seed))
        return {"elbo": float(seed)}


def tasks(**settings):
    return [Task("toy", "p", method, (0, 1, 2), tuple(settings.items())) for method in ("a+", "b, c")]


def test_rows_already_done_are_not_run_again_after_an_interruption(tmp_path):
    first, second, third = Counted(stop_at=4), Counted(), Counted()
    with pytest.raises(KeyboardInterrupt):
        rows.run(first, tasks(), tmp_path, 1)
    found = rows.run(second, tasks(), tmp_path, 1)
    assert first.calls + second.calls == [(m, s) for m in ("a+", "b, c") for s in range(3)]
    assert [(row["method"], row["seed"]) for row in found] == [(m, s) for m in ("a+", "b, c") for s in range(3)]
    assert rows.run(third, tasks(), tmp_path, 1) == found and third.calls == []


def test_rows_of_other_settings_are_kept_apart_and_broken_or_outdated_ones_are_made_again(tmp_path):
    counts = [Counted() for _ in range(4)]
    full = rows.run(counts[0], tasks(steps=10), tmp_path, 1)
    rows.run(counts[1], tasks(steps=20), tmp_path, 1)
    assert rows.run(counts[2], tasks(steps=10), tmp_path, 1) == full
    first, *_, last = tasks(steps=10)
    first.path(tmp_path, 1).write_text('{"elbo": 1')
    last.path(tmp_path, 2).write_text(json.dumps({**last.head(2), "jax": "0.0", "elbo": 9.0}))
    assert rows.run(counts[3], tasks(steps=10), tmp_path, 1) == full
    assert [len(c.calls) for c in counts[:3]] == [6, 6, 0] and counts[3].calls == [("a+", 1), ("b, c", 2)]


def test_two_processes_give_the_rows_of_one(tmp_path):
    one, two = (rows.run(square, tasks(), tmp_path / str(n), n) for n in (1, 2))
    without = lambda found: [{k: v for k, v in row.items() if k != "by"} for row in found]
    assert without(one) == without(two) and {row["by"] for row in one} == {os.getpid()}
    assert os.getpid() not in {row["by"] for row in two}
    assert not list(tmp_path.rglob("*.part"))


def test_half_a_fit_is_no_row():
    with pytest.raises(KeyboardInterrupt):
        rows.numbers(SimpleNamespace(stop_reason=SimpleNamespace(name="INTERRUPTED")))


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    with pytest.raises(ValueError, match="fields not in fieldnames"):
        files.write_csv(tmp_path / "a.csv", [{"x": 1}, {"y": 2}])
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(tmp_path / "a.json", "command", [{"x": float("nan")}])
    assert list(tmp_path.iterdir()) == []


# ---- data ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, sizes",
    [
        ("Atom", (400, 400)), ("Chainlink", (500, 500)), ("EngyTime", (2048, 2048)), ("GolfBall", (4002,)),
        ("Hepta", (32, 30, 30, 30, 30, 30, 30)), ("Lsun", (202, 100, 101)), ("Target", (395, 363, 3, 3, 3, 3)),
        ("Tetra", (100, 100, 100, 100)), ("TwoDiamonds", (400, 400)), ("WingNut", (508, 508)),
    ],
)  # fmt: skip
def test_every_set_has_the_labels_that_its_figure_shows(name, sizes):
    points = fcps.load(name)
    assert tuple(np.bincount(points.labels)) == sizes and points.num_classes == len(sizes)
    assert points.y.shape == (sum(sizes), points.y.shape[1])
    if name in ("Hepta", "Tetra", "TwoDiamonds"):  # classes are apart: each point is nearest to its own centre
        centres = np.array([points.y[points.labels == k].mean(0) for k in range(len(sizes))])
        nearest = np.argmin(((points.y[:, None] - centres) ** 2).sum(-1), 1)
        np.testing.assert_array_equal(nearest, points.labels)


def test_coordinate_ascent_finds_the_authors_optimum_on_tetra():
    row = figure2.measure(Task("figure2", "Tetra", "cavi", (0,)), 0)
    assert row["authors_elbo"] == pytest.approx(-1616.22, abs=0.01)
    assert row["rand"] == 1.0 and row["authors_apart"] < 0.01  # those priors merge the clusters


def test_the_code_of_the_data_package_is_not_run():
    code = "import sys; from yoasovi.experiments import fcps; fcps.load('Hepta'); assert 'pyclustering' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- what is measured ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def naive_rows():
    task = Task("table1", "mixture-2-2", "yoasovi-naive", tuple(range(8)))
    return [{**task.head(seed), **table1.measure(task, seed)} for seed in task.seeds]


def test_naive_reports_a_thousand_nats_more_than_its_q_is_worth(naive_rows):
    """Author's settings, mixture (2,2): the selection effect of keeping lucky draws."""
    reported, fresh = (np.mean([row[name] for row in naive_rows]) for name in ("reported_elbo", "elbo"))
    assert reported - fresh > 1_000
    assert all(row["reported_elbo"] > row["elbo"] + 500 for row in naive_rows)
    assert all(row["distance"] > 1_000 and row["stop"] == "converged" for row in naive_rows)


def test_the_table_has_the_printed_row_beside_the_measured_one(naive_rows, tmp_path):
    (table,) = table1.report(naive_rows, tmp_path, "yoasovi reproduce table1")
    assert "175.5, 0.6, −4,005.4, 8,015.6" in table.cells[0]
    assert f"{np.mean([row['iterations'] for row in naive_rows]):,.0f} ± " in table.cells[0][1]
    (line,) = csv.DictReader((tmp_path / "table1.csv").open())
    assert float(line["elbo"]) == pytest.approx(np.mean([row["elbo"] for row in naive_rows]))
    assert float(line["printed_elbo"]) == -4005.4 and line["seeds"] == "8"
    whole = json.loads((tmp_path / "table1.json").read_text())
    assert whole["rows"] == naive_rows and whole["versions"]["jax"] and whole["machine"]["cores"] == os.cpu_count()
    # The processor's time is that of a fit which found its program compiled; the second did, whatever ran before.
    assert all((row["compile_s"] > 0) == (row["cpu_s"] is None) for row in naive_rows) and naive_rows[1]["compile_s"] == 0


def test_a_run_looked_at_along_the_way_is_one_run(monkeypatch):
    monkeypatch.setitem(figure2.LOOKS, "yoasovi-naive", (1, 20))
    row = figure2.measure(Task("figure2", "Tetra", "yoasovi-naive", (0,)), 0)
    assert [at["iterations"] for at in row["path"]] == [1, 20, row["iterations"]]
    assert row["path"][-1]["elbo"] == row["elbo"] and row["path"][-1]["reported_elbo"] == row["reported_elbo"]
    reported = [at["reported_elbo"] - at["elbo"] for at in row["path"]]
    assert reported[-1] > 500 and -0.5 < row["rand"] < 0.3


def test_quasi_monte_carlo_on_the_network_is_a_real_one():
    task = Task("networks", "3 layers", "qmcvi", (0,), (("hidden", (2,)), ("steps", 30)))
    row = networks.measure(task, 0)
    assert row["gradients"] == 300 and row["iterations"] == 30 and 0.5 < row["rmse"] < 10
    assert type(networks.method("qmcvi", 30).draws).__name__ == "Sobol"


def test_the_mean_accepted_update_points_away_from_the_gradient_unless_centred():
    found, sentence = errata.direction(1)
    assert found["cosine_M_0.5"] > 0.9 and found["cosine_M_2"] < -0.9 and found["cosine_M_2_centred"] > 0.9
    assert "−0.9" in sentence or "−1.00" in sentence


def test_evidence_that_needs_no_fit():
    assert errata.scale(1)[0]["sd"] == pytest.approx(1000, rel=0.02)
    assert errata.units(1)[0] == {"accept": 0.9, "accept_shifted": 0.0}
    assert list(errata.ERRATA) == list(range(1, 12))


# ---- figures and the page --------------------------------------------------------------------------------


def test_the_printed_formula_refuses_improvements():
    better, worse = np.array(figure1.REFERENCE + 500), np.array(figure1.REFERENCE - 500)
    accept = {name: (float(figure1.probability(rule, better)), float(figure1.probability(rule, worse)))
              for name, rule in figure1.RULES.items()}  # fmt: skip
    assert accept["naive"] == (1.0, 0.5) and accept["naive, as printed"] == (0.5, 1.0)
    assert accept["Metropolis"] == (1.0, pytest.approx(np.exp(-0.5)))


def all_rows():
    """Rows as the studies make them, of made-up figures, for all that is drawn and written from them."""
    cost = {"iterations": 7, "values": 70, "gradients": 3, "compile_s": 2.0, "run_s": 0.5, "cpu_s": 0.25}
    cost["stop"] = "converged"
    head = lambda problem, method, seed: {"problem": problem, "method": method, "seed": seed}
    one = [
        {**head("mixture-2-2", m, s), **cost, "reported_elbo": -1234.0, "elbo": -4321.0 - s, "distance": 77.0,
         "optimum": -1790.0, "dic": 5555.0, "labels": "latent"} for m in table1.METHODS for s in (0, 1)
    ]  # fmt: skip
    look = lambda n: {"iterations": n, "evaluations": n, "reported_elbo": -300.0, "elbo": -400.0 + n}
    end = {"reported_elbo": -300.0, "elbo": -391.0, "rand": 0.5, "path": [look(1), look(9)]}
    two = [{**head("Tetra", m, 0), **cost, **end} for m in figure2.LOOKS]
    two += [{**head("Tetra", figure2.SKLEARN, 0), "rand": 1.0}]
    two += [{**head("Tetra", "cavi", 0), "elbo": -380.0, "rand": 0.9, "authors_elbo": -1616.22, "authors_apart": 0.125}]
    nets = [
        {**head("3 layers", m, s), **cost, "settings": {"hidden": [50, 50]}, "reported_elbo": -900.0, "elbo": -1000.0 - s,
         "rmse": 3.25 if m == "yoasovi" else 1.25, "idle": 0.5, "dic": 1.0} for m in networks.METHODS for s in (0, 1)
    ]  # fmt: skip
    wrong = [{**head("erratum", str(i), 0), "found": {}, "evidence": f"evidence {i}"} for i in errata.ERRATA]
    return {table1: one, figure2: two, networks: nets, errata: wrong}


def test_the_page_and_the_figures_are_made_from_the_rows(tmp_path):
    out = tmp_path / "paper"
    for study, found in all_rows().items():
        study.report(found, out, "yoasovi reproduce")
    figure1.report([], out, "yoasovi reproduce figure1")
    text = page.page(out, "yoasovi reproduce all --out paper")
    pieces = ("−1,234", "−4,321.5 ± 0.7", "1.25", "−1,616.22 (0.125)", "on Tetra, 11.0 nats below", "evidence 11")
    said = ("its test RMSE is 1.25 against 3.25 with 3 layers", "| test RMSE of ADVI, 3 layers | 1.395 | 1.25 |")
    for piece in (*pieces, *said, "0.50 of its weights are back at their priors", "2 seed(s)", "Not run here: 4 layers"):
        assert piece in text, piece
    app(["reproduce", "all", "--page", "--out", str(out)], standalone_mode=False)
    assert out.with_name("paper.md").read_text() == text.replace("reproduce all --out paper", "reproduce")
    (out / "note.txt").write_text("A note.")
    app(["reproduce", "all", "--page", "--out", str(out)], standalone_mode=False)
    assert "\n\nA note.\n\n## What the paper claims" in out.with_name("paper.md").read_text()
    (out / "errata.json").unlink()
    with pytest.raises(ValueError, match="has no errata"):
        app(["reproduce", "all", "--page", "--out", str(out)], standalone_mode=False)
    shown = [line.split("](")[1].rstrip(")") for line in text.splitlines() if line.startswith("![")]
    assert len(shown) == 5 and all((tmp_path / name).exists() for name in shown)
    for name in shown:
        png = (tmp_path / name).with_suffix(".png").read_bytes()
        width = int.from_bytes(png[16:20], "big")
        assert png[:4] == b"\x89PNG" and width in (680, 1400)  # 3.4 and 7 inches at 200 dots
    first, second, *_ = csv.DictReader((out / "figure2.csv").open())
    assert (float(first["elbo"]), float(second["elbo"])) == (-399.0, -391.0)
    assert float(second["seconds"]) == pytest.approx(0.25 * 9 / 7, abs=1e-6)


def test_the_page_of_a_quick_run_says_what_was_cut_and_no_more(tmp_path):
    out, studies = tmp_path / "paper", all_rows()
    studies[networks] = [{**r, "settings": {"hidden": [10, 10], "steps": 250}} for r in studies[networks]]
    studies[figure2] = [{**r, "elbo": -390.95} if r["method"] == "cavi" else r for r in studies[figure2]]
    studies[figure2] = [{**r, "elbo": -390.9} if r["method"] == "yoasovi" else r for r in studies[figure2]]
    for study, found in studies.items():
        study.report(found, out, "yoasovi reproduce")
    text = " ".join(page.page(out, "yoasovi reproduce all --quick").split())
    assert (
        "250 iterations" in text
        and "here it is cut at 250 steps too" in text
        and "All fits of networks are cut at 250" in text
    )
    assert "settings, and stops by itself." not in text and "QMCVI is the better one" not in text
    assert "is not known" not in text and "most units are switched off" not in text
    assert "within 0.00 nats of it, and the worst, on Tetra, 0.0 nats below" in text and "](method.md)" not in text
    (tmp_path / "method.md").write_text("")
    assert "([method.md](method.md))" in page.page(out, "")


# ---- mistakes --------------------------------------------------------------------------------------------


def run(capsys, *words):
    with pytest.raises(SystemExit) as stop:
        app(list(words))
    return stop.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    "words, says",
    [
        (("table2",), "must be one of table1, figure1, figure2, networks, errata, all; got 'table2'"),
        (("table1", "--seeds", "0"), "`seeds` of `reproduce` must be a positive integer; got 0"),
        (("figure1", "--workers", "0"), "`workers` of `reproduce` must be a positive integer; got 0"),
        (("figure2", "--sets", "Hepta,Tetr"), "got 'Tetr'. Did you mean 'Tetra'?"),
    ],
)
def test_a_mistake_is_answered_in_one_line_and_nothing_is_written(capsys, tmp_path, words, says):
    code, err = run(capsys, "reproduce", *words, "--out", str(tmp_path / "out"))
    assert code == 2 and says in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_missing_data_package_is_named_with_its_extra_before_anything_is_run(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(fcps, "find_spec", lambda name: None if name == "pyclustering" else find_spec(name))
    code, err = run(capsys, "reproduce", "all", "--out", str(tmp_path / "out"))
    assert code == 2 and 'pip install "yoasovi[bench]"' in err and err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_refused_and_left_alone(capsys, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    code, err = run(capsys, "reproduce", "figure1", "--out", str(tmp_path / "file" / "out"))
    assert code == 2 and "must be a folder" in err and err.count("\n") == 1

    def refuse(self, _):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "write_bytes", refuse)  # a test may run as root, whom no folder refuses
    code, err = run(capsys, "reproduce", "figure1", "--out", str(tmp_path / "out"))
    assert code == 2 and "Permission denied" in err and err.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_one_figure_is_made_from_the_command_line(capsys, tmp_path):
    code, _ = run(capsys, "reproduce", "figure1", "--out", str(tmp_path / "out"))
    names = {p.name for p in (tmp_path / "out").iterdir()}
    assert code == 0 and names == {"figure1.csv", "figure1.json", "figure1.png", "figure1.svg"}
    assert f"--out {tmp_path / 'out'}" in json.loads((tmp_path / "out" / "figure1.json").read_text())["command"]
