"""Orders are permutations that keep values and neighbours, and let more iterations fuse."""


import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import patterns

from sparloom.fusion import (
    Reads,
    Reordered,
    TileSchedule,
    gemm_spmm_loops,
    rescue_order,
    schedule_tiles,
)
from sparloom.sparse import Pattern, reorder

pytestmark = pytest.mark.cc


def _schedule(pattern: Pattern, *, ct_size: int) -> TileSchedule:
    loops = gemm_spmm_loops(Reads.of(pattern), inner=1, width=1, element_bytes=4)
    return schedule_tiles(loops, threads=1, cache_bytes=1 << 40, ct_size=ct_size)


def _fused(pattern: Pattern, order: np.ndarray, *, ct_size: int) -> float:
    return _schedule(Reordered.of(pattern, order).pattern, ct_size=ct_size).fused_rows


@settings(deadline=None)
@given(patterns(20, square=True), st.randoms(use_true_random=False))
def test_reordering_moves_rows_columns_and_values_together(pattern, random):
    order = np.arange(pattern.rows)
    random.shuffle(order)
    reordered = Reordered.of(pattern, order)
    values = np.arange(1.0, pattern.nnz + 1)
    dense = scipy.sparse.csr_array((values, pattern.indices, pattern.indptr), shape=pattern.shape).toarray()
    moved = scipy.sparse.csr_array(
        (reordered.values(values), reordered.pattern.indices, reordered.pattern.indptr), shape=pattern.shape)
    assert np.array_equal(moved.toarray(), dense[order][:, order])
    assert reordered.pattern == reorder(pattern, order, order)


def test_bandwidth_order_applies_where_almost_nothing_is_fused():
    rows = np.arange(400)
    shuffled = np.random.default_rng(1).permutation(400)
    chain = Pattern.from_coo(*np.nonzero(abs(np.subtract.outer(rows, rows)) == 1), (400, 400))
    hidden = reorder(chain, shuffled, shuffled)
    none_fused = _schedule(hidden, ct_size=1)
    assert none_fused.fused_ratio == 0.0
    order = rescue_order(none_fused, hidden)
    assert _fused(hidden, order, ct_size=100) > 0.95
    assert rescue_order(_schedule(chain, ct_size=100), chain) is None


def test_meaningless_arguments_are_rejected():
    square = Pattern((3, 3), np.zeros(4, int), np.zeros(0, int))
    for order in ([0, 1], [0, 1, 1], [0, 1, 3]):
        with pytest.raises(ValueError, match="is not a permutation of 0 to 2"):
            Reordered.of(square, np.array(order))
