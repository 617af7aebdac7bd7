"""Compilers of Stan programs: BridgeStan's, or stanc and the headers that httpstan brings, with this package's own door."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from yoasovi.caching import OFF, VARIABLE, usual_folder
from yoasovi.extras import how
from yoasovi.stan.inputs import ALIAS, StanSource, syntax_line

_DOOR = Path(__file__).with_name("door.cpp")
_FLAGS = (
    "-std=c++17",
    "-O2",
    "-w",
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",
    "-fvisibility-inlines-hidden",
    "-DBOOST_DISABLE_ASSERTS",
    "-DBOOST_PHOENIX_NO_VARIADIC_EXPRESSION",
    "-DSTAN_THREADS",
    "-D_REENTRANT",
    "-D_GLIBCXX_USE_CXX11_ABI=0",
)  # fmt: skip - the last as the libraries beside httpstan were built
_LIBRARIES = ("-lsundials_cvodes", "-lsundials_idas", "-lsundials_kinsol", "-lsundials_nvecserial", "-ltbb")


@dataclass(frozen=True)
class OwnLibrary:
    """A program compiled with this package's door."""

    path: Path

    def opened(self, source: StanSource, data: str) -> Any:
        """Load it with its data."""
        from yoasovi.stan.door import DoorLibrary

        return DoorLibrary(self.path, source, data)


def compiled(source: StanSource) -> Any:
    """Compile a program, or take it from the cache."""
    from yoasovi.stan import bridge

    brought = find_spec("httpstan")
    if find_spec("bridgestan") is not None and (brought is None or bridge.has_sources()):
        return bridge.compiled(source, folder())
    if brought is None or brought.origin is None:
        raise ImportError(f"httpstan or bridgestan is needed for this; {how('stan')}.")
    return OwnLibrary(_with_httpstan(source, Path(brought.origin).parent))


def folder() -> Path:
    """Give the folder where compiled programs are kept: the user's cache, or one of this process's where that is off."""
    asked = os.environ.get(VARIABLE, "")
    place = Path(_passing().name) if asked in OFF else Path(asked or usual_folder()).expanduser() / "stan"
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    return place


@cache
def _passing() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="yoasovi-stan-")  # gone when the process ends


@contextmanager
def one_at_a_time(path: Path) -> Iterator[None]:
    """Let one process at a time inside, as far as the system can: of several one compiles and the others wait."""
    try:
        import fcntl
    except ImportError:  # not on Windows
        yield
        return
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _with_httpstan(source: StanSource, home: Path) -> Path:
    code = _translated(source, home / "stanc") + _DOOR.read_text()
    compiler = _compiler()
    command = [compiler, *_FLAGS, f"-I{home / 'include'}"]
    key = hashlib.sha256("\0".join([code, *command]).encode()).hexdigest()[:24]
    target = folder() / f"{key}.so"
    with one_at_a_time(folder() / f"{key}.lock"):
        if not target.exists():
            _build(code, command, home / "lib", target, source)
    return target


def _translated(source: StanSource, stanc: Path) -> str:
    """Give the C++ of a Stan program; its errors in one line."""
    with tempfile.TemporaryDirectory() as here:
        path = Path(here) / ALIAS
        path.write_text(source.text)
        # The options are written into the C++: no folder among them, or the same program elsewhere would be another.
        options = ["--name=stan_program", f"--filename-in-msg={ALIAS}", "--include-paths=.", "--print-cpp"]
        done = subprocess.run([stanc, *options, path], capture_output=True, text=True, cwd=source.folder)
    if done.returncode != 0:
        raise ValueError(syntax_line(done.stderr, source))
    return done.stdout


def _compiler() -> str:
    asked = os.environ.get("CXX")
    for name in [asked] if asked else ["g++", "clang++", "c++"]:
        if shutil.which(name.split()[0]):
            return name
    missing = f"CXX={asked}" if asked else "g++ or clang++"
    raise FileNotFoundError(f"`from_stan` needs a C++ compiler, and {missing} is not on the PATH; install g++ or set CXX.")


def _build(code: str, command: list[str], libraries: Path, target: Path, source: StanSource) -> None:
    if sys.stderr.isatty():
        print(f"Compiling {source.file}: a minute or so, once ...", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as here:
        path, made = Path(here) / "program.cpp", Path(here) / target.name
        path.write_text(code)
        link = [f"-L{libraries}", f"-Wl,-rpath,{libraries}", *_LIBRARIES]
        done = subprocess.run([*command, str(path), "-o", str(made), *link], capture_output=True, text=True)
        if done.returncode != 0:
            lines = [x for x in done.stderr.splitlines() if "error" in x.lower()] or done.stderr.splitlines() or ["nothing"]
            raise RuntimeError(f"`from_stan`: {command[0]} could not compile the C++ of {source.file}; it said: {lines[0]}")
        os.replace(made, target)
