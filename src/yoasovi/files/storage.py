"""Files written whole or not at all, and arrays read from files that are not trusted."""

from __future__ import annotations

import hashlib
import io
import math
import os
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

TEMPORARY = ".yoasovi.tmp"  # ends the name of a file that is being written


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it is there entirely, or as it was before, whatever happens meanwhile."""
    temporary = path.with_name(path.name + TEMPORARY)
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def sweep(folder: Path) -> None:
    """Remove what a process that was killed while writing has left."""
    for left in folder.glob(f"*{TEMPORARY}"):
        left.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make the renaming itself last; not every system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def checksum(data: bytes) -> str:
    """Give the SHA-256 of some bytes."""
    return hashlib.sha256(data).hexdigest()


def pack(arrays: Mapping[str, Any]) -> bytes:
    """Put arrays into the bytes of an npz file; arrays of objects, which would need pickle, are refused."""
    plain = {name: np.asarray(value) for name, value in arrays.items()}
    for name, value in plain.items():
        if value.dtype.hasobject:
            raise ValueError(f"array {name!r} holds Python objects, which are never written.")
    out = io.BytesIO()
    np.savez(out, allow_pickle=False, **plain)  # type: ignore[arg-type]
    return out.getvalue()


def unpack(source: Path | bytes, limit: int, name: str = "") -> dict[str, np.ndarray]:
    """Read the arrays of an npz file of at most `limit` bytes in all, without pickle.

    Sizes are compared with the limit before anything is expanded, so a small file cannot fill the memory.
    """
    name = name or str(source)
    try:
        with zipfile.ZipFile(io.BytesIO(source) if isinstance(source, bytes) else source) as archive:
            members = archive.infolist()
            size = sum(m.file_size for m in members)
            if size > limit:
                raise ValueError(f"{name} would expand to {size:,} bytes; the limit is {limit:,}.")
            return {m.filename.removesuffix(".npy"): _member(archive, m, name) for m in members}
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError):
            raise
        raise ValueError(f"{name} is no intact npz file: {error}") from error


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> np.ndarray:
    if not member.filename.endswith(".npy") or "/" in member.filename or "\\" in member.filename:
        raise ValueError(f"{name} has a member {member.filename!r}, which is no array of an npz file.")
    with archive.open(member) as file:
        return read_npy(file, member.file_size, f"{name}: {member.filename}")


def read_npy(file: Any, size: int, name: str) -> np.ndarray:
    """Read one array from an open npy file of `size` bytes; its header must account for every byte."""
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(file)
    except ValueError as error:
        raise ValueError(f"{name} is no npy file: {str(error).splitlines()[0]}") from error
    if dtype.hasobject:
        raise ValueError(f"{name} holds Python objects, which would need pickle; such files are never read.")
    header = file.tell()
    wanted = dtype.itemsize * math.prod(shape)
    if wanted != size - header:
        raise ValueError(f"{name} says it has shape {shape} of {dtype}, {wanted:,} bytes, but holds {size - header:,}.")
    data = file.read(wanted)
    if len(data) != wanted:
        raise ValueError(f"{name} ends after {len(data):,} of {wanted:,} bytes.")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C").copy()
