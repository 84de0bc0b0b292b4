"""What a cache of decisions holds, as a list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from sparloom.errors import SchemaError
from sparloom.tuning.disk_cache import DiskCache, Entry
from sparloom.tuning.old_plans import old_plans
from sparloom.tuning.plan_cache import OtherVersion, disk_caches, entry_key, parsed_entry
from sparloom.tuning.plan_facts import outcome_of, subject_of
from sparloom.tuning.plan_key import machine_digests
from sparloom.tuning.sparse.cuda_place import cuda_machines_here

__all__ = ["KeptPlan", "State", "list_plans"]

State = Literal["own", "foreign", "damaged", "writing", "orphaned"]


@dataclass(frozen=True)
class KeptPlan:
    """One entry.

    Args:
        path: of its file.
        kind: "pair", "csr" (operations on one sparse matrix), "ragged", "rates", "order", "temporary", or "old", of an
            earlier version.
        state: "own": of this machine and these kernels; "foreign": of others, or of another version; "damaged";
            "writing": a process writes it; "orphaned": the process that was writing it has ended.
        stamp: inode and time of the last change in nanoseconds: an entry that was replaced has another one.
        fault: what is foreign or damaged.
        op: operation, or name of an order.
        pattern: first digits of the digest of A's pattern.
        shapes: widths of the dense operands, or what the batches of a ragged operator have in common.
        threads: 0 where they do not matter.
        choice: configuration, or library.
        speedup: seconds of the baseline over those of the choice, above 1 is better; None where it was not measured.
    """

    path: Path
    kind: str
    state: State
    age_seconds: float
    size_bytes: int
    stamp: tuple[int, int]
    fault: str = ""
    op: str = ""
    pattern: str = ""
    shapes: str = ""
    threads: int = 0
    choice: str = ""
    reason: str = ""
    speedup: float | None = None


def list_plans(folder: Path, *, now: float) -> list[KeptPlan]:
    """Describe the entries of a cache, and the files of earlier versions; what other programs keep there is left out.

    Args:
        now: seconds since the epoch.
    """
    old = [Entry.of(path) for path in old_plans(folder)]
    plans = [replace(_undescribed(entry, now), kind="old", state="foreign", fault="of an earlier version")
             for entry in old if entry is not None]
    for place in disk_caches(folder):
        plans += [plan for plan in (_described(place, entry, now) for entry in place.entries()) if plan is not None]
    return plans


def _described(place: DiskCache, entry: Entry, now: float) -> KeptPlan | None:
    """Describe an entry; None if it is gone."""
    plan = _undescribed(entry, now)
    if entry.writer is not None:
        state: State = "orphaned" if entry.orphaned(now=now) else "writing"
        return replace(plan, kind="temporary", state=state, fault=f"process {entry.writer}")
    try:
        value = parsed_entry(entry.read())
        plan = replace(plan, kind=str(value["kind"]))
        return _decided(plan, place, value)
    except FileNotFoundError:
        return None
    except OtherVersion as error:
        return replace(plan, state="foreign", fault=str(error))
    except (ArithmeticError, AttributeError, KeyError, OSError, RecursionError, SchemaError, TypeError,
            ValueError) as error:
        return replace(plan, state="damaged", fault=f"{type(error).__name__}: {error}")


def _undescribed(entry: Entry, now: float) -> KeptPlan:
    return KeptPlan(entry.path, "", "own", max(0.0, now - entry.seconds), entry.size_bytes, entry.stamp)


def _decided(plan: KeptPlan, place: DiskCache, value: Mapping[str, Any]) -> KeptPlan:
    subject = subject_of(value["kind"], value["key"])
    plan = replace(plan, kind=subject.kind, op=subject.op, pattern=subject.pattern, shapes=subject.shapes,
                   threads=subject.threads)
    if place.path(entry_key(value["kind"], value["key"])) != plan.path:
        return replace(plan, state="damaged", fault="written for something else")
    if subject.machine and subject.machine not in machine_digests() and subject.machine not in cuda_machines_here():
        return replace(plan, state="foreign", fault="of another machine")
    if subject.made_with != subject.kernels:
        return replace(plan, state="foreign", fault="of other kernels")
    outcome = outcome_of(subject.kind, value)
    if subject.kind == "order":
        return replace(plan, shapes=outcome.choice)
    return replace(plan, choice=outcome.choice, reason=outcome.reason, speedup=outcome.speedup)
