"""What is known of a fit beside its numbers: its model's priors, its settings, versions, and how to run it again."""

from __future__ import annotations

import ast
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from numpyro.distributions import Distribution, ImproperUniform

from yoasovi.answer import mixture
from yoasovi.model import HostDensity, Site, WholeDensity
from yoasovi.model.words import in_words


def priors(model: Any) -> list[tuple[str, str, str]]:
    """Give parameter, size and prior: of each site, or of each of its numbers where their laws differ."""
    told = model.priors
    rows: list[tuple[str, str, str]] = []
    for s in model.density.sites:
        each = [(name, "1", told[name]) for name in model.names(s.name, s.shape) if name in told]
        rows += each if each and s.shape else [(s.name, _size(s), told.get(s.name) or _elsewhere(model, s.name))]
    if not hasattr(model, "local"):  # a fit that was loaded without its model
        return rows
    known = model.labels.priors if model.labels is not None else {}
    for s in model.density.local_sites:
        law = model.local[s.name]
        said = in_words(law) if isinstance(law, Distribution) else "a law that depends on other sites"
        rows.append((s.name, "one per observation", known.get(s.name) or said))
    return rows


def _elsewhere(model: Any, site: str) -> str:
    """Say where the prior of a site is that is not told by name."""
    if not hasattr(model, "prior"):
        return "not known without the model"
    if not isinstance(model.prior[site], ImproperUniform):
        return in_words(model.prior[site])
    if isinstance(model.log_likelihood, WholeDensity | HostDensity):
        return "part of the log density that was given"
    return "improper uniform; any law it has is among the terms of the likelihood"


def _size(site: Site) -> str:
    return " × ".join(map(str, site.shape)) or "1"


def settings(fit: Any) -> list[tuple[str, str]]:
    """Give what decided the fit, and how it ended."""
    parts = {
        k: repr(getattr(fit.method, k))
        for k in ("draws", "gradient", "acceptance", "optimizer", "stopping")
        if hasattr(fit.method, k)
    } or {"parts": repr(fit.method)}  # a loaded fit knows its method as text
    restarts = f"{len(fit.restart_elbos)}, ELBOs {', '.join(f'{e.value:,.2f}' for e in fit.restart_elbos)}"
    return [
        ("method", fit.method.name), ("family", f"{fit.family.name} ({fit.family_reason})"), ("seed", str(fit.seed)),
        *([("modes", mixture.in_words(fit.parts))] if fit.parts else []),
        ("restarts", restarts), ("stopped", str(fit.stop_reason)), *parts.items(),
        *(("refined", str(chains)) for chains in mixture.chains_of(fit)),
        ("seconds", _waited(fit)),
        ("terms of the likelihood", f"{fit.model.num_observations:,}"),
        ("draws that were not finite", f"{fit.num_nonfinite:,}"),
    ]  # fmt: skip


def _waited(fit: Any) -> str:
    """Say what was waited for, by stage, until the report was drawn."""
    stages = fit.seconds.stages
    each = ", ".join(f"{name} {seconds:.2f}" for name, seconds in stages.items())
    said = f"{sum(stages.values()):.2f} in all: {each}; " if stages else ""
    return f"{said}{fit.seconds.compile:.2f} of the fit went into compiling"


def versions() -> list[tuple[str, str]]:
    """Give the versions of all that the numbers depend on."""
    import jax

    from yoasovi import __version__

    out = [("python", sys.version.split()[0]), ("yoasovi", __version__)]  # that of the code, however it was installed
    for name in ("jax", "jaxlib", "numpyro", "optax", "numpy", "scipy", "arviz-stats"):
        try:
            out.append((name, version(name)))
        except PackageNotFoundError:
            out.append((name, "not installed"))
    return [*out, ("machine", f"{platform.system()} {platform.machine()}, JAX on {jax.default_backend()}")]


# ---- run it again ----------------------------------------------------------------------------------------


class Again(NamedTuple):
    """Code that repeats fits and their report, and what it needs that this file cannot hold."""

    code: str
    needs: list[tuple[str, str]]  # a name, and what it stands for


def again(fits: list[Any], path: Path) -> Again:
    """Write the calls of `fit` as they were made; models, and objects among the arguments, have to be there before."""
    models = list({id(f.model): f.model for f in fits}.values())
    names = {id(m): "model" if len(models) == 1 else f"model_{i + 1}" for i, m in enumerate(models)}
    needs = [(names[id(m)], _described(m)) for m in models]
    calls = []
    for fit in fits:
        call, missing = _call(fit, names[id(fit.model)])
        calls.append(call)
        needs += [x for x in missing if x not in needs]
    if len(fits) == 1:
        lines = ["import yoasovi as yo", "", f"fit = {calls[0]}", f"fit.report({path.name!r})"]
    else:
        lines = ["import yoasovi as yo", "from yoasovi.report.html import write", "", "fits = ["]
        lines += [*(f"    {call}," for call in calls), "]", f"write(fits, {path.name!r})"]
    return Again("\n".join(lines), needs)


def _described(model: Any) -> str:
    sites = ", ".join(f"{s.name} ({' × '.join(map(str, s.shape))})" if s.shape else s.name for s in model.density.sites)
    said = f"{' '.join(model.name.split())}, with sites {sites} and {model.num_observations:,} terms of the likelihood"
    return f"the model, made in Python of code and data that are not in this file: {said}"


def _call(fit: Any, model: str) -> tuple[str, list[tuple[str, str]]]:
    asked, needs = fit.asked or {}, []
    if fit.asked is None:
        needs.append(("options", "this fit was not told which ones it was made with, apart from its method and seed"))
    arguments = [model]
    for name, text in ({"method": repr(fit.method.name)} | asked | {"seed": str(fit.seed)}).items():
        text = re.sub(r"^np\.(?:u?int\d+|float64)\((.+)\)$", r"\1", text)  # NumPy's numbers
        try:
            ast.literal_eval(text)
        except (ValueError, SyntaxError):
            needs.append((name, f"the object that was given: {text}"))
            text = name
        arguments.append(text if name == "method" else f"{name}={text}")
    call = f"yo.fit({', '.join(arguments)})"
    for chains in mixture.chains_of(fit)[:1]:
        call += f".refine({', '.join(f'{k}={v!r}' for k, v in chains.wanted._asdict().items())})"
    return call, needs
