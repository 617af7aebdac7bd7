"""Fits made by the command line, and what is known of them as plain numbers."""

from __future__ import annotations

import math
import os
import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yoasovi.caching import VARIABLE, usual_folder
from yoasovi.cli.errors import one_line
from yoasovi.cli.tables import number

if TYPE_CHECKING:
    from yoasovi.answer.result import Fit
    from yoasovi.model import Model


@dataclass
class Row:
    """One method's line of the table: its fits, one per seed, or the reason why there are none."""

    method: str
    fits: list[Fit] = field(default_factory=list)
    dics: list[float | None] = field(default_factory=list)
    reason: str = ""

    @property
    def interrupted(self) -> bool:
        """Tell whether the user ended the last fit."""
        return bool(self.fits) and self.fits[-1].stop_reason.name == "INTERRUPTED"

    @property
    def limited(self) -> bool:
        """Tell whether a fit ran to its limit of steps."""
        return any(f.stop_reason.name == "MAX_STEPS" for f in self.fits)

    def in_a_line(self) -> str:
        """Say what came out, for the live progress."""
        if self.reason:
            return f"{self.method}: {self.reason}"
        last = self.fits[-1]
        return f"{self.method}: {last.num_steps:,} steps, {last.seconds.total:.1f} s, ELBO {number(last.elbo.value)}"

    def as_json(self, optimum: float | None) -> list[dict[str, Any]]:
        """Give one object per fit, or one with the reason."""
        if self.reason:
            return [{"method": self.method, "error": self.reason}]
        return [as_json(f, dic, optimum) for f, dic in zip(self.fits, self.dics, strict=True)]


def run_seeds(model: Model, name: str, seeds: range, quiet: bool, options: dict[str, Any]) -> Row:
    """Fit once per seed; an error becomes the reason in the row, so that the other methods still run."""
    row = Row(name)
    try:
        for seed in seeds:
            answer = run(model, name, seed, quiet, options)
            row.fits.append(answer)
            row.dics.append(dic(answer))
            if row.interrupted:
                break
    except Exception as error:
        if os.environ.get("YOASOVI_TRACEBACK"):
            raise
        return Row(name, reason=one_line(error).removeprefix(f"`method` {name} ").split(";")[0])
    return row


def run(model: Model, method: str, seed: int, quiet: bool, options: dict[str, Any]) -> Fit:
    """Fit, with live progress if stderr is a terminal and `quiet` is not set."""
    from yoasovi.fitting import fit

    with plain_warnings():
        return fit(model, method, seed=seed, progress=False if quiet else None, **options)


def keep_programs() -> None:
    """Keep compiled programs in the user's cache folder unless told otherwise; processes begun from here do so too."""
    if VARIABLE not in os.environ and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        os.environ[VARIABLE] = str(usual_folder())


def check_outputs(save: str | None, report: str | None, option: str = "--report") -> None:
    """Refuse a folder or a file that could not be written, before anything is run."""
    if save is not None:
        from yoasovi.files.saving import FILE

        folder = Path(save)
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"--save must be a folder; {save} is a file.")
        if (folder / FILE).exists():
            raise ValueError(f"--save: {save} holds a fit already; choose another folder, or remove that one.")
    if report is not None:
        path = Path(report)
        if path.suffix not in (".html", ".htm") or path.is_dir():
            raise ValueError(f"{option} must be a file that ends in .html; got {report}.")
        if not path.parent.is_dir():
            raise ValueError(f"{option}: there is no folder {path.parent}; make it first, or choose another.")


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print a warning as a line of its own, without the code that it came from."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: print(f"yoasovi: {message}", file=sys.stderr)
        yield


@contextmanager
def quiet_warnings() -> Iterator[None]:
    """Leave out the warning of a poor fit where the verdict itself is printed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


@contextmanager
def waiting(what: str, quiet: bool) -> Iterator[None]:
    """Say what is going on, on stderr if that is a terminal; gone at the end."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


_NOT_AGAIN = ("json_", "quiet", "save", "checkpoint", "resume", "checkpoint_seconds", "checkpoint_steps")


def command(context: Any) -> str:
    """Write the command that is being run, to be run again: not where it would save, go on, or be silent."""
    words = ["yoasovi", str(context.info_name)]
    for option in context.command.params:
        value = context.params.get(option.name)
        if option.name in _NOT_AGAIN or value == option.default or value in (None, [], ()):
            continue
        name = () if option.param_type_name == "argument" else (option.opts[-1],)
        if isinstance(value, bool):
            words.append(option.opts[-1] if value else option.secondary_opts[-1])
            continue
        for one in value if isinstance(value, list | tuple) else [value]:
            words += [*name, Path(one).name if option.name == "report_" else str(one)]
    return shlex.join(words)


def write_report(model: str, rows: list[Row], path: str, rerun: str) -> tuple[str, list[str]]:
    """Write one report about the first fit of every method; give its path and a line on each verdict."""
    from yoasovi.report.html import write

    ran = [row for row in rows if row.fits]
    if not ran:
        raise ValueError("--report has nothing to show: no method could run.")
    names = [row.method for row in ran]
    with quiet_warnings():
        written = write([row.fits[0] for row in ran], path, model, rerun, names)
        verdicts = [row.fits[0].diagnose() for row in ran]
    return str(written), [f"{name}: {v.grade}. {v.advice}" for name, v in zip(names, verdicts, strict=True)]


def dic(fit: Fit) -> float | None:
    """Give the deviance information criterion, or None if the model has no likelihood to tell it by."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a run that diverged overflows, and the table shows it
            return fit.dic()
    except (ValueError, NotImplementedError):
        return None


def optimum(model: Model) -> float | None:
    """Give the highest ELBO that the factorised family can reach on this model, where the model knows it."""
    return None if model.optimum is None else float(model.optimum())


def distance(fit: Fit, optimum: float | None) -> float | None:
    """Give how far below the optimum a fit ended, if it was of the model whose optimum that is."""
    return None if optimum is None or fit.model.optimum is None else optimum - fit.elbo.value


def as_json(fit: Fit, dic: float | None, optimum: float | None) -> dict[str, Any]:
    """Give what is known of a fit as plain numbers; those that are not finite become null."""
    from yoasovi.answer.mixture import chains_of

    finite = lambda x: None if x is None or not math.isfinite(x) else float(x)
    chains = [
        {
            "draws": list(x.theta.shape[:2]), "rhat": finite(x.worst_rhat), "ess": finite(x.least_ess),
            "divergences": x.num_divergent, "gradients": x.num_gradients, "stopped": x.stopped,
        }
        for x in chains_of(fit)
    ]  # fmt: skip
    return {
        "method": fit.method.name,
        "family": fit.family.name,
        "seed": fit.seed,
        "elbo": {"value": finite(fit.elbo.value), "se": finite(fit.elbo.se)},
        "reported_elbo": finite(fit.reported_elbo),
        "distance_to_optimum": finite(distance(fit, optimum)),
        "dic": finite(dic),
        "converged": bool(fit.converged),
        "stop_reason": fit.stop_reason.name.lower(),
        "stop_detail": fit.stop_detail,
        "counts": {
            "steps": fit.num_steps, "values": fit.num_values, "gradients": fit.num_gradients, "nonfinite": fit.num_nonfinite,
        },
        "nonfinite": fit.nonfinite._asdict(),
        "seconds": fit.seconds._asdict(),
        "mended": [note._asdict() for note in fit.mended],
        **({"refined": {"modes": chains} if fit.parts else chains[0]} if chains else {}),
    }  # fmt: skip


def posterior_as_json(fit: Fit, most: int = 1000) -> dict[str, Any]:
    """Give mean, sd and quantiles of the first parameters by name, the priors, and what was made of the data."""
    import numpy as np

    local = {s.name for s in fit.model.density.local_sites}
    out: dict[str, dict[str, float]] = {}
    for site, draws in fit.sample(fit.plenty(4000)).items():
        for name, x in zip(fit.model.names(site, draws.shape[1:]), draws.reshape(len(draws), -1).T, strict=True):
            if site not in local and len(out) < most and np.isfinite(x).all():
                low, high = np.quantile(x, [0.05, 0.95])
                out[name] = {"mean": float(x.mean()), "sd": float(x.std()), "5%": float(low), "95%": float(high)}
    notes = [] if fit.model.labels is None else list(fit.model.labels.notes)
    return {"posterior": out, "priors": fit.model.priors, "notes": notes}
