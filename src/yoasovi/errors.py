"""One form for every complaint about an argument: which, of what, what it must be, what came."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any


def check(ok: Any, name: str, owner: str, rule: str, value: Any) -> None:
    """Raise a ValueError that names the argument unless `ok`."""
    if not ok:
        raise ValueError(f"`{name}` of `{owner}` must be {rule}; got {shown(value)}.")


def shown(value: Any) -> str:
    """A value as it appears in a message: short, even when it is an array."""
    text = value if isinstance(value, str) and " " in value else repr(value)
    return text if len(text) <= 120 else text[:117] + "..."


def positive_integer(name: str, owner: str, value: Any) -> None:
    """Check that `value` is an integer of at least one; NumPy's are integers too."""
    ok = isinstance(value, Integral) and not isinstance(value, bool) and int(value) > 0
    check(ok, name, owner, "a positive integer", value)


def positive_number(name: str, owner: str, value: Any) -> None:
    """Check that `value` is a finite number above zero; NumPy's are numbers too."""
    ok = isinstance(value, Real) and not isinstance(value, bool) and 0 < float(value) < float("inf")
    check(ok, name, owner, "a positive finite number", value)


def first_line(error: BaseException) -> str:
    """Give the first line of what an error says; PyTensor's go on with the whole graph."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Give a hint at the known name that is most like this one; nothing if none is."""
    plain = {k.lower(): k for k in known}
    close = get_close_matches(name.lower(), plain, 1)
    return f" Did you mean {plain[close[0]]!r}?" if close else ""


def absent(error: KeyError, sites: Iterable[str], data: Any) -> str:
    """Say which name a user's function did not find, among which sites and data."""
    keys = [str(k) for k in data] if isinstance(data, Mapping) else []
    there = f"the sites {', '.join(sites)}" + (f" and the data {', '.join(keys)}" if keys else "")
    return f"{error}, which is not there; there are {there}.{did_you_mean(str(error.args[0]), [*sites, *keys])}"
