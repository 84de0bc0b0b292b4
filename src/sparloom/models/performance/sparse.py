"""Features of SpMM and SDDMM kernels on a CPU: statistics of the pattern, and what a kernel meets of them."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from sparloom.models.performance.features import Feature, FeatureSpec
from sparloom.sparse import STATISTICS

__all__ = ["SDDMM_FEATURES", "SPMM_FEATURES", "sparse_problems"]

COUNTS = frozenset({"rows", "cols", "nnz"})
MOVED = "8 * (rows + 1) + 4 * width * (rows + cols)"  # bytes of row pointers and dense operands
REGISTERS = 256  # columns of a strip that is as wide as it can be, with 32 registers of 16

PATTERN = (
    *(Feature(name, "pattern", name, name if name in COUNTS else "1") for name in STATISTICS),
    Feature("width", "problem", "width", "columns"),
)
HARDWARE = (
    Feature("l1_bytes", "hardware", "l1_bytes", "B"),
    Feature("l2_bytes", "hardware", "l2_bytes", "B"),
    Feature("l3_bytes", "hardware", "l3_bytes", "B"),
    Feature("threads", "hardware", "threads", "threads"),
)
SIZES = (
    Feature("intensity", "pattern", "flops / bytes", "flop/B"),
    Feature("sparse_bytes", "pattern", "8 * nnz + 8 * rows", "B"),
    Feature("column_side_fit", "pattern", "4 * cols * width / l3_bytes", "1"),
    Feature("row_side_fit", "pattern", "4 * rows * width / l3_bytes", "1"),
    Feature("sparse_fit", "pattern", "sparse_bytes / l3_bytes", "1"),
    Feature("row_flops", "pattern", "2 * row_mean * width", "flop"),
    Feature("band_fit", "pattern", "4 * bandwidth_mean * cols * width / l2_bytes", "1"),
    Feature("thread_rows", "pattern", "rows / threads", "rows"),
    Feature("longest_share", "pattern", "row_max * threads / max(1, nnz)", "1"),
)
KERNEL = (
    Feature("by_column", "kernel", "order == 'column'", "1"),
    Feature("balances_rows", "kernel", "balance == 'rows'", "1"),
    Feature("on_demand", "kernel", "balance == 'dynamic'", "1"),
    Feature("prefetch", "kernel", "prefetch", "KiB"),
)
WALK = (
    Feature("reuse", "interaction", "by_column * ordered_reuse_32 + (1 - by_column) * reuse_32", "1"),
    Feature("wide_reuse", "interaction", "by_column * ordered_reuse_256 + (1 - by_column) * reuse_256", "1"),
    Feature("distance", "interaction", "by_column * ordered_bandwidth + (1 - by_column) * bandwidth_mean", "1"),
    Feature("distance_fit", "interaction", "4 * distance * cols * width / l2_bytes", "1"),
    Feature("uneven", "interaction", "balances_rows * imbalance_2048 + (1 - balances_rows)", "1"),
    Feature("piece_rows", "interaction", "thread_rows / (1 + 15 * on_demand)", "rows"),
)
STRIP = (
    Feature("ahead", "interaction", "(prefetch > 0) * max(1, 1024 * prefetch / (4 * columns))", "nonzeros"),
    Feature("rows_ahead", "interaction", "ahead / max(1, row_mean)", "rows"),
    Feature("last_fill", "interaction", "width / (16 * ceil(width / 16))", "1"),
    Feature("gathered", "interaction", "4 * nnz * width / max(1, reuse) / bytes", "1"),
)
"""Of a strip of `columns`, which each operation says first."""

SPMM = (
    Feature("strip_columns", "kernel", f"number(strip, {REGISTERS})", "columns"),
    Feature("together", "kernel", "together", "rows"),
    Feature("stream", "kernel", "stream", "1"),
    Feature("columns", "interaction", "min(width, strip_columns)", "columns"),
    Feature("strips", "interaction", "ceil(width / columns)", "strips"),
    *STRIP,
    Feature("strip_fit", "interaction", "4 * cols * columns / l2_bytes", "1"),
    Feature("index_reads", "interaction", "8 * nnz * strips / bytes", "1"),
    Feature("strip_flops", "interaction", "2 * row_mean * columns", "flop"),
    Feature("streamed_fit", "interaction", "stream * row_side_fit", "1"),
    Feature("joined_fill", "interaction", "(together > 1) * fill_4", "1"),
)
SDDMM = (
    Feature("columns", "interaction", f"min(width, {REGISTERS})", "columns"),
    *STRIP,
    Feature("group", "kernel", "group", "nonzeros"),
    Feature("group_rest", "interaction", "ceil(row_mean / group) * group - row_mean", "nonzeros"),
    Feature("groups", "interaction", "row_mean / group", "groups"),
    Feature("group_flops", "interaction", "2 * min(group, max(1, row_mean)) * width", "flop"),
)


def _work(flops: str, moved: str) -> tuple[Feature, Feature]:
    return Feature("flops", "pattern", flops, "flop"), Feature("bytes", "pattern", moved, "B")


SPMM_FEATURES = FeatureSpec(
    op="spmm", version=1, fallback="nnz == 0",
    features=(*PATTERN, *HARDWARE, *_work("2 * nnz * width", f"8 * nnz + {MOVED}"), *SIZES, *KERNEL, *WALK, *SPMM),
)
SDDMM_FEATURES = FeatureSpec(
    op="sddmm", version=1, fallback="nnz == 0",
    features=(*PATTERN, *HARDWARE, *_work("(2 * width + 1) * nnz", f"12 * nnz + {MOVED}"), *SIZES, *KERNEL, *WALK,
              *SDDMM),
)


def sparse_problems(problems: Sequence[tuple[str, int]], statistics: pd.DataFrame) -> Mapping[str, np.ndarray]:
    """What both specifications are given of (matrix, width), (problems,) each; not the machine's constants.

    Args:
        statistics: pattern statistics, one row per matrix.
    """
    rows = statistics.loc[[name for name, _ in problems], list(STATISTICS)].to_numpy(np.float64)
    return {"width": np.array([width for _, width in problems], np.float64)} | dict(
        zip(STATISTICS, rows.T, strict=True))
