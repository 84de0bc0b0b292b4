"""Tile fusion: benchmarks of products of three matrices and of Jacobi's method.

pairs (cases, timing and checks of pairs of products), methods (what is timed), bench, jacobi,
bench_fuse (functions that `fuse` compiled).
"""

from sparloom.lazy import attach

__all__, __getattr__, __dir__ = attach(__name__, {
    "pairs": ("METHODS", "Block", "Case", "FusionBench", "PairCheck", "cases", "decide", "fusion_set", "score"),
    "methods": ("Methods", "reuse"),
    "bench": ("BenchFusion",),
    "jacobi": ("BenchJacobi", "dominant", "jacobi_set", "system"),
    "bench_fuse": ("BenchFuse", "fuse_metrics"),
})
