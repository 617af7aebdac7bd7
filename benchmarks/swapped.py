"""Run a library's own test file with one of its classes swapped for ours, and list what became of each test."""

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path


def outcomes(path: Path, line: str, *options: str) -> dict[str, tuple[str, str]]:
    """Give (passed, failed or skipped; the error's first line) by test; `line` is put at the end of a copy of the file.

    Test functions look names up when they are called, so that an import at the end is the one that holds.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy, found = Path(folder) / path.name, Path(folder) / "found.xml"
        copy.write_text(f"{path.read_text()}\n\n{line}\n")
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={found}", str(copy), *options]
        subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=False)
        return {case.get("name", ""): _outcome(case) for case in ElementTree.parse(found).iter("testcase")}


def _outcome(case: ElementTree.Element) -> tuple[str, str]:
    for kind in ("failure", "error", "skipped"):
        if (said := case.find(kind)) is not None:
            text = (said.get("message") or "").strip().split("\n")[0]
            return ("skipped" if kind == "skipped" else "failed"), text
    return "passed", ""
