"""Mistakes, answered in one line."""

from __future__ import annotations

import os
import sys

import typer
from typer.core import TyperGroup


class OneLineErrors(TyperGroup):
    """A command group that answers bad input with one line on stderr and exit code 2."""

    def main(self, *args, standalone_mode: bool = True, **extra):
        """Run a command; YOASOVI_TRACEBACK=1 lets errors through with their traceback."""
        try:
            code = super().main(*args, **{**extra, "standalone_mode": False})
        except typer.Abort:
            code = 130
        except Exception as error:
            if not standalone_mode or os.environ.get("YOASOVI_TRACEBACK"):
                raise
            print(f"yoasovi: {one_line(error)}", file=sys.stderr)
            if isinstance(error, ConnectionError):  # JAX would wait for the process that is gone, and then abort
                sys.stderr.flush()
                os._exit(2)
            code = 2
        if not standalone_mode:
            return code
        sys.exit(code if isinstance(code, int) else 0)


def one_line(error: BaseException) -> str:
    """Give an error's message as one line of at most 600 characters, led by the error's type where that is unexpected."""
    say = getattr(error, "format_message", None)  # of a mistake in the command line itself
    text = " ".join(str(say() if say else error).split())
    text = "; ".join([text, *getattr(error, "__notes__", [])])
    if not say and not isinstance(error, ValueError | NotImplementedError | ImportError | FloatingPointError | OSError):
        text = f"{type(error).__name__}: {text} (YOASOVI_TRACEBACK=1 shows where)"
    return text if len(text) <= 600 else text[:597] + "..."
