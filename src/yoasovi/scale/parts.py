"""A hierarchy cut into parts, of some groups each: their rows of the data, their entries of the sites, their laws."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import Distribution, ExpandedDistribution, ImproperUniform, Independent

from yoasovi.families import Arrow
from yoasovi.kernels.programs import as_arrays, precision
from yoasovi.model import Density, Inputs, Model
from yoasovi.randomness import Purpose, stream

_UNEVEN = 0.1  # by how much parts may be larger or smaller than asked for, so that all are of one size


class GroupPart(NamedTuple):
    """Some groups: which, and what log p has to know of them."""

    groups: np.ndarray
    inputs: Inputs
    rows: np.ndarray  # (2,): of those from the first number to the second, terms of the likelihood count for nothing


class GroupParts:
    """Groups of a model, in random order, cut into parts whose arrays have the same shapes.

    Arrays of the data that are as long as there are groups have a row for each. Where one of integers names groups, it and
    all that are as long have a row for each observation, and groups are numbered anew within their part. `check` sees
    whether log p of all groups is the sum of its parts, whatever was guessed here.
    """

    def __init__(self, model: Model, family: Arrow, groups: int, seed: int = 0):
        self.model, self.family = model, family
        self.count = _number_of_parts(family.groups, groups)
        order = stream(seed, Purpose.GROUP_PARTS).permutation(family.groups)
        self._likelihoods: dict[int, Any] = {}
        self.places = [np.sort(x) for x in np.array_split(order, self.count)]

    @cached_property
    def index(self) -> np.ndarray | None:
        """The array that names every row's group; None where rows are groups."""
        for x in jax.tree.leaves(self.model.data):
            array = np.asarray(x)
            named = array.ndim == 1 and array.dtype.kind in "iu" and len(array) >= self.family.groups
            if named and array.min() == 0 and array.max() == self.family.groups - 1:
                return array
        return None

    @cached_property
    def _by_group(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows in the order of their groups, and where each group's begin."""
        if self.index is None:
            return np.arange(self.family.groups), np.arange(self.family.groups + 1)
        order = np.argsort(self.index, kind="stable")
        return order, np.searchsorted(self.index[order], np.arange(self.family.groups + 1))

    @property
    def num_rows(self) -> int:
        """Rows of the data."""
        return len(self._by_group[0])

    @cached_property
    def _most_rows(self) -> int:
        starts = self._by_group[1]
        return max(int((starts[x + 1] - starts[x]).sum()) for x in self.places)

    def part(self, i: int) -> GroupPart:
        """Give one of the parts; with as many rows as the longest, so that one program does for all."""
        return self.of(self.places[i], self._most_rows)

    def of(self, groups: np.ndarray, rows: int | None = None) -> GroupPart:
        """Give the part of some groups, filled up to a number of rows."""
        order, starts = self._by_group
        found = np.concatenate([order[starts[g] : starts[g + 1]] for g in groups])
        count = len(found)
        if rows is not None and count < rows:
            found = np.concatenate([found, np.repeat(found[-1:], rows - count)])
        local = dict(self.family.local)
        prior = {k: _cut_law(v, local[k], groups) if k in local else v for k, v in self.model.prior.items()}
        return GroupPart(groups, Inputs(prior, {}, self._cut_data(groups, found)), np.array([count, len(found)]))

    def _cut_data(self, groups: np.ndarray, rows: np.ndarray) -> Any:
        total, index = self.num_rows, self.index

        def cut(x):
            array = np.asarray(x)
            if array.ndim and len(array) == total:
                mine = array[rows]
                named = (
                    index is not None and array.dtype.kind in "iu" and array.shape == index.shape and (array == index).all()
                )
                return np.searchsorted(groups, mine).astype(array.dtype) if named else mine
            return array[groups] if array.ndim and len(array) == self.family.groups else x

        return jax.tree.map(cut, self.model.data)

    def family_of(self, groups: int) -> Arrow:
        """Give the family of a part of so many groups."""
        return replace(self.family, groups=groups)

    def density_of(self, groups: int) -> Density:
        """Give the density of a part of so many groups."""
        local, density = dict(self.family.local), self.model.density
        cut = lambda name, shape: tuple(groups if i == local.get(name) else n for i, n in enumerate(shape))
        sites = tuple(s._replace(shape=cut(s.name, s.shape), free_shape=cut(s.name, s.free_shape)) for s in density.sites)
        width = max(density.width * groups // self.family.groups, 1)
        return density._replace(log_likelihood=self._likelihood_of(groups), sites=sites, width=width)

    def _likelihood_of(self, groups: int) -> Any:
        """Give the likelihood of so many groups; the same one each time, since programs are kept by it."""
        if groups not in self._likelihoods:
            given = self.model.log_likelihood
            resized = getattr(given, "of_groups", None)  # a NumPyro model may have their number in it
            self._likelihoods[groups] = resized(self.family.groups, groups) if resized else given
        return self._likelihoods[groups]

    def model_of(self, groups: np.ndarray) -> Model:
        """Give a model of some of the groups."""
        inputs = self.of(groups).inputs
        return Model(
            prior=inputs.prior, log_likelihood=self._likelihood_of(len(groups)), data=inputs.data,
            local=dict(self.family.local), name=f"{len(groups):,} groups of {self.model.name}",
        )  # fmt: skip

    def check(self) -> str:
        """Say why log p is not the sum of its parts; nothing where it is."""
        if self.model.on_host or self.model.centred or self.model.mesh is not None or self.model.stream is not None:
            return "it is called by the host, non-centred, shared among devices, or streamed"
        whole = np.arange(self.family.groups)
        some = (whole[: len(whole) // 3], whole[len(whole) // 3 :])
        given = (self.model.inputs, [self.of(x).inputs for x in some])

        def both(hub, spokes, inputs, parts):
            halves = [
                own_terms(self.density_of(len(x)), self.family_of(len(x)), part, hub, spokes[:, x])
                for x, part in zip(some, parts, strict=True)
            ]
            return jnp.stack([own_terms(self.model.density, self.family, inputs, hub, spokes), sum(halves)])

        with precision():
            try:
                at = self.family.split(jnp.linspace(-0.4, 0.6, self.model.density.dim))
                value = jax.jit(both)(*at, *as_arrays(given))
            except Exception:  # whatever a function that needs all groups raises
                return _NOT_APART
        near = 1e-6 if value.dtype == np.float64 else 1e-3
        return "" if np.isclose(value[0], value[1], near, near) else _NOT_APART


_NOT_APART = (
    "its groups cannot be looked at apart; their number has to come with a plate, or with arrays that the model is given "
    "(`data`, arguments) with a row for each group, or one for each observation and integers from 0 that name its group"
)


def own_terms(density: Density, family: Arrow, inputs: Inputs, hub: Any, spokes: Any, rows: Any = None) -> jax.Array:
    """Give log p less the priors of globals; terms of `rows[0]` to `rows[1]` count for nothing."""
    terms, local = density.free_terms(inputs, family.join(hub, spokes)), dict(family.local)
    likelihood = terms.likelihood
    if rows is not None:
        place = jnp.arange(likelihood.size)
        likelihood = jnp.where((place >= rows[0]) & (place < rows[1]), 0.0, likelihood)
    return jnp.sum(likelihood) + sum(jnp.sum(v) for k, v in terms.prior.items() if k in local)


def hub_terms(density: Density, family: Arrow, inputs: Inputs, hub: Any, spokes: Any) -> jax.Array:
    """Give the priors of globals."""
    terms, local = density.free_terms(inputs, family.join(hub, spokes)), dict(family.local)
    return sum((jnp.sum(v) for k, v in terms.prior.items() if k not in local), jnp.zeros(()))


def _number_of_parts(groups: int, each: int) -> int:
    """Give how many parts there are of about `each` groups, equal ones if that can be."""
    usual = max(round(groups / each), 1)
    near = sorted(range(max(int(usual * (1 - _UNEVEN)), 1), int(usual * (1 + _UNEVEN)) + 1), key=lambda m: abs(m - usual))
    return next((m for m in near if groups % m == 0), usual)


def _cut_law(law: Distribution, axis: int, groups: np.ndarray) -> Distribution:
    """Give the law of some groups of a site."""
    shape = lambda x: tuple(len(groups) if i == axis else n for i, n in enumerate(x))
    if isinstance(law, Independent):
        return Independent(_cut_law(law.base_dist, axis, groups), law.reinterpreted_batch_ndims)
    if isinstance(law, ImproperUniform):
        batch, whole = len(law.batch_shape), shape(law.batch_shape + law.event_shape)
        return ImproperUniform(law.support, whole[:batch], whole[batch:])
    if isinstance(law, ExpandedDistribution):
        inner = axis - len(law.batch_shape) + len(law.base_dist.batch_shape)
        base = law.base_dist
        if inner >= 0 and base.batch_shape[inner] > 1:
            base = _cut_law(base, inner, groups)
        return base.expand(shape(law.batch_shape))
    from_right = axis - len(law.batch_shape)
    wide = lambda x: np.ndim(x) >= -from_right and np.shape(x)[from_right] == law.batch_shape[axis]
    cut = jax.tree.map(lambda x: np.take(np.asarray(x), groups, from_right) if wide(x) else x, law)
    cut._batch_shape = shape(law.batch_shape)
    return cut
