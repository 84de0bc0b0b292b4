"""Deletes decisions that nobody will find again, that are old, or all of them; and nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from sparloom.tuning.disk_cache import Entry, is_entry
from sparloom.tuning.kept_plans import KeptPlan
from sparloom.tuning.old_plans import may_be_old_plan

__all__ = ["Prune", "Pruning", "prune_plans"]

Prune = Literal["none", "foreign", "all"]

DAY = 86400.0  # seconds
USELESS = ("foreign", "damaged", "orphaned")


@dataclass(frozen=True)
class Pruning:
    """Which files go.

    Args:
        which: "foreign": those of other machines, kernels or versions, damaged ones, and what killed processes left;
            "all"; "none".
        older_days: besides, those that were written so many days ago; None: age does not matter.

    Raises:
        ValueError: another word, an age that is not above 0, or an age beside "all".
    """

    which: Prune
    older_days: float | None = None

    def __post_init__(self) -> None:
        if self.which not in get_args(Prune):
            raise ValueError(f"prune={self.which!r} is not one of {', '.join(get_args(Prune))}")
        if self.older_days is None:
            return
        given = self.older_days
        if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given) or given <= 0:
            raise ValueError(f"older_days={given!r}: give a number above 0")
        if self.which == "all":
            raise ValueError(f"prune=all asks for no age and older_days={given} for one: leave out one of them")

    def takes(self, plan: KeptPlan) -> bool:
        """Whether a file goes; what a process is writing stays in any case."""
        if plan.state == "writing":
            return False
        old = self.older_days is not None and plan.age_seconds > DAY * self.older_days
        return old or self.which == "all" or (self.which == "foreign" and plan.state in USELESS)


def prune_plans(plans: Sequence[KeptPlan], pruning: Pruning) -> list[KeptPlan]:
    """Delete entries; one that another process has replaced since it was listed stays.

    Args:
        plans: as `list_plans` gives them.

    Returns:
        Those that were deleted.

    Raises:
        ValueError: one has a name that no cache gives; nothing is deleted.
    """
    for plan in plans:
        if not is_entry(plan.path) and not may_be_old_plan(plan.path):
            raise ValueError(f"{plan.path} is no file of a cache of decisions: pass what list_plans gives")
    return [plan for plan in plans if pruning.takes(plan) and _entry(plan).remove()]


def _entry(plan: KeptPlan) -> Entry:
    return Entry(plan.path, plan.size_bytes, 0.0, plan.stamp)
