"""What rows say beside each other: errors against the reference, times to within a nat, and who was first."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

import numpy as np

from yoasovi.bench.peers import MENDED
from yoasovi.bench.posteriors import Posterior
from yoasovi.experiments.files import Row

NAT = 1.0
MEAN, SD, MIDDLE_SD = 0.1, 1.25, 1.1  # NUTS quality: sds off the mean, and factors of every sd and of the median sd
OURS, GOLD, SVI = "yoasovi", "NUTS", "SVI "
LIKE = {"mean_field": "yoasovi, mean-field", "full_rank": "yoasovi, full-rank"}


def judged(rows: list[Row], references: dict[str, Row], known: dict[str, Posterior]) -> list[Row]:
    """Give the rows with their errors and their times to within a nat of the best ELBO that their family reached."""
    out = []
    for row in rows:
        kept = {k: v for k, v in row.items() if k not in ("study", "settings", "yoasovi", "jax", "mean", "sd")}
        out.append({**kept, "dim": known[row["problem"]].dim, **_errors(row, references.get(row["problem"], {}))})
    best: dict[tuple[str, str], float] = {}
    for row in out:
        if (top := top_elbo(row)) is not None and not row["family"].endswith(MENDED):
            key = row["problem"], group(row["family"])
            best[key] = max(top, best.get(key, top))
    for row in out:
        bar = best.get((row["problem"], group(row.get("family", ""))), top_elbo(row))
        row["best_elbo"] = bar
        row["cold_to_nat"], row["warm_to_nat"] = (None, None) if bar is None else reached(row, bar)
    return out


def group(family: str) -> str:
    """Give what a family is compared with: a covariance with structure is a covariance."""
    plain = family.removesuffix(MENDED)
    return "full_rank" if plain in ("low_rank", "arrow") else plain


def top_elbo(row: Row) -> float | None:
    """Give the highest ELBO of a row, at its end or along the way."""
    known = [x for x in (row.get("elbo"), *(mark[3] for mark in row.get("marks", []))) if x is not None]
    return max(known, default=None)


def best_of(rows: list[Row], families: tuple[str, ...]) -> float | None:
    """Give the highest ELBO that rows of these families reached; mended forms have others, and set no bar."""
    plain = [row for row in rows if not row.get("family", "").endswith(MENDED) and group(row.get("family", "")) in families]
    return max([top for row in plain if (top := top_elbo(row)) is not None], default=None)


def reached(row: Row, bar: float) -> tuple[float | None, float | None]:
    """Give the cold and the warm time at which a row was within a nat of `bar` first, along the way or at its end."""
    end = [0, row.get("cold_s"), row.get("warm_s"), row.get("elbo")]
    near = [mark for mark in (*row.get("marks", ()), end) if mark[3] is not None and mark[3] >= bar - NAT]
    return (near[0][1], near[0][2]) if near else (None, None)


def _errors(row: Row, known: Row) -> Row:
    if "mean" not in row or "mean" not in known:
        return {"mean_error": None, "sd_low": None, "sd_high": None, "at_nuts": None}
    names = sorted(set(known["mean"]) & set(row["mean"]))
    flat = lambda part: np.concatenate([np.asarray(part[k], float) for k in names])
    with np.errstate(all="ignore"):
        error = np.abs(flat(row["mean"]) - flat(known["mean"])) / flat(known["sd"])
        ratio = flat(row["sd"]) / flat(known["sd"])
    if not (np.isfinite(error).all() and np.isfinite(ratio).all()):
        return {"mean_error": None, "sd_low": None, "sd_high": None, "at_nuts": False}
    low, middle, high = float(ratio.min()), float(np.median(ratio)), float(ratio.max())
    near = low >= 1 / SD and high <= SD and 1 / MIDDLE_SD <= middle <= MIDDLE_SD
    return {
        "mean_error": round(float(error.max()), 4), "sd_low": round(low, 4), "sd_high": round(high, 4),
        "at_nuts": bool(near and error.max() <= MEAN),
    }  # fmt: skip


# ---- beside SVI ------------------------------------------------------------------------------------------


class Race(NamedTuple):
    """Times to within a nat of one bar on one posterior; None: never."""

    posterior: str
    what: str
    bar: float
    ours: tuple[float | None, float | None]  # cold, warm
    theirs: tuple[float | None, float | None]  # the fastest SVI setting by the warm time
    setting: str

    def ratio(self, warm: bool) -> float | None:
        """Give our time over theirs."""
        ours, theirs = self.ours[warm], self.theirs[warm]
        return None if ours is None or not theirs else ours / theirs

    def won(self, warm: bool) -> bool:
        """Say whether we were first; who never gets there is not."""
        ours, theirs = self.ours[warm], self.theirs[warm]
        return ours is not None and (theirs is None or ours < theirs)


def races(rows: list[Row]) -> list[Race]:
    """Give, for every posterior, the default against any SVI, and both families against SVI with the same one.

    The bar is the best ELBO that any row of the family reached; for the default, that any normal q reached.
    """
    found = []
    for name in dict.fromkeys(row["problem"] for row in rows):
        here = [row for row in rows if row["problem"] == name]
        for what in ("default", *LIKE):
            peer = LIKE.get(what, OURS)
            mine = next((row for row in here if row["method"] == peer and row.get("elbo") is not None), None)
            others = [row for row in here if row["method"].startswith(SVI) and top_elbo(row) is not None]
            if what in LIKE:
                others = [row for row in others if row["family"] == what]
            if mine is None or not others:
                continue
            bar = best_of(here, (what,) if what in LIKE else tuple(LIKE))
            assert bar is not None  # SVI has one
            times = {row["method"]: reached(row, bar) for row in others}
            setting = min(times, key=lambda k: (times[k][1] is None, times[k][1] or 0.0))
            found.append(Race(name, what, round(bar, 3), reached(mine, bar), times[setting], setting))
    return found


def middle_ratio(found: list[Race], warm: bool) -> tuple[float, float, int] | None:
    """Give median and largest ratio, and of how many; None where there are none."""
    ratios = [x for race in found if (x := race.ratio(warm)) is not None]
    return (median(ratios), max(ratios), len(ratios)) if ratios else None


def middle_of_all(found: list[Race], warm: bool) -> float | None:
    """Give the median ratio over all races that anybody ends; who never gets there takes forever."""
    ended = [(race.ours[warm], race.theirs[warm]) for race in found if any(x[warm] for x in (race.ours, race.theirs))]
    ratios = [np.inf if not ours else 0.0 if not theirs else ours / theirs for ours, theirs in ended]
    return median(ratios) if ratios else None


def wins(rows: list[Row], found: list[Race]) -> list[str]:
    """Say plainly where something else than the default does better."""
    out = []
    for name in dict.fromkeys(row["problem"] for row in rows):
        here = {row["method"]: row for row in rows if row["problem"] == name}
        mine = here.get(OURS)
        if mine is None:
            continue
        if "error" in mine:
            out.append(f"{name}: the default gave no answer: {mine['error']}.")
            continue
        others = [row for peer, row in here.items() if not peer.startswith(OURS) and peer != GOLD]
        mine_elbo = -np.inf if mine["elbo"] is None else mine["elbo"]
        if above := [x for x in others if x.get("elbo") is not None and x["elbo"] > mine_elbo + NAT]:
            top = max(above, key=lambda x: x["elbo"])
            out.append(f"{name}: {top['method']} ends {top['elbo'] - mine_elbo:.1f} nats higher than the default.")
        if not mine.get("at_nuts") and (good := [x["method"] for x in others if x.get("at_nuts")]):
            out.append(f"{name}: at NUTS quality {_and(good)}, the default not.")
        if (nuts := here.get(GOLD)) and nuts.get("at_nuts"):
            if nuts["cold_s"] < mine["cold_s"]:
                times = f"{nuts['cold_s']:.1f} s from a cold start, the default {mine['cold_s']:.1f} s"
                out.append(f"{name}: NUTS takes {times}.")
            if not mine.get("at_nuts"):
                out.append(f"{name}: NUTS is at its own quality, the default not.")
        out += _sooner(name, mine, others, best_of(list(here.values()), tuple(LIKE)))
    for race in [race for race in found if race.what in LIKE]:
        for warm in (True, False):
            ours, theirs, when = race.ours[warm], race.theirs[warm], "warm" if warm else "cold"
            if theirs is not None and (ours is None or ours > theirs):
                said = "never gets there" if ours is None else f"takes {ours:.2g} s"
                who = f"`{LIKE[race.what]}` {said}"
                out.append(f"{race.posterior}: {race.setting} is within a nat after {theirs:.2g} s ({when}), {who}.")
    return out


def _sooner(name: str, mine: Row, others: list[Row], bar: float | None) -> list[str]:
    """Say who is within a nat of the best normal q sooner than the default."""
    if bar is None:
        return []
    out = []
    for warm in (True, False):
        ours = reached(mine, bar)[warm]
        times = {row["method"]: x for row in others if (x := reached(row, bar)[warm]) is not None}
        ahead = sorted((x, peer) for peer, x in times.items() if ours is None or x < ours)
        if ahead:
            said = "never gets there" if ours is None else f"takes {ours:.2g} s"
            more = f" ({len(ahead)} methods are sooner than the default)" if len(ahead) > 1 else ""
            when = "warm" if warm else "cold"
            first = f"{ahead[0][1]} is within a nat of the best normal q after {ahead[0][0]:.2g} s ({when})"
            out.append(f"{name}: {first}, the default {said}{more}.")
    return out


def _and(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]} are" if len(names) > 1 else f"{names[0]} is"
