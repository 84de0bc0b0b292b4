"""Hand-written kernels of the CPU this runs on, chosen by parameters: GEMM, SpMM, its maximum, SDDMM and attention.

rows: how the rows of the sparse operand are ordered and shared among threads; kernels: the kernels bound to arrays,
and the platform that measures them.
"""

from sparloom.lazy import on_demand

_MODULES = {  # module -> its public names
    "kernels": ("CpuKernels", "GemmKernels", "SparseCall", "SpmmKernels", "SpmmMaxKernels"),
    "rows": ("Traversal",),
}

__all__ = sorted(name for names in _MODULES.values() for name in names)

__getattr__, __dir__ = on_demand(
    __name__, {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names})
