"""MCMC in q's own coordinates, for what no Gaussian can match.

NumPyro's NUTS runs on eps, theta = m + C eps, where a posterior that q resembles has unit scales and no correlations:
chains start from draws of q, with a unit metric (variances learned in a short warm-up did no better), and look for nothing
but a step size. Transitions come in rounds of one compiled program, until R-hat and effective sample size are as wanted or
the gradients are spent.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import ndtri

from yoasovi.errors import check, positive_integer, positive_number
from yoasovi.families import Gaussian
from yoasovi.kernels.nuts import ROUND, Spots, Transitions, transitions
from yoasovi.kernels.programs import Stages
from yoasovi.model import Model
from yoasovi.randomness import Purpose, key_words, stream
from yoasovi.run.interrupts import Interrupts
from yoasovi.run.progress import Rounds

if TYPE_CHECKING:
    from yoasovi.answer.result import Fit

_WARM_UP = 2  # rounds
_FIRST_STEP = 0.3  # in q's own units; the first transitions find a better one
_STARTS = 4  # draws of q for each chain to begin at, of which those where log p is finite are used
_MUCH_SMALLER = 0.5  # than the usual step size: a chain keeps its own
_FEWEST = 4  # draws of a chain that anything can be said of
_FAR = 0.1  # sds that no mean should be off by chance
_CHANCE = 0.05  # that one is
# ArviZ's names of what NUTS says of each transition.
_STATS = {"energy": "energy", "acceptance_rate": "accept_prob", "n_steps": "num_steps", "diverging": "diverging"}


class Goal(NamedTuple):
    """What `Fit.refine` was asked for."""

    chains: int
    rhat: float
    ess: float
    max_gradients: int
    seed: int


# Why chains ended, as it is said.
_STOPPED = {"met": "", "budget": "its gradients were spent", "interrupted": "it was interrupted"}


@dataclass(frozen=True)
class Chains:
    """What NUTS found, and how far it can be trusted; R-hat and ESS are those of ranks (Vehtari et al. 2021)."""

    theta: np.ndarray  # (chains, draws, d), on the scale q lives on
    stats: dict[str, np.ndarray]  # (chains, draws) each: lp, energy, acceptance_rate, n_steps, diverging
    rhat: np.ndarray  # (d,), the larger of that of values and that of distances from the median
    ess: np.ndarray  # (d,)
    num_gradients: int  # warm-up included
    wanted: Goal
    stopped: str  # met, budget or interrupted

    @property
    def size(self) -> int:
        """How many draws there are in all."""
        return self.theta.shape[0] * self.theta.shape[1]

    @property
    def num_divergent(self) -> int:
        """How many transitions broke off because energy was not kept."""
        return int(self.stats["diverging"].sum())

    @property
    def worst_rhat(self) -> float:
        """The largest R-hat of all parameters."""
        return float(self.rhat.max())

    @property
    def least_ess(self) -> float:
        """The smallest effective sample size of all parameters."""
        return float(self.ess.min())

    def as_json(self) -> dict[str, Any]:
        """Give what is not an array as plain data."""
        return {"num_gradients": self.num_gradients, "wanted": self.wanted._asdict(), "stopped": self.stopped}

    def arrays(self) -> dict[str, np.ndarray]:
        """Give the arrays by name, for `from_json`."""
        return {"theta": self.theta, "rhat": self.rhat, "ess": self.ess, **self.stats}

    @classmethod
    def from_json(cls, said: dict[str, Any], arrays: dict[str, np.ndarray], dim: int) -> Chains:
        """Read what `as_json` and `arrays` gave, and believe nothing else."""
        theta, rhat, ess = (arrays[name] for name in ("theta", "rhat", "ess"))
        stats = {name: arrays[name] for name in ("lp", *_STATS)}
        if theta.ndim != 3 or not theta.size or not theta.shape[2] == len(rhat) == len(ess) == dim:
            raise ValueError(f"draws have shape {theta.shape} for {dim} parameters")
        if any(x.shape != theta.shape[:2] for x in stats.values()):
            raise ValueError(f"what is said of each draw must have shape {theta.shape[:2]}")
        if said["stopped"] not in _STOPPED:
            raise ValueError(f"they stopped for an unknown reason, {said['stopped']!r}")
        return cls(theta, stats, rhat, ess, int(said["num_gradients"]), Goal(**said["wanted"]), said["stopped"])

    def __str__(self):
        chains, draws = self.theta.shape[:2]
        lost = self.num_divergent
        said = (
            f"refined by NUTS: {chains} chains x {draws:,} draws, R-hat {self.worst_rhat:.3f}, smallest ESS "
            f"{self.least_ess:,.0f}, {lost:,} divergence{'s' * (lost != 1)}, {self.num_gradients:,} gradients"
        )
        if self.stopped == "met":
            return said
        why = _STOPPED[self.stopped]
        return f"{said}; {why} before R-hat below {self.wanted.rhat:g} and ESS {self.wanted.ess:g} were reached"


def refusal(model: Any) -> str | None:
    """Say in a sentence why fits of a model cannot be refined; None if they can."""
    if not isinstance(model, Model):
        return "`refine` needs the model: yo.load(folder, model=model).refine()."
    if model.on_host:
        return f"`refine` needs a density written in JAX; that of {model.name} is a function outside it: use its own NUTS."
    if model.stream is not None:
        return f"`refine` needs all the data in memory; those of {model.name} are streamed."
    if not model.differentiable:
        return f"`refine` needs gradients of log p; {model.name} has values alone."
    if model.density.local_sites or any(site.discrete for site in model.density.sites):
        return f"`refine` needs continuous parameters; {model.name} has discrete or local ones: sum them out."
    return None


def enough_draws(dim: int) -> float:
    """Give the effective size with which all means are within 0.1 sd with 95% probability: 385 for one, 1,212 for 100.

    That of the worst parameter: the largest of d errors of 1/sqrt(ess) each grows with d (Bonferroni).
    """
    return float(math.ceil((ndtri(1.0 - 0.5 * _CHANCE / dim) / _FAR) ** 2))


def expected_gradients(fit: Fit, chains: int = 8) -> int:
    """Guess, before anything is spent, how many gradients `Fit.refine` will take: half to twice as many, more in a funnel.

    Leapfrogs go half a period of a standard normal, with steps of about d^(-1/4); NUTS takes 2^k - 1 of them. Draws are
    worth less the further the posterior is from q, by the variance of log p - log q.
    """
    ratios = fit.log_ratio[np.isfinite(fit.log_ratio)]
    leapfrogs = 2 ** math.ceil(math.log2(1.0 + math.pi * fit.model.density.dim**0.25)) - 1
    rounds = math.ceil(
        enough_draws(fit.model.density.dim) / chains * (1.0 + (np.var(ratios) if ratios.size else 0.0)) / ROUND
    )
    return chains * (_WARM_UP + rounds) * ROUND * leapfrogs


def refine(fit: Fit, wanted: Goal, progress: bool | None) -> Fit:
    """Run NUTS from draws of q; see `Fit.refine`."""
    positive_integer("chains", "refine", wanted.chains)
    check(wanted.chains > 1, "chains", "refine", "at least 2, so that they can be compared", wanted.chains)
    positive_number("rhat", "refine", wanted.rhat)
    check(wanted.rhat > 1.0, "rhat", "refine", "above 1", wanted.rhat)
    positive_number("ess", "refine", wanted.ess)
    positive_integer("max_gradients", "refine", wanted.max_gradients)
    if (why := refusal(fit.model)) is not None:
        raise ValueError(why)
    gaussian = isinstance(fit.family, Gaussian) or bool(fit.parts)
    check(gaussian, "family", "refine", "mean_field, full_rank, low_rank or arrow", fit.family.name)
    return _each_mode(fit, wanted, progress) if fit.parts else _refined(fit, wanted, wanted, progress)


def _each_mode(fit: Fit, wanted: Goal, progress: bool | None) -> Fit:
    """Refine the parts of a mixture, each in its own coordinates; weights between them stay.

    Chains are of a part's share of the posterior (see `Share`), so that none goes over to another mode; together the shares
    make up all of it.
    """
    parts, left = [], wanted.max_gradients
    for k, part in enumerate(fit.parts):
        seed = int(stream(wanted.seed, Purpose.PARTS, k).integers(2**62))
        own = wanted._replace(seed=seed, max_gradients=max(left // (len(fit.parts) - k), 1))
        better = _refined(part.fit, own, wanted, progress)
        left -= better.num_gradients - part.fit.num_gradients
        parts.append(part._replace(fit=better))
    stages = {**fit.seconds.stages, "refine": sum(part.fit.seconds.stages["refine"] for part in parts)}
    mended = replace(
        fit, parts=tuple(parts), num_gradients=fit.num_gradients + wanted.max_gradients - left,
        seconds=fit.seconds._replace(stages=stages), _verdicts={}, _told=set(),
    )  # fmt: skip
    return mended.looking_through(fit.kernels)


def _refined(fit: Fit, own: Goal, wanted: Goal, progress: bool | None) -> Fit:
    """Run chains towards a goal of this q's own."""
    stages, clock = dict(fit.seconds.stages), fit.kernels.clock
    with Stages(stages).stage("refine"), Interrupts() as interrupts, Rounds(progress, "refine") as show:
        clock.watch, clock.guard = show.compiling, interrupts.run
        try:
            found = replace(_until(_Run(fit, own), own, interrupts, show), wanted=wanted)
        finally:
            clock.watch = clock.guard = None
    mended = replace(
        fit, refined=found, num_gradients=fit.num_gradients + found.num_gradients,
        seconds=fit.seconds._replace(stages=stages), _verdicts={}, _told=set(),
    )  # fmt: skip
    return mended.looking_through(fit.kernels)


def _until(run: _Run, wanted: Goal, interrupts: Interrupts, show: Rounds) -> Chains:
    """Warm up, then take rounds until they give what is wanted or there is a reason to stop."""
    for _ in range(_WARM_UP):
        run.warm_up()
        show(f"warming up  step size {np.median(run.steps):.2g}  {run.spent:,} gradients")
        if interrupts.asked:  # there is nothing to be had yet
            raise KeyboardInterrupt
    stopped = ""
    while not stopped:
        run.go_on()
        theta = run.theta()
        if theta.shape[1] < _FEWEST:
            raise ValueError(f"`max_gradients` of `refine` must be more: {run.spent:,} were spent before there were draws.")
        rhat, ess = rank_rhat(theta), rank_ess(theta)
        met = rhat.max() < wanted.rhat and ess.min() >= wanted.ess
        stopped = "met" if met else "budget" if run.left <= 0 else "interrupted" if interrupts.asked else ""
        show(f"{theta.shape[1]:,} draws  R-hat {rhat.max():.3f}  ESS {ess.min():,.0f}  {run.spent:,} gradients")
    return Chains(theta, run.stats(), rhat, ess, run.spent, wanted, stopped)


class _Run:
    """Chains on their way."""

    def __init__(self, fit: Fit, wanted: Goal):
        chains, self.most, self.seed = wanted.chains, wanted.max_gradients, wanted.seed
        self.root = fit.family.root(fit.params)
        share = fit.share
        self.cut: Any = None if share is None else (share.params, share.index)
        self.program = fit.kernels.whole.bind(transitions, fit.model.density, None if share is None else share.family)
        eps = stream(self.seed, Purpose.REFINE).standard_normal((_STARTS * chains, fit.model.density.dim))
        value, gradient = fit.kernels.look(self.root.place(eps), None)
        sound = np.flatnonzero(np.isfinite(value) & np.isfinite(gradient).all(1))[:chains]
        if len(sound) < chains:
            raise ValueError(f"`refine` cannot begin: log p is finite at {len(sound)} of {len(eps)} draws of q.")
        self.spots = Spots(eps[sound], -value[sound], -self.root.pull(gradient[sound]))
        self.spent, self.calls = len(eps), 0
        self.steps = np.full(chains, _FIRST_STEP)
        self.rounds: list[Transitions] = []

    @property
    def left(self) -> int:
        """Gradients that may still be spent."""
        return self.most - self.spent

    def warm_up(self) -> None:
        """Adapt step sizes, on at most a quarter of the gradients."""
        self._call(False, self.most // 4)
        own, usual = np.asarray(self.steps, float), float(np.median(self.steps))
        # Few transitions tell a step size badly, all chains together well enough. But a chain that small steps led into a
        # narrow corner needs them to get out again.
        self.steps = np.where(own < _MUCH_SMALLER * usual, own, usual)

    def go_on(self) -> None:
        """Take a round of transitions that count."""
        self.rounds.append(self._call(True, self.left))

    def _call(self, warm: bool, most: int) -> Transitions:
        words = key_words(stream(self.seed, Purpose.REFINE_ROUND, self.calls), (len(self.steps),))
        n, rows, self.spots, self.steps = self.program(self.root, self.cut, words, self.spots, self.steps, warm, most)
        rows = Transitions(*(np.asarray(x)[: int(n)] for x in rows))
        self.calls += 1
        self.spent += int(rows.num_steps.sum())
        return rows

    def theta(self) -> np.ndarray:
        """Give the draws so far, (chains, draws, d)."""
        eps = np.concatenate([r.eps for r in self.rounds]).astype(float)
        return np.swapaxes(self.root.place(eps), 0, 1)

    def stats(self) -> dict[str, np.ndarray]:
        """Give what NUTS said of each transition, (chains, draws)."""
        joined = lambda field: np.concatenate([getattr(r, field) for r in self.rounds]).T
        return {"lp": -joined("potential"), **{name: joined(field) for name, field in _STATS.items()}}


# ---- how far chains can be trusted -------------------------------------------------------------------------


def rank_rhat(draws: np.ndarray) -> np.ndarray:
    """Give R-hat of ranks, (chains, draws, ...) to (...): of values, or if larger of distances from the median."""
    from numpyro.diagnostics import split_gelman_rubin

    apart = np.abs(draws - np.median(draws, axis=(0, 1)))
    with np.errstate(all="ignore"):  # chains that never moved have no variance
        found = np.maximum(split_gelman_rubin(_ranks(draws)), split_gelman_rubin(_ranks(apart)))
    return np.where(np.isfinite(found), found, np.inf)


def rank_ess(draws: np.ndarray) -> np.ndarray:
    """Give the effective size of normalised ranks, (chains, draws, ...) to (...): ArviZ's bulk ESS."""
    return _size(_ranks(draws))


def mean_error(draws: np.ndarray) -> np.ndarray:
    """Give the Monte Carlo errors of means, (chains, draws, ...) to (...): sd over the root of the effective size."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return draws.std((0, 1)) / np.sqrt(_size(draws))


def _size(draws: np.ndarray) -> np.ndarray:
    from numpyro.diagnostics import effective_sample_size

    half = draws.shape[1] // 2
    with np.errstate(all="ignore"):
        found = effective_sample_size(np.concatenate([draws[:, :half], draws[:, -half:]]))
    return np.where(np.isfinite(found), found, 0.0)


def _ranks(draws: np.ndarray) -> np.ndarray:
    """Turn draws into normal numbers of the same ranks (Blom 1958)."""
    from scipy.stats import rankdata

    count = draws.shape[0] * draws.shape[1]
    ranks = rankdata(draws.reshape(count, -1), axis=0).reshape(draws.shape)
    return ndtri((ranks - 0.375) / (count + 0.25))
