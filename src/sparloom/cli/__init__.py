"""The command line before and after Hydra: what can be run, near names, quoted paths, one-line errors, records."""

from sparloom.cli.arguments import UsageError, check_places, check_threads, choices, folders, prepare
from sparloom.cli.arms import ArmRun, Arms, arm_overrides, digest, run_arms, stale
from sparloom.cli.failure import Reported, explain, fail, guard, reason
from sparloom.cli.listing import Entry, experiments, show
from sparloom.cli.nearest import flat, nearest, suggestion
from sparloom.cli.prerequisites import Given, merged
from sparloom.cli.reach import idle, refuse_beside_shape, refuse_other_machines, refuse_unseen_width
from sparloom.cli.record import Record, begin, data_hash

__all__ = [
    "ArmRun", "Arms", "Entry", "Given", "Record", "Reported", "UsageError", "arm_overrides", "begin", "check_places",
    "check_threads", "choices", "data_hash", "digest", "experiments", "explain", "fail", "flat", "folders", "guard",
    "idle", "merged", "nearest", "prepare", "reason", "refuse_beside_shape", "refuse_other_machines",
    "refuse_unseen_width", "run_arms", "show", "stale", "suggestion",
]
