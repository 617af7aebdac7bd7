"""Stan programs as models: compiled once, called by the host with rows of points; JAX never sees them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpyro.distributions import ImproperUniform, constraints

from yoasovi.model import HostDensity, Model
from yoasovi.stan.building import compiled
from yoasovi.stan.inputs import read_data, read_program
from yoasovi.stan.layout import free_sizes
from yoasovi.stan.program import StanProgram

__all__ = ["from_stan"]


def from_stan(program: str | Path, data: Mapping[str, Any] | str | Path | None = None, **fields: Any) -> Model:
    """Build a model of a Stan program and its data.

    The program is compiled by BridgeStan where that is installed with its sources, else by what httpstan (PyStan) brings:
    half a minute to two, once; the result is kept in the cache folder. log p has all its constants and the Jacobians of
    Stan's transforms. Draws carry parameters, transformed parameters and generated quantities under their own names, with
    their own shapes.

    Parameters
    ----------
    program
        A path that ends in .stan, or the program itself.
    data
        A dict of numbers and arrays by name, or the path of a JSON file as CmdStan reads it.
    **fields
        Of `Model`, such as `name`, `labels` or `start`.

    Examples
    --------
    >>> import yoasovi as yo
    >>> model = yo.from_stan("schools.stan", "schools.json")  # doctest: +SKIP
    """
    source = read_program(program)
    held = StanProgram(compiled(source), source, read_data(data))
    prior = {name: ImproperUniform(constraints.real, (), shape) for name, shape in free_sizes(held.free, held.own).items()}
    density = HostDensity(held.look, batched=True, gradient=True, program=held)
    return Model(prior=prior, log_likelihood=density, **{"name": source.name, **fields})
