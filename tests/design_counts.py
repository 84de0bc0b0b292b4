"""Count lines of code by package, lines in all, import cycles, and the files that one call runs through.

    python tests/design_counts.py             # prints the table
    python tests/design_counts.py --recommend # also traces `python run.py experiment=recommend` (needs stored models)

Lines of code are those without docstrings, comments, blank lines and imports. `BUDGETS` limits them by package,
`LIMITS` everything else; tests/contract/test_design.py asserts both, but for `recommend`, which needs the data store.
Lower a budget when code goes. A commit that raises one says what users get for it.

A call is traced in a process of its own with empty caches. A file counts if one of its functions is called; code
that runs while a module is imported does not count.
"""

import argparse
import ast
import io
import json
import os
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"
BUDGETS = {  # package -> lines of code; "top modules": those of sparloom itself
    "arrays": 245, "baselines": 950, "cli": 510, "data": 1_895, "experiments": 7_680, "fusion": 2_340,
    "hydra_plugins": 110, "ir": 1_700, "jit": 810, "measure": 285, "models": 3_245, "nn": 5_320, "ops": 465,
    "platforms": 3_495, "ragged": 4_645, "report": 2_460, "solvers": 1_065, "space": 1_855, "sparse": 1_520,
    "top modules": 610, "tuning": 3_905,
}
APPLICATIONS = ("baselines", "cli", "experiments", "hydra_plugins", "report")  # all other packages are the library
LIMITS = {
    "lines in src": 78_600, "lines in tests": 52_385, "files in conf": 73, "cycles": 0, "first spmm": 8,
    "recurring spmm": 2, "tune": 26, "accelerate and a step": 19, "pack and a call": 40, "lowering vgemm": 17,
    "plan_pair": 15, "recommend": 55,
}
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
CALLS = {  # name -> code; `trace(f)` calls f and returns the number of files that it ran through
    "spmm": """
        import numpy as np, scipy.sparse as sp, sparloom
        A = sp.random(4000, 4000, density=0.005, format="csr", random_state=0, dtype=np.float32)
        x = np.ones((4000, 32), np.float32)
        counts = [trace(lambda: sparloom.spmm(A, x)) for _ in range(20)]
        result = {"first spmm": counts[0], "recurring spmm": max(counts[1:]),
                  "tune": trace(lambda: sparloom.tune(A, width=32))}
    """,
    "accelerate": """
        import torch, torch_geometric.nn as geometric
        from sparloom.nn import accelerate
        model, x = geometric.GCN(16, 16, 2), torch.randn(500, 16)
        edges = torch.randint(0, 500, (2, 3000))
        result = {"accelerate and a step": trace(lambda: (accelerate(model), model(x, edges).sum().backward()))}
    """,
    "pack": """
        import torch
        from sparloom.nn import pack
        layer = torch.nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
        model, x = torch.nn.TransformerEncoder(layer, 1).eval(), torch.randn(2, 9, 32)
        mask = torch.arange(9) >= torch.tensor([[9], [4]])
        with torch.no_grad():
            result = {"pack and a call": trace(lambda: (pack(model), model(x, src_key_padding_mask=mask)))}
    """,
    "lowering": """
        from sparloom.ir import render_c
        from sparloom.ragged import lower, tiled_vgemm
        result = {"lowering vgemm": trace(lambda: [render_c(each.kernel) for each in lower(tiled_vgemm())])}
    """,
    "pairs": """
        import numpy as np, scipy.sparse as sp
        from sparloom.ops import GemmSpmm
        from sparloom.sparse import Pattern, SparseMatrix
        from sparloom.tuning import plan_pair
        pattern = Pattern.from_scipy(sp.random(4000, 4000, density=0.005, format="csr", random_state=0))
        op, matrix = GemmSpmm(), SparseMatrix(pattern, np.ones(pattern.nnz, np.float32))
        operands = op.operands(matrix, width=64, seed=0)
        result = {"plan_pair": trace(lambda: plan_pair(op, operands))}
    """,
    "recommend": """
        import runpy, scipy.io, scipy.sparse as sp
        scipy.io.mmwrite("matrix.mtx", sp.random(3000, 3000, density=0.003, random_state=0))
        here = "paths.outputs=" + os.getcwd()
        sys.argv = ["run.py", "experiment=recommend", "matrix=matrix.mtx", "logger=none", here]
        result = {"recommend": trace(lambda: runpy.run_path(ROOT + "/run.py", run_name="__main__"))}
    """,
}
TRACER = '''
import json, os, sys, threading
ROOT = {root!r}
SOURCE = os.path.join(ROOT, "src", "sparloom") + os.sep
found = set()

def of_an_import(frame):
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False

def profile(frame, event, argument):
    if event == "call":
        name = frame.f_code.co_filename
        if name.startswith(SOURCE) and name not in found and not of_an_import(frame):
            found.add(name)

def trace(function):
    found.clear()
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        function()
    except SystemExit as error:
        if error.code:
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    if os.environ.get("SHOW_FILES"):
        print(*sorted(found), sep="\\n", file=sys.stderr)
    return len(found)
'''


def source_files() -> list[Path]:
    """List all Python files of src."""
    return sorted(SOURCE.rglob("*.py"))


def code_lines(text: str) -> int:
    """Count the lines of a module without docstrings, comments, blank lines and imports."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom) or _is_docstring(node):
            lines.difference_update(range(node.lineno, node.end_lineno + 1))
    return len(lines)


def package_of(path: Path) -> str:
    """Return the name in `BUDGETS` of a file's package."""
    top, *below = path.relative_to(SOURCE).parts
    return top if top != "sparloom" else below[0] if len(below) > 1 else "top modules"


def package_sizes() -> dict[str, int]:
    """Count the lines of code of each package of src."""
    counts: Counter[str] = Counter()
    for path in source_files():
        counts[package_of(path)] += code_lines(path.read_text(encoding="utf-8"))
    return dict(sorted(counts.items()))


def import_graph() -> dict[str, set[str]]:
    """Map each module of the package to the modules that it imports, lazily or for type checking alike."""
    modules = {_module(path): path for path in source_files() if path.is_relative_to(SOURCE / "sparloom")}
    return {name: set(_imports(path, modules)) - {name} for name, path in modules.items()}


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Find the strongly connected components of more than one module.

    A package's `__init__` offers the names of its files, so imports of it from within the package are no cycles of
    files: those edges are left out.
    """
    inner = {name: {other for other in others if not (name + ".").startswith(other + ".")}
             for name, others in graph.items()}
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(inner[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            component = []
            while component[-1:] != [name]:
                component.append(stack.pop())
            if len(component) > 1:
                found.append(sorted(component))

    sys.setrecursionlimit(10_000)
    for name in sorted(inner):
        if name not in index:
            visit(name)
    return sorted(found)


def count_files(call: str, *, show: bool = False) -> dict[str, int]:
    """Trace one of `CALLS` in a new process with empty caches.

    Args:
        show: print the files to stderr.
    """
    code = "\n".join(line.removeprefix("        ") for line in CALLS[call].splitlines())
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "SPARLOOM_CACHE": folder + "/kernels", "AUTOSAGE_CACHE_DIR": folder + "/decisions",
                       "PYTHONPATH": str(SOURCE), **({"SHOW_FILES": "1"} if show else {})}
        program = TRACER.format(root=str(ROOT)) + code + "\nprint(json.dumps(result))\n"
        done = subprocess.run([sys.executable, "-c", program], cwd=folder, env=environment, text=True, check=True,
                              stdout=subprocess.PIPE)
    return json.loads(done.stdout.splitlines()[-1])


def sizes() -> dict[str, int]:
    """Count lines of Python in all, YAML files and cycles."""
    return {"lines in src": _lines(SOURCE), "lines in tests": _lines(ROOT / "tests"),
            "files in conf": sum(1 for _ in (ROOT / "conf").rglob("*.yaml")), "cycles": len(cycles(import_graph()))}


def _lines(folder: Path) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in folder.rglob("*.py"))


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _module(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(path: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for each in node.names:
                inner = f"{node.module}.{each.name}"
                if inner in modules:
                    yield inner
                elif node.module in modules:
                    yield node.module


def main() -> None:
    """Print lines of code beside their budgets and counts beside their limits."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recommend", action="store_true", help="trace experiment=recommend too")
    parser.add_argument("--show", action="store_true", help="print the files of each call and the cycles")
    arguments = parser.parse_args()
    packages = package_sizes()
    library = set(packages) - set(APPLICATIONS)
    for title, names in (("applications", APPLICATIONS), ("library", library)):
        for name in sorted(names):
            _print(name, packages[name], BUDGETS[name])
        _print(f"{title}, code", sum(packages[name] for name in names), sum(BUDGETS[name] for name in names))
    counts = sizes()
    for call in CALLS:
        if call != "recommend" or arguments.recommend:
            counts |= count_files(call, show=arguments.show)
    if arguments.show:
        for component in cycles(import_graph()):
            sys.stdout.write(f"cycle: {' '.join(component)}\n")
    for name, value in counts.items():
        _print(name, value, LIMITS[name])


def _print(name: str, value: int, limit: int) -> None:
    sys.stdout.write(f"{name:<20}{value:>8,}{limit:>8,}{'  over' if value > limit else ''}\n")


if __name__ == "__main__":
    main()
