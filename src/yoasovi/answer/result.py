"""The answer of a fit, with what is known about it."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from yoasovi.answer import mixture, pools
from yoasovi.answer.averages import moments
from yoasovi.answer.conditional import groups_of
from yoasovi.answer.correction import Pool
from yoasovi.answer.long_pool import LONG, LongPool
from yoasovi.display import table
from yoasovi.errors import check, positive_integer
from yoasovi.families import Gaussian, Share
from yoasovi.kernels import kernels_of
from yoasovi.kernels.looks import PartKernels
from yoasovi.kernels.programs import Clock, Stages
from yoasovi.model import HostDensity, Model, WholeDensity
from yoasovi.randomness import Purpose, open_uniform, stream
from yoasovi.run.nonfinite import Nonfinite
from yoasovi.stopping import StopReason
from yoasovi.verdict import diagnostics
from yoasovi.verdict.diagnostics import Estimate, Loo

if TYPE_CHECKING:
    from yoasovi.answer.refine import Chains
    from yoasovi.answer.summary import Mended
    from yoasovi.verdict import Thresholds, Verdict

USUAL = (None, None, None, ())  # arguments of `diagnose` when none are given
_MOST_DRAWS = 1000  # behind k-hat


class Seconds(NamedTuple):
    """Wall-clock seconds: those of `fit`, compiling apart; and all that was waited for, by stage, compiling included."""

    compile: float
    run: float
    stages: dict[str, float] = {}  # noqa: RUF012 - given anew by every fit

    @property
    def total(self) -> float:
        """What the call of `fit` took."""
        return self.compile + self.run


class Part(NamedTuple):
    """One mode of a posterior that has several: its weight with a standard error, and the fit that describes it."""

    weight: float
    error: float
    fit: Fit


@dataclass
class Fit:
    """A fitted approximation q, its ELBO on fresh draws, and how it was found.

    `elbo` always comes from fresh draws at the final parameters; what the run saw of itself is `trace`, and
    `reported_elbo` its last accepted value. `num_values` and `num_gradients` count evaluations of log p alone and with its
    gradient, over all restarts; those of importance correction and of all that mending tried are among them. The draws
    behind `elbo` are not, nor are the looks around for something to mend where there was nothing, as with the verdict's.
    In a fit by minibatches an evaluation on one of them counts one, and so does each on all the data: those of the
    start's climb and of the anchors. Everything that the fit says of itself afterwards is about all the data.

    Where the posterior has several modes, `parts` holds one fit for each, the heaviest first, and q is their mixture.
    """

    model: Model
    method: Any
    family: Any
    family_reason: str
    params: Any
    elbo: Estimate
    converged: bool
    stop_reason: StopReason
    num_steps: int
    num_values: int
    num_gradients: int
    num_nonfinite: int
    seconds: Seconds
    trace: dict[str, np.ndarray]
    seed: int
    log_ratio: np.ndarray  # log p - log q at the draws behind `elbo`
    reported_elbo: float
    restart_elbos: list[Estimate] = field(default_factory=list)
    nonfinite: Nonfinite = field(default_factory=Nonfinite)  # `num_nonfinite` by kind
    stop_detail: str = ""  # more on how the fit ended: what broke, or how to resume
    kept: dict[str, np.ndarray] | None = None  # draws that stand in for the model, in a fit loaded without it,
    kept_worth: float = np.nan  # and how many independent ones they are worth
    asked: dict[str, str] | None = None  # arguments of `fit` that differ from its defaults, as Python text; None: not known
    refined: Chains | None = None  # what `refine` found: it then stands for the posterior in all that is asked
    parts: tuple[Part, ...] = ()  # of a mixture
    share: Share | None = None  # of the posterior that this fit describes, where it is part of a mixture; None: all of it
    mended: tuple[Mended, ...] = ()  # what was found wrong, tried and gained
    _verdicts: dict[Any, Verdict] = field(default_factory=dict, repr=False, compare=False)
    _told: set[Any] = field(default_factory=set, repr=False, compare=False)  # verdicts that have warned
    _pools: dict[int, Pool | LongPool] = field(default_factory=dict, repr=False, compare=False)

    def sample(self, n: int = 1000, seed: int = 0, corrected: bool | None = None) -> dict[str, np.ndarray]:
        """Draw from the approximation, on the constrained scale.

        With `corrected`, draws are importance-resampled towards the posterior (this evaluates log p, which is counted).
        By default that is done where q is visibly not the posterior and the importance weights can carry it.

        After `refine` draws are the chains', in random order (all of them in their own for `n=fit.refined.size`); a larger
        `n` repeats some. `corrected=False` gives those of q still.
        """
        if self.kept is None:
            from yoasovi.answer.predictive import recovered

            draws = self.draws(n, seed, corrected)[0]
            with self.waiting("sample"):
                return recovered(self.model, draws, seed)
        positive_integer("n", "sample", n)
        as_kept = corrected is None or corrected == (self.worth_correcting or self.refined is not None)
        check(as_kept, "corrected", "sample", "left out without the model", corrected)
        return _again(self.kept, n, seed)

    def looking_through(self, kernels: Any) -> Fit:
        """Use the kernels of the fit for all that is asked later, so that nothing is compiled or copied again."""
        if kernels is not None:
            kernels.clock.watch = kernels.clock.guard = None
            self.__dict__["kernels"] = kernels
        return self

    @cached_property
    def kernels(self) -> Any:
        """The looks at log p through this q; lanes have length one."""
        whole = kernels_of(self.model, self.family, Clock())
        return whole if self.share is None else PartKernels(whole, self.share)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is compiled, which no other process could use."""
        return {k: v for k, v in self.__dict__.items() if k not in ("kernels", "_stages")}

    @property
    def lane(self) -> Any:
        """The parameters of q with an axis of one lane."""
        return jax.tree.map(lambda x: np.asarray(x)[None], self.params)

    def timed(self, seconds: Seconds) -> Fit:
        """Say anew what was waited for so far; what is asked later is added to it."""
        self.seconds = seconds
        self.__dict__.pop("_stages", None)
        return self

    def waiting(self, stage: str) -> AbstractContextManager[None]:
        """Count what the user waits for."""
        return self._stages.stage(stage)

    @cached_property
    def _stages(self) -> Stages:
        return Stages(self.seconds.stages)

    def draws(self, n: int, seed: int, corrected: bool | None) -> tuple[dict[str, np.ndarray], Any, bool]:
        """Draw as `sample` does; also the draws on the scale q lives on, and whether they were corrected."""
        positive_integer("n", "sample", n)
        if self.refined is not None and corrected is not False:
            with self.waiting("sample"):
                theta = self.refined.theta.reshape(self.refined.size, -1)[_chosen(self.refined.size, n, seed)]
                return self.kernels.constrain(theta, self.model.deterministics), theta, True
        if self.parts:
            return mixture.draws(self, n, seed, corrected)
        if corrected is None:
            corrected = self.worth_correcting
        gaussian = isinstance(self.family, Gaussian)
        check(not corrected or gaussian, "corrected", "sample", "False for discrete q", corrected)
        with self.waiting("sample"):
            if corrected:
                chosen = self.pool(n).resample(n, stream(seed, Purpose.RESAMPLE))
                theta = self.family.place(self.lane, chosen[None])[0]
            else:
                noise = self.family.noise(open_uniform(stream(seed, Purpose.SAMPLE), (n, self._noise_size)))
                theta = self.family.place(self.lane, noise[None])[0] if gaussian else self.kernels.draws(self.params, noise)
            return self.kernels.constrain(theta, self.model.deterministics), theta, corrected

    @property
    def _noise_size(self) -> int:
        return self.family.noise_size(self.model.density)

    @cached_property
    def worth_correcting(self) -> bool:
        """Whether q is visibly not the posterior (KL is about Var(log p - log q)/2), in few enough dimensions to mend."""
        if self.parts:
            return bool(mixture.chains_of(self)) or any(part.fit.worth_correcting for part in self.parts)
        if "batch_size" in (self.asked or {}) and self._noise_size > LONG:
            return False  # a thousand looks at all the data are what minibatches were to spare
        spread = self.log_ratio[np.isfinite(self.log_ratio)]
        return bool(self.can_correct and spread.size > 1 and spread.std(ddof=1) > 0.1)

    @cached_property
    def can_correct(self) -> bool:
        """Whether importance correction can carry; where a few draws cannot tell, it is tried."""
        return pools.carry(self)

    @cached_property
    def _groups(self) -> tuple[Any, Any]:
        """The arrow through which draws are corrected group by group, and its parameters; Nones without groups."""
        return groups_of(self)

    def effective_size(self, n: int = 4000) -> float:
        """Independent draws, of the posterior where `sample` corrects and of q where it does not, that n draws are worth."""
        if self.refined is not None:
            return min(self.refined.least_ess, float(n))
        if self.kept is not None:
            return min(self.kept_worth, float(n)) if np.isfinite(self.kept_worth) else float(n)
        if not self.worth_correcting:
            return float(n)
        if self.parts:
            return mixture.effective_size(self.parts, n)
        return 1.0 / (1.0 / self.pool(n).effective_size + 1.0 / n)

    def pool(self, n: int) -> Pool | LongPool:
        """Weighted draws that stand for the posterior: gathered once, whatever is asked of them."""
        return pools.gathered(self, n)

    def pool_anew(self, n: int, bill: Any, seed: int) -> Pool | None:
        """Other weighted draws than those of `pool`, to compare them with; None where only chains could tell more."""
        return pools.anew(self, n, bill, seed)

    def mean(self, n: int = 4000, seed: int = 0) -> dict[str, np.ndarray]:
        """Posterior means on the constrained scale; those of all draws of the chains after `refine`."""
        return moments(self, self.plenty(n), seed)[0]

    def sd(self, n: int = 4000, seed: int = 0) -> dict[str, np.ndarray]:
        """Posterior standard deviations on the constrained scale; those of all draws of the chains after `refine`."""
        return moments(self, self.plenty(n), seed)[1]

    def plenty(self, n: int) -> int:
        """Give how many draws to average over: n, or all where chains made them, since repeats would only add noise."""
        return n if self.refined is None else self.refined.size

    def refine(
        self,
        chains: int = 8,
        *,
        rhat: float = 1.03,
        ess: float | None = None,
        max_gradients: int = 400_000,
        seed: int | None = None,
        progress: bool | None = None,
    ) -> Fit:
        """Run NUTS in q's own coordinates, from draws of q, and give a fit whose draws are those of its chains.

        For what no Gaussian can match: `sample`, `mean`, `sd`, `summary`, `predict`, `loo`, `to_datatree`, `report` and
        `diagnose` of the new fit rest on the chains, which are `fit.refined`; q and its ELBO stay. Chains that start at q's
        draws find no mode that q has not found; of a mixture each mode is refined, and keeps its weight.

        Parameters
        ----------
        chains
            That run side by side, in one program.
        rhat, ess
            When to end: largest R-hat of all parameters below `rhat`, smallest effective sample size `ess` or more. By
            default as many as put all means within 0.1 sd with 95% probability: 790 for 10 parameters, 1,210 for 100.
        max_gradients
            When to end whatever the chains say; the answer then says that they were not done.
        seed, progress
            The fit's own seed by default; progress as in `fit`.
        """
        from yoasovi.answer.refine import Goal, enough_draws, refine

        ess = enough_draws(self.model.density.dim) if ess is None else ess
        return refine(self, Goal(chains, rhat, ess, max_gradients, self.seed if seed is None else seed), progress)

    def khat(self) -> float:
        """Pareto k-hat of the importance ratios p/q; above 0.7 they, and probably q, are not to be trusted."""
        return diagnostics.pareto_khat(self.ratios())

    def ratios(self) -> np.ndarray:
        """Give log p - log q at fresh draws: those behind `elbo`, and where looks are cheap enough for a tail index."""
        missing = _MOST_DRAWS - len(self.log_ratio)
        if missing > 0 and self.kept is None and self.kernels.cheap:
            noise = self.family.noise(open_uniform(stream(self.seed, Purpose.ELBO, 1), (missing, self._noise_size)))
            self.log_ratio = np.concatenate([self.log_ratio, self.kernels.values(self.lane, noise[None])[0]])
        return self.log_ratio

    def diagnose(
        self, thresholds: Thresholds | None = None, *, draws: int | None = None, starts: int | None = None, **limits: Any
    ) -> Verdict:
        """Grade the fit: good, usable, poor or failed, with the evidence and the next thing to try.

        This evaluates log p beyond the fit's own draws: scores at q, heavy-tailed proposals around it, and climbs from
        scattered places to find other modes. What that cost is in the verdict. A poor or failed fit also warns.

        Parameters
        ----------
        thresholds, **limits
            Where each number begins to cost a grade: see `yoasovi.verdict.Thresholds`, whose fields may be given by name.
        draws
            From the heavy-tailed proposals; by default 4,000, fewer where looks are expensive.
        starts
            Of climbs that look for other modes; by default 16, fewer where looks are expensive.
        """
        key = (thresholds, draws, starts, tuple(sorted(limits.items())))
        found = self.judged(key)
        if found.grade in ("poor", "failed") and key not in self._told:
            self._told.add(key)
            warnings.warn(f"{self.model.name}: {found.grade} fit. {found.advice}", stacklevel=2)
        return found

    def judged(self, key: Any = USUAL) -> Verdict:
        """Give the verdict of `diagnose` without a warning; `key` has its arguments."""
        if key not in self._verdicts:
            thresholds, draws, starts, limits = key
            if self.kept is not None:
                raise ValueError("a verdict needs the model: yo.load(folder, model=model).diagnose().")
            with self.waiting("verdict"):
                from yoasovi.verdict import Thresholds, diagnose

                chosen = replace(thresholds or Thresholds(), **dict(limits))
                self._verdicts[key] = diagnose(self, chosen, draws, starts, self.seed)
        return self._verdicts[key]

    @property
    def verdict(self) -> Verdict | None:
        """The verdict of `diagnose()`, if it was asked for; it is saved with the fit."""
        return self._verdicts.get(USUAL)

    def loo(self, n: int = 2000, seed: int = 0) -> Loo:
        """Leave-one-out cross-validation (`diagnostics.loo`) with the draws that `sample` gives; needs the `arviz` extra."""
        with self.waiting("loo"):
            from yoasovi.answer.predictive import pointwise

            return diagnostics.loo(*pointwise(self, n, seed))

    def predict(self, data: Any = None, n: int = 1000, seed: int = 0, corrected: bool | None = None) -> Any:
        """Draw from the posterior predictive; see `yoasovi.answer.predictive.predict`."""
        with self.waiting("predict"):
            from yoasovi.answer.predictive import predict

            return predict(self, data, n, seed, corrected)

    def plot(self, kind: str = "all", **options: Any) -> Any:
        """Draw the fit with matplotlib and give the figure; see `yoasovi.report.plots.plot`."""
        with self.waiting("plot"):
            from yoasovi.report.plots import plot

            return plot(self, kind, **options)

    def report(self, path: Any = "report.html", title: str | None = None) -> Path:
        """Write one self-contained HTML file about the fit, verdict first; give its path."""
        with self.waiting("report"):
            from yoasovi.report.html import write

            return write([self], path, title)

    def dic(self, n: int | None = None, seed: int = 0) -> float:
        """Deviance information criterion, local latents summed out where the model says how.

        `n` draws; by default 1,000, fewer where looks are expensive.
        """
        fn = self.model.log_marginal or self.model.log_likelihood
        if isinstance(fn, WholeDensity | HostDensity):
            raise ValueError(
                f"`dic` needs a likelihood apart from the prior; the density of {self.model.name} gives the sum of both."
            )
        n = n or (1000 if self.kernels.cheap else 100)
        draws = self.sample(n, seed, corrected=False if self.refined is None else None)
        names = [s.name for s in self.model.density.local_sites]
        if names and self.model.log_marginal is None:
            raise ValueError("`dic` needs `log_marginal` of `Model`: the likelihood with its local latents summed out.")
        known = {k: v for k, v in draws.items() if k not in names}
        if whole := [s.name for s in self.model.density.sites if s.discrete]:
            raise ValueError(f"`dic` needs a mean of every parameter; {', '.join(whole)} of {self.model.name} have none.")
        with self.waiting("dic"):
            middle = {k: v.mean(0, keepdims=True).astype(v.dtype) for k, v in known.items()}
            both = {k: np.concatenate([v, middle[k]]) for k, v in known.items()}
            each = self.kernels.whole.each_total(fn, both)
        return diagnostics.dic(each[:-1], float(each[-1]))

    def to_datatree(self, n: int = 1000, seed: int = 0, corrected: bool | None = None) -> Any:
        """Give `n` draws as an `xarray.DataTree` for ArviZ, one chain of them; after `refine` all draws, by chain.

        Groups: posterior, log_likelihood (where there is one value per observation), sample_stats, observed_data,
        constant_data. `log_p` of sample_stats is the log density on the unconstrained scale. Draws from q come with their
        `log_q`, and the two are what `arviz_stats.loo_approximate_posterior` asks for; corrected draws stand for the
        posterior itself and have none: there `arviz_stats.loo` is right as it is. Chains have what NUTS said of each draw
        instead: lp, diverging and others.
        """
        with self.waiting("datatree"):
            from yoasovi.answer.arviz import to_datatree

            return to_datatree(self, n, seed, corrected)

    def summary(self, verdict: bool = True) -> str:
        """The verdict, what is known of the fit, and a table of means, standard deviations and quantiles."""
        from yoasovi.answer.summary import summary

        return summary(self, verdict)

    def mean_errors(self, draws: np.ndarray) -> np.ndarray:
        """Give Monte Carlo errors of the means of what `sample` gave, (n, ...) to (...); n is `plenty(n)` after `refine`."""
        if self.refined is None:
            return draws.std(0) / np.sqrt(self.effective_size(len(draws)))
        from yoasovi.answer.refine import mean_error

        return mean_error(draws.reshape(*self.refined.theta.shape[:2], *draws.shape[1:]))

    def save(self, folder: str | Path, overwrite: bool = False) -> None:
        """Write the fit to a folder, for `yoasovi.load`: arrays as npz, the rest as JSON, nothing that runs."""
        from yoasovi.files.saving import save

        save(self, folder, overwrite)

    def _repr_html_(self) -> str:
        said = {
            "ELBO": f"{self.elbo} on fresh draws", "stopped": str(self.stop_reason), "method": self.method.name,
            "family": f"{self.family.name} ({self.family_reason})",
            **({"modes": mixture.in_words(self.parts)} if self.parts else {}), "steps": f"{self.num_steps:,}",
            "evaluations": f"{self.num_gradients:,} gradients, {self.num_values:,} values",
            "seconds": f"{self.seconds.compile:.1f} compiling, {self.seconds.run:.2f} running",
            "verdict": self.verdict.grade if self.verdict else "fit.diagnose() gives it",
        }  # fmt: skip
        return table(f"Fit of {self.model.name}", said.items())

    def __repr__(self) -> str:
        state = "converged" if self.converged else self.stop_reason.name.lower()
        return f"Fit({self.model.name}, {self.method.name}, {self.family.name}, elbo={self.elbo}, {state})"


def _again(kept: dict[str, np.ndarray], n: int, seed: int) -> dict[str, np.ndarray]:
    """Give n of the kept draws: all of them as they are, fewer without repeats, more with repeats."""
    chosen = _chosen(len(next(iter(kept.values()))), n, seed)
    return {k: v[chosen] for k, v in kept.items()}


def _chosen(have: int, n: int, seed: int) -> np.ndarray:
    """Say which of the draws there are to give: all in their order, fewer without repeats, more with repeats."""
    if n == have and seed == 0:
        return np.arange(have)
    rng = stream(seed, Purpose.KEPT)
    return rng.permutation(have)[:n] if n <= have else rng.integers(have, size=n)
