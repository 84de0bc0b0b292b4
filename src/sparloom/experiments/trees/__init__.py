"""Performance models of trees (CK Tile): collect GEMM samples, evaluate, fit, export.

collect_gemm, evaluation (what models learn from and are judged by), fit_trees, check_learnings.
"""

from sparloom.ondemand import on_demand

_HOMES = {
    "CheckLearnings": "check_learnings",
    "CollectGemm": "collect_gemm",
    "Distillation": "fit_trees",
    "FitTrees": "fit_trees",
    "best_configs": "evaluation",
    "gemm_subject": "evaluation",
    "sparse_subject": "evaluation",
}

__all__ = sorted(_HOMES)

__getattr__, __dir__ = on_demand(__name__, {name: f"{__name__}.{home}" for name, home in _HOMES.items()})
