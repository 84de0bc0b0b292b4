"""What a cache of decisions holds: one entry for each of its files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from sparloom.dispatch.csr.cuda_place import cuda_machines_here
from sparloom.dispatch.plan_facts import outcome_of, subject_of
from sparloom.dispatch.plan_files import VERSION, PlanFile, is_orphan, plan_files
from sparloom.dispatch.plan_key import kernels_digest, machine_digests
from sparloom.errors import SchemaError

__all__ = ["KeptPlan", "State", "list_plans"]

State = Literal["own", "foreign", "damaged", "writing", "orphaned"]

HEADS = (b'{"version": ', b'{\n  "version": ')  # how our JSON begins, and began in earlier versions


@dataclass(frozen=True)
class KeptPlan:
    """One file.

    Args:
        kind: "pair", "csr" (operations on one sparse matrix), "ragged", "rates", "order", or "temporary".
        state: "own": of this machine and these kernels; "foreign": of others, or of another version; "damaged";
            "writing": a process writes it; "orphaned": the process that was writing it has ended.
        stamp: inode and time of the last change in nanoseconds: a file that was replaced has another one.
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
    """Describe the files of a cache, by name; what other programs keep there is left out.

    Args:
        now: seconds since the epoch.
    """
    return [plan for plan in (_described(file, now) for file in plan_files(folder)) if plan is not None]


def _described(file: PlanFile, now: float) -> KeptPlan | None:
    """Describe a file; None if it is gone, or not ours."""
    try:
        status = file.path.stat()
        plan = KeptPlan(file.path, "temporary" if file.writer is not None else file.kind, "own",
                        max(0.0, now - status.st_mtime), status.st_size, (status.st_ino, status.st_mtime_ns))
        if file.writer is not None:
            orphaned = is_orphan(file, age_seconds=plan.age_seconds)
            return replace(plan, state="orphaned" if orphaned else "writing", fault=f"process {file.writer}")
        return _order(plan) if file.kind == "order" else _json(plan, file)
    except FileNotFoundError:
        return None
    except OSError as error:
        return replace(plan, state="damaged", fault=str(error))


def _json(plan: KeptPlan, file: PlanFile) -> KeptPlan | None:
    content = plan.path.read_bytes()
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        if file.kind == "pair" and not any(content[:len(head)] == head[:len(content)] for head in HEADS):
            return None  # a digest may be the name of anything
        return replace(plan, state="damaged", fault=str(error))
    if not isinstance(value, dict) or not {"version", "key"} <= value.keys():
        return None
    if value["version"] != VERSION:
        return replace(plan, state="foreign", fault=f"of version {value['version']!r}, not {VERSION}")
    try:
        return _decided(plan, file, value)
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError, SchemaError) as error:
        return replace(plan, state="damaged", fault=f"{type(error).__name__}: {error}")


def _decided(plan: KeptPlan, file: PlanFile, value: Mapping[str, Any]) -> KeptPlan:
    subject = subject_of(file.kind, value["key"])
    plan = replace(plan, kind=subject.kind, op=subject.op, pattern=subject.pattern, shapes=subject.shapes,
                   threads=subject.threads)
    if subject.name != plan.path.name:
        return replace(plan, state="damaged", fault="written for something else")
    if subject.machine not in machine_digests() and subject.machine not in cuda_machines_here():
        return replace(plan, state="foreign", fault="of another machine")
    if subject.made_with != subject.kernels:
        return replace(plan, state="foreign", fault="of other kernels")
    outcome = outcome_of(subject.kind, value)
    return replace(plan, choice=outcome.choice, reason=outcome.reason, speedup=outcome.speedup)


def _order(plan: KeptPlan) -> KeptPlan:
    """Describe an order by its name and the head of its array."""
    _, pattern, name, kernels = plan.path.stem.split("-")
    plan = replace(plan, op=name, pattern=pattern[:12])
    try:
        with plan.path.open("rb") as file:
            if np.lib.format.read_magic(file) != (1, 0):
                raise ValueError("not as orders are written")
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
            held = plan.size_bytes - file.tell()
        if dtype != np.int32 or len(shape) != 1 or held != 4 * shape[0]:
            raise ValueError(f"{dtype} of shape {shape} in {held} bytes is no order")
    except ValueError as error:
        return replace(plan, state="damaged", fault=str(error))
    plan = replace(plan, shapes=f"{shape[0]} rows")
    if not kernels_digest().startswith(kernels):
        return replace(plan, state="foreign", fault="of another inspector")
    return plan
