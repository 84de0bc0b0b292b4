"""Run the commands of trials, several at once: on this machine, or as jobs of Slurm.

A command prints the seconds of a trial as its last word. It runs in the working directory of the campaign, which the
machines of a cluster must have, too.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from types import MappingProxyType
from typing import IO, Any, NamedTuple, Protocol

from sparloom.space import number_of

KEPT_BYTES = 1 << 16  # of what a command prints to a stream: the last ones
SHOWN_ERROR = 300  # characters of what a command that failed has printed
MAX_NUMBER = 100  # characters of the last word, if it is a number
NOT_STARTED = (126, 127)  # exit statuses of a shell that cannot run a command
POLL_SECONDS = 0.05  # between looks at whether a command has ended
RETRY_SECONDS = 30.0  # between attempts to submit a job where Slurm takes no more
ATTEMPTS = 3  # at a trial whose machine is lost
LOST_STATES = ("BOOT_FAIL", "NODE_FAIL", "PREEMPTED", "REVOKED")  # of jobs that say nothing about a command


class CommandResult(NamedTuple):
    """What came out of a command.

    Args:
        seconds: that it printed; None: there are none.
        failure: why there are none; None: it was stopped by `CommandRunner.stop`.
        started: whether the shell could run it.
    """

    seconds: float | None
    failure: str | None = None
    started: bool = True


class CommandRunner(Protocol):
    """Runs commands; its methods may be called by several threads."""

    def run(self, line: str, timeout_seconds: float | None) -> CommandResult:
        """Run a command of a shell to its end; after `timeout_seconds` it is killed and has failed."""

    def stop(self) -> None:
        """End the commands that are running, and all that begin later."""


class LocalCommands:
    """Runs commands on this machine."""

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        if options:
            raise ValueError(f"task.executor_options={dict(options)}: commands on this machine have none: choose "
                             "task.executor=slurm")
        self._stopped = threading.Event()

    def run(self, line: str, timeout_seconds: float | None) -> CommandResult:
        """Run a command, see `CommandRunner`."""
        return run_command(line, timeout_seconds, os.getcwd(), stopped=self._stopped.is_set)

    def stop(self) -> None:
        """End all commands, see `CommandRunner`."""
        self._stopped.set()


class SlurmCommands:
    """Runs each command as a job of Slurm, by submitit.

    Args:
        folder: of the jobs' files, which all machines must see.
        options: of `submitit.AutoExecutor.update_parameters`, such as timeout_min and slurm_partition; `cluster` is
            that of `submitit.AutoExecutor`.
    """

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        import submitit

        given = dict(options)
        self._failures = (submitit.core.utils.UncompletedJobError, submitit.core.utils.FailedJobError)
        try:
            self._executor = submitit.AutoExecutor(folder / "jobs", cluster=given.pop("cluster", "slurm"))
            self._executor.update_parameters(**given)
        except (RuntimeError, NameError, ValueError) as error:
            raise ValueError(f"task.executor=slurm with task.executor_options={dict(options)}: {error}") from None
        self._jobs: list[Any] = []
        self._lock = threading.Lock()  # submitit is not safe among threads
        self._stopped = threading.Event()

    def run(self, line: str, timeout_seconds: float | None) -> CommandResult:
        """Run a command, see `CommandRunner`. A job whose machine is lost is submitted again."""
        failure = ""
        for _ in range(ATTEMPTS):
            job = self._submit(line, timeout_seconds)
            while not self._stopped.is_set() and not self._has_ended(job):
                self._stopped.wait(POLL_SECONDS)
            if self._stopped.is_set():
                return CommandResult(None)
            try:
                return job.result()
            except self._failures as error:
                failure = f"job {job.job_id}: {_last_line(error)}"
                if job.state.split(" ")[0] not in LOST_STATES:
                    return CommandResult(None, failure)
        return CommandResult(None, f"{failure}, the last of {ATTEMPTS} attempts")

    def _submit(self, line: str, timeout_seconds: float | None) -> Any:
        """Submit a job, after others of this campaign have ended if Slurm takes no more; None if it was stopped."""
        while not self._stopped.is_set():
            with self._lock:
                try:
                    self._jobs.append(self._executor.submit(run_command, line, timeout_seconds, os.getcwd()))
                    return self._jobs[-1]
                except self._failures as error:
                    if not self._jobs:
                        raise ValueError(f"Slurm takes no job: {_last_line(error)}: change task.executor_options"
                                         ) from None
            self._stopped.wait(RETRY_SECONDS)
        return None

    def _has_ended(self, job: Any) -> bool:
        """Look for the result of a job; submitit asks Slurm once a minute."""
        with self._lock:
            if job.done() and job in self._jobs:
                self._jobs.remove(job)
            return job not in self._jobs

    def stop(self) -> None:
        """Cancel all jobs, see `CommandRunner`."""
        self._stopped.set()
        with self._lock:
            for job in self._jobs:
                job.cancel(check=False)  # it may have ended since


EXECUTORS: Mapping[str, Callable[[Path, Mapping[str, Any]], CommandRunner]] = MappingProxyType({
    "local": LocalCommands, "slurm": SlurmCommands})
"""Name -> where commands run."""


def run_command(
    line: str, timeout_seconds: float | None, folder: str, *, stopped: Callable[[], bool] = lambda: False,
) -> CommandResult:
    """Run a command in a folder, and read the seconds that it prints.

    What it has started in the background is killed when it ends, unless it has a session of its own.
    """
    if stopped():
        return CommandResult(None)
    deadline = math.inf if timeout_seconds is None else time.monotonic() + timeout_seconds
    with TemporaryFile() as printed, TemporaryFile() as errors:  # pipes would stay open with what runs on
        try:
            process = subprocess.Popen(line, shell=True, stdin=subprocess.DEVNULL, stdout=printed, stderr=errors,
                                       cwd=folder, start_new_session=True)
        except OSError as error:  # the folder is not there
            return CommandResult(None, f"{error} on {os.uname().nodename}", started=False)
        try:
            while process.poll() is None:
                if stopped():
                    return CommandResult(None)
                if time.monotonic() >= deadline:
                    return CommandResult(None, f"took longer than {timeout_seconds:g} s")
                time.sleep(POLL_SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return _outcome(process.returncode, _tail(printed), _tail(errors))


def _outcome(status: int, printed: str, errors: str) -> CommandResult:
    """Read the seconds at the end of what a command printed, or why there are none."""
    words, shown = printed.split(), (errors or printed).strip()[-SHOWN_ERROR:]
    if status:
        return CommandResult(None, f"exit status {status}: {shown}", started=status not in NOT_STARTED)
    if not words:
        return CommandResult(None, "printed nothing, and the seconds must be the last word" + (
            f": {shown}" if shown else ""))
    seconds = number_of(words[-1]) if len(words[-1]) <= MAX_NUMBER else None
    if seconds is None or not 0 < seconds < math.inf:
        return CommandResult(None, f"printed {words[-1][-SHOWN_ERROR:]!r}, not seconds")
    return CommandResult(seconds)


def _tail(file: IO[bytes]) -> str:
    """Return the end of what was printed."""
    file.seek(max(0, file.seek(0, os.SEEK_END) - KEPT_BYTES))
    return file.read(KEPT_BYTES).decode(errors="replace")


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][-SHOWN_ERROR:] if lines else type(error).__name__
