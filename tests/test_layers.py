"""The tree: imports go one way, nothing optional at start-up, names are used once."""

import ast
import subprocess
import sys
from pathlib import Path

import yoasovi

ROOT = Path(yoasovi.__file__).parent
DOORS = ("numpyro", "pymc", "blackjax", "sklearn", "stan", "scale", "cli", "report", "experiments", "bench")


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), ast.parse(path.read_text())


def at_start(tree):
    """Imports that run when a module is imported: not those inside functions or under TYPE_CHECKING."""
    waiting = list(tree.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        elif not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            waiting += [x for x in ast.iter_child_nodes(node) if isinstance(x, ast.stmt)]


def names(node, known):
    """Which of our modules an import brings in."""
    if isinstance(node, ast.Import):
        found = [alias.name for alias in node.names]
    else:
        found = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
    ours = [x.removeprefix("yoasovi").removeprefix(".") for x in found if x.split(".")[0] == "yoasovi"]
    return {x for x in ours if x in known and x}


def graph():
    trees = dict(modules())
    return {name: set().union(*(names(node, trees) for node in at_start(tree))) for name, tree in trees.items() if name}


def test_imports_go_one_way():
    """No circle among modules: what is below never imports what is above."""
    edges = {k: {x for x in v if x != k} for k, v in graph().items()}
    # A package's own files may be imported through it; it is then as high as the highest of them.
    done: set[str] = set()
    while len(done) < len(edges):
        ready = {k for k, v in edges.items() if k not in done and {x for x in v if not k.startswith(f"{x}.")} <= done}
        assert ready, {k: v - done for k, v in edges.items() if k not in done}
        done |= ready


def test_windows_know_nothing_of_jax():
    for name, tree in modules():
        if name.startswith("windows"):
            heads = {(n.module or "") if isinstance(n, ast.ImportFrom) else n.names[0].name for n in at_start(tree)}
            assert not [h for h in heads if h.split(".")[0] in ("jax", "numpyro", "optax")], name


def test_nothing_below_imports_a_door():
    for name, found in graph().items():
        if name.split(".")[0] not in DOORS:
            assert not [x for x in found if x.split(".")[0] in DOORS], name


def test_a_fit_imports_no_optional_library():
    code = (
        "import sys, numpy as np, yoasovi as yo, numpyro.distributions as dist\n"
        "log_p = lambda p, y: -0.5 * (y - p['m']) ** 2\n"
        "m = yo.Model(prior={'m': dist.Normal(0., 1.)}, log_likelihood=log_p, data=np.ones(3))\n"
        "yo.fit(m).mean()\n"
        "optional = ('scipy.stats', 'optax', 'matplotlib', 'arviz_stats', 'pymc', 'sklearn', 'blackjax', 'dask', 'rich')\n"
        "print([x for x in optional if x in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_importing_yoasovi_imports_not_even_jax():
    code = "import sys, yoasovi; print('jax' in sys.modules, 'numpyro' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False False"


def test_class_names_are_used_once():
    seen: dict[str, list[str]] = {}
    for name, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                seen.setdefault(node.name, []).append(name)
    assert not {k: v for k, v in seen.items() if len(v) > 1}


def test_files_and_functions_are_not_too_long():
    long = {str(p.relative_to(ROOT)): n for p in ROOT.rglob("*.py") if (n := len(p.read_text().splitlines())) > 450}
    assert not long
