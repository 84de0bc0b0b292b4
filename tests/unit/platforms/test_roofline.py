"""The least seconds of sparse operations: reuse distances beside a simulated LRU cache, bounds beside sums by hand."""

import numpy as np
import pytest

from sparloom.measure import vector_lanes
from sparloom.ops import SDDMM, CsrAttention, SpMM
from sparloom.platforms import PatternReuse, ReuseDistances, Roof, Supply, bound, measure_roof
from sparloom.sparse import Pattern

pytestmark = pytest.mark.cc
GATHERED, NONZERO, ROW = 8, 3, 5  # bytes
HELD = 1000


def drawn(rng: np.random.Generator, rows: int, cols: int, density: float) -> Pattern:
    dense = rng.random((rows, cols)) < density
    return Pattern.from_coo(*np.nonzero(dense), dense.shape)


def simulated_misses(pattern: Pattern, held: int) -> int:
    """Repeat the calls on an LRU list of everything that was read, and count the misses of the last one."""
    newest: list[tuple[int | None, int]] = []
    for _ in range(2):
        missed, before = 0, -1
        for row, column in zip(pattern.row_ids(), pattern.indices, strict=True):
            newest[:0] = [(None, NONZERO)] + [(None, ROW)] * int(row != before)
            before, met, hit = row, 0, False
            for place, (name, size) in enumerate(newest):
                met += size
                if name == column:
                    hit = met <= held
                    del newest[place]
                    break
            missed += not hit
            newest.insert(0, (column, GATHERED))
    return missed


@pytest.mark.parametrize("seed", range(8))
def test_misses_are_those_of_a_simulated_cache_of_any_size(seed):
    rng = np.random.default_rng(seed)
    pattern = drawn(rng, *rng.integers(1, 30, 2), rng.random())
    reuse = ReuseDistances.of(pattern)
    for held in range(0, 400, 37):
        assert reuse.misses(held, gathered=GATHERED, nonzero=NONZERO, row=ROW) == simulated_misses(pattern, held)


def test_rows_are_counted_as_if_there_were_no_others():
    pattern = Pattern((4, 3), [0, 1, 1, 3, 4], [2, 0, 2, 2])
    reuse = ReuseDistances.of(pattern, slice(1, 4))
    assert (reuse.rows, reuse.filled_rows, reuse.distinct) == (3, 2, 2)
    assert reuse.columns.tolist() == [2, 2, 1]
    assert reuse.nonzeros.tolist() == [3, 2, 1]
    assert reuse.begun.tolist() == [2, 1, 1]


def test_a_pattern_without_nonzeros_reads_only_its_row_pointers():
    pattern = Pattern((3, 4), np.zeros(4, np.int64), np.zeros(0, np.int32))
    assert bound(SpMM(), pattern, 2, roof=roof()).parts == {"flops": 0, "L2": 8 * 3 + 4 * 2 * 3, "memory": 0}


def roof(threads: int = 1, near: int = 0, both_ways: float = 1.0) -> Roof:
    """One flop and one byte per second."""
    return Roof(threads, 1.0, (Supply("L2", 1.0, both_ways, near, True), Supply("memory", 1.0, 1.0, HELD, False)))


PATTERN = Pattern((3, 4), [0, 2, 2, 4], [0, 1, 1, 3])
READ = {"spmm": 4 * (8 + 8) + 3 * 8, "sddmm": 4 * (8 + 8) + 3 * 8 + 2 * 8, "attention": 4 * (4 + 16) + 3 * 8 + 2 * 8}
WRITTEN = {"spmm": 3 * 8, "sddmm": 4 * 4, "attention": 3 * 8}
ONCE = {"spmm": -8, "sddmm": -8, "attention": -16}  # column 1 has two nonzeros
FLOPS = {"spmm": 16, "sddmm": 20, "attention": 32}


@pytest.mark.parametrize("op", [SpMM(), SDDMM(), CsrAttention()], ids=lambda op: op.name)
def test_bounds_are_sums_made_by_hand(op):
    """Two columns of float32: a dense row has 8 bytes, and caches of no bytes hold nothing."""
    found = bound(op, PATTERN, 2, roof=roof())
    assert found.parts == {"flops": FLOPS[op.name], "L2": READ[op.name] + WRITTEN[op.name], "memory": 0}
    assert found.seconds == found.parts["L2"]
    assert found.limit == "L2"
    assert found.compulsory_seconds == READ[op.name] + ONCE[op.name] + WRITTEN[op.name]


def test_what_fits_into_the_caches_does_not_pass():
    touched = READ["spmm"] + ONCE["spmm"] + WRITTEN["spmm"]
    assert bound(SpMM(), PATTERN, 2, roof=roof(near=touched)).parts["L2"] == 0
    assert bound(SpMM(), PATTERN, 2, roof=roof(near=touched - 1)).parts["L2"] == WRITTEN["spmm"]  # past the caches
    assert bound(SpMM(), PATTERN, 2, roof=roof(near=60)).parts["L2"] > WRITTEN["spmm"]


def test_reads_have_a_rate_of_their_own():
    found = bound(SpMM(), PATTERN, 2, roof=roof(both_ways=1.25))
    assert found.parts["L2"] == max(READ["spmm"], (READ["spmm"] + WRITTEN["spmm"]) / 1.25)
    assert bound(SpMM(), PATTERN, 2, roof=roof(both_ways=100.0)).parts["L2"] == READ["spmm"]


def test_each_thread_has_private_caches_for_its_own_rows():
    """Both rows fit into the cache of one thread each, but not together."""
    pattern = Pattern((2, 4), [0, 2, 4], [0, 1, 2, 3])
    one, two = (bound(SpMM(), pattern, 2, roof=roof(threads, near=50)).parts["L2"] for threads in (1, 2))
    assert one > 0
    assert two == 0
    whole = PatternReuse.of(pattern, 2)
    assert [share.distinct for share in whole.shares] == [2, 2]


def test_wider_types_move_more_and_their_flops_count_twice():
    half, single, double = (bound(SpMM(), PATTERN, 2, roof=roof(), dtype=dtype)
                            for dtype in (np.float16, np.float32, np.float64))
    assert half.parts["L2"] < single.parts["L2"] < double.parts["L2"]
    assert half.parts["flops"] == single.parts["flops"] == double.parts["flops"] / 2


def test_this_machine_has_rates_and_growing_caches():
    measured = measure_roof(1, rounds=1)
    assert 0 < measured.flops < 2 * 2 * vector_lanes() * 6e9  # two units that multiply and add, 6 GHz
    names = [supply.name for supply in measured.supplies]
    assert names == [*(f"L{level}" for level in range(2, len(names) + 1)), "memory"]
    assert all(supply.both_ways >= supply.rate > 0 for supply in measured.supplies)
    held = [supply.held for supply in measured.supplies]
    assert held == sorted(set(held))
    assert [supply.private for supply in measured.supplies][-1] is False
