"""A density in C, called through ctypes: log p and its gradient at many points in one call.

Rainfall that is zero on dry days: y = 0 with probability 1 - p, else log-normal. The C file is compiled with the system's
compiler (cc) when the example runs. Unknown are logit p, mu and log sigma, all real; the log Jacobians of the first and the
last are part of log p. The posterior of p has a closed form, to compare with.
"""

import ctypes
import subprocess
import tempfile
from pathlib import Path

import numpy as np

import yoasovi as yo

SOURCE = r"""
#include <math.h>

/* At n points x[i] = (logit p, mu, log sigma): value[i] and slope[3 * i]; wet days' logarithms by count, sum and square. */
void rain(long n, const double *x, double dry, double wet, double sum, double square, double *value, double *slope) {
  for (long i = 0; i < n; ++i, x += 3, slope += 3) {
    const double p = 1 / (1 + exp(-x[0])), mu = x[1], s2 = exp(2 * x[2]);
    const double misfit = square - 2 * mu * sum + wet * mu * mu;
    value[i] = (wet + 1) * log(p) + (dry + 1) * log1p(-p)                        /* p uniform, with its Jacobian */
             - wet * x[2] - misfit / (2 * s2) - 0.5 * mu * mu / 100              /* mu ~ N(0, 10^2) */
             - 0.5 * s2 + x[2];                                                  /* sigma ~ half-normal, its Jacobian */
    slope[0] = (wet + 1) * (1 - p) - (dry + 1) * p;
    slope[1] = (sum - wet * mu) / s2 - mu / 100;
    slope[2] = -wet + misfit / s2 - s2 + 1;
  }
}
"""


def compiled():
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder) / "rain.c", Path(folder) / "rain.so"
        source.write_text(SOURCE)
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", str(source), "-o", str(library), "-lm"], check=True)
        rain = ctypes.CDLL(str(library)).rain
    doubles = np.ctypeslib.ndpointer(np.float64, flags="C_CONTIGUOUS")
    rain.argtypes = [ctypes.c_long, doubles, *[ctypes.c_double] * 4, doubles, doubles]
    rain.restype = None
    return rain


def main():
    rng = np.random.default_rng(0)
    y = np.where(rng.random(120) < 0.35, rng.lognormal(1.0, 0.6, 120), 0.0)
    logs = np.log(y[y > 0])
    wet, dry, rain = len(logs), len(y) - len(logs), compiled()

    def log_p(x):  # (n, 3) to (n,) and (n, 3)
        value, slope = np.empty(len(x)), np.empty_like(x)
        rain(len(x), x, dry, wet, logs.sum(), logs @ logs, value, slope)
        return value, slope

    def on_their_own_scale(params, data):
        logit, mu, log_sigma = params["x"]
        return {"p": 1 / (1 + np.exp(-logit)), "median": np.exp(mu), "sigma": np.exp(log_sigma)}

    model = yo.Model.external(log_p, 3, gradient=True, batched=True, deterministics=on_their_own_scale, name="rain")
    fit = yo.fit(model, seed=0)
    draws = fit.sample(20_000)
    exact = (wet + 1) / (len(y) + 2)
    print(fit)
    print({name: round(float(x.mean()), 3) for name, x in draws.items() if name != "x"}, f"p exactly {exact:.3f}")
    assert fit.converged and fit.family.name == "full_rank" and fit.diagnose().grade == "good"
    assert abs(draws["p"].mean() - exact) < 0.05 * draws["p"].std()


if __name__ == "__main__":
    main()
