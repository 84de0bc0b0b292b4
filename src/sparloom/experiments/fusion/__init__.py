"""Tile fusion: benchmarks of products of three matrices, of Jacobi's method, and of powers of a matrix.

pairs (cases, timing and checks of pairs of products), methods (what is timed), bench, jacobi, bench_kernels,
bench_powers (k products with one matrix), bench_fuse (functions that `fuse` compiled).
"""

from sparloom.lazy import attach

__all__, __getattr__, __dir__ = attach(__name__, {
    "pairs": ("METHODS", "Block", "Case", "FusionBench", "PairCheck", "cases", "decide", "fusion_set", "score"),
    "methods": ("Methods", "reuse"),
    "bench": ("BenchFusion",),
    "jacobi": ("BenchJacobi", "dominant", "jacobi_set", "system"),
    "bench_kernels": ("BenchKernels", "kernel_metrics"),
    "bench_powers": ("BenchPowers", "powers_metrics"),
    "bench_fuse": ("BenchFuse", "fuse_metrics"),
})
