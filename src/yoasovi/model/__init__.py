"""Models."""

from yoasovi.model.model import Model

__all__ = ["Model"]
