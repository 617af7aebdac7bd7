"""The page, the tables and the figure, all from bench.json: no figure in them is typed by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from yoasovi.bench.judged import GOLD, MEAN, OURS, SVI, Race, middle_of_all, middle_ratio, races, wins
from yoasovi.bench.peers import MARKS, PEERS, STEPS, STOPS
from yoasovi.bench.posteriors import POSTERIORS
from yoasovi.experiments import drawing
from yoasovi.experiments.files import Row, write as write_file
from yoasovi.experiments.rows import Table, number

_OFF = 30  # sds; what is further off is drawn there

_MEANING = f"""\
Every row is a process of its own. *Cold* is from the first import to the answer, compiling included, with the data in
memory and no compiled JAX program on disk; *warm* is the same again in the same process, with everything kept that can be
(NumPyro's and BlackJAX's loops are compiled once; `pm.fit` compiles again, from PyTensor's own cache of C code if there
is one). An answer is a fitted q, or NUTS's draws; the verdict's time is not in it. Peers run in their libraries' default
precision, float32 under JAX, but for the fixed draws, which L-BFGS needs in float64; `yoasovi` has float64 on CPUs.

The ELBO is on fresh draws in float64, by the same code and log density for all peers; `yoasovi` gives its own, also on
fresh draws. *Mean error* is the largest error of a posterior mean in posterior sds, *sd ratios* the smallest and largest
sd over that of a long run of NUTS. *NUTS quality*: every mean within {MEAN} sd, every sd within 25%, the median sd within
10%. *To a nat* is the time (cold, warm) to within 1 nat of the best ELBO that any row of the same family reached on the
posterior. SVI is looked at after {", ".join(f"{x:,}" for x in MARKS)} steps, and its answer is the one after
{STEPS:,}; `yoasovi` is run again and ended after each of its first {STOPS} windows. So these times are those of somebody
who knew when to stop, which SVI does not say, and for which `yoasovi` takes the rest of its time. Rows that are not looked
at along the way have the time of their end. Gradients of NUTS are those of the draws it kept.
*Near its family's best*: on how many posteriors it gets there.

Means and sds of `yoasovi` are those of `fit.sample`, importance-corrected where it does that by itself; of everything
else, the paper's methods too, they are those of the answer's own draws (`multipathfinder` weighs its draws by PSIS, so
it has no q and no ELBO)."""


def write(out: Path) -> list[Table]:
    """Write page and figure from the folder's bench.json; give the tables that a terminal shows."""
    try:
        found = json.loads((out / "bench.json").read_text())
    except FileNotFoundError:
        raise ValueError(f"`out` of `bench` must be a folder with a bench.json; got {out}.") from None
    rows = found["rows"]
    raced = races(rows)
    figure = _figure(rows, out)
    short, beside = _by_peer(rows), _beside_svi(raced)
    in_front = wins(rows, raced)
    parts = [
        "# How fast, and how good", _opening(found, out.name), "## In short", _listed(_in_short(rows, raced)),
        short.markdown(), "## Where others do better",
        _listed(in_front) or "Nowhere among these rows, by the measures below.",
        "## What the figures mean", _MEANING,
        *(["## Time to within a nat, beside SVI", beside.markdown()] if raced else []),
        *([f"![Mean error against cold seconds, by posterior]({out.name}/bench.svg)"] if figure else []),
        "## Not run", _listed(_not_run(found)) or "Everything was run.",
        "## Every posterior", *(_of_posterior(name, found) for name in _names(rows)),
    ]  # fmt: skip
    write_file(out.with_name(out.name + ".md"), "\n\n".join(part.strip() for part in parts if part.strip()) + "\n")
    notes = (*_in_short(rows, raced), *in_front, *found["left_out"], *_failed(rows))
    return [*([beside] if raced else []), replace(short, notes=notes)]


def _listed(lines: list[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _names(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(row["problem"] for row in rows))


def _opening(found: dict[str, Any], folder: str) -> str:
    machine = found["machine"]
    libraries = ", ".join(f"{k} {v}" for k, v in found["versions"].items())
    side, alike = "one row at a time", ""
    if found["jobs"] > 1:
        side = f"{found['jobs']} rows at a time, each on one core of its own with one thread"
        alike = " So times compare; methods that can use several cores would gain by a machine to themselves."
    return (
        f"This library beside what people would use instead, by\n\n```sh\n{found['command']}\n```\n\non {machine['cores']} "
        f"cores ({machine['processor']}, {machine['system']}), {side}, {libraries}.{alike} All figures are in "
        f"[bench.json]({folder}/bench.json), one seed each."
    )


def _in_short(rows: list[Row], raced: list[Race]) -> list[str]:
    total = len(_names(rows))
    good = {name: sum(bool(x.get("at_nuts")) for x in rows if x["method"] == name) for name in PEERS}
    ran = {row["method"] for row in rows}
    lines = []
    others = {k: v for k, v in good.items() if k in ran and not k.startswith(OURS) and k != GOLD}
    if OURS in ran and others:
        best = max(others.values())
        who = "none of the others on any"
        if best:
            names = [k for k, v in others.items() if v == best]
            who = f"the best of the others, {' and '.join(names)}, on {best}"
        gold = f"; NUTS itself on {good[GOLD]}" if GOLD in ran else ""
        lines.append(f"At NUTS quality: `{OURS}` on {good[OURS]} of {total} posteriors; {who}{gold}.")
    for what in dict.fromkeys(race.what for race in raced):
        these = [race for race in raced if race.what == what]
        for warm in (True, False):
            when, first = "warm" if warm else "cold", sum(race.won(warm) for race in these)
            line = f"{_who(what)}, {when}: within a nat sooner on {first} of {len(these)} posteriors"
            if (known := middle_ratio(these, warm)) is not None:
                line += (
                    f"; where both get there, {known[2]}, in {number(known[0], 2)} times the fastest SVI's time in the "
                    f"median, {number(known[1], 2)} at worst"
                )
            overall = middle_of_all(these, warm)
            if overall is not None and np.isfinite(overall) and (known is None or known[2] < len(these)):
                line += f"; if never counts as forever, {number(overall, 2)} in the median of all"
            lines.append(f"{line}.")
        for who, side in (("SVI", "theirs"), (f"`{OURS}`", "ours")):
            never = [race.posterior for race in these if getattr(race, side)[1] is None]
            lines += [f"{_who(what)}: {who} never came within a nat on {', '.join(never)}."] if never else []
    return lines


def _who(what: str) -> str:
    return "The default against any SVI" if what == "default" else f"With the same family, {what.replace('_', ' ')}"


def _by_peer(rows: list[Row]) -> Table:
    cells = []
    for name in [x for x in PEERS if any(row["method"] == x for row in rows)]:
        here = [row for row in rows if row["method"] == name]
        known = lambda key, here=here: [x[key] for x in here if x.get(key) is not None]
        middle = lambda key, known=known: median(known(key)) if known(key) else None
        near = sum(row.get("warm_to_nat") is not None for row in here)
        cells.append((
            name, str(len(here)), str(sum(bool(x.get("at_nuts")) for x in here)), str(near) if name != GOLD else "–",
            number(middle("cold_s"), 1), number(middle("warm_s"), 2), number(middle("gradients"), 0),
            number(middle("mean_error"), 2), str(sum("error" in x for x in here)), PEERS[name].about,
        ))  # fmt: skip
    head = (
        "method", "posteriors", "NUTS quality", "near its family's best", "cold s", "warm s", "gradients", "mean error",
        "failed", "settings",
    )  # fmt: skip
    return Table("All posteriors: counts, and medians", head, cells, (), ("settings", "gradients"))


def _beside_svi(raced: list[Race]) -> Table:
    time = lambda pair: " / ".join("never" if x is None else f"{x:.2g}" for x in pair)
    cells = [
        (
            race.posterior, race.what.replace("_", " "), number(race.bar, 1), time(race.ours), time(race.theirs),
            race.setting.removeprefix(SVI), number(race.ratio(False), 2), number(race.ratio(True), 2),
        )
        for race in raced
    ]  # fmt: skip
    head = ("posterior", "what", "ELBO to reach", "ours, cold / warm s", "SVI's", "its setting", "cold ratio", "warm ratio")
    return Table("Time to within a nat, beside the fastest SVI setting", head, cells, (), ("ELBO to reach",))


def _of_posterior(name: str, found: dict[str, Any]) -> str:
    cells = []
    for row in [x for x in found["rows"] if x["problem"] == name]:
        if "error" in row:
            cells.append((row["method"], f"failed: {row['error']}", *("–",) * 9))
            continue
        elbo = "–" if row["elbo"] is None else f"{number(row['elbo'], 2)} ± {number(row['elbo_se'], 2)}"
        ratios = f"{number(row['sd_low'], 2)}–{number(row['sd_high'], 2)}" if row["sd_low"] is not None else "–"
        to_nat = "–" if row["elbo"] is None else "never"
        if row["warm_to_nat"] is not None:
            to_nat = f"{row['cold_to_nat']:.2g}, {row['warm_to_nat']:.2g}"
        cells.append((
            row["method"], row["family"].replace("_", " "), number(row["cold_s"], 1), f"{row['warm_s']:.2g}",
            number(row["values"], 0), number(row["gradients"], 0), elbo, number(row["mean_error"], 2), ratios,
            row["verdict"] or "–", to_nat,
        ))  # fmt: skip
    head = (
        "method", "family", "cold s", "warm s", "values", "gradients", "ELBO", "mean error", "sd ratios", "verdict",
        "to a nat",
    )  # fmt: skip
    known, posterior = found["references"].get(name, {}), found["posteriors"][name]
    if known.get("rhat") is not None:
        made = f"Reference: R-hat {known['rhat']:.3f} at most, effective size {known['ess']:,.0f} at least."
    else:
        made = f"No reference: {known.get('error')}."
    about = f"{posterior['about'][0].upper()}{posterior['about'][1:]}; d = {posterior['dim']:,}. {made}"
    return f"### {name}\n\n{about}\n\n{Table(name, head, cells).markdown()}"


def _not_run(found: dict[str, Any]) -> list[str]:
    rows = found["rows"]
    left = [x for x in POSTERIORS if x not in _names(rows)]
    peers = [x for x in PEERS if x not in {row["method"] for row in rows}]
    whole = [f"Posteriors that have no row here: {', '.join(left)}."] if left else []
    whole += [f"Methods that have no row here: {'; '.join(peers)}."] if peers else []
    whole += [f"Cut off: {found['asked'] - len(rows)} of {found['asked']} rows."] if len(rows) < found["asked"] else []
    return [*found["left_out"], *whole, *_failed(rows)]


def _failed(rows: list[Row]) -> list[str]:
    return [f"Failed: {row['problem']}, {row['method']}: {row['error']}" for row in rows if "error" in row]


def _figure(rows: list[Row], out: Path) -> bool:
    """Draw mean errors against cold seconds, a panel per posterior; tell whether there was anything to draw."""
    names = [x for x in _names(rows) if any(row["problem"] == x and row.get("mean_error") for row in rows)]
    if not names:
        return False
    columns = min(4, len(names))
    lines = -(-len(names) // columns)
    figure, axes = drawing.panels(lines, columns, height=1.0 + 1.7 * lines, squeeze=False, sharex=True, sharey=True)
    starts = {SVI: "NumPyro SVI", "BlackJAX": "BlackJAX", "PyMC": "PyMC", f"{OURS}, ": f"{OURS}, one family"}
    kind = lambda x: x if x in (OURS, GOLD) else next((v for k, v in starts.items() if x.startswith(k)), "other")
    shown = [OURS, GOLD, *starts.values(), "other"]
    times = [row["cold_s"] for row in rows if row.get("mean_error")]
    low, high = min(times) / 1.5, max(times) * 1.5
    for place, axis in zip(names, axes.flat, strict=False):
        dim = next(row["dim"] for row in rows if row["problem"] == place)
        for i, who in enumerate(shown):
            here = [x for x in rows if x["problem"] == place and x.get("mean_error") and kind(x["method"]) == who]
            axis.scatter(
                [x["cold_s"] for x in here], [min(x["mean_error"], _OFF) for x in here], s=16, label=who,
                color=drawing.COLOURS[i], marker=drawing.MARKERS[i], zorder=3 if who == OURS else 2,
            )  # fmt: skip
        axis.axhline(MEAN, color="0.7", lw=0.8, zorder=0)
        axis.set(xscale="log", yscale="log", ylim=(0.004, 1.6 * _OFF), title=f"{place} (d = {dim:,})")
        axis.set_xticks([x for x in (1, 3, 10, 30, 100, 300, 1000) if low <= x <= high], minor=False)
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter("")
    for axis in list(axes.flat)[len(names) :]:
        axis.set_visible(False)
    figure.supxlabel("seconds from a cold start", fontsize=8)
    figure.supylabel(f"largest error of a mean (posterior sds; {_OFF} and beyond at the top)", fontsize=8)
    figure.legend(*axes.flat[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(shown))
    drawing.save(figure, out / "bench")
    return True
