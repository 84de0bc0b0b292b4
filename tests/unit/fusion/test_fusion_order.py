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
    bandwidth_order,
    coarse_tiles,
    gemm_spmm_loops,
    metis_order,
    partition_order,
    rescue_order,
    schedule_tiles,
)
from sparloom.sparse import Pattern, reorder

pytestmark = pytest.mark.cc


def _schedule(pattern: Pattern, *, ct_size: int) -> TileSchedule:
    loops = gemm_spmm_loops(Reads.of(pattern), inner=1, width=1, element_bytes=4)
    return schedule_tiles(loops, threads=1, cache_bytes=1 << 40, ct_size=ct_size)


def _mesh(side: int) -> Pattern:
    """Seven-point stencil on a cube."""
    line = scipy.sparse.diags_array(np.ones((3, side)), offsets=[-1, 0, 1], shape=(side, side))
    same = scipy.sparse.eye_array(side)
    axes = [(line, same, same), (same, line, same), (same, same, line)]
    return Pattern.from_scipy(sum(scipy.sparse.kron(scipy.sparse.kron(a, b), c) for a, b, c in axes))


def _fused(pattern: Pattern, order: np.ndarray, *, ct_size: int) -> float:
    return _schedule(Reordered.of(pattern, order).pattern, ct_size=ct_size).fused_rows


@settings(deadline=None)
@given(patterns(40, square=True), st.integers(1, 9))
def test_a_partition_order_is_a_permutation(pattern, parts):
    order = partition_order(pattern, parts=parts)
    assert order.dtype == np.int32
    assert np.array_equal(np.sort(order), np.arange(pattern.rows))
    assert np.array_equal(partition_order(pattern, parts=parts), order)


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


def test_a_partition_order_fuses_a_mesh_whose_layers_exceed_a_tile():
    mesh = _mesh(24)
    parts = coarse_tiles(mesh.rows, threads=1, ct_size=mesh.rows // 8)
    natural, ct_size = np.arange(mesh.rows), mesh.rows // 8
    assert _fused(mesh, natural, ct_size=ct_size) < 0.7
    assert _fused(mesh, partition_order(mesh, parts=parts), ct_size=ct_size) > 0.75


def test_a_partition_order_fuses_most_of_a_large_mesh():
    """The layers of Cuthill-McKee are smaller than a tile at two corners only."""
    mesh = _mesh(64)
    parts = coarse_tiles(mesh.rows, threads=1, ct_size=4096)
    assert _fused(mesh, np.arange(mesh.rows), ct_size=4096) < 0.05
    assert _fused(mesh, bandwidth_order(mesh), ct_size=4096) < 0.2
    assert _fused(mesh, partition_order(mesh, parts=parts), ct_size=4096) >= 0.7


def test_metis_order_fuses_a_mesh():
    pytest.importorskip("pymetis", reason="pymetis is not installed: pip install sparloom[peers]")
    mesh = _mesh(24)
    order = metis_order(mesh, parts=8)
    assert np.array_equal(np.sort(order), np.arange(mesh.rows))
    assert _fused(mesh, order, ct_size=mesh.rows // 8) > 0.7
    assert metis_order(mesh, parts=1).tolist() == list(range(mesh.rows))


def test_connected_components_stay_together():
    shuffled = np.random.default_rng(0).permutation(60)
    blocks = Pattern.from_coo(*np.nonzero(np.kron(np.eye(3), np.ones((20, 20)))), (60, 60))
    pattern = reorder(blocks, shuffled, shuffled)
    assert _fused(pattern, np.arange(60), ct_size=20) < 0.5
    assert _fused(pattern, partition_order(pattern, parts=3), ct_size=20) == 1.0


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
    with pytest.raises(ValueError, match="0 parts: there must be at least 1"):
        partition_order(square, parts=0)
    for order in ([0, 1], [0, 1, 1], [0, 1, 3]):
        with pytest.raises(ValueError, match="is not a permutation of 0 to 2"):
            Reordered.of(square, np.array(order))
