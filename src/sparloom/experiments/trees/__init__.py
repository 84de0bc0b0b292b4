"""Performance models of trees (CK Tile): collect GEMM samples, evaluate, fit, export.

collect_gemm, evaluation (what models learn from and are judged by), fit_trees, check_learnings.
"""

from sparloom.lazy import on_demand

_NAMES = {
    "collect_gemm": ("CollectGemm",),
    "evaluation": ("best_configs", "gemm_subject", "sparse_subject"),
    "fit_trees": ("Distillation", "FitTrees"),
    "check_learnings": ("CheckLearnings",),
}

__all__ = sorted(name for names in _NAMES.values() for name in names)

__getattr__, __dir__ = on_demand(
    __name__, {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names})
