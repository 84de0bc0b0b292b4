"""Statistics of tiled walks against a plain walk over every nonzero."""

from collections import defaultdict

import numpy as np
import pytest

from sparloom.sparse import WALK_STATISTICS, WALKS, Pattern, WalkGrid, locality_order, reorder, walk_statistics
from sparloom.sparse.walks import PRIVATE_BYTES, SHARED_BYTES, TILE_STATISTICS

GRID = WalkGrid(row_panels=(1, 3, 16), column_panels=(4, 10, 0), slices=(32,), lanes=4)


def scattered(seed: int, rows: int = 40, cols: int = 33, nnz: int = 260) -> Pattern:
    rng = np.random.default_rng(seed)
    return Pattern.from_coo(rng.integers(0, rows, nnz), rng.integers(0, cols, nnz) ** 2 // cols, (rows, cols))


def plain(pattern: Pattern, row_panel: int, column_panel: int, lanes: int) -> dict[str, float]:
    """The same numbers by sets and loops."""
    columns = column_panel or pattern.cols
    points = list(zip(pattern.row_ids().tolist(), pattern.indices.tolist(), strict=True))
    tiles, touched_rows = defaultdict(list), set()
    phases, waves, wave_tiles = defaultdict(list), defaultdict(list), defaultdict(list)
    for row, column in points:
        panel, phase = row // row_panel, column // columns
        tiles[panel, phase].append(column)
        touched_rows.add((row, phase))
        phases[phase].append(column)
        waves[panel // lanes].append(column)
        wave_tiles[panel // lanes, phase].append(column)

    def met(groups: dict) -> float:
        return sum(len(group) * len(set(group)) for group in groups.values()) / len(points)

    def loads(lane_of: dict, phased: bool) -> float:
        work = defaultdict(float)
        for tile, group in tiles.items():
            work[tile[1] if phased else 0, lane_of[tile]] += len(group)
        steps = {step for step, _ in work}
        return sum(max(work[step, lane] for lane in range(lanes)) for step in steps) / (len(points) / lanes)

    counts = np.array([len(group) for group in tiles.values()])
    by_panel = {tile: tile[0] % lanes for tile in tiles}
    in_turn = {tile: place % lanes for place, tile in enumerate(sorted(tiles))}
    by_phase = {tile: place % lanes for place, tile in enumerate(sorted(tiles, key=lambda tile: (tile[1], tile[0])))}
    nnz = len(points)
    return {
        "tiles": len(tiles), "phases": len(phases), "tile_cv": counts.std() / counts.mean(),
        "tile_max": counts.max() / counts.mean(),
        "tile_columns": sum(len(set(group)) for group in tiles.values()) / nnz,
        "tile_rows": len(touched_rows) / nnz, "tile_set": met(tiles), "phase_set": met(phases),
        "wave_columns": sum(len(set(group)) for group in waves.values()) / nnz, "wave_set": met(waves),
        "wave_tile_set": met(wave_tiles), "panel_imbalance": loads(by_panel, False),
        "panel_phase_imbalance": loads(by_panel, True), "tile_imbalance": loads(in_turn, False),
        "tile_phase_imbalance": loads(by_phase, True),
    }


@pytest.mark.parametrize("seed", range(4))
def test_tile_statistics_agree_with_a_plain_traversal(seed):
    pattern = scattered(seed)
    orders = {0: pattern, 1: reorder(pattern, *locality_order(pattern))}
    for (reordered, row_panel, column_panel, _, _), numbers in walk_statistics(pattern, GRID).items():
        expected = plain(orders[reordered], row_panel, column_panel, GRID.lanes)
        for name, number in zip(TILE_STATISTICS, numbers, strict=False):
            assert number == pytest.approx(expected[name], rel=1e-5), (name, row_panel, column_panel)


def lru_misses(sequence: list, capacity: int) -> float:
    held: list = []
    misses = 0
    for item in sequence:
        if item in held:
            held.remove(item)
        else:
            misses += 1
        held.append(item)
        del held[:-capacity]
    return misses / len(sequence)


@pytest.mark.parametrize("column_panel", [0, 64])
@pytest.mark.parametrize("phased", [0, 1])
def test_miss_ratios_follow_an_lru_cache(column_panel, phased):
    """One lane, one row per panel: the order is exact, and miss ratios are those of a real LRU cache within 0.06."""
    rng = np.random.default_rng(5)
    cols = np.minimum((rng.pareto(1.0, 4000) * 12).astype(int), 255)
    pattern = Pattern.from_coo(rng.integers(0, 300, 4000), cols, (300, 256))
    grid = WalkGrid(row_panels=(1,), column_panels=(column_panel,), slices=(64,), lanes=1)
    numbers = walk_statistics(pattern, grid)[0, 1, column_panel, phased, 64]
    found = dict(zip(WALK_STATISTICS, numbers, strict=True))
    points = list(zip(pattern.row_ids().tolist(), pattern.indices.tolist(), strict=True))
    if phased:
        points.sort(key=lambda point: (point[1] // (column_panel or 256), point))
    for size in PRIVATE_BYTES:
        exact = lru_misses([column for _, column in points], size // (64 * 4))
        assert found[f"private_{size >> 10}k"] == pytest.approx(exact, abs=0.06)


def test_larger_caches_miss_less_and_phases_keep_working_sets_small():
    found = walk_statistics(scattered(1, 400, 3000, 12000), WalkGrid((8,), (256, 0), (256,), lanes=8))
    for numbers in found.values():
        ratios = numbers[len(TILE_STATISTICS):]
        assert (np.diff(ratios[:len(PRIVATE_BYTES)]) <= 1e-6).all()
        assert (np.diff(ratios[-len(SHARED_BYTES):]) <= 1e-6).all()
    place = WALK_STATISTICS.index("shared_1024k")
    assert found[0, 8, 256, 1, 256][place] < found[0, 8, 256, 0, 256][place]


def test_patterns_without_nonzeros_give_finite_numbers():
    empty = Pattern((5, 7), np.zeros(6, int), np.zeros(0, int))
    numbers = np.array(list(walk_statistics(empty).values()))
    assert numbers.shape == (128, len(WALK_STATISTICS))
    assert np.isfinite(numbers).all()


def test_stored_walks_are_those_of_the_spade_space():
    from sparloom.space import SpadeSpace

    space = SpadeSpace("spmm")
    walks = {space.walk(config) for config in space}
    assert walks == set(walk_statistics(scattered(0), WALKS))
