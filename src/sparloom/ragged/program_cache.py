"""Cache of scheduled programs on disk: scheduling a layer takes a fifth of a second, reading it a millisecond.

An entry is found by the function that makes the program, its arguments, and the source code of the compiler. It is a
pickle of which only dataclasses of the loop IR and of ragged programs are read; anything else, such as a damaged entry,
is scheduled again.
"""

from __future__ import annotations

import logging
import pickle
import sys
from dataclasses import is_dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from sparloom import ir
from sparloom.files import sha256
from sparloom.jit.cache import Cache, cache_folder, digest
from sparloom.ragged.nests import Program

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
    store, function = Cache(cache_folder() / "jit"), make.func
    named = (function.__module__, function.__qualname__, make.args, sorted(make.keywords.items()))
    key = digest(repr(named), _source_digest())
    program = _read(store.path(key, "programs"))
    if program is None:
        program = make()
        store.store(pickle.dumps(program, PROTOCOL), [("programs", key)])
    return program


@cache
def _source_digest() -> str:
    """Hash the code that makes programs, and the version of Python."""
    return digest(sys.version, *(sha256(path) for package in PACKAGES for path in sorted(package.rglob("*.py"))))


def _read(path: Path | None) -> Program | None:
    """Read an entry; None if there is none, or if it is none of a program."""
    if path is None:
        return None
    try:
        with path.open("rb") as file:
            program = _ProgramUnpickler(file).load()
    except Exception as error:  # pickle raises errors of any class
        log.debug("%s is scheduled again: %s", path, error)
        return None
    return program if isinstance(program, Program) else None


class _ProgramUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name) if module.startswith(MODULES) else None
        if isinstance(found, type) and is_dataclass(found):
            return found
        raise pickle.UnpicklingError(f"{module}.{name} is no part of a program")
