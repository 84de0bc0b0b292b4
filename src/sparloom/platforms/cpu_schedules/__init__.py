"""Schedules of a loop nest on the CPU, generated as C.

storage: the sparse operand in four levels; lowering: a configuration becomes a loop nest; kernels: compiled nests,
checked and bound; platform: measures them. many_cores simulates a processor with many cores from these measurements:
pieces is the work of the pieces of a parallel loop, dense_traffic what they fetch of the dense operands.
"""

from sparloom.lazy import attach

__all__, __getattr__, __dir__ = attach(__name__, {
    "dense_traffic": ("DenseTraffic",),
    "kernels": ("Kernels", "arguments", "fresh_result", "unpack_result"),
    "lowering": ("Program", "lower"),
    "many_cores": ("ManyCorePlatform", "ManyCores", "MatrixDealer", "simulate"),
    "pieces": ("Dealing", "Pieces", "deal", "pieces_of"),
    "platform": ("CpuPlatform", "Planner"),
    "storage": ("FILL_LIMIT", "LEVELS", "PADDING", "Layout", "Packer"),
})
