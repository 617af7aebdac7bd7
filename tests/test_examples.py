"""Every example runs and checks itself."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_the_example_runs_and_agrees_with_its_reference(path, capsys):
    runpy.run_path(str(path), run_name="__main__")
