"""A bounded cache of byte strings on disk, shared by any number of processes.

    <folder>/<2 hex digits>/<64 hex digits>                                      an entry, named by the hash of its key
    <folder>/<2 hex digits>/.<64 hex digits>.<process>-<8 hex digits>.partial    an entry while it is written

An entry is one file with a checksum, written beside its place and renamed into it. So nothing has to be locked: a
reader sees a whole entry or none, whoever is killed, and forked processes share nothing that is open. A put looks at
the entries of one bucket only, which is how it stays as fast as with an empty cache.

SQLite would bound itself as well, but processes that write at once wait for its lock, and its write-ahead log does not
work on network file systems, where home folders often are.

Cache of decisions: key in, JSON object out. It knows neither what is decided nor how.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
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
from sparloom.jit import cache_folder

__all__ = [
    "VERSION", "DiskCache", "Entry", "OtherVersion", "PlanCache", "Summary", "entry_key", "is_entry", "parsed_entry",
]

log = logging.getLogger(__name__)

HEAD = b"sparloom 1 "  # of an entry; then the CRC-32 of the value in 8 hex digits, and a newline
HEAD_BYTES = len(HEAD) + 9
WRITING_SECONDS = 60.0  # an entry is written in milliseconds
ABANDONED_SECONDS = 86400.0  # after which a process with the number of a writer is taken to be another one
NAME = re.compile(r"[0-9a-f]{64}")
PARTIAL = re.compile(r"\.[0-9a-f]{64}\.([0-9]{1,7})-[0-9a-f]{8}\.partial")


@dataclass(frozen=True)
class Entry:
    """A file of the cache, as it was when it was listed.

    Args:
        seconds: since the epoch, of the last change.
        stamp: inode and time of the last change in nanoseconds; an entry that was replaced has another one.
        writer: number of the process that is writing it, or was when it was killed; None where it is whole.
    """

    path: Path
    size_bytes: int
    seconds: float
    stamp: tuple[int, int]
    writer: int | None = None

    @classmethod
    def of(cls, path: Path, writer: int | None = None) -> Entry | None:
        """Look at a file; None if it is gone."""
        try:
            status = path.lstat()
        except FileNotFoundError:
            return None
        return cls(path, status.st_size, status.st_mtime, _stamp(status), writer)

    def orphaned(self, *, now: float) -> bool:
        """Tell whether the process that was writing this entry has ended.

        A process that is not found may run on another machine that shares the folder, so it has a minute.
        """
        age = now - self.seconds
        if self.writer is None or age < WRITING_SECONDS:
            return False
        return age > ABANDONED_SECONDS or not _runs(self.writer)

    def read(self) -> bytes:
        """Read the value.

        Raises:
            ValueError: it is damaged.
            OSError: it is gone, or cannot be read.
        """
        return _checked(self.path.read_bytes())

    def remove(self) -> bool:
        """Delete the entry, unless it was replaced since it was listed; tells whether it did."""
        try:
            if _stamp(self.path.lstat()) != self.stamp:
                return False
            self.path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            log.warning("%s is not deleted: %s", self.path, error)
            return False
        return True


class DiskCache:
    """Keep values by key; the entries not used for longest make room for new ones.

    The limits are split evenly over buckets, so a bucket may be full before the cache is.

    Args:
        folder: made with the first entry.
        entries, size_bytes: limits of the whole cache; at least one entry for each bucket is kept.
        buckets: 1 to 256, always the same for a folder. A put takes as long as a bucket has entries.
    """

    def __init__(self, folder: Path, *, entries: int, size_bytes: int, buckets: int = 256) -> None:
        self.folder = folder
        self._buckets = buckets
        self._entries, self._size_bytes = max(1, entries // buckets), max(1, size_bytes // buckets)

    def path(self, key: str) -> Path:
        """Name the file of a key."""
        return Path(self._path(key))

    def get(self, key: str) -> bytes | None:
        """Find a value; None if there is none.

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
                return None  # kept where limits were larger; the next put into its bucket removes it
            return _checked(os.read(descriptor, size))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        finally:
            os.close(descriptor)

    def put(self, key: str, value: bytes) -> None:
        """Keep a value in place of the one there was; one that is larger than a bucket may be is not kept.

        Raises:
            OSError: the disk is full, or the folder cannot be written to; the value that there was is still there.
        """
        if len(value) > self._size_bytes:
            log.debug("%s: %d bytes are above the limit of %d: not kept", key, len(value), self._size_bytes)
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

    def delete(self, key: str) -> None:
        """Remove a value, if there is one."""
        self.path(key).unlink(missing_ok=True)

    def clear(self) -> None:
        """Remove all values."""
        for entry in self.entries():
            if entry.writer is None:
                entry.remove()

    def entries(self) -> Iterator[Entry]:
        """List all entries, those among them that are being written."""
        for number in range(self._buckets):
            with suppress(FileNotFoundError, NotADirectoryError):
                yield from sorted(_listed(os.path.join(self.folder, f"{number:02x}")), key=lambda entry: entry.path)

    def _path(self, key: str) -> str:
        digest = hashlib.sha256(key.encode()).hexdigest()
        return os.path.join(self.folder, f"{int(digest[:2], 16) % self._buckets:02x}", digest)

    def _trim(self, bucket: str, *, keep: str) -> None:
        """Remove what killed processes left in a bucket, then the entries not used for longest, down to the limits."""
        now, whole, total = time.time(), [], 0
        try:
            with os.scandir(bucket) as found:
                for each in found:
                    if NAME.fullmatch(each.name):
                        status = each.stat(follow_symlinks=False)
                        whole.append((max(status.st_atime, status.st_mtime), status.st_size, each.path))
                        total += status.st_size - HEAD_BYTES
                    elif (entry := _entry(each)) is not None and entry.orphaned(now=now):
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
            log.debug("%s: %s", bucket, error)  # another process was faster, or may delete and this one may not


def is_entry(path: Path) -> bool:
    """Tell whether a file is named as an entry, or as one that is being written, is."""
    return bool(NAME.fullmatch(path.name) or PARTIAL.fullmatch(path.name))


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


def _checked(content: bytes) -> bytes:
    head, value = content[:HEAD_BYTES], content[HEAD_BYTES:]
    if not head.startswith(HEAD):
        raise ValueError("it does not begin as an entry does")
    if head != b"%s%08x\n" % (HEAD, zlib.crc32(value)):
        raise ValueError("its checksum is another one")
    return value


def _listed(bucket: str) -> Iterator[Entry]:
    with os.scandir(bucket) as found:
        yield from filter(None, map(_entry, found))


def _entry(found: os.DirEntry) -> Entry | None:
    """Recognise an entry by its name; None if it is something else, as links and folders are, or gone."""
    partial = PARTIAL.fullmatch(found.name)
    if not (partial or NAME.fullmatch(found.name)) or not found.is_file(follow_symlinks=False):
        return None
    return Entry.of(Path(found.path), int(partial[1]) if partial else None)


def _stamp(status: os.stat_result) -> tuple[int, int]:
    return status.st_ino, status.st_mtime_ns


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # of another user
    return True


Read = TypeVar("Read")

VERSION = 2  # of the content of an entry
ENTRIES, MEGABYTES = "SPARLOOM_PLANS_ENTRIES", "SPARLOOM_PLANS_MB"
DEFAULT_ENTRIES, DEFAULT_MEGABYTES = 10_240, 128
MAX_BLOBS = 64  # entries of bytes, such as orders of rows: each has 4 bytes for every row of a matrix
MAX_REMEMBERED = 256  # entries in the memory of one process
MAX_REMEMBERED_SECONDS = 600.0

DAMAGE = (ValueError, KeyError, TypeError, EOFError, RecursionError, MemoryError, SchemaError)
"""Exceptions that parsing an arbitrary entry may raise."""


class OtherVersion(SchemaError):
    """An entry was written by an earlier or a later version."""


@dataclass(frozen=True)
class Summary:
    """What a list of the cache shows of an entry.

    Args:
        op: operation, or name of an order.
        shapes: widths of the dense operands, or what the batches of a ragged operator have in common.
        choice: configuration or library.
        speedup: seconds of the baseline over those of the choice; None where it was not measured.
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
        return self._read(0, kind, key, lambda entry: parse(entry["value"]))

    def get_bytes(self, kind: str, key: Mapping[str, Any], parse: Callable[[bytes], Read] = bytes) -> Read | None:
        """Look up bytes, as `get` does an object."""
        return self._read(1, kind, key, lambda entry: parse(entry["value"]))

    def put(
        self, kind: str, key: Mapping[str, Any], value: Mapping[str, Any], *, summary: Summary | None = None,
        remember_seconds: float = 0.0,
    ) -> None:
        """Store a JSON object in place of the one there was. A full disk is logged, not raised.

        Args:
            key: all that the value depends on, as JSON values.
            remember_seconds: store nothing; this process alone finds the entry, for so many seconds, or for twice as
                long as the last time if that is longer; at most ten minutes.
        """
        self._write(0, kind, key, {"summary": asdict(summary or Summary()), "value": dict(value)}, b"",
                    remember_seconds)

    def put_bytes(
        self, kind: str, key: Mapping[str, Any], value: bytes, *, summary: Summary | None = None,
    ) -> None:
        """Store bytes, as `put` does an object; at most 64 such entries are kept."""
        self._write(1, kind, key, {"summary": asdict(summary or Summary()), "bytes": len(value)}, value, 0.0)

    def _read(
        self, store: int, kind: str, key: Mapping[str, Any], parse: Callable[[dict[str, Any]], Read],
    ) -> Read | None:
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
        if content is None:
            content = _REMEMBERED.get(str(disk.path(name)))
        if content is None:
            return None
        try:
            entry = parsed_entry(content)
            if entry.get("key") != dict(key):
                raise SchemaError("written for something else")
            return parse(entry)
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
            _warn_once(self.folder, f"cannot be written to: {error.strerror}: decisions are not kept for later "
                                    "processes; set SPARLOOM_CACHE, or AUTOSAGE_CACHE_DIR, to a folder that can be")


class _ProcessMemory:
    """Entries that this process remembers for some seconds, by the path of their file; at most 256."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[bytes, float, float]] = {}  # content, end, duration

    def put(self, path: str, content: bytes, seconds: float) -> None:
        """Remember an entry; if it was remembered before, for at least twice as long."""
        _, _, before = self._known.pop(path, (b"", 0.0, 0.0))
        seconds = min(max(seconds, 2 * before), MAX_REMEMBERED_SECONDS)
        self._known[path] = content, clock() + seconds, seconds
        if len(self._known) > MAX_REMEMBERED:
            with suppress(StopIteration, KeyError):  # another thread was faster
                self._known.pop(next(iter(self._known)))

    def get(self, path: str) -> bytes | None:
        """Look up an entry that has not expired."""
        content, end, _ = self._known.get(path, (None, 0.0, 0.0))
        return content if clock() < end else None


_REMEMBERED = _ProcessMemory()


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
    entries, size_bytes = _limit(ENTRIES, DEFAULT_ENTRIES), _limit(MEGABYTES, DEFAULT_MEGABYTES) * 1_000_000 // 2
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
