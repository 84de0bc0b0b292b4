"""Who may use the processors while something is timed."""

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from sparloom.files import locked

__all__ = ["alone", "own_processor"]


def alone() -> AbstractContextManager[None]:
    """Wait until no other run of ours times anything on this machine, and keep the others waiting."""
    return locked(Path(tempfile.gettempdir()) / f"sparloom-timing-{os.getuid()}.lock")


@contextmanager
def own_processor() -> Iterator[int | None]:
    """Stay on one processor that no other process of ours has claimed; its number, or None where that cannot be asked.

    Raises:
        RuntimeError: every processor is claimed.
    """
    if not hasattr(os, "sched_setaffinity"):
        yield None
        return
    allowed = os.sched_getaffinity(0)
    for processor in sorted(allowed):
        with (Path(tempfile.gettempdir()) / f"sparloom-processor-{os.getuid()}-{processor}.lock").open("a") as claim:
            try:
                fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            os.sched_setaffinity(0, {processor})
            try:
                yield processor
            finally:
                os.sched_setaffinity(0, allowed)
            return
    raise RuntimeError(f"all {len(allowed)} processors are claimed by processes that time: lower task.jobs")
