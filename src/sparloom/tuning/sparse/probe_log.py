"""What was measured for decisions, one line of JSON for each, in a file that does not grow without bound."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sparloom.tuning.decision import Decision
from sparloom.tuning.sparse.decide import CsrChoice

__all__ = ["ProbeLog"]

log = logging.getLogger(__name__)

NAME, OLDER = "probe_logs.jsonl", "probe_logs.1.jsonl"
WAIT_SECONDS = 2.0  # for the lock
LIMIT_BYTES = 10 << 20


class ProbeLog:
    """The file probe_logs.jsonl of a folder, to which any number of processes may append.

    A line is one write at the end of the file. A file that would become too large is renamed to probe_logs.1.jsonl, in
    place of the one there was. A line that a process was writing when it was killed stays alone on its line.

    Args:
        folder: made with the first line.
        limit_bytes: of one file; there are at most two.
    """

    def __init__(self, folder: Path, *, limit_bytes: int = LIMIT_BYTES) -> None:
        self.path = folder / NAME
        self._older = folder / OLDER
        self._limit_bytes = limit_bytes

    def add(self, key: Mapping[str, Any], choice: CsrChoice, decision: Decision) -> None:
        """Append a decision; where that fails there is a warning.

        Args:
            key: what the decision is kept by.
        """
        line = json.dumps({"time": time.time(), "key": dict(key), "choice": choice.to_json(),
                           "decision": decision.to_json()})
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._append(line.encode() + b"\n")
        except OSError as error:
            log.warning("%s: %s: the probe is not logged", self.path, error)

    def _append(self, line: bytes) -> None:
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                _lock(descriptor)  # among those that append: only one of them renames
                size = os.fstat(descriptor).st_size
                if not self._is(descriptor):
                    continue
                if size and size + len(line) > self._limit_bytes:
                    self.path.replace(self._older)
                    continue
                torn = size and os.pread(descriptor, 1, size - 1) != b"\n"
                os.write(descriptor, b"\n" + line if torn else line)
                return
            finally:
                os.close(descriptor)

    def _is(self, descriptor: int) -> bool:
        """Whether an open file still has the name; another process may have renamed it."""
        try:
            return os.path.samestat(os.fstat(descriptor), self.path.stat())
        except FileNotFoundError:
            return False


def _lock(descriptor: int) -> None:
    """Lock an open file.

    Raises:
        TimeoutError: another one holds the lock for too long. It may be a process that is stopped, or the call that the
            caller has interrupted, which cannot go on before the caller returns.
    """
    end = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() > end:
                raise TimeoutError(f"locked for {WAIT_SECONDS} s by somebody else") from error
            time.sleep(1e-3)
