"""Free variables and the way from the unconstrained scale to their supports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.transforms import Transform

from yoasovi.pymc.graphs import on_host, rewritten, to_jax


class FreeVariable(NamedTuple):
    """A free variable and its place in the model."""

    name: str
    rv: Any
    value: Any  # the variable that stands for it in the graphs of log p
    support: constraints.Constraint
    shape: tuple[int, ...]
    moves: bool = False
    warp: Warp | None = None  # from the unconstrained scale, unless it is that

    def place(self, free: np.ndarray) -> np.ndarray:
        """Give a point of the unconstrained scale on the site's own, on the host."""
        return free if self.warp is None else self.warp.place(free)


@dataclass(frozen=True, eq=False)
class Warp:
    """A PyMC transform of one variable: graphs in both directions, and the shapes on both its sides."""

    free: Any  # the variable of the unconstrained scale
    own: Any
    there: Any  # graph of the variable itself, given `free`
    back: Any  # the other way
    log_jacobian: Any
    shape: tuple[int, ...]
    free_shape: tuple[int, ...]

    def place(self, free: np.ndarray) -> np.ndarray:
        """Give the variable on its own scale, on the host."""
        return on_host([self.there], {self.free: free})[0]

    def unplace(self, own: np.ndarray) -> np.ndarray:
        """Give the variable on the unconstrained scale, on the host."""
        return on_host([self.back], {self.own: own})[0]

    @cached_property
    def forward(self) -> Callable:
        """The variable, and the logarithm of the Jacobian, in JAX."""
        return to_jax(*rewritten([self.free], [self.there, self.log_jacobian]))

    @cached_property
    def backward(self) -> Callable:
        """The way back, in JAX."""
        return to_jax(*rewritten([self.own], [self.back]))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is made of the graphs: another process makes its own."""
        return {k: v for k, v in self.__dict__.items() if k not in ("forward", "backward")}


class Support(constraints.Constraint):
    """Where a PyMC transform leads."""

    def __init__(self, warp: Warp):
        self.warp = warp

    @property
    def event_dim(self):
        return len(self.warp.shape)

    def __call__(self, x):
        """Take every value: PyMC's density says what is outside."""
        return jnp.asarray(True)

    def tree_flatten(self):
        return (), ((), {"warp": self.warp})


class Unwarp(Transform):
    """From the unconstrained scale to a variable's own."""

    def __init__(self, warp: Warp):
        self.warp = warp

    def __call__(self, x):
        """Give the variable on its own scale."""
        return self.warp.forward(x)[0]

    def _inverse(self, y):
        return self.warp.unplace(y) if isinstance(y, np.ndarray) else self.warp.backward(y)[0]

    def log_abs_det_jacobian(self, x, y, intermediates=None):
        return jnp.sum(self.warp.forward(x)[1])

    def forward_shape(self, shape):
        return self.warp.shape

    def inverse_shape(self, shape):
        return self.warp.free_shape

    def tree_flatten(self):
        return (), ((), {"warp": self.warp})


biject_to.register(Support, lambda support: Unwarp(support.warp))


def sites_of(model: Any, point: list[np.ndarray]) -> tuple[FreeVariable, ...]:
    """Find each free variable's place: on its own scale, unless the way there depends on other variables."""
    from pytensor.graph.traversal import ancestors

    sites = []
    for rv, start in zip(model.free_RVs, point, strict=True):
        transform, value, shape = model.rvs_to_transforms[rv], model.rvs_to_values[rv], start.shape
        if transform is None:
            sites.append(FreeVariable(rv.name, rv, value, constraints.real, shape))
            continue
        own, around = rv.type(rv.name), rv.owner.inputs
        there, back = transform.backward(value, *around), transform.forward(own, *around)
        if set(ancestors([there])) & set(model.basic_RVs):
            sites.append(FreeVariable(value.name, rv, value, constraints.real, shape, moves=True))
            continue
        own_shape = on_host([there], {value: start})[0].shape
        warp = Warp(value, own, there, back, transform.log_jac_det(value, *around), own_shape, shape)
        sites.append(FreeVariable(rv.name, rv, own, _known(transform, around) or Support(warp), own_shape, warp=warp))
    return tuple(sites)


def _known(transform: Any, around: list[Any]) -> constraints.Constraint | None:
    """Give the NumPyro support whose way from the unconstrained scale is exactly PyMC's, if there is one."""
    from pymc.distributions.transforms import Interval, Ordered
    from pymc.logprob.transforms import IntervalTransform, LogOddsTransform, LogTransform

    kind = type(transform)
    if kind is LogTransform:
        return constraints.positive
    if kind is LogOddsTransform:
        return constraints.unit_interval
    if kind is Ordered and transform.ascending and not transform.positive:
        return constraints.ordered_vector
    if kind in (Interval, IntervalTransform):
        low, high = (None if x is None else _bound(x) for x in transform.args_fn(*around))
        if any(x is not None and not np.isfinite(x).all() for x in (low, high)):
            return None
        if low is not None and high is not None:
            return constraints.interval(low, high)
        if low is not None:
            return constraints.greater_than(low)
        if high is not None:
            return constraints.less_than(high)
    return None


def _bound(x: Any) -> np.ndarray:
    from pytensor.tensor import as_tensor

    return np.asarray(on_host([as_tensor(x)], {})[0], float)
