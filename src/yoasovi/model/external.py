"""Functions that live outside JAX: called by the host, with NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from yoasovi.errors import check


class HostProgram(Protocol):
    """What a program in another language can do besides giving log p with its gradient; points are (n, d)."""

    def heights(self, points: np.ndarray) -> np.ndarray:
        """Give log p alone."""
        ...

    def outward(self, points: np.ndarray) -> dict[str, np.ndarray]:
        """Give draws on their own scale, with all that follows from them."""
        ...

    def why(self, point: np.ndarray) -> str:
        """Say in a sentence why it refuses a point; nothing if it does not."""
        ...


@dataclass(frozen=True)
class HostDensity:
    """A Python function of a NumPy vector, or of rows of them; with its gradient, if it gives that too."""

    fn: Callable[..., Any]
    batched: bool = False
    gradient: bool = False
    program: HostProgram | None = None  # behind the function, if it is one that can do more

    def __call__(self, params: Any, data: Any) -> Any:
        """Stand in for it where only shapes are asked for: inside a trace it cannot be called."""
        return np.full(1, np.nan)

    def values(self, points: np.ndarray) -> np.ndarray:
        """Give log p at points (n, d), shape (n,)."""
        if self.program is not None:
            return self.program.heights(points)
        return self._looks(points)[0]

    def gradients(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Give log p and its gradient at points (n, d): (n,) and (n, d)."""
        return self._looks(points)

    def _looks(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        points = np.array(points, float)  # a copy, which the function may change
        blocks = [points] if self.batched else np.split(points, len(points))
        seen = []
        for rows in blocks:
            try:
                seen.append(self._checked(self.fn(rows if self.batched else rows[0]), rows))
            except Exception as error:
                error.add_note(f"raised by `fn` of `Model.external` at {self._culprit(rows)}")
                raise
        return np.concatenate([v for v, _ in seen]), np.concatenate([g for _, g in seen])

    def _checked(self, found: Any, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Check what the function returned: shapes () and (d,), or (n,) and (n, d)."""
        slope: Any = np.full(rows.shape, np.nan)
        if self.gradient:
            pair = isinstance(found, tuple | list) and len(found) == 2
            check(pair, "fn", "Model.external", "a function returning (value, gradient)", found)
            found, slope = found
            slope = self._numbers(slope, rows.shape if self.batched else rows.shape[1:], "gradient ")
        elif isinstance(found, tuple | list) and len(found) == 2 and np.ndim(found[1]) == 1 + self.batched:
            rule = "a function returning log p alone; pass gradient=True for one that gives (value, gradient)"
            raise ValueError(f"`fn` of `Model.external` must be {rule}.")
        return self._numbers(found, (len(rows),) if self.batched else (), "").reshape(-1), slope.reshape(rows.shape)

    def _numbers(self, found: Any, shape: tuple[int, ...], what: str) -> np.ndarray:
        value = np.asarray(found)
        check(value.dtype.kind in "biuf", "fn", "Model.external", f"a function returning {what}numbers", found)
        ok = value.shape == shape or (shape == () and value.size == 1)
        check(ok, "fn", "Model.external", f"a function returning {what}shape {shape}", f"shape {value.shape}")
        return value.astype(float)

    def _culprit(self, rows: np.ndarray) -> str:
        """Name the draw that raised; of several, the first that does so alone."""
        for row in rows:
            try:
                self._checked(self.fn(row[None] if self.batched else row), row[None])
            except Exception:
                return f"x = {np.array2string(row, threshold=20)}"
        return f"{len(rows)} draws together"
