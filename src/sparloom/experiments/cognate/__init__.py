"""COGNATE: collect samples, pre-train on one platform, fine-tune on another, compare, recommend.

collect, deal_samples (to simulated cores), samples (gather, export, prepare), evaluation_data, training,
transfer, probes, finetune, compare, calibration, recommender, recommend, trial_commands, campaign,
eval_campaign, bench_recommend.
"""

from sparloom.lazy import attach

__all__, __getattr__, __dir__ = attach(__name__, {
    "campaign": ("RunCampaign",),
    "eval_campaign": ("EvalCampaign",),
    "collect": ("FLUSH_SECONDS", "Collect"),
    "deal_samples": ("DealSamples",),
    "samples": ("ExportCsv", "Gather", "PrepareInputs"),
    "compare": ("Arm", "ArmResult", "Compare", "Tabulate", "expand_grid", "refuse_unequal"),
    "recommend": ("Recommend", "RecommendShape", "read_shape"),
    "evaluation_data": ("EvaluationData",),
    "training": ("Autoencode", "Pretrain", "Recipe"),
    "transfer": ("LearnerConfig",),
    "finetune": ("Comparison", "Finetune", "Fit"),
    "recommender": ("Recommender",),
    "bench_recommend": ("BenchRecommend", "by_rows", "quality", "timings"),
})
