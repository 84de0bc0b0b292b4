"""Tile fusion: two parallel loops with a sparse dependence between them, executed tile by tile.

The way of a function that is decorated with `fuse`:

    decorator     `fuse`: compiles a function for each set of argument types, and caches schedules
    frontend/     Python function -> program
    program       what the front end produces: scalars, arrays, accesses, two loops; sparse arguments
    symbolic      integer expressions in SymPy, their ranges, and checks of subscripts
    dependence    dependences between the two loops
    codegen       program -> kernels of the loop IR
    recognition   recognises matrix products, which the executor runs
    compiled      the compiled program: sizes, dependence graph, calls

The way of a product of three matrices, which needs no compilation:

    schedule      the two loops, tile schedules, their legality, and the inspector (Algorithm 1)
    orders        orders of the iterations that fuse more of them
    executor      runs a schedule with the kernels of kernels/cpu; the space of schedules and variants
    comparison    the baselines of the paper, a cache simulator, load balance, thread pinning
"""

from sparloom.lazy import attach

__all__, __getattr__, __dir__ = attach(__name__, {
    "comparison": (
        "CacheLevel", "access_cycles", "atomic_tiling", "fused_gemv", "machine_levels", "overlapped_tiling", "pinned",
        "potential_gain"),
    "decorator": ("Budget", "FusedFunction", "fuse"),
    "executor": ("Executor", "Pair", "TileFusionSpace", "Variant", "Workspace"),
    "orders": (
        "Reordered", "bandwidth_order", "rescue_order"),
    "program": ("Csr", "fprange"),
    "schedule": (
        "FusedLoops", "Loop", "Reads", "TileSchedule", "check_schedule", "coarse_tiles", "gemm_spmm_loops",
        "schedule_tiles", "separated", "spmm_gemm_loops", "spmm_spmm_loops", "unfused_schedule"),
    "sparloom.jit": ("IdentityCache",),
})
