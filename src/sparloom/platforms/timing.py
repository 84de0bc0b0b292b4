"""Operands at new places in memory, so that a measurement does not depend on the places of the one before.

A few elements of a result, known in float64: cheap enough to check every configuration on every matrix.

One round of measurements: all calls on the same arrays, their repetitions interleaved.

The speed of a machine drifts within tenths of a second. So all calls are run and checked once, then all of them are
visited for their first repetition, in random order, then for their second: what drifts meets all alike.

Several methods timed side by side in one run, so that what drifts meets all alike.

A compiled kernel with its arguments, repeated without Python in between.
"""

import ctypes
import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

import numpy as np

from sparloom.jit import NativeCall, aligned, compile_cpp
from sparloom.measure import Measurement, TimingProtocol
from sparloom.ops import DenseOperands, Op, Operands, assert_close
from sparloom.platforms.clock import Clock, Repeat, Repetition, Stopwatch, in_series, processor_clock, thread_clocks
from sparloom.space import Config

__all__ = [
    "Call", "Check", "Contender", "SpotCheck", "interleaved", "interleaved_on_device", "reallocated", "repeat_of",
    "repeated", "sweep",
]

Given = TypeVar("Given", Operands, DenseOperands)


def reallocated(operands: Given) -> Given:
    """Copy the dense operands to new pages."""
    dense = {}
    for name, array in operands.dense.items():
        dense[name] = aligned(array.shape, np.float32)
        dense[name][...] = array
    return replace(operands, dense=dense)


ROWS = 16


class SpotCheck:
    """Rows of the sparse operand, the longest among them, with their results by the oracle."""

    def __init__(self, op: Op, operands: Operands, *, seed: int) -> None:
        pattern = operands.matrix.pattern
        rng = np.random.default_rng(seed)
        drawn = rng.choice(pattern.rows, size=min(ROWS, pattern.rows), replace=False)
        longest = [int(np.argmax(pattern.row_lengths()))] if pattern.rows else []
        self.op = op
        self.rows = np.unique(np.concatenate([drawn, longest]).astype(np.int64))
        self.nonzeros = pattern.nonzeros_of(self.rows)
        part = operands.take_rows(self.rows, op.name)
        self.oracle = op.oracle(part)
        self.terms = op.terms(part.matrix.pattern, operands.width)
        self.scale = op.scale(part)

    def check(self, result: np.ndarray, config: Config) -> None:
        """Compare the sampled part of a result in the oracle's order.

        Raises:
            AssertionError: names the configuration and the worst element.
        """
        try:
            self.compare(result)
        except AssertionError as error:
            raise AssertionError(f"{self.op.name} with {config} is wrong in the sampled rows: {error}") from error

    def compare(self, result: np.ndarray) -> None:
        """Do as `check` for a caller that names the configuration itself."""
        picked = result[self.nonzeros] if self.op.name == "sddmm" else result[self.rows]
        assert_close(picked, self.oracle, terms=self.terms, scale=self.scale)

    def compare_written(self, result: np.ndarray) -> None:
        """Compare a result that held NaN before the kernel ran: no element of it may be left as it was."""
        self.compare(result)
        if np.isnan(result.sum(dtype=np.promote_types(result.dtype, np.float32))):
            rows = np.unique(np.argwhere(np.isnan(result))[:, 0])
            raise AssertionError(f"{rows.size} rows hold NaN, the first is {rows[0]}")


log = logging.getLogger(__name__)

Call = Callable[[], None]
"""A kernel with all its arguments; overwrites the result. A `NativeCall` is timed without Python in between."""

Check = Callable[[Any], None]
"""Compares a result, as the calls leave it, with the oracle; raises AssertionError."""


@dataclass(frozen=True)
class Contender:
    """A call and the configuration under which its seconds are known."""

    config: Config
    call: Call


def sweep(
    contenders: Sequence[Contender], result: Any, check: Check, *, watch: Callable[[Call], Stopwatch],
    rng: np.random.Generator,
) -> Iterator[tuple[Config, Measurement]]:
    """Check and measure all contenders; nothing is yielded before the last repetition, so the caller disturbs none.

    A contender is slow (see `TimingProtocol`) in comparison with the fastest one so far.

    Args:
        result: what all of them overwrite; an array of the host or of a device.
        watch: makes the stopwatch of a call that has run once.
    """
    best = math.inf
    started: list[tuple[Contender, Stopwatch, int]] = []
    wrong: dict[Config, Measurement] = {}
    for place in rng.permutation(len(contenders)):
        contender = contenders[place]
        result.fill(np.nan)
        contender.call()
        stopwatch = watch(contender.call)
        fault = _fault(check, result)
        if fault is not None:
            log.error("%s computes something else than the oracle: %s", contender.config, fault)
            wrong[contender.config] = Measurement.failed(f"wrong result: {fault}", stopwatch.kind)
            continue
        visits = stopwatch.warm_up(best)
        best = min(best, stopwatch.warm_seconds)
        started.append((contender, stopwatch, visits))
    for turn in range(max((visits for _, _, visits in started), default=0)):
        for place in rng.permutation(len(started)):
            _, stopwatch, visits = started[place]
            if turn < visits:
                stopwatch.visit()
    yield from wrong.items()
    for contender, stopwatch, _ in started:
        yield contender.config, stopwatch.measurement()


def _fault(check: Check, result: Any) -> str | None:
    try:
        check(result)
    except AssertionError as error:
        return str(error)
    return None


SETTLE = 0.03  # seconds; idle threads of GNU OpenMP keep a processor busy for some milliseconds


def interleaved(
    methods: Mapping[str, Callable[[], None]], timing: TimingProtocol, *, threads: int, serial: Collection[str] = (),
    settle: float = SETTLE, processor: Clock | None = None, wall: Clock = time.perf_counter,
) -> dict[str, Measurement]:
    """Time methods in turn, A B C, then B C A, then C A B, until each has the protocol's repetitions.

    Every method first runs once, which nobody times: threads begin, pages are touched. Every repetition begins with
    runs that are not timed, because the method before has left its own data in the caches, and its threads may still
    spin; that of a short method is the mean of a series that lasts its share of `timing.short_seconds`. A
    method is slow (see `TimingProtocol`) against the fastest of those named before it, so name a fast one first.

    Args:
        methods: name -> one run with all its arguments. Results are checked by the caller, before.
        timing: its `rounds` are the caller's: one call is one round.
        threads: of every method but those in `serial`, which run on one.
        settle: seconds of runs before a repetition, at least one run. Idle threads of OpenBLAS spin for 0.13 s.
        processor, wall: clocks in seconds; that of all threads there are after the first runs, unless given.

    Returns:
        A measurement for every method, in the order given; wall and processor seconds.
    """
    for run in methods.values():
        run()
    clock = processor or processor_clock()
    watches = {name: Stopwatch(in_series(run, clock, wall), timing, threads=1 if name in serial else threads)
               for name, run in methods.items()}
    return _in_turn(watches, timing, lambda name: _settle(methods[name], settle, wall))


def interleaved_on_device(
    methods: Mapping[str, Callable[[], None]], timing: TimingProtocol, repeat: Callable[[Callable[[], None]], Repeat],
) -> dict[str, Measurement]:
    """Time methods in turn as `interleaved` does, by the clock of a device.

    Args:
        repeat: makes what times single runs, such as `Gpu.repeat`, of a call that only asks the device.

    Returns:
        A measurement for every method, in the order given; seconds of the device.
    """
    for run in methods.values():
        run()
    watches = {name: Stopwatch(repeat(run), timing, threads=1, kind="device") for name, run in methods.items()}
    return _in_turn(watches, timing, lambda name: methods[name]())


def _in_turn(
    watches: Mapping[str, Stopwatch], timing: TimingProtocol, prepare: Callable[[str], None],
) -> dict[str, Measurement]:
    visits, best = {}, math.inf
    for name, watch in watches.items():
        prepare(name)
        visits[name] = watch.warm_up(best)
        best = min(best, watch.warm_seconds)
    order = list(watches)
    for turn in range(timing.repetitions):
        start = turn % max(1, len(order))
        for name in order[start:] + order[:start]:
            if turn < visits[name]:
                prepare(name)
                watches[name].visit()
    return {name: watch.measurement() for name, watch in watches.items()}


def _settle(run: Callable[[], None], seconds: float, wall: Clock) -> None:
    start = wall()
    run()
    while wall() - start < seconds:
        run()


def repeat_of(call: Call) -> Repeat:
    """Time a call that has run once: its threads have begun, so their clocks exist."""
    return repeated(call, thread_clocks()) if isinstance(call, NativeCall) else in_series(call, processor_clock())


def repeated(call: NativeCall, clocks: Sequence[int]) -> Repeat:
    """Time runs in a loop of C.

    Args:
        clocks: of the threads that run, see `thread_clocks`.
    """
    numbers, repeat = (ctypes.c_int32 * len(clocks))(*clocks), _repeat_function()

    def timed(seconds: float) -> Repetition:
        spent = _Spent()
        repeat(call.run, ctypes.byref(call.arguments), seconds, numbers, len(clocks), ctypes.byref(spent))
        return Repetition(spent.wall / spent.runs, spent.processor / spent.runs, spent.runs)

    return timed


class _Spent(ctypes.Structure):
    _fields_ = (("wall", ctypes.c_double), ("processor", ctypes.c_double), ("runs", ctypes.c_int64))


@cache
def _repeat_function() -> Callable[..., None]:
    function = compile_cpp(["cpu/repeat.cpp"]).sparloom_repeat
    function.restype = None
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_double, ctypes.c_void_p, ctypes.c_int32,
                         ctypes.c_void_p]
    return function
