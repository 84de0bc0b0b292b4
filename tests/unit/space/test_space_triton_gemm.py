"""The space of Triton's GEMM: points that are left out before compilation, against numbers computed by hand."""

import pytest

from sparloom.errors import IllegalSchedule
from sparloom.space import TritonGemmSpace, accumulators, pipeline_bytes

A100, H200 = 163 * 1024, 227 * 1024


def test_the_pipeline_holds_all_steps_but_one():
    config = TritonGemmSpace(H200).config(block_m=64, block_n=128, block_k=32, stages=4)
    assert pipeline_bytes(config) == 3 * (64 * 32 + 32 * 128) * 4 == 73_728


def test_sums_are_shared_by_the_threads():
    config = TritonGemmSpace(H200).config(block_m=128, block_n=128, block_k=32, warps=8)
    assert accumulators(config) == 128 * 128 // 256 == 64


@pytest.mark.parametrize(("shared", "changes", "reason"), [
    (A100, {"block_m": 64, "block_n": 256, "block_k": 64, "warps": 8, "stages": 4, "precision": "tf32x3"},
     "the pipeline needs 245760 bytes of shared memory, the device has 166912: lower block_k"),
    (H200, {"block_m": 128, "block_n": 256, "warps": 4}, "a thread would hold 256 sums, above 128"),
    (H200, {"block_m": 16, "block_n": 32, "warps": 8}, "a thread would hold 2 sums, below 4: take fewer warps"),
    (H200, {"block_m": 128, "block_n": 128, "block_k": 64, "warps": 4},
     "a thread would have 8192 unrolled products, above 4096: lower block_k"),
])
def test_configurations_that_cannot_run_are_refused(shared, changes, reason):
    with pytest.raises(IllegalSchedule, match=reason):
        TritonGemmSpace(shared).config(**changes)


def test_more_shared_memory_leaves_more_points():
    small, large = TritonGemmSpace(A100), TritonGemmSpace(H200)
    assert set(small) < set(large)
    for space in (small, large):
        assert len(space) == len(list(space)) > 700
        space.validate(space.default())
        assert all(pipeline_bytes(config) <= H200 for config in space)
