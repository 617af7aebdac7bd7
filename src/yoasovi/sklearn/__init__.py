"""scikit-learn estimators: the ready-made models with `fit`, `predict` and the rest, for pipelines and searches.

Columns are standardised, so that priors mean the same in any unit, and what is learned is given in the data's own units.
Rows are filled up to a power of two with weight 0: a search fits many data sets of nearly equal size, and compiles once.
"""

from yoasovi.extras import need

need("sklearn", "sklearn")

from yoasovi.sklearn.mixture import BayesianGaussianMixture  # noqa: E402
from yoasovi.sklearn.regression import (  # noqa: E402
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegression,
)

__all__ = ["BayesianGaussianMixture", "BayesianLinearRegression", "BayesianLogisticRegression", "BayesianPoissonRegression"]
