"""A cache on disk: byte strings by key in one SQLite file, bounded, shared by any number of processes and threads.

    <folder>/<name>.sqlite          table `entries`: digest of the key -> value with its checksum, and when it was used
    <folder>/<name>.sqlite-journal  of SQLite, while an entry is written

Every operation is one short transaction. A journal that is rolled back, not a write-ahead log, is used everywhere: it
works on network file systems, and one killed writer costs only its own entry. Nothing is flushed to the disk: after a
power failure the file may be damaged, which is noticed, and a damaged file is replaced by an empty one. Of the file
only JSON and bytes are read: it must have exactly our tables, so a file from elsewhere brings no triggers or views.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import logging
import math
import os
import stat
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import RLock, local
from time import monotonic as clock
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

if TYPE_CHECKING:
    from sqlite3 import Connection

__all__ = ["DiskCache", "Stored", "digest_of"]

log = logging.getLogger(__name__)

Result = TypeVar("Result")
Identity = tuple[int, int]
"""Device and inode of a file."""

SCHEMA = (
    "CREATE TABLE entries (digest BLOB NOT NULL PRIMARY KEY, written REAL NOT NULL, used REAL NOT NULL, "
    "checksum INTEGER NOT NULL, value BLOB NOT NULL)",
    "CREATE INDEX by_use ON entries (used)",
    "CREATE TABLE totals (entries INTEGER NOT NULL)",
)
LAYOUT = {"entries": SCHEMA[0], "sqlite_autoindex_entries_1": None, "by_use": SCHEMA[1], "totals": SCHEMA[2]}
NUMBERS = ("SELECT entries FROM totals", "PRAGMA page_count", "PRAGMA freelist_count")
COUNT = "UPDATE totals SET entries = (SELECT count(*) FROM entries)"
SETTINGS = ("trusted_schema=OFF", "cell_size_check=ON", "mmap_size=0", "temp_store=MEMORY", "synchronous=OFF",
            "journal_mode=DELETE")

WAIT_SECONDS, WAITS = 0.02, 25  # for the lock of another process: SQLite waits longer each time, so it begins again
PAUSE_SECONDS = 2.0  # without access, after the lock could not be had: its owner may be stopped
FORK_SECONDS = 5.0  # that a fork waits for an operation of another thread
TOUCH_SECONDS = 86400.0  # between two writes of the time of use of one entry
MEMORY_ENTRIES, MEMORY_BYTES = 1024, 8_000_000  # that one process keeps of a file, ...
MEMORY_VALUE = 1 << 16  # ... in values of at most so many bytes
EVICTED_SHARE = 1024  # of this part of the entries, more are evicted at a time while a file is too large
PAGE_BYTES = 4096
FILLED, MAX_SHARE = 0.97, 0.9  # share of the file that is filled, and that one value may take

CORRUPT, NOT_A_DATABASE, BUSY, LOCKED, FULL, READ_ONLY = 11, 26, 5, 6, 13, 8  # error codes of SQLite
ERRNOS = {FULL: errno.ENOSPC, READ_ONLY: errno.EROFS}
_forking = local()  # `held`: the caches whose locks this thread holds while it forks


@dataclass(frozen=True)
class Stored:
    """One entry of a file.

    Args:
        digest: of its key, 64 hex digits.
        written: seconds since the epoch.
        value: None: it does not match its checksum.
    """

    digest: str
    written: float
    value: bytes | None


class DiskCache:
    """Store byte strings by key in one file; the least recently used ones are evicted.

    Reads take no lock that keeps other readers away, as the time of use is written at most once a day. What was read
    or written is kept in the memory of this process, too, until the file is deleted or replaced. So an entry that
    another process replaces meanwhile may be found as it was.

    Args:
        folder: created by the first put.
        entries, size_bytes: limits of the file.
        name: of the file.
    """

    def __init__(self, folder: Path, *, entries: int, size_bytes: int, name: str = "decisions") -> None:
        self.path = Path(os.path.abspath(folder)) / f"{name}.sqlite"
        self._file = str(self.path)
        self._entries, self._size_bytes = entries, size_bytes
        self._lock, self._connection, self._identity = RLock(), None, None
        self._counted = False  # whether this connection has counted the entries
        self._memory: dict[str, tuple[bytes, float]] = {}  # value and last write of the time of use, by key
        self._memory_of = None
        self._pause_until = 0.0
        _CACHES.add(self)

    def get(self, key: str) -> bytes | None:
        """Look up a value; None if there is none.

        Raises:
            ValueError: it is damaged.
            OSError: the file cannot be read; TimeoutError: another process holds its lock.
        """
        identity = _identity(self._file)
        if identity is None or identity != self._memory_of:
            self._forget()
            if identity is None:
                return None
        found, now = self._memory.pop(key, None), time.time()
        if found is not None and now - found[1] < TOUCH_SECONDS:
            self._memory[key] = found  # behind all others
            return found[0]
        digest = digest_of(key)
        row = self._perform(lambda connection: _read(connection, digest, now), create=False)
        if row is None:
            return None
        value = _checked(digest, *row)
        self._remember(key, value, now)
        return value

    def put(self, key: str, value: bytes) -> None:
        """Store a value in place of the previous one, unless it is larger than the file may be.

        Raises:
            OSError: the disk is full, or the file cannot be written to; TimeoutError: another process holds its lock;
                the previous value stays.
        """
        if len(value) > MAX_SHARE * self._size_bytes:
            log.debug("%d bytes are above the limit of %d: not stored", len(value), self._size_bytes)
            return
        digest = digest_of(key)
        self._perform(lambda connection: self._write(connection, digest, value), create=True)
        self._remember(key, value, time.time())

    def stored(self) -> list[Stored]:
        """Read all entries, those used least recently first.

        Raises:
            ValueError: the file is damaged.
            OSError: as by `get`.
        """
        def read(connection: Connection) -> list[Stored]:
            rows = connection.execute("SELECT digest, written, checksum, value FROM entries ORDER BY used").fetchall()
            return [Stored(bytes(digest).hex(), float(written), _value(digest, value, checksum))
                    for digest, written, checksum, value in rows]

        return self._perform(read, create=False, repair=False) or []

    def remove(self, entries: Iterable[Stored]) -> list[str]:
        """Delete entries unless they were replaced since they were read; return the digests of the deleted ones."""
        def delete(connection: Connection) -> list[str]:
            gone = []
            with _transaction(connection):
                for each in entries:
                    found = connection.execute("DELETE FROM entries WHERE digest = ? AND written = ?",
                                               (bytes.fromhex(each.digest), each.written))
                    gone += [each.digest] * found.rowcount
                connection.execute(COUNT)
            connection.execute("VACUUM")
            return gone

        gone = self._perform(delete, create=False, repair=False) or []
        self._forget()
        return gone

    def _perform(
        self, work: Callable[[Connection], Result], *, create: bool, repair: bool = True,
    ) -> Result | None:
        """Run one operation; None if there is no file. A damaged file is replaced and the operation repeated."""
        if self._lock._is_owned():
            raise TimeoutError(errno.EAGAIN, "in use by a call that this one interrupts")
        if clock() < self._pause_until:
            raise TimeoutError(errno.EAGAIN, "locked by another process")
        sqlite3 = _library()
        try:
            for _ in range(WAITS):
                try:
                    with self._lock:
                        return self._once(work, create)
                except sqlite3.OperationalError as error:
                    if _code(error) not in (BUSY, LOCKED):
                        raise
                    failure = error
            raise failure
        except sqlite3.Error as error:
            code = _code(error)
            if code in (BUSY, LOCKED):
                self._pause_until = clock() + PAUSE_SECONDS
                raise TimeoutError(errno.EAGAIN, "locked by another process") from error
            if code not in (CORRUPT, NOT_A_DATABASE) and isinstance(error, sqlite3.OperationalError):
                raise OSError(ERRNOS.get(code, errno.EIO), str(error)) from error
            if not repair:
                raise ValueError(str(error)) from error
            log.warning("%s is damaged (%s): it is replaced, and decided anew", self.path, error)
        with self._lock:
            self._delete_file()
        return self._perform(work, create=create, repair=False)

    def _once(self, work: Callable[[Connection], Result], create: bool) -> Result | None:
        try:
            connection = self._connected(create)
            return None if connection is None else work(connection)
        except BaseException as error:
            if not isinstance(error, _library().Error) or _code(error) not in (BUSY, LOCKED):
                self._disconnect()  # and with it whatever was begun
            raise

    def _connected(self, create: bool) -> Connection | None:
        """Return the connection to the file, which may have been deleted or replaced since."""
        identity = _identity(self._file)
        if self._connection is not None and identity == self._identity is not None:
            return self._connection
        self._disconnect()
        if identity is None:  # a new file may get the inode of the old one
            self._forget()
        self._identity = identity
        if identity is None:
            if not create:
                return None
            self.path.parent.mkdir(parents=True, exist_ok=True)
        connection = _library().connect(
            f"{self.path.as_uri()}?mode={'rwc' if create else 'rw'}", uri=True, timeout=WAIT_SECONDS,
            isolation_level=None, check_same_thread=False)
        try:
            _prepare(connection, create=create, ours=identity is None or os.stat(self._file).st_uid == os.geteuid())
        except BaseException:
            connection.close()
            raise
        self._connection, self._identity, self._counted = connection, _identity(self._file), False
        return connection

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _write(self, connection: Connection, digest: bytes, value: bytes) -> None:
        now, checksum = time.time(), zlib.crc32(value, zlib.crc32(digest))
        with _transaction(connection):
            if not self._counted:
                connection.execute(COUNT)
                self._counted = True
            known = connection.execute("DELETE FROM entries WHERE digest = ?", (digest,)).rowcount
            connection.execute("UPDATE totals SET entries = entries + 1 - ?", (known,))
            pages = self._evict(connection, len(value), now)
            connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", (digest, now, now, checksum, value))
        if pages > self._size_bytes // PAGE_BYTES:  # stored under larger limits
            connection.execute("VACUUM")

    def _evict(self, connection: Connection, more_bytes: int, now: float) -> int:
        """Delete the least recently used entries to make room for one that is counted already; return all pages."""
        most = int(FILLED * self._size_bytes) // PAGE_BYTES - more_bytes // PAGE_BYTES - 1
        while True:
            entries, pages, free = (_number(connection, query) for query in NUMBERS)
            over = entries - self._entries
            if over <= 0 and pages - free <= most:
                return pages
            gone = 0
            for which in ("> ?", "<= ?"):  # first those of a clock that was ahead
                gone = gone or connection.execute(
                    f"DELETE FROM entries WHERE rowid IN (SELECT rowid FROM entries WHERE used {which} "
                    "ORDER BY used LIMIT ?)", (now, max(over, 1 + entries // EVICTED_SHARE))).rowcount
            if not gone:
                return pages
            connection.execute("UPDATE totals SET entries = entries - ?", (gone,))

    def _delete_file(self) -> None:
        """Delete a damaged file and what belongs to it, unless another process has replaced it by now."""
        if _identity(self._file) != self._identity:
            return
        for name in (f"{self._file}-journal", f"{self._file}-wal", f"{self._file}-shm", self._file):
            with suppress(FileNotFoundError):
                os.unlink(name)

    def _remember(self, key: str, value: bytes, now: float) -> None:
        """Keep a value in memory; the least recently used ones go."""
        identity = _identity(self._file)
        if identity != self._memory_of:
            self._forget()
            self._memory_of = identity
        memory = self._memory
        memory.pop(key, None)
        if len(value) > MEMORY_VALUE:
            return
        memory[key] = value, now
        size = sum(len(each) for each, _ in list(memory.values()))
        for oldest in list(memory):
            if len(memory) <= MEMORY_ENTRIES and size <= MEMORY_BYTES:
                break
            size -= len(memory.pop(oldest, (b"", now))[0])  # (b"", now): another thread removed it

    def _forget(self) -> None:
        """Clear the memory."""
        self._memory, self._memory_of = {}, None

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle where the file is, and its limits."""
        return _again, (self.path.parent, self._entries, self._size_bytes, self.path.stem)

    def __del__(self) -> None:
        with suppress(Exception):
            self._disconnect()


def _code(error: Any) -> int:
    """Return the primary code of an error of SQLite."""
    return getattr(error, "sqlite_errorcode", CORRUPT) & 0xFF


def digest_of(key: str) -> bytes:
    """Hash a key: 32 bytes."""
    return hashlib.sha256(key.encode()).digest()


def _again(folder: Path, entries: int, size_bytes: int, name: str) -> DiskCache:
    return DiskCache(folder, entries=entries, size_bytes=size_bytes, name=name)


def _prepare(connection: Connection, *, create: bool, ours: bool) -> None:
    """Make a new connection safe, and the tables of a new file; check all pages of a file that is another user's.

    Raises:
        sqlite3.DatabaseError: the file has other tables, or is damaged.
    """
    sqlite3 = _library()
    if hasattr(connection, "setconfig"):
        connection.setconfig(sqlite3.SQLITE_DBCONFIG_DEFENSIVE, True)
    found = _layout(connection)
    if not found and create:
        connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
    for setting in SETTINGS:
        connection.execute(f"PRAGMA {setting}").fetchall()
    if not found and create:
        with _transaction(connection):
            if not _layout(connection):  # no other process was faster
                for statement in SCHEMA:
                    connection.execute(statement)
                connection.execute("INSERT INTO totals VALUES (0)")
        found = _layout(connection)
    if found != LAYOUT:
        raise sqlite3.DatabaseError("its tables are other ones" if found else "it has no tables")
    if not ours and connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
        raise sqlite3.DatabaseError("its pages are damaged")


def _layout(connection: Connection) -> dict[str, str | None]:
    return dict(connection.execute("SELECT name, sql FROM sqlite_master").fetchall())


@contextmanager
def _transaction(connection: Connection) -> Iterator[None]:
    """Commit what the block does, all or nothing."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _read(connection: Connection, digest: bytes, now: float) -> tuple[Any, Any] | None:
    """Read value and checksum of an entry, and note its use, unless that would have to wait."""
    row = connection.execute("SELECT value, checksum, used FROM entries WHERE digest = ?", (digest,)).fetchone()
    if row is None:
        return None
    if not isinstance(row[2], float) or abs(now - row[2]) > TOUCH_SECONDS:
        connection.execute("PRAGMA busy_timeout=0")
        with suppress(_library().Error):
            connection.execute("UPDATE entries SET used = ? WHERE digest = ?", (now, digest))
        connection.execute(f"PRAGMA busy_timeout={int(1e3 * WAIT_SECONDS)}")
    return row[:2]


def _value(digest: Any, value: Any, checksum: Any) -> bytes | None:
    """Return a value if it matches its checksum."""
    if not isinstance(value, bytes) or not isinstance(digest, bytes) or checksum != zlib.crc32(
            value, zlib.crc32(digest)):
        return None
    return value


def _checked(digest: bytes, value: Any, checksum: Any) -> bytes:
    found = _value(digest, value, checksum)
    if found is None:
        raise ValueError("its checksum differs")
    return found


def _number(connection: Connection, query: str) -> int:
    row = connection.execute(query).fetchone()
    if row is None or not isinstance(row[0], int):
        raise _library().DatabaseError(f"{query} gives {row}")
    return row[0]


def _identity(path: str) -> Identity | None:
    """Identify a file; None if there is none.

    Raises:
        OSError: it is no regular file, or its folder cannot be searched.
    """
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")
    return status.st_dev, status.st_ino


@cache
def _library() -> Any:
    """Import sqlite3, which takes milliseconds and is not part of every build of Python.

    Raises:
        OSError: it is missing.
    """
    try:
        import sqlite3
    except ImportError as error:
        raise OSError(errno.ENOSYS, f"this Python has no sqlite3 ({error})") from error
    return sqlite3


_CACHES: WeakSet[DiskCache] = WeakSet()


def _before_fork() -> None:
    """Close all files: a child must not inherit a connection, as closing it would undo what its parent writes."""
    _forking.held = []
    for each in list(_CACHES):
        if not each._lock._is_owned() and each._lock.acquire(timeout=FORK_SECONDS):
            _forking.held.append(each)
            each._disconnect()


def _after_fork_in_parent() -> None:
    for each in _forking.held:
        each._lock.release()


def _after_fork_in_child() -> None:
    _after_fork_in_parent()
    held = {id(each) for each in _forking.held}
    for each in list(_CACHES):
        if id(each) not in held:  # in the middle of an operation: SQLite in this process thinks that it has its lock
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(each._connection))  # so that nothing ever closes it
            each._lock, each._connection, each._pause_until = RLock(), None, math.inf


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent,
                        after_in_child=_after_fork_in_child)
