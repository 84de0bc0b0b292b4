"""Files of a decision cache, for tests that read or damage them."""

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparloom.tuning.cache import HEAD, HEAD_BYTES, is_entry

__all__ = ["changed", "kept_files", "rewrite", "text_of"]


def kept_files(folder: Path, kind: str = "") -> list[Path]:
    """List entries of one kind or of all kinds, optionally with unfinished files."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and is_entry(path.name))
    return [path for path in paths if not kind or f'"kind": "{kind}"'.encode() in path.read_bytes()]


def text_of(path: Path) -> str:
    """Read the content of an entry."""
    return path.read_bytes()[HEAD_BYTES:].decode()


def rewrite(path: Path, text: str | bytes) -> None:
    """Replace the content of an entry, with a valid checksum."""
    value = text.encode() if isinstance(text, str) else text
    path.write_bytes(b"%s%08x\n%s" % (HEAD, zlib.crc32(value), value))


def changed(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """Return a function that changes the JSON of an entry."""
    def apply(path: Path) -> None:
        value = json.loads(text_of(path))
        change(value)
        rewrite(path, json.dumps(value))

    return apply
