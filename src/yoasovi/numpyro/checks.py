"""Models that cannot be fitted, refused by the name of the site at fault."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import constraints

from yoasovi.numpyro.laws import is_improper, is_masked, kernel, layers
from yoasovi.numpyro.looking import Look, touched
from yoasovi.numpyro.replay import Source

_ENDLESS = (
    constraints.real, constraints.positive, constraints.nonnegative, constraints.real_vector, constraints.ordered_vector,
    constraints.positive_ordered_vector, constraints.greater_than(0), constraints.less_than(0),
)  # fmt: skip


def check_looks(first: Look, second: Look) -> None:
    """Refuse, by name, the sites that cannot be fitted."""
    for name, site in first.sites.items():
        if site["type"] == "param" and not name.endswith("$params"):  # those of random modules have priors
            text = f"`numpyro.param` site {name!r} keeps its initial value; give it a prior to have it inferred."
            warnings.warn(text, stacklevel=3)
    if not first.latents:
        raise ValueError("The NumPyro model has no latent site: there is nothing to infer.")
    for name in dict.fromkeys((*first.log_probs, *second.log_probs)):
        shapes = [np.shape(x.sites[name]["value"]) if name in x.sites else "no such site" for x in (first, second)]
        if shapes[0] != shapes[1]:
            raise ValueError(
                f"Site {name!r} of the NumPyro model changes with the values of other sites: {shapes[0]} in one run, "
                f"{shapes[1]} in another. Sites and their shapes must stay the same."
            )
        _check_missing(name, first)
        faults = [_fault(name, x) for x in (first, second)]
        if all(faults):  # whatever the values of other sites
            raise ValueError(f"Site {name!r} of the NumPyro model: {faults[0]}")


def check_improper(source: Source, looks: tuple[Look, Look]) -> None:
    """Refuse sites that nothing keeps from going anywhere."""
    kinds, first = tuple(type(x) for x in _ENDLESS), looks[0].values
    for name in looks[0].latents:
        law = looks[0].sites[name]["fn"]
        if not is_improper(law) or not isinstance(kernel(law.support), kinds):
            continue
        given = {k: v for k, v in first.items() if k != name}
        if touched(source, [{name: x.values[name]} for x in looks], given)[2] <= {name}:
            raise ValueError(
                f"Site {name!r} of the NumPyro model has an improper prior, and nothing else depends on it: its posterior "
                "is improper too. Give it a proper prior, or let an observation depend on it."
            )


def _check_missing(name: str, look: Look) -> None:
    site = look.sites[name]
    missing = int(np.isnan(np.asarray(site["value"], float)).sum()) if site["is_observed"] else 0
    if missing and (not is_masked(site["fn"]) or np.isnan(look.log_probs[name]).any()):
        raise ValueError(
            f"Observed site {name!r} of the NumPyro model has {missing} missing value(s) (NaN). Drop them, mask them "
            "with `numpyro.handlers.mask`, or make them latent with `obs_mask`."
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
