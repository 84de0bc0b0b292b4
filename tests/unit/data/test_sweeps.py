"""Sweeps: a table as one array, without failures."""

import numpy as np
import pytest

from sparloom.data import Sample, SampleTable, Sweeps
from sparloom.errors import SchemaError


def sample(matrix: str, config: str, sweep: int, *seconds: float, width: int = 8, preset: str = "t1") -> Sample:
    return Sample(
        op="gemm", platform="cpu_kernels", preset=preset, matrix=matrix, width=width, config=config, round=sweep,
        seconds=seconds, cpu_seconds=(), kind="wall", failure=None if seconds else "wrong", stolen=False, machine="m",
        commit="", started="2000-01-01T00:00:00Z")


TABLE = SampleTable.of([
    sample("b", "tile=1", 0, 3.0, 2.0), sample("b", "tile=1", 1, 4.0), sample("b", "tile=2", 0, 5.0),
    sample("b", "tile=2", 1, 6.0), sample("a", "tile=1", 0, 1.0), sample("a", "tile=1", 1),
    sample("b", "old=1", 0, 9.0), sample("b", "tile=1", 0, 7.0, width=16), sample("b", "tile=1", 1, 8.0, width=16),
])


def test_least_repetition_of_every_problem_configuration_and_sweep():
    sweeps = Sweeps.of(TABLE, ["tile=2", "tile=1"])
    assert sweeps.problems == (("a", 8), ("b", 8), ("b", 16))
    nan = np.nan
    np.testing.assert_array_equal(
        sweeps.seconds, [[[nan, nan], [1.0, nan]], [[5.0, 6.0], [2.0, 4.0]], [[nan, nan], [7.0, 8.0]]])


def test_a_problem_is_complete_when_what_ran_once_ran_always():
    sweeps = Sweeps.of(TABLE, ["tile=2", "tile=1"])
    assert sweeps.complete.tolist() == [False, True, True]
    assert sweeps.take(sweeps.complete).problems == (("b", 8), ("b", 16))
    assert len(sweeps.take(np.array([2]))) == 1


def test_presets_are_not_mixed():
    table = SampleTable.concat([TABLE, SampleTable.of([sample("a", "tile=1", 0, 1.0, preset="t2")])])
    with pytest.raises(SchemaError, match=r"times of different preset are not comparable \(t1, t2\): filter the"):
        Sweeps.of(table, ["tile=1"])
