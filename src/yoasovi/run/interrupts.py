"""Ctrl-C during a fit: the first ends it after the current window, the second at once; while compiling, the first does."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import jax


class Interrupts:
    """Within this context SIGINT sets `asked`; a second one raises KeyboardInterrupt.

    Neither compiling nor a compiled program looks at signals or can be ended halfway, so `run` leaves them to another
    thread while this one waits. While compiling, the first Ctrl-C raises at once, since there is nothing to be had yet.
    Only the main thread can be interrupted: elsewhere nothing is installed, and `run` is a plain call.
    """

    def __init__(self) -> None:
        self.asked = False
        self._compiling = False
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
        if self._compiling:
            print("yoasovi: stopped while compiling; there is no result yet.", file=sys.stderr, flush=True)
            raise KeyboardInterrupt
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        print("yoasovi: ending after this window; Ctrl-C again stops at once.", file=sys.stderr, flush=True)

    def run(self, fn: Callable[[], Any], compiling: bool = True) -> Any:
        """Give `fn()`, and let Ctrl-C through while it runs."""
        if not self._main:
            return fn()
        wide, box, done = bool(jax.config.read("jax_enable_x64")), [], threading.Event()

        def work():
            try:
                with jax.enable_x64(wide):  # JAX keeps this setting by thread
                    box.append((fn(), None))
            except BaseException as error:
                box.append((None, error))
            done.set()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self._compiling = compiling
        try:
            while not done.wait(0.5):  # with a limit, since Windows lets no signal through an endless wait
                pass
        except BaseException:
            atexit.register(_leave, thread)
            raise
        finally:
            self._compiling = False
        answer, error = box[0]
        if error is not None:
            raise error
        return answer


def _leave(thread: threading.Thread) -> None:
    """End the process at once if what was left behind still goes on: Python cannot tidy up around a busy compiler."""
    if thread.is_alive():
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(130)
