"""The paper's Figure 1: the density it puts on ELBO values, and the probabilities with which its rules accept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from yoasovi.acceptance import Metropolis, Naive
from yoasovi.experiments import drawing
from yoasovi.experiments.files import Row, write_csv, write_json
from yoasovi.experiments.rows import Table

RATES = (0.0005, 0.001, 0.002)  # beta, per nat
REFERENCE, STRICTNESS = -1500.0, 1.5


@dataclass(frozen=True)
class Printed(Naive):
    """Algorithm 1 as printed: M (L_t - L_ref) is divided by L_ref, which is negative, and not by its absolute value."""

    def probability(self, exponent):
        """Give 1 + M (L_t - L_ref)/L_ref, written by the exponent that has |L_ref| in its place."""
        return 1.0 - exponent


RULES: dict[str, Naive | Metropolis] = {"Metropolis": Metropolis(), "naive": Naive(), "naive, as printed": Printed()}


def density(elbo: np.ndarray, rate: float) -> np.ndarray:
    """The negative exponential density beta exp(beta L) of L < 0."""
    return rate * np.exp(rate * elbo)


def probability(rule: Naive | Metropolis, elbo: np.ndarray) -> np.ndarray:
    """Give the probability that a rule accepts a draw of this ELBO, after one of -1,500, with M = 1.5."""
    exponent = STRICTNESS * (elbo - REFERENCE) / abs(REFERENCE)
    return np.clip(np.asarray(rule.probability(exponent), float), 0.0, 1.0)


def curves() -> list[Row]:
    """Give both panels as rows."""
    elbo = np.linspace(-3000.0, 0.0, 301)
    columns = {"elbo": elbo} | {f"density_{rate:g}": density(elbo, rate) for rate in RATES}
    plain = lambda name: name.replace(",", "").replace(" ", "_")
    columns |= {f"accept_{plain(name)}": probability(rule, elbo) for name, rule in RULES.items()}
    return [{k: round(float(v[i]), 8) for k, v in columns.items()} for i in range(len(elbo))]


def report(_: list[Row], out: Path, command: str) -> list[Table]:
    """Write the curves and draw them; there is nothing to run for them."""
    rows = curves()
    write_csv(out / "figure1.csv", rows)
    write_json(out / "figure1.json", command, rows, reference=REFERENCE, strictness=STRICTNESS)
    figure, (left, right) = drawing.panels(1, 2, height=2.8)
    elbo = np.array([row["elbo"] for row in rows])
    for rate, colour, dash in zip(RATES, drawing.COLOURS, drawing.DASHES, strict=False):
        left.plot(elbo, 1000 * density(elbo, rate), color=colour, linestyle=dash, label=f"β = {rate:g} / nat")
    left.set(xlabel="ELBO L (nats)", ylabel="density (per 1,000 nats)", title="negative exponential density")
    drawing.legend_below(left, columns=3)
    for (name, rule), colour, dash in zip(RULES.items(), drawing.COLOURS, drawing.DASHES, strict=False):
        right.plot(elbo, probability(rule, elbo), color=colour, linestyle=dash, label=name)
    right.axvline(REFERENCE, color="0.6", lw=0.8, zorder=0)
    right.annotate(r"$L_\mathrm{ref}$", (REFERENCE, 0.03), xytext=(3, 0), textcoords="offset points", color="0.4")
    right.set(xlabel="ELBO of the next draw (nats)", ylabel="probability of acceptance", ylim=(-0.03, 1.08))
    right.set_title(r"acceptance at $L_\mathrm{ref}$ = −1,500 nats, $M$ = 1.5")
    drawing.legend_below(right, columns=3)
    drawing.save(figure, out / "figure1")
    return []
