"""Non-centred forms: sites whose law has a location and a scale that depend on other sites, in units of that law.

Where a law is tau times narrower, q would have to be so too, which no Gaussian is: a funnel. In units of its own law a site
is as wide everywhere. Nothing else of the model changes, nor does log p(y): ELBOs of the forms of one model compare. The
change is part of the way from the unconstrained scale to the sites' own, so that all else sees the sites as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from numpyro.distributions import Distribution, ImproperUniform

from yoasovi.errors import check

if TYPE_CHECKING:
    from yoasovi.model.model import Model

_HALFWAY = 0.5
_WAYS = {0.0: "non-centred", _HALFWAY: "halfway centred"}


class Frame(NamedTuple):
    """Location and scale of a site's law, on the unconstrained scale."""

    loc: Any
    scale: Any  # of each coordinate; where the law is a `joint` one, a lower triangular factor (..., d, d)
    standard: Distribution  # the law of (site - loc) / scale, one coordinate
    joint: bool = False

    def outward(self, z: Any, centred: float) -> tuple[Any, Any]:
        """Give the site x and log p(z), where x = loc + scale^(1-c) (z - c loc) (Gorinova, Moore and Hoffman 2020).

        At c = 0, z is the noise of the law; at c = 1 it is the site. A joint law has c = 0 only. log p is made from the
        noise: x - loc has lost its digits where the scale is small, and log p would be infinite there.
        """
        noise, log_scale = z, jnp.zeros(())
        if centred and not self.joint:
            noise, log_scale = (z - centred * self.loc) / self.scale**centred, centred * jnp.log(self.scale)
        away = jnp.squeeze(self.scale @ noise[..., None], -1) if self.joint else self.scale * noise
        return self.loc + away, jnp.sum(self.standard.log_prob(noise) - log_scale)

    def inward(self, x: Any, centred: float) -> Any:
        """Give what `outward` makes the site of."""
        away = x - self.loc
        if self.joint:
            factor = jnp.broadcast_to(self.scale, (*away.shape, away.shape[-1]))
            return jnp.squeeze(solve_triangular(factor, away[..., None], lower=True), -1)
        return centred * self.loc + away / self.scale ** (1.0 - centred)


class Frames(Protocol):
    """What a door knows of a model's sites that have a frame which depends on other sites."""

    @property
    def names(self) -> tuple[str, ...]:
        """Their names, those first that others depend on."""
        ...

    @property
    def joint(self) -> frozenset[str]:
        """Those that cannot be partly centred."""
        ...

    def visit(self, names: Iterable[str], params: Mapping[str, Any], data: Any, put: Callable[[str, Frame], Any]) -> None:
        """Ask `put` for the value of each of the sites, given its frame, those first that others depend on.

        Of `params` only the other sites count.
        """
        ...

    def without(self, model: Model, names: Iterable[str]) -> Model:
        """Give the model with log p of exactly these sites left out of its terms."""
        ...


@dataclass(frozen=True)
class Centring:
    """Sites that can be non-centred, and those that are, each with how far it is centred still."""

    frames: Frames
    centred: tuple[tuple[str, float], ...] = ()

    def outward(
        self, free: Mapping[str, Any], transforms: Mapping[str, Any], data: Any
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Give all sites on the unconstrained scale of their own supports; also log p of those that are non-centred."""
        centred, found, log_probs = dict(self.centred), dict(free), {}

        def put(name: str, frame: Any) -> Any:
            found[name], log_probs[name] = frame.outward(free[name], centred[name])
            return transforms[name](found[name])

        self.frames.visit(centred, {k: transforms[k](x) for k, x in free.items()}, data, put)
        return found, log_probs

    def inward(self, free: Mapping[str, Any], transforms: Mapping[str, Any], data: Any) -> dict[str, Any]:
        """Give what `outward` makes these sites of."""
        centred, found = dict(self.centred), dict(free)
        params = {k: transforms[k](x) for k, x in free.items()}

        def put(name: str, frame: Any) -> Any:
            found[name] = frame.inward(free[name], centred[name])
            return params[name]

        self.frames.visit(centred, params, data, put)
        return found


def noncentred(model: Model, sites: Iterable[str] | None = None, centred: float = 0.0) -> Model | None:
    """Give the same posterior with some sites in units of their law; None if the model has no such sites.

    These are sites of a NumPyro or PyMC model whose law is a Normal, StudentT, Cauchy, Laplace, Logistic, Gumbel,
    LogNormal or MultivariateNormal with a location or scale that depends on other sites. Draws, summaries, predictions
    and labelled output are in the model's own parameters as before.

    Parameters
    ----------
    model
        A `Model` from `from_numpyro` or `from_pymc`.
    sites
        Their names; by default all.
    centred
        From 0, non-centred, up to 1, as it was. A multivariate law is non-centred for any value below 1.
    """
    from yoasovi.model.model import Model

    check(isinstance(model, Model), "model", "noncentred", "a Model, as `from_numpyro` or `from_pymc` makes it", model)
    check(0.0 <= centred < 1.0, "centred", "noncentred", "at least 0 and below 1", centred)
    if model.centring is None:
        return None
    names = model.centring.frames.names if sites is None else tuple(sites)
    return recentred(model, dict.fromkeys(names, float(centred)))


def recentred(model: Model, centred: Mapping[str, float]) -> Model:
    """Give the model with exactly these sites non-centred, each as far centred as it says."""
    if model.centring is None:
        check(not centred, "sites", "noncentred", "empty: the model has none that can be non-centred", list(centred))
        return model
    known = model.centring.frames.names
    unknown = sorted(set(centred) - set(known))
    check(not unknown, "sites", "noncentred", f"among those that can be non-centred ({', '.join(known)})", unknown)
    forms = model.__dict__.setdefault("_forms", {})  # a form that was made before has its programs compiled
    key = tuple(centred.items())
    if key not in forms:
        other = model.centring.frames.without(model, tuple(centred))
        forms[key] = replace(other, centring=replace(model.centring, centred=key))
    return forms[key]


def reparameterisations(model: Model, funnel: tuple[str, str] | None = None) -> list[tuple[str, Model]]:
    """List other forms of a model, each with a description, the most promising first.

    `funnel` is the pair of labels that a verdict names: the one whose value changes the scale of the other. Its sites
    come first, if they can be non-centred and others can be too; then all sites, then all halfway.
    """
    if model.centring is None:
        return []
    frames = model.centring.frames
    named = set(map(_site, funnel or ()))
    hurt = tuple(k for k in frames.names if k in named)
    forms = [dict.fromkeys(hurt, 0.0), dict.fromkeys(frames.names, 0.0)]
    forms.append({k: 0.0 if k in frames.joint else _HALFWAY for k in frames.names})
    fresh = [x for i, x in enumerate(forms) if x and x != model.centred and x not in forms[:i]]
    return [(_described(x), recentred(model, x)) for x in fresh]


def may_be_centred(model: Model, funnel: tuple[str, str] | None) -> bool:
    """Tell whether sites of a funnel (any, where none is named) may have a non-centred form that is not in use yet."""
    named = set(map(_site, funnel)) if funnel else set(model.prior)
    if model.centring is not None:
        return any(k in named and model.centred.get(k) != 0.0 for k in model.centring.frames.names)
    if getattr(model.log_likelihood, "shows_frames", False):
        return False  # they would have been found
    return any(isinstance(model.prior.get(k), ImproperUniform) for k in named)  # its law is somewhere inside log p


def in_use(label: str, centred: float | None) -> str:
    """Name a number of q's, which is not the site's own where that has another form."""
    return label if centred is None else f"{label} ({_WAYS.get(centred, f'{centred:g} centred')})"


def _site(label: str) -> str:
    """Give the site of a name that `in_use` gave."""
    return label.split("[")[0].split(" (")[0]


def _described(centred: Mapping[str, float]) -> str:
    said = {way: ", ".join(k for k, x in centred.items() if x == c) for c, way in _WAYS.items()}
    return "; ".join(f"{names} {way}" for way, names in said.items() if names)
