"""Methods timed side by side, on simulated clocks."""

from dataclasses import replace

import pytest

from sparloom.measure import TimingProtocol
from sparloom.platforms import interleaved

TIMING = TimingProtocol(rounds=1, repetitions=3, short_seconds=0.0, most_repetitions=3, slow_factor=3.0,
                        steal_ratio=1.1, retakes=2, seed=0)


class Machine:
    """Methods that take given seconds on a given number of threads, and the order in which they ran."""

    def __init__(self, **seconds):
        self.seconds, self.now, self.busy, self.order = seconds, 0.0, 0.0, []

    def measure(self, timing=TIMING, threads=2, serial=()):
        methods = {name: lambda name=name: self.run(name, 1 if name in serial else threads) for name in self.seconds}
        return interleaved(methods, timing, threads=threads, serial=serial, processor=lambda: self.busy,
                           wall=lambda: self.now)

    def run(self, name, threads):
        self.order.append(name)
        self.now += self.seconds[name]
        self.busy += threads * self.seconds[name]


def test_every_round_begins_with_another_method():
    machine = Machine(a=1.0, b=1.0, c=1.0)
    measured = machine.measure()
    assert "".join(machine.order) == "abc" + "aabbcc" + "aabbcc" + "bbccaa" + "ccaabb"
    assert list(measured) == ["a", "b", "c"]
    assert all(found.seconds == pytest.approx((1.0, 1.0, 1.0)) for found in measured.values())


def test_short_methods_run_in_series():
    machine = Machine(a=1.0)
    measured = machine.measure(replace(TIMING, short_seconds=12.0, most_repetitions=12))
    assert len(measured["a"].seconds) == 3
    assert len(machine.order) >= 2 + 3 * (1 + 4)


def test_threads_of_the_previous_method_are_idle():
    machine = Machine(a=0.001, b=0.001)
    machine.measure(replace(TIMING, repetitions=1, most_repetitions=1))
    runs = "".join(machine.order)
    assert runs.startswith("ab" + 10 * "a")
    assert runs.endswith(11 * "b")


def test_slow_methods_are_repeated_less():
    measured = Machine(fast=1.0, slow=5.0, slowest=20.0).measure()
    assert [len(found.seconds) for found in measured.values()] == [3, 1, 1]
