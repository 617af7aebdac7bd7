"""A Gaussian for hierarchies: groups that hang together through a few globals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from yoasovi.arrays import space
from yoasovi.errors import check
from yoasovi.families.base import LOG_2PI, Gaussian, Proposal, as_diagonal, clip, turned
from yoasovi.families.full_rank import solve_lower
from yoasovi.windows.arrow_line import (
    Split,
    added,
    arrow_line,
    arrow_newton,
    batch_slopes,
    groups_last,
    line_of_diagonals,
    matched,
    reversed_axes,
)
from yoasovi.windows.score_line import mirrored_parts

_BATCHES = 8  # in a window of many draws
_NUMBERS = 2**22  # of noise in a batch


class ArrowParams(NamedTuple):
    """Means, and a triangular factor with globals first: its diagonal as logarithms, the rest as it is."""

    mean: Any  # (d,)
    log_diagonal: Any  # (d,)
    corner: Any  # (K, K) of the globals, zero on and above the diagonal
    coupling: Any  # (G, l, K) of each group's locals with the globals
    blocks: Any  # (G, l, l) of each group's locals, zero on and above the diagonal


class Piece(NamedTuple):
    """A stretch of the flat vector: numbers of globals, or of a site of shape (outer, groups, inner)."""

    local: bool
    outer: int
    inner: int


def groups_in(pieces: tuple[Piece, ...], size: int) -> int:
    """Give how many groups the pieces of a vector of this size have."""
    own = sum(p.outer * p.inner for p in pieces if p.local)
    return (size - sum(p.outer for p in pieces if not p.local)) // max(own, 1)


@jax.tree_util.register_static
@dataclass(frozen=True)
class Arrow(Gaussian):
    """A Gaussian for hierarchies: theta_0 = m_0 + L eps_0 for globals, theta_g = m_g + B_g eps_0 + L_g eps_g for each group.

    It holds all correlations of the globals, of a group's locals, and between the two; groups are independent given the
    globals, so that the precision has an arrow's shape. Cost and memory are linear in the number of groups.

    Parameters
    ----------
    local
        The axis along which groups lie, by site: {"theta": 0}; of a vector that holds globals too, its pieces one after the
        other. All other sites are global. By default those that the model names, or that log p shows; then `groups` and
        `layout`, the places of locals in the flat vector, follow.
    """

    local: Any = ()
    groups: int = 0
    layout: tuple[Piece, ...] = ()
    name: ClassVar[str] = "arrow"

    def __post_init__(self) -> None:
        if isinstance(self.local, Mapping):
            object.__setattr__(self, "local", tuple(self.local.items()))

    def complete(self, density: Any) -> Arrow:
        """Find the groups' places in the flat vector of a density."""
        local, sites = dict(self.local), {s.name: s for s in density.sites}
        unknown = sorted(set(local) - set(sites))
        check(local and not unknown, "local", "Arrow", f"the axis of groups, by site ({', '.join(sites)})", self.local)
        shared = set(sites) - set(local) or any(isinstance(axis, tuple) for axis in local.values())
        check(shared, "local", "Arrow", "of some sites, so that others are global", self.local)
        counts: dict[str, int] = {}
        pieces: list[Piece] = []
        for name, site in sites.items():
            if name not in local:
                pieces.append(Piece(False, int(np.prod(site.free_shape)), 1))
                continue
            axis, shape = local[name], site.free_shape
            if isinstance(axis, tuple):
                counts[name] = groups_in(axis, int(np.prod(shape)))
                pieces += axis
                continue
            there = isinstance(axis, int) and 0 <= axis < len(shape)
            check(there, f"local[{name!r}]", "Arrow", f"an axis of its shape {shape}", axis)
            counts[name] = shape[axis]
            pieces.append(Piece(True, int(np.prod(shape[:axis])), int(np.prod(shape[axis + 1 :]))))
        check(len(set(counts.values())) == 1, "local", "Arrow", "axes of the same length", counts)
        return replace(self, local=tuple(local.items()), groups=next(iter(counts.values())), layout=tuple(pieces))

    @property
    def num_globals(self) -> int:
        """K."""
        return sum(p.outer for p in self.layout if not p.local)

    @property
    def num_locals(self) -> int:
        """Locals of one group, l."""
        return sum(p.outer * p.inner for p in self.layout if p.local)

    def split(self, flat: Any) -> Split:
        """Cut flat vectors (..., d) into globals (..., K) and locals (..., l, G), groups last: many numbers in a row."""
        xp, hub, spokes, start, lead = space(flat), [], [], 0, flat.shape[:-1]
        for local, outer, inner in self.layout:
            part = flat[..., start : start + outer * inner * (self.groups if local else 1)]
            start += part.shape[-1]
            if local:
                part = turned(part.reshape(*lead, outer, self.groups, inner))
                spokes.append(part.reshape(*lead, outer * inner, self.groups))
            else:
                hub.append(part)
        return Split(xp.concatenate([flat[..., :0], *hub], -1), xp.concatenate(spokes, -2))

    def join(self, hub: Any, spokes: Any) -> Any:
        """Put globals and locals together again."""
        xp, parts, lead, done_hub, done = space(hub), [], hub.shape[:-1], 0, 0
        for local, outer, inner in self.layout:
            if local:
                part = spokes[..., done : done + outer * inner, :].reshape(*lead, outer, inner, self.groups)
                parts.append(turned(part).reshape(*lead, -1))
                done += outer * inner
            else:
                parts.append(hub[..., done_hub : done_hub + outer])
                done_hub += outer
        return xp.concatenate(parts, -1)

    def init(self, mean: Any, scale: Any, rng: Any) -> Any:
        xp, lead = space(mean), mean.shape[:-1]
        none = lambda *shape: xp.zeros((*lead, *shape), mean.dtype)
        wide, own = self.num_globals, self.num_locals
        return ArrowParams(
            mean, xp.log(scale), none(wide, wide), none(self.groups, own, wide), none(self.groups, own, own)
        )  # fmt: skip

    def nearest(self, mean: np.ndarray, covariance: np.ndarray) -> ArrowParams:
        """Give the Gaussian of this form with such a mean and covariance, but for what groups share given the globals."""
        hub, own = self.split(np.arange(mean.shape[-1]))
        own, shared = own.T, np.broadcast_to(hub, (self.groups, len(hub)))
        block = lambda rows, columns: covariance[..., rows[..., :, None], columns[..., None, :]]
        corner = np.linalg.cholesky(block(hub, hub))
        coupling = turned(solve_lower(corner[..., None, :, :], turned(block(own, shared))))
        blocks = np.linalg.cholesky(block(own, own) - coupling @ turned(coupling))
        log_hub, log_own = (np.log(np.diagonal(x, axis1=-2, axis2=-1)) for x in (corner, blocks))
        logs = self.join(log_hub, turned(log_own))
        return ArrowParams(mean, logs, np.tril(corner, -1), coupling, np.tril(blocks, -1))

    def factors(self, params: Any) -> Any:
        """Give the triangular factors of the globals and of every group's locals."""
        xp = space(params.mean)
        logs = self.split(params.log_diagonal)
        whole = lambda lower, log: xp.tril(lower, -1) + as_diagonal(xp.exp(log))
        return Split(whole(params.corner, logs.hub), whole(params.blocks, turned(logs.spokes)))

    def _spread(self, params: Any, eps: Any) -> Any:
        """Give C eps."""
        xp, (corner, blocks), noise = space(eps), self.factors(params), self.split(eps)
        spokes = xp.einsum("...ijg,...njg->...nig", groups_last(blocks), noise.spokes)
        spokes = spokes + _times(noise.hub, params.coupling)
        return self.join(noise.hub @ turned(corner), spokes)

    def place(self, params: Any, eps: Any) -> Any:
        return params.mean[..., None, :] + self._spread(params, eps)

    def minus_log_q(self, params: Any, eps: Any) -> Any:
        return 0.5 * (eps**2).sum(-1) + (params.log_diagonal.sum(-1) + 0.5 * eps.shape[-1] * LOG_2PI)[..., None]

    def _noise_behind(self, params: Any, theta: Any) -> Any:
        (corner, blocks), away = self.factors(params), self.split(theta - params.mean[..., None, :])
        hub = turned(solve_lower(corner, turned(away.hub)))
        return Split(hub, solve_lower(blocks, reversed_axes(away.spokes - _times(hub, params.coupling))))  # (..., G, l, n)

    def log_q(self, params: Any, theta: Any) -> Any:
        hub, spokes = self._noise_behind(params, theta)
        square = (hub**2).sum(-1) + (spokes**2).sum((-3, -2))
        return -0.5 * square - (params.log_diagonal.sum(-1) + 0.5 * theta.shape[-1] * LOG_2PI)[..., None]

    def slope(self, params: Any, theta: Any) -> Any:
        xp, (corner, blocks) = space(theta), self.factors(params)
        hub, spokes = self._noise_behind(params, theta)
        spokes = reversed_axes(xp.linalg.solve(turned(blocks), spokes))
        hub = turned(xp.linalg.solve(turned(corner), turned(hub - _gathered(spokes, params.coupling))))
        return -self.join(hub, spokes)

    def pull(self, params: Any, grad: Any) -> Any:
        """Turn gradients by theta into gradients by eps."""
        (corner, blocks), slope = self.factors(params), self.split(grad)
        spokes = space(grad).einsum("...jig,...njg->...nig", groups_last(blocks), slope.spokes)
        return self.join(slope.hub @ corner + _gathered(slope.spokes, params.coupling), spokes)

    def white(self, params: Any, eps: Any, grad: Any) -> Any:
        return self.pull(params, grad) + eps

    def natural(self, params: Any, eps: Any, white: Any) -> Any:
        xp, noise, score = space(white), self.split(eps), self.split(white)
        own = turned(score.spokes)[..., None]
        corner, blocks = score.hub[..., None] * noise.hub[..., None, :], own * turned(noise.spokes)[..., None, :]
        coupling = own * noise.hub[..., None, None, :]
        return ArrowParams(white, 0.5 * white * eps, xp.tril(corner, -1), coupling, xp.tril(blocks, -1))

    def move(self, params: Any, step: Any, cap: Any) -> Any:
        xp, (hub_logs, logs) = space(params.mean), self.split(step.log_diagonal)
        logs = turned(logs)
        # A trust region on each group's factor, and on the globals'.
        size_hub = (hub_logs**2).sum(-1) + (step.corner**2).sum((-1, -2))
        size = (logs**2).sum(-1) + (step.coupling**2).sum((-1, -2)) + (step.blocks**2).sum((-1, -2))
        shrink_hub, shrink = (1.0 / xp.maximum(1.0, 2.0 * xp.sqrt(x)) for x in (size_hub, size))
        wide, wider = shrink[..., None], shrink[..., None, None]
        corner = shrink_hub[..., None, None] * step.corner + as_diagonal(xp.exp(shrink_hub[..., None] * hub_logs))
        blocks = wider * step.blocks + as_diagonal(xp.exp(wide * logs))
        shift = self._spread(params, clip(step.mean, cap)[..., None, :])[..., 0, :]
        return self._turned_by(params, shift, corner, wider * step.coupling, blocks)

    def _turned_by(self, params: Any, shift: Any, corner: Any, coupling: Any, blocks: Any) -> Any:
        """Multiply the factor by another of its kind from the right."""
        xp, (hub, spokes) = space(params.mean), self.factors(params)
        logs, own = (xp.log(xp.diagonal(x, axis1=-2, axis2=-1)) for x in (hub @ corner, spokes @ blocks))
        return ArrowParams(
            params.mean + shift, self.join(logs, turned(own)), xp.tril(hub @ corner, -1),
            params.coupling @ corner[..., None, :, :] + spokes @ coupling, xp.tril(spokes @ blocks, -1),
        )  # fmt: skip

    def propose(self, params: Any, eps: Any, white: Any, full: Any, length: Any, trust: Any, weight: Any = None) -> Any:
        if full:
            sums, rows = None, min(self.batch(eps.shape[-2], eps.shape[-1]), eps.shape[-2])
            for start in range(0, eps.shape[-2] - rows + 1, rows):
                sums = self.gather(sums, eps[..., start : start + rows, :], white[..., start : start + rows, :])
            return self.propose_from(params, sums, length, trust)
        x, _, even, odd, weight = mirrored_parts(eps, white)
        fitted = line_of_diagonals(self.split(x), self.split(even), self.split(odd), weight > 0)
        return self._along(params, fitted, length, trust)

    def batch(self, size: Any, dim: Any) -> Any:
        """Give the draws of one batch of a window of a full line: enough for one group, few enough to tell noise."""
        least = 2 * (self.num_globals + self.num_locals) + 8
        return 2 * (max(least, min(size // _BATCHES, _NUMBERS // dim)) // 2)

    def matched(self, noise: Any) -> Any:
        """Make the noise of one half of mirrored pairs match its law, if that can be done with so few."""
        few = noise.shape[-2] < self.num_globals + self.num_locals
        return noise if few else self.join(*matched(self.split(noise)))

    def gather(self, sums: Any, eps: Any, white: Any) -> Any:
        """Take note of what a batch of mirrored draws says."""
        x, _, even, odd, weight = mirrored_parts(eps, white)
        return added(sums, batch_slopes(self.split(x), self.split(even), self.split(odd), weight > 0))

    def propose_from(self, params: Any, sums: Any, length: Any, trust: Any) -> Any:
        """Go where the line through all batches says."""
        return self._along(params, arrow_line(sums), length, trust)

    def _along(self, params: Any, fitted: Any, length: Any, trust: Any) -> Any:
        step = arrow_newton(fitted.slopes, length, trust)
        noise = self.join(step.shift.hub, turned(step.shift.spokes))
        shift = self._spread(params, noise[..., None, :])[..., 0, :]
        there = self._turned_by(params, shift, step.corner, step.coupling, step.blocks)
        return Proposal(there, step.expected, fitted.signal, fitted.noise)

    def frame(self, params: Any) -> Any:
        corner, blocks = self.factors(params)
        spokes = np.sqrt((blocks**2).sum(-1) + (params.coupling**2).sum(-1))
        return params.mean, self.join(np.sqrt((corner**2).sum(-1)), turned(spokes))

    def root(self, params: Any) -> Any:
        return ArrowRoot(self, params)

    def widen(self, params: Any, factor: Any) -> Any:
        root = np.sqrt(factor)
        return ArrowParams(
            params.mean, params.log_diagonal + np.log(root),
            *(root * x for x in (params.corner, params.coupling, params.blocks)),
        )  # fmt: skip

    def line_size(self, dim: Any) -> Any:
        return 4 * self.batch(0, dim)

    def bend(self, dim: Any) -> Any:
        return 60.0  # globals count more than their nats, and batches go on where single draws are noisy

    def hub(self, dim: Any) -> Any:
        return tuple(self.split(np.arange(dim)).hub.tolist())

    def lines_last(self) -> Any:
        return True

    def lines_pay(self, dim: Any) -> Any:
        return True

    def longest_first_step(self, dim: Any) -> Any:
        return 1.0 / (self.num_globals + self.num_locals)


class ArrowRoot(NamedTuple):
    """q's own coordinates; see `base.Root`."""

    family: Arrow
    params: ArrowParams

    def place(self, eps: Any) -> Any:
        """Map eps (..., d) to theta."""
        return self.family.place(self.params, eps.reshape(-1, eps.shape[-1])).reshape(eps.shape)

    def pull(self, gradient: Any) -> Any:
        """Turn gradients by theta into gradients by eps."""
        return self.family.pull(self.params, gradient.reshape(-1, gradient.shape[-1])).reshape(gradient.shape)


def _times(hub: Any, coupling: Any) -> Any:
    """Give B_g x for the rows x of (..., n, K): (..., n, l, G)."""
    flat, shape = _flat(coupling)
    return (hub @ turned(flat)).reshape(*hub.shape[:-1], *shape)


def _gathered(spokes: Any, coupling: Any) -> Any:
    """Give the sum over groups of B_g^T y_g for (..., n, l, G): (..., n, K)."""
    return spokes.reshape(*spokes.shape[:-2], -1) @ _flat(coupling)[0]


def _flat(coupling: Any) -> tuple[Any, tuple[int, int]]:
    """Give (..., l G, K) of (..., G, l, K), and (l, G)."""
    moved = space(coupling).swapaxes(coupling, -3, -2)
    return moved.reshape(*moved.shape[:-3], -1, moved.shape[-1]), moved.shape[-3:-1]
