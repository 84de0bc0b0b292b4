"""One process compiles, others wait for it: a while, and not without a word."""

import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO

from sparloom.files import hold_lock

__all__ = ["turn"]

SILENT_SECONDS = 3.0  # waited before it is said for whom
PATIENT_SECONDS = 120.0  # waited for a process that runs
STOPPED_SECONDS = 6.0  # waited for one that is stopped (Ctrl-Z, a debugger)
POLL_SECONDS = 0.05

log = logging.getLogger(__name__)


@contextmanager
def turn(path: Path, work: str) -> Iterator[None]:
    """Hold a lock, or go on without it after a while: whatever is done in turn may be done twice.

    The lock of a process that ended is free at once. Who is waited for, since when, is said after 3 seconds. A signal
    handler or finaliser does not wait for the call that it interrupts.

    Args:
        path: of the lock, created if absent; it names the process that holds it.
        work: what is done, for messages: "compile cpu/spmm.cpp".

    Raises:
        OSError: the file cannot be made, or files there cannot be locked.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8") as file, hold_lock(
            file, lambda file: _lock(file) or _wait(file, path, work)) as held:
        if held:
            _sign(file)
        try:
            yield
        finally:
            if held:
                with suppress(OSError):
                    file.truncate(0)


def _wait(file: IO[str], path: Path, work: str) -> bool:
    """Wait for a lock; False: no longer."""
    begun, told = time.monotonic(), False
    while not _lock(file):
        waited, (holder, since) = time.monotonic() - begun, _holder(file)
        stopped = holder is not None and _is_stopped(holder)
        who = f"process {holder}{', which is stopped,' if stopped else ''}" if holder else "another process"
        patience = STOPPED_SECONDS if stopped else PATIENT_SECONDS
        if waited >= patience:
            log.warning("%s still holds %s after %.0f s: this process goes on by itself to %s", who, path, waited, work)
            return False
        if waited >= SILENT_SECONDS and not told:
            told = True
            log.warning("waiting for %s to let go of %s, held since %s, to %s; after %.0f s this process goes on by "
                        "itself", who, path, since or "an unknown time", work, patience)
        time.sleep(POLL_SECONDS)
    return True


def _lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sign(file: IO[str]) -> None:
    with suppress(OSError):  # a full disk: nobody can read who it is
        file.truncate(0)
        file.write(f"{os.getpid()} {datetime.now().astimezone().isoformat(timespec='seconds')}\n")
        file.flush()


def _holder(file: IO[str]) -> tuple[int | None, str]:
    """Read which process holds a lock, and since when."""
    with suppress(OSError, ValueError):
        file.seek(0)
        process, _, since = file.read(100).strip().partition(" ")
        return int(process), since
    return None, ""


def _is_stopped(process: int) -> bool:
    with suppress(OSError, IndexError):
        status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
        return status.rpartition(")")[2].split()[0] in ("T", "t")
    return False
