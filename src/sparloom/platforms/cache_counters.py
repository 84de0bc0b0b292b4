"""Reads served by each level of the caches, counted by the processor; Linux, where it lets us."""

import ctypes
import os
import platform
import struct
from collections.abc import Callable
from pathlib import Path

from sparloom.errors import Unsupported

__all__ = ["EVENTS", "count_reads", "reads_by_level"]

CALL = {"x86_64": 298, "aarch64": 241}  # perf_event_open
HW_CACHE, ATTRIBUTE_BYTES = 3, 112  # linux/perf_event.h: PERF_TYPE_HW_CACHE, PERF_ATTR_SIZE_VER5
USER_ONLY = 1 << 5 | 1 << 6  # exclude_kernel, exclude_hv
L1_DATA, LAST, READ, MISS = 0, 2, 0 << 8, 1 << 16
EVENTS = {"first": L1_DATA | READ, "first_missed": L1_DATA | READ | MISS, "last": LAST | READ,
          "last_missed": LAST | READ | MISS}


def count_reads(run: Callable[[], None]) -> dict[str, int]:
    """Run once and count events of all threads that this process has now, by the names in `EVENTS`.

    Raises:
        Unsupported: the system or the processor counts nothing for us.
    """
    threads = [int(task.name) for task in Path("/proc/self/task").iterdir()] if Path("/proc/self/task").is_dir() else []
    files: dict[str, list[int]] = {name: [] for name in EVENTS}
    try:
        for name, event in EVENTS.items():
            files[name] = [_opened(event, thread) for thread in threads]
        if not threads:
            raise Unsupported("cache misses are counted on Linux only")
        before = {name: _total(opened) for name, opened in files.items()}
        run()
        return {name: _total(opened) - before[name] for name, opened in files.items()}
    finally:
        for opened in files.values():
            for file in opened:
                os.close(file)


def reads_by_level(counts: dict[str, int]) -> tuple[int, int, int, int]:
    """Split counted reads by what served them: first, second and last level of the caches, and the memory."""
    missed = min(counts["first_missed"], counts["first"])
    last = min(counts["last"], missed)
    memory = min(counts["last_missed"], last)
    return counts["first"] - missed, missed - last, last - memory, memory


def _opened(event: int, thread: int) -> int:
    number = CALL.get(platform.machine())
    if number is None:
        raise Unsupported(f"no counters on {platform.machine()}: they are for {', '.join(CALL)}")
    attribute = bytearray(ATTRIBUTE_BYTES)
    struct.pack_into("=IIQ", attribute, 0, HW_CACHE, ATTRIBUTE_BYTES, event)
    struct.pack_into("=Q", attribute, 40, USER_ONLY)
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    file = library.syscall(ctypes.c_long(number), (ctypes.c_char * ATTRIBUTE_BYTES).from_buffer(attribute),
                           ctypes.c_int(thread), ctypes.c_int(-1), ctypes.c_int(-1), ctypes.c_ulong(0))
    if file < 0:
        raise Unsupported(f"the processor counts no cache events for us ({os.strerror(ctypes.get_errno())}): see "
                          "/proc/sys/kernel/perf_event_paranoid; virtual machines often have no counters")
    return int(file)


def _total(files: list[int]) -> int:
    return sum(int.from_bytes(os.read(file, 8), "little") for file in files)
