"""Schedules of a loop nest on the CPU, generated as C.

storage: the sparse operand in four levels; lowering: a configuration becomes a loop nest; kernels: compiled nests,
checked and bound; platform: measures them.
"""

from sparloom.ondemand import on_demand

__all__ = [
    "FILL_LIMIT", "LEVELS", "PADDING", "CpuPlatform", "Kernels", "Layout", "Packer", "Program", "arguments",
    "fresh_result", "lower", "unpack_result",
]

_MODULES = {
    "CpuPlatform": "sparloom.platforms.cpu_schedules.platform",
    "FILL_LIMIT": "sparloom.platforms.cpu_schedules.storage",
    "Kernels": "sparloom.platforms.cpu_schedules.kernels",
    "LEVELS": "sparloom.platforms.cpu_schedules.storage",
    "Layout": "sparloom.platforms.cpu_schedules.storage",
    "PADDING": "sparloom.platforms.cpu_schedules.storage",
    "Packer": "sparloom.platforms.cpu_schedules.storage",
    "Program": "sparloom.platforms.cpu_schedules.lowering",
    "arguments": "sparloom.platforms.cpu_schedules.kernels",
    "fresh_result": "sparloom.platforms.cpu_schedules.kernels",
    "lower": "sparloom.platforms.cpu_schedules.lowering",
    "unpack_result": "sparloom.platforms.cpu_schedules.kernels",
}

__getattr__, __dir__ = on_demand(__name__, _MODULES)
