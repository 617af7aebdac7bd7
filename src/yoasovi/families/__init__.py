"""Families of approximations q."""

from yoasovi.families.base import FullRank, Gaussian, LowRank, MeanField
from yoasovi.families.factorised import Factorised

__all__ = ["Factorised", "FullRank", "Gaussian", "LowRank", "MeanField"]
