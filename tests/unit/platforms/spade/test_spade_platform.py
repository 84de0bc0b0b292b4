"""SPADE behind the interface of platforms, built from its options."""

import numpy as np
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf
from spade_cases import PLATFORMS, uniform

from sparloom.errors import IllegalSchedule, Unsupported
from sparloom.measure import TimingProtocol
from sparloom.ops import SDDMM, SpMM, assert_close
from sparloom.platforms.spade import SpadePlatform
from sparloom.sparse import Pattern, SparseMatrix

pytestmark = pytest.mark.cc

NEVER = float("inf")
TIMING = TimingProtocol(rounds=1, repetitions=1, short_seconds=0.0, most_repetitions=1, slow_factor=NEVER,
                        steal_ratio=NEVER, retakes=0, seed=0)
OPS = pytest.mark.parametrize("op", [SpMM(), SDDMM()], ids=lambda op: op.name)


def platform_of(preset="spade", **changes) -> SpadePlatform:
    parts = [PLATFORMS.spade, {"width": 256}, *([PLATFORMS[preset]] if preset != "spade" else []), changes]
    chosen = OmegaConf.to_container(OmegaConf.merge(*parts))
    chosen.pop("defaults", None)
    return instantiate(chosen)


def matrix_of(pattern: Pattern) -> SparseMatrix:
    return SparseMatrix(pattern, np.random.default_rng(2).uniform(0.5, 1, pattern.nnz).astype(np.float32))


@OPS
def test_results_in_tile_order_are_the_oracle(op, odd_pattern):
    platform = platform_of(width=64)
    operands = op.operands(matrix_of(odd_pattern), 64, seed=0)
    space = list(platform.space(op).bind(odd_pattern.shape))
    terms = op.terms(odd_pattern, 64)
    for config in space[::17]:
        assert_close(platform.run(op, operands, config), op.oracle(operands), terms=terms)


@OPS
def test_results_of_a_reordered_square_matrix_keep_the_order_of_the_caller(op):
    platform, pattern = platform_of(width=32), uniform(300, 4)
    operands = op.operands(matrix_of(pattern), 32, seed=0)
    config = platform.baseline(op, pattern).replace(reorder=1, column_panel=1024, row_panel=4)
    assert_close(platform.run(op, operands, config), op.oracle(operands), terms=op.terms(pattern, 32))


@OPS
def test_every_configuration_is_simulated_once(op):
    platform, pattern = platform_of(), uniform(500, 4)
    operands = op.operands(matrix_of(pattern), 256, seed=0)
    configs = list(platform.space(op).bind(pattern.shape))
    found = list(platform.measure_many(op, operands, configs, TIMING))
    assert [config for config, _, _ in found] == configs
    assert {(turn, each.kind, len(each.seconds)) for _, turn, each in found} == {(0, "simulated", 1)}
    assert platform.measure(op, operands, configs[7], TIMING) == found[7][2]


def test_presets_that_share_traces_give_what_each_gives_alone():
    op, pattern = SpMM(), uniform(800, 4)
    operands = op.operands(matrix_of(pattern), 256, seed=0)
    platforms = [platform_of(), platform_of("spade_205")]
    configs = list(platforms[0].space(op))[::10]
    together = list(platforms[0].measure_together(platforms, op, operands, configs))
    for place, platform in enumerate(platforms):
        alone = [each for _, _, each in platform.measure_many(op, operands, configs, TIMING)]
        assert alone == [measurements[place] for _, _, measurements in together]


def test_the_line_accurate_level_is_close_and_not_equal():
    op, pattern = SpMM(), uniform(1000, 4)
    operands = op.operands(matrix_of(pattern), 256, seed=0)
    config = platform_of().baseline(op, pattern)
    fast, slow = (platform_of(level=level).measure(op, operands, config, TIMING).best for level in ("t1", "t0"))
    assert fast != slow
    assert fast == pytest.approx(slow, rel=0.25)


def test_presets_differ_as_their_papers_say():
    assert platform_of().preset == "cognate32"
    assert (platform_of("spade_205").preset, platform_of("spade_205").dram_gb_per_s) == ("cognate32_205", 205)
    isca = platform_of("spade_isca224")
    assert isca.machine.geometry(32).l2_sets * 20 * 128 * 56 == pytest.approx(70 * 2**20, rel=0.01)
    assert isca.machine.geometry(32).llc_sets * 16 * 128 == pytest.approx(84 * 2**20, rel=0.01)
    small = platform_of("spade_hottiles16")
    assert (small.pes, small.machine.geometry(32).l2_sets, small.machine.geometry(32).llc_sets) == (16, 0, 0)
    assert platform_of("spade_hottiles4").pes == 4


def test_a_matrix_without_nonzeros_fails_with_a_reason():
    pattern = Pattern((3, 3), np.zeros(4, np.int64), np.empty(0, np.int32))
    op, platform = SpMM(), platform_of()
    operands = op.operands(matrix_of(pattern), 256, seed=0)
    measured = platform.measure(op, operands, platform.baseline(op, pattern), TIMING)
    assert measured.failure == "the matrix has no nonzeros, so nothing runs"


def test_values_outside_the_space_are_refused():
    op, pattern, platform = SpMM(), uniform(50, 2), platform_of()
    operands = op.operands(matrix_of(pattern), 256, seed=0)
    config = platform.baseline(op, pattern).replace(row_panel=7)
    with pytest.raises(IllegalSchedule, match="row_panel"):
        platform.run(op, operands, config)
    with pytest.raises(IllegalSchedule, match="row_panel"):
        platform.measure(op, operands, config, TIMING)


def test_large_matrices_are_refused_at_the_line_accurate_level():
    op, pattern, platform = SpMM(), uniform(30_000, 8), platform_of(level="t0")
    operands = op.operands(matrix_of(pattern), 256, seed=0)
    with pytest.raises(Unsupported, match="nonzeros at level t0, which takes at most 200000: use level t1"):
        platform.measure(op, operands, platform.baseline(op, pattern), TIMING)
