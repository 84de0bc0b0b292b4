"""List the decisions that this user's programs have cached, and delete stale ones."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from sparloom import log
from sparloom.files import write_json
from sparloom.tuning import CacheEntry, PlanCache, Pruning, list_plans, prune_plans
from sparloom.tuning.sparse import Settings

STATES = ("own", "foreign", "damaged")
UNITS = (("d", 86400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0))  # seconds


@dataclass(frozen=True)
class Plans:
    """List a cache of decisions, and prune it.

    Args:
        folder: folder of the cache; None: AUTOSAGE_CACHE_DIR, or the cache of this user.
        prune, older_days: see `sparloom.tuning.Pruning`.
    """

    folder: str | None
    prune: str
    older_days: float | None

    def run(self, out: Path) -> Mapping[str, float]:
        """Print the table, prune the cache, write plans.json; return counts and bytes.

        Raises:
            ValueError: `prune` or `older_days` is invalid, or `folder` is a file; nothing is deleted.
        """
        pruning = Pruning(self.prune, self.older_days)
        folder = _default_folder() if self.folder is None else Path(self.folder).expanduser()
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"task.folder={self.folder} is a file: give the folder of a cache")
        plans = list_plans(folder, now=time.time())
        gone = prune_plans(plans, pruning)
        write_json(out / "plans.json", [{**_written(plan), "pruned": plan in gone} for plan in plans])
        if plans:
            log.console.print(_table(plans, gone), soft_wrap=False)
        states = Counter(plan.state for plan in plans)
        counts = ", ".join(f"{states[state]} {state}" for state in STATES if states[state]) or "nothing"
        log.console.print(f"{folder}: {counts}; {sum(plan.size_bytes for plan in plans) / 1024:.0f} KiB; {len(gone)} "
                          f"deleted, {sum(plan.size_bytes for plan in gone) / 1024:.0f} KiB", markup=False)
        return {"files": len(plans), **{state: states[state] for state in STATES}, "pruned": len(gone),
                "bytes": sum(plan.size_bytes for plan in plans), "pruned_bytes": sum(plan.size_bytes for plan in gone)}


def _default_folder() -> Path:
    return Settings.from_environment().cache_dir or PlanCache.of_this_user().folder


def _written(plan: CacheEntry) -> dict[str, Any]:
    fields = asdict(plan)
    del fields["written"]
    return {**fields, "path": str(plan.path)}


def _table(plans: Sequence[CacheEntry], gone: Collection[CacheEntry]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("kind", "op", "pattern", "shapes", "threads"):
        table.add_column(heading, overflow="fold")
    for heading in ("speedup", "age", "KiB"):
        table.add_column(heading, justify="right", no_wrap=True)
    for heading, share in (("state", 2), ("choice", 3), ("reason", 3)):
        table.add_column(heading, overflow="fold", ratio=share)
    for plan in sorted(plans, key=lambda plan: (plan.kind, plan.op, plan.age_seconds)):
        state = ": ".join(filter(None, (plan.state, plan.fault))) + (", deleted" if plan in gone else "")
        cells = (plan.kind, plan.op, plan.pattern, plan.shapes, str(plan.threads or ""),
                 "" if plan.speedup is None else f"{plan.speedup:.2f}", _age(plan.age_seconds),
                 f"{plan.size_bytes / 1024:.1f}", state, plan.choice, plan.reason)
        table.add_row(*map(escape, cells))
    return table


def _age(seconds: float) -> str:
    """Format seconds in the largest unit that is not below 1."""
    unit, length = next((each for each in UNITS if seconds >= each[1]), UNITS[-1])
    return f"{seconds / length:.0f} {unit}"
