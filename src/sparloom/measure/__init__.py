"""Measurements, timing protocol, noise, metrics of rankings and choices, machine description."""

from sparloom.measure.machine import (
    cache_bytes_per_core,
    cache_levels,
    checked_threads,
    describe_machine,
    usable_memory,
    vector_lanes,
)
from sparloom.measure.measurement import REPEATS, Kind, Measurement, TimingProtocol
from sparloom.measure.metrics import (
    DCE_COST,
    ape_speedup,
    ape_time,
    bootstrap_interval,
    dce,
    geomean,
    kendall_tau,
    noise_floor,
    ordered_pair_accuracy,
)

__all__ = [
    "DCE_COST",
    "REPEATS",
    "Kind",
    "Measurement",
    "TimingProtocol",
    "ape_speedup",
    "ape_time",
    "bootstrap_interval",
    "cache_bytes_per_core",
    "cache_levels",
    "checked_threads",
    "dce",
    "describe_machine",
    "geomean",
    "kendall_tau",
    "noise_floor",
    "ordered_pair_accuracy",
    "usable_memory",
    "vector_lanes",
]
