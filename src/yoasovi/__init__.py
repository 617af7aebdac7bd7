"""Variational inference that needs no tuning, stops by itself and says how sure it is."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from yoasovi import acceptance, draws, families, gradients, methods, models, optimizers, stopping, tempering
    from yoasovi.answer.result import Fit
    from yoasovi.caching import cache
    from yoasovi.calibration import Calibration, calibrate
    from yoasovi.families import Arrow, Factorised, FullRank, LowRank, MeanField
    from yoasovi.files.checkpoint import Checkpoint
    from yoasovi.files.saving import load
    from yoasovi.fitting import fit
    from yoasovi.methods import Method
    from yoasovi.model import Model, noncentred
    from yoasovi.numpyro import from_numpyro
    from yoasovi.pymc import from_pymc
    from yoasovi.scale.sharding import connect
    from yoasovi.scale.stream import stream
    from yoasovi.scale.sweep import Job, Sweep, jobs, sweep
    from yoasovi.stan import from_stan
    from yoasovi.stopping import StopReason
    from yoasovi.verdict.diagnostics import Estimate
    from yoasovi.verdict.findings import Thresholds, Verdict

__version__ = "0.2.0"

# Where each public name lives. They are imported when first used, so that `import yoasovi` and the command line's help
# start at once, and so that no optional library is touched before it is needed.
_HOMES = {
    "Arrow": "families",
    "Calibration": "calibration",
    "Checkpoint": "files.checkpoint",
    "Estimate": "verdict.diagnostics",
    "Factorised": "families",
    "Fit": "answer.result",
    "FullRank": "families",
    "Job": "scale.sweep",
    "LowRank": "families",
    "MeanField": "families",
    "Method": "methods",
    "Model": "model",
    "StopReason": "stopping",
    "Sweep": "scale.sweep",
    "Thresholds": "verdict",
    "Verdict": "verdict",
    "cache": "caching",
    "calibrate": "calibration",
    "connect": "scale.sharding",
    "fit": "fitting",
    "from_numpyro": "numpyro",
    "from_pymc": "pymc",
    "from_stan": "stan",
    "jobs": "scale.sweep",
    "load": "files.saving",
    "noncentred": "model",
    "stream": "scale.stream",
    "sweep": "scale.sweep",
}
_MODULES = ("acceptance", "draws", "families", "gradients", "methods", "models", "optimizers", "stopping", "tempering")
__all__ = [  # noqa: RUF022 - names first, then modules; written out, since type checkers read it
    "Arrow", "Calibration", "Checkpoint", "Estimate", "Factorised", "Fit", "FullRank", "Job", "LowRank", "MeanField",
    "Method", "Model", "StopReason", "Sweep", "Thresholds", "Verdict", "cache", "calibrate", "connect", "fit",
    "from_numpyro", "from_pymc", "from_stan", "jobs", "load", "noncentred", "stream", "sweep",
    "acceptance", "draws", "families", "gradients", "methods", "models", "optimizers", "stopping", "tempering",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(f"yoasovi.{_HOMES[name]}"), name)
    elif name in _MODULES:
        value = import_module(f"yoasovi.{name}")
    else:
        raise AttributeError(f"module 'yoasovi' has no attribute {name!r}")
    globals()[name] = value  # also puts a function back where a submodule of the same name would hide it
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
