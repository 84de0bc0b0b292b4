"""Tiles and their order: the hand-computed matrix, an independent oracle, the rules of dealing."""

import numpy as np
import pytest
import spade_oracle
from spade_cases import uniform

from sparloom.platforms.spade import deal, tile
from sparloom.sparse import Pattern

pytestmark = pytest.mark.cc

# Rows of the 8 x 8 example; tiles of 4 rows x 4 columns.
HAND = Pattern.from_coo(
    np.array([0, 0, 1, 2, 2, 3, 4, 5, 5, 6, 7, 7]), np.array([0, 5, 1, 0, 6, 7, 2, 3, 4, 6, 0, 7]), (8, 8),
)


def test_hand_computed_tiles():
    tiling = tile(HAND, 4, 4, with_source=True)
    assert tiling.tile_row.tolist() == [0, 0, 1, 1]
    assert tiling.tile_column.tolist() == [0, 1, 0, 1]
    assert tiling.begin.tolist() == [0, 3, 6, 9, 12]
    assert tiling.row.tolist() == [0, 1, 2, 0, 2, 3, 4, 5, 7, 5, 6, 7]
    assert tiling.column.tolist() == [0, 1, 0, 5, 6, 7, 2, 3, 0, 4, 6, 7]
    assert tiling.source.tolist() == [0, 2, 3, 1, 4, 5, 6, 7, 10, 8, 9, 11]


def test_hand_computed_spmm_keeps_a_row_panel_on_one_element():
    schedule = deal(tile(HAND, 4, 4), "spmm", pes=2, barrier=False)
    assert schedule.phases == 1
    assert [schedule.tiles_of(0, pe).tolist() for pe in (0, 1)] == [[0, 1], [2, 3]]


def test_hand_computed_barriers_make_a_phase_per_column_panel():
    schedule = deal(tile(HAND, 4, 4), "spmm", pes=2, barrier=True)
    assert schedule.phases == 2
    assert [[schedule.tiles_of(phase, pe).tolist() for pe in (0, 1)] for phase in (0, 1)] == [[[0], [2]], [[1], [3]]]


def test_hand_computed_sddmm_deals_tile_by_tile():
    schedule = deal(tile(HAND, 4, 4), "sddmm", pes=2, barrier=False)
    assert [schedule.tiles_of(0, pe).tolist() for pe in (0, 1)] == [[0, 2], [1, 3]]
    schedule = deal(tile(HAND, 4, 4), "sddmm", pes=3, barrier=True)
    assert [[schedule.tiles_of(phase, pe).tolist() for pe in (0, 1, 2)] for phase in (0, 1)] == [
        [[0], [2], []], [[3], [], [1]],
    ]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("op", ["spmm", "sddmm"])
def test_tiles_and_schedule_agree_with_plain_python(seed, op):
    rng = np.random.default_rng(seed)
    rows, cols = rng.integers(1, 60, 2)
    pattern = Pattern.from_coo(rng.integers(0, rows, 200), rng.integers(0, cols, 200), (rows, cols))
    row_panel, column_panel, pes = rng.integers(1, 30, 3)
    tiling = tile(pattern, row_panel, column_panel, with_source=True)
    expected = spade_oracle.tiles_of(pattern, row_panel, column_panel)
    nonzeros = list(zip(tiling.row.tolist(), tiling.column.tolist(), strict=True))
    assert [nonzero for _, _, inside in expected for nonzero in inside] == nonzeros
    assert [(row, column) for row, column, _ in expected] == list(
        zip(tiling.tile_row.tolist(), tiling.tile_column.tolist(), strict=True))
    np.testing.assert_array_equal(pattern.row_ids()[tiling.source], tiling.row)
    np.testing.assert_array_equal(pattern.indices[tiling.source], tiling.column)
    for barrier in (False, True):
        schedule = deal(tiling, op, pes=pes, barrier=barrier)
        phases = spade_oracle.deal(expected, op, pes, barrier)
        assert [[[expected.index(one) for one in per_pe] for per_pe in phase] for phase in phases] == [
            [schedule.tiles_of(phase, pe).tolist() for pe in range(pes)] for phase in range(schedule.phases)]


@pytest.mark.parametrize("barrier", [False, True])
def test_spmm_never_splits_a_row_panel(barrier):
    tiling = tile(uniform(500, 6), 8, 50)
    schedule = deal(tiling, "spmm", pes=7, barrier=barrier)
    for pe in range(7):
        panels = {int(tiling.tile_row[t]) for phase in range(schedule.phases) for t in schedule.tiles_of(phase, pe)}
        assert all(panel % 7 == pe for panel in panels)


def test_hand_computed_dealing_to_the_first_free_element():
    # Tiles cost 13, the second one 16: elements 0, 1, 2 begin; 0 and 2 are free before 1, and 0 again before 1.
    pattern = Pattern.from_coo(np.arange(21) // 3 * 4, np.arange(21) % 3, (28, 3))
    more = Pattern.from_coo(np.r_[pattern.row_ids(), [5, 5, 5]], np.r_[pattern.indices, [0, 1, 2]], (28, 3))
    schedule = deal(tile(more, 4, 3), "sddmm", pes=3, barrier=False, costs=(1, 10))
    assert [schedule.tiles_of(0, pe).tolist() for pe in range(3)] == [[0, 3, 6], [1, 5], [2, 4]]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("op", ["spmm", "sddmm"])
@pytest.mark.parametrize("barrier", [False, True])
def test_dealing_to_the_first_free_element_agrees_with_plain_python(seed, op, barrier):
    rng = np.random.default_rng(seed)
    pattern = Pattern.from_coo((80 * rng.random(900) ** 2).astype(int), rng.integers(0, 60, 900), (80, 60))
    pes, costs = int(rng.integers(1, 9)), (int(rng.integers(1, 4)), int(rng.integers(0, 20)))
    tiling = tile(pattern, 5, 16)
    schedule = deal(tiling, op, pes=pes, barrier=barrier, costs=costs)
    expected = spade_oracle.deal_to_first_free(spade_oracle.tiles_of(pattern, 5, 16), op, pes, barrier, costs)
    sizes = np.diff(tiling.begin)
    assert [[[len(one[2]) for one in per_pe] for per_pe in phase] for phase in expected] == [
        [sizes[schedule.tiles_of(phase, pe)].tolist() for pe in range(pes)] for phase in range(schedule.phases)]
    if op == "spmm":
        owners = [{int(tiling.tile_row[t]) for phase in range(schedule.phases) for t in schedule.tiles_of(phase, pe)}
                  for pe in range(pes)]
        assert sum(map(len, owners)) == len(set.union(*owners))


def test_empty_tiles_and_empty_column_panels_do_not_exist():
    pattern = Pattern.from_coo(np.array([0, 9]), np.array([0, 35]), (10, 40))
    tiling = tile(pattern, 5, 10)
    assert tiling.count == 2
    assert tiling.column_panels == 4
    assert deal(tiling, "spmm", pes=2, barrier=True).phases == 2
