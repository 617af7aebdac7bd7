"""Maths that runs on the host in NumPy and inside compiled programs in jax.numpy, from one text."""

from __future__ import annotations

from typing import Any

import numpy as np


def space(x: Any) -> Any:
    """Give the module that an array belongs to: numpy (also for plain numbers) or jax.numpy."""
    find = getattr(x, "__array_namespace__", None)
    return np if find is None else find()
