"""Run experiments: each public class is one kind of run, built from conf/ with `run(out)` -> metrics.

harness (what all share), then one package for each line of work: cognate, spade, autosage, trees, fusion, cora.

Benchmarks check every method before it is timed: a wrong result raises AssertionError. Under `journals` they keep the
finished cases of unfinished runs, in a folder named by code and settings (`journal_folder`).
"""

from sparloom.lazy import attach

__all__, __getattr__, __dir__ = attach(__name__, {
    "cognate": (
        "Arm", "Autoencode", "BenchRecommend", "Collect", "Compare", "Comparison", "DealSamples", "EvalCampaign",
        "ExportCsv", "Finetune", "Fit", "Gather", "LearnerConfig", "PrepareInputs", "Pretrain", "Recipe", "Recommend",
        "RecommendShape", "Recommender", "RunCampaign", "Tabulate"),
    "autosage": (
        "BenchAutosage", "BenchDispatch", "BenchDispatchCuda", "BenchGcn",
        "BenchMinibatch", "ChooseKernels", "ChooseStoredKernels",
        "GraphChoice", "Plans"),
    "fusion": ("BenchFuse", "BenchFusion", "BenchJacobi", "Block"),
    "cora": ("BenchEncoders", "BenchRagged", "BenchRaggedCuda", "EvalRagged"),
    "spade": (
        "CheckSpadeSigns", "CognateTuner", "LabelSplit", "LearnedTuner",
        "RankOnSpaces", "RankTuners", "TunerEntry", "ValidateSimulator", "make_ranking"),
    "trees": ("CheckLearnings", "CollectGemm", "Distillation", "FitTrees"),
    "harness": ("Checkpoints", "TensorBoard", "TreeModels", "Wandb"),
})
