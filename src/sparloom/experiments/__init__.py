"""Run experiments: each public class is one kind of run, built from conf/ with `run(out)` -> metrics.

harness (what all share), then one package for each line of work: cognate, spade, autosage, trees, fusion, cora.

Benchmarks check every method before it is timed: a wrong result raises AssertionError. Under `journals` they keep the
finished cases of unfinished runs, in a folder named by code and settings (`journal_folder`).
"""

from sparloom.lazy import attach

__all__, __getattr__, __dir__ = attach(__name__, {
    "cognate": (
        "Arm", "Autoencode", "BenchRecommend", "Collect", "Compare",
        "Comparison", "DealSamples", "DefaultRecommender", "EvalCampaign", "ExportCsv", "FineTunedRecommender",
        "Finetune", "Fit", "FittedRecommender", "Gather", "LearnerConfig", "PrepareInputs", "Pretrain", "Recipe",
        "Recommend", "RecommendShape", "RunCampaign", "Tabulate"),
    "autosage": (
        "BenchAutosage", "BenchDecompositions", "BenchDispatch", "BenchDispatchCuda", "BenchGcn",
        "BenchGraphsage", "BenchMinibatch", "CheckProbe", "ChooseKernels", "ChooseStoredKernels",
        "GraphChoice", "Plans", "RandomMatrix"),
    "fusion": ("BenchFuse", "BenchFusion", "BenchJacobi", "BenchKernels", "BenchPowers", "Block"),
    "cora": ("BenchEncoders", "BenchRagged", "BenchRaggedCuda", "BenchRaggedSchedules", "EvalRagged"),
    "spade": (
        "CheckSpadeSigns", "CognateTuner", "ExploreDesigns", "LabelSplit", "LearnedTuner",
        "RankTuners", "SpadeSensitivity", "TunerEntry", "ValidateSimulator"),
    "trees": ("CheckLearnings", "CollectGemm", "Distillation", "FitProcessors", "FitTrees"),
    "harness": ("Checkpoints", "TensorBoard", "TreeModels", "Wandb"),
})
