"""Whether caches hold dense rows, and what follows for kernels."""

import numpy as np
import pytest

from sparloom.dispatch.caches import Caches
from sparloom.dispatch.csr.cpu_place import CpuPlace
from sparloom.ops import SDDMM, SpMM
from sparloom.sparse import Pattern, SparseMatrix

SMALL = Caches(near_bytes=1 << 12, far_bytes=1 << 17, threads=2)


def pattern(rows, columns):
    return Pattern((rows, rows), np.arange(rows + 1) * columns.shape[1], np.sort(columns, axis=1).ravel())


def random(rows):
    return pattern(rows, np.random.default_rng(0).permuted(np.tile(np.arange(rows), (rows, 1)), axis=1)[:, :8])


def banded(rows):
    return pattern(rows, np.clip(np.arange(rows)[:, None], 4, rows - 4) + np.arange(-4, 4))


@pytest.mark.parametrize(("rows", "overflow", "distant"), [
    (96, False, False), (97, True, False), (128, True, False), (129, True, True)])
def test_sizes_decide(rows, overflow, distant):
    assert SMALL.overflow(banded(rows), 32) is overflow  # 2 * rows * 32 * 4 bytes > 3 * 2 * 4 KiB
    assert SMALL.distant(banded(rows), 32) is distant  # ... > 128 KiB / 4


def test_random_columns_are_scattered_and_those_of_a_band_are_not():
    assert SMALL.scattered(banded(900), 16) < 0.05 < 0.8 < SMALL.scattered(random(900), 16)
    assert SMALL.scattered(pattern(3, np.empty((3, 0), int)), 16) == 0.0
    assert SMALL.scattered(pattern(9, np.arange(9)[:, None]), 16) == 1 / 9  # one run, fewer nonzeros than fit


def test_rows_are_requested_ahead_where_the_processor_does_not():
    assert SMALL.fetch("sddmm", random(900), 16)
    assert not SMALL.fetch("sddmm", banded(900), 16)
    assert not SMALL.fetch("sddmm", random(900), 256)  # long rows come anyway
    assert SMALL.fetch("spmm", banded(900), 16)
    assert not SMALL.fetch("spmm", random(60), 16)


def operands(op, found, width):
    return op.operands(SparseMatrix(found, np.ones(found.nnz, np.float32)), width, 0)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(Caches, "here", classmethod(lambda cls, threads: SMALL))


def test_the_safe_kernel_follows_the_caches(small):
    place = CpuPlace(2)
    near, far = (place.safe(SpMM(), operands(SpMM(), banded(rows), 16)) for rows in (60, 900))
    assert (near["stream"], near["prefetch"], near["balance"]) == (0, 0, "nonzeros")
    assert (far["stream"], far["prefetch"], far["balance"]) == (1, 4, "dynamic")
    wide = place.safe(SDDMM(), operands(SDDMM(), pattern(30, np.tile(np.arange(30), (30, 1))), 16))
    assert (wide["group"], wide["prefetch"]) == (16, 0)


def test_a_sample_does_not_choose_what_it_cannot_show(small):
    place, given = CpuPlace(2), operands(SpMM(), banded(900), 16)
    assert {config["stream"] for config in place.configs(SpMM(), given, sampled=True)} == {1}
    assert {config["prefetch"] for config in place.configs(SpMM(), given, sampled=True)} == {4, 8}
    assert {config["stream"] for config in place.configs(SpMM(), given, sampled=False)} == {0, 1}
    given = operands(SpMM(), banded(60), 16)
    assert {config["prefetch"] for config in place.configs(SpMM(), given, sampled=True)} == {0, 4, 8}
