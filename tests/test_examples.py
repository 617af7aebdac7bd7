"""Every example runs and checks itself."""

import runpy
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
LIBRARIES = {"torch_model": "torch", "stan_model": "httpstan"}
SLOW = {"stan_model"}  # half a minute of g++
COMPILERS = {"ctypes_model": ("cc",), "stan_model": ("g++", "clang++", "c++")}
GALLERY = sorted((Path(__file__).parent.parent / "examples" / "gallery").glob("*.py"))


def marked(path):
    return pytest.param(path, marks=pytest.mark.exhaustive if path.stem in SLOW else (), id=path.stem)


@pytest.mark.parametrize("path", [marked(path) for path in EXAMPLES])
def test_the_example_runs_and_agrees_with_its_reference(path, capsys, stan_folder):
    if (library := LIBRARIES.get(path.stem)) and find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    if (compilers := COMPILERS.get(path.stem)) and not any(map(shutil.which, compilers)):
        pytest.skip(f"there is no compiler ({', '.join(compilers)})")
    runpy.run_path(str(path), run_name="__main__")


@pytest.mark.parametrize("path", GALLERY, ids=lambda p: p.stem)
def test_a_script_of_the_gallery_agrees_with_its_reference_and_draws(path, capsys, tmp_path):
    figure = runpy.run_path(str(path))["main"](small=True)
    figure.savefig(tmp_path / "figure.svg")
    assert capsys.readouterr().out
