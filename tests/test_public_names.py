"""Names that others' scripts rely on."""

import inspect
from pathlib import Path

import pytest

import yoasovi as yo

NAMES = [
    "Model", "fit", "Fit", "load", "noncentred", "from_numpyro", "from_pymc", "from_stan", "models", "Method", "MeanField",
    "FullRank",
    "LowRank", "Factorised", "StopReason", "Verdict", "Thresholds", "Checkpoint", "calibrate", "Calibration", "Estimate",
    "cache", "connect", "Job", "Sweep", "jobs", "stream", "sweep", "acceptance", "draws", "families", "gradients", "methods",
    "tempering",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_there_and_listed(name):
    assert getattr(yo, name) is not None and name in yo.__all__ and name in dir(yo)


def test_every_listed_name_exists_and_an_unknown_one_is_refused():
    assert all(hasattr(yo, name) for name in yo.__all__)
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        _ = yo.fitt


def test_fit_takes_what_the_design_says():
    wanted = "model method family seed max_steps restarts batch_size optimizer progress checkpoint resume mesh nonfinite"
    named = [k for k, p in inspect.signature(yo.fit).parameters.items() if p.kind != p.VAR_POSITIONAL]
    assert named[: len(wanted.split())] == wanted.split()


def test_a_fit_answers_to_its_names(conjugate):
    fit = yo.fit(conjugate.model)
    said = "elbo converged stop_reason num_steps num_values num_gradients seconds family params trace"
    asked = "sample mean sd khat dic loo predict summary diagnose to_datatree plot report save"
    for name in (*said.split(), *asked.split()):
        assert hasattr(fit, name), name
    assert fit.elbo.value and fit.elbo.se >= 0 and fit.seconds.compile >= 0 and fit.seconds.run > 0
    assert set(fit.seconds.stages) >= {"model", "start", "windows", "elbo"}
    assert {"elbo", "accepted", "temperature", "step_size", "elapsed"} <= set(fit.trace)


def test_every_public_function_has_a_docstring():
    for name in yo.__all__:
        assert inspect.getdoc(getattr(yo, name)), name


def test_the_package_says_that_it_is_typed():
    assert (Path(yo.__file__).parent / "py.typed").exists()
