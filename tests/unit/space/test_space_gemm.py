"""The space of GEMM: legal points, and reasons for illegal ones."""

import pytest

from sparloom.errors import IllegalSchedule, Unsupported
from sparloom.space import GemmSpace, register_tile

SPACE = GemmSpace()


def test_counts_its_legal_points():
    configs = list(SPACE)
    assert len(configs) == len(SPACE) == len(set(configs)) == 504


def test_the_default_is_legal():
    SPACE.validate(SPACE.default())


def test_blocks_are_multiples_of_the_register_tile():
    for config in SPACE:
        rows, columns = register_tile(config)
        assert config["tile_m"] % rows == config["tile_n"] % columns == 0


@pytest.mark.parametrize(("changes", "reason"), [
    ({"micro": "1x256", "tile_n": 192}, "tile_n=192 is not a multiple of the 256 columns of micro=1x256"),
    ({"micro": "1x64", "pack": "ab"}, "pack=ab interleaves rows of A, of which micro=1x64 has one: use pack=b"),
    ({"tile_k": 17}, "tile_k=17 is not in space cpu_kernels .gemm.: its values are 16, 256, 1024"),
])
def test_illegal_points_are_refused_with_the_reason(changes, reason):
    with pytest.raises(IllegalSchedule, match=reason):
        SPACE.config(**changes)


def test_it_has_no_map_onto_shared_loops():
    with pytest.raises(Unsupported):
        SPACE.vectors([SPACE.default()])
