"""Finished runs are found and read."""

import json

import pandas as pd
import pytest

from sparloom.report import read_run


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
