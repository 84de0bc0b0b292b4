"""Run, resume and record experiments; everything that the other packages of experiments share.

process_pool (independent jobs over processes), conditions (under which samples were made), journal (finished cases on
disk), measuring (missing configurations), timing (candidates in turn), benchmark (cases, steps, results), checkpoints
(names of stored models), loggers.
"""

from sparloom.lazy import attach

__all__, __getattr__, __dir__ = attach(__name__, {
    "process_pool": (
        "claim_processor", "exclusive_timing", "job_weight", "run_in_subprocess", "run_jobs"),
    "journal": ("CaseJournal", "code", "commit", "journal_folder"),
    "conditions": (
        "Resumed", "check_samples", "check_width", "conditions_of", "identities_of", "labels_with_noise", "samples_of"),
    "measuring": (
        "FAILURES", "corpus_name", "data_folder", "measure_missing", "measure_presets",
        "operands_for"),
    "timing": (
        "evenly_by_size", "note_failure", "peak_bytes", "seconds_of", "side_by_side", "statistics_of", "trim_memory"),
    "benchmark": ("CaseSteps", "finish", "run_folder", "timed_cases"),
    "checkpoints": ("DEFAULT_WIDTH", "FULL", "INTERVAL", "PRETRAIN", "SMALL", "Checkpoints", "TreeModels", "best_in",
                    "experiment_for", "samples_name"),
    "loggers": ("TensorBoard", "Wandb"),
})
