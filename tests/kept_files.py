"""Entries of a decision cache, for tests that read, damage or age them."""

import json
import sqlite3
import zlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparloom.tuning import disk_cache

__all__ = ["Kept", "changed", "kept_files", "rewrite", "text_of"]


@dataclass(frozen=True, order=True)
class Kept:
    """One entry of a file; its value may be damaged, which the memory of this process then forgets."""

    file: Path
    digest: str

    def exists(self) -> bool:
        return bool(self._run("SELECT 1 FROM entries WHERE digest = ?"))

    def read_bytes(self) -> bytes:
        return self._run("SELECT value FROM entries WHERE digest = ?")[0][0]

    def write_bytes(self, value: bytes) -> None:
        """Replace the value but not its checksum."""
        self._run("UPDATE entries SET value = ?2 WHERE digest = ?1", value)

    def unlink(self) -> None:
        self._run("DELETE FROM entries WHERE digest = ?")

    def replace(self, value: bytes) -> None:
        """Replace the value, with a valid checksum."""
        checksum = zlib.crc32(value, zlib.crc32(bytes.fromhex(self.digest)))
        self._run("UPDATE entries SET value = ?2, checksum = ?3 WHERE digest = ?1", value, checksum)

    def age(self, seconds: float) -> None:
        """Make it as if it had been written and used so many seconds before."""
        self._run("UPDATE entries SET written = written - ?2, used = used - ?2 WHERE digest = ?1", seconds)

    def _run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.file)) as connection, connection:
            found = connection.execute(statement, (bytes.fromhex(self.digest), *values)).fetchall()
        for each in disk_cache._CACHES:
            each._forget()
        return found


def kept_files(folder: Path, kind: str = "") -> list[Kept]:
    """List entries of one kind or of all kinds."""
    kept = []
    for file in sorted(folder.rglob("*.sqlite")):
        with closing(sqlite3.connect(file)) as connection:
            rows = connection.execute("SELECT digest, value FROM entries").fetchall()
        kept += [Kept(file, digest.hex()) for digest, value in rows
                 if not kind or f'"kind": "{kind}"'.encode() in value]
    return sorted(kept)


def text_of(kept: Kept) -> str:
    """Read the content of an entry."""
    return kept.read_bytes().decode()


def rewrite(kept: Kept, text: str | bytes) -> None:
    """Replace the content of an entry, with a valid checksum."""
    kept.replace(text.encode() if isinstance(text, str) else text)


def changed(change: Callable[[dict[str, Any]], Any]) -> Callable[[Kept], None]:
    """Return a function that changes the JSON of an entry."""
    def apply(kept: Kept) -> None:
        value = json.loads(text_of(kept))
        change(value)
        rewrite(kept, json.dumps(value))

    return apply
