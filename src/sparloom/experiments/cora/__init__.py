"""CoRa: benchmarks and ablations of ragged programs.

modules and products (what is timed), bench_ragged, schedules, eval_ragged, operator_variants, layer_variants.
"""

from sparloom.lazy import on_demand

_NAMES = {
    "modules": ("prepare_baselines",),
    "products": ("ProductSizes", "device_module", "triangular_methods"),
    "bench_ragged": ("BenchRagged", "BenchRaggedCuda"),
    "schedules": ("BenchRaggedSchedules",),
    "eval_ragged": ("EvalRagged", "activation_rows", "computation_rows"),
    "operator_variants": ("hoisting_arms", "splitting_arms", "storage_arms", "storage_bytes"),
    "layer_variants": ("prelude_arms", "prelude_bytes"),
}

__all__ = sorted(name for names in _NAMES.values() for name in names)

__getattr__, __dir__ = on_demand(
    __name__, {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names})
