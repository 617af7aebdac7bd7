"""Run the benchmark: every peer on every posterior, each in a fresh process, and write what came out.

Nothing here imports JAX: only the rows' own processes do.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from yoasovi.bench.judged import judged
from yoasovi.bench.peers import FULL_RANK_UP_TO, PEERS
from yoasovi.bench.posteriors import POSTERIORS
from yoasovi.caching import VARIABLE
from yoasovi.errors import check, did_you_mean, positive_integer
from yoasovi.experiments import files, rows
from yoasovi.experiments.files import Row
from yoasovi.experiments.rows import Table, Task
from yoasovi.extras import need

QUICK_POSTERIORS = ("growth", "schools", "cancer")
QUICK_PEERS = (
    "yoasovi", "yoasovi, mean-field", "yoasovi, full-rank", "SVI AutoNormal, Adam 0.01",
    "SVI AutoMultivariateNormal, Adam 0.01", "BlackJAX pathfinder", "fixed draws, L-BFGS", "NUTS", "yoasovi-metropolis",
)  # fmt: skip
LIMIT = 1800  # seconds that a row may take, both runs and what is said of them
REFERENCE = "reference"


class Lineup(NamedTuple):
    """What is run, and what is not and why."""

    tasks: list[Task]
    references: list[Task]
    left_out: list[str]


def bench(
    out: str | Path,
    *,
    quick: bool = False,
    posteriors: tuple[str, ...] = (),
    peers: tuple[str, ...] = (),
    seed: int = 0,
    workers: int = 1,
    say: Callable[[str], None] = lambda _: None,
) -> list[Table]:
    """Run all rows that are not there yet, and give the tables; a page stands beside the folder `out`, ending in .md.

    One process at a time by default, since rows that run side by side make each other slower.
    """
    out = Path(out)
    positive_integer("workers", "bench", workers)
    check(seed >= 0, "seed", "bench", "zero or more", seed)
    for option, names, known in (("posterior", posteriors, POSTERIORS), ("peer", peers, PEERS)):
        for name in names:
            hint = did_you_mean(name, known)
            if name not in known:
                raise ValueError(f"`{option}` of `bench` must be one of {'; '.join(known)}; got {name!r}.{hint}")
    chosen = posteriors or (QUICK_POSTERIORS if quick else tuple(POSTERIORS))
    plan = planned(chosen, peers or (QUICK_PEERS if quick else tuple(PEERS)), seed, quick)
    if not plan.tasks:
        raise ValueError(f"`peer` of `bench` leaves nothing to run: {' '.join(plan.left_out)}")
    need("matplotlib.figure", "bench")
    files.writable(out, "bench")
    words = ["yoasovi", "bench", *(["--quick"] if quick else [])]
    words += [x for name in posteriors for x in ("--posterior", name)] + [x for name in peers for x in ("--peer", name)]
    command = shlex.join([*words, *(["--seed", str(seed)] if seed else []), "--out", str(out)])
    references = {row["problem"]: row for row in rows.run(measure, plan.references, out, workers, say)}
    found = judged(rows.run(measure, plan.tasks, out, workers, say), references)

    from yoasovi.bench import page

    more = {"references": {k: {x: v.get(x) for x in ("rhat", "ess", "error")} for k, v in references.items()}}
    files.write_json(out / "bench.json", command, found, workers=workers, left_out=plan.left_out, **more)
    return page.write(out)


def planned(posteriors: tuple[str, ...], peers: tuple[str, ...], seed: int, quick: bool) -> Lineup:
    """Give the rows to make; say what cannot be run here, once for each reason."""
    missing = {PEERS[x].library for x in peers} | {POSTERIORS[x].needs for x in posteriors} - {""}
    missing = {name for name in missing if name and find_spec(name) is None}
    settings = (("quick", quick),)
    out: list[str] = []
    there = [x for x in posteriors if POSTERIORS[x].needs not in missing]
    tasks = []
    for name in there:
        for peer in peers:
            wide = PEERS[peer].full_rank and POSTERIORS[name].dim > FULL_RANK_UP_TO
            no_form = PEERS[peer].library == "pymc" and POSTERIORS[name].model not in _pymc_forms()
            if PEERS[peer].library not in missing and not wide and not no_form:
                tasks.append(Task("bench", name, peer, (seed,), settings))
    for library in sorted(missing):
        names = [x for x in peers if PEERS[x].library == library] + [x for x in posteriors if POSTERIORS[x].needs == library]
        out.append(f"{library} is not installed: {', '.join(names)}.")
    if "pymc" not in missing and any(PEERS[x].library == "pymc" for x in peers):
        without = [x for x in there if POSTERIORS[x].model not in _pymc_forms()]
        out += [f"No PyMC form here, so no PyMC row: {', '.join(without)}."] if without else []
    big = [x for x in there if POSTERIORS[x].dim > FULL_RANK_UP_TO]
    if big and any(PEERS[x].full_rank for x in peers):
        out.append(f"A full covariance beyond {FULL_RANK_UP_TO} dimensions: {', '.join(big)}.")
    return Lineup(tasks, [Task("bench", name, REFERENCE, (99,), settings) for name in there], out)


def _pymc_forms() -> set[str]:
    """Give the names of the models in `pymc_models`, without importing PyMC."""
    import ast

    tree = ast.parse(Path(__file__).with_name("pymc_models.py").read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def measure(task: Task, seed: int) -> Row:
    """Make a row in a fresh process that finds nothing compiled; one that fails says why and stops no other."""
    asked = {"posterior": task.problem, "peer": task.method, "seed": seed, "quick": task.setting("quick")}
    here = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"} | {VARIABLE: "off"}
    command = [sys.executable, "-m", "yoasovi.bench.worker", json.dumps(asked)]
    try:
        done = subprocess.run(command, env=here, capture_output=True, text=True, timeout=LIMIT, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"not done within {LIMIT // 60} minutes"}
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    said = done.stderr.strip().splitlines()
    return {"error": said[-1][:300] if said else f"its process died ({done.returncode})"}
