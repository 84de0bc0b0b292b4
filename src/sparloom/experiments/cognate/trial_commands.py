"""Run the commands of trials, several at once: on this machine, as jobs of Slurm, or on a cluster of Ray.

A command prints the seconds of a trial as its last word. It runs in the working directory of the campaign, which the
machines of a cluster must have, too.
"""

from __future__ import annotations

import logging
import math
import os
import selectors
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
NOT_STARTED = (126, 127)  # exit statuses of a shell that cannot run a command
POLL_SECONDS = 0.2  # between looks at whether a job has ended
STOP_SECONDS = 60.0  # at most, until tasks of Ray that are stopped have ended
STATE_SECONDS = 30.0  # between questions to Slurm, which many jobs and users ask
ATTEMPTS = 3  # at a trial whose machine is lost
LOST_STATES = ("BOOT_FAIL", "NODE_FAIL", "PREEMPTED", "REVOKED")  # of jobs that say nothing about a command

logger = logging.getLogger(__name__)


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
        """Kill the commands that are running, and all that begin later."""


class LocalCommands:
    """Runs commands on this machine."""

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        if options:
            raise ValueError(f"task.executor_options={dict(options)}: commands on this machine have none: choose "
                             "task.executor=slurm or ray")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._stopped = threading.Event()

    def run(self, line: str, timeout_seconds: float | None) -> CommandResult:
        """Run a command, see `CommandRunner`."""
        outcome = run_command(line, timeout_seconds, os.getcwd(), started=self._add)
        return CommandResult(None) if self._stopped.is_set() else outcome

    def stop(self) -> None:
        """Kill all commands, see `CommandRunner`."""
        self._stopped.set()
        for process in self._processes:
            if process.returncode is None:
                _kill_group(process)

    def _add(self, process: subprocess.Popen[bytes]) -> None:
        self._processes.append(process)
        if self._stopped.is_set():
            _kill_group(process)


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
        self._lock = threading.Lock()  # submitit's executors are not safe among threads
        self._stopped = threading.Event()

    def run(self, line: str, timeout_seconds: float | None) -> CommandResult:
        """Run a command, see `CommandRunner`.

        A job that Slurm ends, such as at its own limit of time, has failed. One that is lost with its machine is
        submitted again, up to `ATTEMPTS` times in all.
        """
        lost = ""
        for _ in range(ATTEMPTS):
            job = self._submit(line, timeout_seconds)
            lost = "" if job is None else self._wait(job)
            if job is None or self._stopped.is_set():
                return CommandResult(None)
            if not lost:
                try:
                    return job.result()
                except self._failures as error:
                    return CommandResult(None, f"job {job.job_id}: {_last_line(error)}")
        return CommandResult(None, f"job {lost}, the last of {ATTEMPTS} attempts")

    def _submit(self, line: str, timeout_seconds: float | None) -> Any:
        """Submit a job, after others of this campaign have ended if Slurm takes no more; None if it was stopped.

        Raises:
            ValueError: Slurm takes no job, although none is running.
        """
        while True:
            with self._lock:
                if self._stopped.is_set():
                    return None
                self._jobs = [each for each in self._jobs if not each.paths.result_pickle.exists()]
                try:
                    job = self._executor.submit(run_command, line, timeout_seconds, os.getcwd())
                except self._failures as error:
                    if not self._jobs:
                        raise ValueError(f"Slurm takes no job: {_last_line(error)}: change task.executor_options"
                                         ) from None
                else:
                    self._jobs.append(job)
                    return job
            self._stopped.wait(STATE_SECONDS)

    def _wait(self, job: Any) -> str:
        """Wait until a job has ended; return how it was lost, or an empty text."""
        while True:
            until = time.monotonic() + STATE_SECONDS
            while time.monotonic() < until:
                if job.paths.result_pickle.exists() or self._stopped.wait(POLL_SECONDS):
                    return ""
            with self._lock:  # submitit asks Slurm about all jobs at once
                ended, state = job.done(), job.state.split(" ")[0]
                queued = state != "UNKNOWN" or _is_queued(job.job_id)
                if (ended or not queued or state in LOST_STATES) and job in self._jobs:
                    self._jobs.remove(job)
            if state in LOST_STATES:
                return f"{job.job_id} was lost: {state}"
            if ended:
                return ""
            if not queued and not self._stopped.wait(STATE_SECONDS) and not job.paths.result_pickle.exists():
                return f"{job.job_id} has left the queue without a result"

    def stop(self) -> None:
        """Cancel all jobs, see `CommandRunner`."""
        self._stopped.set()
        with self._lock:
            for job in self._jobs:
                if not job.paths.result_pickle.exists():
                    job.cancel(check=False)  # it may have ended since


class RayCommands:
    """Runs each command as a task of Ray: on the cluster of RAY_ADDRESS, or else on this machine.

    Tasks look for a file that tells them to stop. Ray's interrupt alone is not enough: as an exception, it may arrive
    while the shell is being started, and then nothing would know which process to kill.

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
        self._ray = ray
        self._stop_file = folder.absolute() / f"stop_{uuid.uuid4().hex}"
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
        """Kill all commands, see `CommandRunner`, and wait until their tasks have ended."""
        with self._lock:
            tasks = list(self._tasks)
            self._stopped.set()
        if not tasks:
            return
        with suppress(OSError):  # such as a full disk: then Ray's interrupts have to do
            self._stop_file.touch()
        for task in tasks:
            self._ray.cancel(task)  # Ray forgets it if it waits for a machine
        running = self._ray.wait(tasks, num_returns=len(tasks), timeout=STOP_SECONDS)[1]
        if running:
            logger.warning("tasks of Ray that still run %g s after they were stopped: %d: look whether their commands "
                           "go on, and kill them", STOP_SECONDS, len(running))
        else:
            self._stop_file.unlink(missing_ok=True)


EXECUTORS: Mapping[str, Callable[[Path, Mapping[str, Any]], CommandRunner]] = MappingProxyType({
    "local": LocalCommands, "slurm": SlurmCommands, "ray": RayCommands})
"""Name -> where commands run."""


def _is_queued(job: str) -> bool:
    """Ask whether a job waits or runs, where Slurm keeps no accounts; True if that is not known."""
    try:
        found = subprocess.run(["squeue", "--noheader", "--jobs", job], capture_output=True, text=True, check=False)
    except OSError:
        return True
    return bool(found.stdout.strip()) if found.returncode == 0 else "Invalid job id" not in found.stderr


def _run_task(line: str, timeout_seconds: float | None, folder: str, stop_file: str) -> CommandResult:
    """Run a command in a task of Ray, until the file is there or Ray interrupts the task.

    The interrupt of a task that is cancelled raises nothing here: it is noted, and `run_command` asks for it.
    """
    interrupted = threading.Event()
    previous = signal.signal(signal.SIGINT, lambda *_: interrupted.set())
    try:
        return run_command(line, timeout_seconds, folder,
                           stopped=lambda: interrupted.is_set() or os.path.exists(stop_file))
    finally:
        signal.signal(signal.SIGINT, previous)


def run_command(line: str, timeout_seconds: float | None, folder: str, *,
                started: Callable[[subprocess.Popen[bytes]], None] = lambda process: None,
                stopped: Callable[[], bool] = lambda: False) -> CommandResult:
    """Run a command in a folder, and read the seconds that it prints.

    Args:
        started: is called with the process. If an exception interrupts this thread later, the command is killed.
        stopped: is asked before the command begins, and then every `POLL_SECONDS`, whether to kill it.
    """
    if stopped():
        return CommandResult(None)
    try:
        process = subprocess.Popen(line, shell=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, cwd=folder, bufsize=0, start_new_session=True)
    except OSError as error:  # the folder is not there
        return CommandResult(None, f"{error} on {os.uname().nodename}", started=False)
    with process:
        try:
            started(process)
            found = _printed(process, math.inf if timeout_seconds is None else time.monotonic() + timeout_seconds,
                             stopped)
            if found is None:
                _kill_group(process)
                return CommandResult(None, None if stopped() else f"took longer than {timeout_seconds:g} s")
        except BaseException:
            _kill_group(process)
            raise
    printed, errors = found
    words, shown = printed.text.split(), (errors.text or printed.text).strip()[-SHOWN_ERROR:]
    if process.returncode:
        return CommandResult(None, f"exit status {process.returncode}: {shown}",
                             started=process.returncode not in NOT_STARTED)
    if not words:
        return CommandResult(None, "printed nothing, and the seconds must be the last word" + (
            f": {shown}" if shown else ""))
    if printed.dropped and len(words) == 1 and not printed.text[0].isspace():
        return CommandResult(None, f"printed {printed.dropped + len(printed.kept):,} bytes that end in one word, not "
                                   "seconds")
    seconds = number_of(words[-1])
    if seconds is None or not 0 < seconds < math.inf:
        return CommandResult(None, f"printed {words[-1][-SHOWN_ERROR:]!r}, not seconds")
    return CommandResult(seconds)


class _Tail:
    """The last bytes of a stream, and the number of those before them; trailing blanks are cut to one."""

    def __init__(self) -> None:
        self.kept, self.dropped = bytearray(), 0

    def add(self, printed: bytes) -> None:
        self.kept += printed
        if len(self.kept) > 2 * KEPT_BYTES:  # rarely, so that the time stays in proportion to what is printed
            words, blank = self.kept.rstrip(), self.kept[-1:].isspace()
            self.kept = words[-KEPT_BYTES:] + b"\n" * blank
            self.dropped += max(len(words) - KEPT_BYTES, 0)

    @property
    def text(self) -> str:
        return "\n".join(self.kept.decode(errors="replace").splitlines())


def _printed(process: subprocess.Popen[bytes], deadline: float, stopped: Callable[[], bool]
             ) -> tuple[_Tail, _Tail] | None:
    """Wait for a command; return what it printed, None if it has to be killed: at the deadline, or stopped.

    What a command that has ended left running with the same output is killed, and not waited for if it lives on in a
    session of its own.
    """
    assert process.stdout is not None
    assert process.stderr is not None
    tails, ended = {process.stdout: _Tail(), process.stderr: _Tail()}, False
    with selectors.DefaultSelector() as open_streams:
        for stream in tails:
            open_streams.register(stream, selectors.EVENT_READ)
        while True:
            until = min(time.monotonic() + POLL_SECONDS, deadline)
            _read(open_streams, tails, until)
            if ended or (not open_streams.get_map() and _exits(process, until)):
                process.wait()
                return tails[process.stdout], tails[process.stderr]
            if time.monotonic() >= deadline or stopped():
                return None
            if ended := _has_ended(process):
                _kill_group(process)


def _read(open_streams: selectors.BaseSelector, tails: Mapping[IO[bytes], _Tail], until: float) -> None:
    """Read what comes until some time, or until all streams are closed."""
    while open_streams.get_map() and (seconds := until - time.monotonic()) > 0:
        for key, _ in open_streams.select(seconds):
            if printed := os.read(key.fd, KEPT_BYTES):
                tails[key.fileobj].add(printed)
            else:
                open_streams.unregister(key.fileobj)


def _exits(process: subprocess.Popen[bytes], until: float) -> bool:
    """Wait for a process that has closed its streams; return whether it has ended by some time."""
    try:
        return process.wait(max(until - time.monotonic(), 0.0)) is not None
    except subprocess.TimeoutExpired:
        return False


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a process has ended, without reaping it: its number stays its own until then."""
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # reaped by another part of this process
        return True


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][-SHOWN_ERROR:] if lines else type(error).__name__
