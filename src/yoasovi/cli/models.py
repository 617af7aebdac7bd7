"""Models by name: the built-in ones, and those in a user's own file, `path.py:name` or `path.stan`."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yoasovi.cli.data import REGRESSIONS, Given, by_option, mixture, model_on
from yoasovi.errors import did_you_mean

if TYPE_CHECKING:
    from yoasovi.model import Model

BUILT_INS = (
    "mixture-2-2", "mixture-2-3", "mixture-3-4", "eight-schools", "eight-schools-centered", "linear", "logistic", "poisson",
    "hierarchical", "network", "women",
)  # fmt: skip
SIMULATED = "the mixtures, linear, logistic, poisson, hierarchical and network"  # the others have data that were observed


# How the mixtures are put to a method; the paper's labels and raw parameters where nothing is said. Unconstrained
# parameters are part of the default method; methods that differentiate through the draw need labels summed out.
MIXTURE_FORMS = {"yoasovi": "free", "advi": "summed", "yoasovi-step": "summed"}


def find_model(text: str, method: str = "yoasovi", given: Given | None = None, prior_scale: float | None = None) -> Model:
    """Give the built-in of this name, in the form that suits the method, or what `path.py:name` or `path.stan` refers to."""
    if prior_scale is not None and text not in REGRESSIONS:
        raise ValueError(f"--prior-scale goes with {', '.join(REGRESSIONS)}, not with {text}.")
    if text in BUILT_INS:
        form = MIXTURE_FORMS.get(method, "paper") if text.startswith("mixture") else ""
        return _built_in(text, form, prior_scale) if given is None else model_on(text, given, form, prior_scale)
    if text.endswith(".stan"):
        return _from_stan(text, given)
    if text.endswith(".py"):
        raise ValueError(f"no model {text!r}: add :name, as in {text}:model, the name that the model has in that file.")
    if given is not None and text.partition(":")[0].endswith(".py"):
        raise ValueError("--data goes with the built-in models; a model in path.py:name reads its own data.")
    path, colon, name = text.rpartition(":")
    if not colon or not path.endswith(".py"):
        hint = did_you_mean(text, BUILT_INS)
        raise ValueError(f"no model {text!r}: it must be one of {', '.join(BUILT_INS)}, path.py:name, or path.stan.{hint}")
    return _from_file(path, name)


@cache
def _built_in(name: str, form: str, prior_scale: float | None = None) -> Model:
    import numpy as np

    from yoasovi import models
    from yoasovi.experiments import simulate

    if name.startswith("mixture"):
        p, k = map(int, name.split("-")[1:])
        return mixture(simulate.mixture(p, k), k, form)
    if name.startswith("eight-schools"):
        effects, errors = np.array([28.0, 8, -3, 7, -1, 1, 18, 12]), np.array([15.0, 10, 16, 11, 9, 11, 10, 18])
        return models.HierarchicalNormal(effects, sd=errors, centered=name.endswith("centered"))
    if name == "network":
        return models.NeuralNetwork(*simulate.network(), hidden=(5,))
    if name == "women":  # average weights in pounds by height in inches: The World Almanac and Book of Facts, 1975
        pounds = np.array([115.0, 117, 120, 123, 126, 129, 132, 135, 139, 142, 146, 150, 154, 159, 164])
        height = {"height": np.arange(58.0, 73.0)}
        return models.LinearRegression(height, pounds, 500.0, autoscale=False, noise_prior="half_normal", noise_scale=20.0)
    make: dict[str, Callable[..., Model]] = {
        "linear": models.LinearRegression, "logistic": models.LogisticRegression, "poisson": models.PoissonRegression,
        "hierarchical": models.HierarchicalNormal,
    }  # fmt: skip
    with by_option():
        return make[name](*simulated(name), **({} if prior_scale is None else {"prior_scale": prior_scale}))


def simulated(name: str, n: int = 200, seed: int = 1) -> tuple[Any, Any]:
    """Draw the data of a built-in: X and y of a regression, or y and groups of `hierarchical`."""
    import numpy as np

    rng = np.random.default_rng(seed)
    if name == "hierarchical":
        group = np.arange(n) % 20
        return 3.0 + 2.0 * rng.normal(size=20)[group] + rng.normal(size=n), group
    X = rng.normal(size=(n, 4))
    line = 0.5 + X @ np.array([1.0, -0.7, 0.3, 0.0])
    if name == "linear":
        return X, line + 0.5 * rng.normal(size=n)
    return X, rng.poisson(np.exp(line)) if name == "poisson" else (rng.logistic(size=n) < line).astype(int)


def _from_stan(path: str, given: Given | None) -> Model:
    from yoasovi.stan import from_stan

    file = None if given is None else given.file
    if given is not None and (option := next((k for k, v in given._asdict().items() if v and k != "file"), None)):
        raise ValueError(f"--{option} names a column; the data of {path} are variables in a JSON file.")
    if file is not None and not file.endswith(".json"):
        raise ValueError(f"--data of {path} must be a JSON file with the program's variables; got {file}.")
    return from_stan(path, file)


@cache
def _from_file(path: str, name: str) -> Model:
    from yoasovi.fitting import as_model

    file = Path(path)
    if not file.is_file():
        raise ValueError(f"no file {path}.")
    with redirect_stdout(sys.stderr):
        sys.path.insert(0, str(file.resolve().parent))  # so that it can import its neighbours
        try:
            spec = importlib.util.spec_from_file_location(f"_yoasovi_model_{file.stem}", file)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[spec.name] = module
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            raise ValueError(f"{path} failed to import: {type(error).__name__}: {error}{_line_in(file, error)}") from error
        if not hasattr(module, name):
            public = [k for k, v in vars(module).items() if not k.startswith("_") and not inspect.ismodule(v)]
            raise ValueError(f"{path} has no {name!r}; it has {', '.join(public) or 'nothing'}.{did_you_mean(name, public)}")
        try:
            return as_model(_called(getattr(module, name)))
        except Exception as error:
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            raise ValueError(f"{path}:{name} is no model: {kind}{error}{_line_in(file, error)}") from error


def _called(thing: Any) -> Any:
    """Call a function that returns a model; leave a NumPyro model function, known by its request for a draw, as it is."""
    from numpyro.primitives import Messenger

    from yoasovi.model import Model

    class Asked(Exception):
        pass

    class Watch(Messenger):
        def process_message(self, msg):
            # A function that runs some NumPyro model itself has seeded it, so no such message gets here without a key.
            if msg["kwargs"].get("rng_key", 0) is None and msg["value"] is None:
                raise Asked

    if isinstance(thing, Model | Messenger) or not callable(thing):
        return thing
    if required := [p.name for p in inspect.signature(thing).parameters.values() if p.default is p.empty and p.kind < 2]:
        said = "write a function without arguments: the model itself, or one that returns it"
        raise ValueError(f"it needs arguments ({', '.join(required)}); {said}.")
    try:
        with Watch():
            made = thing()
    except Asked:
        return thing
    if isinstance(made, Model) or callable(made) or type(made).__module__.startswith("pymc"):
        return made
    raise ValueError(f"it must be a Model, a NumPyro model function or a function returning one; it returned {made!r}.")


def _line_in(file: Path, error: BaseException) -> str:
    """Say in which line of the file an error arose, where that can be known."""
    trace, line = error.__traceback__, None
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename).resolve() == file.resolve():
            line = trace.tb_lineno
        trace = trace.tb_next
    return "" if line is None else f" (line {line})"
