"""scikit-learn's own tests of the estimators that ours resemble, with ours in their place.

`python benchmarks/sklearn_compat.py [pytest options]` writes benchmarks/results/sklearn_compat.md. Most of what fails asks
for settings that ours do not have (solvers, penalties, hyper-priors) or refuse: those are counted apart, as different by
design. So are attributes that ours do not have, which may be by design or missing: they are named.
"""

import re
import sys
from collections import Counter
from pathlib import Path

import sklearn
from swapped import outcomes

ROOT = Path(sklearn.__file__).parent
RESULT = Path(__file__).parent / "results" / "sklearn_compat.md"
FILES = {
    "linear_model/tests/test_bayes.py": ("BayesianLinearRegression", "BayesianRidge", "ridge or toy_bayesian"),
    "linear_model/tests/test_logistic.py": ("BayesianLogisticRegression", "LogisticRegression", "not CV and not cv"),
    "linear_model/_glm/tests/test_glm.py": ("BayesianPoissonRegression", "PoissonRegressor", "poisson"),
    "mixture/tests/test_bayesian_mixture.py": ("BayesianGaussianMixture", "BayesianGaussianMixture", ""),
}
OTHER_SETTINGS = re.compile(r"unexpected keyword argument|Invalid parameter|got 'dirichlet_process'")
NO_ATTRIBUTE = re.compile(r"object has no attribute '(\w+)'")
COLUMNS = ("passed", "other settings", "no such attribute", "failed", "skipped")
BY_DESIGN = {
    "test_monotonic_likelihood": "asks for a bound that never falls; ours is estimated from draws",
    "test_write_parameters": "sets `coef_` and asks for decisions; ours come from draws of the posterior",
    "test_multinomial_logistic_regression_string_inputs": "fits twice without `random_state` and asks for the same numbers; "
    "without it ours take another seed each time",
    "test_l1_ratio_non_elasticnet": "asks for a warning about a setting that ours does not have",
    "test_logistic_regression_callback_support_warning": "asks for a warning about a setting that ours does not have",
}


def kind_of(kind: str, text: str) -> str:
    if kind == "failed" and OTHER_SETTINGS.search(text):
        return "other settings"
    return "no such attribute" if kind == "failed" and NO_ATTRIBUTE.search(text) else kind


def main(*options: str) -> None:
    lines = [f"| scikit-learn's class | ours | {' | '.join(COLUMNS)} |", f"|---|---|{'---:|' * len(COLUMNS)}"]
    rest, missing = [], set()
    for path, (ours, theirs, which) in FILES.items():
        chosen = ("-p", "sklearn.conftest", *(("-k", which) if which else ()))  # with its fixtures
        found = outcomes(ROOT / path, f"from yoasovi.sklearn import {ours} as {theirs}", *chosen, *options)
        kinds = Counter(kind_of(*what) for what in found.values())
        lines.append(f"| {theirs} | {ours} | {' | '.join(str(kinds[k]) for k in COLUMNS)} |")
        print(lines[-1], file=sys.stderr, flush=True)
        missing |= {f"`{ours}.{name}`" for _, text in found.values() for name in NO_ATTRIBUTE.findall(text)}
        failed = {name: what[1] for name, what in found.items() if kind_of(*what) == "failed"}
        rest += [f"- {theirs}, `{k}`: {BY_DESIGN.get(k.partition('[')[0]) or text}." for k, text in failed.items()]
    head = (
        f"`python benchmarks/sklearn_compat.py`, scikit-learn {sklearn.__version__}: its own tests, with our estimators in "
    )
    head += 'their place. "Other settings" asks for what ours do not have or refuse (solvers, penalties, hyper-priors).'
    lines = [head, "", *lines, "", f"No such attribute: {', '.join(sorted(missing))}.", "", *rest]
    RESULT.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main(*sys.argv[1:])
