"""The SPADE accelerator (ISCA'23) with the configuration space of COGNATE, simulated.

machine: its parameters; estimate: a formula; simulate: the fast level T1; line_accurate: the
reference level T0; platform: all as a platform; published_effects: tables of the SPADE paper beside ours.
"""

from sparloom.lazy import attach

__all__, __getattr__, __dir__ = attach(__name__, {
    "estimate": ("estimate_seconds",),
    "line_accurate": ("Agreement", "Pair", "both_levels", "simulate_lines", "stratified"),
    "machine": ("Machine",),
    "platform": ("SpadePlatform",),
    "published_effects": (
        "STANDINS", "PublishedEffect", "delaunay", "effect_records", "grid_3d", "kronecker", "mycielskian",
        "road", "scaled", "social", "symmetric"),
    "simulate": (
        "CYCLIC", "SERVED", "WORK", "Tiling", "deal", "plan", "seconds", "simulate_counts",
        "simulate_many", "simulate_ops", "simulator_digest", "tile", "trace"),
})
