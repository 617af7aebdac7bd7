"""Models: what is inferred, and the terms of its log density."""

from yoasovi.model.density import Density, Inputs, Params, Site, Terms, local_law
from yoasovi.model.external import HostDensity
from yoasovi.model.labels import Labels
from yoasovi.model.model import Model, WholeDensity

__all__ = ["Density", "HostDensity", "Inputs", "Labels", "Model", "Params", "Site", "Terms", "WholeDensity", "local_law"]
