"""Ten of Ultsch's Fundamental Clustering Problems, read from the files that the package `pyclustering` carries."""

from __future__ import annotations

from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np

from yoasovi.extras import how

# Points of each class, in the order of the file, which lists one class after the other.
_BLOCKS = {
    "Atom": (400, 400),
    "Chainlink": (500, 500),
    "EngyTime": (2048, 2048),
    "Hepta": (32, 30, 30, 30, 30, 30, 30),
    "Tetra": (100, 100, 100, 100),
    "TwoDiamonds": (400, 400),
}
SETS = ("Atom", "Chainlink", "EngyTime", "GolfBall", "Hepta", "Lsun", "Target", "Tetra", "TwoDiamonds", "WingNut")


class Points(NamedTuple):
    """A set of points with the class of each; GolfBall, a sphere without structure, has one class."""

    name: str
    y: np.ndarray  # (N, p)
    labels: np.ndarray  # (N,), 0 to K - 1

    @property
    def num_classes(self) -> int:
        """K."""
        return int(self.labels.max()) + 1


def load(name: str, most: int | None = None) -> Points:
    """Read one set; of more than `most` points, evenly spaced ones through the file are kept."""
    check_name(name)
    y = np.loadtxt(folder() / f"{name}.data")
    labels = _labels(name, y)
    if most is not None and len(y) > most:
        kept = np.linspace(0, len(y) - 1, most).astype(int)
        y, labels = y[kept], labels[kept]
    return Points(name, y, labels)


def check_name(name: str) -> None:
    """Raise a ValueError unless there is a set of this name."""
    if name not in SETS:
        close = get_close_matches(name, SETS, 1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"`sets` of `reproduce` must be from {', '.join(SETS)}; got {name!r}.{hint}")


def folder() -> Path:
    """Find the data files without importing the package's code."""
    spec = find_spec("pyclustering")
    for place in (spec.submodule_search_locations or []) if spec else []:
        found = Path(place) / "samples" / "samples" / "fcps"
        if found.is_dir():
            return found
    raise ImportError(f"the data files of pyclustering are needed for this; {how('bench')}.")


def _labels(name: str, y: np.ndarray) -> np.ndarray:
    """The files carry no labels: they follow from the order of the points or from the figure they make."""
    if name in _BLOCKS:
        return np.repeat(np.arange(len(_BLOCKS[name])), _BLOCKS[name])
    if name == "Lsun":  # a bar lying, a bar standing, a ball (one stray point at the ball's edge goes with it)
        return np.where(y[:, 1] < 1.2, 0, np.where(y[:, 0] < 1.8, 1, 2))
    if name == "WingNut":  # two plates on either side of a gap
        return (y[:, 0] > 0).astype(int)
    if name == "Target":  # a disc, a ring, and four corners of three points each
        radius = np.linalg.norm(y, axis=1)
        corner = 2 + 2 * (y[:, 0] > 0) + (y[:, 1] > 0)
        return np.where(radius < 1.0, 0, np.where(radius < 2.5, 1, corner))
    return np.zeros(len(y), int)
