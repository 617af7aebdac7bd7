"""One fit over several devices and processes: the same answer, one process that writes, clear words when one is lost."""

import os
import signal
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from numpyro.distributions import constraints

import yoasovi as yo
from yoasovi.scale import sharding

SAME = """
import jax, numpy as np, yoasovi as yo
rng = np.random.default_rng(0)
X = rng.normal(size=(120, 3))
model = yo.models.LogisticRegression(X, (rng.random(120) < 1 / (1 + np.exp(-X @ np.ones(3)))).astype(float))
def told(mesh):
    fit = yo.fit(model, seed=0, mesh=mesh, mend=False, progress=False)
    found = [fit.elbo.value, *np.ravel(fit.mean()["coefficients"]), fit.loo().elpd, fit.num_gradients]
    return [float(x) for x in found]
"""


def environment(devices=1):
    return os.environ | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}", "JAX_PLATFORMS": "cpu"}


def test_devices_of_one_process_agree_but_for_the_order_of_sums():
    code = SAME + "print([told(m) for m in (None, jax.devices()[:2], 'all')])"
    done = subprocess.run([sys.executable, "-c", code], env=environment(4), capture_output=True, text=True, check=True)
    alone, two, four = eval(done.stdout)
    np.testing.assert_allclose(two, alone, rtol=1e-9)
    np.testing.assert_allclose(four, alone, rtol=1e-9)


def test_bad_meshes_are_refused():
    rng = np.random.default_rng(0)
    model = yo.models.LinearRegression(rng.normal(size=(10, 2)), rng.normal(size=10))
    mesh = lambda shape, axes: jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(shape), axes)
    wrong = {"a mesh of one axis": mesh((1, 1), ("a", "b")), '"all", a list of devices': "some", "a list of devices": []}
    for text, given in wrong.items():
        with pytest.raises(ValueError, match=f"`mesh` of `fit` must be .*{text}"):
            yo.fit(model, mesh=given)
    one = yo.Model.from_log_density(lambda p: -(p["x"] ** 2), {"x": constraints.real})
    with pytest.raises(ValueError, match="None for a model without arrays of one row per observation"):
        yo.fit(one, mesh="all")


def test_rows_that_do_not_go_evenly_over_devices_are_refused_with_what_would_do(monkeypatch):
    rng = np.random.default_rng(0)
    model = yo.models.LinearRegression(rng.normal(size=(10, 2)), rng.normal(size=10))

    class Four:
        size, axis_names = 4, ("rows",)

    monkeypatch.setattr(sharding, "as_mesh", lambda given: Four())
    with pytest.raises(ValueError, match="10 rows do not go evenly over 4 devices; leave out 2, or use 2 devices"):
        yo.fit(model, mesh="all")


def test_a_coordinator_that_does_not_answer_is_named():
    with pytest.raises(ValueError, match=r"nobody answered at 127.0.0.1:9 within 0 s"):
        yo.connect("127.0.0.1:9", 2, 1, seconds=0)
    for bad, text in ((("host", 2, 1), "must be HOST:PORT"), (("host:1", 2, 2), "must be from 0 to 1")):
        with pytest.raises(ValueError, match=text):
            yo.connect(*bad)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.mark.exhaustive
def test_two_processes_give_the_answer_of_one():
    port = free_port()
    code = lambda i: f"import yoasovi as yo; yo.connect('127.0.0.1:{port}', 2, {i}, 120)\n{SAME}\nprint(told('all'))"
    start = lambda i: subprocess.Popen([sys.executable, "-c", code(i)], env=environment(), stdout=subprocess.PIPE, text=True)
    both = [start(0), start(1)]
    one, two = (eval(x.communicate(timeout=300)[0].splitlines()[-1]) for x in both)
    here = {}
    exec(SAME, here)
    assert one == two
    np.testing.assert_allclose(one, here["told"](None), rtol=1e-9)


@pytest.mark.exhaustive
def test_a_process_that_is_killed_ends_the_other_with_a_checkpoint_that_can_be_used(tmp_path):
    port, folder = free_port(), tmp_path / "run"
    table = tmp_path / "table.csv"
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 3))
    rows = np.column_stack([X, X @ [1.0, 2.0, 3.0] + rng.normal(size=4000)])
    np.savetxt(table, rows, delimiter=",", header="a,b,c,y", comments="")
    run = [sys.executable, "-m", "yoasovi.cli", "fit", "linear", "--data", str(table), "--method", "advi", "--no-verdict"]
    run += ["--max-steps", "200000", "--checkpoint", str(folder), "--checkpoint-seconds", "0.2", "--quiet"]
    more = lambda i: ["--coordinator", f"127.0.0.1:{port}", "--num-processes", "2", "--process-id", str(i)]
    start = lambda i: subprocess.Popen(
        run + more(i), env=environment(), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    first, second = start(0), start(1)
    while not list(folder.glob("*.checkpoint")):
        assert first.poll() is None, first.communicate()
        time.sleep(0.2)
    second.send_signal(signal.SIGKILL)
    begin = time.monotonic()
    _, said = first.communicate(timeout=60)
    assert first.returncode == 2 and time.monotonic() - begin < 60
    assert "another process of this fit is gone" in said and "resume=True (--resume)" in said
    done = subprocess.run([*run, "--resume", "--json"], env=environment(), capture_output=True, text=True, check=True)
    assert '"stop_reason"' in done.stdout
