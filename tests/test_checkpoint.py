"""Runs that end before their end: SIGKILL, full disks, damaged files, other fits' checkpoints, Ctrl-C."""

import ast
import errno
import json
import os
import pty
import resource
import signal
import subprocess
import sys
import threading
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import yoasovi as yo
from yoasovi.cli.models import find_model
from yoasovi.files import checkpoint, identity, storage
from yoasovi.kernels.programs import Bound, Clock, Held
from yoasovi.model import HostDensity
from yoasovi.numpyro import from_numpyro
from yoasovi.run.interrupts import Interrupts
from yoasovi.stopping import StopReason

STEPS = 8_000


def same(a, b):
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(x, y, equal_nan=np.asarray(x).dtype.kind == "f") for x, y in leaves)


def same_fit(a, b):
    timeless = lambda fit: {k: v for k, v in fit.trace.items() if k != "elapsed"}
    counts = lambda fit: (fit.num_steps, fit.num_values, fit.num_gradients, fit.nonfinite, fit.stop_reason, fit.elbo)
    return same(a.params, b.params) and same(timeless(a), timeless(b)) and counts(a) == counts(b)


# ---- SIGKILL ---------------------------------------------------------------------------------------------

# Forks a child for every line of arguments; the child is a whole `yoasovi fit` whose imports are already done.
FORKER = """
import json, os, signal, sys, warnings
import jax, numpyro, optax, scipy.optimize, yoasovi.cli, yoasovi.cli.models, yoasovi.fitting, yoasovi.models
warnings.simplefilter("ignore")  # of a fork after an import of JAX, whose backend is not there yet
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        sys.argv = ["yoasovi", *json.loads(line)]
        yoasovi.cli.main()
    print(child, flush=True)
"""


class Forker:
    def __init__(self, cache):
        cached = {"JAX_COMPILATION_CACHE_DIR": str(cache), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", FORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **cached},
        )  # fmt: skip

    def run(self, folder, *more):
        args = ["fit", "linear", "--method", "advi", "--max-steps", str(STEPS), "--json", "--quiet"]
        args += ["--checkpoint", str(folder), "--checkpoint-steps", "1", *more]
        self.process.stdin.write(json.dumps(args) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


def alive(child):
    try:
        os.kill(child, 0)
    except ProcessLookupError:
        return False
    return True


def until(condition, seconds=600):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened for too long"
        time.sleep(0.005)


def kill(child):
    os.kill(child, signal.SIGKILL)
    until(lambda: not alive(child))


def reached(folder):
    """Give the step of the newest checkpoint, -1 before there is one."""
    slots = [folder / slot for slot in checkpoint.SLOTS if (folder / slot).exists()]
    return max((json.loads(path.open("rb").readline())["head"]["step"] for path in slots), default=-1)


@pytest.mark.parametrize("most", [5, pytest.param(25, marks=pytest.mark.exhaustive)])
def test_a_fit_killed_at_random_moments_resumes_to_the_same_bits(tmp_path, most):
    model, rng = find_model("linear", "advi"), np.random.default_rng(7)
    whole = yo.fit(model, "advi", max_steps=STEPS)
    forker, kills = Forker(tmp_path / "cache"), 0
    try:
        for k in range(2 * most):
            folder = tmp_path / f"killed{k}"
            child = forker.run(folder)
            if k % 4 == 3:  # now and then before anything is written
                time.sleep(rng.uniform(0.0, 1.0))
            else:
                target = rng.uniform(0, 0.9) * STEPS
                until(lambda: reached(folder) >= target or not alive(child))
                time.sleep(rng.uniform(0.0, 0.02))  # somewhere in the next turns, or while it is written
            if not alive(child):
                continue  # it was faster: no kill
            kill(child)
            resumed = yo.fit(model, "advi", max_steps=STEPS, checkpoint=folder, resume=True)
            assert same_fit(resumed, whole)
            names = {p.name for p in folder.iterdir()}
            assert names <= set(checkpoint.SLOTS), names
            kills += 1
            if kills == most:
                break
        assert kills == most
        # And once by the command line, which must give the same answer as the library.
        child = forker.run(tmp_path / "last")
        until(lambda: reached(tmp_path / "last") > STEPS / 2)
        kill(child)
        child = forker.run(tmp_path / "last", "--resume")
        until(lambda: not alive(child))
        ended = yo.fit(model, "advi", max_steps=STEPS, checkpoint=yo.Checkpoint(tmp_path / "last", 1e9), resume=True)
        assert same_fit(ended, whole)
    finally:
        forker.process.kill()
        forker.process.wait()


# ---- resuming --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def schools():
    return find_model("eight-schools")


@pytest.fixture(scope="module")
def whole(schools):
    return yo.fit(schools, seed=3)


class Crash(Exception):
    pass


def crash_at(monkeypatch, nth, how=None):
    """Let the nth write of a checkpoint fail, or do `how` and then write."""
    write, count = checkpoint.Store.write, [0]

    def counted(self, *args):
        count[0] += 1
        if count[0] == nth and how is None:
            raise Crash
        if count[0] == nth:
            how()
        return write(self, *args)

    monkeypatch.setattr(checkpoint.Store, "write", counted)


def every_turn(folder):
    return yo.Checkpoint(folder, steps=1)


def crashed(monkeypatch, model, folder, nth=3, **options):
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_at(patch, nth)
        yo.fit(model, checkpoint=every_turn(folder), **options)


def crash_inside(monkeypatch, nth):
    """Let the nth call of a compiled program fail, or of the host's function."""
    count = [0]
    for owner, name in ((Bound, "__call__"), (HostDensity, "_looks")):
        original = getattr(owner, name)

        def counted(self, *args, plain=original):
            count[0] += 1
            if count[0] == nth:
                raise Crash
            return plain(self, *args)

        monkeypatch.setattr(owner, name, counted)
    return count


def test_the_default_method_resumes_to_the_same_bits_and_gives_a_finished_run_again(monkeypatch, tmp_path, schools, whole):
    for nth in (1, 2, 5):  # before anything is written, after one, after several
        folder = tmp_path / str(nth)
        crashed(monkeypatch, schools, folder, nth, seed=3)
        resumed = yo.fit(schools, seed=3, checkpoint=folder, resume=True)
        assert same_fit(resumed, whole)
        assert (np.diff(resumed.trace["elapsed"]) >= 0).all()
    again = yo.fit(schools, seed=3, checkpoint=folder, resume=True)
    assert same_fit(again, whole)


def test_restarts_resume_to_the_same_bits(monkeypatch, tmp_path, conjugate):
    options = dict(method="yoasovi-step", restarts=3, seed=2, max_steps=1200)
    whole = yo.fit(conjugate.model, **options)
    crashed(monkeypatch, conjugate.model, tmp_path, **options)
    resumed = yo.fit(conjugate.model, checkpoint=tmp_path, resume=True, **options)
    assert same_fit(resumed, whole) and resumed.restart_elbos == whole.restart_elbos


def subsampled(y):
    m = numpyro.sample("m", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
    with numpyro.plate("rows", len(y), subsample_size=20) as rows:
        numpyro.sample("y", dist.Normal(m, 1.0).to_event(1), obs=y[rows])


def many():
    return np.random.default_rng(0).normal([3.0, -1.0], size=(400, 2))


def groups(group, y):
    mean, scale = numpyro.sample("mean", dist.Normal(0.0, 1000.0)), numpyro.sample("scale", dist.HalfCauchy(10.0))
    level = numpyro.sample("level", dist.Normal(mean, scale).expand([8]))
    numpyro.sample("y", dist.Normal(level[group], 5.0), obs=y)


def far_away():
    group = np.repeat(np.arange(8), 3)
    return from_numpyro(groups, group, 700.0 + 10.0 * np.random.default_rng(0).normal(size=24))


def two_labels():
    """Give a model in which every observation has two labels."""
    means = lambda p: p["m"] * (2.0 * p["a"] - 1.0) + p["b"]
    return yo.Model(
        prior={"m": dist.Normal(0.0, 3.0)}, local={k: dist.Bernoulli(0.5) for k in "ab"}, data=many()[:, 0],
        log_likelihood=lambda p, y: dist.Normal(means(p), 1.0).log_prob(y),
    )  # fmt: skip


CASES = {
    "windows": (lambda: find_model("eight-schools-centered"), dict(family="mean_field", max_steps=600)),
    "restarts": (lambda: find_model("eight-schools"), dict(restarts=3)),
    "climbs": (far_away, dict(restarts=2, max_steps=400)),
    "minibatches": (lambda: from_numpyro(subsampled, many()), dict(restarts=2)),
    "every label": (lambda: yo.models.GaussianMixture(many(), 2), dict(restarts=2, max_steps=600)),
    "labels that are drawn": (two_labels, dict(restarts=2, max_steps=600)),
    "one draw": (lambda: find_model("mixture-2-2", "yoasovi-metropolis"), dict(method="yoasovi-metropolis", max_steps=900)),
    "quasi-random draws": (lambda: find_model("logistic"), dict(method="qmcvi", max_steps=600)),
    "undone steps": (lambda: find_model("logistic"), dict(method="yoasovi-step", restarts=2, max_steps=900, patience=900)),
    "host function": (lambda: yo.Model.external(lambda x: -0.5 * float(x @ x - x[0]), 2), dict(max_steps=600)),
    "single steps of a host function": (
        lambda: yo.Model.external(lambda x: -0.5 * float(x @ x - x[0]), 2), dict(method="bbvi-rb", draws=2, max_steps=600)
    ),
}  # fmt: skip


PLACES = dict(zip(CASES, np.random.default_rng(1).uniform(0.05, 0.95, len(CASES)), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_a_crash_anywhere_inside_a_window_resumes_to_the_same_bits(monkeypatch, tmp_path, case):
    build, options = CASES[case]
    model, options = build(), dict(seed=5, **options)
    with monkeypatch.context() as patch:
        count = crash_inside(patch, -1)
        whole = yo.fit(model, **options)
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_inside(patch, int(PLACES[case] * count[0]) + 1)
        yo.fit(model, checkpoint=every_turn(tmp_path), **options)
    resumed = yo.fit(model, checkpoint=tmp_path, resume=True, **options)
    assert same_fit(resumed, whole) and resumed.restart_elbos == whole.restart_elbos
    assert (np.diff(resumed.trace["elapsed"]) >= 0).all()


def test_resuming_where_nothing_is_begins_and_more_steps_go_on(tmp_path, conjugate):
    options = dict(method="advi", seed=1, checkpoint=tmp_path / "new", resume=True)
    short = yo.fit(conjugate.model, max_steps=100, **options)
    longer = yo.fit(conjugate.model, max_steps=300, **options)
    assert short.stop_reason == StopReason.MAX_STEPS and longer.num_steps == 300
    assert same_fit(longer, yo.fit(conjugate.model, "advi", seed=1, max_steps=300))


def test_a_checkpoint_is_written_by_time_and_by_steps(tmp_path):
    store = checkpoint.Store(checkpoint.Checkpoint(tmp_path, seconds=0.05, steps=100), {})
    assert not store.due(99) and store.due(100)
    time.sleep(0.06)
    assert store.due(0)
    by_time = checkpoint.Store(checkpoint.Checkpoint(tmp_path, seconds=1e6), {})
    assert not by_time.due(10**9)


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(monkeypatch, tmp_path, schools, whole, damage):
    crashed(monkeypatch, schools, tmp_path, 4, seed=3)
    newest = max((tmp_path / slot for slot in checkpoint.SLOTS), key=lambda p: checkpoint._read(p)[0]["serial"])
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes({"cut": data[: len(data) // 2], "flip": data, "empty": b""}[damage])
    with pytest.warns(RuntimeWarning, match=r"a|b\.checkpoint is .* The checkpoint before it is used"):
        resumed = yo.fit(schools, seed=3, checkpoint=tmp_path, resume=True)
    assert same_fit(resumed, whole)


@pytest.mark.parametrize("how", ["full", "too large"])
def test_a_full_disk_leaves_the_last_good_checkpoint_and_says_so(monkeypatch, tmp_path, schools, whole, how):
    """ENOSPC from the writer, and a real limit of the system that ends a write halfway."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill():
        if how == "too large":
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, old[1]))
        else:

            def fsync(_):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            monkeypatch.setattr(storage.os, "fsync", fsync)

    crash_at(monkeypatch, 3, fill)
    try:
        with pytest.raises(OSError, match=r"could not be written .* the one of step [\d,]+ stays\. Make room") as caught:
            yo.fit(schools, seed=3, checkpoint=every_turn(tmp_path))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        monkeypatch.undo()
    assert {"full": "No space left", "too large": "File too large"}[how] in str(caught.value)
    assert {p.name for p in tmp_path.iterdir()} == set(checkpoint.SLOTS)
    assert same_fit(yo.fit(schools, seed=3, checkpoint=tmp_path, resume=True), whole)


def test_a_checkpoint_of_another_fit_is_refused_with_the_difference(monkeypatch, tmp_path, conjugate):
    def likelihood(params, data):
        return dist.Normal(data["X"] @ params["w"], 1.0).log_prob(data["y"])

    build = lambda X, fn=likelihood, scale=1.0: yo.Model(
        prior={"w": dist.Normal(jnp.zeros(2), scale).to_event(1)}, log_likelihood=fn, data={"X": X, "y": conjugate.y}
    )
    model, options = build(conjugate.X), dict(method="advi", max_steps=50, checkpoint=tmp_path)
    yo.fit(model, **options)
    wider = lambda p, d: dist.Normal(d["X"] @ p["w"], 1.1).log_prob(d["y"])
    for other, changes, says in (
        (model, {"seed": 4}, "seed was 0 and is 4"),
        (model, {"method": "mcvi"}, "method was .*advi.* and is .*mcvi"),
        (model, {"learning_rate": 0.5}, "method was .*learning_rate=0.01.* and is .*learning_rate=0.5"),
        (model, {"family": "full_rank"}, r"family was MeanField\(\) and is FullRank\(\)"),
        (model, {"restarts": 2}, "restarts was 1 and is 2"),
        (build(conjugate.X + 1e-9), {}, r"data\['X'\] differs"),
        (build(conjugate.X, scale=2.0), {}, "prior of w differs"),
        (build(conjugate.X, wider), {}, "likelihood differs"),
    ):
        with pytest.raises(ValueError, match=f"is of another fit: {says}"):
            yo.fit(other, **{**options, **changes}, resume=True)
    monkeypatch.setattr(yo, "__version__", "9.9")
    with pytest.raises(ValueError, match=r"yoasovi version was [\d.]+ and is 9\.9"):
        yo.fit(model, **options, resume=True)
    monkeypatch.undo()
    same_again = build(conjugate.X.copy(), lambda params, rows: likelihood(params, rows))  # other names, the same program
    assert yo.fit(same_again, **options, resume=True).num_steps == 50


def test_an_identity_sees_constants_inside_functions():
    def model(c):
        inner = jax.jit(lambda x: x * np.full(3, c))
        return yo.Model.from_log_density(lambda p: -jnp.sum(inner(p["x"]) ** 2), {"x": dist.constraints.real}, {"x": (3,)})

    assert identity.of_model(model(1.0)) == identity.of_model(model(1.0))
    assert identity.differences(identity.of_model(model(1.0)), identity.of_model(model(2.0))) == ["likelihood differs"]


def test_an_identity_is_the_same_in_a_terminal_and_in_a_pipe(monkeypatch, schools):
    plain = identity.of_model(schools)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    assert identity.of_model(schools) == plain
    code = "from yoasovi.cli.models import find_model; from yoasovi.files import identity; " \
        "print(identity.of_model(find_model('eight-schools')))"  # fmt: skip
    leader, follower = pty.openpty()
    env = {**os.environ, "TERM": "xterm-256color", "FORCE_COLOR": "1", "PYTHONHASHSEED": "6"}
    subprocess.run([sys.executable, "-c", code], stdout=follower, env=env, check=True)
    os.close(follower)
    told = os.read(leader, 10_000).decode().replace("\r\n", "\n")
    os.close(leader)
    assert ast.literal_eval(told) == plain


def test_a_host_function_is_known_by_its_code_and_what_it_has_at_hand():
    def counted(centre, calls, power=2):
        def log_p(x):
            calls.append(x)
            return -float(np.sum(np.abs(x - centre) ** power))

        return log_p

    of = lambda fn: identity.of_model(yo.Model.external(fn, 2))
    first = counted(np.ones(2), [])
    before = of(first)
    first(np.zeros(2))  # that it keeps its calls is no part of what it computes
    assert before == of(first) == of(counted(np.ones(2), [1, 2, 3]))
    others = (
        counted(np.zeros(2), []),
        counted(np.ones(2), [], 4),
        lambda x: -0.5 * float(x @ x),
        lambda x: -0.6 * float(x @ x),
    )
    digests = [of(fn)["likelihood"] for fn in (first, *others)]
    assert len(set(digests)) == len(digests)
    assert of(partial(np.dot, np.ones(2))) != of(partial(np.dot, np.zeros(2)))


def test_the_seconds_of_a_resumed_fit_are_those_of_all_its_processes(monkeypatch, tmp_path, schools):
    crashed(monkeypatch, schools, tmp_path, 5, seed=3)
    newest = max((checkpoint._read(tmp_path / slot)[0] for slot in checkpoint.SLOTS), key=lambda head: head["serial"])
    compile, run, stages = newest["numbers"]["seconds"]
    assert set(stages) == {"model", "start", "windows"}
    assert sum(stages.values()) == pytest.approx(compile + run, rel=0.05)
    fit = yo.fit(schools, seed=3, checkpoint=tmp_path, resume=True)
    assert all(fit.seconds.stages[name] > seconds for name, seconds in stages.items())
    assert sum(fit.seconds.stages.values()) == pytest.approx(fit.seconds.total, rel=0.05)


# ---- Ctrl-C ----------------------------------------------------------------------------------------------


@pytest.fixture
def foreground():
    """A program in a shell's background ignores Ctrl-C; these tests are about one that does not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_ends_after_the_window_gives_the_fit_so_far_and_says_how_to_resume(
    monkeypatch, tmp_path, capsys, schools, whole, foreground
):
    crash_at(monkeypatch, 2, lambda: os.kill(os.getpid(), signal.SIGINT))
    fit = yo.fit(schools, seed=3, checkpoint=every_turn(tmp_path))
    monkeypatch.undo()
    assert fit.stop_reason == StopReason.INTERRUPTED and 0 < fit.num_steps < whole.num_steps
    assert np.isfinite(fit.elbo.value) and "resume=True" in fit.summary() and str(tmp_path) in fit.stop_detail
    assert "Ctrl-C again" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is foreground
    assert same_fit(yo.fit(schools, seed=3, checkpoint=tmp_path, resume=True), whole)


def spin(_, x):
    return jax.lax.fori_loop(0, 10**9, lambda i, c: jnp.sin(c) + 0.1, x)


def test_a_second_ctrl_c_stops_at_once_even_inside_compiled_code(foreground):
    begun = threading.Event()
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts:
        program = Bound(spin, (), Held(()), Clock(guard=interrupts.run))
        assert program._program((np.ones(()),), ())  # compiled

        def press():
            begun.wait()
            for _ in range(2):
                time.sleep(0.3)
                os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=press).start()
        begin = time.monotonic()
        begun.set()
        program(np.ones(()))
    assert interrupts.asked and time.monotonic() - begin < 5


def test_ctrl_c_while_compiling_says_so_and_ends_at_once(foreground, capsys):
    press = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts:
        press.start()
        interrupts.run(lambda: time.sleep(3))
    assert time.monotonic() - begin < 1 and not interrupts.asked
    assert capsys.readouterr().err == "yoasovi: stopped while compiling; there is no result yet.\n"


def test_what_compiling_raises_comes_through(foreground):
    with pytest.raises(ZeroDivisionError), Interrupts() as interrupts:
        interrupts.run(lambda: 1 / 0)


def test_a_program_that_ignores_ctrl_c_goes_on_ignoring_it(foreground):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.run(lambda: 3) == 3 and not interrupts.asked


def test_a_fit_in_another_thread_leaves_signals_alone(conjugate):
    before, found = signal.getsignal(signal.SIGINT), []
    thread = threading.Thread(target=lambda: found.append(yo.fit(conjugate.model, "advi", max_steps=50)))
    thread.start()
    thread.join()
    assert found[0].num_steps == 50 and signal.getsignal(signal.SIGINT) is before
