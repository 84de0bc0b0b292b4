"""The decision cache: key in, JSON out, in one bounded SQLite file that any number of processes share.

    <folder>/decisions.sqlite   table `decisions`

It is opaque: it knows neither what is decided nor how. Each operation is one transaction on a connection of its own,
and forks wait for it, so a child never uses a connection of its parent. SQLite keeps a rollback journal, because a
write-ahead log needs memory that all processes share, which network file systems do not have. Nothing is flushed: a
power failure may damage the file. A damaged file, or one with other tables, is replaced by an empty one.

A damaged entry is not taken for another decision: it contains its key, whose hash must be the one by which it was
found; it must be JSON; and the caller's `parse` must accept its value. Only data is read from a file: one that has
triggers, views or tables of others is not used.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any, TypeVar

from sparloom.errors import IllegalSchedule, SchemaError
from sparloom.jit import cache_folder, warn_unwritable

if TYPE_CHECKING:
    from sqlite3 import Connection

log = logging.getLogger(__name__)

Read = TypeVar("Read")
Json = Mapping[str, Any]
Row = tuple[bytes, float, bytes, int]
"""Digest of the key, time of writing in seconds since the epoch, JSON text, and size in bytes of one entry."""

VERSION = 2  # of the content of an entry
ENTRIES, MEGABYTES = "SPARLOOM_PLANS_ENTRIES", "SPARLOOM_PLANS_MB"
DAY_SECONDS = 86400.0  # between two writes of the time of use of one entry
LOCK_SECONDS, BUSY = 0.5, 5  # of waiting for another process, and the code of SQLite's error after that
MEMORY_ENTRIES = 1024  # decisions that a process remembers until their file changes

DAMAGE = (AttributeError, IllegalSchedule, KeyError, RecursionError, SchemaError, TypeError, ValueError)
"""Exceptions that reading an arbitrary entry may raise."""

SIZES = ("SELECT count(*), (SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, "
         "pragma_freelist_count, pragma_page_size) FROM decisions")  # entries and bytes
SCHEMA = ("CREATE TABLE decisions (digest BLOB PRIMARY KEY NOT NULL, written REAL NOT NULL, used REAL NOT NULL, entry "
          "BLOB NOT NULL)")
CREATE = f"PRAGMA auto_vacuum=FULL; BEGIN IMMEDIATE; {SCHEMA}; COMMIT".replace("TABLE", "TABLE IF NOT EXISTS")
SETTINGS = ("trusted_schema=OFF", "cell_size_check=ON", "journal_mode=DELETE", "synchronous=OFF")

_LOCK = RLock()  # held by every operation
os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


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

    An entry is whole or absent, and the last writer wins. A damaged entry counts as absent and is logged as a warning.
    A folder that cannot be written to is still read; one warning names the remedy. A put that would have to wait for
    another process is lost, and logged. The cache is bounded by `SPARLOOM_PLANS_ENTRIES` (10,240 by default) and
    `SPARLOOM_PLANS_MB` megabytes (64); the least recently used entries are evicted.

    Args:
        folder: created by the first put; None: nothing is stored.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = None if folder is None else Path(folder)
        self.path = None if folder is None else Path(os.path.abspath(folder)) / "decisions.sqlite"
        self._max_entries, self._max_bytes = _limit(ENTRIES, 10_240), 1_000_000 * _limit(MEGABYTES, 64)

    @classmethod
    def of_this_user(cls) -> PlanCache:
        """Open the folder plans/ of SPARLOOM_CACHE, or else of ~/.cache/sparloom."""
        return cls(cache_folder() / "plans")

    def get(self, kind: str, key: Json, parse: Callable[[Any], Read] = dict) -> Read | None:
        """Look up a JSON object; None if there is none, or if it is damaged.

        Args:
            key: JSON values.
            parse: reads the object; raises ValueError, KeyError, TypeError or SchemaError if it is damaged.
        """
        digest, state = digest_of(kind, key), _state(self.path)
        row = state and _remembered(self.path, state, digest)
        if not row:
            return None
        try:
            entry = json.loads(row[0])
            if digest_of(entry["kind"], entry["key"]) != digest:
                raise SchemaError("written for something else")
            return parse(entry["value"])
        except DAMAGE as error:
            log.warning("%s, %s: %s: it is decided anew", self.path, kind, error)
            return None

    def put(self, kind: str, key: Json, value: Json, *, summary: Summary | None = None) -> None:
        """Store a JSON object in place of the previous one. A full disk is logged, not raised.

        Args:
            key: all that the value depends on, as JSON values.
        """
        entry = {"version": VERSION, "kind": kind, "key": dict(key), "summary": asdict(summary or Summary()),
                 "value": dict(value)}
        text, now = json.dumps(entry, allow_nan=False).encode(), time.time()

        def write(connection: Connection) -> bool:
            connection.execute("INSERT OR REPLACE INTO decisions VALUES (?, ?, ?, ?)",
                               (digest_of(kind, key), now, now, text))
            _evict(connection, self._max_entries, self._max_bytes, now)
            return True

        if len(text) < self._max_bytes // 2 and _run(self.path, write, create=True):
            _remembered.cache_clear()

    def rows(self) -> list[Row]:
        """Read all entries."""
        query = "SELECT digest, CAST(written AS REAL), CAST(entry AS BLOB), length(entry) FROM decisions"
        return _run(self.path, lambda connection: connection.execute(query).fetchall()) or []

    def remove(self, entries: Iterable[tuple[bytes, float]]) -> set[bytes]:
        """Delete entries, given by digest and time of writing, unless they were replaced since; return their digests.
        """
        def delete(connection: Connection) -> set[bytes]:
            return {each[0] for each in entries if connection.execute(
                "DELETE FROM decisions WHERE digest = ? AND written = ?", each).rowcount}

        removed = _run(self.path, delete) or set()
        _remembered.cache_clear()
        return removed


def digest_of(kind: str, key: Json) -> bytes:
    """Hash a key: 32 bytes, by which its entry is found."""
    return hashlib.sha256(json.dumps([VERSION, kind, key], sort_keys=True).encode()).digest()


def _run(path: Path | None, work: Callable[[Connection], Read], *, create: bool = False) -> Read | None:
    """Do one transaction; None if there is no file, or if it cannot be used, which is logged."""
    if path is None or not (create or os.path.exists(path)) or _LOCK._is_owned():  # by a call that this one interrupts
        return None
    try:
        import sqlite3  # takes milliseconds, and some builds of Python lack it
        try:
            return _transaction(path, work, create)
        except sqlite3.OperationalError:  # full, locked, read-only
            raise
        except sqlite3.DatabaseError as error:
            log.warning("%s is damaged (%s): it is replaced, and decided anew", path, error)
            for name in (f"{path.name}-journal", path.name):
                path.with_name(name).unlink(missing_ok=True)
            return _transaction(path, work, create) if create else None
    except (ImportError, OSError) as error:
        return _report(path, error)
    except sqlite3.Error as error:
        return _report(path, error)


def _transaction(path: Path, work: Callable[[Connection], Read], create: bool) -> Read | None:
    """Open a file, check it, and work on it; None if it is empty.

    Raises:
        OSError, sqlite3.Error: it is damaged, locked by another process, full, or cannot be read or written.
    """
    import sqlite3
    if create:
        path.parent.mkdir(parents=True, exist_ok=True)
    with _LOCK, closing(sqlite3.connect(
            f"{path.as_uri()}?mode={'rwc' if create else 'rw'}", uri=True, timeout=LOCK_SECONDS,
            isolation_level="IMMEDIATE")) as connection, connection:
        for setting in SETTINGS:
            connection.execute(f"PRAGMA {setting}")
        tables = {sql for sql, in connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")}
        if create and not tables:
            connection.executescript(CREATE)
            tables = {SCHEMA}
        if tables not in (set(), {SCHEMA}):
            raise sqlite3.DatabaseError("its tables are other ones")
        if os.stat(path).st_uid != os.geteuid() and connection.execute("PRAGMA quick_check(1)").fetchone() != ("ok",):
            raise sqlite3.DatabaseError("its pages are damaged")
        return work(connection) if tables else None


@lru_cache(MEMORY_ENTRIES)
def _remembered(path: Path, state: tuple[int, ...], digest: bytes) -> tuple[bytes] | None:
    """Read the text of an entry, and note its use once a day.

    Args:
        state: of the file; it distinguishes calls that are remembered.
    """
    def select(connection: Connection) -> tuple[bytes] | None:
        now = time.time()
        row = connection.execute("SELECT CAST(entry AS BLOB), abs(used - ?) FROM decisions WHERE digest = ?",
                                 (now, digest)).fetchone()
        if row and row[1] > DAY_SECONDS:
            with suppress(connection.OperationalError):  # it can only be read
                connection.execute("UPDATE decisions SET used = ? WHERE digest = ?", (now, digest))
        return row and row[:1]

    return _run(path, select)


def _evict(connection: Connection, max_entries: int, max_bytes: int, now: float) -> None:
    """Delete the entries used least recently until the limits hold, first those of a clock that was ahead."""
    while True:
        entries, size = connection.execute(SIZES).fetchone()
        if entries <= 1 or (entries <= max_entries and size <= max_bytes):
            return
        connection.execute("DELETE FROM decisions WHERE digest IN (SELECT digest FROM decisions ORDER BY used <= ?, "
                           "used LIMIT ?)", (now, max(entries - max_entries, 1 + entries // 100)))


def _state(path: Path | None) -> tuple[int, ...] | None:
    """Describe the current content of a file; None if there is none."""
    with suppress(OSError, TypeError):
        status = os.stat(path)
        return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size
    return None


def _report(path: Path, error: Exception) -> None:
    if getattr(error, "sqlite_errorcode", 0) == BUSY:
        return log.info("%s is locked by another process: it is not used", path)
    warn_unwritable(path.parent, f"{path} cannot be used ({error}): decisions are not kept for later processes; "
                                 "set SPARLOOM_CACHE, or AUTOSAGE_CACHE_DIR, to a folder that can be written to")


def _limit(variable: str, default: int) -> int:
    text = os.environ.get(variable) or str(default)
    if not (text.isascii() and text.isdigit() and len(text) <= 12 and int(text) >= 1):
        raise ValueError(f"{variable}={text!r}: give a whole number, at least 1, or unset it")
    return int(text)
