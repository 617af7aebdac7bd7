"""Looks at log p: the few small programs that everything said about a posterior rests on.

No random numbers and no decisions inside: noise comes in, numbers come out. A Gaussian family places its noise and
whitens gradients on the host, for all lanes (restarts) at once; a program sees nothing but points. So two programs do for
all Gaussian families: log p with its gradient at points, and log p at pairs of points, summed so that the difference is
right (see `model.sums`). Points go in blocks of fixed sizes, which keeps memory bounded and lets lanes drop out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from numpyro.distributions import constraints

from yoasovi.families.mixture import Share
from yoasovi.kernels.programs import Bound, Clock, Held
from yoasovi.model.density import Density, Inputs
from yoasovi.model.external import HostDensity
from yoasovi.model.minibatch import Anchor, Batch
from yoasovi.model.sums import SummedRows, wide_total
from yoasovi.windows.value_regression import Layout, Memory, Sights

BLOCK = 32  # points, where one look is cheap
_NUMBERS = {"cpu": 2**19}  # that an array inside one call may have: caches hold a few such, larger ones take thrice the time
_ARRAYS, _LEAST_MEMORY = 16, 2**33  # elsewhere: so many of them fill the device's memory, in bytes if it does not say
_CHEAP = 2**17  # numbers; below it a block costs no more than the call itself
_FEW = 8  # points, where one look is not cheap
_STEP = 8  # from one size of block to the next
_FILLED = 0.6  # of a block at least, if a smaller one would do
# On accelerators so many numbers take no longer than the call: one block that is mostly empty is better than several calls.
_HARDLY_FILLED, _HARDLY_ANY = 0.1, {"cpu": 0}
_HARDLY_ANY_ELSEWHERE = 2**26
_TINY = 256  # numbers in the largest array, up to which programs are compiled without being optimised


class Scores(NamedTuple):
    """What draws show; NaN where log p is not finite."""

    ratio: np.ndarray  # log p - log q, (lanes, n)
    white: np.ndarray  # d/dtheta of it in q's own units, (lanes, n, d)
    theta: np.ndarray  # the draws
    gradient: np.ndarray  # of log p


class Pairs(NamedTuple):
    """Two q on common draws, (lanes, n) each."""

    change: np.ndarray  # of log p - log q, from the second to the first
    new: np.ndarray
    old: np.ndarray


class Rows(NamedTuple):
    """The minibatches that draws look at."""

    keys: np.ndarray  # (lanes, n, 2) words
    anchor: Anchor  # (lanes, ...)


class PointKernels(ABC):
    """Looks at one log density through one family, over something that can look at points; lanes lead.

    What all that is said of a posterior rests on: `scores`, `values` and `pairs` at draws, `point` and `heights` at points.
    """

    def __init__(self, family: Any, dim: int):
        self.family, self.dim = family, dim

    @abstractmethod
    def look(self, points: np.ndarray, rows: Rows | None) -> tuple[np.ndarray, np.ndarray]:
        """Give log p and its gradient at points (n, d)."""

    @abstractmethod
    def compare(self, new: np.ndarray, old: np.ndarray, rows: Rows | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Give log p at new minus log p at old, and both."""

    def scores(self, params: Any, noise: np.ndarray, rows: Rows | None = None) -> Scores:
        """Look at log p and its gradient at draws; noise is (lanes, n, k)."""
        return self.scores_of([(params, noise, rows)])[0]

    def scores_of(self, asked: list[tuple[Any, np.ndarray, Rows | None]]) -> list[Scores]:
        """Give the scores of several groups of lanes, each with its own number of draws, by one look at all of them."""
        places = [self.family.place(params, noise) for params, noise, _ in asked]
        value, gradient = self.look(np.concatenate([x.reshape(-1, self.dim) for x in places]), _all_rows(asked))
        out, start = [], 0
        for theta, (params, noise, _) in zip(places, asked, strict=True):
            part = slice(start, start + theta.size // self.dim)
            start = part.stop
            with np.errstate(all="ignore"):  # what is not finite is told by the answer
                ratio = value[part].reshape(theta.shape[:-1]) + self.family.minus_log_q(params, noise)
                steep = gradient[part].reshape(theta.shape)
                white = self.family.white(params, noise, steep)
            out.append(Scores(ratio, np.where(np.isfinite(ratio)[..., None], white, np.nan), theta, steep))
        return out

    @property
    def whole(self) -> PointKernels:
        """Looks at the whole of log p, where these may look at a part."""
        return self

    def heights(self, theta: np.ndarray) -> np.ndarray:
        """Give log p at points (n, d)."""
        half = -(-len(theta) // 2)
        _, first, second = self.compare(theta[:half], np.concatenate([theta[half:], theta[: 2 * half - len(theta)]]), None)
        return np.concatenate([first, second])[: len(theta)]

    def values(self, params: Any, noise: np.ndarray) -> np.ndarray:
        """Give log p - log q at draws, (lanes, n)."""
        theta = self.family.place(params, noise)
        value = self.heights(theta.reshape(-1, self.dim)).reshape(theta.shape[:-1])
        return value + self.family.minus_log_q(params, noise)

    def pairs(self, new: Any, old: Any, noise: np.ndarray, rows: Rows | None = None) -> Pairs:
        """Compare two q on common draws."""
        here, there = (self.family.place(q, noise).reshape(-1, self.dim) for q in (new, old))
        found = [x.reshape(noise.shape[:-1]) for x in self.compare(here, there, rows)]
        minus_new, minus_old = self.family.minus_log_q(new, noise), self.family.minus_log_q(old, noise)
        with np.errstate(all="ignore"):
            return Pairs(found[0] + (minus_new - minus_old), found[1] + minus_new, found[2] + minus_old)

    def point(self, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Give log p of all the data and its gradient at unconstrained points, (lanes, d)."""
        return self.look(flat, None)

    def densities(self, params: Any, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Give log p and log q at unconstrained draws (n, d) of one lane."""
        log_q = self.family.log_q(params, theta[None])[0]
        return self.heights(theta), log_q if log_q.ndim == 1 else log_q.sum(-1)

    # Where a mean-field q is fitted to values alone, its features are its noise.

    def layout(self) -> Layout:
        """Say what values can be regressed on."""
        return Layout(np.ones(self.dim, bool), np.arange(self.dim), {}, 1)

    def sights(self, params: Any, noise: np.ndarray, spread: float) -> tuple[Sights, Any]:
        """Look at what values are regressed on, at draws of one lane; also the draws themselves."""
        lane = jax.tree.map(lambda x: x[None], params)
        value = self.values(lane, noise[None])[0]
        return Sights(noise, value, np.zeros((len(noise), 0)), {}, {}, {}), self.family.place(lane, noise[None])[0]

    def depart(self, params: Any, shift, stretch, limit: float, memory: Memory, reach: float, length: float) -> Any:
        """Move one lane's parameters along the features."""
        mean = params.mean + np.exp(params.log_scale) * shift
        return params._replace(mean=mean, log_scale=params.log_scale + stretch)

    def blank_draw(self, lanes: int) -> Any:
        """Give zeros like one draw of each lane."""
        return np.zeros((lanes, self.dim))


class JaxKernels(PointKernels):
    """Looks at a density written in JAX."""

    def __init__(
        self, density: Density, inputs: Inputs, family: Any, clock: Clock, lanes: int = 1, mesh: Mesh | None = None
    ):
        super().__init__(family, density.dim)
        self.density, self.inputs = density, inputs
        rows = lambda name, x: name.startswith(".data") and x.ndim > 0 and len(x) == density.num_observations
        self.clock, self.held = clock, Held(inputs, mesh, rows)
        self._gradients, self._differences = (self.bind(fn, density, mesh is None) for fn in (_gradients, _differences))
        most = _most_numbers() * (mesh.size if mesh else 1) // density.width
        self.block = 2 ** int(np.log2(np.clip(most, 1, BLOCK)))
        self.sizes = [self.block]  # of blocks, largest first
        while lanes > 1 and self.sizes[0] * _STEP <= min(most, lanes * BLOCK):
            self.sizes.insert(0, self.sizes[0] * _STEP)
        if not self.cheap and self.block > _FEW:  # judgements and climbs look at so many
            self.sizes.append(_FEW)
        elif self.block < _FEW and mesh is None and isinstance(density.log_likelihood, SummedRows):  # no array is so wide
            self.sizes.insert(0, _FEW)
        # One point is padded to a block where that costs nothing, and has a program of its own where it does.
        self._single = self.block * density.width > _CHEAP

    def bind(self, fn: Callable, *static: Any) -> Bound:
        """Bind another program to the same inputs."""
        return Bound(fn, static, self.held, self.clock, max(self.density.width, self.dim**2) <= _TINY)

    @property
    def cheap(self) -> bool:
        """Whether a thousand looks cost next to nothing."""
        return 1000 * self.density.width <= 2**24

    def look(self, points, rows):
        sizes = [1] if self._single and len(points) == 1 else self.sizes
        found = self._in_blocks(self._gradients, sizes, points, *_flat_rows(rows))
        return found[:, 0] + found[:, 1], found[:, 2:]

    def compare(self, new, old, rows):
        found = self._in_blocks(self._differences, self.sizes, new, old, *_flat_rows(rows))
        with np.errstate(invalid="ignore"):
            new, old = found[:, 0] + found[:, 1], found[:, 2] + found[:, 3]
            return (found[:, 0] - found[:, 2]) + (found[:, 1] - found[:, 3]), new, old

    def constrain(self, theta: np.ndarray, deterministics: Callable | None = None) -> dict[str, np.ndarray]:
        """Give draws (n, d) on the sites' own supports, with the model's deterministic quantities."""
        real = all(is_real(self.inputs.prior[s.name].support) for s in self.density.sites)
        plain = real and deterministics is None
        if plain and self.density.centring is None:
            return self.density.split(np.asarray(theta))
        program = self.bind(_constrained, self.density, deterministics)
        found = self._in_blocks(program, [_STEP * self.block], theta)  # by name, as JAX sorts them
        sites = [s.name for s in self.density.sites]
        return {k: found[k] for k in (sites if plain else [*sites, *(k for k in found if k not in sites)])}

    def anchor(self, flat: np.ndarray) -> Anchor:
        """Look at the likelihood of all the data at one place per lane."""
        program = self.bind(_anchored, self.density)
        found = [program(x) for x in flat]
        value, gradient = (np.stack([np.asarray(x[i]) for x in found]) for i in (0, 1))
        return Anchor(flat, value, gradient)

    def each(self, fn: Callable, params: dict[str, np.ndarray]) -> np.ndarray:
        """Give `fn(params, data)` at draws on the sites' own supports, one row per draw."""
        return self._in_blocks(self.bind(_each, fn), [self.block], params)

    def each_total(self, fn: Callable, params: dict[str, np.ndarray]) -> np.ndarray:
        """Give the sum of `fn(params, data)` at draws on the sites' own supports, one number per draw."""
        return self._in_blocks(self.bind(_each_total, fn), [self.block], params)

    def _least_filled(self, size: int) -> float:
        few = _HARDLY_ANY.get(jax.default_backend(), _HARDLY_ANY_ELSEWHERE)
        return _HARDLY_FILLED if size * self.density.width <= few else _FILLED

    def _in_blocks(self, program: Callable, sizes: list[int], *arrays: Any) -> Any:
        """Run a program on rows, in blocks of few sizes; the last is padded with copies of the last row."""
        leaves, tree = jax.tree.flatten(arrays)
        total, start, found = len(leaves[0]), 0, []
        while start < total:
            size = next((s for s in sizes if self._least_filled(s) * s <= total - start), sizes[-1])
            stop = min(start + size, total)
            block = [_padded(x[start:stop], size) for x in leaves]
            found.append((program(*jax.tree.unflatten(tree, block)), stop - start))
            start = stop
        join = lambda *parts: np.concatenate([np.asarray(p)[:n] for p, (_, n) in zip(parts, found, strict=True)])
        return _wide(jax.tree.map(join, *[answer for answer, _ in found]))


class HostKernels(PointKernels):
    """Looks at a function that the host calls."""

    cheap = False

    def __init__(self, density: Density, inputs: Inputs, family: Any, clock: Clock):
        super().__init__(family, density.dim)
        self.density, self.inputs, self.clock, self.held = density, inputs, clock, Held(inputs)
        self.host: HostDensity = density.log_likelihood  # type: ignore[assignment]

    def bind(self, fn: Callable, *static: Any) -> Bound:
        """Bind a program that does not look at log p."""
        return Bound(fn, static, self.held, self.clock)

    def look(self, points, rows):
        return self.host.gradients(points)

    def compare(self, new, old, rows):
        new, old = self.host.values(new), self.host.values(old)
        with np.errstate(all="ignore"):
            return new - old, new, old

    def heights(self, theta):
        return self.host.values(theta)

    def constrain(self, theta: np.ndarray, deterministics: Callable | None = None) -> dict[str, np.ndarray]:
        """Give draws by site."""
        outward = None if self.host.program is None else self.host.program.outward
        draws = self.density.split(np.asarray(theta)) if outward is None else outward(np.asarray(theta))
        if deterministics is None:
            return draws
        more = [deterministics({k: v[i] for k, v in draws.items()}, None) for i in range(len(theta))]
        return {**draws, **{k: np.stack([np.asarray(m[k]) for m in more]) for k in more[0]}}

    def each_total(self, fn: Callable, params: dict[str, np.ndarray]) -> np.ndarray:
        """Refuse: there is no likelihood to look at."""
        raise ValueError("`dic` needs a likelihood apart from the prior; a function outside JAX gives the sum of both.")


class PartKernels(PointKernels):
    """Looks at one part's share of a density: p w_k q_k / sum_j w_j q_j. The shares of all parts sum to p."""

    def __init__(self, whole: Any, share: Share):
        super().__init__(whole.family, whole.dim)
        self._whole, self.share = whole, share
        self.density, self.clock, self.cheap = whole.density, whole.clock, whole.cheap
        self.constrain = whole.constrain

    @property
    def whole(self) -> PointKernels:
        return self._whole

    def look(self, points, rows):
        value, gradient = self._whole.look(points, rows)
        return value + self.share.log_value(points), gradient + self.share.slope(points)

    def compare(self, new, old, rows):
        change, here, there = self._whole.compare(new, old, rows)
        a, b = self.share.log_value(new), self.share.log_value(old)
        return change + (a - b), here + a, there + b


def _most_numbers() -> int:
    """Give the numbers that an array inside one call may have."""
    known = _NUMBERS.get(jax.default_backend())
    if known is not None:
        return known
    return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit", _LEAST_MEMORY) // (4 * _ARRAYS)


def _padded(x: np.ndarray, size: int) -> np.ndarray:
    return x if len(x) == size else np.concatenate([x, np.repeat(x[-1:], size - len(x), 0)])


def _wide(tree: Any) -> Any:
    """Give the host's numbers: float64 whatever the device counted in."""
    return jax.tree.map(lambda x: x.astype(float) if x.dtype.kind == "f" else x, tree)


def _flat_rows(rows: Rows | None) -> tuple:
    """Give a key and an anchor for every point."""
    if rows is None:
        return ()
    lanes, n = rows.keys.shape[:2]
    each = jax.tree.map(lambda x: np.repeat(x, n, 0), rows.anchor)
    return rows.keys.reshape(lanes * n, 2), each


def _all_rows(asked: list[tuple[Any, np.ndarray, Rows | None]]) -> Rows | None:
    """Give the minibatches of several groups of lanes as those of points, one to a lane."""
    flat = [_flat_rows(rows) for _, _, rows in asked]
    if not flat[0]:
        return None
    keys, anchors = zip(*flat, strict=True)
    return Rows(np.concatenate(keys)[:, None], jax.tree.map(lambda *x: np.concatenate(x), *anchors))


def is_real(support: Any) -> bool:
    """Say whether a support is the whole real line, in every coordinate."""
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support is constraints.real or support == constraints.real


# ---- programs ----------------------------------------------------------------------------------------------


def as_batch(row: tuple) -> Batch | None:
    """Give the minibatch of (words of its key, anchor); all the data if there is none."""
    return Batch(jax.random.wrap_key_data(row[0]), row[1]) if row else None


def _totals(density, whole, inputs, points, *rows):
    """Give log p at points, (n, 2); `whole` says that the likelihood may sum itself up over all rows, on one device."""
    if whole and not rows:
        return density.totals(inputs, points)
    return jax.vmap(lambda x, *row: wide_total(density.free_terms(inputs, x, as_batch(row))))(points, *rows)


def _gradients(density, whole, inputs, points, *rows):
    value, back = jax.vjp(lambda x: _totals(density, whole, inputs, x, *rows), points)
    slope = jnp.broadcast_to(jnp.asarray([1.0, 0.0], value.dtype), value.shape)
    # One array: each costs a wait of its own on its way to the host.
    return jnp.concatenate([value, back(slope)[0]], 1)


def _differences(density, whole, inputs, new, old, *rows):
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), (new, *rows), (old, *rows))
    value = _totals(density, whole, inputs, *both)
    return jnp.concatenate([value[: len(new)], value[len(new) :]], 1)


def _constrained(density, deterministics, inputs, theta):
    def one(x):
        params = density.constrain(inputs, x)[0]
        return params if deterministics is None else {**params, **deterministics(params, inputs.data)}

    return jax.vmap(one)(theta)


def _anchored(density, inputs, flat):
    return jax.value_and_grad(lambda x: density.whole_likelihood(inputs, x))(flat)


def _each(fn, inputs, params):
    return jax.vmap(lambda p: fn(p, inputs.data))(params)


def _each_total(fn, inputs, params):
    return jax.vmap(lambda p: jnp.sum(fn(p, inputs.data)))(params)
