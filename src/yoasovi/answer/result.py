"""The answer of a fit, with what is known about it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from yoasovi.acceptance import open_uniform
from yoasovi.answer.correction import KERNELS_UP_TO, pool
from yoasovi.errors import check, positive_integer
from yoasovi.families.base import Gaussian
from yoasovi.gradients import Problem
from yoasovi.kernels.programs import Clock, as_arrays, call, precision
from yoasovi.model.model import Model
from yoasovi.run.nonfinite import Nonfinite
from yoasovi.stopping import StopReason
from yoasovi.verdict import diagnostics
from yoasovi.verdict.diagnostics import Estimate, Loo

if TYPE_CHECKING:
    from yoasovi.verdict.findings import Thresholds, Verdict

_BLOCK = 1000  # draws per compiled call
USUAL = (None, None, 16, ())  # arguments of `diagnose` when none are given


class Seconds(NamedTuple):
    """Wall-clock seconds, compiling apart."""

    compile: float
    run: float


@dataclass
class Fit:
    """A fitted approximation q, its ELBO on fresh draws, and how it was found.

    `elbo` always comes from fresh draws at the final parameters; what the run saw of itself is `trace`, and
    `reported_elbo` its last accepted value. `num_values` and `num_gradients` count evaluations of log p alone and with its
    gradient, over all restarts; the draws behind `elbo` are not among them, those of importance correction are. In a fit by
    minibatches an evaluation on one of them counts one, and so does each on all the data: those of the start's climb and
    of the anchors. Everything that the fit says of itself afterwards is about all the data.
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
    kept: dict[str, np.ndarray] | None = None  # draws that stand in for the model, in a fit loaded without it
    _verdicts: dict[Any, Verdict] = field(default_factory=dict, repr=False, compare=False)

    def sample(self, n: int = 1000, seed: int = 0, corrected: bool | None = None) -> dict[str, np.ndarray]:
        """Draw from the approximation, on the constrained scale.

        With `corrected`, draws are importance-resampled towards the posterior (this evaluates log p, which is counted).
        By default that is done where q is visibly not the posterior and the importance weights can carry it.
        """
        if self.kept is None:
            return self.draws(n, seed, corrected)[0]
        positive_integer("n", "sample", n)
        as_kept = corrected is None or corrected == self.worth_correcting
        check(as_kept, "corrected", "sample", "left out without the model", corrected)
        return _again(self.kept, n, seed)

    def draws(self, n: int, seed: int, corrected: bool | None) -> tuple[dict[str, np.ndarray], Any, bool]:
        """Draw as `sample` does; also the draws on the scale q lives on, and whether they were corrected."""
        positive_integer("n", "sample", n)
        if corrected is None:
            corrected = self.worth_correcting
        check(not corrected or isinstance(self.family, Gaussian), "corrected", "sample", "False for discrete q", corrected)
        theta = self._corrected(n, seed) if corrected else self._draw(n, seed)
        return self._constrain(theta), theta, corrected

    @cached_property
    def worth_correcting(self) -> bool:
        """Whether q is visibly not the posterior (KL is about Var(log p - log q)/2), in few enough dimensions to mend."""
        spread = self.log_ratio[np.isfinite(self.log_ratio)]
        few = isinstance(self.family, Gaussian) and self.family.noise_size(self.model.density) <= KERNELS_UP_TO
        can = few and self.model.differentiable and spread.size > 1
        return can and diagnostics.estimate(spread).se * np.sqrt(spread.size) > 0.1

    def _draw(self, n: int, seed: int) -> Any:
        static = (self.model.density, self.family)
        with precision():
            blocks = [
                call(Clock(), _draw_block, static, self.params, seed, i)
                for i in range(-(-n // _BLOCK))
            ]
            return jax.tree.map(lambda *x: np.concatenate([np.asarray(b) for b in x])[:n], *blocks)

    def _constrain(self, theta) -> dict[str, np.ndarray]:
        with precision():
            static = (self.model.density, self.family, self.model.deterministics)
            out = call(Clock(), _constrain_all, static, self.model.inputs, theta)
            return {k: np.asarray(v) for k, v in out.items()}

    def _corrected(self, n: int, seed: int) -> np.ndarray:
        static, params, inputs = (self.model.density, self.family), self.params, self.model.inputs
        with precision():

            def log_ratio(eps):
                self.num_values += len(eps)
                return _in_blocks(lambda block: call(Clock(), _ratio_at, static, inputs, params, block), eps)

            rng = np.random.default_rng(seed)
            gathered = pool(log_ratio, self.family.noise_size(self.model.density), n // 2, rng)
            chosen = gathered.resample(n, rng)
            return _in_blocks(lambda block: call(Clock(), _place, static, params, block), chosen)

    def mean(self, n: int = 4000, seed: int = 0) -> dict[str, np.ndarray]:
        """Posterior means on the constrained scale."""
        return {k: v.mean(0) for k, v in self.sample(n, seed).items()}

    def sd(self, n: int = 4000, seed: int = 0) -> dict[str, np.ndarray]:
        """Posterior standard deviations on the constrained scale."""
        return {k: v.std(0) for k, v in self.sample(n, seed).items()}

    def khat(self) -> float:
        """Pareto k-hat of the importance ratios p/q; above 0.7 they, and probably q, are not to be trusted."""
        return diagnostics.pareto_khat(self.log_ratio)

    def diagnose(
        self, thresholds: Thresholds | None = None, *, draws: int | None = None, starts: int = 16, **limits
    ) -> Verdict:
        """Grade the fit: good, usable, poor or failed, with the evidence and the next thing to try.

        This evaluates log p beyond the fit's own draws: scores at q, heavy-tailed proposals around it, and climbs from
        `starts` scattered places to find other modes. What that cost is in the verdict. A poor or failed fit also warns.

        Parameters
        ----------
        thresholds, **limits
            Where each number begins to cost a grade: see `yoasovi.verdict.Thresholds`, whose fields may be given by name.
        draws
            From the heavy-tailed proposals; by default 4,000, fewer where log p is a function called from outside.
        """
        from yoasovi.verdict.findings import Thresholds, diagnose

        key = (thresholds, draws, starts, tuple(sorted(limits.items())))
        if key not in self._verdicts:
            if self.kept is not None:
                raise ValueError("a verdict needs the model: yo.load(folder, model=model).diagnose().")
            chosen = replace(thresholds or Thresholds(), **limits)
            self._verdicts[key] = found = diagnose(self, chosen, draws, starts, self.seed)
            if found.grade in ("poor", "failed"):
                warnings.warn(f"{self.model.name}: {found.grade} fit. {found.advice}", stacklevel=2)
        return self._verdicts[key]

    @property
    def verdict(self) -> Verdict | None:
        """The verdict of `diagnose()`, if it was asked for; it is saved with the fit."""
        return self._verdicts.get(USUAL)

    def loo(self, n: int = 2000, seed: int = 0) -> Loo:
        """Leave-one-out cross-validation with draws from q (`diagnostics.loo`); needs the `arviz` extra."""
        from yoasovi.answer.predictive import pointwise

        return diagnostics.loo(*pointwise(self, n, seed))

    def predict(self, data: Any = None, n: int = 1000, seed: int = 0, corrected: bool | None = None) -> Any:
        """Draw from the posterior predictive; see `yoasovi.predictive.predict`."""
        from yoasovi.answer.predictive import predict

        return predict(self, data, n, seed, corrected)

    def plot(self, kind: str = "all", **options) -> Any:
        """Draw the fit with matplotlib and give the figure; see `yoasovi.report.plots.plot`."""
        from yoasovi.report.plots import plot

        return plot(self, kind, **options)

    def report(self, path: Any = "report.html", title: str | None = None) -> Path:
        """Write one self-contained HTML file about the fit, verdict first; give its path."""
        from yoasovi.report.html import write

        return write([self], path, title)

    def dic(self, n: int = 1000, seed: int = 0) -> float:
        """Deviance information criterion, local latents summed out where the model says how."""
        fn = self.model.log_marginal or self.model.log_likelihood
        draws = self.sample(n, seed, corrected=False)
        names = [s.name for s in self.model.density.local_sites]
        centre = {k: v if k in names else v.mean(0) for k, v in draws.items()}
        if names and self.model.log_marginal is None:
            raise ValueError("`dic` needs `log_marginal` of `Model`: the likelihood with its local latents summed out.")
        centre = {k: v for k, v in centre.items() if k not in names}
        with precision():
            each = call(Clock(), _likelihoods, (fn,), self.model.data, {k: v for k, v in draws.items() if k not in names})
            middle = call(Clock(), _likelihood, (fn,), self.model.data, centre)
        return diagnostics.dic(np.asarray(each), float(middle))

    def to_datatree(self, n: int = 1000, seed: int = 0, corrected: bool | None = None) -> Any:
        """Give `n` draws as an `xarray.DataTree` for ArviZ, one chain of them.

        Groups: posterior, log_likelihood (where there is one value per observation), sample_stats, observed_data,
        constant_data. `log_p` and `log_q` of sample_stats, on the unconstrained scale, are what
        `arviz_stats.loo_approximate_posterior` asks for. Draws that `sample` corrects stand for the posterior itself:
        there log_q is log_p.
        """
        from yoasovi.answer.arviz import to_datatree

        return to_datatree(self, n, seed, corrected)

    def summary(self, verdict: bool = True) -> str:
        """The verdict, what is known of the fit, and a table of means, standard deviations and quantiles."""
        lines = [
            *([str(self.diagnose())] if verdict and (self.kept is None or self.verdict is not None) else []),
            f"{self.model.name}: {self.method.name}, {self.family.name} ({self.family_reason})",
            f"ELBO {self.elbo} on fresh draws; {self.stop_reason} {self.stop_detail}".rstrip(),
            f"{self.num_steps:,} steps, {self.num_gradients:,} gradients, {self.num_values:,} values, "
            f"{self.seconds.compile:.1f} s compiling, {self.seconds.run:.2f} s running",
        ]
        if self.num_nonfinite:
            lines.append(f"{self.num_nonfinite:,} draws were not finite and were refused: {self.nonfinite}")
        lines.append(f"{'':<20}{'mean':>12}{'sd':>12}{'5%':>12}{'95%':>12}")
        local = {s.name for s in self.model.density.local_sites}
        for name, draws in self.sample(4000).items():
            if name in local:
                continue
            flat = draws.reshape(len(draws), -1)
            for j, index in enumerate(np.ndindex(draws.shape[1:])):
                label = name if not index else f"{name}[{','.join(map(str, index))}]"
                low, high = np.quantile(flat[:, j], [0.05, 0.95])
                lines.append(f"{label:<20}{flat[:, j].mean():>12.4g}{flat[:, j].std():>12.4g}{low:>12.4g}{high:>12.4g}")
                if len(lines) > 60:
                    return "\n".join([*lines, "..."])
        return "\n".join(lines)

    def save(self, folder: str | Path, overwrite: bool = False) -> None:
        """Write the fit to a folder, for `yoasovi.load`: arrays as npz, the rest as JSON, nothing that runs."""
        from yoasovi.files.saving import save

        save(self, folder, overwrite)

    def __repr__(self):
        state = "converged" if self.converged else self.stop_reason.name.lower()
        return f"Fit({self.model.name}, {self.method.name}, {self.family.name}, elbo={self.elbo}, {state})"


def _again(kept: dict[str, np.ndarray], n: int, seed: int) -> dict[str, np.ndarray]:
    """Give n of the kept draws: all of them as they are, fewer without repeats, more with repeats."""
    have = len(next(iter(kept.values())))
    if n == have and seed == 0:
        return dict(kept)
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(have)[:n] if n <= have else rng.integers(have, size=n)
    return {k: v[chosen] for k, v in kept.items()}


def fresh_ratios(model: Model, family, params, seed: int, n: int, clock: Clock) -> np.ndarray:
    """Give log p - log q at `n` fresh draws from q, the same noise for the same seed."""
    static, inputs = (model.density, family), as_arrays(model.inputs)
    blocks = [np.asarray(call(clock, _ratio_block, static, inputs, params, seed, i)) for i in range(-(-n // _BLOCK))]
    return np.concatenate(blocks)[:n]


def _noise(density, family, seed, stream, i):
    """Uniform noise for one block of draws; streams keep the draws of `sample` and those behind `elbo` apart."""
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), stream), i)
    return open_uniform(key, (_BLOCK, family.noise_size(density)))


def _draw_block(density, family, params, seed, i):
    return jax.vmap(lambda u: family.draw(density, params, u))(_noise(density, family, seed, 1, i))


def _ratio_at(density, family, inputs, params, eps):
    def one(e):
        return density.free_terms(inputs, family.place(params, e)).total() + family.minus_log_q(params, e)

    return jax.lax.map(one, eps, batch_size=100)


def _place(density, family, params, eps):
    return jax.vmap(lambda e: family.place(params, e))(eps)


def _ratio_block(density, family, inputs, params, seed, i):
    problem = Problem(density, family, inputs)
    return jax.lax.map(lambda u: problem.elbo(params, u), _noise(density, family, seed, 3, i), batch_size=100)


def _constrain_all(density, family, deterministics, inputs, theta):
    def one(x):
        params = family.constrain(density, inputs, x)
        return params if deterministics is None else {**params, **deterministics(params, inputs.data)}

    return jax.lax.map(one, theta, batch_size=100)


def _likelihood(fn, data, params):
    return jnp.sum(fn(params, data))


def _likelihoods(fn, data, params):
    return jax.lax.map(lambda p: jnp.sum(fn(p, data)), params, batch_size=50)


def _in_blocks(fn, theta: np.ndarray) -> np.ndarray:
    """Evaluate in blocks of one size, so that one compiled program serves any number of draws."""
    out = []
    for i in range(0, len(theta), _BLOCK):
        block = theta[i : i + _BLOCK]
        full = np.concatenate([block, np.repeat(block[-1:], _BLOCK - len(block), 0)])
        out.append(np.asarray(fn(full))[: len(block)])
    return np.concatenate(out)
