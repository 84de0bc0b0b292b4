"""Performance models: trees on declared features of problems and configurations that predict how fast a kernel is."""

from sparloom.models.performance.cross_fit import cross_fit, out_of_fold
from sparloom.models.performance.features import Feature, FeatureSpec
from sparloom.models.performance.folds import assign_folds
from sparloom.models.performance.formula import Formula
from sparloom.models.performance.gemm import GEMM_FEATURES, gemm_problems
from sparloom.models.performance.grid import Grid, Measured
from sparloom.models.performance.growth import Growth, Rows
from sparloom.models.performance.model import Candidates, Origin, PerformanceModel
from sparloom.models.performance.store import digest, load_performance, save_performance
from sparloom.models.performance.target import Target
from sparloom.models.performance.training import fold_of, grow_further, train_performance

__all__ = [
    "GEMM_FEATURES", "Candidates", "Feature", "FeatureSpec", "Formula", "Grid", "Growth", "Measured", "Origin",
    "PerformanceModel", "Rows", "Target", "assign_folds", "cross_fit", "digest", "fold_of", "gemm_problems",
    "grow_further", "load_performance", "out_of_fold", "save_performance", "train_performance",
]
