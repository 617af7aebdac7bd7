"""The package as others get it: a wheel made from the sdist, in an environment that has never seen this folder."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
from pathlib import Path

import yaml

import yoasovi

ROOT = Path(__file__).parent.parent


def run(*command, cwd):
    env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    result = subprocess.run(list(map(str, command)), cwd=cwd, env=env, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    return result.stdout


def test_the_wheel_of_the_sdist_runs_the_readme_in_a_clean_environment(tmp_path):
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, ROOT, cwd=tmp_path)
    (wheel,), (sdist,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
    for name in ("README.md", "LICENSE", "CHANGELOG.md", "CITATION.cff", "tests/test_package.py"):
        assert any(x.endswith(f"/{name}") for x in names), name
    assert not any(re.search(r"/(out|site|dist|\.venv)/", x) for x in names)

    venv.create(tmp_path / "clean", with_pip=False)
    pip = sys.executable, "-m", "pip", "--python", tmp_path / "clean", "install", "--no-deps", "--no-index"
    run(*pip, wheel, cwd=tmp_path)
    (packages,) = (tmp_path / "clean" / "lib").glob("python*/site-packages")
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))  # what it depends on; not this folder
    python = tmp_path / "clean" / "bin" / "python"
    assert str(packages) in run(python, "-c", "import yoasovi; print(yoasovi.__file__)", cwd=tmp_path)
    assert "yoasovi-metropolis" in run(tmp_path / "clean" / "bin" / "yoasovi", "methods", cwd=tmp_path)
    code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "readme.py").write_text("\n".join(code))
    assert run(python, "readme.py", cwd=tmp_path).startswith("good\n")
    assert (tmp_path / "women.html").read_text().startswith("<!")


def test_what_the_project_says_of_itself_is_of_one_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert str(cited["version"]) == yoasovi.__version__ and cited["license"] == project["license"]
    assert [x["name"] for x in project["authors"]] == [x["name"] for x in cited["authors"]]
    (paper,) = cited["references"]
    assert project["urls"]["Paper"] == paper["url"] and paper["authors"][0]["family-names"] == "Dayta"
    assert f"## [{yoasovi.__version__}]" in (ROOT / "CHANGELOG.md").read_text()
