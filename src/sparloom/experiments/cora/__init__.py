"""CoRa: benchmarks and ablations of ragged programs.

modules and products (what is timed), bench_ragged, schedules, eval_ragged, operator_variants, layer_variants.
"""

from sparloom.ondemand import on_demand

_HOMES = {
    "BenchRagged": "bench_ragged",
    "BenchRaggedCuda": "bench_ragged",
    "BenchRaggedSchedules": "schedules",
    "EvalRagged": "eval_ragged",
    "ProductSizes": "products",
    "activation_rows": "eval_ragged",
    "computation_rows": "eval_ragged",
    "device_module": "products",
    "hoisting_arms": "operator_variants",
    "prelude_arms": "layer_variants",
    "prelude_bytes": "layer_variants",
    "prepare_baselines": "modules",
    "splitting_arms": "operator_variants",
    "storage_arms": "operator_variants",
    "storage_bytes": "operator_variants",
    "triangular_methods": "products",
}

__all__ = sorted(_HOMES)

__getattr__, __dir__ = on_demand(__name__, {name: f"{__name__}.{home}" for name, home in _HOMES.items()})
