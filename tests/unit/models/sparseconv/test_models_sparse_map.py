"""Maps: pairs, blocks, pooling, batches."""

import numpy as np
import pytest

from sparloom.models import SparseMap, build_map, conv_flops, map_flops
from sparloom.models.sparseconv import maps

CHANNELS = (8, 8, 8, 8)


def drawn(seed: int, count: int = 150, side: int = 30) -> np.ndarray:
    return np.unique(np.random.default_rng(seed).integers(0, side, (count, 2)), axis=0)


def pairs_of(sites: SparseMap, level: int) -> set[tuple[int, int, int]]:
    found = set()
    for block in sites.levels[level].blocks:
        taps = np.repeat(block.taps, block.counts)
        found |= set(zip(taps.tolist(), block.target.tolist(), block.source.tolist(), strict=True))
    return found


def brute_pairs(coords: np.ndarray) -> set[tuple[int, int, int]]:
    places = {tuple(site): row for row, site in enumerate(coords.tolist())}
    shifts = [(tap, tap // 3 - 1, tap % 3 - 1) for tap in range(9) if tap != 4]
    return {(tap, place, places[row + down, col + right]) for (row, col), place in places.items()
            for tap, down, right in shifts if (row + down, col + right) in places}


def test_pairs_are_all_neighbours_within_the_kernel() -> None:
    coords = drawn(0)
    sites = build_map([coords], channels=CHANNELS)
    assert pairs_of(sites, 0) == brute_pairs(coords)
    assert sites.levels[0].pairs == len(brute_pairs(coords))


def test_coarser_levels_hold_the_halved_coordinates() -> None:
    coords = drawn(1)
    sites = build_map([coords], channels=CHANNELS)
    for level in (1, 2, 3):
        coarse = np.unique(coords >> level, axis=0)
        assert sites.levels[level].sites == len(coarse)
        assert pairs_of(sites, level) == brute_pairs(coarse)


def test_every_child_is_in_one_pool_list() -> None:
    sites = build_map([drawn(2)], channels=CHANNELS)
    for level, pool in zip(sites.levels, sites.pools, strict=False):
        children = np.concatenate([pool.first.numpy(), *(child.numpy() for _, child in pool.extra)])
        assert sorted(children) == list(range(level.sites))


def test_blocks_cover_all_pairs_within_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    coords = drawn(3, count=400)
    whole = build_map([coords], channels=CHANNELS)
    monkeypatch.setattr(maps, "BLOCK_FLOATS", 64 * 8)
    cut = build_map([coords], channels=CHANNELS)
    assert len(cut.levels[0].blocks) > 1
    assert all(sum(block.counts) <= 64 for block in cut.levels[0].blocks)
    assert pairs_of(cut, 0) == pairs_of(whole, 0)


def test_matrices_of_a_batch_do_not_touch() -> None:
    parts = [drawn(5), drawn(6), np.zeros((0, 2)), drawn(7, side=7)]
    batch = build_map(parts, channels=CHANNELS)
    single = [build_map([part], channels=CHANNELS) for part in parts]
    for level in range(4):
        assert batch.levels[level].segments == tuple(one.levels[level].sites for one in single)
        assert batch.levels[level].pairs == sum(one.levels[level].pairs for one in single)
    assert batch.patch_pairs == sum(one.patch_pairs for one in single)


def test_last_column_is_no_neighbour_of_the_next_row() -> None:
    sites = build_map([np.array([(0, 9), (1, 0), (2, 9)])], channels=CHANNELS)
    assert sites.levels[0].pairs == 0
    assert sites.patch_pairs == 5  # three centres; (0, 9) and (2, 9) see each other two rows apart


def test_no_sites_and_one_site() -> None:
    empty = build_map([np.zeros((0, 2))], channels=CHANNELS)
    assert [level.sites for level in empty.levels] == [0, 0, 0, 0]
    assert map_flops(empty, (2,) * 12) == 0
    one = build_map([np.array([(5, 7)])], channels=CHANNELS)
    assert [(level.sites, level.pairs) for level in one.levels] == [(1, 0)] * 4


def test_flops_count_existing_pairs_by_hand() -> None:
    """Two neighbours side by side: 4 pairs with centres at level 0; they merge at level 1."""
    coords = np.array([(0, 0), (0, 1)])
    widths = (2,) * 12
    level0 = 2 * 6 * 4 * 2 * 2
    others = 9 * 6 * 1 * 2 * 2
    assert conv_flops(coords, widths) == 4 * 4 * 1 * 2 + level0 + others
