"""Every example runs and checks itself, and the README's runs as it stands."""

import re
import runpy
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))
LIBRARIES = {"torch_model": "torch", "stan_model": "httpstan"}
COMPILERS = {"ctypes_model": ("cc",), "stan_model": ("g++", "clang++", "c++")}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_the_example_runs_and_agrees_with_its_reference(path, capsys, stan_folder):
    if (library := LIBRARIES.get(path.stem)) and find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    if (compilers := COMPILERS.get(path.stem)) and not any(map(shutil.which, compilers)):
        pytest.skip(f"there is no compiler ({', '.join(compilers)})")
    runpy.run_path(str(path), run_name="__main__")


def test_the_readme_runs_as_it_stands_and_prints_its_verdict_first(tmp_path, monkeypatch, capsys):
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    monkeypatch.chdir(tmp_path)
    names = {}
    first, *more = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    assert len(first.strip().splitlines()) == 10
    exec(first, names)
    assert names["fit"].converged and capsys.readouterr().out.startswith(("GOOD", "USABLE"))
    assert (tmp_path / "fit.html").exists()
    exec("\n".join(more), names)
    assert names["new"]["y"].shape == (1000, 2)
