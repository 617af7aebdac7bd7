"""Families of approximations q."""

from yoasovi.families.arrow import Arrow, ArrowParams
from yoasovi.families.base import Gaussian
from yoasovi.families.factorised import Factorised
from yoasovi.families.full_rank import FullRank, FullRankParams
from yoasovi.families.low_rank import LowRank, LowRankParams
from yoasovi.families.mean_field import MeanField, MeanFieldParams
from yoasovi.families.mixture import Mixture, MixtureParams, Share

__all__ = [
    "Arrow", "ArrowParams", "Factorised", "FullRank", "FullRankParams", "Gaussian", "LowRank",
    "LowRankParams", "MeanField", "MeanFieldParams", "Mixture", "MixtureParams", "Share",
]  # fmt: skip
