"""The decision cache: key in, JSON or bytes out, bounded, on disk, shared by any number of processes.

It is opaque: it knows neither what is decided nor how.

    <folder>/<2 hex digits>/<64 hex digits>                                      an entry, named by the hash of its key
    <folder>/<2 hex digits>/.<64 hex digits>.<process>-<8 hex digits>.partial    an entry while it is written

An entry is one file with a checksum, written beside its final name and renamed. So nothing is locked: a reader sees a
whole entry or none, whoever is killed, and forked processes share no open files. A put scans one bucket only. SQLite
was measured instead: eight writers wait for its lock, up to a second or an error, and its write-ahead log does not
work on network file systems.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
import stat
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from time import monotonic as clock
from typing import Any, TypeVar

from sparloom.errors import SchemaError
from sparloom.jit import cache_folder, warn_unwritable
from sparloom.measure import KEEP_BUSY

__all__ = [
    "AGAIN", "LATEST", "VERSION", "DiskCache", "OtherVersion", "PlanCache", "Summary", "busy_seconds", "checked_value",
    "entry_key", "has_ended", "is_entry", "parsed_entry", "tell_busy", "writer_of",
]

log = logging.getLogger(__name__)

HEAD = b"sparloom 1 "  # of an entry; then the CRC-32 of the value in 8 hex digits, and a newline
HEAD_BYTES = len(HEAD) + 9
WRITING_SECONDS = 60.0  # after which a partial file may be orphaned: entries are written in milliseconds
ABANDONED_SECONDS = 86400.0  # after which the number of a writer is assumed to belong to another process
NAME = re.compile(r"[0-9a-f]{64}")
PARTIAL = re.compile(r"\.[0-9a-f]{64}\.([0-9]{1,7})-[0-9a-f]{8}\.partial")

Read = TypeVar("Read")

VERSION = 2  # of the content of an entry
ENTRIES, MEGABYTES = "SPARLOOM_PLANS_ENTRIES", "SPARLOOM_PLANS_MB"
MAX_BLOBS = 64  # entries of bytes, such as orders of rows: each has 4 bytes for every row of a matrix
MAX_REMEMBERED = 256  # entries in the memory of one process
AGAIN, LATEST = 1.0, 600.0  # seconds until a decision of a busy machine is made again, first and at most
REUSE_FACTOR = 20.0  # such a decision is used for so many times what it took

DAMAGE = (ValueError, KeyError, TypeError, EOFError, RecursionError, MemoryError, SchemaError)
"""Exceptions that parsing an arbitrary entry may raise."""


class OtherVersion(SchemaError):
    """An entry was written by an earlier or a later version."""


@dataclass(frozen=True)
class Summary:
    """Description of an entry for lists of the cache, see `CacheEntry`.

    Args:
        sources: names of the kernel sources that the decision depends on, see `kernels_digest`.
    """

    op: str = ""
    shapes: str = ""
    choice: str = ""
    reason: str = ""
    speedup: float | None = None
    sources: tuple[str, ...] = ()


class PlanCache:
    """A folder of decisions, shared by any number of processes.

    An entry is whole or absent, and the last writer wins. A damaged entry, or one of another version, counts as absent
    and is logged as a warning. A folder that cannot be written to is still read; one warning names the remedy. The
    cache is bounded by `SPARLOOM_PLANS_ENTRIES` (10,240 by default) and `SPARLOOM_PLANS_MB` megabytes (128), half of
    them for bytes; the least recently used entries are evicted.

    Args:
        folder: created by the first put; None: nothing is stored.
        keep_busy: store decisions that were made on a busy machine, too; read by those who decide.
    """

    def __init__(self, folder: Path | None, *, keep_busy: bool = False) -> None:
        self.folder = None if folder is None else Path(folder)
        self.keep_busy = keep_busy
        self.stores: tuple[DiskCache, ...] = () if folder is None else _open_stores(self.folder)

    @classmethod
    def of_this_user(cls) -> PlanCache:
        """Open the folder plans/ of SPARLOOM_CACHE, or else of ~/.cache/sparloom."""
        return cls(cache_folder() / "plans")

    def get(self, kind: str, key: Mapping[str, Any], parse: Callable[[Any], Read] = dict) -> Read | None:
        """Look up a JSON object; None if there is none, or if it is damaged.

        Args:
            key: JSON values.
            parse: reads the object; raises ValueError, KeyError, TypeError or SchemaError if it is damaged.
        """
        return self._read(0, kind, key, parse)

    def get_bytes(self, kind: str, key: Mapping[str, Any], parse: Callable[[bytes], Read] = bytes) -> Read | None:
        """Look up bytes, as `get` does an object."""
        return self._read(1, kind, key, parse)

    def put(
        self, kind: str, key: Mapping[str, Any], value: Mapping[str, Any], *, summary: Summary | None = None,
        remember_seconds: float = 0.0,
    ) -> None:
        """Store a JSON object in place of the previous one. A full disk is logged, not raised.

        Args:
            key: all that the value depends on, as JSON values.
            remember_seconds: not on disk, but in this process for so many seconds, or for twice as long as the last
                time if that is longer; at most ten minutes.
        """
        self._write(0, kind, key, {"summary": asdict(summary or Summary()), "value": dict(value)}, b"",
                    remember_seconds)

    def put_bytes(self, kind: str, key: Mapping[str, Any], value: bytes, *, summary: Summary | None = None) -> None:
        """Store bytes, as `put` does an object; at most 64 such entries are kept."""
        self._write(1, kind, key, {"summary": asdict(summary or Summary()), "bytes": len(value)}, value, 0.0)

    def _read(self, store: int, kind: str, key: Mapping[str, Any], parse: Callable[[Any], Read]) -> Read | None:
        if not self.stores:
            return None
        disk, name = self.stores[store], entry_key(kind, key)
        try:
            content = disk.get(name)
        except OSError as error:
            _warn_once(self.folder, f"cannot be read: {error.strerror}: its decisions are made anew")
            return None
        except DAMAGE as error:
            log.warning("%s: it is decided anew", error)
            return None
        content = _REMEMBERED.get(str(disk.path(name))) if content is None else content
        if content is None:
            return None
        try:
            entry = parsed_entry(content)
            if entry.get("key") != dict(key):
                raise SchemaError("written for something else")
            return parse(entry["value"])
        except DAMAGE as error:
            log.warning("%s: %s: it is decided anew", disk.path(name), error)
            return None

    def _write(
        self, store: int, kind: str, key: Mapping[str, Any], content: Mapping[str, Any], blob: bytes,
        remember_seconds: float,
    ) -> None:
        if not self.stores:
            return
        disk, name = self.stores[store], entry_key(kind, key)
        head = json.dumps({"version": VERSION, "kind": kind, "key": dict(key), **content}, allow_nan=False)
        entry = head.encode() + b"\n" + blob
        if remember_seconds:
            _REMEMBERED.put(str(disk.path(name)), entry, remember_seconds)
            return
        try:
            disk.put(name, entry)
        except OSError as error:
            warn_unwritable(self.folder, f"{self.folder} cannot be written to: {error.strerror}: decisions are not "
                                         "kept for later processes; set SPARLOOM_CACHE, or AUTOSAGE_CACHE_DIR, to a "
                                         "folder that can be")


class _ProcessMemory:
    """Entries that this process remembers for some seconds, by path; at most 256."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[bytes, float, float]] = {}  # content, end, duration

    def put(self, path: str, content: bytes, seconds: float) -> None:
        """Remember an entry; if it was remembered before, for at least twice as long."""
        _, _, before = self._known.pop(path, (b"", 0.0, 0.0))
        seconds = min(max(seconds, 2 * before), LATEST)
        self._known[path] = content, clock() + seconds, seconds
        if len(self._known) > MAX_REMEMBERED:
            with suppress(StopIteration, KeyError):  # another thread was faster
                self._known.pop(next(iter(self._known)))

    def get(self, path: str) -> bytes | None:
        """Look up an entry that has not expired."""
        content, end, _ = self._known.get(path, (None, 0.0, 0.0))
        return content if clock() < end else None


_REMEMBERED = _ProcessMemory()


def busy_seconds(reason: str, decision_seconds: float) -> float:
    """Seconds for which to use a decision of a busy machine, 20 times what it took; 0.0 if it was not busy.

    Args:
        reason: why the machine was busy; "" if it was not.
    """
    if not reason:
        return 0.0
    tell_busy()
    return max(AGAIN, REUSE_FACTOR * decision_seconds)


@cache
def tell_busy() -> None:
    """Log once per process that decisions are not stored."""
    log.info("the machine is busy: decisions are used by this process alone until made again; %s=1 stores them",
             KEEP_BUSY)


def entry_key(kind: str, key: Mapping[str, Any]) -> str:
    """Name an entry by its kind and its key."""
    return f"{kind} {json.dumps(key, sort_keys=True)}"


def parsed_entry(content: bytes) -> dict[str, Any]:
    """Parse an entry.

    Raises:
        ValueError, RecursionError: it is not JSON, or does not have as many bytes as it says.
        SchemaError: it is of another version (OtherVersion), or something else.
    """
    head, _, blob = content.partition(b"\n")
    value = json.loads(head.decode())
    if not isinstance(value, dict):
        raise SchemaError(f"not of version {VERSION}")
    if value.get("version") != VERSION:
        raise OtherVersion(f"of version {value.get('version')!r}, not {VERSION}")
    if value.get("bytes", 0) != len(blob):
        raise ValueError(f"{len(blob)} bytes in place of {value.get('bytes', 0)!r}")
    return {**value, "value": blob} if "bytes" in value else value


def _open_stores(folder: Path) -> tuple[DiskCache, DiskCache]:
    """Open the store of JSON objects and that of bytes, which are fewer and larger."""
    entries, size_bytes = _limit(ENTRIES, 10_240), _limit(MEGABYTES, 128) * 1_000_000 // 2
    return (DiskCache(folder / "decisions", entries=entries, size_bytes=size_bytes),
            DiskCache(folder / "orders", entries=MAX_BLOBS, size_bytes=size_bytes, buckets=1))


def _limit(variable: str, default: int) -> int:
    given = os.environ.get(variable)
    if not given:
        return default
    if not (given.isascii() and given.isdigit() and len(given) <= 12 and int(given) >= 1):
        raise ValueError(f"{variable}={given!r}: give a whole number, at least 1, or unset it")
    return int(given)


@cache
def _warn_once(folder: Path, text: str) -> None:
    log.warning("%s %s", folder, text)


class DiskCache:
    """Store byte strings by key; the least recently used entries are evicted.

    The limits are split evenly over buckets, so a bucket may be full before the cache is.

    Args:
        folder: created by the first put.
        entries, size_bytes: limits of the whole cache; every bucket may hold at least one entry.
        buckets: 1 to 256, always the same for a folder. The time of a put grows with the entries of a bucket.
    """

    def __init__(self, folder: Path, *, entries: int, size_bytes: int, buckets: int = 256) -> None:
        self.folder = folder
        self._buckets = buckets
        self._entries, self._size_bytes = max(1, entries // buckets), max(1, size_bytes // buckets)

    def path(self, key: str) -> Path:
        """File of a key."""
        return Path(self._path(key))

    def get(self, key: str) -> bytes | None:
        """Look up a value; None if there is none.

        Raises:
            ValueError: it is damaged; names the file.
            OSError: it cannot be read.
        """
        path = self._path(key)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            size = os.fstat(descriptor).st_size
            if size > self._size_bytes + HEAD_BYTES:
                return None  # stored under larger limits; the next put into its bucket evicts it
            return checked_value(os.read(descriptor, size))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        finally:
            os.close(descriptor)

    def put(self, key: str, value: bytes) -> None:
        """Store a value in place of the previous one, unless it is larger than a bucket may be.

        Raises:
            OSError: the disk is full, or the folder cannot be written to; the previous value stays.
        """
        if len(value) > self._size_bytes:
            log.debug("%s: %d bytes are above the limit of %d: not stored", key, len(value), self._size_bytes)
            return
        path = self._path(key)
        bucket, name = os.path.split(path)
        partial = os.path.join(bucket, f".{name}.{os.getpid()}-{secrets.token_hex(4)}.partial")
        try:
            _write(partial, b"%s%08x\n%s" % (HEAD, zlib.crc32(value), value))
            os.replace(partial, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(partial)
            raise
        self._trim(bucket, keep=name)

    def entries(self) -> Iterator[Path]:
        """List the files of all entries, including those that are being written."""
        for number in range(self._buckets):
            bucket = os.path.join(self.folder, f"{number:02x}")
            with suppress(FileNotFoundError, NotADirectoryError), os.scandir(bucket) as found:
                yield from sorted(Path(each.path) for each in found
                                  if is_entry(each.name) and each.is_file(follow_symlinks=False))

    def _path(self, key: str) -> str:
        digest = hashlib.sha256(key.encode()).hexdigest()
        return os.path.join(self.folder, f"{int(digest[:2], 16) % self._buckets:02x}", digest)

    def _trim(self, bucket: str, *, keep: str) -> None:
        """Remove what killed processes left in a bucket, then the least recently used entries above the limits."""
        now, whole, total = time.time(), [], 0
        try:
            with os.scandir(bucket) as found:
                for each in found:
                    if NAME.fullmatch(each.name):
                        status = each.stat(follow_symlinks=False)
                        whole.append((max(status.st_atime, status.st_mtime), status.st_size, each.path))
                        total += status.st_size - HEAD_BYTES
                    elif _is_orphan(each, now):
                        os.unlink(each.path)
            if len(whole) <= self._entries and total <= self._size_bytes:
                return
            count = len(whole)
            for _, size, path in sorted(whole):
                if count <= self._entries and total <= self._size_bytes:
                    break
                if os.path.basename(path) != keep:
                    os.unlink(path)
                    count, total = count - 1, total - size + HEAD_BYTES
        except OSError as error:
            log.debug("%s: %s", bucket, error)  # another process was faster, or this one may not delete


def is_entry(name: str) -> bool:
    """Tell whether a file has the name of an entry, or of one that is being written."""
    return bool(NAME.fullmatch(name) or PARTIAL.fullmatch(name))


def writer_of(name: str) -> int | None:
    """Number of the process that writes a file of this name; None for a whole entry."""
    partial = PARTIAL.fullmatch(name)
    return int(partial[1]) if partial else None


def has_ended(writer: int, age_seconds: float) -> bool:
    """Tell whether the process that was writing a file of this age has ended.

    A process that is not found may run on another machine that shares the folder, so it is given a minute.
    """
    if age_seconds < WRITING_SECONDS:
        return False
    if age_seconds > ABANDONED_SECONDS:
        return True
    try:
        os.kill(writer, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False  # of another user
    return False


def checked_value(content: bytes) -> bytes:
    """Return the value in the content of a file.

    Raises:
        ValueError: it is damaged.
    """
    head, value = content[:HEAD_BYTES], content[HEAD_BYTES:]
    if not head.startswith(HEAD):
        raise ValueError("it does not begin like an entry")
    if head != b"%s%08x\n" % (HEAD, zlib.crc32(value)):
        raise ValueError("its checksum differs")
    return value


def _write(path: str, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags, 0o666)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        descriptor = os.open(path, flags, 0o666)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(descriptor, view):]
    finally:
        os.close(descriptor)


def _is_orphan(found: os.DirEntry, now: float) -> bool:
    writer = writer_of(found.name)
    if writer is None:
        return False
    try:
        status = found.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) and has_ended(writer, now - status.st_mtime)
