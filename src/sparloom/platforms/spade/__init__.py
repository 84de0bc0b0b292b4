"""The SPADE accelerator (ISCA'23) with the configuration space of COGNATE, simulated.

machine: its parameters, and designs around it; simulate: the fast level T1; line_accurate: the reference level T0;
platform: both as a platform; published_effects: tables of the SPADE paper beside ours.
"""

from sparloom.ondemand import on_demand

__all__ = [
    "CYCLIC", "SERVED", "STANDINS", "WORK", "Agreement", "Machine", "Pair", "Prices", "PublishedEffect",
    "SpadePlatform", "Tiling", "both_levels", "deal", "delaunay", "designs", "effect_records", "grid_3d",
    "kronecker", "mycielskian", "plan", "road", "scaled", "seconds", "simulate_counts", "simulate_lines",
    "simulate_many", "simulate_ops", "simulator_digest", "social", "stratified", "symmetric", "tile", "trace",
]

_MODULES = {
    "Agreement": "sparloom.platforms.spade.line_accurate",
    "CYCLIC": "sparloom.platforms.spade.simulate",
    "Machine": "sparloom.platforms.spade.machine",
    "Pair": "sparloom.platforms.spade.line_accurate",
    "Prices": "sparloom.platforms.spade.machine",
    "PublishedEffect": "sparloom.platforms.spade.published_effects",
    "SERVED": "sparloom.platforms.spade.simulate",
    "STANDINS": "sparloom.platforms.spade.published_effects",
    "SpadePlatform": "sparloom.platforms.spade.platform",
    "Tiling": "sparloom.platforms.spade.simulate",
    "WORK": "sparloom.platforms.spade.simulate",
    "both_levels": "sparloom.platforms.spade.line_accurate",
    "deal": "sparloom.platforms.spade.simulate",
    "delaunay": "sparloom.platforms.spade.published_effects",
    "designs": "sparloom.platforms.spade.machine",
    "effect_records": "sparloom.platforms.spade.published_effects",
    "grid_3d": "sparloom.platforms.spade.published_effects",
    "kronecker": "sparloom.platforms.spade.published_effects",
    "mycielskian": "sparloom.platforms.spade.published_effects",
    "plan": "sparloom.platforms.spade.simulate",
    "road": "sparloom.platforms.spade.published_effects",
    "scaled": "sparloom.platforms.spade.published_effects",
    "seconds": "sparloom.platforms.spade.simulate",
    "simulate_counts": "sparloom.platforms.spade.simulate",
    "simulate_lines": "sparloom.platforms.spade.line_accurate",
    "simulate_many": "sparloom.platforms.spade.simulate",
    "simulate_ops": "sparloom.platforms.spade.simulate",
    "simulator_digest": "sparloom.platforms.spade.simulate",
    "social": "sparloom.platforms.spade.published_effects",
    "stratified": "sparloom.platforms.spade.line_accurate",
    "symmetric": "sparloom.platforms.spade.published_effects",
    "tile": "sparloom.platforms.spade.simulate",
    "trace": "sparloom.platforms.spade.simulate",
}

__getattr__, __dir__ = on_demand(__name__, _MODULES)
