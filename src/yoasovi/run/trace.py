"""The trace of a run: one row per turn, thinned by a stated rule so that it stays small however long the run."""

from __future__ import annotations

from typing import Any

import numpy as np

MOST_ROWS = 20_000


class Trace:
    """Rows of all restarts, on the host.

    Row k (counted from 0) is kept if `stride` divides k. The stride is 1 until more than MOST_ROWS rows would be held, and
    doubles whenever that happens; the last row of each restart is always kept. What is kept depends on the number of turns
    alone, not on calls or pauses.
    """

    def __init__(self) -> None:
        self.stride = 1
        self.turns = 0
        self._blocks: list[dict[str, np.ndarray]] = []  # (restarts, rows) of each call, joined now and then
        self._rows = 0
        self.last: dict[str, np.ndarray] = {}  # (restarts,), the latest row of each

    def add(self, info: Any, begin: float, end: float) -> None:
        """Add the rows of one call, which ran from second `begin` to second `end`; time is spread evenly within it."""
        columns = {k: np.asarray(v) for k, v in info._asdict().items()}
        done = columns["window"] > 0
        real = done.sum(1)  # the rows of a restart that has ended are blank
        count = int(real.max())
        if not count:
            return
        shares = np.arange(1, count + 1) / count
        columns["elapsed"] = np.broadcast_to(begin + shares * (end - begin), (len(real), count))
        ends, here = np.maximum(real - 1, 0), np.arange(len(real))
        for name, rows in columns.items():
            new = rows[here, ends]
            self.last[name] = np.where(real > 0, new, self.last.get(name, new))
        place = self.turns + np.arange(count)
        self.turns += count
        chosen = place % self.stride == 0
        self._blocks.append({k: rows[:, :count][:, chosen] for k, rows in columns.items()})
        self._rows += int(chosen.sum())
        while self._rows > MOST_ROWS:
            self.stride *= 2
            self._blocks = [{k: v[:, ::2].copy() for k, v in self.kept.items()}]
            self._rows = -(-self._rows // 2)

    @property
    def kept(self) -> dict[str, np.ndarray]:
        """The rows that are held, (restarts, rows) by column."""
        if len(self._blocks) > 1:
            self._blocks = [{k: np.concatenate([b[k] for b in self._blocks], 1) for k in self._blocks[0]}]
        return self._blocks[0] if self._blocks else {}

    def of(self, restart: int) -> dict[str, np.ndarray]:
        """Give one restart's rows, by column."""
        kept = self.kept
        if not kept:
            return {}
        done = kept["window"][restart] > 0
        rows = {k: v[restart][done] for k, v in kept.items()}
        if not done.any() or self.last["step"][restart] != rows["step"][-1]:
            rows = {k: np.append(v, self.last[k][restart]) for k, v in rows.items()}
        with np.errstate(divide="ignore"):
            rows["temperature"] = 1.0 / rows["strictness"]
        return rows

    def arrays(self) -> dict[str, np.ndarray]:
        """Give everything as arrays, for a checkpoint."""
        counts = {"stride": np.asarray(self.stride), "turns": np.asarray(self.turns)}
        return {
            **counts,
            **{f"kept.{k}": v for k, v in self.kept.items()},
            **{f"last.{k}": v for k, v in self.last.items()},
        }

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> Trace:
        """Take up what `arrays` gave."""
        trace = cls()
        trace.stride, trace.turns = int(arrays["stride"]), int(arrays["turns"])
        part = lambda head: {k.removeprefix(head): v for k, v in arrays.items() if k.startswith(head)}
        trace.last, kept = part("last."), part("kept.")
        if kept:
            trace._blocks, trace._rows = [kept], kept["window"].shape[1]
        return trace
