"""Cache of scheduled programs on disk: scheduling a layer takes a fifth of a second, reading it a millisecond.

An entry is found by the function that makes the program, its arguments, and the source code of the compiler. It is a
pickle of which only dataclasses of the loop IR and of ragged programs are read, after its checksum; anything else, such
as a damaged entry, is scheduled again.
"""

from __future__ import annotations

import hashlib
import io
import logging
import pickle
import sys
from contextlib import suppress
from dataclasses import is_dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from sparloom import ir
from sparloom.files import atomic_path
from sparloom.jit import cache_folder, is_foreign
from sparloom.ragged.nests import Program

DIGEST_BYTES = 32
PROTOCOL = 5  # of pickle
PACKAGES = tuple(Path(package).parent for package in (ir.__file__, __file__))  # whose code makes programs
MODULES = ("sparloom.ir.", "sparloom.ragged.")

log = logging.getLogger(__name__)


def cached_program(make: partial[Program]) -> Program:
    """Return the program that `make` makes, from the cache if it was made before.

    Args:
        make: a function of a module and its arguments, whose `repr` tells all about them; its result depends on nothing
            else.
    """
    key = _key(make)
    found = _read(key)
    if found is None:
        found = make()
        _write(key, found)
    return found


def _key(make: partial[Program]) -> str:
    function = make.func
    named = (function.__module__, function.__qualname__, make.args, sorted(make.keywords.items()))
    return hashlib.sha256(repr((*named, _source_digest())).encode()).hexdigest()


@cache
def _source_digest() -> str:
    """Hash the code that makes programs, and the version of Python."""
    digest = hashlib.sha256(sys.version.encode())
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _path(key: str) -> Path:
    return cache_folder() / "jit" / "programs" / key[:2] / key


def _read(key: str) -> Program | None:
    """Read an entry; None if it is absent, damaged, or may be another user's."""
    path = _path(key)
    try:
        content = path.read_bytes()
        if is_foreign(path) or content[:DIGEST_BYTES] != _checksum(key, content[DIGEST_BYTES:]):
            return None
        found = _ProgramUnpickler(io.BytesIO(content[DIGEST_BYTES:])).load()
    except FileNotFoundError:
        return None
    except Exception as error:  # pickle raises errors of any class
        log.debug("%s is scheduled again: %s", path, error)
        return None
    return found if isinstance(found, Program) else None


def _write(key: str, program: Program) -> None:
    content = pickle.dumps(program, PROTOCOL)
    with suppress(OSError), atomic_path(_path(key), wait=False) as path:
        path.write_bytes(_checksum(key, content) + content)


def _checksum(key: str, content: bytes) -> bytes:
    return hashlib.sha256(key.encode() + content).digest()


class _ProgramUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name) if module.startswith(MODULES) else None
        if isinstance(found, type) and is_dataclass(found):
            return found
        raise pickle.UnpicklingError(f"{module}.{name} is no part of a program")
