"""scikit-learn's own tests of the estimators that ours resemble, with ours in their place.

`python benchmarks/sklearn_compat.py [pytest options]`. Most of what fails asks for settings that ours do not have (solvers,
penalties, hyper-priors) or refuse: those are counted apart, as different by design. So are attributes that ours do not have,
which may be by design or missing: they are named.
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
OTHER_SETTINGS = re.compile(r"unexpected keyword argument|Invalid parameter|got 'dirichlet_process'")
NO_ATTRIBUTE = re.compile(r"object has no attribute '(\w+)'")
COLUMNS = ("passed", "other settings", "no such attribute", "failed", "skipped")


def kind_of(kind: str, text: str) -> str:
    if kind == "failed" and OTHER_SETTINGS.search(text):
        return "other settings"
    return "no such attribute" if kind == "failed" and NO_ATTRIBUTE.search(text) else kind


def main(*options: str) -> None:
    print(f"| scikit-learn's class | ours | {' | '.join(COLUMNS)} |\n|---|---|{'---:|' * len(COLUMNS)}")
    rest, missing = [], set()
    for path, (ours, theirs, which) in FILES.items():
        chosen = ("-p", "sklearn.conftest", *(("-k", which) if which else ()))  # with its fixtures
        found = outcomes(ROOT / path, f"from yoasovi.sklearn import {ours} as {theirs}", *chosen, *options)
        kinds = Counter(kind_of(*what) for what in found.values())
        print(f"| {theirs} | {ours} | {' | '.join(str(kinds[k]) for k in COLUMNS)} |")
        missing |= {f"`{ours}.{name}`" for _, text in found.values() for name in NO_ATTRIBUTE.findall(text)}
        rest += [f"- {theirs}, `{name}`: {what[1]}" for name, what in found.items() if kind_of(*what) == "failed"]
    print("\n".join(["", f"No such attribute: {', '.join(sorted(missing))}.", "", *rest]))


if __name__ == "__main__":
    main(*sys.argv[1:])
