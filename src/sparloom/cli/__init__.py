"""Command line before and after Hydra, in the order in which a run passes through.

messages.py turns errors into one line and lists the experiments; arguments.py checks and quotes what the user typed,
refuses options that would be ignored, and passes the others on to prerequisites; record.py records a run, and runs the
arms of comparisons.
"""

from functools import partial

from sparloom.cli.arguments import (
    RunOptions,
    check_paths,
    check_threads,
    config_folders,
    group_choices,
    merge_overrides,
    prepare,
    refuse_beside_shape,
    refuse_other_machines,
    refuse_unseen_width,
    unused_overrides,
)
from sparloom.cli.messages import (
    Entry,
    Reported,
    UsageError,
    close_names,
    dotted_keys,
    experiments,
    explain,
    fail,
    failure_reason,
    guard,
    print_experiments,
    program,
    suggestion,
)
from sparloom.cli.record import ArmRun, Arms, Record, arm_overrides, begin, data_hash, digest, run_arms, stale
from sparloom.lazy import resolve

__all__ = [
    "ArmRun", "Arms", "Entry", "Record", "Reported", "RunOptions", "UsageError", "arm_overrides", "begin",
    "check_paths", "check_threads", "close_names", "config_folders", "data_hash", "digest", "dotted_keys",
    "experiments", "explain", "fail", "failure_reason", "group_choices", "guard", "merge_overrides", "prepare",
    "print_experiments", "program", "refuse_beside_shape", "refuse_other_machines", "refuse_unseen_width", "run_arms",
    "stale", "suggestion", "unused_overrides",
]
__getattr__ = partial(resolve, __name__)
