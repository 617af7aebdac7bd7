"""A Bayesian network 10-50-50-1 on 400 observations: ELBO on fresh draws and gradients spent, with no setting at all.

python benchmarks/network.py [--seeds 10]
"""

import argparse

import numpy as np

import yoasovi as yo
from yoasovi.experiments import simulate

options = argparse.ArgumentParser()
options.add_argument("--seeds", type=int, default=10)
options = options.parse_args()

model = yo.models.NeuralNetwork(*simulate.network())
fits = []
print("| seed | ELBO | gradients | values | stopped | run s |\n|---|---|---|---|---|---|")
for seed in range(options.seeds):
    fit = yo.fit(model, seed=seed, max_steps=39_800, progress=False)
    fits.append(fit)
    stop = fit.stop_reason.name.lower()
    cells = seed, fit.elbo, f"{fit.num_gradients:,}", f"{fit.num_values:,}", stop, f"{fit.seconds.run:.0f}"
    print("|", " | ".join(map(str, cells)), "|", flush=True)
elbos, spent = [f.elbo.value for f in fits], [f.num_gradients for f in fits]
print(f"\nELBO {np.mean(elbos):,.1f} ± {np.std(elbos):.1f} over seeds, worst {min(elbos):,.1f}.")
print(f"Gradients: median {np.median(spent):,.0f}, most {max(spent):,}.")
