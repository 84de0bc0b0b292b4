"""Finished runs are found and read."""

import json

import pandas as pd
import pytest

from sparloom.errors import SchemaError
from sparloom.report import read_run, read_runs


def finished(folder, metrics):
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text(json.dumps(metrics))
    (folder / "environment.json").write_text(json.dumps({"commit": "abc"}))
    (folder / "command.txt").write_text("run.py experiment=x\n")
    pd.DataFrame({"matrix": ["a"]}).to_parquet(folder / "per_matrix.parquet")
    pd.DataFrame({"epoch": [1]}).to_csv(folder / "curves.csv", index=False)


def test_finished_run_is_read(tmp_path):
    finished(tmp_path / "run", {"a": 2})
    run = read_run(tmp_path / "run")
    assert run.metrics == {"a": 2}
    assert run.environment["commit"] == "abc"
    assert run.command == "run.py experiment=x"
    assert list(run.per_matrix["matrix"]) == ["a"]
    assert list(run.table("per_matrix")["matrix"]) == ["a"]
    assert list(run.curves["epoch"]) == [1]


def test_unfinished_run_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="the run has not finished"):
        read_run(tmp_path)


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


def test_damaged_line_is_named(tmp_path):
    (tmp_path / "runs.jsonl").write_text("{}\n")
    with pytest.raises(SchemaError, match=r"runs\.jsonl, line 1 is damaged \('metrics'\): remove it"):
        read_runs(tmp_path)
