"""Draw docs/method.svg: ELBO on fresh draws against gradients, the default method beside Adam at four rates.

python benchmarks/figure_method.py
"""

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np

import yoasovi as yo

FLOOR = 1e-2  # nats: the draws that an ELBO is estimated on can hardly tell less


def eight_schools():
    y, sd = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
    return yo.models.HierarchicalNormal(y, sd=sd)


def regression(n=400, seed=1):
    """Raw units: one column in thousands, one around zero."""
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.normal(3000, 400, n), rng.normal(0, 0.02, n)])
    y = 50 + 0.01 * X[:, 0] + 200 * X[:, 1] + rng.normal(0, 5, n)
    noise = dict(noise_prior="half_cauchy", noise_scale=10.0)
    return yo.models.LinearRegression(X, y, prior_scale=1000.0, autoscale=False, **noise)


def at_most(axis, floor):
    """Name the lowest tick as what it is: all that lies at the floor or below it."""
    low, high = floor, axis.get_ylim()[1]
    decades = [e for e in range(-6, 16) if floor * 1.5 < 10.0**e <= high]
    ticks = [floor, *(10.0**e for e in decades[len(decades) // 8 :: len(decades) // 8 + 1])]
    axis.set_yticks(
        ticks, [f"≤ {floor:g}", *(f"{t:,.10g}" if t < 1e4 else f"$10^{{{round(np.log10(t))}}}$" for t in ticks[1:])]
    )
    axis.minorticks_off()
    axis.set_ylim(low / 1.4, high)


def main():
    plt.rcParams.update({"font.size": 12, "axes.spines.top": False, "axes.spines.right": False, "svg.fonttype": "path"})
    figure, axes = plt.subplots(1, 2, figsize=(8.5, 4.2), layout="constrained")
    colours = ["#999999", "#E69F00", "#56B4E9", "#009E73"]  # Okabe and Ito's, told apart by all
    panels = {"eight schools, non-centred (10)": eight_schools(), "regression in raw units (4)": regression()}
    for axis, (title, model) in zip(axes, panels.items(), strict=True):
        best = yo.fit(model, seed=99).elbo.value
        for rate, colour in zip((0.001, 0.01, 0.1, 0.5), colours, strict=True):
            budgets = (30, 100, 300, 1000, 3000, 10_000)
            fits = [yo.fit(model, "advi", family="full_rank", seed=0, learning_rate=rate, max_steps=n) for n in budgets]
            gaps = [max(best - f.elbo.value, FLOOR) for f in fits]
            axis.plot(budgets, gaps, color=colour, marker="o", ms=3, lw=1.2, label=f"Adam {rate:g}")
        for seed in range(5):
            fit = yo.fit(model, seed=seed)
            kept = fit.trace["accepted"]
            warm = fit.num_gradients - fit.num_steps
            gaps = np.maximum(best - np.maximum.accumulate(fit.trace["elbo"][kept]), FLOOR)
            label, end = ("yoasovi, 5 seeds", "fit ended") if seed == 0 else (None, None)
            axis.plot(fit.trace["step"][kept] + warm, gaps, color="#D55E00", lw=1.4, alpha=0.8, label=label)
            axis.plot(fit.num_gradients, max(best - fit.elbo.value, FLOOR), "s", color="#D55E00", ms=6, label=end)
        axis.set(xscale="log", yscale="log", xlabel="gradients of log p")
        axis.set_title(title, fontsize=12)
        at_most(axis, FLOOR)
    axes[0].set_ylabel("nats below the best ELBO known")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=11)
    figure.savefig("docs/method.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
