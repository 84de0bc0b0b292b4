"""The space of tile fusion: legal points, and reasons for illegal ones."""

import pytest

from sparloom.errors import IllegalSchedule
from sparloom.fusion import TileFusionSpace

SPACE = TileFusionSpace("gemm_spmm")


def test_counts_its_legal_points():
    configs = list(SPACE)
    assert len(configs) == len(SPACE) == len(set(configs)) == 4 * 2 + 360
    assert sum(config["ct_size"] == 0 for config in configs) == 8


@pytest.mark.parametrize(("changes", "reason"), [
    ({"ct_size": 2048}, "ct_size=2048 and cache=0: both are 0 where nothing is fused"),
    ({"local": 1}, "local=1 keeps rows of D1 from one loop to the next"),
    ({"ct_size": 2048, "cache": 1024, "local": 1, "stream_first": 1}, "stream_first=1 of rows that stay"),
    ({"prefetch": 3}, "prefetch=3 is not in space tile_fusion .gemm_spmm.: its values are 0, 4"),
])
def test_illegal_points_are_refused_with_the_reason(changes, reason):
    with pytest.raises(IllegalSchedule, match=reason):
        SPACE.config(**changes)
