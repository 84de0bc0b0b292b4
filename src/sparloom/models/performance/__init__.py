"""Performance models: trees on declared features of problems and configurations that predict how fast a kernel is."""

from sparloom.models.performance.features import Feature, FeatureSpec, Formula, machine_constants
from sparloom.models.performance.growth import (
    Grid,
    Growth,
    Measured,
    Rows,
    Target,
    assign_folds,
    cross_fit,
    grow_each,
    out_of_fold,
)
from sparloom.models.performance.header import c_header
from sparloom.models.performance.model import (
    Bounds,
    Candidates,
    Origin,
    PerformanceModel,
    PredictionInterval,
    bounds_out_of_fold,
)
from sparloom.models.performance.problems import (
    GEMM_FEATURES,
    SDDMM_FEATURES,
    SPMM_FEATURES,
    gemm_problems,
    nearby_shapes,
    sparse_problems,
)
from sparloom.models.performance.store import (
    digest,
    load_interval,
    load_performance,
    save_interval,
    save_performance,
)
from sparloom.models.performance.training import (
    Mining,
    distil,
    fold_of,
    grow_further,
    mine_hard_examples,
    train_performance,
)

__all__ = [
    "GEMM_FEATURES", "SDDMM_FEATURES", "SPMM_FEATURES", "Bounds", "Candidates", "Feature", "FeatureSpec", "Formula",
    "Grid", "Growth", "Measured", "Mining", "Origin", "PerformanceModel", "PredictionInterval", "Rows", "Target",
    "assign_folds", "bounds_out_of_fold", "c_header", "cross_fit", "digest", "distil", "fold_of", "gemm_problems",
    "grow_each", "grow_further", "load_interval", "load_performance", "machine_constants", "mine_hard_examples",
    "nearby_shapes", "out_of_fold", "save_interval", "save_performance", "sparse_problems", "train_performance",
]
