"""Performance models: trees on declared features of problems and configurations that predict how fast a kernel is."""

from sparloom.models.performance.cross_fit import cross_fit, grow_each, out_of_fold
from sparloom.models.performance.distil import distil
from sparloom.models.performance.features import Feature, FeatureSpec
from sparloom.models.performance.folds import assign_folds
from sparloom.models.performance.formula import Formula
from sparloom.models.performance.gemm import GEMM_FEATURES, gemm_problems, nearby_shapes
from sparloom.models.performance.grid import Grid, Measured
from sparloom.models.performance.growth import Growth, Rows
from sparloom.models.performance.hard_examples import Mining, mine_hard_examples
from sparloom.models.performance.hardware import machine_constants
from sparloom.models.performance.header import c_header
from sparloom.models.performance.interval import Bounds, PredictionInterval, bounds_out_of_fold
from sparloom.models.performance.model import Candidates, Origin, PerformanceModel
from sparloom.models.performance.sparse import SDDMM_FEATURES, SPMM_FEATURES, sparse_problems
from sparloom.models.performance.store import (
    digest,
    load_interval,
    load_performance,
    save_interval,
    save_performance,
)
from sparloom.models.performance.target import Target
from sparloom.models.performance.training import fold_of, grow_further, train_performance

__all__ = [
    "GEMM_FEATURES", "SDDMM_FEATURES", "SPMM_FEATURES", "Bounds", "Candidates", "Feature", "FeatureSpec", "Formula",
    "Grid", "Growth", "Measured", "Mining", "Origin", "PerformanceModel", "PredictionInterval", "Rows", "Target",
    "assign_folds", "bounds_out_of_fold", "c_header", "cross_fit", "digest", "distil", "fold_of", "gemm_problems",
    "grow_each", "grow_further", "load_interval", "load_performance", "machine_constants", "mine_hard_examples",
    "nearby_shapes", "out_of_fold", "save_interval", "save_performance", "sparse_problems", "train_performance",
]
