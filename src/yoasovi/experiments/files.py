"""Files of an experiment: whole or not there at all, with the versions and the machine they were made by."""

from __future__ import annotations

import csv
import io
import json
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

Row = dict[str, Any]
_LIBRARIES = (
    "yoasovi", "jax", "jaxlib", "numpyro", "optax", "numpy", "scipy", "scikit-learn", "matplotlib", "pyclustering",
    "blackjax", "pymc",
)  # fmt: skip


def write(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(content.encode() if isinstance(content, str) else content)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def writable(out: Path, owner: str = "reproduce") -> None:
    """Check that a folder can be written to; what was not there before is not there after."""
    there = out
    while not there.exists():
        there = there.parent
    if not there.is_dir():
        raise ValueError(f"`out` of `{owner}` must be a folder; got {out}, and {there} is a file.")
    try:
        write(there / ".yoasovi-can-write", "")
        (there / ".yoasovi-can-write").unlink()
    except OSError as error:
        rule = f"`out` of `{owner}` must be a folder that can be written to"
        raise ValueError(f"{rule}; got {out}: {error.strerror}.") from None


def write_csv(path: Path, rows: list[Row]) -> None:
    """Write rows of the same columns."""
    text = io.StringIO()
    table = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write(path, text.getvalue())


def write_json(path: Path, command: str, rows: list[Row], **more: Any) -> None:
    """Write rows with the command, the versions and the machine that made them; one row per line."""
    head = {"command": command, "versions": versions(), "machine": machine(), **more}
    lines = ",\n  ".join(json.dumps(row, allow_nan=False) for row in rows)
    write(path, json.dumps(head, indent=1, allow_nan=False).removesuffix("\n}") + f',\n "rows": [\n  {lines}\n ]\n}}\n')


def versions() -> dict[str, str]:
    """Give the version of everything that the figures depend on."""
    known = {name: version(name) for name in _LIBRARIES}
    return {"python": platform.python_version(), **{k: v for k, v in known.items() if v}}


def machine() -> Row:
    """Describe the machine."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        found = [line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        name = found[0] if found else name
    return {"system": platform.system(), "processor": name, "cores": os.cpu_count()}


def version(name: str) -> str:
    """Give the version of an installed library; empty if it is not there."""
    if name == "yoasovi":
        from yoasovi import __version__

        return __version__
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
