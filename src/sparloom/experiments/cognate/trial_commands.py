"""Run the commands of trials, several at once: on this machine, as jobs of Slurm, or on a cluster of Ray.

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
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, NamedTuple, Protocol

from sparloom.space import number_of

__all__ = ["EXECUTORS", "CommandResult", "CommandRunner", "LocalCommands", "RayCommands", "SlurmCommands"]

KEPT_BYTES = 1 << 16  # of what a command prints to a stream: the last ones
SHOWN_ERROR = 300  # characters of what a command that failed has printed
MAX_NUMBER = 100  # characters of the last word, if it is a number
NOT_STARTED = (126, 127)  # exit statuses of a shell that cannot run a command
POLL_SECONDS = 0.05  # between looks at whether a command has ended
STOP_SECONDS = 60.0  # at most, until tasks of Ray that are stopped have ended
STATE_SECONDS = 30.0  # between questions to Slurm, which many jobs and users ask
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
                             "task.executor=slurm or ray")
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
        folder: where jobs store what they print; all machines must see it.
        options: of `submitit.AutoExecutor.update_parameters`, such as timeout_min, cpus_per_task, mem_gb and
            slurm_partition; `cluster` is "slurm", or "local" for processes of this machine.
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
        """Run a command, see `CommandRunner`.

        A job that Slurm ends, such as at its own limit of time, has failed. One that is lost with its machine is
        submitted again, up to `ATTEMPTS` times in all.

        Raises:
            ValueError: Slurm takes no job, although none is running.
        """
        failure = ""
        for _ in range(ATTEMPTS):
            job = self._submit(line, timeout_seconds)
            while job is not None and not self._has_ended(job):
                self._stopped.wait(POLL_SECONDS)
            if job is None or self._stopped.is_set():
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
                self._jobs = [each for each in self._jobs if not each.paths.result_pickle.exists()]
                try:
                    self._jobs.append(self._executor.submit(run_command, line, timeout_seconds, os.getcwd()))
                    return self._jobs[-1]
                except self._failures as error:
                    if not self._jobs:
                        raise ValueError(f"Slurm takes no job: {_last_line(error)}: change task.executor_options"
                                         ) from None
            self._stopped.wait(STATE_SECONDS)
        return None

    def _has_ended(self, job: Any) -> bool:
        """Look for the result of a job for a while, then ask Slurm."""
        until = time.monotonic() + STATE_SECONDS
        while time.monotonic() < until:
            if job.paths.result_pickle.exists() or self._stopped.wait(POLL_SECONDS):
                return True
        with self._lock:
            if job.done() and job in self._jobs:
                self._jobs.remove(job)
            return job.done()

    def stop(self) -> None:
        """Cancel all jobs, see `CommandRunner`."""
        self._stopped.set()
        with self._lock:
            for job in self._jobs:
                if not job.paths.result_pickle.exists():
                    job.cancel(check=False)  # it may have ended since


class RayCommands:
    """Runs each command as a task of Ray: on the cluster of RAY_ADDRESS, or else on this machine.

    Tasks look for a file that tells them to stop: an interrupt of Ray may arrive while the shell is being started, and
    then nothing would know which process to kill.

    Args:
        folder: where that file is written; all machines must see it.
        options: of `ray.remote`, such as num_cpus and resources.
    """

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        import ray

        try:
            self._remote = ray.remote(**{"max_retries": 0, **options})(_run_task)
        except (TypeError, ValueError) as error:
            raise ValueError(f"task.executor=ray with task.executor_options={dict(options)}: {error}") from None
        if not ray.is_initialized():
            ray.init(include_dashboard=False, log_to_driver=False)
        self._ray, self._stop_file = ray, folder.absolute() / f"stop_{uuid.uuid4().hex}"
        self._tasks: set[Any] = set()
        self._lock = threading.Lock()  # a task is submitted before the others are stopped, or not at all
        self._stopped = threading.Event()

    def run(self, line: str, timeout_seconds: float | None) -> CommandResult:
        """Run a command, see `CommandRunner`. A task whose machine is lost has failed."""
        with self._lock:
            if self._stopped.is_set():
                return CommandResult(None)
            task = self._remote.remote(line, timeout_seconds, os.getcwd(), str(self._stop_file))
            self._tasks.add(task)
        try:
            while not self._ray.wait([task], timeout=POLL_SECONDS)[0]:
                if self._stopped.is_set():
                    return CommandResult(None)
            return self._ray.get(task)
        except self._ray.exceptions.RayError as error:
            return CommandResult(None) if self._stopped.is_set() else CommandResult(None, f"Ray: {_last_line(error)}")
        finally:
            with self._lock:
                self._tasks.discard(task)

    def stop(self) -> None:
        """End all commands, see `CommandRunner`, and wait until their tasks have ended."""
        with self._lock:
            tasks = list(self._tasks)
            self._stopped.set()
        if tasks:
            self._stop_file.touch()
            if not self._ray.wait(tasks, num_returns=len(tasks), timeout=STOP_SECONDS)[1]:
                self._stop_file.unlink(missing_ok=True)


EXECUTORS: Mapping[str, Callable[[Path, Mapping[str, Any]], CommandRunner]] = MappingProxyType({
    "local": LocalCommands, "slurm": SlurmCommands, "ray": RayCommands})
"""Name -> where commands run."""


def _run_task(line: str, timeout_seconds: float | None, folder: str, stop_file: str) -> CommandResult:
    return run_command(line, timeout_seconds, folder, stopped=lambda: os.path.exists(stop_file))


def run_command(
    line: str, timeout_seconds: float | None, folder: str, *, stopped: Callable[[], bool] = lambda: False,
) -> CommandResult:
    """Run a command in a folder, and read the seconds that it prints.

    What a command that has ended left running is killed, unless it lives on in a session of its own.

    Args:
        stopped: is asked before the command begins, and then every `POLL_SECONDS`, whether to kill it.
    """
    if stopped():
        return CommandResult(None)
    try:
        process = subprocess.Popen(line, shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, cwd=folder, bufsize=0, start_new_session=True)
    except OSError as error:  # the folder is not there
        return CommandResult(None, f"{error} on {os.uname().nodename}", started=False)
    printed, errors = _Tail(process.stdout), _Tail(process.stderr)
    deadline = math.inf if timeout_seconds is None else time.monotonic() + timeout_seconds
    try:
        while not _has_ended(process):
            if stopped():
                return CommandResult(None)
            if time.monotonic() >= deadline:
                return CommandResult(None, f"took longer than {timeout_seconds:g} s")
            time.sleep(POLL_SECONDS)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return _outcome(process.returncode, printed.text(), errors.text())


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


class _Tail(threading.Thread):
    """Reads a stream to its end, and keeps its last bytes; blanks at the end are cut to one."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__(daemon=True)
        self._stream, self._kept = stream, b""
        self.start()

    def run(self) -> None:
        with self._stream:
            while part := self._stream.read(KEPT_BYTES):
                kept = self._kept + part
                words = kept.rstrip()
                self._kept = words[-KEPT_BYTES:] + b"\n" * (len(words) < len(kept))

    def text(self) -> str:
        """Return what was printed, without waiting for what was left running with the same output."""
        self.join(1.0)
        return self._kept.decode(errors="replace")


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a process has ended, without reaping it: its number stays its own until then."""
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # reaped by another part of this process
        return True


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][-SHOWN_ERROR:] if lines else type(error).__name__
