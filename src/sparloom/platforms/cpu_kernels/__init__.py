"""Hand-written kernels of the CPU this runs on, chosen by parameters: GEMM, SpMM, its maximum, SDDMM and attention.

row_pieces: the rows of a sparse operand, shared among threads; sparse_kernels: the kernels that read them; core: the
C++ function that takes calls to them; estimate: a formula of their seconds; kernels: GEMM, and the platform that
measures all of them.
"""

from sparloom.lazy import attach

__all__, __getattr__, __dir__ = attach(__name__, {
    "core": ("bind_prepared", "empty_result", "load_kernels", "load_layer_kernels", "native_core", "new_prepared",
             "set_threads"),
    "estimate": ("estimate_sparse_seconds",),
    "kernels": ("CpuKernels", "GemmKernels"),
    "row_pieces": ("GRAIN", "BoundRows", "Pieces", "Rows", "Traversal", "useful_threads"),
    "sparse_kernels": ("ELEMENTS", "SPARSE_FAMILIES", "SparseCall", "SpmmKernels", "SpmmMaxKernels"),
})
