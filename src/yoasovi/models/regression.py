"""Regressions: linear, logistic and Poisson, with priors that follow the scales of the data.

Predictors are centred inside the model. The intercept there, at their means, has a prior of its own, and the intercept in
the data's own units follows from it: priors then mean the same in any unit, and coefficients and intercept are told apart.
Scales are those of rstanarm's defaults (Gabry and Goodrich, "Prior Distributions for rstanarm Models", since 2020).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from scipy.special import gammaln

from yoasovi.errors import check, positive_number
from yoasovi.model import Labels, Model, Params
from yoasovi.model.sums import SummedRows, by_blocks, counting, wide_sum
from yoasovi.models.arrays import by_column, by_name, numbers, one_of, positive, table
from yoasovi.models.columns import Predictors, is_table
from yoasovi.models.line_sums import by_tiles, tiled

NOISE_PRIORS: dict[str, Callable[[float], dist.Distribution]] = {
    "exponential": lambda scale: dist.Exponential(1.0 / scale), "half_normal": dist.HalfNormal,
    "half_cauchy": dist.HalfCauchy,
}  # fmt: skip


def LinearRegression(
    X: Any,
    y: Any,
    prior_scale: float = 2.5,
    *,
    intercept: bool = True,
    noise_prior: str = "exponential",
    noise_scale: float = 1.0,
    autoscale: bool = True,
) -> Model:
    """Linear regression: y_i ~ N(a + x_i b, noise^2).

    b_j ~ N(0, prior_scale sd(y)/sd(x_j)), a at the predictors' means ~ N(mean(y), prior_scale sd(y)), noise ~ Exponential
    with mean noise_scale sd(y). Without an intercept, root mean squares take the place of standard deviations.

    Parameters
    ----------
    X, y
        Shapes (N, p) and (N,); or a frame or dict of columns, and a column's name or (N,). Text becomes indicators.
    noise_prior, noise_scale
        "exponential", "half_normal" or "half_cauchy", and its scale: the prior of the noise's standard deviation.
    autoscale
        False takes scales as they are, in the data's own units, and the intercept where all predictors are 0:
        a and b_j ~ N(0, prior_scale^2).

    Sites: `intercept_at_means`, `coefficients` (p,), `noise`; draws also have `intercept`, in the data's own units.
    With autoscale=False `intercept` is a site; with intercept=False there is none.
    """
    owner = "LinearRegression"
    found, y = table(owner, X, y)
    one_of("noise_prior", owner, noise_prior, *NOISE_PRIORS)
    positive_number("noise_scale", owner, noise_scale)
    line = Line.of(owner, found, intercept, autoscale)
    if line.centred and len(y) > 1:
        check(np.ptp(y) > 0, "y", owner, "more than one value, or its noise has no posterior", f"{y[0]:g} in every row")
    centre, spread = (float(y.mean(dtype=float)), _spread(y, intercept)) if line.autoscale else (0.0, 1.0)
    prior = line.priors(owner, prior_scale, centre, spread)
    prior["noise"] = NOISE_PRIORS[noise_prior](float(noise_scale) * spread)
    begin = {line.intercept: float(y.mean(dtype=float)), "noise": _spread(y, intercept)}
    return line.model("linear regression", prior, normal_terms, normal_law, {"y": y}, begin)


def LogisticRegression(X: Any, y: Any, prior_scale: float = 2.5, *, intercept: bool = True, autoscale: bool = True) -> Model:
    """Logistic regression: P(y_i = 1) = 1/(1 + exp(-(a + x_i b))).

    b_j ~ N(0, prior_scale/sd(x_j)), a at the predictors' means ~ N(0, prior_scale).

    `X`, `intercept` and `autoscale` are as in `LinearRegression`; `y` is (N,), 0 or 1, or a column's name.
    Sites: `intercept_at_means`, `coefficients` (p,); draws also have `intercept`.
    """
    owner = "LogisticRegression"
    found, y = table(owner, X, y, classes=True)
    check(np.isin(y, (0.0, 1.0)).all(), "y", owner, "0 or 1", f"values {np.unique(y)[:6]}")
    line = Line.of(owner, found, intercept, autoscale)
    prior = line.priors(owner, prior_scale, 0.0, 1.0)
    return line.model("logistic regression", prior, bernoulli_terms, bernoulli_law, {"y": y})


def PoissonRegression(
    X: Any, y: Any, prior_scale: float = 2.5, *, exposure: Any = 1.0, intercept: bool = True, autoscale: bool = True
) -> Model:
    """Poisson regression: y_i ~ Poisson(exposure_i exp(a + x_i b)).

    b_j ~ N(0, prior_scale/sd(x_j)), a at the predictors' means ~ N(log of all counts over all exposure, prior_scale): in
    any unit of exposure (rstanarm's is at 0).

    `X`, `intercept` and `autoscale` are as in `LinearRegression`; `y` is (N,) counts, or a column's name; `exposure` is one
    positive number or (N,). Sites: `intercept_at_means`, `coefficients` (p,); draws also have `intercept`.
    """
    owner = "PoissonRegression"
    _, counts = table(owner, X, y)
    whole = (counts >= 0) & (counts == np.round(counts))
    check(whole.all(), "y", owner, "non-negative integers", f"values such as {counts[~whole][:3]}")
    return quasi_poisson(X, y, prior_scale, exposure, intercept, autoscale)


def quasi_poisson(X: Any, y: Any, prior_scale: float, exposure: Any, intercept: bool, autoscale: bool) -> Model:
    """The same for any non-negative y: its likelihood as if it were counts."""
    owner = "PoissonRegression"
    found, y = table(owner, X, y)
    exposure = positive("exposure", owner, exposure, y.shape)
    data = {"y": y, "log_exposure": np.log(exposure), "log_factorial": gammaln(y + 1.0)}
    rate = float(np.log((y.sum() + 0.5) / exposure.sum()))
    line = Line.of(owner, found, intercept, autoscale)
    prior = line.priors(owner, prior_scale, rate if line.autoscale else 0.0, 1.0)
    return line.model("poisson regression", prior, poisson_terms, poisson_law, data, {line.intercept: rate})


def softmax_regression(X: np.ndarray, y: np.ndarray, prior_scale: float, intercept: bool) -> Model:
    """Regression on classes 0 to K - 1: P(y_i = k) is proportional to exp(a_k + x_i b_k), all a and b ~ N(0, prior_scale^2).

    Sites: `intercept` (K,), `coefficients` (p, K). Only differences between classes are known beyond the prior.
    """
    positive_number("prior_scale", "softmax_regression", prior_scale)
    k, p, scale = int(y.max()) + 1, X.shape[1], float(prior_scale)
    prior: dict[str, dist.Distribution] = {"coefficients": dist.Normal(np.zeros((p, k)), scale).to_event(2)}
    if intercept:
        prior = {"intercept": dist.Normal(np.zeros(k), scale).to_event(1), **prior}
    data = {"X": X, "y": np.eye(k)[y]}
    return Model(prior=prior, log_likelihood=softmax_likelihood, data=data, name="softmax regression")


def predictor(params: Params, data: Any) -> jax.Array:
    """Give a + x_i b, shape (N,): at predictors in their own units, `X`, or at the model's own, `centred`."""
    X, intercept = _design(params, data)
    return jnp.matmul(X, params["coefficients"], precision="highest") + intercept


def _design(params: Params, data: Any) -> tuple[jax.Array, Any]:
    """Give the predictors, and the intercept that goes with them."""
    return (data["X"], params.get("intercept", 0.0)) if "X" in data else (data["centred"], params["intercept_at_means"])


@dataclass(frozen=True)
class LineLikelihood(SummedRows):
    """log p(y_i | a + x_i b), shape (N,); all rows are summed up at several points by one product of matrices."""

    terms: Callable[[jax.Array, Params, Any], jax.Array]  # of a + x_i b, other parameters and data, all by row

    def __call__(self, params: Params, data: Any) -> jax.Array:
        """Give the log density of each observation."""
        return self.terms(predictor(params, data), params, data)

    def totals(self, params: Params, data: Any) -> jax.Array:
        """Give the sum over all observations at S points, (S, 2); see `model.sums`."""
        return line_totals(self, params, data)

    def rows(self, params: Params, data: Any) -> jax.Array:
        """Give the log density of each observation at S points, (N, S)."""
        if jax.default_backend() == "cpu":  # which wants rows last
            return jax.vmap(self, (0, None))(params, data).T
        X, intercept = _design(params, data)
        by_row = {k: v[:, None] if jnp.shape(v) == X.shape[:1] else v for k, v in data.items()}
        return self.terms(products(X, params["coefficients"]) + intercept, params, by_row)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def line_totals(likelihood: LineLikelihood, params: Params, data: Any) -> jax.Array:
    """Sum a likelihood up over all observations at S points, (S, 2), a block or a tile of rows at a time."""
    if tiled(_design(params, data)[0], len(params["coefficients"])):
        return _by_tiles(likelihood, False, params, data)[0]
    return wide_sum(_over_rows(lambda block: _block_total(likelihood, params, *block), params, data), (0, 2))


def _line_totals_fwd(likelihood: Any, params: Any, data: Any) -> Any:
    if tiled(_design(params, data)[0], len(params["coefficients"])):
        return _by_tiles(likelihood, True, params, data)

    def both(block: Any) -> Any:
        value, back = jax.vjp(lambda p: _block_total(likelihood, p, *block), params)
        return value, back(jnp.ones_like(value))[0]

    value, slopes = _over_rows(both, params, data)
    return wide_sum(value, (0, 2)), jax.tree.map(lambda x: jnp.sum(x, 0), slopes)


def _line_totals_bwd(likelihood: Any, slopes: Any, slope: Any) -> Any:
    return jax.tree.map(lambda x: slope[:, 0].reshape(-1, *[1] * (x.ndim - 1)) * x, slopes), None


line_totals.defvjp(_line_totals_fwd, _line_totals_bwd)


def _by_tiles(likelihood: LineLikelihood, slopes: bool, params: Params, data: Any) -> tuple[jax.Array, Params | None]:
    """Sum up over all observations on a GPU; with `slopes`, those by all parameters as well."""
    X, _ = _design(params, data)
    rest, rows = dict(params), {k: v for k, v in data.items() if v is not X and k != "means"}
    b, name = rest.pop("coefficients"), "intercept" if "X" in data else "intercept_at_means"
    a = rest.pop(name, jnp.zeros(len(b), b.dtype))
    value, found = by_tiles(likelihood.terms, slopes, X, b, a, rest, rows)
    if found is None:
        return value, None
    by_b, by_a, by_rest = found
    return value, {**by_rest, "coefficients": by_b, **({name: by_a} if name in params else {})}


def _over_rows(fn: Callable[[Any], Any], params: Params, data: Any) -> Any:
    """Give `fn((data of a block of rows, which rows count))` for all blocks."""
    n = len(_design(params, data)[0])
    long = {k: v for k, v in data.items() if k != "means"}
    return by_blocks(lambda block, counted: fn(({**data, **block}, counted)), long, n)


def _block_total(likelihood: LineLikelihood, params: Params, data: Any, counted: Any) -> jax.Array:
    return wide_sum(counting(counted, likelihood.rows(params, data).T), 1)


@jax.custom_vjp
def products(X: jax.Array, b: jax.Array) -> jax.Array:
    """Give x_i b_s, (N, S), and nothing by X."""
    return jnp.matmul(X, b.T, precision=_full(X, len(b)))


def _products_bwd(X: Any, slope: Any) -> Any:
    if slope.shape[1] == 1:
        return None, jnp.matmul(slope.T, X, precision="highest")
    cut = lambda x: x.reshape(_parts(len(X)), -1, x.shape[1])
    return None, jnp.sum(jnp.einsum("nis,nij->nsj", cut(slope), cut(X), precision=_full(X, slope.shape[1])), 0)


products.defvjp(lambda X, b: (products(X, b), X), _products_bwd)


def _full(X: jax.Array, points: int) -> Any:
    """Give the full precision of a product: on GPUs the usual one has ten bits, and gradients come out wrong by a hundredth.

    Where there are units for it, three products of so few bits are as right as one in float32, and quicker.
    """
    device = jax.devices()[0]
    new = device.platform == "gpu" and float(getattr(device, "compute_capability", 0)) >= 8.0
    return jax.lax.DotAlgorithmPreset.TF32_TF32_F32_X3 if new and points > 1 and X.dtype == jnp.float32 else "highest"


def _parts(rows: int) -> int:
    """Give equal parts of the rows whose sums can be taken side by side: XLA would first copy X to make its own."""
    return max(n for n in range(1, min(rows, 4096) + 1) if rows % n == 0)


def intercept_of(params: Params, data: Any) -> Params:
    """Give the intercept where all predictors are 0."""
    return {"intercept": params["intercept_at_means"] - data["means"] @ params["coefficients"]}


def normal_terms(eta: jax.Array, params: Params, data: Any) -> jax.Array:
    """Give log N(y_i | eta_i, noise^2)."""
    return dist.Normal(eta, params["noise"]).log_prob(data["y"])


def normal_law(params: Params, data: Any) -> dist.Distribution:
    """Give N(a + x_i b, noise^2)."""
    return dist.Normal(predictor(params, data), params["noise"])


def bernoulli_terms(eta: jax.Array, params: Params, data: Any) -> jax.Array:
    """Give y_i log p_i + (1 - y_i) log(1 - p_i), stable for large predictors."""
    return data["y"] * eta - softplus(eta)


@jax.custom_jvp
def softplus(x: jax.Array) -> jax.Array:
    """Give log(1 + e^x); JAX's own has a derivative that takes twice as long."""
    return _softplus(x)[0]


@softplus.defjvp
def _softplus_jvp(primals: Any, tangents: Any) -> Any:
    value, slope = _softplus(*primals)
    return value, slope * tangents[0]


def _softplus(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Give log(1 + e^x) and its slope, by one exponential."""
    small = jnp.exp(-jnp.abs(x))
    return jnp.maximum(x, 0.0) + jnp.log1p(small), jnp.where(x >= 0.0, 1.0, small) / (1.0 + small)


def bernoulli_law(params: Params, data: Any) -> dist.Distribution:
    """Give the law of y_i, 0 or 1."""
    return dist.Bernoulli(logits=predictor(params, data))


def softmax_likelihood(params: Params, data: Any) -> jax.Array:
    """Give the log probability of each row's class; y is (N, K), 1 at the class."""
    eta = predictor(params, data)
    return jnp.sum(data["y"] * eta, -1) - jax.nn.logsumexp(eta, axis=-1)


def poisson_law(params: Params, data: Any) -> dist.Distribution:
    """Give the law of counts."""
    return dist.Poisson(jnp.exp(predictor(params, data) + data["log_exposure"]))


def poisson_terms(eta: jax.Array, params: Params, data: Any) -> jax.Array:
    """Give y_i log rate_i - rate_i - log y_i!."""
    eta = eta + data["log_exposure"]
    return data["y"] * eta - jnp.exp(eta) - data["log_factorial"]


@dataclass(frozen=True)
class RowDraw:
    """Draws y_i from its law at x_i."""

    law: Callable[[Params, Any], dist.Distribution]
    columns: int
    exposed: bool = False  # whether rows have an exposure, 1 where none is given
    names: tuple[str, ...] | None = field(default=None, compare=False)  # of columns; another name is no other program

    def __call__(self, key: jax.Array, params: Params, data: Any) -> jax.Array:
        """Give new observations, shape (N,)."""
        return self.law(params, data).sample(key)

    def read(self, given: Any, fitted: Any) -> dict[str, np.ndarray]:
        """Take X, a table with its columns by name, or a dict with either, in place of the data of the fit."""
        others = ("exposure",) if self.exposed else ()
        named = self.names or ()
        if is_table(given) and named and ("X" in named or "X" not in given):
            given = {"X": given} | {k: given[k] for k in others if k in given and k not in named}
        given = by_name(given, "X", *others)
        X = by_column(named, given["X"]) if named and is_table(given["X"]) else given["X"]
        X = numbers("data['X']", "predict", X, 2)
        check(X.shape[1] == self.columns, "data['X']", "predict", f"of shape (N, {self.columns})", f"shape {X.shape}")
        exposure = positive("data['exposure']", "predict", given.get("exposure", 1.0), X.shape[:1])
        return {"X": X, **({"log_exposure": np.log(exposure)} if self.exposed else {})}


@dataclass(frozen=True)
class RegressionStart:
    """A start that does not depend on chance; sites not named begin at the prior's centre."""

    point: tuple[tuple[str, float], ...]

    def __call__(self, key: jax.Array) -> Params:
        """Give the point, whatever the key."""
        return {k: jnp.asarray(v) for k, v in self.point}


@dataclass(frozen=True)
class Line:
    """What all regressions share: a + x_i b, centred or as it is."""

    table: Predictors
    intercept: str  # the site's name; empty if there is none
    autoscale: bool

    @classmethod
    def of(cls, owner: str, found: Predictors, intercept: bool, autoscale: bool) -> Line:
        """Check what there is to choose."""
        for name, value in (("intercept", intercept), ("autoscale", autoscale)):
            check(isinstance(value, bool), name, owner, "True or False", value)
        if intercept and autoscale:
            for j in np.flatnonzero(np.ptp(found.X, axis=0) == 0) if len(found.X) > 1 else ():
                which = f"column {j}" if found.names is None else f"column {found.names[j]!r}"
                said = f"{which} is {found.X[0, j]:g} in every row, as the intercept is"
                why = "its coefficient is known by the prior alone. Leave it out"
                warnings.warn(f"`X` of `{owner}`: {said}; {why}.", stacklevel=3)
        return cls(found, ("intercept_at_means" if autoscale else "intercept") if intercept else "", autoscale)

    @property
    def centred(self) -> bool:
        """Whether predictors are centred."""
        return self.intercept == "intercept_at_means"

    def priors(self, owner: str, prior_scale: float, centre: float, spread: float) -> dict[str, dist.Distribution]:
        """Give the priors of intercept and coefficients; `centre` and `spread` are those of what is predicted."""
        positive_number("prior_scale", owner, prior_scale)
        X, scale = self.table.X, float(prior_scale) * spread
        each = np.array([_spread(x, bool(self.intercept)) for x in X.T]) if self.autoscale else np.ones(X.shape[1])
        coefficients = {"coefficients": dist.Normal(np.zeros(X.shape[1]), scale / each).to_event(1)}
        return ({self.intercept: dist.Normal(centre, scale)} if self.intercept else {}) | coefficients

    def model(
        self, name: str, prior: dict[str, Any], terms: Callable[..., Any], law: Callable[..., Any],
        data: dict[str, np.ndarray], begin: dict[str, float] | None = None,
    ) -> Model:  # fmt: skip
        """Put the model together."""
        X, names = self.table.X, self.table.names
        means = X.mean(0, dtype=float)
        design = {"centred": X - means, "means": means} if self.centred else {"X": X}
        given = {k: v for k, v in (begin or {}).items() if k in prior}
        labels = Labels(
            dims={} if names is None else {"coefficients": ("predictor",), "X": (None, "predictor")},
            coords={} if names is None else {"predictor": np.array(names)},
            observed={"y": data["y"]},
            constant={"X": X, **{k: v for k, v in data.items() if k == "log_exposure"}},
            blocks={"y": (-1,)},
            notes=self.table.notes,
        )
        draw = RowDraw(law, X.shape[1], "log_exposure" in data, names if names is None else tuple(names))
        return Model(
            prior=prior, log_likelihood=LineLikelihood(terms), predictive=draw, data={**design, **data}, name=name,
            start=RegressionStart(tuple(given.items())) if given else None, labels=labels,
            deterministics=intercept_of if self.centred else None,
        )  # fmt: skip


def _spread(x: np.ndarray, about_mean: bool) -> float:
    """Give the standard deviation, or the root mean square; of a constant its size, or 1."""
    size = float(np.abs(x).max())
    found = float(x.std(dtype=float) if about_mean else np.sqrt(np.mean(np.square(x, dtype=float))))
    return found if found > 1e-12 * size else size or 1.0
