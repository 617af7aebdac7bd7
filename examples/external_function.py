"""A model that is only a Python function: the settings of an instrument, from readings and a table of its response.

The function looks numbers up in a table with NumPy; nothing of it can be traced or differentiated. Its values alone are
used, one per iteration, and q takes the unknowns to be independent. They are not: a higher gain goes with a lower offset. So
the draws are corrected by importance resampling, with more values of the function, here a cheap one. The model is linear in
what is unknown: its posterior has a closed form to compare with.
"""

import numpy as np

import yoasovi as yo

TABLE = np.array([0.0, 0.8, 1.3, 1.5, 1.6, 1.62])  # the instrument's response at voltages 0, 1, ..., 5
NOISE = 0.2


def response(voltage):
    return np.interp(voltage, np.arange(len(TABLE)), TABLE)


def simulate(seed=0, n=40):
    rng = np.random.default_rng(seed)
    voltage = rng.uniform(0, 5, n)
    return voltage, 0.3 + 2.0 * response(voltage) + NOISE * rng.normal(size=n)


def exact(voltage, reading):
    """Posterior of (offset, gain) under N(0, 10^2) priors."""
    X = np.column_stack([np.ones(len(voltage)), response(voltage)])
    covariance = np.linalg.inv(X.T @ X / NOISE**2 + np.eye(2) / 100.0)
    return covariance @ X.T @ reading / NOISE**2, np.sqrt(np.diag(covariance))


def main():
    voltage, reading = simulate()

    def log_p(x):
        offset, gain = x
        misfit = (reading - offset - gain * response(voltage)) / NOISE
        return -0.5 * np.sum(misfit**2) - 0.5 * np.sum((x / 10.0) ** 2)

    fit = yo.fit(yo.Model.external(log_p, 2), seed=0)
    mean, sd = exact(voltage, reading)
    raw, found = fit.params.mean, fit.sample(2000, corrected=True)["x"].mean(0)
    print(f"offset and gain {found} (uncorrected {raw}), exactly {mean} ± {sd}; {fit.num_values:,} values of the function")
    assert fit.converged
    assert np.all(np.abs(found - mean) < 0.1 * sd)


if __name__ == "__main__":
    main()
