"""Metrics, tables and figures of a bench of tile fusion, on rows whose ratios are known."""

import numpy as np
import pandas as pd
import pytest

from sparloom.report import (
    draw_fusion,
    fusion_metrics,
    ratio_means,
)

SECONDS = {"auto": 1.0, "unfused": 2.0, "fused": 1.25, "local": 1.0, "separated": 2.0, "mkl": 4.0, "torch": 8.0,
           "scipy": 16.0, "overlapped": 5.0, "atomic": 10.0, "gemv": 3.0, "coarse": 1.5, "sequential": 4.0}
MATRICES = ("lap2d", "lap3d", "band", "rmat17", "er", "comm", "lap2d_blk64")
WATCHED = ("auto", "unfused", "fused")
OURS = ("auto", "unfused", "fused", "local", "separated", "coarse", "sequential")


def row(part, matrix, op, width, threads, method):
    scale = (1 + MATRICES.index(matrix)) * (2 if threads == 1 else 1)
    seconds = scale * SECONDS[method] * (1.5 if method == "auto" and matrix == "er" else 1)
    ours = {"fused_rows": 0.9, "fused_ratio": 0.45, "tiles_0": 4.0, "tiles_1": 2.0, "build_seconds": seconds / 2,
            "gain_seconds": 0.1 * seconds} if method in OURS else {}
    decided = {"decision_seconds": 20.0 * scale} if method in ("auto", "unfused") else {}
    traced = {"access_cycles": 30 + seconds, "access_source": "simulated"} if method in WATCHED and width == 64 else {}
    reused = {"reused_flops": 0.4, "kept_rows": 0.8} if method == "coarse" else {}
    return {"part": part, "matrix": matrix, "op": op, "width": width, "threads": threads, "method": method,
            "rows": 100, "nnz": 500, "d1_bytes": 100 * width * 4, "last_cache_bytes": 20_000, "seconds": seconds,
            "flops": 1e9, "same": False, "failure": None, **ours, **decided, **traced, **reused}


@pytest.fixture(scope="module")
def frame():
    rows = [row(part, matrix, op, width, threads, method)
            for part in ("anchors", "real") for matrix in MATRICES for op in ("gemm_spmm", "spmm_spmm")
            for width in (32, 64) for threads in (1, 2) for method in SECONDS]
    missing = row("real", "lap2d", "gemm_spmm", 128, 2, "mkl") | {"seconds": np.nan, "failure": "Unsupported: none"}
    rows += [missing, *(row("real", "lap2d", "gemm_spmm", 128, 2, method) for method in ("auto", "unfused", "torch"))]
    return pd.DataFrame(rows)


@pytest.fixture(scope="module")
def metrics(frame):
    return fusion_metrics(frame, seed=0)


def test_ratios_are_geometric_means_with_bounds_and_extremes(metrics):
    expected = 2 / 1.5 ** (1 / 7)
    assert metrics["gemm_spmm/64/auto_over_unfused"] == pytest.approx(expected)
    assert metrics["gemm_spmm/64/auto_over_unfused_min"] == pytest.approx(2 / 1.5)
    assert metrics["gemm_spmm/64/auto_over_unfused_max"] == pytest.approx(2)
    assert metrics["gemm_spmm/64/auto_over_unfused_low"] <= expected <= metrics["gemm_spmm/64/auto_over_unfused_high"]
    assert metrics["spmm_spmm/32/auto_over_mkl"] == pytest.approx(4 / 1.5 ** (1 / 7))
    assert metrics["spmm_spmm/32/unfused_over_mkl"] == pytest.approx(2)


def test_means_over_anchors_leave_out_those_in_block_order(metrics):
    assert metrics["anchors/gemm_spmm/32/matrices"] == 6
    assert metrics["anchors/gemm_spmm/32/auto_over_unfused"] == pytest.approx(2 / 1.5 ** (1 / 6))
    assert metrics["anchors/gemm_spmm/32/lap2d_blk64/auto_over_unfused"] == pytest.approx(2)


def test_one_thread_has_separate_metrics_and_scaling_compares_them(metrics):
    assert metrics["gemm_spmm/64/t1/auto_over_torch"] == pytest.approx(8 / 1.5 ** (1 / 7))
    assert metrics["gemm_spmm/64/scaling_mkl"] == pytest.approx(2)


def test_costs_are_reported_in_executions_and_runs(metrics):
    assert metrics["gemm_spmm/64/inspector_executions_median"] == pytest.approx(0.5)
    assert metrics["gemm_spmm/64/inspector_executions_max"] == pytest.approx(0.5)
    assert metrics["gemm_spmm/64/inspector_amortised_median"] == pytest.approx(0.625 / 0.75)
    assert metrics["gemm_spmm/64/decision_amortised_median"] == pytest.approx(20)
    assert metrics["gemm_spmm/64/decision_amortised_matrices"] == 7
    assert metrics["gemm_spmm/64/gain_fused"] == pytest.approx(0.1)
    assert metrics["gemm_spmm/64/fused_share"] == 1


def test_locality_is_reported_if_it_was_simulated(metrics):
    assert metrics["gemm_spmm/64/reused_flops_mean"] == pytest.approx(0.4)
    expected = np.mean([np.log((30 + 2.0 * n) / (30 + 1.25 * n)) for n in range(1, 8)])
    assert metrics["gemm_spmm/64/access_unfused_over_fused"] == pytest.approx(np.exp(expected))
    assert metrics["gemm_spmm/64/access_unfused_over_fused_share"] == 1
    assert "gemm_spmm/32/access_unfused_over_fused" not in metrics


def test_matrices_that_fuse_well_and_exceed_the_cache_are_listed_separately(metrics):
    assert metrics["gemm_spmm/64/qualifying/matrices"] == 7
    assert metrics["gemm_spmm/32/qualifying/matrices"] == 0
    assert "gemm_spmm/32/qualifying/auto_over_unfused" not in metrics


@pytest.mark.slow
def test_every_figure_is_drawn_and_the_same_again(frame, tmp_path):
    for folder, rows in (("once", frame), ("again", frame[frame["part"] == "real"])):
        (tmp_path / folder).mkdir()
        draw_fusion(rows, tmp_path / folder)
    drawn = sorted(path.stem for path in (tmp_path / "once").glob("*.svg"))
    assert drawn == sorted(
        [f"{part}_{op}_{kind}" for part in ("anchors", "real") for op in ("gemm_spmm", "spmm_spmm")
         for kind in ("amortisation", "fused_methods", "rates")]
        + [f"{part}_{kind}" for part in ("anchors", "real")
           for kind in ("gain", "memory_time", "reuse", "scaling", "steps")])
    for path in (tmp_path / "again").iterdir():
        assert path.read_bytes() == (tmp_path / "once" / path.name).read_bytes()


def test_means_of_ratios_are_those_of_the_metrics(frame, metrics):
    means, unfused = ratio_means(frame), metrics["gemm_spmm/64/auto_over_unfused"]
    assert means.loc[("real", "gemm_spmm", 64, 2), "unfused"] == pytest.approx(unfused)
    assert means.loc[("real", "spmm_spmm", 32, 1), "mkl"] == pytest.approx(metrics["spmm_spmm/32/t1/auto_over_mkl"])
    assert np.isnan(means.loc[("real", "gemm_spmm", 128, 2), "mkl"])
