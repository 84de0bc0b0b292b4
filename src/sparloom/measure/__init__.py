"""Measurements and their conditions.

A measurement is made under a timing protocol and of a commit (measurement.py), on a machine (machine.py); its seconds
become metrics of rankings and choices, with their noise (metrics.py).
"""

from sparloom.lazy import attach

__all__, __getattr__, __dir__ = attach(__name__, {
    "measurement": ("REPEATS", "Kind", "Measurement", "Revision", "TimingProtocol", "code_changes", "code_revision"),
    "machine": ("VALUE_BYTES", "Caches", "cache_bytes_per_core", "cache_capacities", "cache_levels", "checked_threads",
                "describe_machine", "machine_digest", "processor_digests", "usable_memory", "vector_lanes"),
    "metrics": ("DCE_COST", "ape_speedup", "ape_time", "bootstrap_interval", "dce", "geomean", "kendall_tau",
                "noise_floor", "ordered_pair_accuracy"),
})
