"""scikit-learn's own tests of the estimators that ours resemble, with ours in their place.

`python benchmarks/sklearn_compat.py [pytest options]`. Most of what fails asks for settings that ours do not have (solvers,
penalties, hyper-priors): those are counted apart, as different by design.
"""

import re
import sys
from collections import Counter
from pathlib import Path

import sklearn
from swapped import outcomes

ROOT = Path(sklearn.__file__).parent
FILES = {
    "linear_model/tests/test_bayes.py": ("BayesianLinearRegression", "BayesianRidge", "ridge or toy_bayesian"),
    "linear_model/tests/test_logistic.py": ("BayesianLogisticRegression", "LogisticRegression", "not CV and not cv"),
    "linear_model/_glm/tests/test_glm.py": ("BayesianPoissonRegression", "PoissonRegressor", "poisson"),
    "mixture/tests/test_bayesian_mixture.py": ("BayesianGaussianMixture", "BayesianGaussianMixture", ""),
}
OTHER_SETTINGS = re.compile(r"unexpected keyword argument|Invalid parameter|has no attribute '_?\w+_?'")


def main(*options: str) -> None:
    print("| scikit-learn's class | ours | passed | other settings | failed | skipped |\n|---|---|---:|---:|---:|---:|")
    rest = []
    for path, (ours, theirs, which) in FILES.items():
        chosen = ("-k", which) if which else ()
        found = outcomes(ROOT / path, f"from yoasovi.sklearn import {ours} as {theirs}", *chosen, *options)
        kinds = Counter(
            "other" if kind == "failed" and OTHER_SETTINGS.search(text) else kind for kind, text in found.values()
        )
        print(f"| {theirs} | {ours} | " + " | ".join(str(kinds[k]) for k in ("passed", "other", "failed", "skipped")) + " |")
        rest += [
            f"- {theirs}, `{name}`: {text}" for name, (kind, text) in found.items()
            if kind == "failed" and not OTHER_SETTINGS.search(text)
        ]  # fmt: skip
    print("\n".join(["", *rest]))


if __name__ == "__main__":
    main(*sys.argv[1:])
