"""Hierarchies by minibatches of groups: globals from marginal likelihoods, each group's own parameters from its own rows.

Given the globals a group's locals have a top and a curvature there, which a few Newton steps on the group's own rows find.
With the Gaussian of that curvature they are integrated out (Laplace; where log p is no parabola, by the rule of Gauss and
Hermite along each axis), so that log p of the globals alone is a sum over groups. A reading goes through the groups part by
part, each looked at from mirrored pairs of draws of the globals. The mean of the scores says where to go, and a line
through them how wide q is. Pairs and parts are the same in every reading: a step is judged on common draws and rows. In
the end each group's Gaussian is put into an `Arrow`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from yoasovi.families.arrow import ArrowParams
from yoasovi.kernels.programs import Bound, Clock, Held
from yoasovi.randomness import Purpose, stream
from yoasovi.run.trace import Trace
from yoasovi.scale.parts import GroupParts, hub_terms, own_terms
from yoasovi.stopping import StopReason
from yoasovi.turns import Limits, TurnRow
from yoasovi.windows.state import LINE

MOST_OWN = 12  # locals of a group: their small matrices are written out
_STEPS, _NEAR, _FAR = 20, 0.03, 3.0  # Newton steps; one that is near enough to be the last; the longest, in sds
_SAME = 0.05  # sds of the globals by which the last step may still move a mean, and a share of a width
_MOST = 12  # readings
_BEND = 1e-4  # nats; a third derivative that is rounding
_PAIRS = 3  # of draws in a reading, at least, for each of the globals


class Blocks(NamedTuple):
    """What is known of the locals of some groups, given the globals."""

    top: Any  # (l, G)
    root: Any  # (l, l, G), triangular, of the precision
    reach: Any  # (l, K, G), how the top moves with the globals


class Reading(NamedTuple):
    """What a reading of all parts says of the globals."""

    values: np.ndarray  # (parts,), means over pairs of draws
    outside: float  # what the ELBO has beside them: the prior of the globals, and their entropy
    slopes: np.ndarray  # (parts, K)
    slope: np.ndarray  # (K,), of them and the prior
    precision: np.ndarray  # (K, K)


class Read(NamedTuple):
    """What came of the readings."""

    params: ArrowParams
    reason: StopReason
    looks: int  # at parts
    refused: int  # of them, where log p was not finite
    elbo: float  # as the last of them saw it


class Spent(NamedTuple):
    """What the line of progress asks of a state."""

    step: int
    values: int
    gradients: int


class Readings:
    """Readings of the parts of one model."""

    def __init__(self, parts: GroupParts, clock: Clock, seed: int, bent: bool):
        self.parts, self.clock, self.seed, self.bent = parts, clock, seed, bent
        self.num_globals, self.num_locals = parts.family.num_globals, parts.family.num_locals
        pairs = -(-_PAIRS * self.num_globals // parts.count)  # in each part
        self.eps = stream(seed, Purpose.WINDOW).standard_normal((parts.count, pairs, self.num_globals))
        self.top = np.zeros((self.num_locals, parts.family.groups))
        self._programs: dict[tuple[Callable, int], Bound] = {}
        self.looks = self.refused = self.in_a_row = 0  # the last two where log p was not finite

    def program(self, fn: Callable, groups: int) -> Bound:
        """Give a program that looks at parts of so many groups."""
        if (fn, groups) not in self._programs:
            static = (self.parts.density_of(groups), self.parts.family_of(groups), self.bent)
            self._programs[fn, groups] = Bound(fn, static, Held(()), self.clock)
        return self._programs[fn, groups]

    def look(self, i: int, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Give a part's marginal likelihood and its slope at points (n, K) of the globals; its locals follow."""
        part = self.parts.part(i)
        found = self.program(_marginals, len(part.groups))(points, self.top[:, part.groups], part.inputs, part.rows)
        value, slope, top = map(np.asarray, found)
        lost = ~(np.isfinite(value) & np.isfinite(slope).all(1))
        if not lost.any():
            self.top[:, part.groups] = top.mean(0)
        self.looks, self.refused = self.looks + len(points), self.refused + int(lost.sum())
        self.in_a_row = self.in_a_row + len(points) if lost.all() else 0
        return value, slope

    def prior(self, at: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Give log p of the globals alone, its slope, and minus its curvature."""
        part = self.parts.part(0)
        found = self.program(_prior, len(part.groups))(at, self.top[:, part.groups], part.inputs)
        value, slope, bend = map(np.asarray, found)
        return float(value), slope, bend

    def approach(self, at: np.ndarray, root: np.ndarray, asked: Callable[[], bool]) -> np.ndarray:
        """Go through the parts once, and after each to where all so far say; `root` is roughly q's factor in the end."""
        scores, begin, count = np.zeros(self.num_globals), at, self.parts.count
        precision, (_, outside, bend) = np.linalg.inv(root @ root.T), self.prior(at)
        for i, eps in enumerate(self.eps):
            if asked():
                break
            _, slope = self.look(i, at + np.concatenate([eps, -eps]) @ root.T)
            if np.isfinite(slope).all():
                scores += slope.mean(0) + precision @ (at - begin) / count
            at = begin + np.linalg.solve(precision + bend, scores * count / (i + 1) + outside)
        return at

    def read(self, at: np.ndarray, root: np.ndarray) -> Reading:
        """Look at all parts from q, whose mean is `at` and whose factor is `root`."""
        values, slopes, bends = [], [], []
        for i, eps in enumerate(self.eps):
            value, slope = self.look(i, at + np.concatenate([eps, -eps]) @ root.T)
            values.append(value.mean())
            slopes.append(slope.mean(0))
            bends.append(0.5 * (slope[len(eps) :] - slope[: len(eps)]))
        away = (self.eps @ root.T).reshape(-1, self.num_globals)
        line = np.linalg.lstsq(away, np.concatenate(bends), rcond=None)[0] * self.parts.count
        height, outside, bend = self.prior(at)
        rest = height + np.log(np.diag(root)).sum() + 0.5 * self.num_globals * (1.0 + np.log(2.0 * np.pi))
        each = np.array(slopes)
        return Reading(np.array(values), rest, each, each.sum(0) + outside, 0.5 * (line + line.T) + bend)

    def blocks(self, at: np.ndarray) -> Blocks:
        """Set the locals of all groups, given globals at `at`."""
        wide, own, groups = self.num_globals, self.num_locals, self.parts.family.groups
        whole = Blocks(np.empty((own, groups)), np.empty((own, own, groups)), np.empty((own, wide, groups)))
        for i in range(self.parts.count):
            part = self.parts.part(i)
            found = self.program(_settled, len(part.groups))(at, self.top[:, part.groups], part.inputs, part.rows)
            self.looks += 1
            for store, new in zip(whole, found, strict=True):
                store[..., part.groups] = np.asarray(new)
        return whole


def arrow_of(parts: GroupParts, at: np.ndarray, root: np.ndarray, blocks: Blocks) -> ArrowParams:
    """Give the parameters of the `Arrow` with these globals and these groups."""
    lower = np.moveaxis(blocks.root, -1, 0)
    factor = np.linalg.cholesky(np.linalg.inv(lower @ np.swapaxes(lower, -1, -2)))  # (G, l, l)
    own = np.diagonal(factor, axis1=-2, axis2=-1)
    return ArrowParams(
        parts.family.join(at, blocks.top), parts.family.join(np.log(np.diag(root)), np.log(own).T), np.tril(root, -1),
        np.moveaxis(blocks.reach, -1, 0) @ root, np.tril(factor, -1),
    )  # fmt: skip


def read_all(
    parts: GroupParts, start: Any, clock: Clock, limits: Limits, trace: Trace, asked: Callable[[], bool],
    show: Callable[[Spent, TurnRow], None],
) -> Read:  # fmt: skip
    """Fit q: `start` is a fit of some groups; `asked` says whether the user wants to end.

    `trace` and `show` get a row per reading.
    """
    readings, origin = Readings(parts, clock, limits.seed, _is_bent(start)), clock.run
    at, spokes = start.family.split(start.params.mean)
    readings.top[:] = spokes.mean(-1, keepdims=True)
    root = start.family.factors(start.params).hub * np.sqrt(start.family.groups / parts.family.groups)
    at = readings.approach(at, root, asked)
    reason, elbo = StopReason.MAX_STEPS, np.nan
    before: tuple[np.ndarray, np.ndarray, Reading] | None = None
    for _ in range(_MOST):
        if asked() or readings.looks >= limits.max_steps:
            reason = StopReason.INTERRUPTED if asked() else reason
            break
        begin, looks = clock.run - origin, readings.looks
        seen = readings.read(at, root)
        gain, doubt = _gain(seen, before[2], at - before[0]) if before else (np.nan, np.nan)
        worse = before is not None and not gain > -2.0 * doubt - _SAME
        elbo = seen.values.sum() + seen.outside
        looks, total = readings.looks - looks, readings.looks
        row = TurnRow(*(np.array([[x]]) for x in (
            total, total, elbo, gain, doubt, not worse, worse, np.nan, 1.0, looks, LINE
        )))  # fmt: skip
        trace.add(row, begin, clock.run - origin)
        show(Spent(total, 0, total), row)
        if readings.in_a_row >= limits.max_nonfinite:
            reason = StopReason.NON_FINITE
            break
        if worse and before is not None:
            at, root = 0.5 * (at + before[0]), before[1]
            continue
        if not np.isfinite([*seen.slope, *seen.precision.ravel()]).all():  # draws fell where log p is not finite
            root = 0.5 * root
            continue
        step, wider = _newton(seen, root)
        widths = np.linalg.svd(np.linalg.solve(root, wider), compute_uv=False)
        same = max(np.abs(np.linalg.solve(wider, step)).max(), np.abs(widths - 1.0).max()) < _SAME
        before = (at, root, seen)
        at, root = at + step, wider
        if same:
            reason = StopReason.CONVERGED
            break
    return Read(arrow_of(parts, at, root, readings.blocks(at)), reason, readings.looks, readings.refused, elbo)


def _is_bent(start: Any) -> bool:
    """Say whether log p bends otherwise than a parabola when the locals of a fit move by a standard deviation."""
    hub, scale = start.family.split(start.family.frame(start.params)[1])
    move, at = start.family.join(0.0 * hub, scale), start.params.mean
    _, slope = start.kernels.point(np.stack([at, at + move, at - move]))
    third = start.family.split((slope[1] + slope[2] - 2.0 * slope[0]) * move).spokes
    return not np.abs(third).max() < _BEND


def _gain(new: Reading, old: Reading, step: np.ndarray) -> tuple[float, float]:
    """Give the gain on common draws and rows, and its standard error.

    All rows are there, and parts that pull apart say nothing against their sum; what slopes do not explain is the draws'.
    """
    gains = new.values - old.values
    luck = gains - 0.5 * (new.slopes + old.slopes) @ step
    return float(gains.sum() + new.outside - old.outside), float(luck.std() * np.sqrt(len(luck)))


def _newton(seen: Reading, root: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Give the step to the top of the parabola that a reading shows, and the factor of its Gaussian.

    In q's units: a width changes fourfold at most, and a mean by three sds.
    """
    bend, axes = np.linalg.eigh(root.T @ seen.precision @ root)
    bend = np.clip(bend, 1.0 / 16.0, 16.0)
    along = axes @ (axes.T @ (root.T @ seen.slope) / bend)
    along *= min(1.0, _FAR / max(np.abs(along).max(), 1e-300))
    factor = root @ (axes / np.sqrt(bend))
    return root @ along, np.linalg.cholesky(factor @ factor.T)


# ---- programs ----------------------------------------------------------------------------------------------


def _marginals(density, family, bent, _, points, top, inputs, rows):
    """Give marginal likelihoods of a part at points of the globals, their slopes, and where the locals' tops are."""

    def marginal(hub):
        log_p = lambda hub, spokes: own_terms(density, family, inputs, hub, spokes, rows)
        held = jax.lax.stop_gradient(hub)
        near, root = _climbed(lambda x: log_p(held, x), top)
        near, root = jax.lax.stop_gradient((near, root))
        # One more step, by which the top follows the globals.
        there = near + _solve(root, jax.grad(log_p, 1)(hub, near))
        bend = _precision(lambda x: log_p(hub, x), there)[1]
        root = _cholesky(bend)
        value = log_p(hub, there) + 0.5 * top.size * jnp.log(2.0 * jnp.pi)
        value = value - sum(jnp.sum(jnp.log(row[-1])) for row in root)
        return value + (_beyond(lambda x: log_p(hub, x), there, root) if bent else 0.0), there

    (value, there), slope = jax.vmap(jax.value_and_grad(marginal, has_aux=True))(points)
    return value, slope, there


def _beyond(log_p: Callable, there: jax.Array, root: list[list[jax.Array]]) -> jax.Array:
    """Give the logarithms of integrals relative to the Gaussians', along the axes of every group, summed.

    Slopes at the nodes, integrated as a polynomial, say by how much log p of a group differs there from its parabola: no
    group's own value is needed.
    """
    axes = [_backward(root, jnp.zeros_like(there).at[j].set(1.0)) for j in range(len(there))]  # of length one sd
    along = jnp.stack(axes)  # (axis, l, G)
    nodes = jnp.asarray(_NODES, there.dtype)
    slopes = jax.vmap(lambda z: jax.vmap(lambda x: jax.grad(log_p)(there + z * x))(along))(nodes)
    excess = (slopes * along).sum(2) + nodes[:, None, None]  # (node, axis, G)
    heights = jnp.tensordot(jnp.asarray(_INTEGRALS, there.dtype), excess, 1)
    weights = jnp.asarray(_WEIGHTS, there.dtype)
    return jnp.sum(jnp.log(_MIDDLE + jnp.tensordot(weights, jnp.exp(heights), 1)))


def _gauss_hermite(count: int) -> tuple[np.ndarray, np.ndarray, float, np.ndarray]:
    """Give the nodes but the middle one, their weights, its weight, and what integrates a slope from the middle to each."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)
    weights, middle = weights / weights.sum(), count // 2
    powers = np.vander(nodes, increasing=True)  # of a polynomial through slopes at the nodes
    integrals = (nodes[:, None] * powers / np.arange(1, count + 1)) @ np.linalg.inv(powers)
    rest = np.arange(count) != middle
    return nodes[rest], weights[rest], float(weights[middle]), integrals[np.ix_(rest, rest)]  # at the top the slope is zero


_NODES, _WEIGHTS, _MIDDLE, _INTEGRALS = _gauss_hermite(5)


def _prior(density, family, bent, _, hub, top, inputs):
    log_p = lambda x: hub_terms(density, family, inputs, x, top)
    return log_p(hub), jax.grad(log_p)(hub), -jax.hessian(log_p)(hub)


def _settled(density, family, bent, _, hub, top, inputs, rows):
    """Give the tops of a part's locals, the roots of their precisions, and how tops move with the globals."""
    log_p = lambda hub, spokes: own_terms(density, family, inputs, hub, spokes, rows)
    there, _ = _climbed(lambda x: log_p(hub, x), top)
    root = _cholesky(_precision(lambda x: log_p(hub, x), there)[1])
    _, push = jax.linearize(lambda x: jax.grad(log_p, 1)(x, there), hub)
    reach = jax.vmap(lambda x: _solve(root, push(x)), out_axes=1)(jnp.eye(hub.size, dtype=hub.dtype))
    zero = jnp.zeros_like(top[0])
    whole = jnp.stack([jnp.stack([*row, *[zero] * (len(top) - len(row))]) for row in root])
    return there, whole, reach


def _climbed(log_p: Callable, top: jax.Array) -> tuple[jax.Array, Any]:
    """Climb to the locals' tops by Newton steps; also the roots of their precisions, on the last step's way."""

    def step(state):
        here, _, count, _ = state
        slope, bend = _precision(log_p, here)
        root = _cholesky(bend)
        white = _forward(root, slope)
        white = white * jnp.minimum(1.0, _FAR / jnp.maximum(jnp.sqrt((white**2).sum(0)), 1e-30))
        return here + _backward(root, white), jnp.abs(white).max(), count + 1, root

    blank = [[jnp.ones_like(top[0])] * (i + 1) for i in range(len(top))]
    begin = (top, jnp.full((), jnp.inf, top.dtype), 0, blank)
    there, _, _, root = jax.lax.while_loop(lambda s: (s[1] > _NEAR) & (s[2] < _STEPS), step, begin)
    return there, root


def _precision(log_p: Callable, here: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Give the slope by the locals (l, G), and minus each group's second derivatives, (l, l, G)."""
    slope, push = jax.linearize(jax.grad(log_p), here)
    each = jnp.broadcast_to(jnp.eye(len(here), dtype=here.dtype)[..., None], (len(here), *here.shape))
    return slope, -jax.vmap(push)(each)  # one push for a local of all groups: they are apart


# Small triangular matrices of many groups, written out: rows of a list, entries (G,).


def _cholesky(bend: jax.Array) -> list[list[jax.Array]]:
    """Factorise (l, l, G); where one is not positive definite, a nearby one that is."""
    root: list[list[jax.Array]] = []
    for i in range(len(bend)):
        row: list[jax.Array] = []
        for j in range(i):
            row.append((bend[i, j] - sum(a * b for a, b in zip(row, root[j], strict=False))) / root[j][j])
        pivot = bend[i, i] - sum(a * a for a in row)
        least = 1e-8 * jnp.abs(bend[i, i]) + 1e-30
        row.append(jnp.sqrt(jnp.where(pivot > least, pivot, jnp.maximum(jnp.abs(pivot), least))))
        root.append(row)
    return root


def _forward(root: list[list[jax.Array]], x: jax.Array) -> jax.Array:
    """Solve L y = x for x of shape (l, G)."""
    found: list[jax.Array] = []
    for i, row in enumerate(root):
        found.append((x[i] - sum(a * b for a, b in zip(row, found, strict=False))) / row[i])
    return jnp.stack(found)


def _backward(root: list[list[jax.Array]], x: jax.Array) -> jax.Array:
    """Solve L' y = x."""
    size = len(root)
    found: list[Any] = [None] * size
    for i in reversed(range(size)):
        found[i] = (x[i] - sum(root[j][i] * found[j] for j in range(i + 1, size))) / root[i][i]
    return jnp.stack(found)


def _solve(root: list[list[jax.Array]], x: jax.Array) -> jax.Array:
    return _backward(root, _forward(root, x))
