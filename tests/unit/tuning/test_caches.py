"""Dense rows that fit in caches, and the choice of kernels."""

import numpy as np
import pytest

from sparloom.ops import SDDMM, SpMM
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning import Caches
from sparloom.tuning.sparse import CpuBackend

SMALL = Caches(near_bytes=1 << 12, far_bytes=1 << 17, threads=2)


def pattern(rows, columns):
    return Pattern((rows, rows), np.arange(rows + 1) * columns.shape[1], np.sort(columns, axis=1).ravel())


def banded(rows):
    return pattern(rows, np.clip(np.arange(rows)[:, None], 4, rows - 4) + np.arange(-4, 4))


@pytest.mark.parametrize(("rows", "distant"), [(128, False), (129, True)])
def test_sizes_decide(rows, distant):
    assert SMALL.distant(banded(rows), 32) is distant  # 2 * rows * 32 * 4 bytes > 128 KiB / 4


def operands(op, found, width):
    return op.operands(SparseMatrix(found, np.ones(found.nnz, np.float32)), width, 0)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(Caches, "here", classmethod(lambda cls, threads: SMALL))


def test_the_safe_kernel_follows_the_caches(small):
    place = CpuBackend(2)
    near, far = (place.default_config(SpMM(), operands(SpMM(), banded(rows), 16)) for rows in (60, 900))
    assert (near["stream"], near["prefetch"], near["balance"]) == (0, 0, "nonzeros")
    assert (far["stream"], far["prefetch"], far["balance"]) == (1, 8, "nonzeros")


def test_sddmm_takes_groups_of_one_row_where_rows_are_long_and_narrow(small):
    def safe(rows, width, found=banded):
        return CpuBackend(2).default_config(SDDMM(), operands(SDDMM(), found(rows), width))

    def long(rows):
        return pattern(rows, np.tile(np.arange(30), (rows, 1)))

    assert [safe(30, width, long)["group"] for width in (16, 128, 129)] == [4, 4, 1]
    assert safe(30, 16)["group"] == 1
    assert [safe(rows, 16)["prefetch"] for rows in (60, 900)] == [0, 8]  # 2 * rows * 16 * 4 bytes: 7.5 and 112.5 KiB


@pytest.mark.parametrize(("rows", "stream"), [(60, 0), (900, 1)])
def test_no_race_chooses_whether_results_bypass_the_caches(small, rows, stream):
    place, given = CpuBackend(2), operands(SpMM(), banded(rows), 16)
    assert {config["stream"] for config in place.configs(SpMM(), given, sampled=False)} == {stream}


def test_a_sample_does_not_choose_prefetching(small):
    place, given = CpuBackend(2), operands(SpMM(), banded(900), 16)
    assert {config["stream"] for config in place.configs(SpMM(), given, sampled=True)} == {1}
    assert {config["prefetch"] for config in place.configs(SpMM(), given, sampled=True)} == {4, 8}
    given = operands(SpMM(), banded(60), 16)
    assert {config["prefetch"] for config in place.configs(SpMM(), given, sampled=True)} == {0, 4, 8}
