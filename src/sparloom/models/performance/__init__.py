"""Performance models: boosted trees that predict how fast a kernel runs, from declared features.

`features` defines the features of a problem and a configuration, `problems` those of GEMM, SpMM and SDDMM. `growth`
trains trees by folds of problems, `model` predicts, `training` fits, extends and distils models, and `store` saves
them, also as C.
"""

from sparloom.lazy import attach

__all__, __getattr__, __dir__ = attach(__name__, {
    "features": ("Feature", "FeatureSpec", "Formula", "machine_constants"),
    "problems": (
        "GEMM_FEATURES", "GEMM_INPUTS", "GEMM_SPECS", "SDDMM_FEATURES", "SPMM_FEATURES", "gemm_problems", "gemm_shapes",
        "nearby_shapes", "sparse_problems"),
    "growth": (
        "BoostingConfig", "Grid", "Measured", "Rows", "Target", "TreeCount", "assign_folds", "cross_fit",
        "out_of_fold", "train_per_fold"),
    "model": ("Bounds", "CandidateScorer", "Origin", "PerformanceModel", "PredictionInterval", "bounds_out_of_fold"),
    "training": ("Mining", "continue_training", "distil", "mine_hard_examples", "problem_folds", "train_performance"),
    "store": ("c_header", "digest", "load_interval", "load_performance", "save_interval", "save_performance"),
})
