"""Performance models: boosted trees that predict how fast a kernel runs, from declared features.

`features` defines the features of a problem and a configuration, `problems` those of GEMM, SpMM and SDDMM. `growth`
trains trees by folds of problems, `model` predicts, `training` fits, extends and distils models, `store` saves them and
`header` writes them as C.
"""

from functools import partial

from sparloom.lazy import resolve
from sparloom.models.performance.features import Feature, FeatureSpec, Formula, machine_constants
from sparloom.models.performance.growth import (
    BoostingConfig,
    Grid,
    Measured,
    Rows,
    Target,
    assign_folds,
    cross_fit,
    out_of_fold,
    train_per_fold,
)
from sparloom.models.performance.header import c_header
from sparloom.models.performance.model import (
    Bounds,
    CandidateScorer,
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
    continue_training,
    distil,
    mine_hard_examples,
    problem_folds,
    train_performance,
)

__all__ = [
    "GEMM_FEATURES", "SDDMM_FEATURES", "SPMM_FEATURES", "BoostingConfig", "Bounds", "CandidateScorer", "Feature",
    "FeatureSpec", "Formula", "Grid", "Measured", "Mining", "Origin", "PerformanceModel", "PredictionInterval", "Rows",
    "Target", "assign_folds", "bounds_out_of_fold", "c_header", "continue_training", "cross_fit", "digest", "distil",
    "gemm_problems", "load_interval", "load_performance", "machine_constants", "mine_hard_examples", "nearby_shapes",
    "out_of_fold", "problem_folds", "save_interval", "save_performance", "sparse_problems", "train_per_fold",
    "train_performance",
]

__getattr__ = partial(resolve, __name__)
