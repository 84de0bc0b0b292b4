"""SPADE: check the simulator, rank tuners.

simulator (its two levels, published effects), rank_tuners (models and searches by their labels, and the models),
measured_spaces (searches, on complete spaces of other devices).
"""

from sparloom.lazy import attach

__all__, __getattr__, __dir__ = attach(__name__, {
    "simulator": ("CheckSpadeSigns", "ValidateSimulator", "judge_signs"),
    "rank_tuners": ("CognateTuner", "LabelSplit", "LearnedTuner", "RankTuners", "TunerEntry",
                    "make_ranking"),
    "measured_spaces": ("RankOnSpaces",),
})
