"""Time candidates in turn; measure peak memory."""

import ctypes
import gc
import math
import statistics
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from sparloom.errors import Unsupported
from sparloom.measure import Measurement, TimingProtocol
from sparloom.platforms import interleaved
from sparloom.sparse import MatrixEntry

Call = Callable[[], Any]
REFUSALS = (Unsupported, AssertionError, MemoryError, RuntimeError, ValueError)
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
FORGET_PEAK = "5"  # see man 5 proc
RUNS = 3  # of `peak_bytes`, which takes the median: other threads may release pages meanwhile


def statistics_of(taken: Measurement) -> dict[str, Any]:
    """Return the columns of a timed method: seconds of all repetitions, median, P10, P90, and the stolen flag."""
    low, middle, high = np.quantile(taken.seconds, (0.1, 0.5, 0.9))
    return {"median": float(middle), "p10": float(low), "p90": float(high), "stolen": taken.stolen,
            "seconds": list(taken.seconds)}


@contextmanager
def note_failure(name: str, failed: dict[str, str]) -> Iterator[None]:
    """Record the exception of a baseline: it is not installed, wrong, out of memory, or its library refuses.

    Args:
        failed: baseline -> reason.
    """
    try:
        yield
    except REFUSALS as error:
        failed[name] = f"{type(error).__name__}: {error}"


def side_by_side(
    own: Mapping[str, Call], baselines: Mapping[str, Call], failed: dict[str, str], timing: TimingProtocol, *,
    threads: int, serial: Collection[str] = (),
) -> dict[str, Measurement]:
    """Time warmed-up calls in turn.

    A baseline that twice takes more than `timing.slow_factor` times as long as the fastest baseline is left out; the
    faster of these two runs is its measurement. Baselines that could be the best are timed exactly as our calls are.

    Args:
        failed: baseline -> reason; failures of this function are added.
        threads, serial: see `interleaved`.
    """
    looks: dict[str, float] = {}
    for name, call in baselines.items():
        with note_failure(name, failed):
            looks[name] = seconds_of(call)
    limit, once = timing.slow_factor * min(looks.values(), default=math.inf), {}
    for name in [name for name, seconds in looks.items() if seconds > limit]:
        with note_failure(name, failed):
            looks[name] = min(looks[name], seconds_of(baselines[name]))
            if looks[name] > limit:
                once[name] = Measurement((looks[name],), "wall")
    timed = {name: call for name, call in baselines.items() if name not in once and name not in failed}
    taken = interleaved({**own, **timed}, replace(timing, slow_factor=math.inf), threads=threads, serial=serial)
    return {**taken, **once}


def seconds_of(call: Call) -> float:
    """Measure how long a call takes, once."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def peak_bytes(call: Callable[[], Any], forget: Callable[[], None] = lambda: None) -> int:
    """Measure the peak memory of a call above the memory in use before it: bytes, median of three runs.

    Args:
        forget: releases memory that the call would otherwise reuse.

    Raises:
        Unsupported: the system does not report peaks.
    """
    gc.collect()
    frozen = gc.get_freeze_count()
    gc.freeze()  # collections skip existing objects, which take a quarter of a second each time
    try:
        return int(statistics.median(_one_peak(call, forget) for _ in range(RUNS)))
    finally:
        if not frozen:  # objects that the caller has frozen stay so
            gc.unfreeze()


def trim_memory() -> None:
    """Return freed memory to the system.

    Raises:
        Unsupported: the C library has no malloc_trim.
    """
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError) as error:
        raise Unsupported(f"freed memory is not given back on this system: {error}") from error


def _one_peak(call: Callable[[], Any], forget: Callable[[], None]) -> int:
    forget()
    trim_memory()
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


def evenly_by_size(entries: Sequence[MatrixEntry], count: int | None) -> Sequence[MatrixEntry]:
    """Choose at most `count` matrices, evenly over their numbers of nonzeros; None: all."""
    if count is None or count >= len(entries):
        return entries
    ordered = sorted(entries, key=lambda entry: (entry.nnz, entry.name))
    return [ordered[index] for index in np.linspace(0, len(ordered) - 1, count).round().astype(int)]
