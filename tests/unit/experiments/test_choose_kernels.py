"""Portfolios of kernels, on tiny matrices: timing, choice and outputs."""

import json

import numpy as np
import pandas as pd
import pytest

from sparloom.experiments import ChooseKernels
from sparloom.experiments.autosage import OPERATIONS
from sparloom.measure import TimingProtocol
from sparloom.platforms import CpuKernels
from sparloom.report import portfolio_metrics
from sparloom.sparse import SyntheticCorpus

TIMING = TimingProtocol(rounds=1, repetitions=2, short_seconds=0, most_repetitions=2, slow_factor=1e9, steal_ratio=100,
                        retakes=0, seed=0)


@pytest.mark.cc
def test_every_kernel_is_timed_and_some_are_chosen(tmp_path):
    task = ChooseKernels(
        SyntheticCorpus([4000], 1, 0, ["uniform", "hub_rows", "nearest"]), count=2, least_nonzeros=100,
        ops={"spmm": [8], "sddmm": [8], "attention": [8]}, heads=2, most=3, timing=TIMING, threads=1, memory_bytes=1e9,
        journals=str(tmp_path / "journals"), seed=0)
    metrics = task.run(tmp_path)
    frame = pd.read_parquet(tmp_path / "per_case.parquet")
    chosen = json.loads((tmp_path / "portfolios.json").read_text())
    assert set(chosen) == {"any", "stored"}
    assert all(name.startswith("order=natural,") for names in chosen["stored"].values() for name in names)
    for op, rows in frame.groupby("op"):
        expected = {config.key for config in CpuKernels(1, 8).space(OPERATIONS[op](2))}
        assert (rows.groupby("matrix")["config"].agg(set) == expected).all()
        assert (rows.groupby("matrix")["safe"].sum() == 1).all()
        for lists in chosen.values():
            assert 1 <= len(lists[op]) <= 3
            assert set(lists[op]) <= expected
        assert metrics[f"{op}/kernels"] == len(chosen["any"][op])
    assert all(np.isfinite(value) for value in metrics.values())
    assert not list((tmp_path / "journals").glob("*"))


def test_a_portfolio_is_judged_on_matrices_that_it_was_not_chosen_on():
    safe, other = "order=natural,x", "order=column,y"
    seconds = {"a": {safe: 1.0, other: 3.0}, "b": {safe: 2.0, other: 1.0}}  # of the first and the second part
    frame = pd.DataFrame([
        {"op": "spmm", "matrix": matrix, "width": 32, "config": config, "safe": config == safe, "seconds": [taken] * 4}
        for matrix, row in seconds.items() for config, taken in row.items()])

    def fastest(rows):
        return [rows.loc[rows["seconds"].str[0].idxmin(), "config"]]

    found = portfolio_metrics(frame, fastest, seed=0)
    assert found["spmm/regret_max"] == pytest.approx(3)
    assert found["spmm/regret_min"] == pytest.approx(2)
    assert found["spmm/safe_max"] == pytest.approx(2)
    assert found["spmm/safe_min"] == pytest.approx(1)
    assert found["spmm/stored/regret_max"] == pytest.approx(2)
    assert found["spmm/stored/regret_min"] == pytest.approx(1)
