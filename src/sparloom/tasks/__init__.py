"""One file, one kind of run; each is built from conf/task and has run(out) -> metrics."""

from sparloom.ondemand import on_demand

_HOMES = {
    "Arm": "arm",
    "AuditLabels": "audit_labels",
    "Autoencode": "autoencode",
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
    "Plans": "plans",
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

__getattr__, __dir__ = on_demand(__name__, {name: f"sparloom.tasks.{home}" for name, home in _HOMES.items()})
