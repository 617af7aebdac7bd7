"""Checkpoints: a run as it was between two turns, in one file that is written whole, checked, and kept twice.

A folder has two slots. A new checkpoint takes the place of the older one, so the newest good one survives whatever happens
while writing. A file is a line of JSON (what the fit is of, and the checksum of the rest) followed by an npz of arrays.
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from yoasovi.errors import check, positive_integer, positive_number
from yoasovi.files.identity import differences
from yoasovi.files.storage import checksum, pack, sweep, unpack, write_whole

FORMAT = 1
SLOTS = ("a.checkpoint", "b.checkpoint")


@dataclass(frozen=True)
class Checkpoint:
    """Where and how often a fit is written down.

    Parameters
    ----------
    folder
        Made if it is not there; one folder for one fit.
    seconds
        Write once this long has passed since the last time.
    steps
        Also write once this many iterations have passed; None goes by time alone.

    Both are looked at between turns (a window, or some hundred single steps), and the end of a fit is always written.
    """

    folder: str | Path
    seconds: float = 10.0
    steps: int | None = None

    def __post_init__(self) -> None:
        check(isinstance(self.folder, str | Path), "checkpoint", "fit", "a folder or a Checkpoint", self.folder)
        positive_number("seconds", "Checkpoint", self.seconds)
        if self.steps is not None:
            positive_integer("steps", "Checkpoint", self.steps)


class Saved(NamedTuple):
    """What a checkpoint holds."""

    leaves: list[np.ndarray]  # of the loop's state
    trace: dict[str, np.ndarray]
    numbers: dict[str, Any]  # what the start cost, seconds so far

    def state(self, like: Any, folder: Path) -> Any:
        """Give the loop's state, once its arrays are those of `like`."""
        wanted, tree = jax.tree.flatten(like)
        # Integers of 32 bits are widened when they enter the loop, so kinds are compared and not types.
        kinds = lambda arrays: [(tuple(x.shape), np.dtype(x.dtype).kind) for x in arrays]
        if kinds(wanted) != kinds(self.leaves):
            raise ValueError(f"the checkpoint in {folder} holds arrays of other shapes than this fit's.")
        return jax.tree.unflatten(tree, self.leaves)


class Store:
    """The checkpoints of one fit in one folder."""

    def __init__(self, settings: Checkpoint, identity: Mapping[str, str]):
        self.settings, self.identity, self.folder = settings, dict(identity), Path(settings.folder)
        self.serial, self.step, self.clock = 0, 0, time.monotonic()
        self.written = False

    def open(self, resume: bool) -> Saved | None:
        """Make the folder ready, and give what there is to go on from; None is a fresh start."""
        if self.folder.exists() and not self.folder.is_dir():
            raise ValueError(f"`checkpoint` of `fit` must be a folder; {self.folder} is a file.")
        present = [self.folder / slot for slot in SLOTS if (self.folder / slot).exists()]
        if present and not resume:
            raise ValueError(
                f"`checkpoint` of `fit`: {self.folder} holds the checkpoint of an earlier run. "
                "Pass resume=True (--resume) to go on with it, or choose another folder."
            )
        found, broken = [], []
        for path in present:
            try:
                found.append(_read(path))
            except ValueError as error:
                broken.append(str(error))
        if present and not found:
            raise ValueError(f"no checkpoint in {self.folder} can be read: {'; '.join(broken)}. Delete them to start anew.")
        if not found:
            self._make_ready()
            return None
        header, saved = max(found, key=lambda pair: pair[0]["serial"])
        if changed := differences(header["identity"], self.identity):
            raise ValueError(f"the checkpoint in {self.folder} is of another fit: {'; '.join(changed)}.")
        if broken:
            warnings.warn(f"{'; '.join(broken)}. The checkpoint before it is used.", RuntimeWarning, stacklevel=4)
        self.serial, self.step, self.written = header["serial"], header["step"], True
        self._make_ready()
        return saved

    def _make_ready(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            sweep(self.folder)
        except OSError as error:
            raise ValueError(f"`checkpoint` of `fit`: {self.folder} cannot be written to: {error.strerror}.") from error

    def due(self, step: int) -> bool:
        """Say whether it is time to write."""
        steps = self.settings.steps
        late = time.monotonic() - self.clock >= self.settings.seconds
        return late or (steps is not None and step - self.step >= steps)

    def write(self, step: int, state: Any, trace: Mapping[str, np.ndarray], numbers: Mapping[str, Any]) -> None:
        """Write a checkpoint over the older of the two."""
        arrays = {f"state.{i:04d}": x for i, x in enumerate(jax.tree.leaves(state))}
        body = pack({**arrays, **{f"trace.{k}": v for k, v in trace.items()}})
        head = {"identity": self.identity, "serial": self.serial + 1, "step": step, "numbers": dict(numbers)}
        try:
            write_whole(self.folder / SLOTS[(self.serial + 1) % 2], _file(head, body))
        except OSError as error:
            last = f"the one of step {self.step:,} stays" if self.written else "there is none yet"
            raise OSError(
                f"the checkpoint of step {step:,} could not be written to {self.folder} ({error.strerror or error}); "
                f"{last}. Make room there and go on with resume=True (--resume)."
            ) from error
        self.serial, self.step, self.clock, self.written = self.serial + 1, step, time.monotonic(), True


def _file(head: dict[str, Any], body: bytes) -> bytes:
    text = json.dumps(head, sort_keys=True)
    outer = {"format": FORMAT, "length": len(body), "sha256": checksum(text.encode() + body), "head": head}
    return json.dumps(outer, sort_keys=True).encode() + b"\n" + body


def _read(path: Path) -> tuple[dict[str, Any], Saved]:
    data = path.read_bytes()
    line, newline, body = data.partition(b"\n")
    try:
        outer = json.loads(line)
        version, head = outer["format"], outer["head"]
        text, length, digest = json.dumps(head, sort_keys=True), outer["length"], outer["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path.name} is no checkpoint, or its beginning is lost") from error
    if version != FORMAT:
        raise ValueError(f"{path.name} has format {version!r}; this version of yoasovi reads {FORMAT}")
    if not newline or len(body) != length:
        raise ValueError(f"{path.name} is cut short: {len(body):,} of {length:,} bytes")
    if checksum(text.encode() + body) != digest:
        raise ValueError(f"{path.name} is damaged: its checksum does not match")
    if not {"identity", "serial", "step", "numbers"} <= set(head):
        raise ValueError(f"{path.name} is no checkpoint: its beginning lacks what a fit is of")
    arrays = unpack(body, len(body), path.name)  # they are stored as they are, so they cannot be larger
    leaves = [arrays[k] for k in sorted(k for k in arrays if k.startswith("state."))]
    trace = {k.removeprefix("trace."): v for k, v in arrays.items() if k.startswith("trace.")}
    return head, Saved(leaves, trace, head["numbers"])
