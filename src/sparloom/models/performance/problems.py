"""Features of a tiled GEMM C(m,n) = A(m,k) B(k,n) in float32 on a CPU and on a GPU, and of sparse kernels on a CPU."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from sparloom.models.performance.features import Feature, FeatureSpec
from sparloom.ops import GemmShape
from sparloom.space import GEMM_BLOCK_COLUMNS
from sparloom.sparse import STATISTICS

NEARBY_DEVIATION = 0.5  # standard deviation of the logarithm of a changed extent
COUNTS = frozenset({"rows", "cols", "nnz"})
MOVED = "8 * (rows + 1) + 4 * width * (rows + cols)"  # bytes of row pointers and dense operands
GEMM_INPUTS = ("m", "n", "k", "a_transposed", "b_transposed")
"""What a GEMM problem provides, besides constants of the machine."""
FUSED_RATE, TENSOR_RATE = 256, 2048
"""Flop per cycle of a multiprocessor of Hopper: float32 on its plain units, TF32 on its tensor cores."""
MAX_STRIP = 256  # columns of the widest strip, with 32 registers of 16 columns

PROBLEM = (
    Feature("m", "problem", "m", "rows"),
    Feature("n", "problem", "n", "columns"),
    Feature("k", "problem", "k", "terms"),
    Feature("flops", "problem", "2 * m * n * k", "flop"),
    Feature("bytes", "problem", "4 * (m * k + k * n + m * n)", "B"),
    Feature("intensity", "problem", "flops / bytes", "flop/B"),
    Feature("aspect_mn", "problem", "m / n", "1"),
    Feature("aspect_mk", "problem", "m / k", "1"),
    Feature("aspect_nk", "problem", "n / k", "1"),
    Feature("elements_a", "problem", "m * k", "elements"),
    Feature("elements_b", "problem", "k * n", "elements"),
    Feature("elements_c", "problem", "m * n", "elements"),
    Feature("a_transposed", "problem", "a_transposed", "1"),
    Feature("b_transposed", "problem", "b_transposed", "1"),
)
GEMM_HARDWARE = tuple(Feature(name, "hardware", name, "B") for name in ("l1_bytes", "l2_bytes", "l3_bytes"))
GEMM_KERNEL = (
    Feature("tile_m", "kernel", "tile_m", "rows"),
    Feature("tile_k", "kernel", "tile_k", "terms"),
    Feature("micro_rows", "kernel", "first(micro)", "rows"),
    Feature("micro_cols", "kernel", "second(micro)", "columns"),
    Feature("unroll", "kernel", "unroll", "terms"),
    Feature("packs_a", "kernel", "pack == 'ab'", "1"),
    Feature("packs_b", "kernel", "pack != 'none'", "1"),
    Feature("split_k", "kernel", "split_k", "sums"),
    Feature("prefetch", "kernel", "prefetch", "terms"),
    Feature("persistent", "kernel", "loop == 'persistent'", "1"),
    Feature("micro_vectors", "kernel", "micro_cols / 16", "vectors"),
    Feature("accumulators", "kernel", "micro_rows * micro_cols", "elements"),
    Feature("micro_intensity", "kernel", "micro_rows * micro_cols / (micro_rows + micro_cols)", "flop/element"),
)


def _cycles(rows: str, vectors: str, sums: str = "1") -> str:
    """Cycles per term of a register tile: two multiplications and two loads a cycle, additions with latency four."""
    return f"max(max({rows} * {vectors} / 2, ({rows} + {vectors}) / 2), 4 / {sums})"


_TAILS = (
    Feature("tail_8", "interaction", "floor(tail_rows / 8)", "tiles"),
    Feature("tail_4", "interaction", "floor((tail_rows - 8 * tail_8) / 4)", "tiles"),
    Feature("tail_2", "interaction", "floor((tail_rows - 8 * tail_8 - 4 * tail_4) / 2)", "tiles"),
    Feature("tail_1", "interaction", "tail_rows - 8 * tail_8 - 4 * tail_4 - 2 * tail_2", "tiles"),
)
_ROW_CYCLES = " + ".join([
    f"floor(m / micro_rows) * {_cycles('micro_rows', 'micro_vectors', 'split_k')}",
    *(f"tail_{rows} * {_cycles(str(rows), 'micro_vectors')}" for rows in (8, 4, 2, 1)),
])
PROGRAM = (  # what a configuration is in a layout, see `space.gemm_program`
    Feature("dots", "interaction", "b_transposed * (1 - packs_b)", "1"),
    Feature("ahead", "interaction", "prefetch * (1 - dots)", "terms"),
    Feature("ahead_bytes", "interaction", "4 * ahead * n", "B"),
    Feature("copied_a", "interaction", "a_transposed * dots * (m > 1) * elements_a / flops", "elements/flop"),
    Feature("strided_a", "interaction", "a_transposed * (1 - packs_a) * (1 - dots) * (m > 1)", "1"),
)
INTERACTION = (
    Feature("block_m", "interaction", "min(m, tile_m + persistent * m)", "rows"),
    Feature("block_n", "interaction", f"min(n, {GEMM_BLOCK_COLUMNS} + persistent * n)", "columns"),
    Feature("block_k", "interaction", "min(k, tile_k + persistent * k)", "terms"),
    Feature("blocks_m", "interaction", "ceil(m / block_m)", "blocks"),
    Feature("blocks_n", "interaction", "ceil(n / block_n)", "blocks"),
    Feature("blocks_k", "interaction", "ceil(k / block_k)", "blocks"),
    Feature("blocks", "interaction", "blocks_m * blocks_n * blocks_k", "blocks"),
    Feature("fill_m", "interaction", "m / (blocks_m * block_m)", "1"),
    Feature("fill_n", "interaction", "n / (blocks_n * block_n)", "1"),
    Feature("fill_k", "interaction", "k / (blocks_k * block_k)", "1"),
    Feature("panels_m", "interaction", "ceil(m / micro_rows)", "panels"),
    Feature("tail_rows", "interaction", "m - micro_rows * floor(m / micro_rows)", "rows"),
    Feature("tail_row_share", "interaction", "tail_rows / m", "1"),
    Feature("tail_columns", "interaction", "n - micro_cols * floor(n / micro_cols)", "columns"),
    Feature("tail_column_share", "interaction", "tail_columns / n", "1"),
    Feature("vectors", "interaction", "(n - tail_columns) / 16 + ceil(tail_columns / 16)", "vectors"),
    Feature("vector_fill", "interaction", "n / (16 * vectors)", "1"),
    *_TAILS,
    Feature("row_cycles", "interaction", _ROW_CYCLES, "cycles/term"),
    Feature("cycles", "interaction", "k * row_cycles * vectors / micro_vectors", "cycles"),
    Feature("dot_columns", "interaction", "ceil(n / micro_vectors)", "tiles"),
    Feature("dot_cycles", "interaction", f"ceil(k / 16) * panels_m * dot_columns * "
            f"{_cycles('micro_rows', 'micro_vectors', 'split_k')} + 4 * elements_c * blocks_k", "cycles"),
    Feature("estimated_rate", "interaction", "flops / (dots * dot_cycles + (1 - dots) * cycles)", "flop/cycle"),
    Feature("held_rows", "interaction", "min(m, micro_rows)", "rows"),
    Feature("held_vectors", "interaction", "min(ceil(n / 16), micro_vectors)", "vectors"),
    Feature("held", "interaction", "held_rows * held_vectors", "vectors"),
    Feature("panels_n", "interaction", "ceil(n / micro_cols)", "panels"),
    Feature("full_share", "interaction", "(1 - tail_row_share) * (1 - tail_column_share)", "1"),
    Feature("micro_calls", "interaction", "panels_m * panels_n * blocks_k", "calls"),
    Feature("call_flops", "interaction", "flops / micro_calls", "flop"),
    Feature("unroll_rest", "interaction", "block_k - unroll * floor(block_k / unroll)", "terms"),
    Feature("block_a_fit", "interaction", "4 * block_m * block_k / l2_bytes", "1"),
    Feature("block_b_fit", "interaction", "4 * block_k * block_n / l2_bytes", "1"),
    Feature("panel_a_fit", "interaction", "4 * min(m, micro_rows) * block_k / l1_bytes", "1"),
    Feature("panel_b_fit", "interaction", "4 * min(n, micro_cols) * block_k / l1_bytes", "1"),
    Feature("operands_fit", "interaction", "bytes / l2_bytes", "1"),
    Feature("stride_b", "interaction", "4 * (dots * k + (1 - dots) * (1 - packs_b) * n + packs_b * micro_cols)", "B"),
    Feature("stride_a", "interaction", "4 * (1 - packs_a) * (a_transposed * m + (1 - a_transposed) * k)", "B"),
    Feature("reads_a", "interaction", "elements_a * panels_n / flops", "elements/flop"),
    Feature("reads_b", "interaction", "elements_b * panels_m / flops", "elements/flop"),
    Feature("writes_c", "interaction", "elements_c * blocks_k / flops", "elements/flop"),
    Feature("traffic", "interaction", "elements_a * blocks_n + elements_b * blocks_m + 2 * elements_c * blocks_k",
            "elements"),
    Feature("packed_a", "interaction", "packs_a * elements_a * blocks_n / flops", "elements/flop"),
    Feature("packed_b", "interaction", "packs_b * elements_b / flops", "elements/flop"),
    Feature("reuse_packed_b", "interaction", "packs_b * panels_m", "panels"),
)

GEMM_FEATURES = FeatureSpec(
    op="gemm", version=2, features=(*PROBLEM, *GEMM_HARDWARE, *GEMM_KERNEL, *PROGRAM, *INTERACTION),
    fallback="(n == 1) + (k == 1)",
)
"""The model does not apply to n = 1 (matrix-vector product) and k = 1 (outer product)."""

TRITON_KERNEL = (
    *(Feature(name, "kernel", name, unit) for name, unit in (
        ("block_m", "rows"), ("block_n", "columns"), ("block_k", "terms"), ("warps", "warps"), ("stages", "steps"),
        ("group_m", "tiles"), ("split_k", "sums"))),
    Feature("tensor_cores", "kernel", "precision == 'tf32x3'", "1"),
    Feature("accumulators", "kernel", "block_m * block_n / (32 * warps)", "elements"),
    Feature("tile_intensity", "kernel", "block_m * block_n / (block_m + block_n)", "flop/element"),
    Feature("pipeline_bytes", "kernel", "4 * block_k * (block_m + block_n) * (stages - 1)", "B"),
    Feature("step_cycles", "kernel", f"2 * block_m * block_n * block_k / "
            f"({FUSED_RATE} + ({TENSOR_RATE} / 3 - {FUSED_RATE}) * (precision == 'tf32x3'))", "cycles"),
)
TRITON_PROBLEM = (
    *PROBLEM,
    Feature("aligned_n", "problem", "n == 16 * floor(n / 16)", "1"),
    Feature("aligned_k", "problem", "k == 16 * floor(k / 16)", "1"),
    Feature("multiprocessors", "hardware", "multiprocessors", "multiprocessors"),
)
TRITON_INTERACTION = (
    Feature("tiles_m", "interaction", "ceil(m / block_m)", "tiles"),
    Feature("tiles_n", "interaction", "ceil(n / block_n)", "tiles"),
    Feature("tiles", "interaction", "tiles_m * tiles_n", "tiles"),
    Feature("programs", "interaction", "tiles * split_k", "programs"),
    Feature("steps", "interaction", "ceil(k / (block_k * split_k))", "steps"),
    Feature("pipeline_fill", "interaction", "steps / (steps + stages - 1)", "1"),
    Feature("fill_m", "interaction", "m / (tiles_m * block_m)", "1"),
    Feature("fill_n", "interaction", "n / (tiles_n * block_n)", "1"),
    Feature("fill_k", "interaction", "k / (steps * block_k * split_k)", "1"),
    Feature("fill", "interaction", "fill_m * fill_n * fill_k", "1"),
    Feature("waves", "interaction", "programs / multiprocessors", "waves"),
    Feature("wave_fill", "interaction", "waves / ceil(waves)", "1"),
    Feature("resident_warps", "interaction", "min(64, ceil(waves) * warps)", "warps"),
    Feature("program_cycles", "interaction", "steps * step_cycles", "cycles"),
    Feature("cycles", "interaction", "ceil(waves) * program_cycles", "cycles"),
    Feature("estimated_rate", "interaction", "flops / cycles", "flop/cycle"),
    Feature("band", "interaction", "min(group_m, tiles_m)", "tiles"),
    Feature("reads_a", "interaction", "elements_a * tiles_n / flops", "elements/flop"),
    Feature("reads_b", "interaction", "elements_b * tiles_m / flops", "elements/flop"),
    Feature("writes_c", "interaction", "elements_c * split_k / flops", "elements/flop"),
    Feature("traffic", "interaction", "elements_a * tiles_n + elements_b * tiles_m + elements_c * split_k", "elements"),
    Feature("program_traffic", "interaction", "traffic / programs", "elements"),
)
TRITON_FEATURES = FeatureSpec(
    op="gemm", version=1, features=(*TRITON_PROBLEM, *TRITON_KERNEL, *TRITON_INTERACTION),
    fallback="(n == 1) + (k == 1)",
)
"""What the trees read of a product and a Triton kernel; they do not apply where `GEMM_FEATURES` do not."""
GEMM_SPECS: Mapping[str, FeatureSpec] = {"cpu_kernels": GEMM_FEATURES, "triton": TRITON_FEATURES}
"""Platform -> features of its GEMM kernels."""


def gemm_problems(shapes: Sequence[GemmShape]) -> dict[str, np.ndarray]:
    """Return the inputs of `GEMM_FEATURES` for shapes, (shapes,) each, without constants of the machine."""
    return {name: np.array([getattr(shape, name) for shape in shapes], np.float64) for name in GEMM_INPUTS}


def gemm_shapes(problems: Mapping[str, np.ndarray]) -> list[GemmShape]:
    """Return the shapes of which `gemm_problems` made these inputs."""
    return [GemmShape(int(m), int(n), int(k), "nt"[int(left)] + "nt"[int(right)])
            for m, n, k, left, right in zip(*(problems[name] for name in GEMM_INPUTS), strict=True)]


def nearby_shapes(shapes: Sequence[GemmShape], count: int, *, seed: int) -> list[GemmShape]:
    """Draw shapes by changing extents of these, up to the largest number of flops; extents of 1 and layouts stay."""
    rng = np.random.default_rng(seed)
    max_flops = max(shape.flops for shape in shapes)
    found: list[GemmShape] = []
    while len(found) < count:
        shape = shapes[rng.integers(len(shapes))]
        sizes = np.array([shape.m, shape.n, shape.k])
        factors = np.exp(NEARBY_DEVIATION * rng.standard_normal(3))
        changed = np.where(sizes == 1, 1, np.maximum(2, np.rint(sizes * factors)))
        near = GemmShape(*(int(size) for size in changed), shape.layout)
        if near.flops <= max_flops:
            found.append(near)
    return found


PATTERN = (
    *(Feature(name, "pattern", name, name if name in COUNTS else "1") for name in STATISTICS),
    Feature("width", "problem", "width", "columns"),
)
SPARSE_HARDWARE = (*GEMM_HARDWARE, Feature("threads", "hardware", "threads", "threads"))
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
SPARSE_KERNEL = (
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
"""Features of a strip of `columns`, which each operation defines first."""

SPMM = (
    Feature("strip_columns", "kernel", f"number(strip, {MAX_STRIP})", "columns"),
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
    Feature("columns", "interaction", f"min(width, {MAX_STRIP})", "columns"),
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
    features=(*PATTERN, *SPARSE_HARDWARE, *_work("2 * nnz * width", f"8 * nnz + {MOVED}"), *SIZES, *SPARSE_KERNEL,
              *WALK, *SPMM),
)
"""What the trees read of an SpMM problem and a kernel."""
SDDMM_FEATURES = FeatureSpec(
    op="sddmm", version=1, fallback="nnz == 0",
    features=(*PATTERN, *SPARSE_HARDWARE, *_work("(2 * width + 1) * nnz", f"12 * nnz + {MOVED}"), *SIZES,
              *SPARSE_KERNEL, *WALK, *SDDMM),
)
"""What the trees read of an SDDMM problem and a kernel."""


def sparse_problems(problems: Sequence[tuple[str, int]], statistics: pd.DataFrame) -> Mapping[str, np.ndarray]:
    """Return the inputs of both specifications for pairs (matrix, width), without constants of the machine.

    Args:
        statistics: pattern statistics, one row per matrix.
    """
    rows = statistics.loc[[name for name, _ in problems], list(STATISTICS)].to_numpy(np.float64)
    return {"width": np.array([width for _, width in problems], np.float64)} | dict(
        zip(STATISTICS, rows.T, strict=True))
