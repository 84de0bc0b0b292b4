"""Finished runs are found and read."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from sparloom.errors import SchemaError
from sparloom.files import sha256, write_sums
from sparloom.report import read_run, read_runs

RESULTS = Path(__file__).resolve().parents[3] / "results"


def finished(folder, metrics):
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text(json.dumps(metrics))
    (folder / "environment.json").write_text(json.dumps({"commit": "abc"}))
    (folder / "command.txt").write_text("run.py experiment=x\n")
    pd.DataFrame({"matrix": ["a"]}).to_parquet(folder / "per_matrix.parquet")
    pd.DataFrame({"epoch": [1]}).to_csv(folder / "curves.csv", index=False)


def everything(folder):
    run = read_run(folder)
    return run.environment, run.curves, run.per_matrix


def test_finished_run_is_read(tmp_path):
    finished(tmp_path / "run", {"a": 2})
    run = read_run(tmp_path / "run")
    assert run.metrics == {"a": 2}
    assert run.environment["commit"] == "abc"
    assert run.command == "run.py experiment=x"
    assert list(run.per_matrix["matrix"]) == ["a"]
    assert list(run.table("per_matrix")["matrix"]) == ["a"]
    assert list(run.curves["epoch"]) == [1]


@pytest.mark.parametrize("name", ["metrics.json", "environment.json", "curves.csv"])
def test_files_of_a_run_are_compared_with_its_sums(tmp_path, name):
    folder = tmp_path / "run"
    finished(folder, {"a": 2})
    write_sums(folder, {})
    path = folder / name
    path.write_bytes(path.read_bytes().replace(b"1", b"3").replace(b"2", b"3").replace(b"abc", b"abd"))
    with pytest.raises(SchemaError, match=rf"{name} is damaged \(its checksum differs .*SHA256SUMS\): run it again"):
        everything(folder)


def test_committed_results_are_what_their_list_says():
    for line in (RESULTS / "SHA256SUMS").read_text(encoding="utf-8").splitlines():
        digest, name = line.split("  ", 1)
        remedy = "after results/ was changed on purpose: (cd results && sha256sum */* > SHA256SUMS)"
        assert sha256(RESULTS / name) == digest, f"{name}: {remedy}"


def test_committed_results_name_no_folder_of_a_machine():
    """A run is made in a checkout: its folders are relative, and a mirror is `<mirror>`."""
    absolute = re.compile(r"^[^#\n]*[:=] *['\"]?/\w.*", re.MULTILINE)
    found = {path.parent.name: line[0] for path in sorted(RESULTS.glob("*/config.yaml"))
             if (line := absolute.search(path.read_text(encoding="utf-8")))}
    assert found == {}


LINES = [
    {"status": "finished", "reason": None, "wall_seconds": 2.5, "metrics": {"loss": 0.5, "seconds": 2}},
    {"status": "failed", "reason": "no data", "wall_seconds": 0.1, "metrics": None},
]


def test_ended_runs_are_one_table_with_their_metrics(tmp_path):
    assert read_runs(tmp_path).empty
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES) + '{"status": "fin')
    frame = read_runs(tmp_path)
    assert list(frame["status"]) == ["finished", "failed"]
    assert list(frame["wall_seconds"]) == [2.5, 0.1]
    assert frame["loss"][0] == 0.5
    assert frame["loss"].isna()[1]
    assert "metrics" not in frame
