"""The documents: every piece of code runs as written, commands parse, links lead somewhere, every public name is there."""

import importlib
import importlib.util
import posixpath
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import typer
import yaml

import yoasovi as yo
from yoasovi.cli import app
from yoasovi.cli.models import BUILT_INS
from yoasovi.methods import METHODS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "benchmarks" / "results").glob("*.md"))]
BLOCK = re.compile(r"(<!-- no-run[^>]*-->\n)?^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
spec = importlib.util.spec_from_file_location("docs_hooks", ROOT / "docs" / "hooks.py")
hooks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(hooks)


def name(path):
    return str(path.relative_to(ROOT))


def blocks(path, language):
    return [code for kept, kind, code in BLOCK.findall(path.read_text()) if kind == language and not kept]


@pytest.mark.parametrize("page", [p for p in PAGES[1:] if blocks(p, "python")], ids=name)
def test_the_code_of_a_page_runs_as_written(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    for code in blocks(page, "python"):
        exec(compile(code, name(page), "exec"), names)


def test_the_readme_prints_what_it_says_and_writes_its_report(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    (code,) = blocks(ROOT / "README.md", "python")
    assert len(code.splitlines()) == 10  # as its heading says
    exec(compile(code, "README.md", "exec"), names)
    said, (printed,) = capsys.readouterr().out, blocks(ROOT / "README.md", "text")
    row = re.compile(r"^(\w+) +(-?[\d.]+) +([\d.]+) +(-?[\d.]+) +(-?[\d.]+) +([\d.]+)$", re.MULTILINE)
    told, found = ({name: list(map(float, x)) for name, *x in row.findall(text)} for text in (printed, said))
    assert set(told) == set(found) == {"level", "slope", "noise"}
    for name, (mean, sd, *_) in found.items():  # of other machines the draws are others
        assert abs(told[name][0] - mean) < 0.1 * sd and abs(told[name][1] / sd - 1) < 0.1
    assert said.splitlines()[0] == printed.splitlines()[0] == "good" and names["fit"].converged
    assert (tmp_path / "women.html").exists()


def test_code_is_left_unrun_only_where_it_says_what_it_needs():
    left = [head for page in PAGES for head, *_ in BLOCK.findall(page.read_text()) if head]
    assert left and all(re.search(r"no-run: needs \w+", head) for head in left)


def commands():
    for page in PAGES:
        for code in blocks(page, "sh"):
            for line in code.splitlines():
                if words := shlex.split(line, comments=True):
                    yield name(page), words


@pytest.mark.parametrize(("page", "words"), list(commands()), ids=lambda x: x if isinstance(x, str) else " ".join(x)[:40])
def test_a_command_of_a_page_is_one_that_there_is(page, words):
    if words[0] == "yoasovi":
        command = typer.main.get_command(app)
        assert words[1] in command.commands
        given = command.commands[words[1]].make_context(words[1], words[2:]).params  # raises where an option is not known
        model, methods = given.get("model", "path.py:name"), given.get("methods", "all")
        assert model in BUILT_INS or ".py:" in model or model.endswith(".stan") or model == "MODEL"
        assert methods == "all" or set(methods.split(",")) <= set(METHODS)
    elif words[0] == "make":
        assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif words[0] == "python":
        assert (ROOT / words[1]).is_file()
    else:
        assert words[:3] == ["pip", "install", "-e"]
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        asked = re.fullmatch(r"\.(?:\[(.*)\])?", words[3]).group(1)
        assert set(asked.split(",") if asked else ()) <= set(extras)


def anchors(path):
    """The headings of a page as GitHub and mkdocs name them."""
    heads = re.findall(r"^#+ (.*)$", BLOCK.sub("", path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("text", TEXTS, ids=name)
def test_links_lead_somewhere(text):
    for _, _, target, anchor in hooks.LINK.findall(BLOCK.sub("", text.read_text())):
        if "://" not in target:
            place = text if not target else (text.parent / target).resolve()
            assert place.exists(), target
            assert not anchor or anchor[1:] in anchors(place), target + anchor


def test_the_site_has_every_page_and_its_links_stay_inside():
    nav = re.findall(r"[\w-]+\.md", yaml.safe_dump(yaml.load((ROOT / "mkdocs.yml").read_text(), yaml.SafeLoader)["nav"]))
    made, own = hooks.generated(), {path.name for path in (ROOT / "docs").glob("*.md")}
    assert set(nav) <= {*made, *own} and own <= set(nav)
    files = {*made, *(path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*"))}
    for page in [*own, *(x for x in made if not x.startswith("gallery/"))]:
        text = hooks.turned((ROOT / hooks.repository_path(page)).read_text(), page)
        for _, _, target, _ in hooks.LINK.findall(BLOCK.sub("", text)):
            if target and "://" not in target:
                assert posixpath.normpath(posixpath.join(posixpath.dirname(page), target)) in files, (page, target)


def test_the_reference_has_every_public_name():
    shown = set(re.findall(r"^::: (\S+)$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE))
    for name in yo.__all__:
        assert f"yoasovi.{name}" in shown, name
    for door in ("numpyro", "pymc", "sklearn"):
        for name in importlib.import_module(f"yoasovi.{door}").__all__:
            assert {f"yoasovi.{door}.{name}", f"yoasovi.{name}"} & shown, name
    for path in shown:
        module, _, name = path.rpartition(".")
        assert hasattr(importlib.import_module(module), name), path


def test_every_measurement_is_on_the_page_of_measurements_and_has_its_script():
    listed = (ROOT / "docs" / "measured.md").read_text()
    for path in (ROOT / "benchmarks" / "results").glob("*.md"):
        assert f"benchmarks/results/{path.name}" in listed, path.name
    for text in TEXTS:
        for script in re.findall(r"python (benchmarks/\w+\.py)", text.read_text()):
            assert (ROOT / script).is_file(), (name(text), script)
