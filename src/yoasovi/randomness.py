"""Where every random number of the library comes from: one stream per seed, purpose and place.

No two purposes share a draw, and a stream depends on nothing but its name: a fit that was paused and one that was not see
the same numbers. Where lanes (restarts) run side by side, one stream serves all of those that still run.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

EDGE = 2.0**-24  # in single precision 1 - EDGE is the largest number below 1


class Purpose(IntEnum):
    """What random numbers are for. Values are part of what a seed means: add at the end, never renumber."""

    START = 1  # where lanes begin; (1,): where log p may be finite, if it is not there
    START_JUDGE = 2  # are the climbed starts better?
    WINDOW = 3  # draws of a window: (turn,)
    ROWS = 4  # minibatches of a window
    JUDGE = 5  # common draws on which a window is judged: (turn, which question)
    JUDGE_ROWS = 6
    LUCK = 7  # whether a flat window is kept: (turn,)
    CHAIN = 8  # draws of single steps: (lane, block of steps), and before them the turn if they make a window
    CHAIN_JUDGE = 9
    CHAIN_LUCK = 10
    ELBO = 11  # fresh draws at the final parameters, the same for all lanes: (block,)
    SAMPLE = 12  # of `Fit.sample`
    CORRECTION = 13
    RESAMPLE = 14
    VERDICT_SCORES = 15
    VERDICT_JUDGE = 16
    VERDICT_WIDE = 17
    VERDICT_SEARCH = 18
    PREDICTION = 19
    LOO = 20
    CALIBRATION = 21
    KEPT = 22  # which of the kept draws of a loaded fit
    BLAME = 23  # a search for a draw that is not finite
    MODEL_START = 24  # a model's own start: (lane,)
    LOADINGS = 25  # first loadings of a low-rank family: (lane,)
    PRIOR = 26  # draws from priors: (lane,)
    VERDICT_CHAINS = 27
    REFINE = 28  # where chains begin
    REFINE_ROUND = 29  # keys of NUTS: (round,)
    SHARES = 30  # of modes: draws by which they are weighed, (mode, block)
    PARTS = 31  # how many draws each part of a mixture gives, their order; (part,) their seeds
    LABELS = 32  # points at which labels are swapped: () of modes, (1,) of fits
    FAR_START = 33  # fixed draws on which an ELBO is climbed
    MEND = 34  # a seed of its own for what mending looks at, so that the verdict looks elsewhere
    LEAP = 35  # where labels are started anew: (turn,)
    RECOVERY = 36  # latents that are summed out of log p
    GROUPS = 37  # moves that show which sites hang together
    NECK = 38  # draws of all others, given the parameter that their scales follow
    GROUP_PARTS = 39  # the order in which groups are cut into parts
    GROUP_START = 40  # groups that a fit by parts begins with
    VERDICT_GROUPS = 41  # draws made anew, group by group


def stream(seed: int, purpose: Purpose, *place: int) -> np.random.Generator:
    """Give the generator of one purpose at one place of a run."""
    sequence = np.random.SeedSequence(int(seed) % 2**64, spawn_key=(int(purpose), *map(int, place)))
    return np.random.Generator(np.random.SFC64(sequence))


def words(seed: int, purpose: Purpose, *place: int) -> np.ndarray:
    """Give the two 32-bit words of a JAX key, for functions of the user's that want one."""
    return stream(seed, purpose, *place).integers(0, 2**32, size=2, dtype=np.uint32)


def key_words(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Give the words of many keys, (*shape, 2)."""
    return rng.integers(0, 2**32, size=(*shape, 2), dtype=np.uint32)


def mirrored(rng: np.random.Generator, count: int, size: int) -> np.ndarray:
    """Give `count` rows of normal noise in pairs: row 2k + 1 is minus row 2k."""
    half = rng.standard_normal((-(-count // 2), size))
    return np.stack([half, -half], 1).reshape(-1, size)[:count]


def open_uniform(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Give uniform noise that never touches 0 or 1, nor does 1 minus it, in single precision neither."""
    return np.clip(rng.random(shape), EDGE, 1.0 - EDGE)
