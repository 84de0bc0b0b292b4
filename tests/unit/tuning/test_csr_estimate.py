"""Seconds that the formula gives sparse kernels, computed by hand."""

import numpy as np
import pytest

from sparloom.ops import SpMM
from sparloom.platforms import CpuKernels
from sparloom.sparse import Pattern, SparseMatrix
from sparloom.tuning import Rates
from sparloom.tuning.sparse import CsrEstimate

ROWS, WIDTH = 100, 32
PRODUCTS = 4 * ROWS  # nonzeros
SECONDS_STREAMED = (2 * 4 * PRODUCTS + 8 * ROWS) / 1e9  # values and indices, and pointers, at the rate of memory


def operands(lengths):
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    pattern = Pattern((len(lengths), ROWS), indptr, np.concatenate([np.arange(length) for length in lengths]))
    return SpMM().operands(SparseMatrix(pattern, np.ones(pattern.nnz, np.float32)), WIDTH, seed=0)


def estimate(given, *, gathering, computing, balance="nonzeros", threads=2):
    """Estimate a kernel with these seconds for dense rows, all in the near cache, and for flops."""
    rates = Rates(flops=2 * PRODUCTS * WIDTH / computing, near=4 * PRODUCTS * WIDTH / gathering, far=1e9, memory=1e9,
                  near_bytes=1e6, far_bytes=1e7)
    config = CpuKernels(threads, WIDTH).space(SpMM()).config(balance=balance, prefetch=0, strip="all", stream=0)
    return CsrEstimate(rates, threads).score("spmm", given, [config])[0]


@pytest.mark.parametrize(("gathering", "computing"), [(1e-3, 4e-3), (4e-3, 1e-3)])
def test_the_longer_of_gathering_and_computing_counts_and_three_tenths_of_the_shorter(gathering, computing):
    found = estimate(operands([4] * ROWS), gathering=gathering, computing=computing)
    assert found == pytest.approx(4e-3 + 0.3 * 1e-3 + SECONDS_STREAMED, rel=1e-9)


def test_the_thread_with_most_nonzeros_counts_where_rows_are_shared_equally():
    """300 of 400 nonzeros lie in the first half of the rows: 1.5 times the mean of two threads."""
    given = operands([6] * 50 + [2] * 50)
    even, by_rows = (estimate(given, gathering=1e-3, computing=2e-3, balance=name) for name in ("nonzeros", "rows"))
    assert by_rows == pytest.approx(1.5 * even, rel=1e-9)
