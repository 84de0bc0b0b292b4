"""Performance models of trees (CK Tile): collect GEMM samples, evaluate, fit, export.

collect_gemm, evaluation (what models learn from and are judged by), fit_trees, check_learnings.
"""

from sparloom.lazy import attach

__all__, __getattr__, __dir__ = attach(__name__, {
    "collect_gemm": ("CollectGemm",),
    "evaluation": ("best_configs", "gemm_subject", "sparse_subject"),
    "fit_trees": ("Distillation", "FitTrees"),
    "check_learnings": ("CheckLearnings",),
})
