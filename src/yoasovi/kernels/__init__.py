"""Small compiled programs: everything that touches log p."""

from __future__ import annotations

from typing import Any

from yoasovi.kernels.programs import Clock


def kernels_of(model: Any, family: Any, clock: Clock, lanes: int = 1, density: Any = None) -> Any:
    """Give the kernels that look at a model through a family; `density` may be that of minibatches."""
    from yoasovi.families import Gaussian, Mixture
    from yoasovi.kernels.looks import HostKernels, JaxKernels

    density = model.density if density is None else density
    if model.on_host:
        return HostKernels(density, model.inputs, family, clock)
    if model.stream is not None:
        from yoasovi.scale.stream import StreamedKernels

        return StreamedKernels(model.stream, density, model.inputs, family, clock, lanes)
    if isinstance(family, Gaussian | Mixture):
        return JaxKernels(density, model.inputs, family, clock, lanes, model.mesh)
    from yoasovi.kernels.factors import FactorKernels

    return FactorKernels(density, model.inputs, family, clock, lanes)
