"""Records of decisions: the list of a cache and its pruning, and the log of probes."""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

from sparloom.errors import SchemaError
from sparloom.jit import kernels_digest
from sparloom.tuning.cache import DiskCache, OtherVersion, PlanCache, Summary, entry_key, parsed_entry
from sparloom.tuning.disk_cache import Stored, digest_of
from sparloom.tuning.machine import machine_digests

__all__ = ["CacheEntry", "ProbeLog", "Prune", "Pruning", "State", "list_plans", "prune_plans"]

log = logging.getLogger(__name__)

State = Literal["own", "foreign", "damaged"]
Prune = Literal["none", "foreign", "all"]

SHOWN_DIGITS = 12  # of a digest
DAY_SECONDS = 86400.0

PROBE_LOG, OLDER_PROBE_LOG = "probe_logs.jsonl", "probe_logs.1.jsonl"
LOCK_SECONDS = 2.0
MAX_LOG_BYTES = 10 << 20


@dataclass(frozen=True)
class CacheEntry:
    """One entry of a cache, or a file of it that is damaged as a whole.

    Args:
        path: of the file that it is in.
        kind: "pair", "csr" (operations on one sparse matrix), "class" (on fresh matrices that are alike), "ragged",
            "rates", "order"; "" of a damaged one.
        state: "own": of this machine and these kernels; "foreign": of others, or of another version; "damaged".
        stamp: they differ once the entry is replaced: of a file, its inode and the time of its last change in
            nanoseconds.
        digest: of the key of an entry; "": the whole file.
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
    stamp: tuple[float, ...]
    digest: str = ""
    fault: str = ""
    op: str = ""
    pattern: str = ""
    shapes: str = ""
    threads: int = 0
    choice: str = ""
    reason: str = ""
    speedup: float | None = None

    @classmethod
    def of(cls, path: Path, *, now: float) -> CacheEntry | None:
        """Describe a file, but not its content; None if it is gone."""
        try:
            status = path.lstat()
        except FileNotFoundError:
            return None
        return cls(path, "", "own", max(0.0, now - status.st_mtime), status.st_size, _stamp(status))

    def remove(self) -> bool:
        """Delete it unless it was replaced since it was listed; return whether it was deleted."""
        try:
            if self.digest:
                store = _store_of(self.path)
                return store is not None and bool(store.remove([Stored(self.digest, self.stamp[0], None)]))
            if _stamp(self.path.lstat()) != self.stamp:
                return False
            self.path.unlink()
        except FileNotFoundError:
            return False
        except (OSError, ValueError) as error:
            log.warning("%s is not deleted: %s", self.path, error)
            return False
        return True


@dataclass(frozen=True)
class Pruning:
    """Rules for deleting entries.

    Args:
        which: "foreign": those of other machines, kernels or versions, and damaged ones; "all"; "none".
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
        """Tell whether to delete an entry."""
        old = self.older_days is not None and entry.age_seconds > DAY_SECONDS * self.older_days
        return old or self.which == "all" or (self.which == "foreign" and entry.state != "own")


def list_plans(folder: Path, *, now: float) -> list[CacheEntry]:
    """List the entries of a cache, but no files of other programs.

    Args:
        now: seconds since the epoch.
    """
    entries = []
    for store in PlanCache(folder).stores:
        try:
            entries += [_described(store, each, now) for each in store.stored()]
        except ValueError as error:
            damaged = CacheEntry.of(store.path, now=now)
            entries += [replace(damaged, state="damaged", fault=str(error))] if damaged else []
        except OSError as error:
            log.warning("%s cannot be read: %s", store.path, error.strerror)
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
        if _store_of(each.path) is None:
            raise ValueError(f"{each.path} is no file of a cache of decisions: pass what list_plans gives")
    return [each for each in entries if pruning.takes(each) and each.remove()]


def _store_of(path: Path) -> DiskCache | None:
    """Return the store that has this file."""
    return next((store for store in PlanCache(path.parent).stores if store.path.name == path.name), None)


def _described(store: DiskCache, stored: Stored, now: float) -> CacheEntry:
    """Describe an entry."""
    size = 0 if stored.value is None else len(stored.value)
    entry = CacheEntry(store.path, "", "own", max(0.0, now - stored.written), size, (stored.written,), stored.digest)
    if stored.value is None:
        return replace(entry, state="damaged", fault="its checksum differs")
    try:
        content = parsed_entry(stored.value)
        return _summarised(replace(entry, kind=str(content["kind"])), content)
    except OtherVersion as error:
        return replace(entry, state="foreign", fault=str(error))
    except (AttributeError, KeyError, RecursionError, SchemaError, TypeError, ValueError) as error:
        return replace(entry, state="damaged", fault=f"{type(error).__name__}: {error}")


def _summarised(entry: CacheEntry, content: dict[str, Any]) -> CacheEntry:
    key, summary = content["key"], Summary(**content["summary"])
    if digest_of(entry_key(content["kind"], key)).hex() != entry.digest:
        return replace(entry, state="damaged", fault="written for something else")
    entry = replace(entry, op=summary.op, pattern=str(key.get("pattern", ""))[:SHOWN_DIGITS], shapes=summary.shapes,
                    threads=int(key.get("threads", 0)))
    machine = key.get("machine", "")
    if machine and machine not in machine_digests():
        return replace(entry, state="foreign", fault="of another machine")
    if key["kernels"] != kernels_digest(tuple(summary.sources)):
        return replace(entry, state="foreign", fault="of other kernels")
    return replace(entry, choice=summary.choice, reason=summary.reason, speedup=summary.speedup)


def _stamp(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_mtime_ns


class ProbeLog:
    """The file probe_logs.jsonl of a folder, to which any number of processes may append.

    A line is written at once. A file that would grow too large is renamed to probe_logs.1.jsonl, replacing the older
    one. What a killed process wrote of a line stays on a line of its own.

    Args:
        folder: created by the first line.
        limit_bytes: of each of the two files.
    """

    def __init__(self, folder: Path, *, limit_bytes: int = MAX_LOG_BYTES) -> None:
        self.path = folder / PROBE_LOG
        self._older = folder / OLDER_PROBE_LOG
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
                _lock(descriptor)  # so that only one process renames the file
                size = os.fstat(descriptor).st_size
                if not self._is_current(descriptor):
                    continue
                if size and size + len(line) > self._limit_bytes:
                    self.path.replace(self._older)
                    continue
                torn = size and os.pread(descriptor, 1, size - 1) != b"\n"
                os.write(descriptor, b"\n" + line if torn else line)
                return
            finally:
                os.close(descriptor)

    def _is_current(self, descriptor: int) -> bool:
        """Tell whether an open file still has this name; another process may have renamed it."""
        try:
            return os.path.samestat(os.fstat(descriptor), self.path.stat())
        except FileNotFoundError:
            return False


def _lock(descriptor: int) -> None:
    """Lock an open file.

    Raises:
        TimeoutError: another process holds the lock for too long, e.g. because it is stopped; or a call of this thread
            that the caller has interrupted.
    """
    end = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() > end:
                raise TimeoutError(f"locked for {LOCK_SECONDS} s by another process") from error
            time.sleep(1e-3)
