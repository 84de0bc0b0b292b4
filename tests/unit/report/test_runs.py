"""Finished runs are found and read."""

import json

import pandas as pd
import pytest

from sparloom.report import latest, read_run


def finished(folder, metrics):
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text(json.dumps(metrics))
    (folder / "environment.json").write_text(json.dumps({"commit": "abc"}))
    (folder / "command.txt").write_text("run.py experiment=x\n")
    pd.DataFrame({"matrix": ["a"]}).to_parquet(folder / "per_matrix.parquet")
    pd.DataFrame({"epoch": [1]}).to_csv(folder / "curves.csv", index=False)


def test_newest_finished_run_is_opened(tmp_path):
    finished(tmp_path / "x" / "2026-01-01_00-00-00", {"a": 1})
    finished(tmp_path / "x" / "2026-01-02_00-00-00", {"a": 2})
    (tmp_path / "x" / "2026-01-03_00-00-00").mkdir()
    run = latest("x", outputs=tmp_path)
    assert run.metrics == {"a": 2}
    assert run.environment["commit"] == "abc"
    assert run.command == "run.py experiment=x"
    assert list(run.per_matrix["matrix"]) == ["a"]
    assert list(run.curves["epoch"]) == [1]


def test_unfinished_run_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="the run has not finished"):
        read_run(tmp_path)


def test_without_runs_the_experiment_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no finished run of x under .*: run experiment=x"):
        latest("x", outputs=tmp_path)
