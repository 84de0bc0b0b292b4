"""How many threads a call may have."""

import operator
import os
from functools import cache
from typing import Any

__all__ = ["checked_threads"]

PER_PROCESSOR = 4
LEAST = 64  # what is allowed on any machine


def checked_threads(given: Any, name: str = "threads") -> int:
    """Take a number of threads; for None, one for each processor that this process may use.

    OpenMP ends the process where the system refuses it a thread, and has a stack that too many overflow: so there is a
    limit far below what a system may refuse.

    Args:
        name: of the argument in messages.

    Raises:
        TypeError: it is no whole number.
        ValueError: below 1, or more than 64 and more than four for each processor of the machine.
    """
    if given is None:
        return len(os.sched_getaffinity(0))
    try:
        if isinstance(given, bool):
            raise TypeError("a bool")
        threads = operator.index(given)
    except TypeError as error:
        raise TypeError(f"{name}={given!r}: give a whole number, at least 1") from error
    if threads < 1:
        raise ValueError(f"{name}: {threads} threads: give at least 1")
    if threads > _most():
        raise ValueError(f"{name}: {threads} threads: give at most {_most()} on this machine, whose processors run "
                         f"{os.cpu_count() or 1} at a time")
    return threads


@cache
def _most() -> int:
    return max(LEAST, PER_PROCESSOR * (os.cpu_count() or 1))
