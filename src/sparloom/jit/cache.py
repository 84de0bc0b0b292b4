"""Compiled libraries on disk: named by their content, found by the key of what they were made from."""

import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from sparloom.files import atomic_path, sha256, write_text

__all__ = ["Cache", "cache_folder", "digest"]


def cache_folder() -> Path:
    """Name the folder of everything that can be made again: SPARLOOM_CACHE, else ~/.cache/sparloom."""
    given = os.environ.get("SPARLOOM_CACHE")
    return Path(given) if given else Path.home() / ".cache" / "sparloom"


def digest(*parts: str) -> str:
    """Hash texts; ("ab", "c") and ("a", "bc") differ."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode()
        whole.update(len(data).to_bytes(8, "little"))
        whole.update(data)
    return whole.hexdigest()


class Cache:
    """Shared libraries under `folder`, safe among processes.

    `objects/<sha256 of content>.so` are the libraries: a damaged one is recognised by its name. `keys/<key>` holds the
    name of the library that has the kernel of that key, so a kernel is found whatever batch it was compiled in.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, key: str) -> Path | None:
        """Return the path of the library for `key`; None when absent or damaged."""
        link = self._link(key)
        try:
            name = link.read_text(encoding="utf-8").strip()
        except (FileNotFoundError, UnicodeDecodeError):
            return None
        library = self.folder / "objects" / f"{name}.so"
        if not re.fullmatch(r"[0-9a-f]{64}", name) or not library.is_file() or sha256(library) != name:
            return None
        return library

    def put(self, built: Path, keys: Iterable[str]) -> Path:
        """Move the library `built` in and let `keys` point to it."""
        name = sha256(built)
        library = self.folder / "objects" / f"{name}.so"
        with atomic_path(library) as partial:
            partial.write_bytes(built.read_bytes())
        for key in keys:
            write_text(self._link(key), name)
        return library

    def lock(self, key: str) -> Path:
        """Return the path of the lock file under which `key` is built."""
        return self.folder / "locks" / key[:2]

    def _link(self, key: str) -> Path:
        return self.folder / "keys" / key[:2] / key
