"""A bounded cache of byte strings on disk, shared by any number of processes.

    <folder>/<2 hex digits>/<64 hex digits>                                      an entry, named by the hash of its key
    <folder>/<2 hex digits>/.<64 hex digits>.<process>-<8 hex digits>.partial    an entry while it is written

An entry is one file with a checksum, written beside its place and renamed into it. So nothing has to be locked: a
reader sees a whole entry or none, whoever is killed, and forked processes share nothing that is open. A put looks at
the entries of one bucket only, which is how it stays as fast as with an empty cache.

SQLite would bound itself as well, but processes that write at once wait for its lock, and its write-ahead log does not
work on network file systems, where home folders often are.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["DiskCache", "Entry", "is_entry"]

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
