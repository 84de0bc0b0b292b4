"""Tile fusion: benchmarks of products of three matrices and of Jacobi's method.

pairs (cases, timing and checks of pairs of products), methods (what is timed), bench, jacobi, bench_kernels.
"""

from sparloom.lazy import on_demand

_NAMES = {
    "pairs": ("METHODS", "Block", "Case", "FusionBench", "PairCheck", "cases", "decide", "fusion_set", "score"),
    "methods": ("Methods", "reuse"),
    "bench": ("BenchFusion",),
    "jacobi": ("BenchJacobi", "dominant", "jacobi_set", "system"),
    "bench_kernels": ("BenchKernels", "kernel_metrics"),
}

__all__ = sorted(name for names in _NAMES.values() for name in names)

__getattr__, __dir__ = on_demand(
    __name__, {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names})
