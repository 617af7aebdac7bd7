"""Figures in the README, the docs and benchmarks/results: each comes with a command that users can run."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.md"))
COMMAND = re.compile(r"\bpython (benchmarks/\w+\.py)([^`]*)`|`(yoasovi \w+[^`]*)`")


@pytest.mark.parametrize("path", RESULTS, ids=lambda p: p.stem)
def test_every_table_of_figures_begins_with_the_command_that_made_it(path):
    found = COMMAND.search("\n".join(path.read_text().splitlines()[:12]))
    assert found, "no command"
    script, options, own = found.groups()
    if own is None:
        code = (ROOT / script).read_text()
        assert all(f'"{option}"' in code for option in re.findall(r"--[a-z-]+", options))


def test_what_the_readme_and_the_docs_point_to_is_there():
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *RESULTS):
        text = page.read_text()
        links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]
        assert all((page.parent / link).exists() for link in links), page
        assert all((ROOT / script).is_file() for script in re.findall(r"\bbenchmarks/\w+\.py", text)), page
