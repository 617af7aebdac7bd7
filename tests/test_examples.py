"""Every example runs and checks itself, and the README's runs as it stands."""

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_the_example_runs_and_agrees_with_its_reference(path, capsys):
    runpy.run_path(str(path), run_name="__main__")


def test_the_readme_runs_as_it_stands_and_prints_its_verdict_first(tmp_path, monkeypatch, capsys):
    readme = (Path(__file__).parent.parent / "README.md").read_text()
    monkeypatch.chdir(tmp_path)
    names = {}
    exec("\n".join(re.findall(r"```python\n(.*?)```", readme, re.DOTALL)), names)
    printed = capsys.readouterr().out
    assert printed.split(":")[0].lower() in ("good", "usable", "poor", "failed")
    assert (tmp_path / "fit.html").exists()
    assert names["new"]["y"].shape == (1000, 2)
