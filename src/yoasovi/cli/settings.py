"""Settings of methods, read from `--set NAME=VALUE`."""

from __future__ import annotations

import ast
import inspect
from typing import Any

from yoasovi.errors import did_you_mean


def read_settings(pairs: list[str] | None, names: list[str]) -> dict[str, dict[str, Any]]:
    """Read pairs NAME=VALUE and give each method those it takes; one that no method takes is an error."""
    given = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals:
            raise ValueError(f"--set must be NAME=VALUE; got {pair!r}.")
        name = name.strip().replace("-", "_")
        given[name] = parse_setting(name, value.strip())
    from yoasovi.methods import METHODS

    for name in names:
        check_method(name)
    allowed = {name: inspect.signature(METHODS[name]).parameters for name in names}
    for setting in given:
        if not any(setting in a for a in allowed.values()):
            takes = sorted({x for a in allowed.values() for x in a})
            raise ValueError(f"{' and '.join(names)} has no setting {setting!r}; it takes {', '.join(takes)}.")
    return {name: {k: v for k, v in given.items() if k in a} for name, a in allowed.items()}


def check_method(name: str) -> None:
    """Refuse a name that no method has."""
    from yoasovi.methods import METHODS

    if name not in METHODS:
        raise ValueError(f"no method {name!r}: it must be one of {', '.join(METHODS)}.{did_you_mean(name, METHODS)}")


def parse_setting(name: str, text: str) -> Any:
    """Read a setting: a Python literal, a word, a tempering such as log:3, or, as `sequence`, sobol or halton."""
    if name == "tempering":
        return _tempering(text)
    if name == "sequence":
        from yoasovi.draws import Halton, Sobol

        sequences = {"sobol": Sobol, "halton": Halton}
        if text.lower() not in sequences:
            raise ValueError(f"--set sequence must be sobol or halton; got {text!r}.")
        return sequences[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _tempering(text: str) -> Any:
    from yoasovi.tempering import Constant, Linear, Logarithmic, Warmup

    kinds: dict[str, Any] = {"constant": Constant, "log": Logarithmic, "linear": Linear, "warmup": Warmup}
    kind, *numbers = text.split(":")
    try:
        return kinds[kind.lower()](*(ast.literal_eval(x) for x in numbers))
    except (KeyError, TypeError, SyntaxError, ValueError) as error:
        rule = "constant:1.5, log:3, linear:0.1:15:2500 or warmup"
        why = f" ({error})" if isinstance(error, ValueError) and "must be" in str(error) else ""
        raise ValueError(f"--set tempering must look like {rule}; got {text!r}{why}.") from error
