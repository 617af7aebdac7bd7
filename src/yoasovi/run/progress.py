"""Live progress in a terminal or a notebook; silence elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

from yoasovi.stopping import MaxSteps

_FATES = 12  # windows whose verdicts are shown
_EVERY = 0.1  # seconds between two changes of a notebook's line
# What programs do, for someone who waits for one to be compiled.
_PROGRAMS = {
    "gradients": "log p and its gradient", "differences": "log p", "walk": "windows of steps", "chain": "single steps",
    "values": "log p", "pairs": "log p", "sights": "log p and its features", "constrained": "draws on their supports",
    "anchored": "log p of all the data", "transitions": "NUTS",
}  # fmt: skip


class Progress:
    """A line that says how far a fit is: ELBO, verdicts, step size, evaluations per second, and time left where it is known.

    It begins before anything is compiled, and says what is being compiled. Time left is known for methods that take a
    fixed number of steps; those with a stopping rule end when they end.
    """

    def __init__(self, wanted: bool | None, method: Any, max_steps: int):
        self.begin = time.perf_counter()
        self.first: tuple[float, int] | None = None  # when the first turn was done, and its evaluations
        self.fixed = isinstance(method.stopping, MaxSteps)
        self.fates, self.total = "", max_steps
        self.line = _line(wanted, method.name, max_steps if self.fixed else None)

    def __enter__(self) -> Progress:
        if self.line:
            self.line.start()
            self.line.update(0, "starting")
        return self

    def __exit__(self, *_: Any) -> None:
        if self.line:
            self.line.stop()

    def compiling(self, program: str) -> None:
        """Say what is being compiled."""
        if self.line:
            self.line.update(None, f"compiling {_PROGRAMS.get(program, program.replace('_', ' '))}")

    def __call__(self, state: Any, info: Any) -> None:
        """Take note of a turn: `state` after it, `info` its rows; both have a leading axis of restarts."""
        if self.line:
            step = int(np.max(state.step))
            self.line.update(step, self.said(state, info, time.perf_counter() - self.begin))

    def said(self, state: Any, info: Any, now: float) -> str:
        """Put what is known into words."""
        step, spent = int(np.max(state.step)), int(np.sum(state.values) + np.sum(state.gradients))
        done = info.window[0] > 0
        elbo = info.elbo[0][done & np.isfinite(info.elbo[0])]
        fates = zip(info.accepted[0][done], info.rolled_back[0][done], strict=True)
        self.fates = (self.fates + "".join("✓" if a else "↶" if b else "·" for a, b in fates))[-_FATES:]
        words = [f"step {step:,}"]
        if elbo.size:
            # One-draw methods see single draws: their mean over a call says more than the last of them.
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
            if self.fixed and step:
                words.append(f"{max(0.0, (now - self.first[0]) * (self.total - step) / step):,.0f} s left")
        return "  ".join(words)


class Rounds:
    """A line that says how far something is that goes by rounds; there as that of a fit is."""

    def __init__(self, wanted: bool | None, name: str):
        self.line, self.count = _line(wanted, name, None), 0

    def __enter__(self) -> Rounds:
        if self.line:
            self.line.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self.line:
            self.line.stop()

    def compiling(self, program: str) -> None:
        """Say what is being compiled."""
        if self.line:
            self.line.update(None, f"compiling {_PROGRAMS.get(program, program)}")

    def __call__(self, said: str) -> None:
        """Take note of a round."""
        self.count += 1
        if self.line:
            self.line.update(self.count, said)


def _line(wanted: bool | None, name: str, total: int | None) -> Any:
    """Give a line to write on where one is wanted, or where nothing is said of it and someone is looking."""
    notebook = _in_notebook()
    if wanted or (wanted is None and (sys.stderr.isatty() or notebook)):
        return (_NotebookLine if notebook else _TerminalLine)(name, total)
    return None


class _TerminalLine:
    """One line of a terminal, gone at the end."""

    def __init__(self, name: str, total: int | None):
        from rich.console import Console
        from rich.progress import BarColumn, Progress as Bar, SpinnerColumn, TextColumn, TimeElapsedColumn

        kind = SpinnerColumn() if total is None else BarColumn(bar_width=20)
        columns = (
            TextColumn("{task.description}"),
            kind,
            TextColumn("{task.fields[said]}", markup=False),
            TimeElapsedColumn(),
        )
        self.bar = Bar(*columns, console=Console(stderr=True), transient=True)
        self.task = self.bar.add_task(name, total=total, said="")
        self.start, self.stop = self.bar.start, self.bar.stop

    def update(self, step: int | None, said: str) -> None:
        # What is said before a long silence must be on the screen when it begins.
        self.bar.update(self.task, completed=step, said=said, refresh=not step)


class _NotebookLine:
    """One line under a notebook's cell, at most ten times a second, gone at the end."""

    def __init__(self, name: str, total: int | None):
        self.name, self.last = name, 0.0
        self.handle: Any = None

    def start(self) -> None:
        from IPython.display import display

        self.handle = display({"text/plain": self.name}, raw=True, display_id=True)

    def update(self, step: int | None, said: str) -> None:
        now = time.perf_counter()
        if self.handle is not None and (now - self.last > _EVERY or step is None):
            self.last = now
            self.handle.update({"text/plain": f"{self.name}  {said}"}, raw=True)

    def stop(self) -> None:
        if self.handle is not None:
            self.handle.update({"text/plain": ""}, raw=True)


def _in_notebook() -> bool:
    """Say whether this process is a notebook's kernel, without importing IPython for it."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and hasattr(shell, "kernel")
