"""Many fits: jobs on processes and on a Dask cluster, failures named, what is finished not run again."""

import json
import os

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import yoasovi as yo
from yoasovi.scale import pool, sweep as module
from yoasovi.scale.pool import Failure, each

QUICK = {"mend": False, "max_steps": 400}


def model(shift=0.0):
    y = np.array([1.0, 2.0, 0.5, 1.5]) + shift
    log_p = lambda p, y: dist.Normal(p["m"], 1.0).log_prob(y)
    return yo.Model(prior={"m": dist.Normal(0.0, 2.0)}, log_likelihood=log_p, data=jnp.asarray(y), name="mean")


# Lambdas, so that other processes need not import this file.
DOUBLED = lambda x: {0: 0, 1: 2, 2: 4, 4: 8}[x]
DIES = lambda x: os._exit(9) if x == 1 else x


@pytest.fixture(scope="module")
def client():
    distributed = pytest.importorskip("distributed")
    here = {"n_workers": 1, "threads_per_worker": 1, "processes": False, "dashboard_address": None}
    with distributed.LocalCluster(**here) as cluster, distributed.Client(cluster) as found:
        yield found


@pytest.fixture
def ran(monkeypatch):
    """Names of the jobs that are run, not taken from the disk."""
    names = []
    spied = lambda fn, jobs, *where: names.extend(job.name for job in jobs) or each(fn, jobs, *where)
    monkeypatch.setattr(module, "each", spied)
    return names


def test_calls_end_alike_here_elsewhere_and_on_a_cluster(client):
    here, there, far = (dict(each(DOUBLED, range(5), *where)) for where in ((1,), (2,), (1, client)))
    for found in (here, there, far):
        assert found[3].error == "KeyError: 3" and "lambda" in found[3].traceback
        assert {k: v for k, v in found.items() if k != 3} == {0: 0, 1: 2, 2: 4, 4: 8}


def test_a_process_that_dies_takes_no_other_call_with_it():
    found = dict(each(DIES, range(4), 2))
    assert isinstance(found[1], Failure) and "process died" in found[1].error
    assert [found[i] for i in (0, 2, 3)] == [0, 2, 3]


def test_an_address_where_no_scheduler_answers_is_named(monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr(pool, "_PATIENCE", "1s")
    with pytest.raises(ValueError, match=r"no scheduler answers at 'tcp://127.0.0.1:9'"):
        list(each(DOUBLED, [1], client="tcp://127.0.0.1:9"))
    with pytest.raises(ValueError, match=r"must be a distributed.Client or its address; got 7"):
        list(each(DOUBLED, [1], client=7))


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Two models, one of which cannot be fitted with these options, by two methods."""
    out = tmp_path_factory.mktemp("sweep")
    todo = yo.jobs({"a": model(), "b": model(3.0)}, methods=("yoasovi", "advi"), seeds=2, **QUICK)
    todo += [yo.Job("bad/yoasovi/0", model(), options={"family": "cubic"}), yo.Job("worse/yoasovi/0", "no model")]
    said = []
    return todo, out, yo.sweep(todo, out=out, workers=1, say=said.append), said


def test_what_fails_is_named_and_the_rest_is_there(swept):
    todo, _, found, said = swept
    assert [row["name"] for row in found.rows] == [job.name for job in todo[:-2]] and len(found.rows) == 8
    assert "`family` of `fit` must be" in found.failures["bad/yoasovi/0"].error
    assert "must be a Model" in found.failures["worse/yoasovi/0"].error
    assert len(said) == 9 and said[0] == "a/yoasovi/0: good (2 of 10)"
    for line in ("| a | yoasovi | 2 | 2 |", "bad/yoasovi/0 failed: ValueError"):
        assert line in str(found)
    (plot,) = {len(found.plot().axes)}
    assert plot == 2


def test_a_fit_of_a_sweep_comes_back_with_its_model(swept):
    _, _, found, _ = swept
    fit = found.fit("b/yoasovi/1")
    again = yo.fit(model(3.0), seed=1, progress=False, **QUICK)
    assert fit.elbo == again.elbo and fit.mean()["m"] == again.mean()["m"]
    with pytest.raises(ValueError, match=r"`name` of `Sweep.fit` must be that of a finished job"):
        found.fit("c")


def test_only_what_is_missing_runs_again(swept, ran, client):
    todo, out, found, _ = swept
    (out / "a/advi/1/row.json").write_text("{")  # as if it had been cut
    mended = [*todo[:-2], yo.Job("bad/yoasovi/0", model(), options=QUICK), yo.Job("worse/yoasovi/0", model(), options=QUICK)]
    mended[0] = yo.Job(mended[0].name, model(0.1), options=QUICK)  # other data under the same name
    again = yo.sweep(mended, client, out=out)
    assert ran == ["a/yoasovi/0", "a/advi/1", "bad/yoasovi/0", "worse/yoasovi/0"] and not again.failures
    assert again.rows[1:3] == found.rows[1:3] and again.rows[3]["elbo"] == found.rows[3]["elbo"]
    assert json.loads((out / "a/advi/1/row.json").read_text())["identity"] == found.rows[3]["identity"]


@pytest.mark.exhaustive
def test_a_cluster_of_processes_runs_64_fits_and_then_only_those_that_failed(tmp_path, ran):
    distributed = pytest.importorskip("distributed")
    todo = yo.jobs({"a": model(), "b": model(3.0)}, seeds=32, **QUICK)
    wrong = {7, 40, 63}
    broken = [yo.Job(job.name, job.model, "no such method") if i in wrong else job for i, job in enumerate(todo)]
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        first = yo.sweep(broken, cluster.scheduler_address, out=tmp_path)
        assert len(first.rows) == 61 and set(first.failures) == {todo[i].name for i in wrong}
        ran.clear()
        assert len(yo.sweep(todo, cluster.scheduler_address, out=tmp_path).rows) == 64
    assert set(ran) == set(first.failures)


def test_bad_jobs_are_refused():
    one = yo.Job("x", model())
    for jobs, text in (([one, one], r"names that occur once; got \['x'\]"), ([model()], "must be a list of Job"),
                       ([yo.Job("../x", model())], "names that can be folders")):  # fmt: skip
        with pytest.raises(ValueError, match=text):
            yo.sweep(jobs)
    with pytest.raises(ValueError, match="`methods` of `jobs` must be a list"):
        yo.jobs({"a": model()}, methods="advi")


def test_calibration_runs_on_several_processes_as_on_one():
    simulate = lambda key, p: p["m"] + dist.Normal(0.0, 1.0).sample(key, (4,))
    one, two = (yo.calibrate(model(), simulate, 4, draws=100, workers=n, **QUICK) for n in (1, 2))
    np.testing.assert_array_equal(one.p_values, two.p_values)
    assert one.names == two.names == ["m"]
