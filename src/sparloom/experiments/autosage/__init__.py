"""AutoSAGE: benchmarks of sparse operations whose kernel is chosen by measurement.

cases (what is timed, reference results), cpu_cases, cuda_cases, bench_dispatch, kernel_choice, bench_decisions_busy,
graph_training, bench_gcn, cached_plans.
"""

from sparloom.lazy import on_demand

_NAMES = {
    "cases": ("OPERATIONS", "BoundMethod", "DispatchCase", "ReferenceRows", "check_own"),
    "cpu_cases": ("PolicyVariant", "ready_variants"),
    "cuda_cases": ("CUDA_BASELINES", "CudaDispatchBench"),
    "bench_dispatch": ("BenchDispatch", "BenchDispatchCuda"),
    "kernel_choice": ("SUBGRAPH_ROWS", "CheckProbe", "ChooseKernels"),
    "bench_decisions_busy": ("BenchDecisionsBusy", "BusyCase"),
    "graph_training": ("Classification", "Trainee"),
    "bench_gcn": ("BenchGcn", "CheckGcn", "GraphChoice"),
    "cached_plans": ("Plans",),
}

__all__ = sorted(name for names in _NAMES.values() for name in names)

__getattr__, __dir__ = on_demand(
    __name__, {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names})
