"""Run, resume and record experiments; everything that the other packages of experiments share.

process_pool (independent jobs over processes), journal (finished cases on disk, the conditions they were made under),
measuring (measure what is missing), timing (candidates timed in turn), checkpoints (names of stored models), loggers.
"""

from sparloom.ondemand import on_demand

_HOMES = {
    "conditions_of": "conditions",
    "identities_of": "conditions",
    "check_samples": "conditions",
    "Resumed": "conditions",
    "samples_of": "conditions",
    "check_width": "conditions",
    "labels_with_noise": "conditions",
    "CaseJournal": "journal",
    "Checkpoints": "checkpoints",
    "FULL": "checkpoints",
    "INTERVAL": "checkpoints",
    "SMALL": "checkpoints",
    "TensorBoard": "loggers",
    "TreeModels": "checkpoints",
    "Wandb": "loggers",
    "exclusive_timing": "process_pool",
    "best_in": "checkpoints",
    "commit": "journal",
    "corpus_name": "measuring",
    "data_folder": "measuring",
    "failure_reasons": "measuring",
    "trim_memory": "timing",
    "journal_folder": "journal",
    "measure_missing": "measuring",
    "measure_presets": "measuring",
    "note_failure": "timing",
    "claim_processor": "process_pool",
    "peak_bytes": "timing",
    "run_in_subprocess": "process_pool",
    "run_jobs": "process_pool",
    "samples_name": "checkpoints",
    "seconds_of": "timing",
    "side_by_side": "timing",
    "evenly_by_size": "timing",
    "statistics_of": "timing",
    "print_failures": "measuring",
    "timed_cases": "timing",
}

__all__ = sorted(_HOMES)

__getattr__, __dir__ = on_demand(__name__, {name: f"{__name__}.{home}" for name, home in _HOMES.items()})
