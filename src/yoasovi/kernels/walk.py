"""A window of natural steps as one loop: noise comes in, where it led and its average come out."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from yoasovi.arrays import space
from yoasovi.kernels.looks import HostKernels, Rows, as_batch

# What was not finite first, in the order in which an iteration meets it: the draw, log p there, its gradient, the step.
LOG_P, GRADIENT, DRAW, PARAMETER = range(4)
_CHUNK, _CHUNK_NUMBERS = 256, 2**21  # iterations per call, and numbers of noise


class Pace(NamedTuple):
    """What natural steps remember."""

    velocity: Any  # as a step of the family
    square: Any  # (d,) running mean square of the scores
    weight: Any  # behind that mean


class Refused(NamedTuple):
    """What a run remembers of draws that were not finite."""

    counts: Any  # (4,), by kind
    run: Any  # refused in a row
    kind: Any  # of the latest
    step: Any
    theta: Any  # the latest refused draw


class Trip(NamedTuple):
    """A window under way."""

    params: Any
    average: Any  # of the parameters over the second half
    pace: Pace
    refused: Refused
    nonfinite: Any  # draws of this window that were refused


class Steps(NamedTuple):
    """How long and how far to walk, by lane."""

    first: Any  # step of the run at which the window begins
    size: Any
    length: Any
    cap: Any
    most_refused: Any  # in a row; once reached, the culprit is kept


def nothing_refused(theta: Any, lanes: int) -> Refused:
    """Give the memory to begin with; `theta` is like a draw of every lane."""
    none = np.zeros(lanes, int)
    return Refused(np.zeros((lanes, 4), int), none, none, none, theta)


def note(refused: Refused, bad: Any, kind: Any, step: Any, theta: Any, most: Any) -> Refused:
    """Take note of one iteration; once `most` in a row were refused the culprit is kept."""
    xp, full = space(refused.run), refused.run >= most
    counts = refused.counts + bad * (np.arange(4) == kind)
    latest = Refused(counts, refused.run + 1, kind, step, theta)
    out = keep(bad & ~full, latest, refused)
    return out._replace(counts=counts, run=xp.where(bad | full, out.run, 0))


def walk(kernels: Any, settings: Any, trip: Trip, steps: Steps, noise: np.ndarray, rows: Rows | None) -> Trip:
    """Take a window of natural steps with `settings` (momentum, clip); noise is (lanes, longest size, k)."""
    if isinstance(kernels, HostKernels):
        return _on_host(kernels, settings, trip, steps, noise)
    # Lanes are padded to a power of two, with lanes that take no step, so that some may drop out.
    (lanes, longest, width), full = noise.shape, 1 << (len(noise) - 1).bit_length()
    if full > lanes:
        more = lambda x: np.concatenate([x, np.repeat(x[-1:], full - lanes, 0)])
        trip, steps, noise, rows = jax.tree.map(more, (trip, steps, noise, rows))
        steps = steps._replace(size=np.where(np.arange(full) < lanes, steps.size, 0))
    chunk = int(np.clip(_CHUNK_NUMBERS // (full * width), 16, _CHUNK))
    program = kernels.bind(_walk, kernels.density, kernels.family, settings.momentum, settings.clip)
    for start in range(0, longest, chunk):
        count = np.clip(steps.size - start, 0, chunk)
        part = [_filled(x[:, start : start + chunk], chunk) for x in (noise, *([] if rows is None else [rows.keys]))]
        keyed = () if rows is None else (part[1], rows.anchor)
        trip = program(trip, steps, np.full(full, start), count, part[0], *keyed)
    return jax.tree.map(lambda x: np.asarray(x)[:lanes], trip)


def _filled(x: np.ndarray, size: int) -> np.ndarray:
    if x.shape[1] == size:
        return x
    return np.concatenate([x, np.zeros((len(x), size - x.shape[1], *x.shape[2:]), x.dtype)], 1)


def _walk(density, family, momentum, clip, inputs, trip, steps, start, count, noise, *rows):
    one = lambda *lane: _walk_lane(density, family, momentum, clip, inputs, *lane)
    lanes = (trip, steps, start, count, noise, *rows)
    if len(noise) > 1:
        return jax.vmap(one)(*lanes)
    # One lane is not mapped over: its matrix products stay plain ones.
    return jax.tree.map(lambda x: x[None], one(*jax.tree.map(lambda x: x[0], lanes)))


def _walk_lane(density, family, momentum, clip, inputs, trip: Trip, steps: Steps, start, count, noise, *rows):
    # Trees travel as single vectors: fewer arrays to carry, check and choose between compile in half the time.
    shape = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), trip.params)
    still = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), trip.pace.velocity)

    def body(j, trip):
        eps = noise[j]
        theta = family.place(split(shape, trip.params), eps[None])[0]
        batch = as_batch((rows[0][j], rows[1]) if rows else ())
        value, gradient = jax.value_and_grad(lambda x: density.free_terms(inputs, x, batch).total())(theta)
        return step(family, momentum, clip, shape, still, trip, steps, start + j, eps, theta, value, gradient)

    end = jax.lax.fori_loop(0, count, body, joined_trip(trip))
    return split_trip(end, shape, still)


def step(family, momentum, clip, shape, still, trip: Trip, steps: Steps, i, eps, theta, value, gradient) -> Trip:
    """One natural step with momentum; a score is cut at `clip` times its running root mean square.

    `trip` is joined; `shape` and `still` say how its parameters and its velocity are split.
    """
    xp, pace, params = space(theta), trip.pace, split(shape, trip.params)
    white = family.white(params, eps[None], gradient[None])[0]
    steep = ~xp.isfinite(white).all()
    seen = pace.square / xp.maximum(pace.weight, 1e-12)
    limit = xp.where(pace.weight > 0.05, clip * xp.sqrt(seen), xp.inf)
    # The square is of the cut score: one wild draw must not open the door for the next.
    white = xp.clip(xp.where(steep, 0.0, white), -limit, limit)
    square, weight = 0.99 * pace.square + 0.01 * white**2, 0.99 * pace.weight + 0.01
    velocity = momentum * pace.velocity + (1.0 - momentum) * joined(family.natural(params, eps, white))
    moved = joined(family.move(params, split(still, steps.length * velocity), steps.cap))
    good = xp.isfinite(value)
    sound = good & ~steep & xp.isfinite(moved).all() & xp.isfinite(velocity).all()
    flat, pace = keep(sound, (moved, Pace(velocity, square, weight)), (trip.params, pace))
    kind = xp.select([~xp.isfinite(theta).all(), ~good, steep], [DRAW, LOG_P, GRADIENT], PARAMETER)
    refused = note(trip.refused, ~sound, kind, steps.first + i, theta, steps.most_refused)
    share = 1.0 / (1.0 + xp.maximum(i - steps.size // 2, 0))
    average = trip.average + share * (flat - trip.average)
    return Trip(flat, average, pace, refused, trip.nonfinite + ~sound)


def joined(tree: Any) -> Any:
    """Put a tree of arrays into one vector."""
    leaves = jax.tree.leaves(tree)
    return space(leaves[0]).concatenate([x.reshape(-1) for x in leaves])


def split(shape: Any, flat: Any) -> Any:
    """Take the vector of `joined` apart again."""
    leaves, tree = jax.tree.flatten(shape)
    ends = np.cumsum([int(np.prod(x.shape)) for x in leaves])
    parts = [flat[end - int(np.prod(x.shape)) : end].reshape(x.shape) for x, end in zip(leaves, ends, strict=True)]
    return jax.tree.unflatten(tree, parts)


def joined_trip(trip: Trip) -> Trip:
    """Join the trees of a trip."""
    pace = trip.pace._replace(velocity=joined(trip.pace.velocity))
    return trip._replace(params=joined(trip.params), average=joined(trip.average), pace=pace)


def split_trip(trip: Trip, shape: Any, still: Any) -> Trip:
    """Split them again."""
    pace = trip.pace._replace(velocity=split(still, trip.pace.velocity))
    return trip._replace(params=split(shape, trip.params), average=split(shape, trip.average), pace=pace)


def keep(condition: Any, new: Any, old: Any) -> Any:
    """Choose between two trees of arrays."""
    return jax.tree.map(lambda a, b: space(condition).where(condition, a, b), new, old)


def finite(tree: Any) -> Any:
    """Say whether every number in the tree is finite."""
    sound: Any = np.asarray(True)
    for x in jax.tree.leaves(tree):
        if np.issubdtype(x.dtype, np.floating):
            sound = space(x).isfinite(x).all() & sound
    return sound


def _on_host(kernels: HostKernels, settings: Any, trip: Trip, steps: Steps, noise: np.ndarray) -> Trip:
    """The same steps where the host calls log p: one call per draw."""
    ended = []
    for lane in range(len(noise)):
        now, here = (jax.tree.map(lambda x, lane=lane: x[lane], tree) for tree in (trip, steps))
        shape, still = now.params, now.pace.velocity
        now = joined_trip(now)
        for i in range(int(here.size)):
            eps = noise[lane, i]
            theta = kernels.family.place(split(shape, now.params), eps[None])
            value, gradient = kernels.look(theta, None)
            seen = (eps, theta[0], value[0], gradient[0])
            with np.errstate(all="ignore"):
                now = step(kernels.family, settings.momentum, settings.clip, shape, still, now, here, i, *seen)
        ended.append(split_trip(now, shape, still))
    return jax.tree.map(lambda *x: np.stack(x), *ended)
