"""Checks of the arrays that ready-made models are given: wrong ones are refused by name, before anything is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from yoasovi.errors import check


def numbers(name: str, owner: str, value: Any, *ndims: int) -> np.ndarray:
    """Take `value` as a finite, non-empty array of floats with one of `ndims` dimensions."""
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"`{name}` of `{owner}` must be an array; {error}") from error
    check(array.dtype.kind in "biuf", name, owner, "an array of numbers", f"dtype {array.dtype}")
    array = array if array.dtype.kind == "f" else array.astype(float)
    rule = " or ".join(f"{n}-dimensional" for n in ndims)
    check(array.ndim in ndims, name, owner, rule, f"an array of shape {array.shape}")
    check(array.size > 0, name, owner, "non-empty", f"an array of shape {array.shape}")
    if bad := int((~np.isfinite(array)).sum()):
        raise ValueError(f"`{name}` of `{owner}` must be finite; got {bad} NaN or infinite value(s). Drop or impute them.")
    return array


def design(owner: str, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Take X as (N, p) and y as (N,)."""
    X, y = numbers("X", owner, X, 2), numbers("y", owner, y, 1)
    check(len(X) == len(y), "y", owner, f"as long as `X` has rows ({len(X)})", f"{len(y)} values")
    return X, y


def positive(name: str, owner: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Take `value` as positive numbers, one for all or one for each, of the given shape."""
    array = numbers(name, owner, value, 0, len(shape))
    check((array > 0).all(), name, owner, "positive", value)
    return broadcast(name, owner, array, shape)


def broadcast(name: str, owner: str, array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Repeat one number to `shape`, or check that the array has that shape."""
    check(array.ndim == 0 or array.shape == shape, name, owner, f"a number or of shape {shape}", f"shape {array.shape}")
    return np.array(np.broadcast_to(array, shape))


def one_of(name: str, owner: str, value: Any, *choices: str) -> None:
    """Check that `value` is one of the named choices."""
    check(value in choices, name, owner, f"one of {', '.join(map(repr, choices))}", value)


def by_name(given: Any, *names: str) -> dict[str, Any]:
    """Take the `data` of `predict`: a dict with these names, the first of which is needed, or what that one stands for."""
    if not isinstance(given, Mapping):
        return {names[0]: given}
    unknown = sorted(map(str, set(given) - {*names, "y"}))  # y is what is predicted: given or not, it is not looked at
    check(not unknown, "data", "predict", f"a dict with keys among {', '.join(map(repr, names))}", unknown)
    check(names[0] in given, "data", "predict", f"a dict with {names[0]!r}", [*given])
    return dict(given)
