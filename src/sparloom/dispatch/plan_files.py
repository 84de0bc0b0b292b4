"""How the files of a cache of decisions are named: a file with another name is not ours.

    <digest>.json                               a pair of products
    schedule-<digest>.json                      a ragged operator, or an operation on one sparse matrix
    rates-<machine>-<threads>.json              rates of a machine, or, with 0 threads, of a GPU
    order-<pattern>-<name>-<kernels>.npy        an order of the rows of a pattern
    .<one of these>.<process>-<thread>.partial  one of these while a process writes it
"""

import hashlib
import json
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

__all__ = [
    "VERSION", "FileKind", "PlanFile", "clear_orphans", "is_orphan", "order_name", "pair_name", "plan_file",
    "plan_files", "rates_name", "schedule_name",
]

log = logging.getLogger(__name__)

VERSION = 1  # of what stands in them

FileKind = Literal["pair", "schedule", "rates", "order"]

NAMES: Mapping[FileKind, str] = {
    "pair": r"[0-9a-f]{64}\.json",
    "schedule": r"schedule-[0-9a-f]{64}\.json",
    "rates": r"rates-[0-9a-f]{16}-[0-9]{1,7}\.json",
    "order": r"order-[0-9a-f]{32}-[a-z]+-[0-9a-f]{16}\.npy",
}
WRITING_SECONDS = 60.0  # a file is written in milliseconds
ABANDONED_SECONDS = 86400.0  # after which a process of the same number is taken to be another one


@dataclass(frozen=True)
class PlanFile:
    """A file of ours.

    Args:
        writer: number of the process that is writing it, or was when it ended; None where the file is whole.
    """

    path: Path
    kind: FileKind
    writer: int | None = None


def pair_name(digest: str) -> str:
    """Name the file of a pair, by the digest of its key."""
    return f"{digest}.json"


def schedule_name(key: Mapping[str, Any]) -> str:
    """Name the file of a schedule, by all that it depends on, as JSON has it."""
    return f"schedule-{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()}.json"


def rates_name(machine: str, threads: int) -> str:
    """Name the file of the rates of a machine, by its digest."""
    return f"rates-{machine[:16]}-{threads}.json"


def order_name(pattern: str, name: str, kernels: str) -> str:
    """Name the file of an order, by the digests of the pattern and of the sources of the inspector."""
    return f"order-{pattern[:32]}-{name}-{kernels[:16]}.npy"


def plan_file(path: Path) -> PlanFile | None:
    """Recognise a file by its name; None if it is not ours."""
    for kind, name in NAMES.items():
        if re.fullmatch(name, path.name):
            return PlanFile(path, kind)
        if partial := re.fullmatch(rf"\.{name}\.([0-9]{{1,7}})-[0-9]+\.partial", path.name):
            return PlanFile(path, kind, int(partial[1]))
    return None


def plan_files(folder: Path) -> list[PlanFile]:
    """List our files, by name; folders and links are none, and a folder that is not there has none."""
    if not folder.exists():
        return []
    with os.scandir(folder) as entries:
        paths = sorted(Path(entry.path) for entry in entries if entry.is_file(follow_symlinks=False))
    return [file for file in map(plan_file, paths) if file is not None]


def is_orphan(file: PlanFile, *, age_seconds: float) -> bool:
    """Whether the process that was writing a file ended before the file was whole.

    A process that is not found may run on another machine that shares the folder, so it has a minute.
    """
    if file.writer is None or age_seconds < WRITING_SECONDS:
        return False
    return age_seconds > ABANDONED_SECONDS or not _runs(file.writer)


def clear_orphans(folder: Path, *, now: float) -> None:
    """Remove what killed processes left, so that a folder in use does not fill up with it.

    Args:
        now: seconds since the epoch.
    """
    for file in plan_files(folder):
        if file.writer is None:
            continue
        try:
            if is_orphan(file, age_seconds=now - file.path.stat().st_mtime):
                file.path.unlink()
        except OSError as error:
            log.debug("%s: %s", file.path, error)  # another process was faster, or may and this one may not


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # of another user
    return True
