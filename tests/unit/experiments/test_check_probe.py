"""Samples against all rows, on tiny matrices: timed cases and outputs."""

import numpy as np
import pandas as pd
import pytest

from sparloom.experiments import CheckProbe
from sparloom.experiments.autosage import SUBGRAPH_ROWS, induced_subgraph
from sparloom.measure import TimingProtocol
from sparloom.sparse import Pattern, SyntheticCorpus
from sparloom.tuning.sparse import CsrPolicy

TIMING = TimingProtocol(rounds=1, repetitions=2, short_seconds=0, most_repetitions=2, slow_factor=1e9, steal_ratio=100,
                        retakes=0, seed=0)


@pytest.mark.cc
def test_every_kernel_is_timed_on_every_sample(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    task = CheckProbe(
        SyntheticCorpus([4000], 1, 0, ["uniform", "hub_rows", "nearest"]), count=2, least_nonzeros=100,
        ops={"spmm": [8], "sddmm": [8], "attention": [8]}, heads=2, kernels=3, shares=[0.1, 0.5], draws=2,
        policy=CsrPolicy(least_nonzeros=50, parts=2), timing=TIMING, threads=1, memory_bytes=1e9,
        journals=str(tmp_path / "journals"), seed=0)
    metrics = task.run(out)
    frame = pd.read_parquet(out / "per_case.parquet")
    assert frame.groupby(["op", "sample"])["matrix"].nunique().to_dict() == {
        (op, sample): 2 for op in ("spmm", "sddmm", "attention") for sample in ("all", "rows", "subgraph")}
    assert (frame.groupby(["op", "matrix", "sample", "share", "draw"])["config"].nunique() == 3).all()
    parts = frame[frame["sample"] == "rows"].groupby("share")
    assert (parts["sampled"].sum() / parts["nnz"].sum()).to_dict() == pytest.approx({0.1: 0.1, 0.5: 0.5}, abs=0.08)
    assert {"rows/0.1/error", "rows/0.5/regret", "rows/0.1/spread", "subgraph/0.1/sddmm/tau", "again/1/regret"} <= set(
        metrics)
    assert all(np.isfinite(value) for value in metrics.values())
    assert (out / "probe.png").stat().st_size > 0
    assert not list((tmp_path / "journals").glob("*"))


def test_a_subgraph_has_some_rows_and_the_same_columns():
    rng = np.random.default_rng(0)
    rows, cols = rng.integers(0, 2000, (2, 20_000))
    pattern = Pattern.from_coo(rows, cols, (2000, 2000))
    found = induced_subgraph(pattern, 0.25, rng)
    assert found.shape == (500, 500)
    assert found.nnz == pytest.approx(pattern.nnz / 16, rel=0.2)  # every row is thinned, too
    assert induced_subgraph(pattern, 0.01, rng).rows == SUBGRAPH_ROWS
    assert induced_subgraph(Pattern.from_coo(rows, cols, (2000, 2001)), 0.25, rng) is None
