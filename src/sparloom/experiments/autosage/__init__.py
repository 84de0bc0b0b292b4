"""AutoSAGE: benchmarks of sparse operations whose kernel is chosen for each input.

cases (what is timed, reference results), call_cases, cpu_cases, cuda_cases, bench_dispatch, kernel_choice,
learned_choice, bench_autosage, graph_training, bench_gcn, mini_batches, bench_minibatch, cached_plans.
"""

from sparloom.lazy import attach

__all__, __getattr__, __dir__ = attach(__name__, {
    "cases": ("OPERATIONS", "BoundMethod", "DispatchCase", "ReferenceRows", "check_own"),
    "cuda_cases": ("CUDA_BASELINES", "CudaDispatchBench"),
    "bench_dispatch": ("BenchDispatch", "BenchDispatchCuda"),
    "kernel_choice": ("SUBGRAPH_ROWS", "ChooseStoredKernels", "induced_subgraph"),
    "learned_choice": ("ChooseKernels",),
    "bench_autosage": ("BenchAutosage", "HubRows"),
    "graph_training": ("Classification", "Trainee"),
    "bench_gcn": ("BenchGcn", "GraphChoice"),
    "mini_batches": (
        "MiniBatch", "cluster_batch", "induced_batch", "sample_neighbours", "small_graphs_batch", "walk_batch"),
    "bench_minibatch": ("BatchCase", "BenchMinibatch"),
    "cached_plans": ("Plans",),
})
