"""Optional libraries, imported where they are used."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


def need(module: str, extra: str) -> ModuleType:
    """Import an optional library, or say which extra installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        name = module.split(".")[0]
        raise ImportError(f"{name} is needed for this; {how(extra)}.") from error


def how(extra: str) -> str:
    """Say how an extra is installed."""
    return f'install the extra {extra}: pip install -e ".[{extra}]" in a clone, pip install "yoasovi[{extra}]" of a release'
