"""The SPADE accelerator (ISCA'23) with the configuration space of COGNATE, simulated.

machine: its parameters, and designs around it; simulate: the fast level T1; line_accurate: the reference level T0;
platform: both as a platform; published_effects: tables of the SPADE paper beside ours.
"""

from sparloom.ondemand import on_demand

__all__ = [
    "Agreement", "Machine", "Pair", "Prices", "PublishedEffect", "SpadePlatform", "both_levels", "designs",
    "effect_records", "simulate_counts", "simulate_many", "simulate_ops", "simulator_digest", "stratified",
]

_MODULES = {
    "Agreement": "sparloom.platforms.spade.line_accurate",
    "Machine": "sparloom.platforms.spade.machine",
    "Pair": "sparloom.platforms.spade.line_accurate",
    "Prices": "sparloom.platforms.spade.machine",
    "PublishedEffect": "sparloom.platforms.spade.published_effects",
    "SpadePlatform": "sparloom.platforms.spade.platform",
    "both_levels": "sparloom.platforms.spade.line_accurate",
    "designs": "sparloom.platforms.spade.machine",
    "effect_records": "sparloom.platforms.spade.published_effects",
    "simulate_counts": "sparloom.platforms.spade.simulate",
    "simulate_many": "sparloom.platforms.spade.simulate",
    "simulate_ops": "sparloom.platforms.spade.simulate",
    "simulator_digest": "sparloom.platforms.spade.simulate",
    "stratified": "sparloom.platforms.spade.line_accurate",
}

__getattr__, __dir__ = on_demand(__name__, _MODULES)
