"""Compiled programs on disk: a second process finds them, two at once do not collide, a bad folder is one warning."""

import json
import os
import re
import subprocess
import sys
import warnings
import zlib

import jax
import pytest

import yoasovi as yo
from yoasovi import caching

LIBRARY = """
import sys, warnings
warnings.simplefilter("error")
import yoasovi as yo
from yoasovi.cli.models import find_model
print(yo.fit(find_model("linear"), seed=1).elbo.value)
"""


def process(args, cache, **env):
    env = {**os.environ, "YOASOVI_CACHE": str(cache), **env}
    return subprocess.Popen([sys.executable, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


@pytest.fixture
def fresh():
    """Leave JAX as it was found."""
    kept = {k: getattr(jax.config, k) for k in ("jax_persistent_cache_min_compile_time_secs",
                                                "jax_persistent_cache_min_entry_size_bytes")}  # fmt: skip
    yield
    yo.cache("off")
    for name, value in kept.items():
        jax.config.update(name, value)


def test_a_second_process_compiles_in_half_the_time_or_less_and_gives_the_same_bits(tmp_path):
    found = []
    for seed in ("1", "6"):  # NumPyro hands out arrays in another order then
        # Compiled as users' programs are: those of other tests are quicker to compile.
        env = {"PYTHONHASHSEED": seed, "XLA_FLAGS": ""}
        run = process(["-m", "yoasovi.cli", "fit", "eight-schools", "--json"], tmp_path / "new", **env)
        out, err = run.communicate(timeout=300)
        assert run.returncode == 0 and err == "", err
        found.append(json.loads(out))
    first, second = found
    assert first["elbo"] == second["elbo"] and first["counts"] == second["counts"]
    assert second["seconds"]["compile"] < 0.5 * first["seconds"]["compile"]
    (place,) = (tmp_path / "new").iterdir()
    assert place.stat().st_mode & 0o777 == 0o700 and all(p.suffix == ".program" for p in place.iterdir())


def test_two_processes_at_once_share_a_folder_and_a_library_finds_it_by_the_environment(tmp_path):
    both = [process(["-c", LIBRARY], tmp_path) for _ in range(2)]
    told = [run.communicate(timeout=300) for run in both]
    assert [run.returncode for run in both] == [0, 0], told
    assert told[0] == told[1] and told[0][1] == ""
    (place,) = tmp_path.iterdir()
    assert any("gradients" in p.name for p in place.iterdir()) and not list(place.glob("*.tmp"))


def test_a_folder_that_cannot_be_written_to_is_one_warning(tmp_path, fresh):
    (tmp_path / "file").write_text("")
    with pytest.warns(
        RuntimeWarning, match=r"compiled programs are not kept: .*file/inside cannot be written to \(Not a dir"
    ):
        assert yo.cache(tmp_path / "file" / "inside") is None
    assert jax.config.jax_compilation_cache_dir is None
    run = process(["-m", "yoasovi.cli", "fit", "linear", "--json"], tmp_path / "file" / "inside")
    out, err = run.communicate(timeout=300)
    assert run.returncode == 0 and json.loads(out)["converged"]
    assert re.fullmatch(r"yoasovi: compiled programs are not kept: .* cannot be written to \(Not a directory\)\.\n", err)


def test_a_folder_that_fills_up_is_one_warning_and_nothing_half_written(tmp_path, monkeypatch):
    programs = caching.Programs(tmp_path, zlib.decompress)

    def full(*_):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(caching.os, "replace", full)
    with pytest.warns(RuntimeWarning, match=r"are kept no more: .* cannot be written to \(No space left on device\)"):
        programs.put("one", zlib.compress(b"program"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        programs.put("two", zlib.compress(b"program"))
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_program_is_dropped_and_written_anew(tmp_path):
    programs, whole = caching.Programs(tmp_path, zlib.decompress), zlib.compress(b"program" * 100)
    programs.put("one", whole)
    assert programs.get("one") == whole and programs.get("two") is None
    (path,) = tmp_path.iterdir()
    path.write_bytes(whole[:10])
    assert programs.get("one") is None and not path.exists()
    programs.put("one", whole)
    assert programs.get("one") == whole


def test_the_programs_not_used_for_longest_make_room(tmp_path, monkeypatch):
    programs = caching.Programs(tmp_path, lambda data: data)
    for i in range(8):
        programs.put(str(i), b"x" * 100)
        os.utime(tmp_path / f"{i}.program", (i, i))
    programs.get("0")
    monkeypatch.setattr(caching, "_MOST_BYTES", 700)
    caching._prune(tmp_path)
    assert {p.stem for p in tmp_path.iterdir()} == {"0", "6", "7"}


def test_what_is_compiled_is_kept_from_the_call_on_and_no_more_after_off(tmp_path, fresh):
    place = yo.cache(tmp_path)
    jax.jit(lambda x: x * 3.25 + 1.5)(2.0).block_until_ready()
    kept = set(place.iterdir())
    assert kept and place.parent == tmp_path
    assert yo.cache("off") is None
    jax.jit(lambda x: x * 7.75 - 1.5)(2.0).block_until_ready()
    assert set(place.iterdir()) == kept
    with pytest.raises(ValueError, match="`folder` of `cache` must be a path, or 'off'; got 3"):
        yo.cache(3)


def test_the_usual_folder_is_the_systems_own(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    found = lambda: caching.usual_folder().as_posix()
    monkeypatch.setattr(caching.sys, "platform", "linux")
    assert found() == "/home/someone/.cache/yoasovi"
    monkeypatch.setattr(caching.sys, "platform", "darwin")
    assert found() == "/home/someone/Library/Caches/yoasovi"
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    assert found() == "/elsewhere/yoasovi"
    monkeypatch.setattr(caching.sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", "/local")
    assert found() == "/local/yoasovi/cache"


def test_the_command_line_leaves_what_the_environment_says(monkeypatch):
    from yoasovi.cli.runs import keep_programs

    for told in ({"YOASOVI_CACHE": "off"}, {"JAX_COMPILATION_CACHE_DIR": "/mine"}):
        monkeypatch.delenv("YOASOVI_CACHE", raising=False)
        for name, value in told.items():
            monkeypatch.setenv(name, value)
        keep_programs()
        assert os.environ.get("YOASOVI_CACHE") == told.get("YOASOVI_CACHE")
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    keep_programs()
    assert os.environ["YOASOVI_CACHE"] == str(caching.usual_folder())
