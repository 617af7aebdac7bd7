"""A program compiled with this package's own door: C functions that take rows of points and let other threads run."""

from __future__ import annotations

import ctypes
import weakref
from pathlib import Path

import numpy as np

from yoasovi.stan.inputs import StanSource, data_line
from yoasovi.stan.program import threads

_ROOM = 4096  # bytes for what Stan says
_DOUBLES = np.ctypeslib.ndpointer(np.float64, flags="C_CONTIGUOUS")
_SAID = (ctypes.c_char_p, ctypes.c_size_t)


class DoorLibrary:
    """The compiled program, its data read."""

    def __init__(self, path: Path, source: StanSource, data: str):
        self.calls = ctypes.CDLL(str(path))
        self.calls.yoasovi_open.restype = ctypes.c_void_p
        self.calls.yoasovi_open.argtypes = [ctypes.c_char_p, *_SAID]
        self.calls.yoasovi_close.argtypes = [ctypes.c_void_p]
        self.calls.yoasovi_close.restype = None
        self.calls.yoasovi_names.restype = ctypes.c_size_t
        self.calls.yoasovi_names.argtypes = [ctypes.c_void_p, ctypes.c_int, *_SAID]
        self.calls.yoasovi_look.restype = ctypes.c_long
        self.calls.yoasovi_look.argtypes = [
            ctypes.c_void_p, ctypes.c_long, _DOUBLES, _DOUBLES, ctypes.c_void_p, ctypes.c_int, *_SAID
        ]  # fmt: skip
        self.calls.yoasovi_outward.restype = ctypes.c_long
        self.calls.yoasovi_outward.argtypes = [
            ctypes.c_void_p, ctypes.c_long, _DOUBLES, _DOUBLES, ctypes.c_long, ctypes.c_int, *_SAID
        ]  # fmt: skip
        said = ctypes.create_string_buffer(_ROOM)
        self.model = self.calls.yoasovi_open(data.encode(), said, _ROOM)
        if not self.model:
            raise ValueError(data_line(said.value.decode(errors="replace"), source, data))
        weakref.finalize(self, self.calls.yoasovi_close, self.model)

    def names(self) -> tuple[list[str], list[str], list[str]]:
        """Give the names of unconstrained parameters, of parameters, and of everything that a draw has."""
        return self._names(0), self._names(1), self._names(2)

    def _names(self, which: int) -> list[str]:
        room = self.calls.yoasovi_names(self.model, which, ctypes.create_string_buffer(1), 0)
        text = ctypes.create_string_buffer(room)
        self.calls.yoasovi_names(self.model, which, text, room)
        return text.value.decode().split()

    def look(self, points: np.ndarray, gradient: bool) -> tuple[np.ndarray, np.ndarray, str]:
        """Give log p, its gradient if asked for, and why the first was refused."""
        points = np.ascontiguousarray(points, float)
        values, slopes = np.empty(len(points)), np.full(points.shape, np.nan)
        said = ctypes.create_string_buffer(_ROOM)
        into = slopes.ctypes.data if gradient else None
        self.calls.yoasovi_look(self.model, len(points), points, values, into, threads(), said, _ROOM)
        return values, slopes, said.value.decode(errors="replace")

    def outward(self, points: np.ndarray, width: int) -> np.ndarray:
        """Give everything that draws have."""
        points = np.ascontiguousarray(points, float)
        out = np.empty((len(points), width))
        said = ctypes.create_string_buffer(_ROOM)
        self.calls.yoasovi_outward(self.model, len(points), points, out, width, threads(), said, _ROOM)
        return out
