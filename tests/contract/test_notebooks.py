"""Every notebook runs on the committed results, names the runs that it reads, and neither defines nor trains."""

import ast
import json
import re
import shutil
import subprocess
import sys
from collections import ChainMap
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
import pandas as pd
import pyarrow.parquet as pq
import pytest
from autosage_run import write_run

from sparloom.report import row_statistics

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
INDEX = ROOT / "notebooks" / "index.ipynb"
FEW = 4
NONE = "—"
FIGURES = (2, 4, 5, 6, 7, 8, 9, 10, 11, 12)  # of the COGNATE paper
AUTOSAGE = {"autosage_attention", "autosage_erdos_renyi", "autosage_guardrail", "autosage_hub_skew",
            "autosage_hub_split", "autosage_probe_share", "autosage_products", "autosage_reddit"}
OWN = AUTOSAGE | {"dispatch_cpu", "dse_spade", "encoders", "fig13_jacobi", "fusion_gemm_spmm", "fusion_spmm_spmm",
       "fusion_steps", "index", "kernels_cpu", "leaderboard", "learnings", "levels_spade", "probe_cpu",
       "ragged_encoder", "ragged_overheads", "ragged_products", "ragged_schedules", "selection_spade",
       "sensitivity_spade", "signs_spade", "table2_costs", "training_gcn", "variants_spade"}
EXPERIMENT = re.compile(r"experiment=(\w+)")

each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def opened(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def read_runs(notebook: nbformat.NotebookNode) -> list[str]:
    """Runs under results/ that the first cell names."""
    return re.findall(r"`results/(\w+)`", notebook.cells[0].source)


def tables(notebook: nbformat.NotebookNode) -> list[dict[str, str]]:
    """Return rows of the first cell's tables that show a metric, by heading, without code marks."""
    found, headings = [], None
    for line in notebook.cells[0].source.splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        if not line.startswith("|"):
            headings = None
        elif headings is None:
            headings = cells
        elif "metric" in headings and set(line) - set("|-"):
            found.append(dict(zip(headings, cells, strict=True)))
    return found


def papers(rows: pd.DataFrame) -> dict[str, float]:
    """Return the paper's numbers as `<group>/<row>/<statistic>` -> value."""
    told = rows.set_index(["group", "row"]).filter(regex="^paper_").stack().dropna()
    return {f"{group}/{row}/{key.removeprefix('paper_')}": value for (group, row, key), value in told.items()}


def shown(value: float, like: str) -> str:
    """Print a number with as many digits as another."""
    return f"{value:.{len(like.partition('.')[2])}f}"


def texts(notebook: nbformat.NotebookNode) -> list[str]:
    """Return the text outputs of the code cells; a slow machine may split them into several pieces."""
    found = []
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        found.append("".join(output.text for output in outputs if output.output_type == "stream"))
        found += [output.data["text/plain"] for output in outputs
                  if output.output_type != "stream" and "image/png" not in output.data]
    return found


def picture_settings(notebook: nbformat.NotebookNode) -> list[dict]:
    """Return the metadata of every picture, which is the width that it is shown with."""
    return [output.metadata for cell in notebook.cells for output in cell.get("outputs", [])
            if "image/png" in output.get("data", {})]


def executed(path: Path, out: Path) -> nbformat.NotebookNode:
    """Run a notebook in its own folder, by another process: what it imports, draws and warns of stays there."""
    subprocess.run([sys.executable, str(Path(__file__).with_name("run_notebook.py")), str(path), str(out), "sketched"],
                   check=True, cwd=path.parent)
    return opened(out)


def test_there_are_notebooks():
    stems = {path.stem for path in NOTEBOOKS}
    assert {stem.partition("_")[0] for stem in stems} >= {f"fig{figure:02}" for figure in FIGURES}
    assert stems >= OWN


def test_the_index_leads_to_every_other_notebook():
    links = re.findall(r"\]\((\w+)\.ipynb\)", "".join(cell.source for cell in opened(INDEX).cells))
    assert sorted(links) == sorted(path.stem for path in NOTEBOOKS if path != INDEX)


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
        experiment = EXPERIMENT.search(command)[1]
        exists = (ROOT / "conf" / "experiment" / f"{experiment}.yaml").is_file()
        assert exists or f"`{experiment}` (" in (ROOT / "docs" / "results" / "index.md").read_text(encoding="utf-8")


@each
def test_numbers_of_the_first_cell_are_those_of_the_runs(path):
    notebook = opened(path)
    found = {name: json.loads((ROOT / "results" / name / "metrics.json").read_text(encoding="utf-8"))
             for name in read_runs(notebook)}
    first = dict(ChainMap(*found.values()))  # where runs have equal metrics, a table without runs shows the first one's
    rows = tables(notebook)
    assert len(rows) >= 3
    for row in rows:
        key, metrics = row["metric"], found[row["run"].removeprefix("results/")] if "run" in row else first
        assert shown(metrics[key], row["ours"]) == row["ours"], key
        low, _, high = row.get("95 %", NONE).partition("–")
        if high:
            assert (shown(metrics[f"{key}_low"], low), shown(metrics[f"{key}_high"], high)) == (low, high), key
        else:
            assert f"{key}_low" not in metrics or "95 %" not in row, f"{key} is shown without its interval"


@each
def test_the_papers_numbers_are_those_of_the_comparison(path):
    notebook = opened(path)
    told = {}
    for name in read_runs(notebook):
        if (kept := ROOT / "results" / name / "rows.parquet").exists():
            told |= papers(pd.read_parquet(kept))
    for row in tables(notebook):
        key, paper = row["metric"], row.get("paper", NONE)
        if key in told:
            assert paper != NONE, f"{key} is shown without the paper's number"
            assert shown(told[key], paper) == paper, key


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
@pytest.mark.timeout(600)  # some seconds here
@each
def test_it_runs_and_prints_the_same(path, tmp_path):
    notebook = executed(path, tmp_path / path.name)
    stored = opened(path)
    assert texts(notebook) == texts(stored)
    assert picture_settings(notebook)
    assert picture_settings(notebook) == picture_settings(stored)


def runs_named(path: Path) -> list[Path]:
    """Committed runs whose names a notebook has in it."""
    text = "".join(cell.source for cell in opened(path).cells)
    return sorted(run for run in (ROOT / "results").iterdir() if run.name in text)


def has_matrices(run: Path) -> bool:
    """Return whether a run can be reduced to a few of its matrices."""
    rows = run / "per_matrix.parquet"
    return rows.exists() and "matrix" in pq.read_schema(rows).names


def reduced(run: Path, folder: Path) -> None:
    """Copy a committed run with a few of its matrices, as if no others had been evaluated."""
    shutil.copytree(run, folder)
    kept = folder / "per_matrix.parquet"
    if not has_matrices(run):
        return
    frame = pd.read_parquet(kept)
    if "matrix" not in frame:  # it is the index
        return
    frame = frame[frame["matrix"].isin(sorted(frame["matrix"].unique())[:FEW])]
    frame.to_parquet(kept)
    if (folder / "rows.parquet").exists():
        rows = pd.read_parquet(folder / "rows.parquet")
        fresh = row_statistics(frame, reference=reference(rows), seed=0).set_index(["group", "row"])
        rows = rows.set_index(["group", "row"])
        rows[fresh.columns] = fresh.reindex(rows.index)
        rows.reset_index().to_parquet(folder / "rows.parquet")


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """Return the folder of a committed run with a few of its matrices, which is made once."""
    folder = tmp_path_factory.mktemp("few")

    @cache
    def made(run: Path) -> Path:
        reduced(run, folder / run.name)
        return folder / run.name

    return made


def reference(rows: pd.DataFrame) -> str | None:
    """Return the reference row of a comparison."""
    found = [column.removeprefix("top1_over_") for column in rows if column.startswith("top1_over_")]
    return min(found, key=len, default=None)


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", [path for path in NOTEBOOKS if any(map(has_matrices, runs_named(path)))],
                         ids=lambda path: path.stem)
def test_it_runs_on_a_few_matrices(path, few, tmp_path, monkeypatch):
    (tmp_path / "results").mkdir()
    for run in runs_named(path):
        (tmp_path / "results" / run.name).symlink_to(few(run))
    run_in(tmp_path, path, monkeypatch)


def run_in(folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a notebook beside other results, those in `folder`; return what it prints."""
    (folder / "notebooks").mkdir(exist_ok=True)
    monkeypatch.chdir(folder / "notebooks")
    names: dict[str, object] = {}
    printed = StringIO()
    for cell in opened(path).cells:
        if cell.cell_type == "code":
            with redirect_stdout(printed):
                exec(compile(cell.source, f"{path.name}", "exec"), names)
    for value in names.values():
        if isinstance(value, TemporaryDirectory):
            value.cleanup()
    return printed.getvalue()


@pytest.fixture(scope="module")
def autosage(tmp_path_factory) -> tuple[Path, dict[str, float]]:
    """A folder with a made-up run of AutoSAGE's tables, and its metrics."""
    folder = tmp_path_factory.mktemp("autosage")
    return folder, write_run(folder / "results" / "bench_autosage")


@pytest.mark.parametrize("stem", sorted(AUTOSAGE))
def test_autosage_notebooks_show_a_run_or_say_that_it_is_missing(stem, autosage, tmp_path, monkeypatch):
    folder, metrics = autosage
    path = ROOT / "notebooks" / f"{stem}.ipynb"
    missing = [row["metric"] for row in tables(opened(path))
               if row["metric"].replace("/online", "/tuned") not in metrics]  # the run is of an earlier design
    assert not missing
    shown = run_in(folder, path, monkeypatch)
    assert "does not exist" not in shown
    assert "Image" in shown
    assert "python run.py experiment=bench_autosage makes it" in run_in(tmp_path, path, monkeypatch)
