"""Pages that `mkdocs build` makes beside those of this folder: home, changes, tables of measurements, the gallery.

Pages link to each other by their places in the repository, so that they work wherever it is browsed. Here links that leave
this folder are turned to where the site has the page, or taken off where it has none.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import posixpath
import re
import runpy
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
GALLERY = ROOT / "examples" / "gallery"
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]*)(#[^)\s]*)?\)")


def repository_path(page: str) -> str:
    """Give the file of the repository that a page of the site is made of."""
    if page == "index.md":
        return "README.md"
    if page == "changelog.md":
        return "CHANGELOG.md"
    if page.startswith("results/"):
        return f"benchmarks/{page}"
    if page.startswith("gallery/"):
        return f"examples/{page[:-3]}.py"
    return f"docs/{page}"


def site_path(file: str) -> str | None:
    """Give the page or picture of the site that shows a file of the repository; None where there is none."""
    if file == "README.md":
        return "index.md"
    if file == "CHANGELOG.md":
        return "changelog.md"
    if file == "benchmarks/results":
        return "measured.md"
    if file == "examples/gallery":
        return "gallery.md"
    if file.startswith("benchmarks/results/"):
        return file.removeprefix("benchmarks/")
    if file.startswith("examples/gallery/"):
        return f"{file.removeprefix('examples/')[:-3]}.md"
    return file.removeprefix("docs/") if file.startswith("docs/") else None


def turned(markdown: str, page: str) -> str:
    """Turn the links of a page to where the site has what they lead to."""
    here = posixpath.dirname(repository_path(page))

    def turn(link: re.Match[str]) -> str:
        picture, text, target, anchor = link.group(1), link.group(2), link.group(3), link.group(4) or ""
        if not target or "://" in target or target.startswith("mailto:"):
            return link.group(0)
        place = site_path(posixpath.normpath(posixpath.join(here, target)))
        if place is None:
            return text
        return f"{picture}[{text}]({posixpath.relpath(place, posixpath.dirname(page) or '.')}{anchor})"

    blocks = re.split(r"(^```.*?^```[^\n]*$)", markdown, flags=re.DOTALL | re.MULTILINE)  # code is left as it is
    return "".join(block if block.startswith("```") else LINK.sub(turn, block) for block in blocks)


def generated() -> dict[str, Path]:
    """List the pages that are made of files outside this folder."""
    pages = ["index.md", "changelog.md"]
    pages += [f"results/{path.name}" for path in sorted((ROOT / "benchmarks" / "results").glob("*.md"))]
    pages += [f"gallery/{path.stem}.md" for path in sorted(GALLERY.glob("[a-z]*.py"))]
    return {page: ROOT / repository_path(page) for page in pages}


def gallery_page(path: Path, run: bool) -> tuple[str, bytes | None]:
    """Write the page of a script: its story, what it printed, its figure and its code; give the figure apart, as SVG."""
    source = path.read_text()
    title, _, story = (ast.get_docstring(ast.parse(source)) or path.stem).partition("\n")
    code = source.split('"""', 2)[2].strip()
    lines, figure = [f"# {title.rstrip('.')}", "", story.strip(), ""], None
    if run:
        printed, drawn = io.StringIO(), io.BytesIO()
        with contextlib.redirect_stdout(printed):
            answer = runpy.run_path(str(path))["main"]()
        answer.savefig(drawn, format="svg")
        figure = drawn.getvalue()
        lines += [f"![What came out]({path.stem}.svg)", "", "```text", printed.getvalue().strip(), "```", ""]
    lines += [f"`examples/gallery/{path.name}`, which checks its own answer:", "", "```python", code, "```", ""]
    return "\n".join(lines), figure


# ---- what mkdocs calls -------------------------------------------------------------------------------------


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are made here; YOASOVI_DOCS=quick leaves the gallery's scripts unrun."""
    from mkdocs.structure.files import File

    for page, path in generated().items():
        if not page.startswith("gallery/"):
            text = path.read_text()
            titled = text if text.startswith("#") else f"# {path.stem.replace('_', ' ').capitalize()}\n\n{text}"
            files.append(File.generated(config, page, content=titled))
            continue
        text, figure = gallery_page(path, os.environ.get("YOASOVI_DOCS") != "quick")
        files.append(File.generated(config, page, content=text))
        if figure is not None:
            files.append(File.generated(config, f"{page[:-3]}.svg", content=figure))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links."""
    uri = page.file.src_uri
    return markdown if uri.startswith("gallery/") else turned(markdown, uri)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Leave types of parameters to the signatures: of parameters that are described together only the first has its own."""
    return re.sub(r"(<li class=\"doc-section-item field-body\">\s*<b><code>[^<]*</code></b>)\s*\(.*?\)(\s*–)", r"\1\2", html,
                  flags=re.DOTALL)  # fmt: skip
