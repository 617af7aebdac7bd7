"""Compiled programs kept on disk, so that a later process need not compile them again."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import time
import warnings
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

from yoasovi.errors import check

VARIABLE = "YOASOVI_CACHE"
OFF = ("off", "0")
_MOST_BYTES = 2**30  # where there are more, the programs not used for longest go until half is left
_SUFFIX = ".program"
_asked = False  # whether the environment has been looked at, or `cache` been called
_lock = Lock()


def cache(folder: str | Path | None = None) -> Path | None:
    """Keep compiled programs in a folder, and take them from there: all that JAX compiles in this process from now on.

    The environment variable YOASOVI_CACHE=FOLDER does the same for every process, and the command line does it by itself.
    Programs are code: use a folder that nobody else can write to.

    Parameters
    ----------
    folder
        Made if it is not there; by default the user's own cache folder. "off" keeps nothing from now on.

    Returns
    -------
    The folder inside it that is used, which is one for each kind of machine; None where nothing is kept.
    """
    global _asked
    _asked = True
    check(folder is None or isinstance(folder, str | Path), "folder", "cache", "a path, or 'off'", folder)
    if str(folder) in OFF:
        _use(None)
        return None
    place = Path(folder or usual_folder()).expanduser() / _machine()
    try:
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write_whole(probe := place / "writable", b"")
        probe.unlink(missing_ok=True)
    except OSError as error:
        warnings.warn(f"compiled programs are not kept: {place.parent} {_refuses(error)}.", RuntimeWarning, stacklevel=2)
        return None
    _prune(place)
    _use(place)
    return place


def as_the_environment_says() -> None:
    """Begin to keep programs where YOASOVI_CACHE asks for it, once, unless `cache` was called or JAX has its own."""
    global _asked
    with _lock:
        if _asked:
            return
        _asked = True
    import jax

    folder = os.environ.get(VARIABLE, "")
    if folder and folder not in OFF and not getattr(jax.config, "jax_compilation_cache_dir", None):
        cache(folder)


def usual_folder() -> Path:
    """Give the user's cache folder: that of XDG, ~/.cache, or where macOS and Windows have it."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "yoasovi" / "cache"
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "yoasovi"
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "yoasovi"


def _machine() -> str:
    """Name what programs are compiled for: a folder may be shared by machines whose processors differ."""
    import jaxlib

    parts = [platform.system(), platform.machine(), platform.processor()]
    with suppress(OSError):
        told = Path("/proc/cpuinfo").read_text().splitlines()
        parts += [next((x for x in told if x.startswith(key)), "") for key in ("model name", "flags", "Features")]
    return f"jaxlib-{jaxlib.__version__}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:12]}"


def _use(place: Path | None) -> None:
    import jax
    from jax.experimental.compilation_cache import compilation_cache as public

    jax.config.update("jax_compilation_cache_dir", None if place is None else str(place))
    if place is not None:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    public.reset_cache()  # JAX looks at its settings once
    if place is None:
        return
    try:
        from jax._src import compilation_cache as own
    except ImportError:
        return
    if all(hasattr(own, name) for name in ("_cache", "_cache_initialized", "decompress_executable")):
        own._cache = Programs(place, own.decompress_executable)  # type: ignore[assignment]
        own._cache_initialized = True


class Programs:
    """JAX's cache in a folder, but for two things: files are written whole, and damaged ones are dropped.

    JAX writes in place: another process may read half a program, and what a killed one leaves would be complained of for
    ever. A folder that can be written to no more is complained of once.
    """

    def __init__(self, place: Path, decompress: Any):
        self.place, self._decompress = place, decompress
        self._path = place  # by this name JAX asks for it
        self._full = False

    def get(self, key: str) -> bytes | None:
        """Give a program, if it is there and whole."""
        path = self.place / f"{key}{_SUFFIX}"
        try:
            data = path.read_bytes()
        except OSError:
            return None
        with suppress(OSError):
            os.utime(path)
        try:
            self._decompress(data)
        except Exception:  # zlib's or zstandard's own
            with suppress(OSError):
                path.unlink()
            return None
        return data

    def put(self, key: str, value: bytes) -> None:
        """Keep a program."""
        if self._full:
            return
        try:
            _write_whole(self.place / f"{key}{_SUFFIX}", value)
        except OSError as error:
            self._full = True
            said = f"compiled programs are kept no more: {self.place.parent} {_refuses(error)}."
            warnings.warn(said, RuntimeWarning, stacklevel=2)


def _write_whole(path: Path, data: bytes) -> None:
    """Write a file under a name of this process's own and rename it, so that others see all of it or nothing."""
    mine = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        mine.write_bytes(data)
        os.replace(mine, path)
    except BaseException:
        with suppress(OSError):
            mine.unlink()
        raise


def _prune(place: Path) -> None:
    """Make room where programs have become too many."""
    with suppress(OSError):  # another process may be doing the same
        files = sorted((p.stat().st_mtime, p.stat().st_size, p) for p in place.iterdir())
        for written, _, path in files:
            if path.suffix == ".tmp" and written < time.time() - 3600:  # of a process that was killed
                path.unlink(missing_ok=True)
        total = sum(size for _, size, _ in files)
        if total <= _MOST_BYTES:
            return
        for _, size, path in files:
            path.unlink(missing_ok=True)
            total -= size
            if total <= _MOST_BYTES // 2:
                return


def _refuses(error: OSError) -> str:
    return f"cannot be written to ({error.strerror or error})"
