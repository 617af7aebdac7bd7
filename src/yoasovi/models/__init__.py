"""Ready-made models."""

from yoasovi.models import hierarchical, mixture, network, regression
from yoasovi.models.hierarchical import HierarchicalNormal
from yoasovi.models.mixture import GaussianMixture
from yoasovi.models.network import NeuralNetwork
from yoasovi.models.regression import LinearRegression, LogisticRegression, PoissonRegression

__all__ = [
    "GaussianMixture",
    "HierarchicalNormal",
    "LinearRegression",
    "LogisticRegression",
    "NeuralNetwork",
    "PoissonRegression",
    "hierarchical",
    "mixture",
    "network",
    "regression",
]
