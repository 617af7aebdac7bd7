"""Fits written to a folder and read back: arrays as npz without pickle, the rest as JSON. Nothing in them can run.

`fit.json` names the one file of arrays beside it, with its checksum and every array's type and shape. It is written last and
in one go, so a folder holds the old fit or the new one. A fit read without its model has draws in the model's place.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist

from yoasovi.answer.refine import Chains
from yoasovi.answer.result import USUAL, Fit, Part, Seconds
from yoasovi.answer.summary import Mended
from yoasovi.errors import check
from yoasovi.families import Arrow, Factorised, FullRank, LowRank, MeanField
from yoasovi.families.arrow import ArrowParams, Piece
from yoasovi.families.factorised import Law, PaperCategorical, PaperNormal
from yoasovi.families.full_rank import FullRankParams
from yoasovi.families.low_rank import LowRankParams
from yoasovi.families.mean_field import MeanFieldParams
from yoasovi.families.mixture import Mixture, Share
from yoasovi.files import identity
from yoasovi.files.storage import checksum, pack, sweep, unpack, write_whole
from yoasovi.kernels.programs import precision
from yoasovi.model import Density, Labels, Model, Site, recentred
from yoasovi.model.labels import names
from yoasovi.run.nonfinite import Nonfinite
from yoasovi.stopping import StopReason
from yoasovi.verdict.diagnostics import Estimate
from yoasovi.verdict.findings import Verdict

FORMAT = 1
FILE = "fit.json"
_DRAWS, _MOST_NUMBERS = 4000, 2**23  # draws that are kept, and how many numbers they may be
_LONGEST = 64 * 2**20  # bytes of JSON
_GAUSSIANS = {"mean_field": MeanFieldParams, "full_rank": FullRankParams, "low_rank": LowRankParams, "arrow": ArrowParams}
_LAWS = {
    law.__name__: law
    for law in (
        dist.Normal, dist.LogNormal, dist.Beta, dist.Dirichlet, dist.BernoulliLogits, dist.CategoricalLogits, dist.Poisson,
        dist.Gamma, dist.Exponential,
    )
}  # fmt: skip
_PAPER = {"PaperNormal": PaperNormal, "PaperCategorical": PaperCategorical}
_COUNTS = ("num_steps", "num_values", "num_gradients", "num_nonfinite", "seed")


class NeedsModel(ValueError, AttributeError):
    """Asked of a fit that was loaded without its model."""


@dataclass(frozen=True)
class AbsentModel:
    """What is known of a model that a fit was loaded without."""

    name: str
    density: Density
    differentiable: bool
    centred: dict[str, float]
    labels: Labels
    priors: dict[str, str]

    def names(self, site: str, shape: tuple[int, ...]) -> list[str]:
        """Name every number of a site's array."""
        return names(site, shape, self.labels)

    @property
    def num_observations(self) -> int:
        """The number of observations."""
        return self.density.num_observations

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        raise NeedsModel(f"`{attribute}` of the model is needed; load the fit with it: yo.load(folder, model=model).")


@dataclass(frozen=True)
class Named:
    """A method, or a family of an unknown kind, by its name and what it looked like."""

    name: str
    text: str

    def __repr__(self) -> str:
        return self.text


# ---- writing -----------------------------------------------------------------------------------------------


def save(fit: Fit, folder: str | Path, overwrite: bool = False) -> None:
    """Write a fit to a folder; see `Fit.save`."""
    folder = free_folder(folder, overwrite)
    header, arrays = _take_apart(fit)
    data = pack(arrays)
    digest = checksum(data)
    file = folder / f"arrays-{digest[:16]}.npz"
    shapes = {k: [v.dtype.str, list(v.shape)] for k, v in arrays.items()}
    header |= {"arrays": file.name, "sha256": digest, "shapes": shapes}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sweep(folder)
        before = set(folder.glob("arrays-*.npz"))
        write_whole(file, data)
        try:
            write_whole(folder / FILE, json.dumps(header, indent=1).encode())
        except BaseException:
            if file not in before:
                file.unlink(missing_ok=True)
            raise
        for old in before - {file}:
            with suppress(OSError):
                old.unlink()
    except OSError as error:
        kept = "; what was there before is as it was" if (folder / FILE).exists() else ""
        raise OSError(f"the fit could not be written to {folder} ({error.strerror or error}){kept}.") from error


def free_folder(folder: str | Path, overwrite: bool = False) -> Path:
    """See that a fit may be written to a folder, before it is made."""
    check(isinstance(folder, str | Path), "folder", "save", "a path", folder)
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"`folder` of `save` must be a folder; {folder} is a file.")
    if (folder / FILE).exists() and not overwrite:
        raise ValueError(f"`folder` of `save`: {folder} holds a fit already; pass overwrite=True or choose another folder.")
    return folder


def _take_apart(fit: Fit) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Give the JSON part and the arrays."""
    from yoasovi import __version__

    # A mixture has the draws and its parts the parameters.
    draws = fit.kept if fit.kept is not None else _draws(fit) if fit.share is None else {}
    leaves = [] if fit.parts else jax.tree_util.tree_leaves_with_path(fit.params)
    parts = [_take_apart(part.fit) for part in fit.parts]
    density = fit.model.density
    header = {
        "format": FORMAT,
        "yoasovi": __version__,
        "jax": jax.__version__,
        "model": {
            "name": fit.model.name,
            "sites": [s._asdict() for s in density.sites],
            "local_sites": [s._asdict() for s in density.local_sites],
            "num_observations": fit.model.num_observations,
            "differentiable": density.differentiable,
            "centred": fit.model.centred,
            "labels": _labels_as_json(fit.model.labels or Labels(), [*draws]),
            "priors": fit.model.priors,
        },
        "method": {"name": fit.method.name, "text": repr(fit.method)},
        "family": _family_as_json(fit.family),
        "family_reason": fit.family_reason,
        "converged": bool(fit.converged),
        "stop_reason": fit.stop_reason.name,
        "stop_detail": fit.stop_detail,
        "nonfinite": list(fit.nonfinite),
        "stages": fit.seconds.stages,
        **{name: int(getattr(fit, name)) for name in _COUNTS},
        "params": [[str(getattr(key, "name", getattr(key, "key", key))) for key in path] for path, _ in leaves],
        "draws": list(draws),
        "trace": list(fit.trace),
        "verdict": None if fit.verdict is None else fit.verdict.as_json(),
        "asked": fit.asked,
        "mended": [list(note) for note in fit.mended],
        "refined": None if (chains := fit.refined) is None else chains.as_json(),
        "parts": [
            {**head, "weight": part.weight, "error": part.error} for part, (head, _) in zip(fit.parts, parts, strict=True)
        ],
    }
    if isinstance(fit.model, Model) and fit.share is None:
        with precision():
            header["identity"] = identity.of_model(fit.model)
    arrays = {f"params.{i:04d}": np.asarray(x) for i, (_, x) in enumerate(leaves)}
    arrays |= {f"draws.{i:04d}": np.asarray(x) for i, x in enumerate(draws.values())}
    arrays |= {f"trace.{i:04d}": np.asarray(x) for i, x in enumerate(fit.trace.values())}
    if chains is not None:
        arrays |= {f"refined.{name}": x for name, x in chains.arrays().items()}
    arrays["elbos"] = np.array([fit.elbo, *fit.restart_elbos], float)
    arrays["log_ratio"] = np.asarray(fit.log_ratio, float)
    # A part's draws are those of the whole: it has none of its own.
    worth = fit.effective_size(len(next(iter(draws.values())))) if draws else np.nan
    arrays["numbers"] = np.array([fit.reported_elbo, fit.seconds.compile, fit.seconds.run, worth], float)
    for k, (_, inner) in enumerate(parts):
        arrays |= {f"part{k}.{name}": x for name, x in inner.items()}
    return header, arrays


def _draws(fit: Fit) -> dict[str, np.ndarray]:
    density = fit.model.density
    each = sum(int(np.prod(s.shape)) for s in (*density.sites, *density.local_sites))
    spent = fit.num_values
    if fit.refined is not None:  # all of them, by chain: errors cannot be told from some
        return fit.sample(fit.refined.size)
    draws = fit.sample(max(100, min(_DRAWS, _MOST_NUMBERS // max(each, 1))))
    fit.num_values = spent  # saving changes nothing about a fit
    return draws


def _family_as_json(family: Any) -> dict[str, Any]:
    if isinstance(family, MeanField | FullRank):
        return {"kind": family.name}
    if isinstance(family, LowRank):
        return {"kind": family.name, "rank": family.rank}
    if isinstance(family, Arrow):
        return {"kind": family.name, "local": dict(family.local)}
    if isinstance(family, Mixture):
        return {"kind": "mixture", "part": _family_as_json(family.part)}
    if isinstance(family, Factorised):
        factors = []
        for site, factor in family.factors:
            if isinstance(factor, Law) and _LAWS.get(factor.distribution.__name__) is factor.distribution:
                factors.append([site, {"law": factor.distribution.__name__}])
            elif type(factor) in _PAPER.values():
                factors.append([site, {"paper": type(factor).__name__, **asdict(factor)}])
        if len(factors) == len(family.factors):
            return {"kind": family.name, "factors": factors}
    return {"kind": "other", "name": getattr(family, "name", "other"), "text": repr(family)}


# ---- reading -----------------------------------------------------------------------------------------------


def load(folder: str | Path, model: Model | None = None) -> Fit:
    """Read a fit that `Fit.save` wrote.

    With the model the fit is whole. Without it there are the numbers, the trace and up to 4,000 draws, which `sample`,
    `mean`, `sd` and `summary` use; what needs the model's density says so.
    """
    check(isinstance(folder, str | Path), "folder", "load", "a path", folder)
    folder = Path(folder)
    if not (folder / FILE).is_file():
        raise ValueError(f"`folder` of `load`: {folder} holds no fit ({FILE} is not there).")
    if (folder / FILE).stat().st_size > _LONGEST:
        raise ValueError(f"{folder / FILE} is too long to be a fit's: the limit is {_LONGEST:,} bytes.")
    try:
        header = json.loads((folder / FILE).read_bytes())
    except ValueError as error:
        raise ValueError(f"{folder / FILE} is no JSON: {error}.") from error
    check(isinstance(header, dict), FILE, "load", "a JSON object", type(header).__name__)
    if header.get("format") != FORMAT:
        raise ValueError(f"{folder / FILE} has format {header.get('format')!r}; this version of yoasovi reads {FORMAT}.")
    try:
        arrays = _arrays(folder, header)
        if model is not None:
            check(isinstance(model, Model), "model", "load", "the Model of the fit", model)
            model = _in_form(model, _centred(header))
            _check_same(header, model)
        return _put_together(header, arrays, model)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"{folder / FILE} lacks or garbles something: {type(error).__name__}: {error}.") from error


def _arrays(folder: Path, header: dict[str, Any]) -> dict[str, np.ndarray]:
    name, shapes = header["arrays"], header["shapes"]
    if not isinstance(name, str) or not re.fullmatch(r"arrays-[0-9a-f]{16}\.npz", name):
        raise ValueError(f"{folder / FILE} names {name!r} as its arrays; they must lie beside it as arrays-....npz.")
    path = folder / name
    if not path.is_file():
        raise ValueError(f"{path} is not there, though {FILE} names it.")
    if path.resolve().parent != folder.resolve():
        raise ValueError(f"{path} leads out of the folder; arrays must lie beside {FILE}.")
    data = path.read_bytes()
    if checksum(data) != header["sha256"]:
        raise ValueError(f"{path} is damaged or cut short: its checksum does not match.")
    arrays = unpack(data, len(data), str(path))  # they are stored as they are, so they cannot be larger
    if missing := sorted(set(shapes) - set(arrays)):
        raise ValueError(f"{path} lacks the array {missing[0]!r}.")
    for key, (dtype, shape) in shapes.items():
        found = arrays[key]
        if found.dtype.str != dtype or list(found.shape) != shape:
            is_ = f"{found.dtype.str} of shape {list(found.shape)}"
            raise ValueError(f"{path}: array {key!r} must be {dtype} of shape {shape}; it is {is_}.")
    return arrays


def _put_together(header: dict[str, Any], arrays: dict[str, np.ndarray], model: Model | None) -> Fit:
    known = header["model"]
    site = lambda s: Site(str(s["name"]), tuple(s["shape"]), tuple(s["free_shape"]), bool(s["discrete"]))
    sites, local = tuple(map(site, known["sites"])), tuple(map(site, known["local_sites"]))
    density = Density(_no_likelihood, sites, local, known["num_observations"], known["differentiable"])
    family = _family(header["family"], density)
    parts = [_part(head, arrays, k, model) for k, head in enumerate(header.get("parts", []))]
    params = _params(header, arrays, density, family)
    if isinstance(family, Mixture):
        params = family.together(np.array([part.weight for part in parts]), [part.fit.params for part in parts])
        for k, part in enumerate(parts):
            part.fit.share = Share(family, params, k)
    named = lambda head, names: {k: arrays[f"{head}.{i:04d}"] for i, k in enumerate(names)}
    draws, trace = named("draws", header["draws"]), named("trace", header["trace"])
    for head, columns in (("draws", draws), ("trace", trace)):
        if len({len(v) for v in columns.values()}) > 1:
            raise ValueError(f"the {head} of the saved fit have different lengths.")
    elbos = [Estimate(*map(float, row)) for row in arrays["elbos"]]
    reported, compile, run, *worth = map(float, arrays["numbers"])  # fits of 0.1.0 do not say what their draws are worth
    stages = {str(name): float(seconds) for name, seconds in header.get("stages", {}).items()}
    return Fit(
        model=model or _absent(known, density, _centred(header)),  # type: ignore[arg-type]
        method=Named(**header["method"]), family=family, family_reason=header["family_reason"],
        params=params, parts=tuple(parts), elbo=elbos[0], converged=header["converged"],
        stop_reason=StopReason[header["stop_reason"]], seconds=Seconds(compile, run, stages), trace=trace,
        log_ratio=arrays["log_ratio"], reported_elbo=reported, restart_elbos=elbos[1:],
        nonfinite=Nonfinite(*header["nonfinite"]), stop_detail=header["stop_detail"],
        kept=None if model is not None or not draws else draws, kept_worth=worth[0] if worth else np.nan,
        refined=_chains(header, arrays, density), _verdicts=_verdicts(header.get("verdict")),
        asked=None if (asked := header.get("asked")) is None else {str(k): str(v) for k, v in asked.items()},
        mended=tuple(map(_mended, header.get("mended", ()))),
        **{name: header[name] for name in _COUNTS},
    )  # fmt: skip


def _mended(said: list[Any]) -> Mended:
    kinds = str, str, bool, float, int, int
    return Mended(*(kind(x) for kind, x in zip(kinds, said, strict=True)))


def _chains(header: dict[str, Any], arrays: dict[str, np.ndarray], density: Density) -> Chains | None:
    if (said := header.get("refined")) is None:
        return None
    found = {k.removeprefix("refined."): v for k, v in arrays.items() if k.startswith("refined.")}
    try:
        return Chains.from_json(said, found, density.dim)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the saved fit's chains cannot be read: {error}.") from error


def _labels_as_json(labels: Labels, shown: list[str]) -> dict[str, Any]:
    """Give the names along the axes of what is drawn, and the notes."""
    dims = {k: list(v) for k, v in labels.dims.items() if k in shown}
    used = {dim for axes in dims.values() for dim in axes if dim is not None}
    coords = {k: [str(x) for x in v] for k, v in labels.coords.items() if k in used and v is not None}
    return {"dims": dims, "coords": coords, "notes": list(labels.notes)}


def _absent(known: dict[str, Any], density: Density, centred: dict[str, float]) -> AbsentModel:
    """Give what is known of the model; fits written before names were kept have none."""
    said = known.get("labels", {})
    labels = Labels(
        dims={k: tuple(None if x is None else str(x) for x in v) for k, v in said.get("dims", {}).items()},
        coords={k: [str(x) for x in v] for k, v in said.get("coords", {}).items()},
        notes=tuple(map(str, said.get("notes", ()))),
    )
    priors = {k: str(v) for k, v in known.get("priors", {}).items()}
    return AbsentModel(known["name"], density, density.differentiable, centred, labels, priors)


def _part(header: dict[str, Any], arrays: dict[str, np.ndarray], k: int, model: Model | None) -> Part:
    """Rebuild a part of a mixture."""
    head = f"part{k}."
    own = {name.removeprefix(head): x for name, x in arrays.items() if name.startswith(head)}
    weight, error = float(header["weight"]), float(header["error"])
    if not 0.0 < weight <= 1.0:
        raise ValueError(f"the saved fit has a mode of weight {weight}; it must lie between 0 and 1.")
    return Part(weight, error, _put_together(header, own, model))


def _verdicts(found: Any) -> dict[Any, Verdict]:
    if found is None:
        return {}
    try:
        return {USUAL: Verdict.from_json(found)}
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the saved fit's verdict cannot be read: {error}.") from error


def _centred(header: dict[str, Any]) -> dict[str, float]:
    return {str(k): float(x) for k, x in header["model"].get("centred", {}).items()}


def _in_form(model: Model, centred: dict[str, float]) -> Model:
    """Give the model in the form that was fitted, where it has that form; else it is refused as another model."""
    can = set(model.centring.frames.names) if model.centring is not None else set()
    return recentred(model, centred) if set(centred) <= can else model


def _check_same(header: dict[str, Any], model: Model) -> None:
    """Refuse a model that is not the one of the fit."""
    then = dict(header.get("identity") or {})
    with precision():
        now = identity.of_model(model)
    if header["jax"] != jax.__version__ or not then:  # another version writes the same program in other words
        then, now = ({k: v for k, v in side.items() if k != "likelihood"} for side in (then or now, now))
    if changed := identity.differences(then, now):
        raise ValueError(f"`model` of `load` is not the one of the fit: {'; '.join(changed)}.")


def _params(header: dict[str, Any], arrays: dict[str, np.ndarray], density: Density, family: Any) -> Any:
    """Rebuild the parameters of q, and see that they fit the model's sites."""
    kind, paths = header["family"]["kind"], header["params"]
    leaves = [arrays[f"params.{i:04d}"] for i in range(len(paths))]
    if not all(np.isfinite(x).all() for x in leaves):
        raise ValueError("the saved fit has parameters that are not finite.")
    if kind in _GAUSSIANS:
        made = _GAUSSIANS[kind](**{path[0]: x for path, x in zip(paths, leaves, strict=True)})
        flat = np.zeros(density.dim)
        shapes, wanted = ([x.shape for x in q] for q in (made, family.init(flat, flat + 1.0, np.random.default_rng(0))))
        if shapes != wanted:
            raise ValueError(f"the saved fit's parameters have shapes {shapes}; its sites need {wanted}.")
        return made
    out: dict[str, Any] = {}
    for path, leaf in zip(paths, leaves, strict=True):
        inner = out
        for key in path[:-1]:
            inner = inner.setdefault(key, {})
        inner[path[-1]] = leaf
    return out


def _family(said: dict[str, Any], density: Density) -> Any:
    kind = said["kind"]
    if kind == "mean_field":
        return MeanField()
    if kind == "full_rank":
        return FullRank()
    if kind == "low_rank":
        return LowRank(said["rank"])
    if kind == "arrow":
        along = lambda axis: axis if isinstance(axis, int) else tuple(Piece(bool(a), int(b), int(c)) for a, b, c in axis)
        return Arrow({str(k): along(axis) for k, axis in said["local"].items()}).complete(density)
    if kind == "mixture":
        return Mixture(_family(said["part"], density))
    if kind == "factorised":
        factors = []
        for site, factor in said["factors"]:
            if "law" in factor:
                factors.append((site, Law(_LAWS[factor["law"]])))
            else:
                factors.append((site, _PAPER[factor["paper"]](**{k: v for k, v in factor.items() if k != "paper"})))
        return Factorised(tuple(factors))
    if kind == "other":
        return Named(str(said["name"]), str(said["text"]))
    raise ValueError(f"the saved fit has a family of kind {kind!r}, which this version of yoasovi does not know.")


def _no_likelihood(params: Any, data: Any) -> Any:
    raise NeedsModel("the model is needed for this; load the fit with it: yo.load(folder, model=model).")
