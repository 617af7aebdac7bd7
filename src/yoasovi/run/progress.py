"""Live progress in a terminal; silence elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from yoasovi.stopping import MaxSteps

_FATES = 12  # windows whose verdicts are shown


class Progress:
    """A line that says how far a fit is: ELBO, verdicts, step size, evaluations per second, and time left where it is known.

    Time left is known for methods that take a fixed number of steps; those with a stopping rule end when they end.
    """

    def __init__(self, wanted: bool | None, method: Any, max_steps: int):
        self.bar: Any = None
        self.begin = time.perf_counter()
        self.first: tuple[float, int] | None = None  # when the first chunk was done, and its evaluations
        self.fixed = isinstance(method.stopping, MaxSteps)
        self.fates = ""
        if wanted or (wanted is None and sys.stderr.isatty()):
            from rich.console import Console
            from rich.progress import BarColumn, Progress as Bar, SpinnerColumn, TextColumn, TimeElapsedColumn

            kind = BarColumn(bar_width=20) if self.fixed else SpinnerColumn()
            columns = (
                TextColumn("{task.description}"),
                kind,
                TextColumn("{task.fields[said]}", markup=False),
                TimeElapsedColumn(),
            )
            self.bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self.task = self.bar.add_task(method.name, total=max_steps if self.fixed else None, said="compiling")

    def __enter__(self):
        if self.bar:
            self.bar.start()
        return self.show

    def __exit__(self, *_):
        if self.bar:
            self.bar.stop()

    def show(self, state: Any, info: Any) -> None:
        """Take note of a chunk: `state` after it, `info` of its turns; both have a leading axis of restarts."""
        if not self.bar:
            return
        step = int(np.max(state.step))
        self.bar.update(self.task, completed=step, said=self.said(state, info, time.perf_counter() - self.begin))

    def said(self, state: Any, info: Any, now: float) -> str:
        """Put what is known into words."""
        step, spent = int(np.max(state.step)), int(np.sum(state.values) + np.sum(state.gradients))
        done = info.window[0] > 0
        elbo = info.elbo[0][done & np.isfinite(info.elbo[0])]
        fates = zip(info.accepted[0][done], info.rolled_back[0][done], strict=True)
        self.fates = (self.fates + "".join("✓" if a else "↶" if b else "·" for a, b in fates))[-_FATES:]
        words = [f"step {step:,}"]
        if elbo.size:
            # One-draw methods see single draws: their mean over the chunk says more than the last of them.
            words.append(f"ELBO {float(np.mean(elbo) if elbo.size > 20 else elbo[-1]):,.2f}")
        if self.fates:
            words.append(self.fates)
        size = info.step_size[0][done]
        if size.size and np.isfinite(size[-1]):
            words.append(f"step size {size[-1]:.2g}")
        if self.first is None:
            self.first = now, spent
        elif now > self.first[0]:
            rate = (spent - self.first[1]) / (now - self.first[0])
            words.append(f"{rate:,.0f} evaluations/s")
            total = self.bar.tasks[0].total if self.bar else None
            if self.fixed and total and step:
                words.append(f"{max(0.0, (now - self.first[0]) * (total - step) / step):,.0f} s left")
        return "  ".join(words)
