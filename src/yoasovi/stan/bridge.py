"""Programs compiled by BridgeStan, through its own Python package."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from yoasovi.stan.building import one_at_a_time
from yoasovi.stan.inputs import ALIAS, StanSource, data_line, syntax_line
from yoasovi.stan.program import threads

_WORTH_THREADS = 0.02  # seconds of work that are left; Python's threads wait for each other between two calls


@dataclass(frozen=True)
class BridgedLibrary:
    """A program compiled by BridgeStan."""

    path: Path

    def opened(self, source: StanSource, data: str) -> Any:
        """Load it with its data."""
        from bridgestan import StanModel

        try:
            return OpenedBridge(StanModel(self.path, data, seed=0, capture_stan_prints=False, warn=False))
        except RuntimeError as error:
            raise ValueError(data_line(str(error), source, data)) from error


def has_sources() -> bool:
    """Say whether BridgeStan's C++ is here already, so that nothing has to be downloaded."""
    from bridgestan.compile import get_bridgestan_path, verify_bridgestan_path

    with redirect_stdout(StringIO()):  # it prints where it did not find them
        place = get_bridgestan_path(download=False)
    try:
        verify_bridgestan_path(place or "nowhere")
    except ValueError:
        return False
    return True


def compiled(source: StanSource, folder: Path) -> BridgedLibrary:
    """Compile a program, or take it from the folder."""
    import bridgestan

    key = hashlib.sha256(f"{bridgestan.__version__}\0{source.folder}\0{source.text}".encode()).hexdigest()[:24]
    place = folder / f"bridge-{key}"
    place.mkdir(exist_ok=True)
    path, made = place / ALIAS, place / "program_model.so"
    with one_at_a_time(place / "lock"):
        if not made.exists():
            path.write_text(source.text)
            made = _made(path, source)
    return BridgedLibrary(made)


def _made(path: Path, source: StanSource) -> Path:
    import bridgestan

    options = [f"--include-paths={source.folder}", f"--filename-in-msg={ALIAS}"]
    try:
        return Path(bridgestan.compile_model(path, stanc_args=options, make_args=["STAN_THREADS=true"]))
    except RuntimeError as error:
        said = str(error)
        for kind in ("Syntax error", "Semantic error"):
            if kind in said:
                raise ValueError(syntax_line(said[said.index(kind) :], source)) from error
        raise


class OpenedBridge:
    """BridgeStan's model, called for rows on several threads; it lets go of Python's lock while it works."""

    def __init__(self, model: Any):
        self.model = model

    def names(self) -> tuple[list[str], list[str], list[str]]:
        """Give the names of unconstrained parameters, of parameters, and of everything that a draw has."""
        everything = self.model.param_names(include_tp=True, include_gq=True)
        return self.model.param_unc_names(), self.model.param_names(), everything

    def look(self, points: np.ndarray, gradient: bool) -> tuple[np.ndarray, np.ndarray, str]:
        """Give log p, its gradient if asked for, and why the first was refused."""
        points = np.ascontiguousarray(points, float)
        values, slopes, said = np.full(len(points), np.nan), np.full(points.shape, np.nan), []

        def row(i: int) -> None:
            try:
                if gradient:
                    values[i] = self.model.log_density_gradient(points[i], propto=False, jacobian=True, out=slopes[i])[0]
                else:
                    values[i] = self.model.log_density(points[i], propto=False, jacobian=True)
            except RuntimeError as error:
                values[i], slopes[i] = np.nan, np.nan
                said.append(str(error))

        _for_rows(row, len(points))
        return values, slopes, said[0] if said else ""

    def outward(self, points: np.ndarray, width: int) -> np.ndarray:
        """Give everything that draws have."""
        points = np.ascontiguousarray(points, float)
        out = np.full((len(points), width), np.nan)

        def row(i: int) -> None:
            seed = int.from_bytes(hashlib.blake2b(points[i].tobytes() + i.to_bytes(8, "little"), digest_size=4).digest())
            try:
                rng = self.model.new_rng(seed)
                self.model.param_constrain(points[i], include_tp=True, include_gq=True, out=out[i], rng=rng)
            except RuntimeError:
                out[i] = np.nan
                found = self.model.param_constrain(points[i])
                out[i, : len(found)] = found

        _for_rows(row, len(points))
        return out


def _for_rows(row: Callable[[int], None], n: int) -> None:
    """Do something for every row; on several threads once the first row has shown that there is enough to do."""

    def part(begin: int, end: int) -> None:
        for i in range(begin, end):
            row(i)

    begin = time.perf_counter()
    part(0, min(n, 1))
    left, took = n - 1, time.perf_counter() - begin
    some = min(threads(), left) if took * left > _WORTH_THREADS else 1
    if some <= 1:
        part(1, n)
        return
    with ThreadPoolExecutor(some) as pool:
        for done in [pool.submit(part, 1 + left * k // some, 1 + left * (k + 1) // some) for k in range(some)]:
            done.result()
