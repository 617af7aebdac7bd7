"""One row, made in a process of its own: `python -m yoasovi.bench.worker '{"posterior": ..., "peer": ..., ...}'`.

The data are there before the clock starts; from then to the first answer is the cold time, imports and compiling
included. The same is then run again, for the warm time. What is said of the answer comes afterwards and takes no time of
either. The row goes to stdout as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from yoasovi.bench.database import draws as draws_of
from yoasovi.bench.peers import PEERS, Found
from yoasovi.bench.posteriors import Case
from yoasovi.experiments.files import Row

_DRAWS, _DRAWS_IF_WIDE, _WIDE = 20_000, 4_000, 500  # behind means and sds; beyond so many dimensions
_ELBO_DRAWS, _MARK_DRAWS = 4_000, 1_000
_SCORING = 12_345  # a seed that no run has
REFERENCE = "reference"
_LONG, _QUICK = (1_500, 5_000), (1_000, 1_500)  # warm-up and draws of the reference's four chains


def measured(posterior: str, peer: str, seed: int, quick: bool, core: int | None = None, folder: str | None = None) -> Row:
    """Give the row of a peer, or the reference; with a core, on that one alone."""
    if core is not None:
        os.sched_setaffinity(0, {core})
    case = Case(posterior, None if folder is None else Path(folder))
    if peer == REFERENCE:
        return reference(case, quick)
    begin = time.perf_counter()
    run = PEERS[peer].build(case, **PEERS[peer].settings)
    built = time.perf_counter() - begin
    first = run(seed)
    cold = _seconds(first, built, begin)
    begin_again = time.perf_counter()
    again = run(seed)
    warm = _seconds(again, 0.0, begin_again)
    return {"cold_s": cold, "warm_s": warm, **_said_of(case, again, built, first, cold - warm)}


def _seconds(found: Found, before: float, begin: float) -> float:
    """Give the time of an answer: that of its mark, in a run that goes on behind it."""
    inside = found.seconds
    return round(time.perf_counter() - begin if inside is None else before + inside, 4)


def _said_of(case: Case, found: Found, built: float, first: Found, extra: float) -> Row:
    """Look at an answer: its ELBO on fresh draws, means, sds, verdict, and where it was along the way.

    `extra` are the seconds that the first run took longer than the second.
    """
    from yoasovi.bench.target import Scorer, moments
    from yoasovi.experiments.rows import finite

    scorer = Scorer(case.model, case.args)
    n = _DRAWS if scorer.target.dim <= _WIDE else _DRAWS_IF_WIDE
    row: Row = {"family": found.family, "values": found.values, "gradients": found.gradients, "note": found.note}
    elbo = found.elbo
    if found.draw is not None:
        theta, log_q = found.draw(_ELBO_DRAWS, _SCORING)
        elbo = None if log_q is None else scorer.elbo(theta, log_q)
        draws = scorer.constrained(found.draw(n, _SCORING + 1)[0])
    else:
        assert found.sites is not None
        draws = found.sites(n)
    names = tuple(draws) if case.posterior is None else case.posterior.compared or tuple(scorer.target.latents)
    row["elbo"], row["elbo_se"] = (None, None) if elbo is None else map(finite, elbo)
    row["mean"], row["sd"] = moments(draws, names)
    row["marks"] = []
    for cold, warm in zip(first.marks, found.marks, strict=True):
        value = finite(scorer.elbo(*warm.found.draw(_MARK_DRAWS, _SCORING))[0])
        row["marks"].append([warm.steps, round(built + cold.seconds, 4), round(warm.seconds, 4), value])
    if found.stops is not None:  # all that was compiled counts for each of them, also what they did without
        stops = found.stops()
        row["marks"] += [[x.steps, round(extra + x.seconds, 4), round(x.seconds, 4), finite(x.elbo)] for x in stops]
    begin = time.perf_counter()
    row["verdict"] = None if found.verdict is None else found.verdict()
    row["verdict_s"] = None if found.verdict is None else round(time.perf_counter() - begin, 3)
    return row


def reference(case: Case, quick: bool) -> Row:
    """Give means and sds by the database's draws, else by a long run of NUTS in double precision.

    Centred hierarchies are seen by it in their non-centred form.
    """
    import jax
    import numpy as np
    from numpyro.handlers import reparam
    from numpyro.infer import MCMC, NUTS
    from numpyro.infer.reparam import LocScaleReparam

    from yoasovi.bench.target import Target

    if case.folder is not None and (kept := draws_of(case.folder, case.name)) is not None:
        return _by_draws(kept)
    jax.config.update("jax_enable_x64", True)
    form = {name: LocScaleReparam(0.0) for name in (case.posterior.centred if case.posterior else ())}
    model = reparam(case.model, config=form) if form else case.model
    warmup, draws = _QUICK if quick else _LONG
    kernel = NUTS(model, target_accept_prob=0.95)
    mcmc = MCMC(kernel, num_warmup=warmup, num_samples=draws, num_chains=4, chain_method="vectorized", progress_bar=False)
    mcmc.run(jax.random.key(99), *case.args)
    names = (case.posterior and case.posterior.compared) or tuple(Target(case.model, case.args).latents)
    return _by_draws({k: np.asarray(v) for k, v in mcmc.get_samples(group_by_chain=True).items() if k in names})


def _by_draws(chains: dict[str, Any]) -> Row:
    """Give means and sds of draws (chains, draws, ...) by site, and how well they are known."""
    import numpy as np
    from numpyro.diagnostics import summary

    from yoasovi.bench.target import moments

    checks = summary(chains).values()
    mean, sd = moments({k: v.reshape(-1, *v.shape[2:]) for k, v in chains.items()}, tuple(chains))
    worst = {"rhat": max(float(np.max(x["r_hat"])) for x in checks), "ess": min(float(np.min(x["n_eff"])) for x in checks)}
    return {"mean": mean, "sd": sd, **{k: round(v, 4) for k, v in worst.items()}}


def main(task: dict[str, Any]) -> None:
    """Make one row; what libraries print goes to stderr."""
    warnings.simplefilter("ignore")
    with redirect_stdout(sys.stderr):
        row = measured(**task)
    print(json.dumps(row))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
