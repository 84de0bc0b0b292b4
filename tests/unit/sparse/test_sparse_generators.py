"""Each family has the structure its name promises."""

import numpy as np
import pytest

from sparloom.sparse import locality_order, reorder, statistics
from sparloom.sparse.generators import GENERATORS

SYMMETRIC = ("star_2d", "box_2d", "star_3d", "box_3d", "triangles", "shuffled_mesh", "block_mesh", "tetrahedra",
             "banded", "scrambled_band", "arrow", "blocks", "communities", "heavy_tail", "small_world", "roads",
             "mycielskian")  # fmt: skip


def rng(seed=0):
    return np.random.Generator(np.random.PCG64(seed))


def make(family, rows=1000, seed=0):
    return GENERATORS[family](rows, rng(seed))


@pytest.mark.parametrize("family", GENERATORS)
def test_equal_seeds_give_equal_patterns_and_others_do_not(family):
    assert make(family, 300, 1) == make(family, 300, 1)
    assert len({make(family, 300, seed).digest() for seed in range(8)}) > 1


@pytest.mark.parametrize("family", GENERATORS)
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 40, 900])
def test_every_size_gives_a_pattern(family, rows):
    pattern = make(family, rows)
    assert pattern.rows <= rows * 1.3 + 8
    assert pattern.nnz <= pattern.rows * pattern.cols


@pytest.mark.parametrize("family", SYMMETRIC)
def test_symmetric_families(family):
    assert statistics(make(family))["symmetry"] == 1


@pytest.mark.parametrize(("family", "most"), [("star_2d", 5), ("box_2d", 9), ("star_3d", 7), ("box_3d", 27)])
def test_stencils_have_their_points_and_few_distances(family, most):
    pattern = make(family, 4000)
    assert pattern.row_lengths().max() == most
    assert np.unique(pattern.row_ids() - pattern.indices).size == most


def test_meshes_have_the_degree_of_a_triangulation():
    plane, space = make("triangles", 4000), make("tetrahedra", 4000)
    assert plane.nnz / plane.rows == pytest.approx(7, abs=0.3)  # six neighbours and itself
    assert 13 < space.nnz / space.rows < 18
    assert statistics(plane)["bandwidth_mean"] < 0.1 < statistics(make("shuffled_mesh", 4000))["bandwidth_mean"]


def test_block_meshes_are_made_of_full_blocks_of_three():
    dense = make("block_mesh", 300).to_scipy().toarray().reshape(100, 3, 100, 3).swapaxes(1, 2).reshape(-1, 9)
    assert set(dense.sum(axis=1)) == {0, 9}


def test_bands_stay_near_the_diagonal_and_scrambling_can_be_undone():
    banded, scrambled = make("banded"), make("scrambled_band")
    width = np.abs(banded.row_ids() - banded.indices).max()
    assert 2 <= width <= 32
    assert scrambled.nnz == banded.nnz
    assert np.abs(scrambled.row_ids() - scrambled.indices).max() > 500
    restored = reorder(scrambled, *locality_order(scrambled))
    assert np.abs(restored.row_ids() - restored.indices).max() <= 3 * width


def test_arrows_have_full_rows_and_columns_first():
    pattern = make("arrow")
    head = int((pattern.row_lengths() == 1000).sum())
    assert 1 <= head <= 4
    assert pattern.row_lengths()[:head].tolist() == [1000] * head


def test_blocks_are_full():
    pattern = make("blocks", 1000)
    size = int(pattern.row_lengths()[0])
    assert (pattern.indices // size == pattern.row_ids() // size).all()
    assert pattern.nnz == sum(min(size, 1000 - start) ** 2 for start in range(0, 1000, size))


def test_communities_keep_most_links_inside():
    for seed in range(4):
        pattern = make("communities", 2000, seed)
        restored = reorder(pattern, *locality_order(pattern))
        assert statistics(restored)["reuse_256"] > 1.3


def test_heavy_tails_are_heavier_than_uniform_graphs():
    assert statistics(make("heavy_tail", 4000))["row_gini"] > 0.4
    assert statistics(make("kronecker", 4000))["row_gini"] > 0.5
    assert statistics(make("uniform", 4000))["row_gini"] < 0.35


def test_small_worlds_keep_the_degree_of_the_ring():
    pattern = make("small_world")
    assert statistics(pattern)["row_cv"] < 0.4
    assert (pattern.row_lengths() >= 3).all()


def test_nearest_neighbours_are_a_fixed_number_and_include_the_point():
    pattern = make("nearest")
    assert np.unique(pattern.row_lengths()).size == 1
    assert statistics(pattern)["diagonal"] == 1


def test_roads_are_mostly_chains():
    lengths = make("roads", 4000).row_lengths()
    assert lengths.max() <= 5  # four streets and itself
    assert (lengths == 3).mean() > 0.5


def test_hub_rows_read_a_large_part_of_the_columns():
    for seed in range(5):
        pattern = make("hub_rows", 4000, seed)
        hubs = pattern.row_lengths() > 0.04 * 4000
        assert 1 <= hubs.sum() <= 8
        assert (pattern.row_lengths() == 0).any()


def test_staircases_end_in_slack_columns():
    pattern = make("staircase", 1000)
    assert 2000 <= pattern.cols <= 4000
    last = pattern.indices[pattern.indptr[1:] - 1]
    assert last.tolist() == list(range(pattern.cols - 1000, pattern.cols))


def test_pruned_weights_have_their_density():
    for seed in range(5):
        pattern = make("pruned", 600, seed)
        assert 0.015 < statistics(pattern)["density"] < 0.35
        assert pattern.cols in (150, 600, 2400)


def test_mycielskians_have_no_triangle():
    dense = make("mycielskian", 200).to_scipy().toarray()
    assert np.trace(dense @ dense @ dense) == 0
    assert np.diag(dense).sum() == 0


def test_netlists_have_short_nets_and_a_few_long_ones():
    lengths = make("netlist", 4000).row_lengths()
    assert np.median(lengths) == 2
    assert lengths.max() > 20
    assert lengths.min() >= 1
