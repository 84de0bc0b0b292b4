"""The benchmark of CPU kernels: its report, and detection of a wrong kernel."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from sparloom.experiments.fusion import kernel_metrics


def test_small_anchors_give_a_ratio_for_every_peer(build, tmp_path):
    task = build("bench_kernels", "corpus.scale=0.002", "task.gemm_rows=512", "task.widths=[16]",
                 "timing.short_seconds=0.001", "timing.repetitions=2", "timing.steal_ratio=100", folder=tmp_path)
    metrics = task.run(tmp_path)
    assert json.dumps(metrics)
    assert 0 < metrics["gemm/16/over_torch_p10"] <= metrics["gemm/16/over_torch"] <= metrics["gemm/16/over_torch_p90"]
    assert metrics["spmm/over_best_peer_min"] <= metrics["spmm/over_best_peer"] <= metrics["spmm/over_torch"]
    assert metrics["gemm_spmm/over_torch_low"] <= metrics["gemm_spmm/over_torch_high"]
    frame = pd.read_parquet(tmp_path / "per_matrix.parquet")
    assert set(frame[frame["op"] == "spmm"]["matrix"]) == {"lap2d", "lap3d", "band", "rmat17", "er", "comm"}
    assert (frame["p10"] <= frame["p90"]).all()
    assert json.loads((tmp_path / "peers.json").read_text())["torch"]


def test_ratios_are_seconds_of_others_over_ours():
    rows = [{"op": op, "matrix": matrix, "width": 32, "method": method, "median": seconds, "seconds": [seconds] * 3}
            for op, matrices in (("gemm", ("",)), ("spmm", ("a", "b")), ("gemm_spmm", ("a",)))
            for matrix in matrices
            for method, seconds in (("own", 1.0), ("torch", 4.0), ("mkl", 9.0 if matrix == "a" else 2.0))]
    metrics = kernel_metrics(pd.DataFrame(rows), seed=0)
    assert metrics["gemm/32/over_torch"] == 4
    assert metrics["spmm/over_mkl"] == pytest.approx(np.sqrt(18))
    assert metrics["spmm/over_best_peer"] == metrics["spmm/32/over_best_peer"] == pytest.approx(np.sqrt(8))
    assert metrics["spmm/over_best_peer_min"] == 2
    assert metrics["gemm_spmm/over_mkl"] == pytest.approx(9)


@pytest.mark.parametrize("op", ["gemm", "spmm", "gemm_spmm"])
@pytest.mark.parametrize("spoil", [lambda result: np.add(result, 1, out=result), lambda result: result[3].fill(np.nan)])
def test_a_result_that_is_wrong_or_not_written_stops_the_bench(op, spoil, build, tmp_path):
    task = build("bench_kernels", "corpus.scale=0.002", "task.gemm_rows=512", folder=tmp_path)
    matrix = task.corpus.load("band")
    problem = task._gemm(16) if op == "gemm" else getattr(task, f"_{op}")(matrix, 16)
    own = problem.calls["own"]

    def wrong():
        own()
        spoil(problem.result)

    with pytest.raises(AssertionError, match=r"^the result of own differs from the oracle"):
        task._timed(replace(problem, calls={"own": wrong}))
