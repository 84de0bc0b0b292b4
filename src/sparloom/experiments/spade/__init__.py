"""SPADE: check the simulator and the sensitivity of its results, explore designs of the accelerator.

simulator (its speed, its two levels, the sensitivity to constants that no paper states), explore_designs.
"""

from sparloom.ondemand import on_demand

_HOMES = {
    "BenchSimulator": "simulator",
    "CheckSpadeSigns": "simulator",
    "DesignSeconds": "explore_designs",
    "ExploreDesigns": "explore_designs",
    "SpadeSensitivity": "simulator",
    "ValidateSimulator": "simulator",
    "judge_signs": "simulator",
    "sensitivity": "simulator",
}

__all__ = sorted(_HOMES)

__getattr__, __dir__ = on_demand(__name__, {name: f"{__name__}.{home}" for name, home in _HOMES.items()})
