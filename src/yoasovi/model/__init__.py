"""Models: what is inferred, and the terms of its log density."""

from yoasovi.model.centring import Centring, Frame, noncentred, recentred, reparameterisations
from yoasovi.model.density import Density, Inputs, Params, Site, Terms, local_law
from yoasovi.model.external import HostDensity
from yoasovi.model.labels import Labels
from yoasovi.model.model import Model, WholeDensity

__all__ = [
    "Centring", "Density", "Frame", "HostDensity", "Inputs", "Labels", "Model", "Params", "Site", "Terms", "WholeDensity",
    "local_law", "noncentred", "recentred", "reparameterisations",
]  # fmt: skip
