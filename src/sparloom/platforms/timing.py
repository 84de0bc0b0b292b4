"""Timing several kernels side by side: repetitions interleave, because the speed of a machine drifts.

The speed changes within tenths of a second (neighbours share caches and memory). So every kernel is run and checked
once, then each takes its first repetition, then its second: a drift then affects all kernels alike. `measure_rounds`
times configurations of a platform, `interleaved` any named functions.
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

from sparloom.errors import Unsupported
from sparloom.jit import NativeCall, aligned, compile_cpp
from sparloom.measure import REPEATS, Kind, Measurement, TimingProtocol
from sparloom.ops import DenseOperands, Op, Operands, assert_close
from sparloom.platforms.clock import Clock, Repeat, Repetition, Stopwatch, in_series, processor_clock, thread_clocks
from sparloom.space import Config

log = logging.getLogger(__name__)

SPOT_ROWS = 16
SETTLE_SECONDS = 0.01  # idle threads of GNU OpenMP keep a processor busy for some milliseconds

Inputs = TypeVar("Inputs", Operands, DenseOperands)

Call = Callable[[], None]
"""A kernel with all its arguments; overwrites the result. A `NativeCall` is timed without Python in between."""

Check = Callable[[Any], None]
"""Compares a result, as the calls leave it, with the oracle; raises AssertionError."""


def reallocated(operands: Inputs) -> Inputs:
    """Copy the dense operands to new pages, so that seconds do not depend on one position in memory."""
    dense = {}
    for name, array in operands.dense.items():
        dense[name] = aligned(array.shape, array.dtype)
        dense[name][...] = array
    return replace(operands, dense=dense)


class SpotCheck:
    """The oracle's result for some rows of A, the longest among them: cheap enough to check every configuration."""

    def __init__(self, op: Op, operands: Operands, *, seed: int) -> None:
        pattern = operands.matrix.pattern
        rng = np.random.default_rng(seed)
        drawn = rng.choice(pattern.rows, size=min(SPOT_ROWS, pattern.rows), replace=False)
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
        """Compare as `check`, but leave naming the configuration to the caller."""
        picked = result[self.nonzeros] if self.op.name == "sddmm" else result[self.rows]
        assert_close(picked, self.oracle, terms=self.terms, scale=self.scale)

    def compare_written(self, result: np.ndarray) -> None:
        """Compare a result that held NaN before the kernel ran, and refuse one in which any element still does."""
        self.compare(result)
        if np.isnan(result.sum(dtype=np.promote_types(result.dtype, np.float32))):
            rows = np.unique(np.argwhere(np.isnan(result))[:, 0])
            raise AssertionError(f"{rows.size} rows hold NaN, the first is {rows[0]}")


@dataclass(frozen=True)
class Contender:
    """A call and the configuration to which its seconds belong."""

    config: Config
    call: Call


def measure_rounds(
    prepare: Callable[[], tuple[Mapping[Config, Callable[[], Call]], Any]], check: Check, timing: TimingProtocol, *,
    kind: Kind, stopwatch: Callable[[Call], Stopwatch], repeated: Collection[Config] = (),
) -> Iterator[tuple[Config, int, Measurement]]:
    """Bind configurations anew in every round, and check and time them in one sweep.

    Args:
        prepare: copies the operands and allocates a result; returns configuration -> what binds its call, and the
            result. A configuration whose binding raises Unsupported becomes a failed measurement.
        stopwatch: makes the stopwatch of a call that has run once.
        repeated: configurations that are measured REPEATS times more in each round (A/A), to tell the noise; numbered
            as rounds from `timing.rounds` on.

    Yields:
        Configuration, number of the round, measurement.
    """
    rng = np.random.default_rng(timing.seed)
    for number in range(timing.rounds):
        binders, result = prepare()
        contenders, refused = _bound(binders)
        contenders += [each for each in contenders if each.config in repeated for _ in range(REPEATS)]
        first = timing.rounds + REPEATS * number
        numbers = {config: iter((number, *range(first, first + REPEATS))) for config in repeated}
        for config, reason in refused.items():
            yield config, number, Measurement.failed(reason, kind)
        for config, measurement in sweep(contenders, result, check, stopwatch=stopwatch, rng=rng):
            yield config, next(numbers[config]) if config in numbers else number, measurement


def sweep(
    contenders: Sequence[Contender], result: Any, check: Check, *, stopwatch: Callable[[Call], Stopwatch],
    rng: np.random.Generator,
) -> Iterator[tuple[Config, Measurement]]:
    """Check and time all contenders; nothing is yielded before the last repetition, so that the caller disturbs none.

    Whether a contender is slow (see `TimingProtocol`) is decided against the fastest one so far.

    Args:
        result: the array that all of them overwrite, of the host or of a device.
        stopwatch: makes the stopwatch of a call that has run once.
    """
    best = math.inf
    started: list[tuple[Contender, Stopwatch, int]] = []
    wrong: dict[Config, Measurement] = {}
    for index in rng.permutation(len(contenders)):
        contender = contenders[index]
        result.fill(np.nan)
        contender.call()
        watch = stopwatch(contender.call)
        fault = _fault(check, result)
        if fault is not None:
            log.error("%s computes something else than the oracle: %s", contender.config, fault)
            wrong[contender.config] = Measurement.failed(f"wrong result: {fault}", watch.kind)
            continue
        visits = watch.warm_up(best)
        best = min(best, watch.warm_seconds)
        started.append((contender, watch, visits))
    for turn in range(max((visits for _, _, visits in started), default=0)):
        for index in rng.permutation(len(started)):
            _, watch, visits = started[index]
            if turn < visits:
                watch.visit()
    yield from wrong.items()
    for contender, watch, _ in started:
        yield contender.config, watch.measurement()


def interleaved(
    methods: Mapping[str, Callable[[], None]], timing: TimingProtocol, *, threads: int, serial: Collection[str] = (),
    settle: float = SETTLE_SECONDS, processor: Clock | None = None, wall: Clock = time.perf_counter,
) -> dict[str, Measurement]:
    """Time methods in turn, A B C, then B C A, then C A B, until each has the protocol's repetitions.

    Every method first runs once untimed: threads start, pages are touched. Every repetition begins with untimed runs,
    because the method before has left its own data in the caches, and its threads may still spin. A repetition of a
    short method is the mean of a series that lasts its share of `timing.short_seconds`. Whether a method is slow (see
    `TimingProtocol`) is decided against the fastest one named before it, so name a fast one first.

    Args:
        methods: name -> one run with all its arguments. The caller checks the results beforehand.
        timing: its `rounds` are left to the caller: one call is one round.
        threads: of every method except those in `serial`, which run on one.
        settle: seconds of untimed runs before a repetition, at least one run. Idle threads of OpenBLAS spin for 0.13 s.
        processor, wall: clocks in seconds; default: of all threads that exist after the first runs.

    Returns:
        A measurement for every method, in the order of `methods`; wall and processor seconds.
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
        repeat: makes the timer of a call that only launches work on the device, such as `Gpu.repeat`.

    Returns:
        A measurement for every method, in the order of `methods`; seconds of the device.
    """
    for run in methods.values():
        run()
    watches = {name: Stopwatch(repeat(run), timing, threads=1, kind="device") for name, run in methods.items()}
    return _in_turn(watches, timing, lambda name: methods[name]())


def repeat_of(call: Call) -> Repeat:
    """Make the timer of a call that has run once, so that its threads exist and have clocks."""
    return repeated(call, thread_clocks()) if isinstance(call, NativeCall) else in_series(call, processor_clock())


def repeated(call: NativeCall, clocks: Sequence[int]) -> Repeat:
    """Make a timer that repeats a compiled kernel in a C loop, without Python in between.

    Args:
        clocks: of the threads that run, see `thread_clocks`.
    """
    numbers, repeat = (ctypes.c_int32 * len(clocks))(*clocks), _repeat_function()

    def timed(seconds: float) -> Repetition:
        spent = _Spent()
        repeat(call.run, ctypes.byref(call.arguments), seconds, numbers, len(clocks), ctypes.byref(spent))
        return Repetition(spent.wall / spent.runs, spent.processor / spent.runs, spent.runs)

    return timed


def _bound(binders: Mapping[Config, Callable[[], Call]]) -> tuple[list[Contender], dict[Config, str]]:
    """Bind all configurations; those that cannot run come with the reason."""
    contenders, refused = [], {}
    for config, bind in binders.items():
        try:
            contenders.append(Contender(config, bind()))
        except Unsupported as error:
            refused[config] = str(error)
    return contenders, refused


def _fault(check: Check, result: Any) -> str | None:
    try:
        check(result)
    except AssertionError as error:
        return str(error)
    return None


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


class _Spent(ctypes.Structure):
    _fields_ = (("wall", ctypes.c_double), ("processor", ctypes.c_double), ("runs", ctypes.c_int64))


@cache
def _repeat_function() -> Callable[..., None]:
    function = compile_cpp(["cpu/repeat.cpp"]).sparloom_repeat
    function.restype = None
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_double, ctypes.c_void_p, ctypes.c_int32,
                         ctypes.c_void_p]
    return function
