"""Tile fusion: benchmarks of products of three matrices and of Jacobi's method.

pairs (cases, timing and checks of pairs of products), methods (the contestants), jacobi, bench, bench_kernels.
"""

from sparloom.ondemand import on_demand

_HOMES = {
    "FusionBench": "pairs",
    "BenchFusion": "bench",
    "BenchJacobi": "bench",
    "BenchKernels": "bench_kernels",
    "Block": "pairs",
    "Case": "pairs",
    "METHODS": "pairs",
    "Methods": "methods",
    "PairCheck": "pairs",
    "cases": "pairs",
    "decide": "pairs",
    "dominant": "jacobi",
    "fusion_set": "pairs",
    "jacobi_set": "jacobi",
    "kernel_metrics": "bench_kernels",
    "reuse": "methods",
    "score": "pairs",
    "system": "jacobi",
}

__all__ = sorted(_HOMES)

__getattr__, __dir__ = on_demand(__name__, {name: f"{__name__}.{home}" for name, home in _HOMES.items()})
