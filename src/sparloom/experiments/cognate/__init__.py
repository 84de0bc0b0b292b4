"""COGNATE: collect samples, pre-train on one platform, fine-tune on another, compare, recommend.

collect, samples (gather, export, prepare), sample_statistics, evaluation_data, pretrain, training, transfer, finetune,
compare, recommender, recommend, bench_recommend, bench_featurizer.
"""

from sparloom.ondemand import on_demand

_HOMES = {
    "Arm": "compare",
    "ArmResult": "compare",
    "AuditLabels": "sample_statistics",
    "Autoencode": "pretrain",
    "BenchFeaturizer": "bench_featurizer",
    "BenchRecommend": "bench_recommend",
    "Collect": "collect",
    "Compare": "compare",
    "EvaluationData": "evaluation_data",
    "ExportCsv": "samples",
    "FLUSH_SECONDS": "collect",
    "FineTunedRecommender": "recommender",
    "Finetune": "finetune",
    "Fit": "finetune",
    "FittedRecommender": "recommender",
    "Gather": "samples",
    "LearnerConfig": "transfer",
    "PrepareInputs": "samples",
    "Pretrain": "pretrain",
    "Recipe": "training",
    "Recommend": "recommend",
    "RecommendShape": "recommend",
    "SummariseSamples": "sample_statistics",
    "Tabulate": "compare",
    "audit": "sample_statistics",
    "describe_optimum": "sample_statistics",
    "knob_effects": "sample_statistics",
    "draw_patterns": "bench_featurizer",
    "quality": "bench_recommend",
    "read_shape": "recommend",
    "refuse_unequal": "compare",
    "peak_shares": "bench_featurizer",
    "timings": "bench_recommend",
}

__all__ = sorted(_HOMES)

__getattr__, __dir__ = on_demand(__name__, {name: f"{__name__}.{home}" for name, home in _HOMES.items()})
