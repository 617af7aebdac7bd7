"""The methods that are compared, each with its documented settings.

A peer is built once from a `Case`, which imports and compiles what it needs, and is then run; the second run finds all
that can be kept from the first. Where a library would compile a loop again for every run, the loop is written here so
that it need not: times of a second run are those of a compiled program.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from yoasovi.bench.posteriors import Case

STEPS = 10_000  # what PyMC and Stan take by default; NumPyro and BlackJAX have no default
MARKS = (50, 100, 200, 500, 1_000, 2_000, 5_000, STEPS, 20_000, 40_000)  # steps at which a run is looked at
FULL_RANK_UP_TO = 500  # dimensions; beyond, a step of a full covariance takes too long to wait for 10,000 of them
FIXED_DRAWS = 30
WARMUP, KEPT, CHAINS = 1_000, 1_000, 4
PATHS = 4  # as in Stan
STOPS = 12  # windows of ours after which a run is looked at
MENDED = ", mended"  # ends the family of a fit whose model has another form than it was given in
Draw = Callable[[int, int], tuple[Any, Any]]  # number, seed -> draws (n, d) on the flat scale, log q or None


class FlatNormal(NamedTuple):
    """A normal on the flat vector: mean (d,), and its sds (d,) or a lower root of its covariance (d, d)."""

    mean: np.ndarray
    root: np.ndarray

    @classmethod
    def of(cls, mean: Any, root: Any) -> FlatNormal:
        """Take arrays of any library."""
        return cls(np.asarray(mean, float), np.asarray(root, float))

    def draw(self, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Give draws (n, d) and log q at them."""
        eps = np.random.default_rng(seed).normal(size=(n, self.mean.size))
        flat = self.root.ndim == 1
        scales = self.root if flat else np.diagonal(self.root)
        theta = self.mean + (eps * self.root if flat else eps @ self.root.T)
        return theta, -0.5 * (eps**2 + np.log(2 * np.pi)).sum(1) - np.log(scales).sum()


class Mark(NamedTuple):
    """Where a run was after some steps."""

    steps: int
    seconds: float  # since the run began
    found: FlatNormal


class Stop(NamedTuple):
    """A run that was ended after some steps: how long it took, compiled, and its ELBO on fresh draws."""

    steps: int
    seconds: float
    elbo: float


@dataclass(frozen=True)
class Found:
    """What a run came to: flat draws with log q, or draws by site and what the method itself says of its ELBO."""

    family: str
    draw: Draw | None = None
    sites: Callable[[int], dict[str, np.ndarray]] | None = None
    elbo: tuple[float, float] | None = None
    values: int | None = None
    gradients: int | None = None
    marks: tuple[Mark, ...] = ()
    stops: Callable[[], list[Stop]] | None = None  # the same run, ended early
    verdict: Callable[[], str] | None = None
    note: str = ""

    @property
    def seconds(self) -> float | None:
        """When the answer was there, in a run that goes on behind it to be looked at."""
        return next((mark.seconds for mark in self.marks if mark.steps == STEPS), None)


Run = Callable[[int], Found]


class Peer(NamedTuple):
    """A line of the table: how it is built, the library it needs, its settings in words."""

    build: Callable[..., Run]
    settings: dict[str, Any]
    library: str
    about: str
    full_rank: bool = False


# ---- NumPyro ---------------------------------------------------------------------------------------------


def svi(case: Case, guide: str, rate: float) -> Run:
    """NumPyro's SVI with an automatic guide."""
    import jax
    from numpyro import optim
    from numpyro.infer import SVI, Trace_ELBO, autoguide

    model, args = case.model, case.args
    approximation = getattr(autoguide, guide)(model)
    method = SVI(model, approximation, optim.Adam(rate), Trace_ELBO())
    begin = method.init(jax.random.key(0), *args)
    advance = jax.jit(lambda state, n, args: jax.lax.fori_loop(0, n, lambda _, s: method.update(s, *args)[0], state))

    def normal(state: Any) -> FlatNormal:
        params = method.get_params(state)
        if "auto_scale_tril" in params:
            return FlatNormal.of(params["auto_loc"], params["auto_scale_tril"])
        sites = sorted(k.removesuffix("_auto_loc") for k in params if k.endswith("_auto_loc"))
        flat = lambda part: np.concatenate([np.ravel(params[f"{k}_auto_{part}"]) for k in sites])
        return FlatNormal.of(flat("loc"), flat("scale"))

    def run(seed: int) -> Found:
        state = begin._replace(rng_key=jax.random.key(seed))
        marks = _looked_at(lambda s, n: advance(s, n, args), state, normal, MARKS)
        family = "full_rank" if guide == "AutoMultivariateNormal" else "mean_field"
        return _with_marks(family, marks, gradients=STEPS)

    return run


def nuts(case: Case) -> Run:
    """NumPyro's NUTS, four chains side by side."""
    import jax
    from numpyro.infer import MCMC, NUTS

    size = {"num_warmup": WARMUP, "num_samples": KEPT, "num_chains": CHAINS}
    mcmc = MCMC(NUTS(case.model), **size, chain_method="vectorized", progress_bar=False)

    def run(seed: int) -> Found:
        mcmc.run(jax.random.key(seed), *case.args, extra_fields=("num_steps",))
        draws = {k: np.asarray(v) for k, v in mcmc.get_samples().items()}
        return Found("draws", sites=lambda n: draws, gradients=int(mcmc.get_extra_fields()["num_steps"].sum()))

    return run


# ---- BlackJAX --------------------------------------------------------------------------------------------


def gaussian_vi(case: Case, name: str) -> Run:
    """BlackJAX's meanfield_vi or fullrank_vi: 100 draws a step, its default."""
    import blackjax
    import jax
    import optax

    from yoasovi.bench.target import Target

    target = Target(case.model, case.args)
    algorithm = getattr(blackjax, name)(target.log_density, optax.adam(0.01))
    begin = algorithm.init(target.start)

    def one(_: int, carry: tuple) -> tuple:
        rest, key = jax.random.split(carry[0])
        return rest, algorithm.step(key, carry[1])[0]

    advance = jax.jit(lambda carry, n: jax.lax.fori_loop(0, n, one, carry))

    def normal(carry: Any) -> FlatNormal:
        state = carry[1]
        root = np.exp(state.rho) if name == "meanfield_vi" else lower_root(state.chol_params, target.dim)
        return FlatNormal.of(state.mu, root)

    def run(seed: int) -> Found:
        marks = _looked_at(advance, (jax.random.key(seed), begin), normal, MARKS[: MARKS.index(STEPS) + 1])
        return _with_marks("mean_field" if name == "meanfield_vi" else "full_rank", marks, gradients=100 * STEPS)

    return run


def lower_root(params: Any, d: int) -> np.ndarray:
    """Give the root that BlackJAX keeps as a vector: logarithms of its diagonal, then what is below, row by row."""
    root = np.diag(np.exp(np.asarray(params[:d], float)))
    root[np.tril_indices(d, -1)] = params[d:]
    return root


def pathfinder(case: Case, paths: int) -> Run:
    """BlackJAX's Pathfinder: a normal at the best place of an L-BFGS path; of several, draws weighed by PSIS."""
    import blackjax
    import jax

    from yoasovi.bench.target import Target

    target = Target(case.model, case.args)
    algorithm = (blackjax.pathfinder if paths == 1 else blackjax.multipathfinder)(target.log_density)
    climb = jax.jit(lambda key, place: algorithm.init(key, place)[0])

    def run(seed: int) -> Found:
        key, start = jax.random.key(seed), target.start
        if paths > 1:
            start = jax.random.uniform(jax.random.key(seed + 1), (paths, target.dim), minval=-2.0, maxval=2.0)
        state = jax.block_until_ready(climb(key, start))
        if paths == 1:
            return Found("full_rank", draw=lambda n, s: algorithm.sample(jax.random.key(s), state, n))
        return Found("draws", draw=lambda n, s: (algorithm.sample(jax.random.key(s), state, n), None))

    return run


# ---- SciPy, PyMC and this library ------------------------------------------------------------------------


def fixed_draws(case: Case) -> Run:
    """ADVI on draws that stay: a deterministic objective, for SciPy's L-BFGS with its defaults, in double precision."""
    import jax
    import jax.numpy as jnp
    from scipy.optimize import minimize

    from yoasovi.bench.target import Target

    jax.config.update("jax_enable_x64", True)
    target = Target(case.model, case.args)
    d = target.dim

    def loss(q: jax.Array, eps: jax.Array) -> jax.Array:
        draws = q[:d] + jnp.exp(q[d:]) * eps
        return -jax.vmap(target.log_density)(draws).mean() - q[d:].sum()

    both = jax.jit(jax.value_and_grad(loss))

    def run(seed: int) -> Found:
        eps = np.random.default_rng(seed).normal(size=(FIXED_DRAWS, d))
        begin = np.concatenate([np.asarray(target.start), np.full(d, -2.0)])
        end = minimize(lambda q: tuple(map(np.asarray, both(q, eps))), begin, jac=True, method="L-BFGS-B")
        found = FlatNormal.of(end.x[:d], np.exp(end.x[d:]))
        note = "" if end.success else "L-BFGS ended early"
        return Found("mean_field", draw=found.draw, gradients=FIXED_DRAWS * end.nfev, note=note)

    return run


def pymc(case: Case, method: str) -> Run:
    """PyMC's ADVI on the posterior's own PyMC form."""
    import pymc as pm

    model = case.pymc

    def run(seed: int) -> Found:
        with model:
            fitted = pm.fit(STEPS, method=method, random_seed=seed, progressbar=False)
        order = flat_order(fitted.ordering)
        mean, cov = fitted.mean.eval()[order], fitted.cov.eval()[np.ix_(order, order)]
        root = np.sqrt(np.diagonal(cov)) if method == "advi" else np.linalg.cholesky(cov)
        family = "mean_field" if method == "advi" else "full_rank"
        return Found(family, draw=FlatNormal.of(mean, root).draw, gradients=STEPS)

    return run


def plain(name: str) -> str:
    """Give the site of a PyMC variable, which is named by its transform: `tau_log__`."""
    return name.rsplit("_", 3)[0] if name.endswith("__") else name


def flat_order(ordering: Any) -> np.ndarray:
    """Give the places in PyMC's vector of the sites in alphabetical order; `ordering` has a slice by each name."""
    places = {plain(name): np.arange(part[1].start, part[1].stop) for name, part in ordering.items()}
    return np.concatenate([places[name] for name in sorted(places)])


def ours(case: Case, method: str = "yoasovi", **options: Any) -> Run:
    """Fit by this library; of the paper's methods the draws are q's own, uncorrected, and no verdict is asked for."""
    import yoasovi as yo

    model = yo.from_numpyro(case.model, *case.args)

    def run(seed: int) -> Found:
        fit = yo.fit(model, method=method, seed=seed, progress=False, **options)
        own, family = method == "yoasovi", fit.family.name
        if fit.parts:
            family = "mixture"
        elif any(note.kept for note in fit.mended):
            family += MENDED
        return Found(
            family, sites=lambda n: fit.sample(n, corrected=None if own else False), elbo=(fit.elbo.value, fit.elbo.se),
            values=fit.num_values, gradients=fit.num_gradients, note=fit.stop_reason.name.lower(),
            verdict=(lambda: fit.diagnose().grade) if own else None, stops=partial(stops, seed) if own else None,
        )  # fmt: skip

    def stops(seed: int) -> list[Stop]:
        """End the fit after its first windows, one after the other: the same bits up to there, and nothing behind."""
        to_step = partial(yo.fit, model, method=method, seed=seed, progress=False, **options | {"mend": False})
        found = []
        for step in to_step().trace["step"][:STOPS].tolist():
            begin = time.perf_counter()
            fit = to_step(max_steps=int(step))
            found.append(Stop(int(step), time.perf_counter() - begin, fit.elbo.value))
        return found

    return run


# ---- runs that are looked at along the way ---------------------------------------------------------------


def _looked_at(advance: Callable, state: Any, normal: Callable, marks: tuple[int, ...]) -> tuple[Mark, ...]:
    """Run from mark to mark; what is looked at is worked out afterwards, so that it takes no time of the run's."""
    import jax

    begin, seen = time.perf_counter(), []
    for before, after in pairwise((0, *marks)):
        state = jax.block_until_ready(advance(state, after - before))
        seen.append((after, time.perf_counter() - begin, state))
    return tuple(Mark(steps, seconds, normal(state)) for steps, seconds, state in seen)


def _with_marks(family: str, marks: tuple[Mark, ...], gradients: int) -> Found:
    answer = next(mark.found for mark in marks if mark.steps == STEPS)
    return Found(family, draw=answer.draw, gradients=gradients, marks=marks)


# ---- all of them -----------------------------------------------------------------------------------------

_PAPER = ("yoasovi-naive", "yoasovi-metropolis", "yoasovi-step", "qmcvi", "bbvi-js+", "bbvi-rb", "mcvi", "advi")
_LIKE = {"mend": False}
_STEPS = f"{STEPS:,} steps"

PEERS: dict[str, Peer] = {
    "yoasovi": Peer(ours, {}, "numpyro", "this library, no settings"),
    "yoasovi, mean-field": Peer(ours, {"family": "mean_field", **_LIKE}, "numpyro", "the family of AutoNormal, unmended"),
    "yoasovi, full-rank": Peer(
        ours, {"family": "full_rank", **_LIKE}, "numpyro", "that of AutoMultivariateNormal, unmended", True
    ),
    **{
        f"SVI {guide}, Adam {rate:g}": Peer(
            svi, {"guide": guide, "rate": rate}, "numpyro", f"NumPyro's SVI, one draw, {_STEPS}", guide != "AutoNormal"
        )
        for guide in ("AutoNormal", "AutoMultivariateNormal")
        for rate in (0.01, 0.001)
    },
    "BlackJAX meanfield_vi": Peer(gaussian_vi, {"name": "meanfield_vi"}, "blackjax", f"Adam 0.01, 100 draws, {_STEPS}"),
    "BlackJAX fullrank_vi": Peer(gaussian_vi, {"name": "fullrank_vi"}, "blackjax", f"Adam 0.01, 100 draws, {_STEPS}", True),
    "BlackJAX pathfinder": Peer(pathfinder, {"paths": 1}, "blackjax", "its defaults"),
    "BlackJAX multipathfinder": Peer(pathfinder, {"paths": PATHS}, "blackjax", f"{PATHS} paths, its defaults"),
    "PyMC ADVI": Peer(pymc, {"method": "advi"}, "pymc", f"its defaults: {_STEPS}"),
    "PyMC fullrank ADVI": Peer(pymc, {"method": "fullrank_advi"}, "pymc", f"its defaults: {_STEPS}", True),
    "fixed draws, L-BFGS": Peer(fixed_draws, {}, "scipy", f"ADVI on {FIXED_DRAWS} fixed draws, SciPy's L-BFGS"),
    "NUTS": Peer(nuts, {}, "numpyro", f"NumPyro, {CHAINS} chains side by side, {WARMUP:,} + {KEPT:,}"),
    **{
        name: Peer(ours, {"method": name, "family": "mean_field"}, "numpyro", "the paper's setting, mean-field")
        for name in _PAPER
    },
}
