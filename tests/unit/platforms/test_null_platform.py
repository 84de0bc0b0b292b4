"""The platform without hardware behaves like a real one."""

import numpy as np
import pytest

from sparloom.errors import IllegalSchedule
from sparloom.measure import TimingProtocol
from sparloom.ops import SDDMM, SpMM
from sparloom.platforms import NullPlatform
from sparloom.sparse import Pattern, SparseMatrix

TIMING = TimingProtocol(rounds=2, repetitions=1, short_seconds=0.0, most_repetitions=1, slow_factor=float("inf"),
                        steal_ratio=float("inf"), retakes=0, seed=0)


@pytest.fixture
def matrix() -> SparseMatrix:
    pattern = Pattern.from_coo(np.array([0, 0, 3]), np.array([1, 2, 0]), (4, 3))
    return SparseMatrix(pattern, np.array([1, 2, 3], np.float32))


@pytest.mark.parametrize("op", [SpMM(), SDDMM()], ids=lambda op: op.name)
def test_results_are_the_oracle(matrix, op):
    platform, operands = NullPlatform(width=4, preset="formula"), op.operands(matrix, 4, seed=0)
    result = platform.run(op, operands, platform.baseline(op, matrix.pattern))
    np.testing.assert_array_equal(result, op.oracle(operands).astype(np.float32))


def test_seconds_repeat_and_differ_between_configurations(matrix):
    platform, op = NullPlatform(width=4, preset="formula"), SpMM()
    operands = op.operands(matrix, 4, seed=0)
    configs = platform.space(op).bind(matrix.pattern.shape).sample(30, np.random.default_rng(0))
    first, again = ([m.best for _, _, m in platform.measure_many(op, operands, configs, TIMING)] for _ in range(2))
    assert first == again
    assert len(set(first)) > 5


def test_illegal_configurations_are_refused_and_recorded(matrix):
    platform, op = NullPlatform(width=4, preset="formula"), SpMM()
    operands = op.operands(matrix, 4, seed=0)
    config = platform.baseline(op, matrix.pattern).replace(chunk=3)
    with pytest.raises(IllegalSchedule, match="chunk"):
        platform.run(op, operands, config)
    (_, _, measured), = platform.measure_many(op, operands, [config], TIMING)
    assert "chunk" in measured.failure
    assert measured.kind == "simulated"
