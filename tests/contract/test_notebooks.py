"""Every notebook: runs on the committed results as committed, says what it reads, defines nothing, trains nothing."""

import ast
import json
import re
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SECONDS = 60
ROW = re.compile(r"^\|.*\| `(?P<key>[^`]+)` \|.*\| (?P<ours>-?[\d.]+) \|$", re.MULTILINE)
EXECUTE = """
import sys, nbformat
from jupyter_client import KernelManager
from nbclient import NotebookClient
notebook, manager = nbformat.read(sys.argv[1], as_version=4), KernelManager()
manager.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
NotebookClient(notebook, km=manager, timeout=120).execute()
nbformat.write(notebook, sys.argv[2])
"""  # the kernel of this Python, whichever is installed
EXPERIMENT = re.compile(r"experiment=(\w+)")

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def opened(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def read_runs(notebook: nbformat.NotebookNode) -> list[str]:
    """Runs under results/ that the first cell names."""
    return re.findall(r"`results/(\w+)`", notebook.cells[0].source)


def texts(notebook: nbformat.NotebookNode) -> list[str]:
    """What the code cells print and show, without pictures."""
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" not in data:
                found.append(output.get("text", data.get("text/plain")))
    return found


def executed(path: Path, out: Path) -> nbformat.NotebookNode:
    """Run a notebook in its own folder, by another process: the kernel's sockets and warnings stay there."""
    subprocess.run([sys.executable, "-c", EXECUTE, str(path), str(out)], check=True, cwd=path.parent)
    return opened(out)


def test_there_are_notebooks():
    assert {path.stem for path in NOTEBOOKS} >= {"fig04_spade_sddmm", "fig04_spade_spmm", "levels_spade", "signs_spade"}


@each
def test_first_cell_names_the_claim_and_committed_runs(path):
    first = opened(path).cells[0]
    assert first.cell_type == "markdown"
    assert "Claim" in first.source
    runs = read_runs(opened(path))
    assert runs
    for name in runs:
        for kept in ("metrics.json", "environment.json", "command.txt"):
            assert (ROOT / "results" / name / kept).is_file()
        command = (ROOT / "results" / name / "command.txt").read_text(encoding="utf-8").strip()
        assert command in first.source, f"the first cell does not say how {name} is made: {command}"
        assert (ROOT / "conf" / "experiment" / f"{EXPERIMENT.search(command)[1]}.yaml").is_file()


@each
def test_numbers_of_the_first_cell_are_those_of_the_runs(path):
    notebook = opened(path)
    metrics = {}
    for name in reversed(read_runs(notebook)):  # where runs have equal metrics, the table shows the first one's
        metrics |= json.loads((ROOT / "results" / name / "metrics.json").read_text(encoding="utf-8"))
    rows = ROW.findall(notebook.cells[0].source)
    assert len(rows) >= 3
    for key, ours in rows:
        digits = len(ours.partition(".")[2])
        assert f"{metrics[key]:.{digits}f}" == ours, key


@each
def test_nothing_is_defined_and_only_report_is_used(path):
    for cell in opened(path).cells:
        if cell.cell_type != "code":
            continue
        for node in ast.walk(ast.parse(cell.source)):
            assert not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda)
            if isinstance(node, ast.ImportFrom) and node.module.startswith("sparloom"):
                assert node.module == "sparloom.report"
            if isinstance(node, ast.Import):
                assert not any(alias.name.startswith("sparloom") for alias in node.names)


@each
def test_it_is_committed_as_run(path):
    cells = [cell for cell in opened(path).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not [output for cell in cells for output in cell.outputs if output.output_type == "error"]


@pytest.mark.slow
@each
def test_it_runs_within_a_minute_and_says_the_same(path, tmp_path):
    began = time.monotonic()
    notebook = executed(path, tmp_path / path.name)
    assert time.monotonic() - began < SECONDS
    assert texts(notebook) == texts(opened(path))
    assert any("image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", []))
