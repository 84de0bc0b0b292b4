"""How much memory a call needs beside what is there before it."""

import ctypes
import gc
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparloom.errors import Unsupported

__all__ = ["give_back", "peak_bytes"]

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
FORGET_PEAK = "5"  # see man 5 proc
RUNS = 3  # other threads, and the system when it is short of memory, give pages back meanwhile


def peak_bytes(call: Callable[[], Any], forget: Callable[[], None] = lambda: None) -> int:
    """Run a call three times; bytes of memory at its peak less before, the median.

    Args:
        forget: gives back memory that the call would otherwise have at hand.

    Raises:
        Unsupported: the system does not count.
    """
    gc.collect()
    frozen = gc.get_freeze_count()
    gc.freeze()  # what lives already is not looked through again, a quarter of a second each time
    try:
        return int(statistics.median(_one_peak(call, forget) for _ in range(RUNS)))
    finally:
        if not frozen:  # objects that the caller has frozen stay so
            gc.unfreeze()


def give_back() -> None:
    """Give the system what was freed, so that it serves nobody here any more.

    Raises:
        Unsupported: the C library has no such call.
    """
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError) as error:
        raise Unsupported(f"freed memory is not given back on this system: {error}") from error


def _one_peak(call: Callable[[], Any], forget: Callable[[], None]) -> int:
    forget()
    give_back()
    try:
        CLEAR.write_text(FORGET_PEAK, encoding="ascii")
    except OSError as error:
        raise Unsupported(f"peaks of memory are not counted on this system: {error}") from error
    before = _kibibytes("VmRSS")
    call()
    return 1024 * max(0, _kibibytes("VmHWM") - before)


def _kibibytes(name: str) -> int:
    for line in STATUS.read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise Unsupported(f"{STATUS} has no {name}")
