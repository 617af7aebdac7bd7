"""Variational inference that needs no tuning, stops by itself and says how sure it is."""

from yoasovi import families, models
from yoasovi.diagnostics import Estimate
from yoasovi.factorised import Factorised
from yoasovi.families import FullRank, LowRank, MeanField
from yoasovi.fit import fit
from yoasovi.methods import Method
from yoasovi.model import Model
from yoasovi.result import Fit
from yoasovi.stopping import StopReason

__all__ = [
    "Estimate",
    "Factorised",
    "Fit",
    "FullRank",
    "LowRank",
    "MeanField",
    "Method",
    "Model",
    "StopReason",
    "families",
    "fit",
    "models",
]
__version__ = "0.1.0"
