"""A Stan program, fitted as it is: lines that differ from person to person (examples/slopes.stan).

Needs `pip install "yoasovi[stan]"` and a C++ compiler. The program is compiled once, in a minute or so, and then kept.
"""

from pathlib import Path

import numpy as np

import yoasovi as yo

PROGRAM = Path(__file__).with_name("slopes.stan")
BETA = np.array([2.0, -0.5])


def simulate(seed=0, people=12, days=8):
    rng = np.random.default_rng(seed)
    person, day = np.repeat(np.arange(people), days), np.tile(np.linspace(-1, 1, days), people)
    line = BETA + rng.normal(size=(people, 2)) @ np.linalg.cholesky([[1.0, 0.4], [0.4, 0.5]]).T
    y = line[person, 0] + line[person, 1] * day + 0.3 * rng.normal(size=person.size)
    return {"N": person.size, "J": people, "person": person + 1, "day": day, "y": y}, line


def main():
    data, line = simulate()
    fit = yo.fit(yo.from_stan(PROGRAM, data), seed=0)
    draws = fit.sample(2000)
    print(fit)
    print({name: x.shape[1:] for name, x in draws.items()})
    off = (draws["line"].mean(0) - line) / draws["line"].std(0)
    print(f"lines that the data were made with are {np.sqrt(np.mean(off**2)):.2f} posterior sds away (root mean square)")
    assert fit.converged
    assert draws["line"].shape == (2000, 12, 2) and draws["y_rep"].shape == (2000, 96)
    assert np.sqrt(np.mean(off**2)) < 1.5


if __name__ == "__main__":
    main()
