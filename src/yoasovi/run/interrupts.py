"""Ctrl-C during a fit: the first ends it after the current chunk, the second at once."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import jax


class Interrupts:
    """Within this context SIGINT sets `asked`; a second one raises KeyboardInterrupt.

    Compiled code does not look at signals, so `run` leaves it to another thread while this one waits for it. Only the
    main thread can be interrupted: elsewhere nothing is installed, and `run` is a plain call.
    """

    def __init__(self) -> None:
        self.asked = False
        self._main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Interrupts:
        if self._main:
            self._previous = signal.getsignal(signal.SIGINT)
            # A program that ignores Ctrl-C (nohup, a shell's background job) goes on ignoring it.
            self._main = callable(self._previous)
        if self._main:
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: Any) -> None:
        if self._main:
            signal.signal(signal.SIGINT, self._previous)

    def _handle(self, *_: Any) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        print("yoasovi: ending after this chunk; Ctrl-C again stops at once.", file=sys.stderr, flush=True)

    def run(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Give `fn(*args)`, and let a second Ctrl-C through while it runs."""
        if not self._main:
            return fn(*args)
        wide, box, done = bool(jax.config.read("jax_enable_x64")), [], threading.Event()

        def work():
            try:
                with jax.enable_x64(wide):  # JAX keeps this setting by thread
                    box.append((jax.block_until_ready(fn(*args)), None))
            except BaseException as error:
                box.append((None, error))
            done.set()

        threading.Thread(target=work, daemon=True).start()
        while not done.wait(0.5):  # with a limit, since Windows lets no signal through an endless wait
            pass
        answer, error = box[0]
        if error is not None:
            raise error
        return answer
