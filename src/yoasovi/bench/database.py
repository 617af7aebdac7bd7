"""Posteriors of posteriordb, read from a clone of it: their data and their reference draws.

Nothing here imports JAX at start-up, so that a process can have its data before the clock starts.
"""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from yoasovi.bench.posteriors import Posterior


def folder_of(clone: str | Path) -> Path:
    """Give the folder of the database in a clone of its repository."""
    base = Path(clone)
    folder = base if (base / "posteriors").is_dir() else base / "posterior_database"
    if not (folder / "posteriors").is_dir():
        raise ValueError(f"FOLDER must be a clone of github.com/stan-dev/posteriordb; {base} has no posterior_database.")
    return folder


def posteriors(folder: Path) -> dict[str, Posterior]:
    """Give those of the database that have a NumPyro form here."""
    from yoasovi.bench.posteriors import Posterior
    from yoasovi.bench.real_models import FORMS
    from yoasovi.bench.target import Target

    found = {}
    for name in [x for x in FORMS if (folder / "posteriors" / f"{x}.json").exists()]:
        model, args = FORMS[name](data(folder, name))
        found[name] = Posterior(name, lambda: (), Target(model, args).dim, "from posteriordb")
    return found


def about(folder: Path, name: str) -> dict[str, Any]:
    """Give what the database says of a posterior."""
    return json.loads((folder / "posteriors" / f"{name}.json").read_text())


def data(folder: Path, name: str) -> dict[str, np.ndarray]:
    """Give the data of a posterior."""
    found = _read(folder / "data/data" / f"{about(folder, name)['data_name']}.json.zip")
    return {k: np.asarray(v) for k, v in found.items()}


def draws(folder: Path, name: str) -> dict[str, np.ndarray] | None:
    """Give the reference draws by site (chains, draws, ...); None if there are none."""
    path = folder / "reference_posteriors/draws/draws" / f"{about(folder, name).get('reference_posterior_name')}.json.zip"
    if not path.exists():
        return None
    chains = _read(path)
    return {k: v.reshape(len(chains), -1, *v.shape[1:]) for k, v in by_site(chains).items()}


def by_site(chains: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Give chains of `{"beta[1]": [...], "sigma": [...]}` as one array per name, chain after chain, by its indices."""
    columns: dict[str, list[np.ndarray]] = {}
    for label in sorted(chains[0], key=lambda text: [int(i) for i in re.findall(r"\d+(?=[],])", text)]):
        columns.setdefault(label.split("[")[0], []).append(np.concatenate([chain[label] for chain in chains]))
    return {name: np.stack(c, 1) if len(c) > 1 else c[0] for name, c in columns.items()}


def _read(path: Path) -> Any:
    with zipfile.ZipFile(path) as file:
        return json.loads(file.read(file.namelist()[0]))
