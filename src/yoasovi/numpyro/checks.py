"""Models that cannot be fitted, refused by the name of the site at fault."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from numpyro.distributions import constraints
from numpyro.handlers import seed, substitute

from yoasovi.errors import shown
from yoasovi.numpyro.laws import is_improper, is_masked, kernel, layers, masks
from yoasovi.numpyro.looking import Look, Outline, Range, look_at, look_once, look_twice
from yoasovi.numpyro.replay import Source

_ENDLESS = (
    constraints.real, constraints.positive, constraints.nonnegative, constraints.real_vector, constraints.ordered_vector,
    constraints.positive_ordered_vector, constraints.greater_than(0), constraints.less_than(0),
)  # fmt: skip

_POINTS = 8  # where slopes are looked at


def check_look(look: Outline) -> None:
    """Refuse, by name, the sites that cannot be fitted."""
    if loose := [k for k, s in look.sites.items() if s["type"] == "param" and _matters(k, s["value"], look)]:
        raise ValueError(
            f"The NumPyro model has parameters without a prior, {', '.join(map(repr, loose))}, which a fit leaves as they "
            "begin: give them priors by `numpyro.sample` or `random_flax_module`, or values by `handlers.substitute`."
        )
    if not look.latents:
        raise ValueError("The NumPyro model has no latent site: there is nothing to infer.")
    if unknown := [k for k in look.latents if look.sites[k]["fn"].support is None]:
        law = type(look.sites[unknown[0]]["fn"]).__name__
        raise ValueError(f"Site {unknown[0]!r} of the NumPyro model has a {law} law, whose support NumPyro does not know.")
    if _is_doubtful(look):
        looks = look_twice(look.source)
        for name in looks[0].log_probs:
            _check_missing(name, looks[0])
            faults = [_fault(name, x) for x in looks]
            if all(faults):  # whatever the values of other sites
                raise ValueError(f"Site {name!r} of the NumPyro model: {faults[0]}")
    for name, known in look.ranges.items():
        _check_inside(name, known, look)
    _check_improper(look)


def _matters(name: str, value: Any, look: Outline) -> bool:
    """Say whether log p depends on the value of a parameter that `numpyro.param` begins with."""
    found: list[bool] = []

    def probe(one):
        # Under `vmap` over changes of the value, exactly what depends on it is a tracer of `vmap`.
        changed = jax.tree.map(lambda x: jnp.asarray(x) + one.astype(jnp.result_type(x)), value)
        put = lambda site: changed if (site["type"], site["name"], site["value"]) == ("param", name, None) else None
        source = look.source._replace(fn=substitute(seed(look.source.fn, 0), substitute_fn=put))
        found.append(any(isinstance(x, type(one)) for x in jax.tree.leaves(source.log_probs({})[0])))

    jax.eval_shape(jax.vmap(probe), jax.ShapeDtypeStruct((2,), jnp.result_type(float)))
    return found[0]


def _check_improper(look: Outline) -> None:
    """Refuse sites that nothing keeps from going anywhere."""
    kinds = tuple(type(x) for x in _ENDLESS)
    for name in look.latents:
        if not isinstance(kernel(look.supports[name]), kinds):
            continue
        law = look.sites[name]["fn"]
        if _leaves_out(law) and (loose := _loose(name, look.source)):
            raise ValueError(
                f"Site {name!r} of the NumPyro model has {loose:,} value(s) that a mask leaves without a prior, and nothing "
                "else depends on them: their posterior is improper. Leave those values out of the site, or give "
                "them a prior (with NumPyro's `obs_mask` the site has all values, the observed ones too)."
            )
        if is_improper(law) and look_at(look.source, (name,)).touched <= {name}:
            raise ValueError(
                f"Site {name!r} of the NumPyro model has an improper prior, and nothing else depends on it: its posterior "
                "is improper too. Give it a proper prior, or let an observation depend on it."
            )


def _leaves_out(law: dist.Distribution) -> bool:
    """Say whether a mask that is known leaves out some of a law's log probabilities."""
    return any(not isinstance(x, jax.ShapeDtypeStruct) and not np.all(x) for x, _ in masks(law))


def _loose(name: str, source: Source) -> int:
    """Count the values of a site that log p does not depend on: its slope there is zero at every point."""

    def slope(key):
        values = look_once(source, key).values
        total = lambda x: sum(jnp.sum(term) for term in source.log_probs({**values, name: x})[0].values())
        return jax.grad(total)(values[name])

    try:
        return int((np.asarray(jax.jit(jax.vmap(slope))(np.arange(_POINTS))) == 0.0).all(0).sum())
    except Exception:  # a model without gradients may be one all the same
        return 0


def _is_doubtful(look: Outline) -> bool:
    """Say whether a number that is known, without computing anything, may make a log probability NaN."""
    samples = [s for s in look.sites.values() if s["type"] == "sample"]
    numbers = jax.tree.leaves(([(s["fn"], s["value"]) for s in samples], look.constants))
    return any(map(_is_lost, numbers)) or any(_is_invalid(look.sites[k]["fn"]) for k in look.latents)


def _is_lost(x) -> bool:
    known = not isinstance(x, jax.ShapeDtypeStruct) and jnp.issubdtype(getattr(x, "dtype", type(x)), np.floating)
    return known and bool(np.isnan(np.asarray(x)).any())


def _is_invalid(law: dist.Distribution) -> bool:
    """Say whether a parameter that is known is none of those that the law may have."""
    may = ((x, k, kernel(c)) for x in layers(law) for k, c in x.arg_constraints.items() if not constraints.is_dependent(c))
    known = ((vars(x).get(k), c) for x, k, c in may)
    return not all(np.all(c(np.asarray(x))) for x, c in known if isinstance(x, (int, float, np.ndarray)))


def _check_missing(name: str, look: Look) -> None:
    site = look.sites[name]
    missing = int(np.isnan(np.asarray(site["value"], float)).sum()) if site["is_observed"] else 0
    if missing and (not is_masked(site["fn"]) or np.isnan(look.log_probs[name]).any()):
        raise ValueError(
            f"Observed site {name!r} of the NumPyro model has {missing} missing value(s) (NaN). Drop them, mask the site "
            "with `numpyro.handlers.mask`, or put a latent site in their places."
        )


def _check_inside(name: str, known: Range, look: Outline) -> None:
    """Refuse observations that cannot be, whatever the latent sites; what is masked may be anything."""
    site, kind = look.sites[name], kernel(known.support)
    if any(isinstance(x, jax.ShapeDtypeStruct) for x in jax.tree.leaves((known, site["value"]))):
        return
    if "_scan_current_index" in site["infer"] and (known.masks or jax.tree.leaves(kind)):
        return  # bounds and masks of all steps, whose axes are not those of the values
    if not isinstance(kind, constraints.Constraint) or kind.event_dim > 1:  # of matrices, which costs more
        return
    value = np.asarray(site["value"])
    outside = ~np.asarray(kind(value))
    if not outside.any():
        return
    for mask, dim in known.masks:
        spread = np.expand_dims(np.asarray(mask), tuple(range(-(dim - kind.event_dim), 0)))
        outside = outside & spread
    value = np.broadcast_to(value, (*outside.shape, *value.shape[value.ndim - kind.event_dim :]))
    found = value[outside & ~np.isnan(value.sum(-1) if kind.event_dim else value)]
    if len(found):
        law = type([*layers(site["fn"])][-1]).__name__
        raise ValueError(
            f"Observed site {name!r} of the NumPyro model has {len(found):,} value(s) that its {law} law cannot give, such "
            f"as {shown(found[0].tolist())}. Correct or drop them, mask the site with `numpyro.handlers.mask`, or choose "
            "another law."
        )


def _fault(name: str, look: Look) -> str:
    """Say what is wrong with the parameters of a site's law, if anything."""
    law, lost = look.sites[name]["fn"], lambda x: bool(np.isnan(np.asarray(x, float)).any())
    nowhere = lost(look.log_probs[name])
    if name not in look.latents:  # the law of an observation may overflow where latent sites are far off
        parts = [x for x in jax.tree.leaves(law) if jnp.issubdtype(jnp.result_type(x), np.floating)]
        return "its law has NaN parameters." if nowhere and any(map(lost, parts)) else ""
    try:
        for layer in layers(law):
            layer.validate_args()
    except ValueError as error:
        return str(error)
    return f"the log probability of its {type(law).__name__} law is NaN." if nowhere else ""
