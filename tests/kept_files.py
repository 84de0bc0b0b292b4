"""Entries of a decision cache, for tests that read, damage or age them."""

import json
import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Kept", "changed", "kept_files", "rewrite", "text_of"]


@dataclass(frozen=True, order=True)
class Kept:
    """One entry of a file."""

    file: Path
    digest: str

    def exists(self) -> bool:
        return bool(self.run("SELECT 1 FROM decisions WHERE digest = ?"))

    def age(self, seconds: float) -> None:
        """Make it as if it had been written and used so many seconds before."""
        self.run("UPDATE decisions SET written = written - ?2, used = used - ?2 WHERE digest = ?1", seconds)

    def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.file)) as connection, connection:
            found = connection.execute(statement, (bytes.fromhex(self.digest), *values)).fetchall()
        os.utime(self.file, ns=(0, time.time_ns()))  # exact, so that it differs from that of a write just before
        return found


def kept_files(folder: Path, kind: str = "") -> list[Kept]:
    """List entries of one kind or of all kinds."""
    kept = []
    for file in sorted(folder.rglob("*.sqlite")):
        with closing(sqlite3.connect(file)) as connection:
            rows = connection.execute("SELECT digest, entry FROM decisions").fetchall()
            kept += [Kept(file, digest.hex()) for digest, entry in rows
                     if not kind or f'"kind": "{kind}"'.encode() in entry]
    return sorted(kept)


def text_of(kept: Kept) -> str:
    """Read the JSON of an entry."""
    return kept.run("SELECT entry FROM decisions WHERE digest = ?")[0][0].decode()


def rewrite(kept: Kept, text: str | bytes) -> None:
    """Replace the JSON of an entry."""
    kept.run("UPDATE decisions SET entry = ?2 WHERE digest = ?1", text.encode() if isinstance(text, str) else text)


def changed(change: Callable[[dict[str, Any]], Any]) -> Callable[[Kept], None]:
    """Return a function that changes the JSON of an entry."""
    def apply(kept: Kept) -> None:
        value = json.loads(text_of(kept))
        change(value)
        rewrite(kept, json.dumps(value))

    return apply
