"""The learnings as a task: every variant is trained and judged on the same shapes, every claim gets its verdict."""

from pathlib import Path

import pandas as pd
import pytest
from gemm_table import drawn_shapes, write_gemm_table

SMALL = [f"{name}.{key}" for name in ("growth", "small", "big") for key in (
    "trees=6", "leaves=7", "threads=1", "learning_rate=0.5")]
ARMS = {"log1p", "raw", "log", "random_rows", "small", "big", "fixed", "mined_1", "without_dimensions",
        "without_interaction", "part", "grown_further", "without_m1"}


@pytest.fixture(scope="module")
def checked(build, tmp_path_factory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("learnings")
    write_gemm_table(folder / "data", drawn_shapes(24), step=60)
    settings = ("task.folds=3", "task.mining.rounds=1", "growth.more_trees=2")
    return folder, dict(build("check_learnings", *SMALL, *settings, folder=folder).run(folder))


@pytest.mark.cc
@pytest.mark.slow
def test_every_variant_is_judged_on_every_shape(checked):
    folder, metrics = checked
    rows = pd.read_parquet(folder / "per_problem.parquet")
    assert set(rows["method"]) == ARMS
    assert rows.groupby("method").size().unique().tolist() == [22]
    assert metrics["raw/mean_efficiency"] == pytest.approx(rows[rows["method"] == "raw"]["efficiency"].mean())


@pytest.mark.cc
@pytest.mark.slow
def test_every_learning_has_bounds_and_a_verdict(checked):
    folder, metrics = checked
    table = pd.read_parquet(folder / "learnings.parquet")
    assert sorted(set(table["number"])) == list(range(1, 10))
    assert (table["low"] <= table["value"]).all()
    assert (table["value"] <= table["high"]).all()
    assert set(table["verdict"]) <= {"holds", "does not hold", "cannot say"}
    for test in table.itertuples():
        assert metrics[f"{test.number}/{test.key}"] == test.value
    assert (folder / "learnings.svg").stat().st_size > 1000


@pytest.mark.cc
@pytest.mark.slow
def test_our_kernels_compute_degenerate_shapes(checked):
    table = pd.read_parquet(checked[0] / "learnings.parquet").set_index("key")
    assert table.loc["wrong_over_right", "value"] == -1
    assert table.loc["wrong_over_right", "verdict"] == "does not hold"
