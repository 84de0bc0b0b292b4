"""The CPU as a platform: results, refusals, interleaved rounds."""


import numpy as np
import pytest

from sparloom.errors import IllegalSchedule
from sparloom.measure import TimingProtocol
from sparloom.ops import SDDMM, Operands, SpMM, assert_close
from sparloom.platforms import CpuPlatform, SpotCheck
from sparloom.platforms.cpu_schedules import Kernels
from sparloom.sparse import Pattern, SparseMatrix

pytestmark = pytest.mark.cc

OPS = [SpMM(), SDDMM()]
WIDTH = 20
TIMING = TimingProtocol(rounds=2, repetitions=2, short_seconds=0.0, most_repetitions=2, slow_factor=3.0,
                        steal_ratio=1.1, retakes=0, seed=0)


@pytest.fixture
def platform() -> CpuPlatform:
    return CpuPlatform(threads=2, width=WIDTH, orders="all", preset="test", readings=None)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_default_runs_on_every_shape(platform, matrix, op):
    operands = op.operands(matrix, WIDTH, seed=0)
    result = platform.run(op, operands, platform.baseline(op, matrix.pattern))
    oracle = op.oracle(operands)
    assert result.shape == oracle.shape
    assert_close(result, oracle, terms=op.terms(matrix.pattern, WIDTH), scale=op.scale(operands))


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_sampled_schedules_give_the_same_result(platform, hub_matrix, op):
    operands = op.operands(hub_matrix, WIDTH, seed=3)
    oracle = op.oracle(operands)
    space = platform.space(op).bind(hub_matrix.pattern.shape)
    done = 0
    for config in space.sample(12, np.random.default_rng(5)):
        try:
            result = platform.run(op, operands, config)
        except IllegalSchedule:
            continue
        assert_close(result, oracle, terms=op.terms(hub_matrix.pattern, WIDTH), scale=op.scale(operands))
        done += 1
    assert done >= 5


def test_a_configuration_outside_the_space_is_refused(platform, hub_matrix):
    operands = OPS[0].operands(hub_matrix, WIDTH, seed=0)
    config = platform.baseline(OPS[0], hub_matrix.pattern).replace(rows_tile=12)
    with pytest.raises(IllegalSchedule, match="rows_tile"):
        platform.run(OPS[0], operands, config)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_rounds_measure_every_configuration_and_repeat_the_default(platform, hub_matrix, op):
    operands = op.operands(hub_matrix, WIDTH, seed=0)
    configs = platform.space(op).bind(hub_matrix.pattern.shape).sample(6, np.random.default_rng(1))
    taken = list(platform.measure_many(op, operands, configs, TIMING))
    rounds = {}
    for config, number, measurement in taken:
        assert (number not in rounds.setdefault(config, {}))
        rounds[config][number] = measurement
    baseline = platform.baseline(op, hub_matrix.pattern)
    assert set(rounds) == set(configs)
    for config, measurements in rounds.items():
        assert set(measurements) == ({0, 1, 2, 3, 4, 5} if config == baseline else {0, 1})
        for measurement in measurements.values():
            assert measurement.kind == "wall"
            assert measurement.failure is not None or 1 <= len(measurement.seconds) <= TIMING.repetitions
            assert len(measurement.cpu_seconds) == len(measurement.seconds)


def test_refused_configurations_give_their_reason_once_per_round(platform):
    pattern = Pattern.from_coo(np.array([0, 900]), np.array([3, 4000]), (1000, 5000))
    operands = OPS[0].operands(SparseMatrix(pattern, np.ones(2, np.float32)), WIDTH, seed=0)
    config = platform.baseline(OPS[0], pattern).replace(formats="UUCU")
    taken = list(platform.measure_many(OPS[0], operands, [config], TIMING))
    assert [(each, number) for each, number, _ in taken] == [(config, 0), (config, 1)]
    assert all(measurement.failure.startswith("fill: 5120000 values for 2 nonzeros") for _, _, measurement in taken)
    assert platform.measure(OPS[0], operands, config, TIMING).failure == taken[0][2].failure


def test_operands_of_the_caller_are_not_touched(platform, hub_matrix):
    operands = OPS[0].operands(hub_matrix, WIDTH, seed=0)
    before = operands.dense["B"].copy()
    operands.dense["B"].setflags(write=False)
    platform.measure(OPS[0], operands, platform.baseline(OPS[0], hub_matrix.pattern), TIMING)
    np.testing.assert_array_equal(operands.dense["B"], before)


def test_configurations_of_one_program_are_compiled_once(platform, hub_matrix, monkeypatch):
    operands = OPS[0].operands(hub_matrix, WIDTH, seed=0)
    config = platform.baseline(OPS[0], hub_matrix.pattern)
    platform.run(OPS[0], operands, config)
    monkeypatch.setattr("sparloom.platforms.cpu_schedules.kernels.compile_c",
                        lambda *_, **__: pytest.fail("compiled again"))
    for same in (config, config.replace(chunk=64), config.replace(rows_tile=8)):
        platform.run(OPS[0], operands, same)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_a_wrong_result_stops_the_measurement(platform, hub_matrix, op, monkeypatch):
    operands = op.operands(hub_matrix, WIDTH, seed=0)
    config = platform.baseline(op, hub_matrix.pattern)
    platform.run(op, operands, config)
    monkeypatch.setattr(Kernels, "bind", lambda *_, **__: lambda: None)
    with pytest.raises(AssertionError, match=f"{op.name} with rows_tile=.* is wrong in the sampled rows"):
        list(platform.measure_many(op, operands, [config], TIMING))


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_the_spot_check_holds_the_longest_row(hub_matrix, op):
    rows = np.repeat(np.arange(400), 2)
    rows = np.concatenate([rows, np.full(50, 123)])
    pattern = Pattern.from_coo(rows, np.arange(rows.size) % 60, (400, 60))
    operands = op.operands(SparseMatrix(pattern, np.ones(pattern.nnz, np.float32)), WIDTH, seed=0)
    spot_check = SpotCheck(op, operands, seed=0)
    assert 123 in spot_check.rows
    right = op.oracle(operands).astype(np.float32)
    spot_check.check(right, "config")
    wrong = right.copy()
    wrong[123 if op.name == "spmm" else pattern.indptr[123]] += 1
    with pytest.raises(AssertionError, match="wrong in the sampled rows"):
        spot_check.check(wrong, "config")


def test_widths_other_than_the_space_run_too(platform, hub_matrix):
    operands = OPS[0].operands(hub_matrix, 7, seed=0)
    assert isinstance(operands, Operands)
    result = platform.run(OPS[0], operands, platform.baseline(OPS[0], hub_matrix.pattern))
    assert_close(result, OPS[0].oracle(operands), terms=OPS[0].terms(hub_matrix.pattern, 7))
