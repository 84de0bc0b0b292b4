"""Decisions as earlier versions kept them: one file for each in the folder itself. They are not read, but removed.

    <digest>.json                               a pair of products
    schedule-<digest>.json                      a ragged operator, or an operation on one sparse matrix
    rates-<machine>-<threads>.json              rates of a machine
    order-<pattern>-<name>-<kernels>.npy        an order of the rows of a pattern
    .<one of these>.<process>-<thread>.partial  one of these while a process wrote it

List and prune what a cache of decisions holds.

What was measured for decisions, one line of JSON for each, in a file that does not grow without bound.
"""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from sparloom.errors import SchemaError
from sparloom.tuning.cache import DiskCache, Entry, OtherVersion, PlanCache, Summary, entry_key, is_entry, parsed_entry
from sparloom.tuning.machine import kernels_digest, machine_digests

__all__ = [
    "CacheEntry", "ProbeLog", "Prune", "Pruning", "State", "is_old_plan", "list_plans", "may_be_old_plan",
    "old_plans", "prune_plans",
]

NAME = r"[0-9a-f]{64}\.json|schedule-[0-9a-f]{64}\.json|rates-[0-9a-f]{16}-[0-9]{1,7}\.json|" \
       r"order-[0-9a-f]{32}-[a-z]+-[0-9a-f]{16}\.npy"
WHOLE, PARTIAL = re.compile(NAME), re.compile(rf"\.(?:{NAME})\.[0-9]{{1,7}}-[0-9]+\.partial")
HEADS = (b'{"version": ', b'{\n  "version": ')  # how the JSON began
READ_BYTES = 1 << 20


def may_be_old_plan(path: Path) -> bool:
    """Tell by its name whether a file may be one of these."""
    return bool(WHOLE.fullmatch(path.name) or PARTIAL.fullmatch(path.name))


def is_old_plan(path: Path) -> bool:
    """Tell by name and content whether a file is one of these: other programs may name theirs likewise."""
    if not may_be_old_plan(path):
        return False
    if path.suffix != ".json":
        return True
    with path.open("rb") as file:
        content = file.read(READ_BYTES)
    if any(content[:len(head)] == head[:len(content)] for head in HEADS):
        return True
    if "-" not in path.stem:
        return False  # a digest may be the name of anything
    try:
        json.loads(content)
    except (ValueError, RecursionError):
        return True  # damaged
    return False


def old_plans(folder: Path) -> list[Path]:
    """List all of them, by name."""
    try:
        with os.scandir(folder) as found:
            return sorted(_old(found))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _old(found: Iterator[os.DirEntry]) -> Iterator[Path]:
    for each in found:
        path = Path(each.path)
        with suppress(OSError):  # gone, or not to be read
            if may_be_old_plan(path) and each.is_file(follow_symlinks=False) and is_old_plan(path):
                yield path


State = Literal["own", "foreign", "damaged", "writing", "orphaned"]
Prune = Literal["none", "foreign", "all"]

DIGITS = 12  # of a digest, shown
DAY_SECONDS = 86400.0
USELESS = ("foreign", "damaged", "orphaned")


@dataclass(frozen=True)
class CacheEntry:
    """One file of a cache.

    Args:
        kind: "pair", "csr" (operations on one sparse matrix), "ragged", "rates", "order", "temporary", or "old", of an
            earlier version.
        state: "own": of this machine and these kernels; "foreign": of others, or of another version; "damaged";
            "writing": a process writes it; "orphaned": the process that was writing it has ended.
        stamp: inode and time of the last change in nanoseconds; they differ once the entry is replaced.
        fault: why it is foreign or damaged.
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


@dataclass(frozen=True)
class Pruning:
    """Which entries to delete.

    Args:
        which: "foreign": those of other machines, kernels or versions, damaged ones, and what killed processes left;
            "all"; "none".
        older_days: also those that were written so many days ago; None: age does not matter.

    Raises:
        ValueError: an unknown word, an age that is not above 0, or an age beside "all".
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

    def takes(self, entry: CacheEntry) -> bool:
        """Tell whether an entry is to be deleted; one that is being written never is."""
        if entry.state == "writing":
            return False
        old = self.older_days is not None and entry.age_seconds > DAY_SECONDS * self.older_days
        return old or self.which == "all" or (self.which == "foreign" and entry.state in USELESS)


def list_plans(folder: Path, *, now: float) -> list[CacheEntry]:
    """List the entries of a cache and the files of earlier versions, but no files of other programs.

    Args:
        now: seconds since the epoch.
    """
    old = [Entry.of(path) for path in old_plans(folder)]
    entries = [replace(_file(entry, now), kind="old", state="foreign", fault="of an earlier version")
               for entry in old if entry is not None]
    for store in PlanCache(folder).stores:
        entries += [each for each in (_described(store, entry, now) for entry in store.entries()) if each is not None]
    return entries


def prune_plans(entries: Sequence[CacheEntry], pruning: Pruning) -> list[CacheEntry]:
    """Delete entries, except those that were replaced since they were listed.

    Args:
        entries: as `list_plans` returns them.

    Returns:
        Those that were deleted.

    Raises:
        ValueError: one has a name that no cache gives; nothing is deleted.
    """
    for each in entries:
        if not is_entry(each.path) and not may_be_old_plan(each.path):
            raise ValueError(f"{each.path} is no file of a cache of decisions: pass what list_plans gives")
    return [each for each in entries
            if pruning.takes(each) and Entry(each.path, each.size_bytes, 0.0, each.stamp).remove()]


def _described(store: DiskCache, file: Entry, now: float) -> CacheEntry | None:
    """Describe an entry; None if it is gone."""
    entry = _file(file, now)
    if file.writer is not None:
        state: State = "orphaned" if file.orphaned(now=now) else "writing"
        return replace(entry, kind="temporary", state=state, fault=f"process {file.writer}")
    try:
        content = parsed_entry(file.read())
        entry = replace(entry, kind=str(content["kind"]))
        return _summarised(entry, store, content)
    except FileNotFoundError:
        return None
    except OtherVersion as error:
        return replace(entry, state="foreign", fault=str(error))
    except (AttributeError, KeyError, OSError, RecursionError, SchemaError, TypeError, ValueError) as error:
        return replace(entry, state="damaged", fault=f"{type(error).__name__}: {error}")


def _file(entry: Entry, now: float) -> CacheEntry:
    return CacheEntry(entry.path, "", "own", max(0.0, now - entry.seconds), entry.size_bytes, entry.stamp)


def _summarised(entry: CacheEntry, store: DiskCache, content: dict[str, Any]) -> CacheEntry:
    key, summary = content["key"], Summary(**content["summary"])
    if store.path(entry_key(content["kind"], key)) != entry.path:
        return replace(entry, state="damaged", fault="written for something else")
    entry = replace(entry, op=summary.op, pattern=str(key.get("pattern", ""))[:DIGITS], shapes=summary.shapes,
                    threads=int(key.get("threads", 0)))
    machine = key.get("machine", "")
    if machine and machine not in machine_digests():
        return replace(entry, state="foreign", fault="of another machine")
    if key["kernels"] != kernels_digest(tuple(summary.sources)):
        return replace(entry, state="foreign", fault="of other kernels")
    return replace(entry, choice=summary.choice, reason=summary.reason, speedup=summary.speedup)


log = logging.getLogger(__name__)

PROBE_LOG_NAME, OLDER = "probe_logs.jsonl", "probe_logs.1.jsonl"
WAIT_SECONDS = 2.0  # for the lock
LIMIT_BYTES = 10 << 20


class ProbeLog:
    """The file probe_logs.jsonl of a folder, to which any number of processes may append.

    A line is one write at the end of the file. A file that would become too large is renamed to probe_logs.1.jsonl, in
    place of the one there was. A line that a process was writing when it was killed stays alone on its line.

    Args:
        folder: made with the first line.
        limit_bytes: of one file; there are at most two.
    """

    def __init__(self, folder: Path, *, limit_bytes: int = LIMIT_BYTES) -> None:
        self.path = folder / PROBE_LOG_NAME
        self._older = folder / OLDER
        self._limit_bytes = limit_bytes

    def add(self, key: Mapping[str, Any], value: Mapping[str, Any]) -> None:
        """Append a decision; a failure is logged as a warning.

        Args:
            key, value: of the decision in the cache.
        """
        line = json.dumps({"time": time.time(), "key": dict(key), **value})
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._append(line.encode() + b"\n")
        except OSError as error:
            log.warning("%s: %s: the probe is not logged", self.path, error)

    def _append(self, line: bytes) -> None:
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                _lock(descriptor)  # among those that append: only one of them renames
                size = os.fstat(descriptor).st_size
                if not self._is(descriptor):
                    continue
                if size and size + len(line) > self._limit_bytes:
                    self.path.replace(self._older)
                    continue
                torn = size and os.pread(descriptor, 1, size - 1) != b"\n"
                os.write(descriptor, b"\n" + line if torn else line)
                return
            finally:
                os.close(descriptor)

    def _is(self, descriptor: int) -> bool:
        """Whether an open file still has the name; another process may have renamed it."""
        try:
            return os.path.samestat(os.fstat(descriptor), self.path.stat())
        except FileNotFoundError:
            return False


def _lock(descriptor: int) -> None:
    """Lock an open file.

    Raises:
        TimeoutError: another one holds the lock for too long. It may be a process that is stopped, or the call that the
            caller has interrupted, which cannot go on before the caller returns.
    """
    end = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() > end:
                raise TimeoutError(f"locked for {WAIT_SECONDS} s by somebody else") from error
            time.sleep(1e-3)
