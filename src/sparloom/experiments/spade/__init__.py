"""SPADE: check the simulator and the sensitivity of its results, explore designs of the accelerator, rank tuners.

simulator (its two levels, the sensitivity to constants that no paper states), explore_designs,
rank_tuners (models and searches by their labels, and the models).
"""

from sparloom.lazy import attach

__all__, __getattr__, __dir__ = attach(__name__, {
    "simulator": (
        "CheckSpadeSigns", "SpadeSensitivity", "ValidateSimulator", "judge_signs", "sensitivity"),
    "explore_designs": ("DesignSeconds", "ExploreDesigns"),
    "rank_tuners": ("CognateTuner", "LabelSplit", "LearnedTuner", "RankTuners", "TunerEntry"),
})
