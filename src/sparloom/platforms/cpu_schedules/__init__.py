"""Schedules of a loop nest on the CPU, generated as C.

storage: the sparse operand in four levels; lower: a configuration becomes a loop nest; kernels: compiled nests, checked
and bound; platform: measures them.
"""

from sparloom.ondemand import on_demand

__all__ = ["CpuPlatform", "Kernels", "Layout", "Packer", "Program"]

_MODULES = {
    "CpuPlatform": "sparloom.platforms.cpu_schedules.platform",
    "Kernels": "sparloom.platforms.cpu_schedules.kernels",
    "Layout": "sparloom.platforms.cpu_schedules.storage",
    "Packer": "sparloom.platforms.cpu_schedules.storage",
    "Program": "sparloom.platforms.cpu_schedules.lower",
}

__getattr__, __dir__ = on_demand(__name__, _MODULES)
