"""Command line before and after Hydra, in the order in which a run passes through.

messages.py turns errors into one line; experiments.py lists the experiments and describes one; options.py checks what
the user typed, refuses what would be ignored, and passes the rest on to prerequisites; record.py records a run, and
runs the arms of comparisons.
"""

from sparloom.cli.experiments import Entry, describe_experiment, experiments, print_experiments
from sparloom.cli.messages import (
    Reported,
    UsageError,
    close_names,
    dotted_keys,
    explain,
    fail,
    failure_reason,
    guard,
    program,
    suggestion,
)
from sparloom.cli.options import (
    RunOptions,
    asks_help,
    check_threads,
    merge_overrides,
    overrides_of,
    prepare,
    refuse_other_machines,
    refuse_unseen_width,
    unused_overrides,
)
from sparloom.cli.record import (
    ArmRun,
    Arms,
    Record,
    arm_overrides,
    begin,
    data_hash,
    digest,
    run_arms,
    stale,
    sweep_table,
)

__all__ = [
    "ArmRun", "Arms", "Entry", "Record", "Reported", "RunOptions", "UsageError", "arm_overrides", "asks_help", "begin",
    "check_threads", "close_names", "data_hash", "describe_experiment", "digest", "dotted_keys", "experiments",
    "explain", "fail", "failure_reason", "guard", "merge_overrides", "overrides_of", "prepare", "print_experiments",
    "program", "refuse_other_machines", "refuse_unseen_width", "run_arms", "stale", "suggestion", "sweep_table",
    "unused_overrides",
]
