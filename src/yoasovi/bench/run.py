"""Run the benchmark: every peer on every posterior, each in a fresh process, and write what came out.

Nothing here imports JAX: only the rows' own processes do.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from yoasovi.bench import database
from yoasovi.bench.judged import judged
from yoasovi.bench.peers import FULL_RANK_UP_TO, PEERS
from yoasovi.bench.posteriors import POSTERIORS, Posterior
from yoasovi.caching import VARIABLE
from yoasovi.errors import check, did_you_mean, positive_integer
from yoasovi.experiments import files, rows
from yoasovi.experiments.files import Row
from yoasovi.experiments.rows import Table, Task
from yoasovi.extras import need

QUICK_POSTERIORS = ("growth", "schools", "cancer")
QUICK_PEERS = (
    "yoasovi", "SVI AutoNormal, Adam 0.01",
    "SVI AutoMultivariateNormal, Adam 0.01", "BlackJAX pathfinder", "fixed draws, L-BFGS", "NUTS", "yoasovi-metropolis",
)  # fmt: skip
LIMIT = 1800  # seconds that a row may take, both runs and what is said of them
REFERENCE = "reference"
_LONG = (REFERENCE, "NUTS", "BlackJAX meanfield_vi", "BlackJAX fullrank_vi")
_KEEP_EVERY = 20.0  # seconds
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Lineup(NamedTuple):
    """What is run, and what is not and why."""

    tasks: list[Task]
    references: list[Task]
    left_out: list[str]
    posteriors: dict[str, Posterior]

    def in_order(self) -> list[Task]:
        """Give all of them, those that take long first, so that none is waited for at the end."""
        return sorted(
            [*self.references, *self.tasks], key=lambda x: (x.method not in _LONG, -self.posteriors[x.problem].dim)
        )


def bench(
    out: str | Path,
    *,
    quick: bool = False,
    posteriors: tuple[str, ...] = (),
    peers: tuple[str, ...] = (),
    seed: int = 0,
    posteriordb: str | Path | None = None,
    jobs: int = 1,
    limit: int = LIMIT,
    say: Callable[[str], None] = lambda _: None,
) -> list[Table]:
    """Run all rows that are not there yet, and give the tables; a page stands beside the folder `out`, ending in .md.

    One process at a time by default, with all cores; with more `jobs` each has one core, its own, and one thread. What is
    there is in bench.json also of a run that was cut off.
    """
    out = Path(out)
    check(seed >= 0, "seed", "bench", "zero or more", seed)
    positive_integer("limit", "bench", limit)
    cores = _cores(jobs)
    folder = None if posteriordb is None else database.folder_of(posteriordb).resolve()
    known = POSTERIORS | ({} if folder is None else database.posteriors(folder))
    for option, names, all_names in (("posterior", posteriors, tuple(known)), ("peer", peers, tuple(PEERS))):
        for name in names:
            hint = did_you_mean(name, all_names)
            if name not in all_names:
                raise ValueError(f"`{option}` of `bench` must be one of {'; '.join(all_names)}; got {name!r}.{hint}")
    chosen = posteriors or (QUICK_POSTERIORS if quick else tuple(known))
    plan = planned({k: known[k] for k in chosen}, peers or (QUICK_PEERS if quick else tuple(PEERS)), seed, quick)
    if not plan.tasks:
        raise ValueError(f"`peer` of `bench` leaves nothing to run: {' '.join(plan.left_out)}")
    need("matplotlib.figure", "bench")
    files.writable(out, "bench")
    words = ["yoasovi", "bench", *(["--quick"] if quick else [])]
    words += [x for name in posteriors for x in ("--posterior", name)] + [x for name in peers for x in ("--peer", name)]
    words += ["--posteriordb", "FOLDER"] if folder else []
    words += [x for name, value, usual in (("seed", seed, 0), ("jobs", jobs, 1), ("limit", limit, LIMIT))
              if value != usual for x in (f"--{name}", str(value))]  # fmt: skip
    kept = partial(_keep, plan, out, shlex.join([*words, "--out", str(out)]), jobs)
    rows.run(
        partial(measure, cores=cores, limit=limit, folder=folder),
        plan.in_order(),
        out,
        jobs,
        _now_and_then(kept, say),
        side_by_side,
    )
    kept()

    from yoasovi.bench import page

    return page.write(out)


def _cores(jobs: int) -> SimpleQueue[int | None]:
    """Give the cores that rows may take in turn; None stands for all of them."""
    positive_integer("jobs", "bench", jobs)
    free: SimpleQueue[int | None] = SimpleQueue()
    there = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    check(jobs == 1 or jobs <= len(there), "jobs", "bench", f"1, or up to the number of cores, here {len(there)}", jobs)
    for core in there[:jobs] if jobs > 1 else [None]:
        free.put(core)
    return free


def _keep(plan: Lineup, out: Path, command: str, jobs: int) -> None:
    """Write the rows that are there, judged, to bench.json."""
    there = lambda tasks: [row for task in tasks if (row := rows.finished(task, out, task.seeds[0])) is not None]
    references = {row["problem"]: row for row in there(plan.references)}
    found = judged(there(plan.tasks), references, plan.posteriors)
    more = {
        "jobs": jobs, "asked": len(plan.tasks), "left_out": plan.left_out,
        "posteriors": {k: {"dim": v.dim, "about": v.about} for k, v in plan.posteriors.items()},
        "references": {k: {x: v.get(x) for x in ("rhat", "ess", "error")} for k, v in references.items()},
    }  # fmt: skip
    files.write_json(out / "bench.json", command, found, **more)


def _now_and_then(kept: Callable[[], None], say: Callable[[str], None]) -> Callable[[str], None]:
    """Give a `say` that keeps what is there, no more often than is worth its time."""
    last = time.monotonic()

    def said(line: str) -> None:
        nonlocal last
        say(line)
        if time.monotonic() - last > _KEEP_EVERY:
            kept()
            last = time.monotonic()

    return said


def side_by_side(work: Callable[[Task], Task], tasks: list[Task], jobs: int) -> Iterator[tuple[int, Task]]:
    """Call `work` with each task, `jobs` at a time; in threads, since each only waits for a process of its own."""
    pool = ThreadPoolExecutor(jobs)
    futures = {pool.submit(work, task): i for i, task in enumerate(tasks)}
    try:
        for future in as_completed(futures):
            yield futures[future], future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def planned(posteriors: dict[str, Posterior], peers: tuple[str, ...], seed: int, quick: bool) -> Lineup:
    """Give the rows to make; say what cannot be run here, once for each reason."""
    missing = {PEERS[x].library for x in peers} | {x.needs for x in posteriors.values()} - {""}
    missing = {name for name in missing if name and find_spec(name) is None}
    settings = (("quick", quick),)
    out: list[str] = []
    there = [x for x in posteriors if posteriors[x].needs not in missing]
    tasks = []
    for name in there:
        for peer in peers:
            wide = PEERS[peer].full_rank and posteriors[name].dim > FULL_RANK_UP_TO
            no_form = PEERS[peer].library == "pymc" and posteriors[name].model not in _pymc_forms()
            if PEERS[peer].library not in missing and not wide and not no_form:
                tasks.append(Task("bench", name, peer, (seed,), settings))
    for library in sorted(missing):
        names = [x for x in peers if PEERS[x].library == library] + [x for x in posteriors if posteriors[x].needs == library]
        out.append(f"{library} is not installed: {', '.join(names)}.")
    if "pymc" not in missing and any(PEERS[x].library == "pymc" for x in peers):
        without = [x for x in there if posteriors[x].model not in _pymc_forms()]
        out += [f"No PyMC form here, so no PyMC row: {', '.join(without)}."] if without else []
    big = [x for x in there if posteriors[x].dim > FULL_RANK_UP_TO]
    if big and any(PEERS[x].full_rank for x in peers):
        out.append(f"A full covariance beyond {FULL_RANK_UP_TO} dimensions: {', '.join(big)}.")
    return Lineup(tasks, [Task("bench", name, REFERENCE, (99,), settings) for name in there], out, posteriors)


def _pymc_forms() -> set[str]:
    """Give the names of the models in `pymc_models`, without importing PyMC."""
    import ast

    tree = ast.parse(Path(__file__).with_name("pymc_models.py").read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def measure(task: Task, seed: int, cores: SimpleQueue[int | None], limit: int, folder: Path | None = None) -> Row:
    """Make a row in a fresh process that finds nothing compiled; one that fails says why and stops no other."""
    here = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"} | {VARIABLE: "off"}
    core = cores.get()
    if core is not None:
        flags = f"{here.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
        here |= _ONE_THREAD | {"XLA_FLAGS": flags}
    asked = {"posterior": task.problem, "peer": task.method, "seed": seed, "quick": task.setting("quick"), "core": core}
    asked |= {} if folder is None else {"folder": str(folder)}
    command = [sys.executable, "-m", "yoasovi.bench.worker", json.dumps(asked)]
    try:
        done = subprocess.run(command, env=here, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"not done within {limit:,} seconds"}
    finally:
        cores.put(core)
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    if done.returncode in (-signal.SIGINT, -signal.SIGTERM):  # the whole run is being stopped: this is no row
        raise KeyboardInterrupt
    said = done.stderr.strip().splitlines()
    return {"error": said[-1][:300] if said else f"its process died ({done.returncode})"}
