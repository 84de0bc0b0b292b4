"""The command line before and after Hydra: what can be run, near names, quoted paths, one-line errors, records."""

from sparloom.cli.arguments import (
    Entry,
    UsageError,
    check_places,
    check_threads,
    choices,
    experiments,
    flat,
    folders,
    nearest,
    prepare,
    show,
    suggestion,
)
from sparloom.cli.failure import Reported, explain, fail, guard, reason
from sparloom.cli.overrides import Given, idle, merged, refuse_beside_shape, refuse_other_machines, refuse_unseen_width
from sparloom.cli.record import ArmRun, Arms, Record, arm_overrides, begin, data_hash, digest, run_arms, stale

__all__ = [
    "ArmRun", "Arms", "Entry", "Given", "Record", "Reported", "UsageError", "arm_overrides", "begin", "check_places",
    "check_threads", "choices", "data_hash", "digest", "experiments", "explain", "fail", "flat", "folders", "guard",
    "idle", "merged", "nearest", "prepare", "reason", "refuse_beside_shape", "refuse_other_machines",
    "refuse_unseen_width", "run_arms", "show", "stale", "suggestion",
]
