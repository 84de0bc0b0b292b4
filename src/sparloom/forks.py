"""Make forked children safe: without care, they wait forever for OpenMP threads and locks of the parent.

A fork copies only the forking thread, so a child would give work to OpenMP threads that do not exist, and wait for
locks whose owners do not exist. Therefore the threads end before a fork, parent and child start new ones on demand, and
locks are released in the child.
"""

import ctypes
import logging
import os
import sys
import weakref
from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["forkable", "protect_forks"]

OPENMP = "libgomp.so.1"  # OpenMP of GCC; that of LLVM handles forks itself
PAUSE_HARD = 2  # omp_pause_hard: end the threads of the calling thread
FORKED_FLAG = 0x40  # PF_FORKNOEXEC of Linux: a forked process that has not called exec since

AnyLock = TypeVar("AnyLock")

log = logging.getLogger(__name__)

_locks: weakref.WeakSet = weakref.WeakSet()
_single_threaded: list[bool] = []  # not empty: the child that is being forked cannot start threads


def forkable(lock: AnyLock) -> AnyLock:
    """Register a Lock or RLock to be released in forked children, unless the forking thread holds it; return it."""
    _locks.add(lock)
    return lock


def protect_forks() -> None:
    """Let forked children of this process run parallel loops; called once, when the package is imported.

    Children use as many threads as their parents. If the threads of the parent could not be ended, parallel loops run
    on one thread in the child: with the OpenMP of GCC 8 or older, or if the package is first imported in a child whose
    parent has used OpenMP.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_end_threads, after_in_child=_begin_child)
        if _is_forked() and _openmp() is not None:
            _use_one_thread()


def _end_threads() -> None:
    """End the OpenMP threads of this thread, the only ones for which a child would wait."""
    _single_threaded.clear()
    library = _openmp()
    if library is not None and (not hasattr(library, "omp_pause_resource_all")
                                or library.omp_pause_resource_all(PAUSE_HARD) != 0):
        _single_threaded.append(True)


def _begin_child() -> None:
    for lock in (*_locks, *_property_locks()):
        if not (hasattr(lock, "_is_owned") and lock._is_owned()):
            lock._at_fork_reinit()
    if _single_threaded:
        _use_one_thread()


def _property_locks() -> Iterator[Any]:
    """Yield the locks of cached properties of this package, which up to Python 3.11 all objects of a class share."""
    if sys.version_info >= (3, 12):
        return
    modules = [module for name, module in sys.modules.items() if name.startswith("sparloom.")]
    classes = {found for module in modules for found in vars(module).values() if isinstance(found, type)}
    for found in classes:
        yield from (each.lock for each in vars(found).values() if isinstance(each, cached_property))


def _use_one_thread() -> None:
    """Run parallel loops of this thread on one thread, regardless of how many they request."""
    log.debug("process %d is a fork of one whose threads are unknown: parallel loops run on one thread", os.getpid())
    _openmp().omp_set_max_active_levels(0)


def _openmp() -> ctypes.CDLL | None:
    """Return the OpenMP library of this process if it is loaded."""
    with suppress(OSError):
        return ctypes.CDLL(OPENMP, mode=os.RTLD_NOLOAD)
    return None


def _is_forked() -> bool:
    if not sys.platform.startswith("linux"):
        return False
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return bool(int(fields[6]) & FORKED_FLAG)
    return False
