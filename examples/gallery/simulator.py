"""A black-box simulator: an epidemic in a boarding school

Boys in bed with influenza, by day, among 763 in an English boarding school in 1978 (British Medical Journal, 4 March
1978). The model is a program: it steps susceptible, infected and recovered through two weeks, and Poisson counts tie it
to the data. Nothing of it is differentiated; the fit uses its values, many at a time. With two unknowns the posterior
can also be summed over a grid, and is compared with that.
"""

import numpy as np
from matplotlib.figure import Figure

import yoasovi as yo

IN_BED = np.array([3, 8, 26, 76, 225, 298, 258, 233, 189, 128, 68, 29, 14, 4])
BOYS, PARTS = 763, 10  # steps in a day


def epidemic(log_rates):
    """Give how many are infected on each day; (S, 2) logarithms of contact and recovery rates per day to (S, 14)."""
    contact, recovery = np.exp(log_rates).T
    well, ill = np.full(len(contact), BOYS - 3.0), np.full(len(contact), 3.0)
    days = []
    for _ in IN_BED:
        days.append(ill)
        for _ in range(PARTS):
            new, gone = contact * well * ill / BOYS / PARTS, recovery * ill / PARTS
            well, ill = np.maximum(well - new, 0.0), np.maximum(ill + new - gone, 1e-9)
    return np.stack(days, 1)


def log_p(log_rates):
    expected = epidemic(log_rates)
    return (IN_BED * np.log(expected) - expected).sum(1) - 0.5 * (log_rates**2).sum(1)


def on_a_grid(mean, sd, size):
    """Means and standard deviations of the posterior, summed over a grid around where the fit says it is."""
    axes = [np.linspace(m - 6 * s, m + 6 * s, size) for m, s in zip(mean, sd, strict=True)]
    points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)
    value = log_p(points)
    p = np.exp(value - value.max())
    p /= p.sum()
    centre = p @ points
    return centre, np.sqrt(p @ (points - centre) ** 2)


def main(small=False):
    fit = yo.fit(yo.Model.external(log_p, 2, batched=True), seed=0)
    draws = fit.sample(1000, corrected=True)["x"]
    mean, sd = on_a_grid(draws.mean(0), draws.std(0), 60 if small else 200)
    off = np.abs(draws.mean(0) - mean) / sd
    contact, recovery = np.exp(draws).T
    ratio = contact / recovery
    print(f"{fit.num_values:,} runs of the simulator; means off by {off.max():.2f} sd of the grid's")
    print(f"one boy infects {ratio.mean():.2f} ± {ratio.std():.2f} others, and is ill for {1 / recovery.mean():.1f} days")
    assert off.max() < 0.25
    assert np.all(np.abs(draws.std(0) / sd - 1.0) < 0.3)

    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    axes.plot(epidemic(draws[:100]).T, color="#0072B2", alpha=0.15, lw=1)
    axes.plot(IN_BED, "o", color="black", ms=4)
    axes.set(xlabel="day", ylabel="boys in bed")
    return figure


if __name__ == "__main__":
    main()
