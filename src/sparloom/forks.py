"""Forked children: the threads and the locks of the parent, for which a child would wait for ever.

A fork copies only the thread that forks. The child would hand work to OpenMP threads that it does not have, and wait
for locks whose holders it does not have. So the threads end before a fork, and parent and child start new ones when
they next need some; in the child, locks are free.
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

OPENMP = "libgomp.so.1"  # that of GCC; LLVM's looks after forks itself
PAUSE = 2  # omp_pause_hard: end the threads of the calling thread
FORKED = 0x40  # PF_FORKNOEXEC of Linux: a process that was forked and has started no program since

AnyLock = TypeVar("AnyLock")

log = logging.getLogger(__name__)

_locks: weakref.WeakSet = weakref.WeakSet()
_alone: list[bool] = []  # not empty: the child that is being forked cannot have threads


def forkable(lock: AnyLock) -> AnyLock:
    """Let a Lock or RLock be free in forked children, unless the thread that forks holds the RLock; gives it back."""
    _locks.add(lock)
    return lock


def protect_forks() -> None:
    """Let forked children of this process run what is parallel; called once, when the package is imported.

    Children have as many threads as their parents. Where the threads of the parent could not be ended, what is parallel
    runs on one thread in the child: with the OpenMP of GCC 8 or older, or if the package is first imported in a child
    whose parent has used OpenMP.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_end_threads, after_in_child=_begin_child)
        if _is_forked() and _openmp() is not None:
            _run_alone()


def _end_threads() -> None:
    """End the OpenMP threads of this thread: they are all that a child would wait for."""
    _alone.clear()
    library = _openmp()
    if library is not None and (not hasattr(library, "omp_pause_resource_all")
                                or library.omp_pause_resource_all(PAUSE) != 0):
        _alone.append(True)


def _begin_child() -> None:
    for lock in (*_locks, *_property_locks()):
        if not (hasattr(lock, "_is_owned") and lock._is_owned()):
            lock._at_fork_reinit()
    if _alone:
        _run_alone()


def _property_locks() -> Iterator[Any]:
    """Find the locks of cached properties of this package: up to Python 3.11 all objects of a class share one."""
    if sys.version_info >= (3, 12):
        return
    modules = [module for name, module in sys.modules.items() if name.startswith("sparloom.")]
    classes = {found for module in modules for found in vars(module).values() if isinstance(found, type)}
    for found in classes:
        yield from (each.lock for each in vars(found).values() if isinstance(each, cached_property))


def _run_alone() -> None:
    """Give parallel loops that this thread starts one thread, however many they ask for."""
    log.debug("process %d is a fork of one whose threads are unknown: parallel loops run on one thread", os.getpid())
    _openmp().omp_set_max_active_levels(0)


def _openmp() -> ctypes.CDLL | None:
    """Give the OpenMP library of this process if it is loaded."""
    with suppress(OSError):
        return ctypes.CDLL(OPENMP, mode=os.RTLD_NOLOAD)
    return None


def _is_forked() -> bool:
    if not sys.platform.startswith("linux"):
        return False
    with suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return bool(int(fields[6]) & FORKED)
    return False
