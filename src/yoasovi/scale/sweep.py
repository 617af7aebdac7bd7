"""Many fits at once: seeds, methods, models and data sets; what is finished is on disk, what failed is named."""

from __future__ import annotations

import json
import os
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from yoasovi.errors import check
from yoasovi.extras import need
from yoasovi.files.storage import checksum, write_whole
from yoasovi.scale.pool import Failure, each

_ROW, _FIT = "row.json", "fit"


@dataclass(frozen=True)
class Job:
    """One fit: `fit(model, method=method, seed=seed, **options)`. Its `name` is the folder of its results."""

    name: str
    model: Any
    method: Any = "yoasovi"
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)


def jobs(
    models: Mapping[str, Any], methods: Sequence[Any] = ("yoasovi",), seeds: int | Iterable[int] = 1, **options: Any
) -> list[Job]:
    """List the fits of every model (a model with other data is another) by every method from every seed.

    `seeds` is how many, or which; `options` are those of `fit`, the same for all.
    """
    check(isinstance(models, Mapping) and models, "models", "jobs", "a dict of models by name", models)
    check(not isinstance(methods, str), "methods", "jobs", "a list of methods", methods)
    every = range(seeds) if isinstance(seeds, int) else tuple(seeds)
    called = lambda method: method if isinstance(method, str) else method.name
    return [
        Job(f"{name}/{called(method)}/{seed}", model, method, seed, options)
        for name, model in models.items() for method in methods for seed in every
    ]  # fmt: skip


@dataclass(frozen=True)
class Sweep:
    """What became of the jobs of a sweep: `rows` of numbers, in the order of the jobs, and `failures` by name."""

    folder: Path
    rows: tuple[dict[str, Any], ...]
    failures: Mapping[str, Failure]
    models: Mapping[str, Any]

    def fit(self, name: str) -> Any:
        """Give the fit of a job, with its model."""
        from yoasovi.files.saving import load
        from yoasovi.fitting import as_model

        known = [row["name"] for row in self.rows]
        check(name in known, "name", "Sweep.fit", f"that of a finished job ({', '.join(known[:8])} ...)", name)
        return load(self.folder / name / _FIT, model=as_model(self.models[name]))

    @cached_property
    def groups(self) -> dict[tuple[str, str], list[dict[str, Any]]]:
        """Rows by model and method."""
        out: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for row in self.rows:
            out.setdefault((_group(row["name"]), row["method"]), []).append(row)
        return out

    def table(self) -> str:
        """Give a table in Markdown: one line per model and method."""
        lines = [
            "| model | method | fits | converged | ELBO | gradients | seconds | good/usable/poor/failed |",
            "|---|---|---:|---:|---:|---:|---:|---:|",
        ]
        for (model, method), rows in self.groups.items():
            elbos = [row["elbo"] for row in rows if row["elbo"] is not None]
            elbo = f"{fmean(elbos):,.2f}" + (f" ± {stdev(elbos):,.2f}" if len(elbos) > 1 else "") if elbos else "–"
            grades = Counter(row["grade"] for row in rows)
            lines.append(
                f"| {model} | {method} | {len(rows)} | {sum(row['converged'] for row in rows)} | {elbo} | "
                f"{median(row['gradients'] for row in rows):,.0f} | {median(row['seconds'] for row in rows):.2f} | "
                + "/".join(str(grades[g] or "·") for g in ("good", "usable", "poor", "failed")) + " |"
            )  # fmt: skip
        lines += ["", *(f"{name} failed: {failure.error}" for name, failure in self.failures.items())]
        return "\n".join(lines).rstrip()

    def __str__(self) -> str:
        return self.table()

    def plot(self) -> Any:
        """Draw the ELBO of every fit, by model and method; give the matplotlib figure."""
        names = list(dict.fromkeys(model for model, _ in self.groups))
        methods = list(dict.fromkeys(method for _, method in self.groups))
        figure = need("matplotlib.figure", "report").Figure(figsize=(7.0, 1.0 + 1.6 * len(names)), layout="constrained")
        for axes, name in zip(figure.subplots(len(names), 1, squeeze=False)[:, 0], names, strict=True):
            for place, method in enumerate(methods):
                found = [row["elbo"] for row in self.groups.get((name, method), ()) if row["elbo"] is not None]
                axes.plot(found, [place] * len(found), "o", alpha=0.6, markersize=5)
            axes.set(yticks=range(len(methods)), yticklabels=methods, ylim=(len(methods) - 0.5, -0.5), title=name)
            axes.grid(axis="x", alpha=0.3)
        axes.set_xlabel("ELBO, nats")
        return figure


def sweep(
    jobs: Iterable[Job], client: Any = None, *, out: str | Path = "sweep", workers: int | None = None, say: Any = None
) -> Sweep:
    """Run many fits, each with its verdict; write each to disk when it ends. One that fails stops no other.

    Called again with the same `out`, only what is not there runs: what failed, what is new, and what changed since.

    Parameters
    ----------
    jobs
        `Job`s, as `yo.jobs` lists them.
    client
        A `distributed.Client`, or the address of a Dask scheduler; by default the processes of this machine.
    out
        A folder: each job has one of its name there. The process that calls writes it, so a cluster needs no common disk.
    workers
        Processes of this machine; by default as many as it has cores.
    say
        Function of one line of text, called whenever a job ends.
    """
    todo = list(jobs)
    for job in todo:
        check(isinstance(job, Job), "jobs", "sweep", "a list of Job, as `yo.jobs` makes it", job)
        parts = job.name.split("/")
        check(not {"", ".", ".."} & set(parts), "jobs", "sweep", "of names that can be folders", job.name)
    twice = [name for name, count in Counter(job.name for job in todo).items() if count > 1]
    check(not twice, "jobs", "sweep", "of names that occur once", twice)
    folder = Path(out)
    rows: dict[str, dict[str, Any]] = {}
    failures: dict[str, Failure] = {}
    heads = _heads(todo, failures)
    for job in todo:
        if job.name in heads and (row := _finished(folder / job.name, heads[job.name])) is not None:
            rows[job.name] = row
    waiting = [job for job in todo if job.name in heads and job.name not in rows]
    for place, result in each(_run, waiting, (os.cpu_count() or 1) if workers is None else workers, client):
        job = waiting[place]
        if isinstance(result, Failure):
            failures[job.name] = result
        else:
            rows[job.name] = _write(folder / job.name, heads[job.name], *result)
        if say is not None:
            ended = failures[job.name].error if job.name in failures else f"{rows[job.name]['grade']}"
            say(f"{job.name}: {ended} ({len(rows) + len(failures)} of {len(todo)})")
    order = [job.name for job in todo]
    return Sweep(
        folder, tuple(rows[name] for name in order if name in rows),
        {name: failures[name] for name in order if name in failures}, {job.name: job.model for job in todo},
    )  # fmt: skip


def _group(name: str) -> str:
    """Give the part of a job's name that names its model."""
    return name.rsplit("/", 2)[0]


def _heads(todo: list[Job], failures: dict[str, Failure]) -> dict[str, dict[str, Any]]:
    """Describe what decides the answer of each job; a model that cannot be described fails its jobs."""
    from yoasovi import __version__
    from yoasovi.files import identity
    from yoasovi.fitting import as_model
    from yoasovi.methods import method as named

    known: dict[int, dict[str, str]] = {}
    heads = {}
    for job in todo:
        try:
            if id(job.model) not in known:
                known[id(job.model)] = identity.of_model(as_model(job.model))
            method = named(job.method)
            what = [__version__, known[id(job.model)], identity.plain(method), identity.plain(sorted(job.options.items()))]
        except Exception as error:
            failures[job.name] = Failure.of(error)
            continue
        digest = checksum(json.dumps(what, sort_keys=True).encode())
        heads[job.name] = {"name": job.name, "method": method.name, "seed": job.seed, "identity": digest}
    return heads


def _run(job: Job) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Run a job where it may be far from the disk: give its numbers, and the files of its fit."""
    from yoasovi.files.saving import save
    from yoasovi.fitting import fit

    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that a fit is poor is told by its row
        answer = fit(job.model, method=job.method, seed=job.seed, progress=False, **job.options)
        if answer.stop_reason.name == "INTERRUPTED":
            raise KeyboardInterrupt  # half a fit is no result
        verdict = answer.diagnose()
    finite = lambda x: float(x) if abs(x) < float("inf") else None
    row = {
        "elbo": finite(answer.elbo.value), "elbo_se": finite(answer.elbo.se), "converged": bool(answer.converged),
        "stop": answer.stop_reason.name.lower(), "grade": str(verdict.grade), "steps": answer.num_steps,
        "gradients": answer.num_gradients, "values": answer.num_values, "seconds": time.perf_counter() - begin,
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        save(answer, Path(folder) / _FIT)
        return row, {path.name: path.read_bytes() for path in (Path(folder) / _FIT).iterdir()}


def _write(folder: Path, head: Mapping[str, Any], row: Mapping[str, Any], files: Mapping[str, bytes]) -> dict[str, Any]:
    """Put a result on disk, the row last: it says that all is there."""
    (folder / _FIT).mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_whole(folder / _FIT / name, content)
    whole = {**head, **row}
    write_whole(folder / _ROW, json.dumps(whole, indent=1).encode())
    return whole


def _finished(folder: Path, head: Mapping[str, Any]) -> dict[str, Any] | None:
    """Give the row of a job that ended earlier, if it was the same one."""
    try:
        row = json.loads((folder / _ROW).read_text())
    except (OSError, ValueError):
        return None
    return row if isinstance(row, dict) and {k: row.get(k) for k in head} == dict(head) else None
