"""The command line: fit a model, compare methods on it, list the methods.

JAX is imported inside functions only, so that help and mistakes in the options are answered at once.
"""

from yoasovi.cli.commands import app, main

__all__ = ["app", "main"]
