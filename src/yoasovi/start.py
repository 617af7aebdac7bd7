"""Where a fit begins: the prior's own centre and scales, then a climb of log p if the ELBO gains by it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import jax
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import biject_to
from scipy.special import digamma, polygamma

from yoasovi.climb import LAST_FEW, climb, climb_by_part
from yoasovi.errors import check
from yoasovi.kernels.looks import is_real
from yoasovi.kernels.programs import as_arrays, precision
from yoasovi.model import Model, Params
from yoasovi.randomness import Purpose, stream, words
from yoasovi.windows import judge
from yoasovi.windows.state import COLD_TRUST, WARM_TRUST

# Scales of q at the start, relative to the prior's (at most one): too narrow costs a window, too wide can cost the fit.
_COLD_SCALE, _WARM_SCALE = float(np.exp(-1.0)), 0.02
_PAIRS = 64  # on which a climbed start is judged
NO_DRAWS = (NotImplementedError, ImportError)  # what a law raises that is improper, or needs a library to be drawn from
_TRIES = 32  # places where log p may be finite, if it is not in the middle of the prior


class Origin(NamedTuple):
    """Where natural steps set out, and whether to climb an ELBO from there before anything else; lanes lead."""

    mean: np.ndarray
    scale: np.ndarray
    far: np.ndarray


class Begin(NamedTuple):
    """Starts of all lanes, and what they cost."""

    params: Any
    trust: np.ndarray
    origin: Origin | None = None
    values: int = 0
    gradients: int = 0
    refused: tuple[int, int] = (0, 0)  # looks at which log p, or only its gradient, was not finite


def places(model: Model, seed: int, lanes: int) -> tuple[np.ndarray, np.ndarray]:
    """Give flat unconstrained means and scales, (lanes, d): the priors' own, or the model's own start.

    The first lane begins near the middle; others are as far apart as the prior. A model's own start is as random as it
    wants to be.
    """
    centres, scales = [], []
    for site in model.density.sites:
        centre, scale = middle(model.prior[site.name]) or (0.0, 1.0)
        wide = lambda x, site=site: np.ravel(np.broadcast_to(np.asarray(x, float), site.free_shape))
        centres.append(wide(centre))
        scales.append(wide(scale))
    centre, width = np.concatenate(centres), np.concatenate(scales)
    sound = np.isfinite(centre) & np.isfinite(width) & (width > 0)
    centre, width = np.where(sound, centre, 0.0), np.where(sound, width, 1.0)
    jitter = np.stack([0.1 * np.minimum(width, 1.0)] + [np.minimum(width, 2.0)] * (lanes - 1))
    begin = centre + jitter * stream(seed, Purpose.START).standard_normal((lanes, centre.size))
    free = _own_starts(getattr(model.start, "free", None), seed, lanes)  # then nothing has to be mapped back
    if free:
        begin = np.concatenate([free[site.name].reshape(lanes, -1) for site in model.density.sites], 1)
    elif given := _own_starts(model.start, seed, lanes):
        _check_sites(model, given)
        begin = _unconstrained(model, given, np.broadcast_to(centre, begin.shape))
    if model.centred and model.start is not None:  # starts are on the sites' own scales
        begin = np.stack([_inward(model, row) for row in begin])
    return begin, np.broadcast_to(np.minimum(width, 1.0), begin.shape)


def own_start(model: Model, seed: int, lane: int) -> Params:
    """Give the point where the model itself wants to begin; empty if it does not say."""
    given = {} if model.start is None else _started(model.start, seed, lane)
    _check_sites(model, given)
    return given


def _check_sites(model: Model, given: Params) -> None:
    sites = [s.name for s in (*model.density.sites, *model.density.local_sites)]
    unknown = sorted(set(given) - set(sites))
    check(not unknown, "start", "Model", f"a function giving values of the sites ({', '.join(sites)})", unknown)


def _own_starts(start: Callable | None, seed: int, lanes: int) -> Params:
    """Give a model's own starts of all lanes, stacked; empty if it has none."""
    if start is None:
        return {}
    rest = getattr(start, "many", None)  # all lanes after the first from one stream: a thousand would take a second
    given = [_started(start, seed, lane) for lane in range(1 if rest else lanes)]
    stacked = {k: np.stack([np.asarray(point[k]) for point in given]) for k in given[0]}
    if rest is None or lanes == 1:
        return stacked
    others = rest(words(seed, Purpose.MODEL_START, 1), lanes - 1)
    return {k: np.concatenate([v, others[k]]) for k, v in stacked.items()}


def _started(start: Callable, seed: int, lane: int) -> Params:
    pair = words(seed, Purpose.MODEL_START, lane)
    if hasattr(start, "from_words"):  # NumPy is enough for it: a key for each of a thousand lanes takes a second
        return start.from_words(pair)
    with precision():
        return {k: np.asarray(v) for k, v in start(as_key(pair)).items()}


def as_key(pair: Any) -> jax.Array:
    """Make a JAX key of two words."""
    return jax.random.wrap_key_data(pair)


def prior_draw(model: Model, seed: int, lane: int) -> Params:
    """Draw every continuous site that has a proper prior."""
    out = {}
    with precision():
        for i, (name, law) in enumerate(model.prior.items()):
            with suppress(*NO_DRAWS):
                if not law.is_discrete:
                    out[name] = np.asarray(law.sample(as_key(words(seed, Purpose.PRIOR, lane, i))))
    return out


def prior_rows(law: dist.Distribution, n: int, seed: int, place: int) -> np.ndarray | None:
    """Draw n times from a law, on the unconstrained scale; None where it is improper."""
    with precision(), suppress(*NO_DRAWS):
        draws = law.sample(as_key(words(seed, Purpose.PRIOR, 0, place)), (n,))
        return np.asarray(biject_to(law.support).inv(draws), float)
    return None


def cold_start(model: Model, family: Any, seed: int, lanes: int = 1) -> Begin:
    """Give the family's first parameters."""
    centre, scale = places(model, seed, lanes)
    params = family.init(centre, _COLD_SCALE * scale, stream(seed, Purpose.LOADINGS))
    return Begin(params, np.full(lanes, COLD_TRUST))


def warm_start(
    model: Model, kernels: Any, family: Any, seed: int, lanes: int = 1, budget: int = 100, part: Any = None
) -> Begin:  # fmt: skip
    """Climb log p from the cold start; take the place found, narrowly, only if the ELBO gains on common draws.

    Where it does not (a hierarchy's log p can rise for ever as a scale goes to zero) the posterior may be far. What is
    climbed, and judged, is log p of all the data, also where windows look at minibatches: the top of a single minibatch can
    be many posterior standard deviations away, and the way back costs more. `part` looks at a part of the data that is
    large enough to show most of the way.
    """
    centre, scale = places(model, seed, lanes)
    rng = stream(seed, Purpose.LOADINGS)
    cold = family.init(centre, _COLD_SCALE * scale, rng)
    near = 20.0 * centre.shape[1]
    if part is not None and lanes == 1:
        found = climb_by_part(part.point, kernels.point, centre, budget, near)
    else:
        found = climb(kernels.point, centre, budget, near=near, leave=LAST_FEW)
    if (lost := ~np.isfinite(found.height)).any() and model.start is None:  # no climb sets out where log p is not finite
        centre = np.where(lost[:, None], _anywhere(kernels, seed, centre.shape), centre)
        cold = family.init(centre, _COLD_SCALE * scale, rng)
        again = climb(kernels.point, centre, budget, near=near, leave=LAST_FEW)
        spent, refused = again.gradients + found.gradients + _TRIES, again.refused + found.refused
        found = again._replace(gradients=spent, refused=refused)
    warm = family.init(found.top, _WARM_SCALE * scale, rng)
    worth = ~found.given_up & np.isfinite(found.height)
    tally = judge.empty(np.zeros(lanes))
    noise = stream(seed, Purpose.START_JUDGE)
    some = np.flatnonzero(worth)
    size, block = family.noise_size(model.density), judge.BLOCK if kernels.cheap else judge.SMALL_BLOCK
    while some.size and tally.drawn[some[0]] < _PAIRS:
        eps = noise.standard_normal((some.size, block, size))
        pairs = kernels.pairs(take(warm, some), take(cold, some), eps)
        tally = put(tally, some, judge.add(take(tally, some), *pairs))
        some = some[~judge.sure(take(tally, some), block=block)]
    gain = judge.gained(tally)
    better = worth & (gain.mean > 0)
    params = jax.tree.map(lambda a, b: np.where(better.reshape(-1, *[1] * (a.ndim - 1)), a, b), warm, cold)
    lost = (int(found.refused[0].sum() + gain.nonfinite.sum()), int(found.refused[1].sum()))
    trust = np.where(better, WARM_TRUST, COLD_TRUST)
    origin = Origin(centre, _COLD_SCALE * scale, ~better)
    return Begin(params, trust, origin, 2 * int(tally.drawn.sum()), int(found.gradients.sum()), lost)


def _anywhere(kernels: Any, seed: int, shape: tuple[int, int]) -> np.ndarray:
    """Give points, one per lane, at which log p is finite: near zero on the unconstrained scale, or up to 2 away."""
    rng = stream(seed, Purpose.START, 1)
    tries = rng.uniform(-2.0, 2.0, (_TRIES, *shape)) * np.linspace(0.05, 1.0, _TRIES)[:, None, None]
    heights = kernels.point(tries.reshape(-1, shape[1]))[0].reshape(tries.shape[:2])
    return tries[np.argmax(np.isfinite(heights), 0), np.arange(shape[0])]


def take(tree: Any, lanes: Any) -> Any:
    """Give some lanes of stacked arrays; `lanes` is one, or increasing."""
    return tree if _are_all(lanes, tree) else jax.tree.map(lambda x: x[lanes], tree)


def put(tree: Any, lanes: Any, part: Any) -> Any:
    """Give stacked arrays with some lanes replaced."""

    def one(whole, new):
        whole = np.array(whole)
        whole[lanes] = new
        return whole

    return part if _are_all(lanes, tree) else jax.tree.map(one, tree, part)


def _are_all(lanes: Any, tree: Any) -> bool:
    """Say whether no lane is left out, as with a single fit: then nothing has to be picked or copied."""
    if not isinstance(lanes, np.ndarray) or lanes.dtype.kind != "i":
        return False
    leaves = jax.tree.leaves(tree)
    return not leaves or len(lanes) == len(leaves[0])


# ---- the middle of a prior, on the unconstrained scale -----------------------------------------------------

_EULER = 0.5772156649
_VAGUE, _WIDEST = 0.1, 5.0  # shape of a gamma law that says next to nothing, and the most that a logarithm may spread
_SPREAD_OF_A_LOGARITHM = float(np.pi / np.sqrt(6.0))  # of an exponential law


def middle(law: dist.Distribution) -> tuple[Any, Any] | None:
    """Give centre and scale of a law on the unconstrained scale; None for improper laws, and for those not known here."""
    while isinstance(law, dist.ExpandedDistribution | dist.Independent | dist.MaskedDistribution):
        law = law.base_dist
    known = _MIDDLES.get(type(law))
    if known is None:
        return None
    with np.errstate(all="ignore"):
        return known(law)


def _log_gamma_law(shape: Any) -> tuple[Any, Any]:
    """Middle and spread of the logarithm of a Gamma(shape, 1): mean and standard deviation, or its mode where it is vague.

    The logarithm of a Gamma(0.001, 1) has mean -1000 and as large a deviation, which is no place to begin.
    """
    shape = np.asarray(shape, float)
    return np.where(shape < _VAGUE, np.log(shape), digamma(shape)), np.minimum(np.sqrt(polygamma(1, shape)), _WIDEST)


def _logit_beta(law: Any) -> tuple[Any, Any]:
    (a, spread_a), (b, spread_b) = _log_gamma_law(law.concentration1), _log_gamma_law(law.concentration0)
    return a - b, np.hypot(spread_a, spread_b)


def _half(law: Any) -> tuple[Any, Any] | None:
    """Half of a law about zero, as a scale may have: `TruncatedDistribution(StudentT(3, 0, 10), low=0.0)`."""
    base = law.base_dist
    about_zero = hasattr(base, "loc") and not np.any(base.loc) and not np.any(getattr(law, "low", 0.0))
    return (np.log(base.scale) - 0.3, 1.3) if about_zero else None


_location = lambda law: (np.asarray(law.loc), np.asarray(law.scale))
_MIDDLES: dict[type, Any] = {
    **dict.fromkeys((dist.Normal, dist.Cauchy, dist.StudentT, dist.Laplace, dist.Logistic, dist.Gumbel), _location),
    dist.LogNormal: _location,
    dist.MultivariateNormal: lambda law: (np.asarray(law.loc), np.sqrt(np.sum(np.asarray(law.scale_tril) ** 2, -1))),
    dist.HalfNormal: lambda law: (np.log(law.scale) - 0.635, 1.11),
    **dict.fromkeys((dist.LeftTruncatedDistribution, dist.FoldedDistribution), _half),
    dist.HalfCauchy: lambda law: (np.log(law.scale), 0.5 * np.pi),
    dist.Exponential: lambda law: (-_EULER - np.log(law.rate), _SPREAD_OF_A_LOGARITHM),
    dist.Gamma: lambda law: (_log_gamma_law(law.concentration)[0] - np.log(law.rate), _log_gamma_law(law.concentration)[1]),
    dist.InverseGamma: lambda law: (
        np.log(law.rate) - _log_gamma_law(law.concentration)[0], _log_gamma_law(law.concentration)[1]
    ),
    dist.Beta: _logit_beta,
    dist.Uniform: lambda law: (0.0, 1.6),
}  # fmt: skip


def _inward(model: Model, flat: np.ndarray) -> np.ndarray:
    """Give a point of the centred form in the coordinates of the model's own."""
    with precision():
        return np.asarray(jax.jit(model.density.inward)(as_arrays(model.inputs), model.density.split(flat)))


def _unconstrained(model: Model, given: Params, centre: np.ndarray) -> np.ndarray:
    """Give points on the sites' own supports as flat vectors (lanes, d); sites that are not given are in their middle."""
    parts, free = [], model.density.split(centre)
    with precision():
        for site in model.density.sites:
            there, support = given.get(site.name), model.prior[site.name].support
            if there is None:
                there = free[site.name]
            elif not is_real(support):
                there = np.asarray(biject_to(support).inv(there))
            parts.append(np.reshape(np.asarray(there, float), (len(centre), -1)))
    return np.concatenate(parts, 1)
