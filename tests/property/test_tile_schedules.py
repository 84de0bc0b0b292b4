"""Tile schedules of any two loops: legal, balanced, within the cache, and those of the reference."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from strategies import patterns
from tile_reference import loop_cost, reference_schedule

from sparloom.fusion import (
    FusedLoops,
    Reads,
    TileSchedule,
    check_schedule,
    gemm_spmm_loops,
    schedule_tiles,
    spmm_gemm_loops,
    spmm_spmm_loops,
)
from sparloom.sparse import Pattern, reorder

pytestmark = pytest.mark.cc


@dataclass(frozen=True)
class Case:
    """Arguments of the inspector, and the dependences between the loops."""

    loops: FusedLoops
    dependences: Pattern
    threads: int
    cache_bytes: int
    ct_size: int

    def schedule(self) -> TileSchedule:
        return schedule_tiles(
            self.loops, threads=self.threads, cache_bytes=self.cache_bytes, ct_size=self.ct_size)

    def reference(self) -> TileSchedule:
        return reference_schedule(
            self.loops, threads=self.threads, cache_bytes=self.cache_bytes, ct_size=self.ct_size)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw loops over any square pattern, for caches that hold a row of the operands to all of them."""
    pattern = draw(st.one_of(patterns(40, square=True), structured()))
    n = pattern.rows
    mask = np.random.default_rng(draw(st.integers(0, 99))).random((n, n)) < draw(st.sampled_from([0.05, 0.5]))
    inner = Pattern.from_coo(*np.nonzero(mask), (n, n))
    width, element_bytes = draw(st.integers(1, 5)), draw(st.sampled_from([4, 8]))
    return _case(
        draw(st.sampled_from(["gemm_spmm", "spmm_spmm", "spmm_gemm"])), pattern, inner, width, element_bytes,
        threads=draw(st.integers(1, 3)), cache_bytes=draw(st.integers(1, 4000)), ct_size=draw(st.integers(1, 50)))


@st.composite
def structured(draw: st.DrawFn) -> Pattern:
    """Draw a diagonal, blocks on the diagonal, a band, or a row that reads everything; half of them permuted."""
    n, size = draw(st.integers(1, 60)), draw(st.integers(1, 10))
    i, j = np.indices((n, n))
    mask = draw(st.sampled_from([i == j, i // size == j // size, abs(i - j) <= size, (i == j) | (i == n // 2)]))
    pattern = Pattern.from_coo(*np.nonzero(mask), (n, n))
    if draw(st.booleans()):
        order = np.random.default_rng(draw(st.integers(0, 99))).permutation(n)
        pattern = reorder(pattern, order, order)
    return pattern


def _case(op: str, pattern: Pattern, inner: Pattern, width: int, element_bytes: int, **arguments: int) -> Case:
    reads, sizes = Reads.of(pattern), {"width": width, "element_bytes": element_bytes}
    if op == "gemm_spmm":
        return Case(gemm_spmm_loops(reads, inner=3, **sizes), pattern, **arguments)
    if op == "spmm_spmm":
        return Case(spmm_spmm_loops(reads, Reads.of(inner), **sizes), pattern, **arguments)
    one_to_one = Pattern.identity(pattern.rows)
    return Case(spmm_gemm_loops(reads, inner=3, **sizes), one_to_one, **arguments)


DENSE = Pattern((30, 30), np.arange(31) * 30, np.tile(np.arange(30), 30))
EMPTY = Pattern((30, 30), np.zeros(31, np.int64), np.zeros(0, np.int32))


@settings(deadline=None)
@given(cases())
@example(_case("spmm_spmm", DENSE, EMPTY, 1, 4, threads=3, cache_bytes=500, ct_size=7))
@example(_case("gemm_spmm", EMPTY, EMPTY, 1, 4, threads=2, cache_bytes=500, ct_size=7))
def test_the_schedule_is_that_of_the_reference(case):
    assert case.schedule() == case.reference()


def _shuffled(pattern: Pattern) -> Reads:
    """Make rows with decreasing columns and a repeated last column."""
    rows = [pattern.indices[begin:end][::-1].tolist() for begin, end in zip(pattern.indptr, pattern.indptr[1:],
                                                                            strict=False)]
    rows = [[*row, *row[:1]] for row in rows]
    indices = np.array([column for row in rows for column in row], dtype=np.int32)
    return Reads(np.cumsum([0, *map(len, rows)]), indices, pattern.cols)


def _far_apart(n: int) -> Pattern:
    """Read the first, a middle and the last column in every row: few columns of a wide range."""
    return Pattern.from_coo(np.repeat(np.arange(n), 3), np.tile([0, n // 2, n - 1], n), (n, n))


FAR = _far_apart(60)
NO_COLUMNS = Pattern((60, 60), np.zeros(61, np.int64), np.zeros(0, np.int32))


@pytest.mark.parametrize("loops", [
    gemm_spmm_loops(Reads.of(DENSE), inner=3, width=2, element_bytes=4),
    gemm_spmm_loops(Reads.of(FAR), inner=3, width=2, element_bytes=8),
    gemm_spmm_loops(_shuffled(FAR), inner=3, width=2, element_bytes=8),
    spmm_spmm_loops(Reads.of(DENSE), Reads.of(EMPTY), width=2, element_bytes=4),
    spmm_spmm_loops(Reads.of(EMPTY), Reads.of(DENSE), width=2, element_bytes=4),
    spmm_spmm_loops(Reads.of(FAR), Reads.of(NO_COLUMNS), width=2, element_bytes=4),
    spmm_spmm_loops(Reads.of(NO_COLUMNS), Reads.of(FAR), width=2, element_bytes=4),
    spmm_spmm_loops(Reads.of(FAR), Reads.of(FAR), width=5, element_bytes=4),
    spmm_spmm_loops(_shuffled(FAR), _shuffled(FAR), width=5, element_bytes=4),
    *(spmm_spmm_loops(_shuffled(_far_apart(n)), _shuffled(Pattern.identity(n)), width=1, element_bytes=4)
      for n in (8, 24, 40, 56)),  # exactly as long as blocks of memory are: a step beyond the columns damages the next
    spmm_gemm_loops(_shuffled(DENSE), inner=3, width=2, element_bytes=4),
])
def test_a_tile_is_halved_once_it_exceeds_the_cache_by_a_byte(loops):
    n = loops.one.iterations
    moved = loop_cost(loops.one, range(n)) + loop_cost(loops.two, range(n))
    fits = schedule_tiles(loops, threads=1, cache_bytes=moved, ct_size=n)
    assert fits.tiles == (1, 0)
    exceeds = schedule_tiles(loops, threads=1, cache_bytes=moved - 1, ct_size=n)
    assert exceeds.tiles[0] > 1
    assert exceeds == reference_schedule(loops, threads=1, cache_bytes=moved - 1, ct_size=n)


def test_columns_are_counted_separately_for_every_tile():
    """One row of twenty reads the first and the last column: both halves of the loop exceed the cache by a byte."""
    rows = np.arange(0, 400, 20)
    pattern = Pattern.from_coo(np.repeat(rows, 2), np.tile([0, 399], rows.size), (400, 400))
    loops = spmm_gemm_loops(Reads.of(pattern), inner=8, width=1, element_bytes=8)
    half = loop_cost(loops.one, range(200)) + loop_cost(loops.two, range(200))
    found = schedule_tiles(loops, threads=1, cache_bytes=half - 1, ct_size=400)
    assert np.diff(found.first).tolist() == [100] * 4
    assert schedule_tiles(loops, threads=1, cache_bytes=half, ct_size=400).tiles[0] == 2


@settings(deadline=None)
@given(cases())
def test_every_iteration_runs_once_and_after_what_it_reads(case):
    check_schedule(case.schedule(), case.dependences)


@settings(deadline=None)
@given(cases())
def test_a_tile_moves_no_more_than_the_cache_holds_unless_it_is_a_single_iteration(case):
    schedule = case.schedule()
    for tile in range(sum(schedule.tiles)):
        twos = schedule.second[schedule.second_ptr[tile] : schedule.second_ptr[tile + 1]].tolist()
        ones = range(*schedule.first[tile : tile + 2]) if tile < schedule.tiles[0] else range(0)
        moved = loop_cost(case.loops.one, ones) + loop_cost(case.loops.two, twos)
        assert moved <= case.cache_bytes or max(len(ones), len(twos)) == 1


@settings(deadline=None)
@given(cases())
def test_a_wavefront_has_a_tile_per_thread_if_it_has_as_many_iterations(case):
    schedule = case.schedule()
    rest = schedule.iterations[1] - schedule.fused
    assert schedule.tiles[0] >= min(case.threads, schedule.iterations[0])
    assert schedule.tiles[1] >= min(case.threads, rest)
    assert (np.diff(schedule.first) > 0).all()
    assert (np.diff(schedule.second_ptr)[schedule.tiles[0] :] > 0).all()


@settings(deadline=None)
@given(cases(), st.randoms(use_true_random=False))
def test_the_order_and_repetition_of_reads_within_an_iteration_change_no_dependence(case, random):
    pattern = case.dependences
    rows = [pattern.indices[begin:end].tolist() for begin, end in zip(pattern.indptr, pattern.indptr[1:], strict=False)]
    for row in rows:
        row.extend(row[:1])
        random.shuffle(row)
    indptr = np.cumsum([0, *(len(row) for row in rows)])
    reads = Reads(indptr, np.array([c for row in rows for c in row], dtype=np.int32), pattern.cols)
    loops = gemm_spmm_loops(reads, inner=2, width=2, element_bytes=4)
    schedule = schedule_tiles(loops, threads=2, cache_bytes=case.cache_bytes, ct_size=case.ct_size)
    check_schedule(schedule, pattern)
    assert schedule == reference_schedule(loops, threads=2, cache_bytes=case.cache_bytes, ct_size=case.ct_size)
