"""One file, one kind of run; each is built from conf/task and has run(out) -> metrics."""

import importlib

_HOMES = {
    "Arm": "arm",
    "AuditLabels": "audit_labels",
    "Autoencode": "autoencode",
    "BenchDispatch": "bench_dispatch",
    "BenchFeaturizer": "bench_featurizer",
    "BenchFusion": "bench_fusion",
    "BenchGcn": "bench_gcn",
    "BenchJacobi": "bench_jacobi",
    "BenchKernels": "bench_kernels",
    "BenchRagged": "bench_ragged",
    "BenchRecommend": "bench_recommend",
    "BenchSimulator": "bench_simulator",
    "Block": "fusion_cases",
    "CheckGcn": "check_gcn",
    "CheckLearnings": "check_learnings",
    "CheckSpadeSigns": "check_spade_signs",
    "Checkpoints": "checkpoints",
    "Collect": "collect",
    "CollectGemm": "collect_gemm",
    "Compare": "compare",
    "DecisionArm": "dispatch_score",
    "Distillation": "tree_export",
    "ExportCsv": "export_csv",
    "EvalRagged": "eval_ragged",
    "ExploreDesigns": "explore_designs",
    "FineTuned": "finetuned",
    "Finetune": "finetune",
    "Fit": "fit",
    "FitTrees": "fit_trees",
    "Fitted": "fitted",
    "Gather": "gather",
    "GraphChoice": "gcn_graphs",
    "Learning": "learning",
    "PrepareInputs": "prepare_inputs",
    "Pretrain": "pretrain",
    "Recipe": "training",
    "Recommend": "recommend",
    "RecommendShape": "recommend_shape",
    "SpadeSensitivity": "spade_sensitivity",
    "SummariseSamples": "summarise_samples",
    "Tabulate": "tabulate",
    "TensorBoard": "loggers",
    "TreeModels": "tree_models",
    "ValidateSimulator": "validate_simulator",
    "Wandb": "loggers",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> type:
    if name in _HOMES:
        return getattr(importlib.import_module(f"sparloom.tasks.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'sparloom.tasks' has no attribute {name!r}; tasks: {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted((*globals(), *_HOMES))
