"""The timing protocol on simulated clocks."""

import math
import threading
from dataclasses import replace

import pytest

from sparloom.measure import TimingProtocol
from sparloom.platforms import Repeat, Repetition, Stopwatch, in_series, one_by_one, processor_clock

TIMING = TimingProtocol(rounds=1, repetitions=3, short_seconds=0.0, most_repetitions=3, slow_factor=3.0,
                        steal_ratio=1.1, retakes=2, seed=0)
SHORT = replace(TIMING, short_seconds=0.3, most_repetitions=12, retakes=0)


class Machine:
    """Runs of given wall seconds on two threads, of which a share is processor time."""

    def __init__(self, *runs: tuple[float, float]) -> None:
        self.runs = list(runs)
        self.wall = self.processor = 0.0
        self.count = 0

    def run(self) -> None:
        seconds, busy = self.runs[min(self.count, len(self.runs) - 1)]
        self.count += 1
        self.wall += seconds
        self.processor += 2 * seconds * busy

    def watch(self, timing: TimingProtocol = TIMING) -> Stopwatch:
        return Stopwatch(self.repeat(), timing, threads=2)

    def repeat(self) -> Repeat:
        return one_by_one(self.run, processor=lambda: self.processor, wall=lambda: self.wall)


def measure(machine, timing=TIMING, baseline=math.inf):
    watch = machine.watch(timing)
    for _ in range(watch.warm_up(baseline)):
        watch.visit()
    return watch.measurement()


def test_the_warm_up_is_not_kept():
    measured = measure(Machine((5.0, 1.0), (1.0, 1.0), (2.0, 1.0), (3.0, 1.0)))
    assert measured.seconds == pytest.approx((1.0, 2.0, 3.0))
    assert measured.cpu_seconds == pytest.approx((2.0, 4.0, 6.0))
    assert not measured.stolen


def test_stolen_repetitions_are_retaken():
    measured = measure(Machine((1.0, 1.0), (9.0, 0.5), (1.0, 1.0), (2.0, 1.0), (9.0, 0.8), (3.0, 1.0)))
    assert measured.seconds == pytest.approx((1.0, 2.0, 3.0))
    assert not measured.stolen


def test_after_all_retakes_the_stolen_are_kept_and_marked():
    machine = Machine((1.0, 1.0), (9.0, 0.5))
    measured = measure(machine)
    assert measured.seconds == pytest.approx((9.0, 9.0, 9.0))
    assert measured.stolen
    assert machine.count == 1 + TIMING.retakes + TIMING.repetitions


def test_a_serial_kernel_is_compared_with_one_thread():
    machine = Machine((1.0, 0.5))
    watch = Stopwatch(machine.repeat(), TIMING, threads=1)
    watch.visit()
    assert not watch.measurement().stolen


@pytest.mark.parametrize(("seconds", "visits"), [(1.0, 3), (2.9, 3), (3.1, 1), (8.9, 1), (9.1, 0)])
def test_slow_configurations_are_visited_less(seconds, visits):
    assert Machine((seconds, 1.0)).watch().warm_up(1.0) == visits


def test_a_stolen_slow_warm_up_is_retaken():
    machine = Machine((30.0, 0.5), (30.0, 0.5), (20.0, 1.0))
    measured = measure(machine, baseline=1.0)
    assert measured.seconds == (20.0,)
    assert not measured.stolen


def test_short_runs_are_repeated_within_a_visit():
    assert len(measure(Machine((0.04, 1.0)), SHORT).seconds) == 3 * 3
    assert len(measure(Machine((0.001, 1.0)), SHORT).seconds) == 3 * 4
    assert len(measure(Machine((0.2, 1.0)), SHORT).seconds) == 3


def test_runs_repeated_without_a_pause_fill_a_visit_at_once():
    asked = []

    def repeat(seconds: float) -> Repetition:
        asked.append(seconds)
        runs = 1 + int(seconds / 0.001)
        return Repetition(wall=0.001, processor=0.002, runs=runs)

    watch = Stopwatch(repeat, SHORT, threads=2)
    for _ in range(watch.warm_up(1.0)):
        watch.visit()
    assert asked == pytest.approx([0.0, 0.1, 0.1, 0.1])
    assert watch.measurement().seconds == (0.001,) * 3


def test_a_series_lasts_as_long_as_requested():
    machine = Machine((1e-4, 1.0))
    repeat = in_series(machine.run, processor=lambda: machine.processor, wall=lambda: machine.wall)
    assert repeat(0.0) == pytest.approx((1e-4, 2e-4, 1))
    series = repeat(0.01)
    assert series[:2] == pytest.approx((1e-4, 2e-4))
    assert 100 <= series.runs <= 106


def test_processor_clock_advances_with_work():
    clock = processor_clock()
    before = clock()
    sum(range(300_000))
    assert 0 < clock() - before < 10


def test_processor_clock_outlives_the_threads_it_watches():
    leave = threading.Event()
    thread = threading.Thread(target=leave.wait)
    thread.start()
    clock = processor_clock()
    before = clock()
    leave.set()
    thread.join()
    assert clock() >= before
