"""The space of GEMM: legal points, and reasons for illegal ones."""

import pytest

from sparloom.errors import IllegalSchedule
from sparloom.space import GemmSpace, gemm_program, register_tile

SPACE = GemmSpace()


def test_counts_its_legal_points():
    configs = list(SPACE)
    assert len(configs) == len(SPACE) == len(set(configs)) == 493


def test_blocks_are_multiples_of_the_register_tile():
    for config in SPACE:
        assert config["tile_m"] % register_tile(config)[0] == 0


@pytest.mark.parametrize(("changes", "reason"), [
    ({"split_k": 2}, "split_k=2 requires unroll=4, and at most 256 floats in all sums of micro=8x32"),
    ({"split_k": 4, "unroll": 4, "micro": "8x16"}, "split_k=4 requires unroll=4, and at most 256 floats"),
    ({"prefetch": 8}, "prefetch=8 requires unroll=4, pack=none and tile_k of 256 or 1024"),
    ({"prefetch": 8, "unroll": 4, "pack": "b"}, "prefetch=8 requires unroll=4, pack=none"),
    ({"prefetch": 8, "unroll": 4, "tile_k": 16}, "prefetch=8 requires unroll=4, pack=none"),
    ({"loop": "persistent", "pack": "b"}, "loop=persistent packs nothing and has no blocks: write pack=none"),
    ({"loop": "persistent", "tile_m": 48}, "loop=persistent packs nothing and has no blocks"),
    ({"micro": "1x64", "pack": "ab"}, "pack=ab interleaves rows of A, of which micro=1x64 has one: use pack=b"),
    ({"tile_k": 17}, "tile_k=17 is not in space cpu_kernels .gemm.: its values are 16, 256, 1024"),
])
def test_illegal_points_are_refused_with_the_reason(changes, reason):
    with pytest.raises(IllegalSchedule, match=reason):
        SPACE.config(**changes)


@pytest.mark.parametrize(("layout", "programs"), [("nn", 493), ("tn", 493), ("nt", 307), ("tt", 307)])
def test_configurations_that_are_one_program_in_a_layout_have_one_representative(layout, programs):
    found = [gemm_program(config, layout) for config in SPACE]
    assert len(set(found)) == programs
    assert set(found) <= set(SPACE)
    assert [gemm_program(config, layout) for config in found] == found
