"""AutoSAGE: benchmarks of sparse operations whose kernel is chosen by measurement.

cases (what is timed, reference results), cpu_cases, cuda_cases, bench_dispatch, kernel_choice, bench_decisions_busy,
graph_training, bench_gcn, cached_plans.
"""

from sparloom.ondemand import on_demand

_HOMES = {
    "BenchDecisionsBusy": "bench_decisions_busy",
    "BenchDispatch": "bench_dispatch",
    "BenchDispatchCuda": "bench_dispatch",
    "BenchGcn": "bench_gcn",
    "BoundMethod": "cases",
    "BusyCase": "bench_decisions_busy",
    "CheckGcn": "bench_gcn",
    "CheckProbe": "kernel_choice",
    "ChooseKernels": "kernel_choice",
    "Classification": "graph_training",
    "CudaDispatchBench": "cuda_cases",
    "DispatchCase": "cases",
    "GraphChoice": "bench_gcn",
    "OPERATIONS": "cases",
    "Plans": "cached_plans",
    "PolicyVariant": "cpu_cases",
    "ReferenceRows": "cases",
    "CUDA_BASELINES": "cuda_cases",
    "SUBGRAPH_ROWS": "kernel_choice",
    "Trainee": "graph_training",
    "check_own": "cases",
    "ready_variants": "cpu_cases",
}

__all__ = sorted(_HOMES)

__getattr__, __dir__ = on_demand(__name__, {name: f"{__name__}.{home}" for name, home in _HOMES.items()})
