"""Features of a tiled GEMM on a CPU: C(m,n) = A(m,k) B(k,n), row-major float32."""

from collections.abc import Sequence

import numpy as np

from sparloom.models.performance.features import Feature, FeatureSpec
from sparloom.ops import GemmShape

__all__ = ["GEMM_FEATURES", "gemm_problems"]

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
)
HARDWARE = (
    Feature("l1_bytes", "hardware", "l1_bytes", "B"),
    Feature("l2_bytes", "hardware", "l2_bytes", "B"),
    Feature("l3_bytes", "hardware", "l3_bytes", "B"),
)
KERNEL = (
    Feature("tile_m", "kernel", "tile_m", "rows"),
    Feature("tile_n", "kernel", "tile_n", "columns"),
    Feature("tile_k", "kernel", "tile_k", "terms"),
    Feature("micro_rows", "kernel", "first(micro)", "rows"),
    Feature("micro_cols", "kernel", "second(micro)", "columns"),
    Feature("unroll", "kernel", "unroll", "terms"),
    Feature("packs_a", "kernel", "pack == 'ab'", "1"),
    Feature("packs_b", "kernel", "pack != 'none'", "1"),
    Feature("accumulators", "kernel", "micro_rows * micro_cols", "elements"),
    Feature("micro_intensity", "kernel", "micro_rows * micro_cols / (micro_rows + micro_cols)", "flop/element"),
)
INTERACTION = (
    Feature("tiles_m", "interaction", "ceil(m / tile_m)", "tiles"),
    Feature("tiles_n", "interaction", "ceil(n / tile_n)", "tiles"),
    Feature("tiles_k", "interaction", "ceil(k / tile_k)", "tiles"),
    Feature("tiles", "interaction", "tiles_m * tiles_n * tiles_k", "tiles"),
    Feature("fill_m", "interaction", "m / (tiles_m * tile_m)", "1"),
    Feature("fill_n", "interaction", "n / (tiles_n * tile_n)", "1"),
    Feature("fill_k", "interaction", "k / (tiles_k * tile_k)", "1"),
    Feature("micro_m", "interaction", "ceil(m / micro_rows)", "calls"),
    Feature("micro_n", "interaction", "ceil(n / micro_cols)", "calls"),
    Feature("micro_fill_m", "interaction", "m / (micro_m * micro_rows)", "1"),
    Feature("micro_fill_n", "interaction", "n / (micro_n * micro_cols)", "1"),
    Feature("micro_fill", "interaction", "micro_fill_m * micro_fill_n", "1"),
    Feature("micro_calls", "interaction", "micro_m * micro_n * tiles_k", "calls"),
    Feature("padded_flops", "interaction", "2 * micro_m * micro_rows * micro_n * micro_cols * k", "flop"),
    Feature("call_terms", "interaction", "min(k, tile_k)", "terms"),
    Feature("unroll_rest", "interaction", "call_terms - unroll * floor(call_terms / unroll)", "terms"),
    Feature("rows", "interaction", "min(m, tile_m)", "rows"),
    Feature("columns", "interaction", "min(n, tile_n)", "columns"),
    Feature("panel_a", "interaction", "4 * rows * call_terms / l2_bytes", "1"),
    Feature("panel_b", "interaction", "4 * columns * call_terms / l2_bytes", "1"),
    Feature("sliver_b", "interaction", "4 * min(n, micro_cols) * call_terms / l1_bytes", "1"),
    Feature("sliver_a", "interaction", "4 * min(m, micro_rows) * call_terms / l1_bytes", "1"),
    Feature("whole", "interaction", "bytes / l2_bytes", "1"),
    Feature("traffic_a", "interaction", "4 * elements_a * tiles_n", "B"),
    Feature("traffic_b", "interaction", "4 * elements_b * tiles_m", "B"),
    Feature("traffic_c", "interaction", "8 * elements_c * tiles_k", "B"),
    Feature("traffic_share", "interaction", "(traffic_a + traffic_b + traffic_c) / flops", "B/flop"),
    Feature("packed", "interaction", "(packs_a * traffic_a + packs_b * traffic_b) / flops", "B/flop"),
    Feature("loads", "interaction", "micro_calls * call_terms * (micro_rows + micro_cols) / flops", "elements/flop"),
)

GEMM_FEATURES = FeatureSpec(
    op="gemm", version=1, features=(*PROBLEM, *HARDWARE, *KERNEL, *INTERACTION), fallback="(n == 1) + (k == 1)",
)
"""N = 1 and K = 1 are products of matrix and vector, and of vectors: not what tiles are for."""


def gemm_problems(shapes: Sequence[GemmShape]) -> dict[str, np.ndarray]:
    """What `GEMM_FEATURES` is given of shapes, (shapes,) each; the machine's constants come from elsewhere."""
    return {name: np.array([getattr(shape, name) for shape in shapes], np.float64) for name in ("m", "n", "k")}
