"""Where the paper is wrong or silent, what holds instead, and one line of evidence each, measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from yoasovi.acceptance import Naive
from yoasovi.answer.result import Fit
from yoasovi.choosing import choose_family
from yoasovi.draws import MonteCarlo, Sobol
from yoasovi.experiments.figure1 import REFERENCE, RULES, STRICTNESS, Printed, probability
from yoasovi.experiments.files import Row, write_csv, write_json
from yoasovi.experiments.networks import PUBLISHED as LATER, TEN
from yoasovi.experiments.rows import Table, Task, finite, number
from yoasovi.experiments.table1 import PUBLISHED, mixture
from yoasovi.fitting import fit
from yoasovi.gradients import Problem, Reparam, look, score_direction
from yoasovi.kernels.programs import Clock, call
from yoasovi.methods import Method, method
from yoasovi.randomness import Purpose, open_uniform, stream
from yoasovi.start import own_start
from yoasovi.tempering import Logarithmic

Evidence = tuple[Row, str]
NAIVE = method("yoasovi-naive")


@dataclass(frozen=True)
class LastDrawn(Naive):
    """Compares with the draw before, refused or not: L_{t-1} taken at its word."""

    def judge(self, look, luck, control, journey, yardstick, t):
        """Judge as ever, and remember the draw."""
        return super().judge(look, luck, control, journey, yardstick, t)._replace(yardstick=journey.elbo)


def _runs(rule: str | Method, seeds: int, **settings: Any) -> list[Fit]:
    """Fit the first mixture, at the author's settings."""
    return [fit(mixture("mixture-2-2", "paper"), rule, seed=s, progress=False, **settings) for s in range(seeds)]


def _mean(fits: list[Fit], get: Callable[[Fit], float]) -> float:
    return round(fmean(get(f) for f in fits), 4)


# ---- the evidence ----------------------------------------------------------------------------------------


def sign(seeds: int) -> Evidence:
    """Accept as printed, and with |L_ref|."""
    better = {name: round(float(probability(rule, np.array(REFERENCE + 500))), 3) for name, rule in RULES.items()}
    rule = replace(NAIVE, acceptance=Printed(Logarithmic(3.0)))
    printed, right = _runs(rule, seeds, max_steps=2_000), _runs(NAIVE, seeds, max_steps=2_000)
    found = {"accept_500_better_printed": better["naive, as printed"], "accept_500_better": better["naive"],
             "reported_printed": _mean(printed, lambda f: f.reported_elbo),
             "reported": _mean(right, lambda f: f.reported_elbo)}  # fmt: skip
    return found, (
        f"a draw 500 nats better than L_ref = {number(REFERENCE, 0)} is accepted with probability "
        f"{found['accept_500_better_printed']:g} as printed and {found['accept_500_better']:g} with abs(L_ref) "
        f"(M = {STRICTNESS:g}); on mixture (2,2) runs then end at a reported ELBO of {number(found['reported_printed'], 0)} "
        f"and {number(found['reported'], 0)}."
    )


def first_draw(seeds: int) -> Evidence:
    """Divide by minus infinity."""
    with np.errstate(invalid="ignore"):
        ratio = (np.float64(-5000.0) - np.float64(-np.inf)) / np.float64(-np.inf)
    fits = _runs(NAIVE, seeds, max_steps=5)
    accepted = sum(bool(f.trace["accepted"][0]) for f in fits)
    found = {"ratio": str(ratio), "first_accepted": accepted, "runs": seeds}
    return found, f"in floating point the ratio is {ratio}; here the first draw was accepted in {accepted} of {seeds} runs."


def yardstick(seeds: int) -> Evidence:
    """Compare with the draw before, or with the one accepted before."""
    drawn = _runs(replace(NAIVE, acceptance=LastDrawn(Logarithmic(3.0))), seeds, max_steps=2_000)
    kept = _runs(NAIVE, seeds, max_steps=2_000)
    found = {"stopped_last_drawn": sum(f.converged for f in drawn), "stopped_last_accepted": sum(f.converged for f in kept),
             "reported_last_drawn": _mean(drawn, lambda f: f.reported_elbo),
             "reported_last_accepted": _mean(kept, lambda f: f.reported_elbo), "runs": seeds}  # fmt: skip
    return found, (
        f"compared with the draw before, refused or not, {found['stopped_last_drawn']} of {seeds} runs stop within 2,000 "
        f"iterations (reported ELBO {number(found['reported_last_drawn'], 0)}); with the last accepted one "
        f"{found['stopped_last_accepted']} of {seeds} do ({number(found['reported_last_accepted'], 0)})."
    )


def scale(seeds: int) -> Evidence:
    """Draw from the exponential of rate M/|L|."""
    draws = np.random.default_rng(0).exponential(abs(REFERENCE) / STRICTNESS, 100_000)
    found = {"sd": round(float(draws.std()), 1), "printed_sd": round(float(np.sqrt(abs(REFERENCE) / STRICTNESS)), 1)}
    return found, (
        f"100,000 draws at L = {number(REFERENCE, 0)}, M = {STRICTNESS:g} have an SD of {number(found['sd'], 0)} nats; the "
        f"printed variance would make it {number(found['printed_sd'], 0)}."
    )


def patience(seeds: int) -> Evidence:
    """Count the refusals at the end of runs."""
    ends = []
    for f in _runs("yoasovi-naive", seeds, patience=10):
        accepted = f.trace["accepted"]
        ends.append(len(accepted) - 1 - int(np.flatnonzero(accepted)[-1]))
    said = ", ".join(map(str, sorted(set(ends))))
    return {"refusals": ends}, f"with patience 10, runs here end after {said} refusals in a row."


def minutes(seeds: int) -> Evidence:
    """Read the paper's own table."""
    times = [row.seconds[0] for row in PUBLISHED.values() if row.name.startswith("YOASOVI")]
    seconds = _mean(_runs(NAIVE, seeds), lambda f: f.seconds.run)
    found = {"printed_s": times, "measured_s": seconds}
    printed = f"the paper's Table 1 has {min(times):g} to {max(times):g} seconds"
    return found, f"{printed}; here a run on (2,2) takes {seconds:.2f} s."


def units(seeds: int) -> Evidence:
    """Add a constant to log p and ask the rule again."""
    rule, gain = Naive(), -100.0
    at = lambda reference: float(np.clip(rule.probability(STRICTNESS * gain / abs(reference)), 0.0, 1.0))
    found = {"accept": round(at(REFERENCE), 3), "accept_shifted": round(at(REFERENCE + 1400.0), 3)}
    return found, (
        f"a draw 100 nats worse than L_ref = {number(REFERENCE, 0)} is accepted with probability {found['accept']:g}; add "
        f"1,400 to log p, which changes nothing about the posterior, and it is {found['accept_shifted']:g}. "
        '`scale="noise"` measures by the spread of the draws instead.'
    )


def lucky(seeds: int) -> Evidence:
    """Look again at what a run reported."""
    fits = _runs(NAIVE, seeds)
    reported, fresh = _mean(fits, lambda f: f.reported_elbo), _mean(fits, lambda f: f.elbo.value)
    start = _mean(_runs(NAIVE, seeds, max_steps=1), lambda f: f.elbo.value)
    found = {"reported": reported, "fresh": fresh, "start": start, "runs": seeds}
    return found, (
        f"on (2,2) `yoasovi-naive` reports {number(reported, 0)}, {number(reported - fresh, 0)} nats more than fresh draws "
        f"from its q say ({number(fresh, 0)}); after the first step they said {number(start, 0)}."
    )


def penalty(seeds: int) -> Evidence:
    """Compare the deviance with and without the penalty, and the printed DIC with the printed ELBO."""
    answer = fit(mixture("mixture-2-2", "free"), seed=0, progress=False)
    draws = answer.sample(1000, corrected=False)["mu"]
    likelihood: Any = answer.model.log_marginal
    deviance, dic = -2.0 * float(np.mean(answer.kernels.each_total(likelihood, {"mu": draws}))), answer.dic()
    doubles = [row.dic[0] + 2 * row.elbo[0] for row in PUBLISHED.values() if row.name.startswith("YOASOVI")]
    found = {"deviance": finite(deviance), "dic": finite(dic), "printed_dic_plus_2_elbo": [round(x, 1) for x in doubles]}
    return found, (
        f"the printed DICs of YOASOVI are −2 × the printed ELBO to within {max(map(abs, doubles)):.1f}; at a good q for "
        f"(2,2) −2 E[log likelihood] is {number(deviance)} and the DIC {number(dic)}: a penalty of {number(dic - deviance)} "
        "for four means."
    )


def direction(seeds: int) -> Evidence:
    """Take the mean accepted update at the start, and its angle to the gradient."""
    found = {}
    for label, strictness in (("0.5", 0.5), ("2", 2.0), ("10", 10.0)):
        for centred in (False, True):
            angles = [_cosine(strictness, centred, seed) for seed in range(seeds)]
            found[f"cosine_M_{label}{'_centred' if centred else ''}"] = round(fmean(angles), 3)
    plain = [f"{found[f'cosine_M_{m}']:+.2f}".replace("-", "−") for m in ("0.5", "2", "10")]
    centred_ = [f"{found[f'cosine_M_{m}_centred']:+.2f}".replace("-", "−") for m in ("0.5", "2", "10")]
    return found, (
        "cosine between the mean accepted update of the means of q and the exact gradient, at the start of (2,2): "
        f"{', '.join(plain)} for M = 0.5, 2, 10; with `centered=True` {', '.join(centred_)}."
    )


def quasi(seeds: int) -> Evidence:
    """Compare ten plain draws with ten points of a Sobol sequence."""
    plain, sobol = (_noise(draws) for draws in (MonteCarlo(10), Sobol(10)))
    name, (rmse, _), _ = LATER[TEN]
    found = {"gradient_variance_plain": finite(plain), "gradient_variance_sobol": finite(sobol), "printed_rmse": rmse}
    return found, (
        f"at the start of (2,2), labels summed out, the gradient of ten Sobol points has {sobol / plain:.2f} of the "
        f"variance of ten plain draws: not the same method. Compare the author's {name} with `{TEN}` among the networks."
    )


def _cosine(strictness: float, centred: bool, seed: int, draws: int = 10_000) -> float:
    model = mixture("mixture-2-2", "paper")
    family = choose_family(model, NAIVE, "auto")[0]
    params = family.init(model, own_start(model, seed, 0))
    shape = (draws // 1000, 1000, family.noise_size(model.density))
    noise = family.noise(open_uniform(stream(seed, Purpose.CHAIN), shape))
    static = (model.density, family, model.exact_elbo)
    return float(call(Clock(), _angle, static, model.inputs, params, noise, strictness, float(centred)))


def _angle(density, family, exact_elbo, inputs, params, noise, strictness, centred):
    problem = Problem(density, family, inputs)
    reference = jnp.mean(jax.lax.map(lambda rows: look(problem, params, rows).elbo, noise))

    def update(rows):
        seen = look(problem, params, rows)
        chance = jnp.clip(Naive().probability(strictness * (seen.elbo - reference) / jnp.abs(reference)), 0.0, 1.0)
        weight = chance * (seen.elbo - centred * reference)
        weights = {k: weight.reshape(-1, *[1] * (p.ndim - 1)) for k, p in seen.pieces.items()}
        return score_direction(problem, params, seen, weights)["mu"]["mean"]

    mean = jnp.mean(jax.lax.map(update, noise), 0)
    true = jax.grad(lambda p: exact_elbo(p))(params)["mu"]["mean"]
    return jnp.sum(mean * true) / jnp.sqrt(jnp.sum(mean**2) * jnp.sum(true**2))


def _noise(draws: Any) -> float:
    model = mixture("mixture-2-2", "marginal")
    family = choose_family(model, method("advi"), "mean_field")[0]
    centre = np.ravel(own_start(model, 0, 0)["mu"])
    params = family.init(centre, np.full_like(centre, 0.3), stream(0, Purpose.LOADINGS))
    noise = family.noise(draws.points(stream(0, Purpose.CHAIN), 2000, family.noise_size(model.density)))
    return float(call(Clock(), _variance, (model.density, family), model.inputs, params, noise))


def _variance(density, family, inputs, params, noise):
    problem, gradient = Problem(density, family, inputs), Reparam()
    return jnp.sum(jnp.var(jax.lax.map(lambda rows: gradient.evaluate(problem, params, rows).gradient.mean, noise), 0))


# ---- the list --------------------------------------------------------------------------------------------


class Erratum(NamedTuple):
    """What is printed, what holds, and the function that shows it."""

    printed: str
    holds: str
    evidence: Callable[[int], Evidence]


_LIST = (
    Erratum("acceptance by (L_t − L_{t−1})/L_{t−1}", "L is negative, so the sign is wrong: divide by abs(L_ref)", sign),
    Erratum("L_0 = −∞", "undefined in that ratio: the first draw is accepted", first_draw),
    Erratum("L_{t−1} after a refusal", "the last accepted value", yardstick),
    Erratum("Var(L_t) = −L_{t−1}/M", "an exponential of rate M/abs(L) has an SD of abs(L)/M", scale),
    Erratum("ν < patience in the algorithms, ν > patience in the text", "stop when ν reaches patience", patience),
    Erratum("“within 1 to 2 minutes of runtime”", "seconds", minutes),
    Erratum("the ratio, where L is near 0 or positive", "it changes with any constant in log p; floored here", units),
    Erratum("the ELBO reached", "a lucky draw, kept: only fresh draws tell what q is worth", lucky),
    Erratum("DIC", "what is printed is −2 E[log likelihood]; a DIC adds p_D, and sums labels out", penalty),
    Erratum(
        "accepted draws are weighted by L_t",
        "with M above 1 to 2 the mean update points away from the gradient; weight by L_t − L_ref",
        direction,
    ),
    Erratum("QMCVI in the author's later Python", "its override is never called: it is ten-draw ADVI", quasi),
)
ERRATA = dict(enumerate(_LIST, 1))


def tasks(quick: bool, seeds: int) -> list[Task]:
    """Give one row per erratum."""
    return [Task("errata", "erratum", str(i), (0,), (("seeds", seeds),)) for i in ERRATA]


def measure(task: Task, seed: int) -> Row:
    """Gather the evidence for one erratum."""
    found, sentence = ERRATA[int(task.method)].evidence(task.setting("seeds"))
    return {"found": found, "evidence": sentence}


def report(rows: list[Row], out: Path, command: str) -> list[Table]:
    """Write the list as CSV and JSON, and give it for people."""
    lines = [
        {"number": int(row["method"]), "printed": ERRATA[int(row["method"])].printed,
         "holds": ERRATA[int(row["method"])].holds, "evidence": row["evidence"]}
        for row in rows
    ]  # fmt: skip
    write_csv(out / "errata.csv", lines)
    write_json(out / "errata.json", command, [line | {"found": row["found"]} for line, row in zip(lines, rows, strict=True)])
    return [table(lines)]


def table(lines: list[Row]) -> Table:
    """Give the list for people."""
    cells = [(str(x["number"]), x["printed"], x["holds"], x["evidence"]) for x in lines]
    return Table("Errata", ("#", "the paper", "what holds", "evidence"), cells)
