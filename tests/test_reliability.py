"""Nothing lost, nothing silently wrong: kills, full disks, damaged files, Ctrl-C, draws that are not finite, long runs."""

import errno
import gc
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import yoasovi as yo
from yoasovi import checkpoint, compiling, identity, storage
from yoasovi.cli.models import find_model
from yoasovi.interrupts import Interrupts
from yoasovi.loop import TurnInfo
from yoasovi.nonfinite import Nonfinite
from yoasovi.stopping import StopReason
from yoasovi.trace import MOST_ROWS, Trace

STEPS = 16_000
KILLS = 25


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
            env={**os.environ, **cached, "PYTHONHASHSEED": "0"},
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


def written(folder):
    return any((folder / slot).exists() for slot in checkpoint.SLOTS)


def test_a_fit_killed_at_25_random_moments_resumes_to_the_same_bits(tmp_path):
    model, rng = find_model("linear", "advi"), np.random.default_rng(7)
    whole = yo.fit(model, "advi", max_steps=STEPS)
    forker = Forker(tmp_path / "cache")
    try:
        # The first child runs to its end: it says how long a run takes, and fills the cache of compiled programs.
        child = forker.run(tmp_path / "first")
        until(lambda: written(tmp_path / "first"))
        begin = time.monotonic()
        until(lambda: not alive(child))
        length = time.monotonic() - begin
        steps = []
        for k in range(2 * KILLS):
            folder = tmp_path / f"killed{k}"
            child = forker.run(folder)
            early = k % 8 == 7  # now and then before anything is written
            if early:
                time.sleep(rng.uniform(0.0, 1.0))
            else:
                until(lambda: written(folder) or not alive(child))
                time.sleep(rng.uniform(0.0, 0.9) * length)
            if not alive(child):
                continue  # it was faster than the first one: no kill
            kill(child)
            resumed = yo.fit(model, "advi", max_steps=STEPS, checkpoint=folder, resume=True)
            assert same_fit(resumed, whole)
            names = {p.name for p in folder.iterdir()}
            assert names <= set(checkpoint.SLOTS), names
            steps.append(k)
            if len(steps) == KILLS:
                break
        assert len(steps) == KILLS
        # And once by the command line, which must give the same answer as the library.
        child = forker.run(tmp_path / "last")
        until(lambda: written(tmp_path / "last"))
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
    return yo.fit(schools, seed=3, chunk=2)


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


def every_chunk(folder):
    return yo.Checkpoint(folder, steps=1)


def crashed(monkeypatch, model, folder, nth=3, **options):
    with monkeypatch.context() as patch, pytest.raises(Crash):
        crash_at(patch, nth)
        yo.fit(model, checkpoint=every_chunk(folder), **options)


def test_the_default_method_resumes_to_the_same_bits_and_gives_a_finished_run_again(monkeypatch, tmp_path, schools, whole):
    for nth in (1, 2, 5):  # before anything is written, after one, after several
        folder = tmp_path / str(nth)
        crashed(monkeypatch, schools, folder, nth, seed=3, chunk=2)
        resumed = yo.fit(schools, seed=3, chunk=3, checkpoint=folder, resume=True)
        assert same_fit(resumed, whole)
        assert (np.diff(resumed.trace["elapsed"]) >= 0).all()
    again = yo.fit(schools, seed=3, checkpoint=folder, resume=True)
    assert same_fit(again, whole)


def test_restarts_resume_to_the_same_bits(monkeypatch, tmp_path, conjugate):
    options = dict(method="yoasovi-step", restarts=3, seed=2, max_steps=120, chunk=20)
    whole = yo.fit(conjugate.model, **options)
    crashed(monkeypatch, conjugate.model, tmp_path, **options)
    resumed = yo.fit(conjugate.model, checkpoint=tmp_path, resume=True, **options)
    assert same_fit(resumed, whole) and resumed.restart_elbos == whole.restart_elbos


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
    crashed(monkeypatch, schools, tmp_path, 4, seed=3, chunk=2)
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
            yo.fit(schools, seed=3, chunk=2, checkpoint=every_chunk(tmp_path))
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


# ---- Ctrl-C ----------------------------------------------------------------------------------------------


@pytest.fixture
def foreground():
    """A program in a shell's background ignores Ctrl-C; these tests are about one that does not."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_ends_after_the_chunk_gives_the_fit_so_far_and_says_how_to_resume(
    monkeypatch, tmp_path, capsys, schools, whole, foreground
):
    crash_at(monkeypatch, 2, lambda: os.kill(os.getpid(), signal.SIGINT))
    fit = yo.fit(schools, seed=3, chunk=2, checkpoint=every_chunk(tmp_path))
    monkeypatch.undo()
    assert fit.stop_reason == StopReason.INTERRUPTED and 0 < fit.num_steps < whole.num_steps
    assert np.isfinite(fit.elbo.value) and "resume=True" in fit.summary() and str(tmp_path) in fit.stop_detail
    assert "Ctrl-C again" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is foreground
    assert same_fit(yo.fit(schools, seed=3, checkpoint=tmp_path, resume=True), whole)


def test_a_second_ctrl_c_stops_at_once_even_inside_compiled_code(foreground):
    spin = jax.jit(lambda x: jax.lax.fori_loop(0, 10**9, lambda i, c: jnp.sin(c) + 0.1, x)).lower(1.0).compile()
    timers = [threading.Timer(t, os.kill, (os.getpid(), signal.SIGINT)) for t in (0.2, 0.5)]
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Interrupts() as interrupts:
        for timer in timers:
            timer.start()
        interrupts.run(spin, 1.0)
    assert interrupts.asked and time.monotonic() - begin < 15


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


# ---- not finite ------------------------------------------------------------------------------------------


def unlucky(params, share):
    """Say of a point, as good as at random but always the same, whether it is one of a share of all points."""
    words = [jax.lax.bitcast_convert_type(jnp.ravel(x), jnp.uint32).ravel() for x in jax.tree.leaves(params)]
    mix = lambda h, w: ((h ^ w) * jnp.uint32(16777619) ^ ((h ^ w) >> 15), None)
    found = jax.lax.scan(mix, jnp.uint32(2166136261), jnp.concatenate(words))[0]
    found = (found ^ (found >> 13)) * jnp.uint32(3266489917)
    return (found ^ (found >> 16)).astype(float) < share * 2.0**32


def breaking(model):
    """The model, with a log density that is NaN at a share of all points; the share is data, so nothing is recompiled."""
    whole = model.log_likelihood
    return replace(
        model, data={"whole": model.data, "share": np.array(0.0)},
        log_likelihood=lambda p, d: jnp.where(unlucky(p, d["share"]), jnp.nan, whole(p, d["whole"])),
    )  # fmt: skip


@pytest.mark.parametrize("name", ["linear", "logistic", "eight-schools"])
def test_a_model_that_is_nan_at_a_tenth_of_all_draws_lands_where_it_would_without(name):
    model = breaking(find_model(name))
    sound = yo.fit(model, seed=1)
    broken = replace(model, data={**model.data, "share": np.array(0.1)})
    for seed in range(3):
        fit = yo.fit(broken, seed=seed)
        assert fit.converged and fit.elbo.value > sound.elbo.value - 0.5
        looked = fit.num_values + fit.num_gradients
        assert 0.04 < fit.nonfinite.log_p / looked < 0.2 and fit.nonfinite.parameter == 0
        assert fit.num_nonfinite == sum(fit.nonfinite) and f"log p {fit.nonfinite.log_p:,}" in fit.summary()


def real(fn, d=2, **fields):
    return yo.Model.from_log_density(fn, {"x": dist.constraints.real}, {"x": (d,)}, **fields)


def test_a_model_that_is_nan_everywhere_ends_within_seconds_and_names_the_site():
    model = yo.Model(
        prior={"rate": dist.Exponential(1.0), "b": dist.Normal(0.0, 1.0)}, data=np.ones(3),
        log_likelihood=lambda p, y: jnp.log(-p["rate"] * y) + p["b"],
    )  # fmt: skip
    with pytest.warns(RuntimeWarning, match="200 draws in a row were refused"):
        fit = yo.fit(model, "advi")
    assert fit.stop_reason == StopReason.NON_FINITE and fit.seconds.run < 10 and fit.num_steps <= 450
    assert "the likelihood of observation [0, 1, 2] is nan" in fit.stop_detail and "rate = " in fit.stop_detail
    assert fit.stop_detail in fit.summary() and all(np.isfinite(x).all() for x in fit.params)
    with pytest.warns(RuntimeWarning, match="20 draws in a row"):
        assert yo.fit(model, "advi", max_nonfinite=20, chunk=1).num_steps == 20


def test_kinds_are_told_apart():
    flat = lambda p: -0.5 * jnp.sum(p["x"] ** 2)
    steep = jax.custom_jvp(lambda x: -0.5 * jnp.sum(x**2))
    steep.defjvp(lambda at, along: (steep(at[0]), jnp.nan * jnp.sum(along[0])))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        options = dict(method="advi", max_steps=30, max_nonfinite=10)
        gradient = yo.fit(real(lambda p: steep(p["x"])), **options)
        value = yo.fit(real(lambda p: jnp.log(p["x"][0]) + flat(p)), **options, seed=1)
        # A flat density lets q widen until its draws overflow; a slope at the end of the numbers leads out of them.
        draw = yo.fit(real(lambda p: 0.0 * jnp.sum(jnp.tanh(p["x"]))), **options, learning_rate=1e3)
        edge = real(lambda p: p["x"][0], 1, start=lambda key: {"x": jnp.full(1, 1.7e308)})
        parameter = yo.fit(edge, **options, learning_rate=1.7e308, optimizer="constant")
    assert gradient.nonfinite == Nonfinite(gradient=gradient.num_nonfinite) and gradient.num_nonfinite >= 10
    assert "the gradient of log p is not finite" in gradient.stop_detail and "along x" in gradient.stop_detail
    assert value.nonfinite.log_p == value.num_nonfinite > 0
    for fit in (gradient, value, draw, parameter):
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(fit.params))
    assert draw.nonfinite == Nonfinite(draw=10) and "the draw of x is not finite" in draw.stop_detail
    assert parameter.nonfinite == Nonfinite(parameter=10) and "a parameter of q was not finite" in parameter.stop_detail


def test_raise_names_the_site_and_shows_the_draw():
    law = lambda p: dist.Normal(p["m"], p["scale"])
    model = yo.Model(
        prior={"scale": dist.HalfNormal(1.0), "m": dist.Normal(0.0, 1.0)}, data=np.array([1.0, 2.0, 300.0]),
        log_likelihood=lambda p, y: jnp.where((y > 100) & (p["m"] > 0.3), jnp.inf, law(p).log_prob(y)),
    )  # fmt: skip
    with pytest.raises(FloatingPointError) as caught:
        yo.fit(model, "advi", nonfinite="raise", seed=2)
    text = str(caught.value)
    assert "the likelihood of observation 2 is inf" in text and "scale = " in text
    assert float(text.split("m = ")[1].split(",")[0].rstrip(".")) > 0.3


def test_a_start_outside_the_support_is_refused_by_name():
    model = yo.Model(
        prior={"s": dist.HalfNormal(1.0)}, log_likelihood=lambda p, y: dist.Normal(0.0, p["s"]).log_prob(y), data=np.ones(2),
        start=lambda key: {"s": jnp.asarray(-1.0)},
    )  # fmt: skip
    with pytest.raises(ValueError, match="`start` of `Model` must lie inside the support: 's'"):
        yo.fit(model, "advi")


# ---- long runs -------------------------------------------------------------------------------------------


def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads Linux's own accounts of memory")
def test_memory_stays_flat_over_a_million_steps():
    model = real(lambda p: -0.5 * jnp.sum(p["x"] ** 2), 1)
    yo.fit(model, "advi", max_steps=50_000, chunk=10_000)
    before = resident()
    fit = yo.fit(model, "advi", max_steps=1_000_000, chunk=10_000)
    grown = resident() - before
    assert fit.num_steps == 1_000_000 and grown < 30e6, f"{grown / 1e6:.0f} MB"
    rows = fit.trace["step"]
    assert MOST_ROWS / 2 <= len(rows) <= MOST_ROWS + 1 and rows[-1] == 1_000_000
    assert sum(v.nbytes for v in fit.trace.values()) < 3e6
    assert (np.diff(rows)[:-1] == 64).all()


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads Linux's own accounts of memory")
def test_two_hundred_fits_leave_no_memory_and_compile_nothing(conjugate):
    fit = lambda seed: yo.fit(conjugate.model, "advi", max_steps=20, seed=seed).mean(100)
    for seed in range(20):
        fit(seed)
    programs, before = compiling.num_programs(), resident()
    for seed in range(200):
        # Rebuilt from the same parts and other data of the same shapes, as a loop over data sets would.
        data = {"X": conjugate.X + seed, "y": conjugate.y}
        yo.fit(replace(conjugate.model, data=data), "advi", max_steps=20, seed=seed)
    assert compiling.num_programs() == programs
    assert resident() - before < 20e6


def test_the_trace_is_thinned_by_its_rule_whatever_the_chunks():
    total = 3 * MOST_ROWS + 7

    def filled(size):
        trace = Trace()
        for begin in range(0, total, size):
            steps = np.arange(begin + 1, min(begin + size, total) + 1)
            blank = np.zeros(size - len(steps), int)  # rows after the end
            column = np.concatenate([steps, blank])[None]
            info = TurnInfo(*[column] * len(TurnInfo._fields))
            trace.add(info, float(begin), float(begin + len(steps)))
        return trace

    a, b = filled(250), filled(7001)
    c = Trace.from_arrays(a.arrays())
    assert a.stride == b.stride == 4 and same(a.of(0)["step"], b.of(0)["step"]) and same(a.of(0), c.of(0))
    rows = a.of(0)["step"]
    assert rows[-1] == total and (rows[:-1] % 4 == 1).all() and len(rows) == -(-total // 4) + 1
