"""What was given to `fit`: options of the fit, settings of the method, and arguments of a NumPyro model function."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from yoasovi.errors import check
from yoasovi.methods import METHODS, Method
from yoasovi.model import Model


class Call(NamedTuple):
    """What belongs to whom."""

    method: str | Method
    family: Any
    settings: dict[str, Any]  # of the method
    args: tuple[Any, ...] = ()  # of the model function
    kwargs: Mapping[str, Any] = {}


def sort_out(model: Any, args: tuple[Any, ...], method: Any, family: Any, settings: dict[str, Any], own: set[str]) -> Call:
    """Tell the arguments of the model from the rest; `own` are the names of the options of `fit`.

    A name or a `Method` after the model is the method, and what follows it the family. Anything else there, and keywords
    that the model function has and the method has not, are the model's.
    """
    if args and isinstance(args[0], str | Method):
        if len(args) > 2 or any(map(np.ndim, args)):
            raise ValueError(
                "`fit` takes a method and a family after the model, or a model function's arguments; for both write "
                f"method={args[0]!r}, or yo.fit(yo.from_numpyro(model, x, y), {args[0]!r})."
            )
        check(method == "yoasovi", "method", "fit", "given once", f"{args[0]!r} and {method!r}")
        check(len(args) < 2 or family == "auto", "family", "fit", "given once", family)
        method, family, args = args[0], args[1] if len(args) > 1 else family, ()
    known = set(inspect.signature(METHODS[method]).parameters) if isinstance(method, str) and method in METHODS else set()
    arrays = [k for k, v in settings.items() if k not in known and np.ndim(v)]
    if isinstance(model, Model) or not callable(model) or not (parameters := _parameters(model)):
        if args or arrays:
            what = ", ".join([*(f"an array of shape {np.shape(x)}" if np.ndim(x) else repr(x) for x in args), *arrays])
            raise ValueError(
                f"`fit` got {what[:80]}: no method, and this model takes no arguments; give them where the model is made, "
                "as in yo.from_numpyro(model, x, y)."
            )
        return Call(method, family, settings)
    open_ended = any(p.kind == p.VAR_KEYWORD for p in parameters.values())
    named = {k for k, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    named -= set(list(parameters)[: len(args)])
    kwargs = {k: v for k, v in settings.items() if k not in known and (k in named or open_ended)}
    clash = sorted(named & (known & set(settings) | (own if args or kwargs else set())))
    if clash:
        raise ValueError(
            f"{', '.join(clash)} may be meant for `fit` or for the model, which both have it; give the model its arguments "
            "apart: yo.fit(yo.from_numpyro(model, x, y), ...)."
        )
    if (args or kwargs or arrays) and known and (unknown := sorted(set(settings) - set(kwargs) - known)):
        raise ValueError(
            f"{', '.join(unknown)} of `fit` must be an argument of the model ({', '.join(parameters)}) or a setting of "
            f"{method} ({', '.join(sorted(known))})."
        )
    return Call(method, family, {k: v for k, v in settings.items() if k not in kwargs}, args, kwargs)


def _parameters(model: Any) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(model).parameters
    except (TypeError, ValueError):
        return {}
