"""The decision cache: key in, JSON or bytes out, bounded, on disk, shared by any number of processes.

It is opaque: it knows neither what is decided nor how.

    <folder>/decisions.sqlite   JSON objects, see `DiskCache`
    <folder>/orders.sqlite      bytes, such as orders of rows, which are fewer and larger
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TypeVar

from sparloom.errors import SchemaError
from sparloom.jit import cache_folder, warn_unwritable
from sparloom.tuning.disk_cache import DiskCache

__all__ = [
    "VERSION", "DiskCache", "OtherVersion", "PlanCache", "Summary", "entry_key", "parsed_entry",
]

log = logging.getLogger(__name__)

Read = TypeVar("Read")

VERSION = 2  # of the content of an entry
ENTRIES, MEGABYTES = "SPARLOOM_PLANS_ENTRIES", "SPARLOOM_PLANS_MB"
OPEN_FOLDERS = 8  # whose files and memory are kept after the last use of a cache
MAX_BLOBS = 64  # entries of bytes, such as orders of rows: each has 4 bytes for every row of a matrix

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
    and is logged as a warning. A folder that cannot be written to is still read; one warning names the remedy. A put
    that would have to wait for another process is lost, and logged. The cache is bounded by `SPARLOOM_PLANS_ENTRIES`
    (10,240 by default) and `SPARLOOM_PLANS_MB` megabytes (64), half of them for bytes; the least recently used entries
    are evicted. Caches of one folder share the memory of the process, see `DiskCache`.

    Args:
        folder: created by the first put; None: nothing is stored.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = None if folder is None else Path(folder)
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
    ) -> None:
        """Store a JSON object in place of the previous one. A full disk is logged, not raised.

        Args:
            key: all that the value depends on, as JSON values.
        """
        self._write(0, kind, key, {"summary": asdict(summary or Summary()), "value": dict(value)}, b"")

    def put_bytes(self, kind: str, key: Mapping[str, Any], value: bytes, *, summary: Summary | None = None) -> None:
        """Store bytes, as `put` does an object; at most 64 such entries are kept."""
        self._write(1, kind, key, {"summary": asdict(summary or Summary()), "bytes": len(value)}, value)

    def _read(self, store: int, kind: str, key: Mapping[str, Any], parse: Callable[[Any], Read]) -> Read | None:
        if not self.stores:
            return None
        disk, name = self.stores[store], entry_key(kind, key)
        try:
            content = disk.get(name)
        except TimeoutError as error:
            log.info("%s is %s: the decision is made anew", disk.path, error.strerror)
            return None
        except OSError as error:
            _warn_once(self.folder, f"cannot be read: {error.strerror}: its decisions are made anew")
            return None
        except DAMAGE as error:
            log.warning("%s, %s: %s: it is decided anew", disk.path, kind, error)
            return None
        if content is None:
            return None
        try:
            entry = parsed_entry(content)
            if entry_key(kind, entry.get("key")) != name:  # tuples come back as lists
                raise SchemaError("written for something else")
            return parse(entry["value"])
        except DAMAGE as error:
            log.warning("%s, %s: %s: it is decided anew", disk.path, kind, error)
            return None

    def _write(
        self, store: int, kind: str, key: Mapping[str, Any], content: Mapping[str, Any], blob: bytes,
    ) -> None:
        if not self.stores:
            return
        disk, name = self.stores[store], entry_key(kind, key)
        head = json.dumps({"version": VERSION, "kind": kind, "key": dict(key), **content}, allow_nan=False)
        entry = head.encode() + b"\n" + blob
        try:
            disk.put(name, entry)
        except TimeoutError as error:
            log.info("%s is %s: a decision is not stored", disk.path, error.strerror)
        except OSError as error:
            warn_unwritable(self.folder, f"{self.folder} cannot be written to: {error.strerror}: decisions are not "
                                         "kept for later processes; set SPARLOOM_CACHE, or AUTOSAGE_CACHE_DIR, to a "
                                         "folder that can be")
        except ValueError as error:
            log.warning("%s: %s: a decision is not stored", disk.path, error)


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
    return _shared_stores(os.path.abspath(folder), _limit(ENTRIES, 10_240), _limit(MEGABYTES, 64) * 1_000_000 // 2)


@lru_cache(OPEN_FOLDERS)
def _shared_stores(folder: str, entries: int, size_bytes: int) -> tuple[DiskCache, DiskCache]:
    return (DiskCache(Path(folder), entries=entries, size_bytes=size_bytes, name="decisions"),
            DiskCache(Path(folder), entries=MAX_BLOBS, size_bytes=size_bytes, name="orders"))


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
