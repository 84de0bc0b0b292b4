"""Hand-written kernels as a platform: interleaved sweeps, checks, baselines, refusals."""

from dataclasses import replace

import numpy as np
import pytest

from sparloom.errors import IllegalSchedule
from sparloom.measure import TimingProtocol
from sparloom.ops import GEMM, GemmShape
from sparloom.platforms import Contender, CpuKernels, GemmKernels, Stopwatch, one_by_one, sweep
from sparloom.space import Config, GemmSpace

pytestmark = pytest.mark.cc

OP = GEMM()
TIMING = TimingProtocol(rounds=2, repetitions=3, short_seconds=3e-4, most_repetitions=3, slow_factor=3.0,
                        steal_ratio=100.0, retakes=0, seed=0)
OPERANDS = OP.operands(GemmShape(30, 40, 20), seed=0)
CONFIGS = GemmSpace().sample(5, np.random.default_rng(0))
NUMPY = Config("vendor", (("vendor", "numpy"),))


@pytest.fixture
def platform() -> CpuKernels:
    return CpuKernels(1, 32)


def numpy_rival(operands, result):
    return lambda: np.matmul(operands.dense["A"], operands.dense["B"], out=result)


def test_every_configuration_is_measured_in_every_round(platform):
    found = {(config, number): measurement
             for config, number, measurement in platform.measure_many(OP, OPERANDS, CONFIGS, TIMING)}
    assert set(found) == {(config, number) for config in CONFIGS for number in (0, 1)}
    for measurement in found.values():
        assert len(measurement.seconds) == len(measurement.cpu_seconds) == 3
        assert 1e-7 < min(measurement.seconds) < 1e-2


def test_baselines_are_timed_and_checked_like_configurations(platform):
    def wrong_rival(operands, result):
        return lambda: result.fill(0)

    wrong = Config("vendor", (("vendor", "wrong"),))
    rows = platform.measure_many(OP, OPERANDS, CONFIGS, replace(TIMING, rounds=1),
                                 {NUMPY: numpy_rival, wrong: wrong_rival})
    found = {config: measurement for config, _, measurement in rows}
    assert set(found) == {*CONFIGS, NUMPY, wrong}
    assert min(found[NUMPY].seconds) > 0
    assert found[wrong].failure.startswith("wrong result: element (")


def test_a_wrong_result_is_a_logged_failure(platform, monkeypatch, caplog):
    bind = GemmKernels.bind

    def spoiled(family, operands, config, result):
        call = bind(family, operands, config, result)
        return call if config != CONFIGS[2] else lambda: (call(), result.__setitem__((7, 8), 0))

    monkeypatch.setattr(GemmKernels, "bind", spoiled)
    rows = list(platform.measure_many(OP, OPERANDS, CONFIGS, TIMING))
    failed = [(config, number) for config, number, measurement in rows if measurement.failure]
    assert failed == [(CONFIGS[2], 0), (CONFIGS[2], 1)]
    assert f"{CONFIGS[2]} computes something else than the oracle: element (7, 8) is 0.0" in caplog.text


def test_every_round_has_its_own_operands(platform, monkeypatch):
    bind, places = GemmKernels.bind, []
    monkeypatch.setattr(GemmKernels, "bind", lambda family, operands, config, result: (
        places.append((operands.dense["A"], result)), bind(family, operands, config, result))[1])
    list(platform.measure_many(OP, OPERANDS, CONFIGS[:2], TIMING))
    addresses = [tuple(array.ctypes.data for array in place) for place in places]
    assert addresses[0] == addresses[1] != addresses[2] == addresses[3]
    assert not np.may_share_memory(places[0][0], OPERANDS.dense["A"])


class Tape:
    """Calls of given lengths on a simulated clock; records their names in order."""

    def __init__(self):
        self.now = 0.0
        self.names = []

    def contender(self, name, seconds):
        def run():
            self.now += seconds
            self.names.append(name)

        return Contender(Config("toy", (("name", name),)), run)

    def sweep(self, contenders, rng, **timing):
        def clock():
            return self.now

        taken = sweep(contenders, np.zeros(1, np.float32), lambda _: None, rng=rng, stopwatch=lambda call: Stopwatch(
            one_by_one(call, clock, clock), replace(TIMING, short_seconds=0.0, **timing), threads=1))
        return {config["name"]: measurement for config, measurement in taken}


def test_repetitions_are_interleaved_in_another_order_each():
    tape = Tape()
    taken = tape.sweep([tape.contender(name, 1.0) for name in "abcd"], np.random.default_rng(3))
    passes = [tape.names[8 + 4 * turn : 12 + 4 * turn] for turn in range(3)]
    assert [sorted(names) for names in passes] == [list("abcd")] * 3
    assert len({tuple(names) for names in passes}) > 1
    assert all(measurement.seconds == (1.0, 1.0, 1.0) for measurement in taken.values())


def test_far_slower_than_the_fastest_is_run_less():
    tape = Tape()
    contenders = [tape.contender("fast", 1.0), tape.contender("slow", 10.0), tape.contender("slowest", 100.0)]
    taken = tape.sweep(contenders, _InOrder(), slow_factor=4.0)
    assert {name: measurement.seconds for name, measurement in taken.items()} == {
        "fast": (1.0, 1.0, 1.0), "slow": (10.0,), "slowest": (100.0,)}
    assert [tape.names.count(name) for name in ("fast", "slow", "slowest")] == [5, 4, 3]


class _InOrder:
    def permutation(self, count):
        return range(count)


def test_illegal_configurations_are_refused_before_anything_runs(platform):
    with pytest.raises(IllegalSchedule):
        next(platform.measure_many(OP, OPERANDS, [CONFIGS[0].replace(tile_k=3)], TIMING))
