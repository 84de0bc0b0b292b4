"""The inspector: schedules of particular loops, and errors."""

import numpy as np
import pytest

from sparloom.fusion import (
    FusedLoops,
    Loop,
    Reads,
    TileSchedule,
    gemm_spmm_loops,
    schedule_tiles,
    spmm_gemm_loops,
    spmm_spmm_loops,
)
from sparloom.sparse import Pattern

pytestmark = pytest.mark.cc

BLOCKS = Reads.of(Pattern.from_coo(*np.nonzero(np.kron(np.eye(3), np.ones((4, 4)))), (12, 12)))


def _schedule(loops: FusedLoops, **changes: int) -> TileSchedule:
    return schedule_tiles(loops, **({"threads": 3, "cache_bytes": 10**6, "ct_size": 4} | changes))


def _gemm_spmm(reads: Reads) -> FusedLoops:
    return gemm_spmm_loops(reads, inner=2, width=2, element_bytes=4)


def test_a_split_moves_iterations_that_read_both_halves_to_wavefront_1():
    schedule = _schedule(_gemm_spmm(BLOCKS), cache_bytes=100)
    assert schedule.tiles[0] > 3
    assert schedule.fused_rows == 0.0
    assert schedule.needed.all()


def test_wavefront_1_is_balanced_by_nonzeros():
    """One row reads all of 40, and forty rows read two far apart: the long row has the work of thirteen others."""
    lengths = np.array([40, *(2 for _ in range(39))])
    columns = [*range(40), *(c for j in range(1, 40) for c in sorted((j, (j + 20) % 40)))]
    reads = Reads(np.cumsum([0, *lengths]), np.array(columns, np.int32), 40)
    schedule = _schedule(_gemm_spmm(reads), threads=2, ct_size=20)
    assert schedule.tiles == (2, 2)
    assert np.diff(schedule.second_ptr)[2:].tolist() == [14, 26]


@pytest.mark.parametrize("index", [-1, 12])
def test_reads_out_of_range_are_rejected(index):
    indices = BLOCKS.indices.copy()
    indices[21] = index
    broken = Reads(BLOCKS.indptr, indices, 12)
    for loops, loop in ((_gemm_spmm(broken), "two"),
                        (spmm_spmm_loops(BLOCKS, broken, width=2, element_bytes=4), "one")):
        with pytest.raises(ValueError, match=f"iteration 5 of loop {loop} reads a row that is outside 0 to 11"):
            _schedule(loops)


def test_reads_of_rows_that_loop_one_does_not_write_are_rejected():
    wide = Reads(np.zeros(4, np.int64), np.zeros(0, np.int32), 5)
    with pytest.raises(ValueError, match="loop two reads 5 rows, but loop one writes 3"):
        _gemm_spmm(wide)
    with pytest.raises(ValueError, match="reads of 3 iterations for a loop of 4"):
        Loop(4, wide, 1)


@pytest.mark.parametrize(("indptr", "indices", "message"), [
    (np.array([0, 2, 1]), np.zeros(1, np.int32), "indptr does not rise from 0 to 1"),
    (np.array([0, 1]), np.zeros(2, np.int32), "indptr does not rise from 0 to 2"),
    (np.zeros(0, np.int64), np.zeros(0, np.int32), "indptr does not rise from 0 to 0"),
    (np.array([0, 1], np.int32), np.zeros(1, np.int32), "indptr is int32 of shape .* list of int64"),
    (np.array([0, 1]), np.zeros(1, np.int64), "indices is int64 of shape .* list of int32"),
])
def test_reads_of_wrong_type_or_size_are_rejected(indptr, indices, message):
    with pytest.raises(ValueError, match=message):
        Reads(indptr, indices, 3)


def test_the_bytes_of_both_loops_are_those_of_equation_4():
    """Rows of 3 and 5 float64 values, pointers of 8 bytes, indices of 4."""
    reads = Reads.of(Pattern.from_coo(np.array([0, 1]), np.array([1, 0]), (2, 2)))
    sparse_3, sparse_5 = Loop(2, reads, 3 * 8 + 8, 12, 3 * 8), Loop(2, reads, 5 * 8 + 8, 12, 5 * 8)
    sizes = {"width": 3, "element_bytes": 8}
    assert gemm_spmm_loops(reads, inner=5, **sizes) == FusedLoops(Loop(2, None, 5 * 8 + 3 * 8, 0, 0), sparse_3)
    assert spmm_gemm_loops(reads, inner=5, **sizes) == FusedLoops(sparse_5, Loop(2, None, 3 * 8, 0, 0))
    other = Reads(reads.indptr, reads.indices, 7)
    assert spmm_spmm_loops(reads, other, **sizes) == FusedLoops(Loop(2, other, 3 * 8 + 8, 12, 3 * 8), sparse_3)


def test_reads_of_a_pattern_are_its_arrays():
    pattern = Pattern.from_coo(np.array([0, 1]), np.array([4, 0]), (2, 5))
    reads = Reads.of(pattern)
    assert reads.indptr is pattern.indptr
    assert reads.indices is pattern.indices
    assert (reads.extent, reads.iterations, reads.rising) == (5, 2, True)
    assert not Reads(pattern.indptr, pattern.indices, 5).rising


@pytest.mark.parametrize(("indptr", "indices", "message"), [
    (np.zeros((1, 2), np.int64), np.zeros(0, np.int32), r"indptr is int64 of shape \(1, 2\): .* list of int64"),
    (np.zeros(4, np.int64)[::2], np.zeros(0, np.int32), r"indptr is int64 of shape \(2,\): it must be a contiguous"),
    (np.array([0, 2]), np.zeros(4, np.int32)[::2], r"indices is int32 of shape \(2,\): it must be a contiguous"),
    (np.array([1, 2]), np.zeros(2, np.int32), "indptr does not rise from 0 to 2"),
    (np.array([0, 2, 1, 2]), np.zeros(2, np.int32), "indptr does not rise from 0 to 2"),
])
def test_noncontiguous_reads_and_decreasing_pointers_are_rejected(indptr, indices, message):
    with pytest.raises(ValueError, match=message):
        Reads(indptr, indices, 3)
