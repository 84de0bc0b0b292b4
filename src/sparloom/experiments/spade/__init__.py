"""SPADE: check the simulator and the sensitivity of its results, explore designs of the accelerator.

simulator (its speed, its two levels, the sensitivity to constants that no paper states), explore_designs.
"""

from sparloom.lazy import on_demand

_NAMES = {
    "simulator": (
        "BenchSimulator", "CheckSpadeSigns", "SpadeSensitivity", "ValidateSimulator", "judge_signs", "sensitivity"),
    "explore_designs": ("DesignSeconds", "ExploreDesigns"),
}

__all__ = sorted(name for names in _NAMES.values() for name in names)

__getattr__, __dir__ = on_demand(
    __name__, {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names})
