"""The command line before and after Hydra: what can be run, near names, quoted paths, one-line errors, records."""

from sparloom.cli.arguments import UsageError, choices, folders, prepare
from sparloom.cli.failure import Reported, explain, fail, guard
from sparloom.cli.listing import Entry, experiments, show
from sparloom.cli.nearest import flat, nearest, suggestion
from sparloom.cli.prerequisites import Given, merged
from sparloom.cli.record import begin, finish

__all__ = [
    "Entry", "Given", "Reported", "UsageError", "begin", "choices", "experiments", "explain", "fail", "finish", "flat",
    "folders", "guard", "merged", "nearest", "prepare", "show", "suggestion",
]
