"""Command line before and after Hydra, in the order in which a run passes through.

messages.py turns errors into one line; experiments.py lists the experiments and describes one; arguments.py checks and
quotes what the user typed; options.py refuses options that would be ignored, and passes the others on to prerequisites;
kinds.py refuses values that do not fit; record.py records a run, and runs the arms of comparisons.
"""

from sparloom.cli.arguments import (
    asks_help,
    check_paths,
    check_threads,
    config_folders,
    group_choices,
    overrides_of,
    prepare,
)
from sparloom.cli.experiments import Entry, describe_experiment, experiments, print_experiments, resumes
from sparloom.cli.kinds import check_accelerator, check_kinds, check_options
from sparloom.cli.messages import (
    Interrupted,
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
    merge_overrides,
    reached,
    refuse_beside_shape,
    refuse_other_machines,
    refuse_unseen_width,
    unused_overrides,
)
from sparloom.cli.record import ArmRun, Arms, Record, arm_overrides, begin, data_hash, digest, run_arms, stale

__all__ = [
    "ArmRun", "Arms", "Entry", "Interrupted", "Record", "Reported", "RunOptions", "UsageError", "arm_overrides",
    "asks_help", "begin", "check_accelerator", "check_kinds", "check_options", "check_paths", "check_threads",
    "close_names", "config_folders", "data_hash", "describe_experiment", "digest", "dotted_keys", "experiments",
    "explain", "fail", "failure_reason", "group_choices", "guard", "merge_overrides", "overrides_of", "prepare",
    "print_experiments", "program", "reached", "refuse_beside_shape", "refuse_other_machines", "refuse_unseen_width",
    "resumes", "run_arms", "stale", "suggestion", "unused_overrides",
]
