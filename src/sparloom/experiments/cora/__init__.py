"""CoRa: benchmarks and ablations of ragged programs.

modules and products (what is timed), bench_ragged, eval_ragged, operator_variants, layer_variants;
bench_encoders (whole models of texts) and text_encoders (the libraries beside, in processes of their own).
"""

from sparloom.lazy import attach

__all__, __getattr__, __dir__ = attach(__name__, {
    "modules": ("prepare_baselines",),
    "products": ("ProductSizes", "device_module", "triangular_methods"),
    "bench_ragged": ("BenchRagged", "BenchRaggedCuda"),
    "bench_encoders": ("BenchEncoders",),
    "eval_ragged": ("EvalRagged", "activation_rows", "computation_rows"),
    "operator_variants": ("hoisting_arms", "splitting_arms", "storage_arms", "storage_bytes"),
    "layer_variants": ("prelude_arms", "prelude_bytes"),
})
