"""Run independent jobs in processes under one progress bar, and reserve processors for timing.

Workers end with their parent, so that a killed run leaves no orphans.
"""

import ctypes
import fcntl
import logging
import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from sparloom import log
from sparloom.files import locked

Job = TypeVar("Job")
Result = TypeVar("Result")
REPORT_SECONDS = 60.0  # between lines of progress if the output is not a terminal
logger = logging.getLogger(__name__)


def run_jobs(
    function: Callable[[Job], Result],
    jobs: Mapping[str, Job],
    *,
    weights: Mapping[str, float],
    processes: int,
    description: str,
    unit: str = "jobs",
    finished: Collection[str] = (),
) -> Iterator[tuple[str, Result]]:
    """Apply a picklable function to every job; yield (name, result) as they finish.

    Args:
        jobs: name -> argument, in the order in which they start.
        weights: expected cost of each job in any unit, for the estimate of the remaining time.
        processes: 1 runs everything in this process, in order.
        unit: what the jobs are, as a plural, for the progress.
        finished: names that an earlier run has finished, among the jobs or beside them; they count as done.

    Raises:
        Exception: raised by a job; running jobs finish first.
    """
    if processes < 1:
        raise ValueError(f"{processes} processes: at least 1 is needed")
    results = _serial(function, jobs) if processes == 1 else _parallel(function, jobs, processes)
    yield from _metered(results, weights, description, unit=unit, finished=finished)


def run_in_subprocess(
    function: Callable[[Job], Result], jobs: Mapping[str, Job], *, weights: Mapping[str, float], description: str,
    unit: str = "jobs", finished: Collection[str] = (),
) -> Iterator[tuple[str, Result]]:
    """Run jobs in order, as `run_jobs` does, in one fresh process: nothing that it loads stays in this one."""
    yield from _metered(_parallel(function, jobs, 1), weights, description, unit=unit, finished=finished)


def job_weight(nonzeros: int) -> float:
    """Return the expected cost of the job of a matrix, in any unit."""
    return float(nonzeros + 20_000)


def _metered(
    results: Iterator[tuple[str, Result]], weights: Mapping[str, float], description: str, *, unit: str,
    finished: Collection[str],
) -> Iterator[tuple[str, Result]]:
    ours = {name: weight for name, weight in weights.items() if name not in finished}
    meter, done = _Meter(description, ours, unit=unit, found=len(finished)), 0
    with log.progress() as bars:
        bar = bars.add_task(description, total=sum(ours.values()) or 1, unit=unit, found=len(finished), done=0,
                            count=len(ours))
        for name, result in results:
            if name in ours:
                done += 1
                bars.update(bar, advance=ours[name], done=done)
                meter.advance(name, done, shown=log.console.is_terminal)
            yield name, result


class _Meter:
    """Log lines of progress with the remaining time, for output that is not a terminal."""

    def __init__(self, description: str, weights: Mapping[str, float], *, unit: str, found: int) -> None:
        self._description, self._weights, self._unit, self._found = description, weights, unit, found
        self._total, self._done = sum(weights.values()), 0.0
        self._began = self._reported = time.monotonic()

    def advance(self, name: str, done: int, *, shown: bool) -> None:
        self._done += self._weights[name]
        now = time.monotonic()
        if shown or now - self._reported < REPORT_SECONDS:
            return
        self._reported = now
        spent = now - self._began
        left = spent * (self._total - self._done) / max(self._done, 1e-9)
        counted = log.counts(done, len(self._weights), unit=self._unit, found=self._found, seconds=spent)
        logger.info("%s: %s, about %.0f min left", self._description, counted, left / 60)


def _serial(function: Callable[[Job], Result], jobs: Mapping[str, Job]) -> Iterator[tuple[str, Result]]:
    for name, job in jobs.items():
        yield name, function(job)


def _parallel(
    function: Callable[[Job], Result], jobs: Mapping[str, Job], processes: int
) -> Iterator[tuple[str, Result]]:
    context = multiprocessing.get_context("spawn")  # a forked copy of a process with threads may hang
    waiting = list(jobs.items())[::-1]
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_end_with_parent,
                             initargs=(os.getpid(),)) as pool:
        running: dict[Future, str] = {}
        try:
            while waiting or running:
                while waiting and len(running) < processes + 1:
                    name, job = waiting.pop()
                    running[pool.submit(function, job)] = name
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    yield running.pop(future), future.result()
        except KeyboardInterrupt:
            for worker in multiprocessing.active_children():
                worker.kill()  # unfinished jobs are repeated by the next run
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _end_with_parent(parent: int) -> None:
    """Ask Linux to end this process when its parent dies (a no-op elsewhere); the parent handles interrupts."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    except (AttributeError, OSError):
        return
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def exclusive_timing() -> Iterator[None]:
    """Lock this machine for timing: wait for other runs of this user, and make later ones wait."""
    path = Path(tempfile.gettempdir()) / f"sparloom-timing-{os.getuid()}.lock"
    with ExitStack() as held:
        try:
            held.enter_context(locked(path, wait=False))
        except BlockingIOError:
            logger.info("another run is timing on this machine: waiting until it has ended")
            held.enter_context(locked(path))
        yield


@contextmanager
def claim_processor() -> Iterator[int | None]:
    """Pin this process to a processor that no other process of this user has claimed.

    Yields:
        Number of the processor; None where the system has no affinities.

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
    raise RuntimeError(f"all {len(allowed)} processors are claimed by other timing processes: lower task.jobs")
